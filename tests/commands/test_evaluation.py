"""Systems by test sets, in words, tables and a page."""

from dataclasses import replace

import pytest
from html_pages import read_page, rows, texts

from tfm.commands.evaluation import Evaluation, SetResult
from tfm.commands.score import ScoreResult
from tfm.features.seen.report import SeenReport
from tfm.metrics.lines import differing_lines
from tfm.metrics.metric import Comparison, MetricScore
from tfm.metrics.page import PageLine
from tfm.metrics.seeds import group_by_seed, mean_score, welch_p_value

GROUPS = {"old-{1,2,3}": ["old-1", "old-2", "old-3"], "new-{1,2,3}": ["new-1", "new-2", "new-3"]}


def score(value, p_value=None, baseline=30, name="bleu", **others):
    compared = None if baseline is None else Comparison(baseline=baseline, p_value=p_value)
    label = {"bleu": "BLEU", "ter": "TER", "command": "awk"}[name]
    given = {"value": value, "mean": 30, "interval": 1.5, "comparison": compared, **others}
    return MetricScore(name=name, label=label, signature="tok:13a", **given)


def evaluation(*sets, groups=None, seen=None, differing=None):
    """Return the result of systems with some scores on sets, which are named a, b, …"""
    groups = groups or {name: [name] for name in sets[0]}
    results = []
    for name, of_set in zip("ab", sets, strict=False):
        values = {group: [of_set[each] for each in names] for group, names in groups.items()}
        baseline = next(iter(values.values()))
        given = {"num_lines": 3003, "hypotheses": "h", "references": ["r"], "seen": seen}
        results.append(
            SetResult(
                name=name,
                results={system: ScoreResult(scores=[x], **given) for system, x in of_set.items()},
                groups={group: [mean_score(x, baseline)] for group, x in values.items()},
                differing=differing or {},
            )
        )
    systems = {each: {"written": "2026-11-29 07:09", "run": "running"} for each in sets[0]}
    return Evaluation(systems=systems, groups=groups, sets=results)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (
            [score(32.5, 0.001), score(30.2, 0.3)],
            "better by 2.50 BLEU on a (p 0.0010), level on b (p 0.3000)",
        ),
        ([score(30, None)], "level on a (untested)"),
        ([score(28, 0.02, name="ter")], "better by 2.00 TER on a (p 0.0200)"),
        ([score(28, name="command")], "lower by 2.0000 awk on a (untested)"),
    ],
)
def test_the_answer_is_a_sentence(scores, words):
    name = scores[0].name
    result = evaluation(*({"old": score(30, baseline=None, name=name), "new": x} for x in scores))
    assert result.answer() == [f"Compared with old, new is {words}"]


def test_a_table_has_a_row_for_each_system_and_a_column_for_each_set():
    sets = [{"m&1": score(30, baseline=None), "m_2": score(31, p)} for p in (0.0123, 0.5)]
    seen = SeenReport(datasets={}, seen={}, num_clean=9, clean_scores=[score(25.96, baseline=25.3)])
    bleu, of_unseen, systems = evaluation(*sets, seen=seen).tables()
    assert bleu.columns == ["BLEU", "a (3,003)", "b (3,003)"]
    assert bleu.rows == [
        ["m&1", "30.00 ± 1.50", "30.00 ± 1.50"],
        ["m_2", "31.00 ± 1.50, +1.00, p = 0.0123", "31.00 ± 1.50, +1.00, p = 0.5000"],
    ]
    assert of_unseen.rows[1] == ["m_2", *["9 lines, BLEU = 25.96 (baseline 25.30)"] * 2]
    assert systems.rows[0] == ["m&1", "2026-11-29 07:09", "running"]


def test_groups_are_compared_by_their_means_over_seeds():
    values = {"old-1": 30, "old-2": 31, "old-3": 32, "new-1": 33, "new-2": 36, "new-3": 39}
    result = evaluation({name: score(x, 0.001) for name, x in values.items()}, groups=GROUPS)
    [[old], [new]] = result.sets[0].groups.values()
    assert (old.value, old.deviation, old.comparison) == (31, 1, None)
    # t = 5 / sqrt(1/3 + 9/3) = 2.7386, with (10/3)² / ((1/9 + 9) / 2) = 2.4390 degrees of freedom
    assert new.comparison == Comparison(baseline=31, p_value=pytest.approx(0.0898, abs=5e-5))
    assert result.tables()[0].rows[:2] == [
        ["old-{1,2,3} (3 seeds)", "31.00 ± 1.00"],
        ["new-{1,2,3} (3 seeds)", "36.00 ± 3.00, +5.00, p = 0.0898"],
    ]
    [group] = result.record()["sets"][0]["groups"]["new-{1,2,3}"]
    assert (group["value"], group["deviation"]) == (36, 3)
    assert (group["mean"], group["details"]) == (None, {})


def test_notes_say_which_systems_have_another_signature():
    tested = replace(score(31), signature="bs:1000|seed:1|tok:13a")
    alike = {"old": score(30), "new": tested}
    other = {**alike, "old": replace(score(30), signature="errors:3")}
    notes = evaluation(alike, other).notes()[1:]
    assert notes == [f"BLEU, a, b (new): {tested.signature}", "BLEU, b (old): errors:3"]


def test_a_page_has_the_answer_all_tables_and_notes_and_lines(tmp_path):
    differing = {"y": [PageLine("Line 7", "s", "<r>", [("x", "<r> y", {"chrF": 1})])]}
    result = evaluation({"x": score(30, baseline=None), "y": score(31, 0.1)}, differing=differing)
    result.write_page(tmp_path / "page.html", "de")
    page = read_page(tmp_path / "page.html")
    assert rows(page) == [[*row] for t in result.tables() for row in (t.columns, *t.rows)]
    assert {*result.answer(), *result.notes(), "<r> y"} <= {*texts(page, ".//p")}
    assert texts(page, ".//mark") == ["y"]


def test_lines_that_differ_most_come_from_gains_to_losses():
    reference = ["eins", "zwei", "drei", "vier", "für"]
    systems = {
        "a": ["eins", "zw", "drei", "x", "für"],
        "b": ["e", "zwei", "drei", "vie", "fu\u0308r"],
    }
    found = differing_lines(systems, list("12345"), [["?"] * 5, reference], most=1)
    assert [(each.label, each.source) for each in found] == [("Line 4", "4"), ("Line 1", "1")]
    assert found[-1].texts[0] == ("a", "eins", {"chrF": 100})


@pytest.mark.parametrize(
    ("one", "other", "p"),
    [
        ([1, 2, 3], [4, 5, 6], 0.0213),  # t = 3.6742, 4 degrees of freedom
        ([1, 1, 1], [1, 2], 0.5),  # t = 1, 1 degree of freedom
        ([1, 1], [2, 2], None),
    ],
)
def test_the_t_test_of_welch(one, other, p):
    assert welch_p_value(one, other) == (None if p is None else pytest.approx(p, abs=5e-5))


def test_runs_form_a_group_if_all_but_the_seed_is_equal():
    runs = {"r/b-1/averaged": ("x", 1), "c": ("y", 1), "r/b-12/averaged": ("x", 2), "d": ("z", 1)}
    assert group_by_seed(runs | {"e": None, "f": ("z", 1)}) == {
        "r/b-1{,2}/averaged": ["r/b-1/averaged", "r/b-12/averaged"],
        **{name: [name] for name in ("c", "d", "f", "e")},
    }  # d and f have one seed, as two checkpoints of a run do
