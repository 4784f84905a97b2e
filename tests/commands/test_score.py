"""tfm score: files of translations and references, and the printed scores."""

import io
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from helpers import python

from tfm.commands.score import score
from tfm.config import ScoreConfig
from tfm.errors import DataError, UsageError
from tfm.folders import last_generation
from tfm.metrics.scores import corpus_scores
from tfm.metrics.texts import read_lines

CONFIG = ScoreConfig()
PAPER = {"metric": "paper-bleu"}
REFERENCE = [
    "Der alte Mann sitzt auf einer grünen Bank.",
    "Heute ist der dritte Mai.",
    'Sie sagte: "Das ist nicht wahr!"',
]
HYPOTHESES = [
    "Der alte Mann sitzt auf einer Bank, die grün ist.",
    "Heute ist der dritte Mai.",
    "Sie sagte: Das ist wahr!",
]
BASELINE = ["Der Mann sitzt auf Bank.", "Heute ist der Mai.", "Sie sagte: Das ist wahr!"]


@pytest.fixture
def files(elsewhere, tmp_path):
    texts = {"hypotheses": HYPOTHESES, "reference": REFERENCE, "baseline": BASELINE}
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {name: tmp_path / name for name in texts}


def write_record(*references: object, **changes: object) -> None:
    record = {
        "format": 1,
        "model": ["runs/x"],
        "source": "data/x/test.en",
        "references": list(map(str, references)),
        "source_language": "",
        "language": "",
    }
    Path("runs").mkdir(exist_ok=True)
    Path("runs/last-generation.json").write_text(json.dumps(record | changes))


def pipe_in(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


RECORDED = """
import sys
from tfm.folders.last_generation import LastGeneration
languages = {"source_language": "en", "language": "de"}
if sys.argv[1:]:
    LastGeneration(model=(), source="in", references=tuple(sys.argv[1:]), **languages).save()
else:
    print(*LastGeneration.load().references)
"""


def test_of_several_pipelines_each_has_its_own_reference(elsewhere):
    pipes = {f"{number}.de": os.pipe() for number in range(3)}
    for reference, (_, writing) in pipes.items():
        assert python("-c", RECORDED, reference, stdout=writing).returncode == 0
    for reference, (reading, writing) in pipes.items():
        assert python("-c", RECORDED, stdin=reading).stdout == f"{reference}\n"
        os.close(reading)
        os.close(writing)
    assert python("-c", RECORDED, stdin=subprocess.DEVNULL).stdout == "2.de\n"


def test_records_of_pipes_do_not_accumulate(elsewhere, monkeypatch):
    record = last_generation.LastGeneration.load()
    for number in range(40):
        path = last_generation.FILE.with_name(f".last-generation.{number}.json")
        monkeypatch.setattr(last_generation, "_file_of", lambda _, path=path: path)
        record.save()
    assert path.is_file()
    assert len([*Path("runs").iterdir()]) <= 21


def test_piped_translations_are_scored_against_the_recorded_reference(monkeypatch, files):
    """The record is read after standard input has ended."""

    class LateRecord(io.BytesIO):
        def read(self, *size):
            data = super().read(*size)
            if not data:
                write_record(files["reference"])
            return data

    write_record("of an older generation")
    data = "".join(f"{line}\n" for line in HYPOTHESES).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(LateRecord(data)))
    result = score()
    assert result.references == [str(files["reference"])]
    assert result.scores == corpus_scores(HYPOTHESES, [REFERENCE], ["bleu", "chrf"], CONFIG)


@pytest.mark.parametrize(
    ("way", "is_recorded"), [("a link", False), ("a hard link", True), ("standard input", True)]
)
def test_a_reference_is_not_scored_against_itself(files, tmp_path, way, is_recorded):
    reference, hypotheses, link = files["reference"], files["reference"], tmp_path / "link"
    write_record(reference)
    if way == "a link":
        link.symlink_to(reference)
        hypotheses = link
    elif way == "a hard link":
        link.hardlink_to(reference)
        hypotheses = link
    given = [] if way == "standard input" else ["--hypotheses", hypotheses]
    given += [] if is_recorded else ["--reference", reference]
    with reference.open() as stdin:
        done = python("-m", "tfm", "score", *given, cwd=tmp_path, stdin=stdin)
    name = "standard input" if way == "standard input" else hypotheses
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"tfm: {name} is the reference {reference} itself: name a file of translations\n"
    )


@pytest.mark.parametrize("change", [{"format": 9}, {"references": 5}, {"source": None}], ids=str)
def test_a_missing_invalid_or_unknown_reference_is_asked_for(files, capsys, change):
    with pytest.raises(UsageError, match="pass --reference"):
        score("hypotheses")
    write_record(source="news.en")
    with pytest.raises(UsageError, match=r"read news\.en, whose reference.*pass --reference"):
        score("hypotheses")
    assert capsys.readouterr().err == ""
    write_record(**change)
    with pytest.raises(UsageError, match="no reference given, nor recorded in "):
        score("hypotheses")
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(r"generation\.json (is damaged|has format).*: generate again$", line)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("hypotheses", "short"), r"\S+/hypotheses and \S+/short have 3 and 2 lines"),
        (("hypotheses", "reference", "short"), r"\S+/short have 3 and 2 lines"),
        (("several", "reference"), "--n-best 2"),
        (("empty", "reference"), "empty is empty"),
    ],
)
def test_files_that_cannot_be_scored_are_named(tmp_path, files, names, message):
    twice = "".join(f"{line}\n{line}\n" for line in HYPOTHESES)
    for name, text in {"short": "eins\nzwei\n", "several": twice, "empty": ""}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    hypotheses, reference, *baselines = (tmp_path / name for name in names)
    baseline = baselines[0] if baselines else None
    with pytest.raises(DataError, match=message) as error:
        score(hypotheses, reference, baseline=baseline)
    assert "\n" not in str(error.value)


def test_an_empty_pipe_or_a_terminal_has_nothing_to_score(elsewhere, monkeypatch):
    pipe_in(monkeypatch, b"")
    with pytest.raises(DataError, match="standard input is empty"):
        score()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    with pytest.raises(UsageError, match="--hypotheses"):
        score()


@pytest.mark.parametrize(
    ("name", "recorded", "options", "tokenizer"),
    [
        ("ref.zh", {}, {}, "zh"),
        ("news.2020.zh_Hans.txt", {}, {}, "zh"),
        ("ref.jpn.tok", {}, {}, "char"),
        ("ref.txt", {}, {}, "13a"),
        ("ref.zh.de", {}, {}, "13a"),
        ("ref.zh", {}, {"tokenize": "13a"}, "13a"),
        ("ref.txt", {"references": ["ref.txt"], "language": "zh"}, {}, "zh"),
        ("ref.de+zh", {"references": ["ref.de+zh"], "language": "de"}, {}, "13a"),
        ("ref.txt", {"references": ["hypotheses"], "language": "zh"}, {}, "13a"),
        ("ref.zh", {"references": ["ref.zh"], "language": 3}, {}, "zh"),
        ("ref.de", {}, PAPER, "moses-de|compounds:atat"),
        ("ref.de", {}, PAPER | {"language": "fr"}, "moses-fr|compounds:whole"),
        ("ref.txt", {}, PAPER | {"language": "de"}, "moses-de"),
    ],
)
def test_the_tokenizer_suits_the_given_or_recorded_language_or_the_suffix(
    files, name, recorded, options, tokenizer
):
    Path(name).write_bytes(files["reference"].read_bytes())
    write_record(**recorded)
    [result] = score("hypotheses", name, **{"metric": "bleu"} | options).scores
    assert f"|tok:{tokenizer}|" in result.signature


def test_text_without_spaces_that_is_scored_by_words_is_warned_of(tmp_path, files, capsys):
    for name in ("ref.txt", "ref.zh", "hypotheses"):
        (tmp_path / name).write_text("这只狗在雪里玩。\n", encoding="utf-8")
    for name, warns in (("ref.txt", True), ("ref.zh", False)):
        score("hypotheses", name)
        assert ("--language zh" in capsys.readouterr().err) == warns


def test_an_unknown_target_language_is_refused_before_reading_standard_input(files, monkeypatch):
    class Endless(io.BytesIO):
        def read(self, *_):
            raise AssertionError("waited for standard input")

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Endless()))
    with pytest.raises(UsageError, match=r'supports, not "": give one with --language \('):
        score(None, files["reference"], metric="paper-bleu")


@pytest.fixture
def run(run, elsewhere):
    """Run `tfm score` in the folder of the files."""
    return run.within("score")


def test_paper_bleu_is_shown_beside_bleu_with_the_differences(run, files):
    files["reference"].rename(files["reference"].with_suffix(".de"))
    arguments = ("--hypotheses", "hypotheses", "--reference", "reference.de", "--metric", "ter")
    out, _ = run.ok(*arguments, "--paper")
    bleu, paper, why, ter = out.splitlines()
    assert (bleu[:7], paper[:13], ter[:6]) == ("BLEU = ", "paper BLEU = ", "TER = ")
    assert why.startswith("    differs from BLEU: ")
    assert run(*arguments)[1] == f"{ter}\n"


def test_bracket_f1_is_shown_with_its_details(run, tmp_path):
    (tmp_path / "gold").write_text("(S (NP (PRP it)) (VP (VBZ rains)))\n")
    (tmp_path / "symbols").write_text("(S (NP XX )NP XX )S\n")
    arguments = ("--hypotheses", "symbols", "--reference", "gold", "--metric", "bracket-f1")
    score_line, details = run.ok(*arguments)[0].splitlines()
    assert score_line.startswith("bracket F1 = 80.00  evalb:COLLINS|")
    assert details.startswith("    precision 100.00, recall 66.67, complete match 0.00, ")
    assert details.endswith(", errors 0, skipped 0, repairs 0")


def test_the_gold_trees_of_a_dataset_are_scored_as_trees(run, tmp_path):
    for name in ("test.gold", "parsed"):
        (tmp_path / name).write_text("(S (NP (PRP it)) (VP (VBZ rains)))\n")
    write_record("test.gold")
    assert run.ok("--hypotheses", "parsed")[0].startswith("bracket F1 = 100.00")
    message = "test.gold holds trees, not text: score with --metric bracket-f1"
    for arguments in (["--lowercase"], ["--metric", "bleu"], ["--paper", "--language", "en"]):
        run.fails(2, message, "--hypotheses", "parsed", *arguments)


def test_a_byte_order_mark_is_scored_as_text_with_a_warning(run, files):
    for marked in (["hypotheses"], ["reference"], ["hypotheses", "reference"]):
        for name, lines in (("hypotheses", HYPOTHESES), ("reference", REFERENCE)):
            mark = "\ufeff" * (name in marked)
            files[name].write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")
        out, err = run.ok("--hypotheses", "hypotheses", "--reference", "reference", "--json")
        warnings = err.splitlines()
        for name, line in zip(marked, warnings, strict=True):
            assert line.startswith(f"warning: {name} begins with a byte order mark, ")
            assert line.endswith("remove it with tail -c +4")
        sides = [read_lines(files[name]) for name in ("hypotheses", "reference")]
        assert [lines[0][0] == "\ufeff" for lines in sides] == [
            name in marked for name in ("hypotheses", "reference")
        ]
        expected = corpus_scores(sides[0], [sides[1]], ["bleu", "chrf"], CONFIG)
        assert [each["value"] for each in json.loads(out)["scores"]] == [s.value for s in expected]


@pytest.mark.parametrize(
    ("references", "metric", "warning"),
    [
        (
            ["", "x"],
            "bleu",
            "2 of 3 lines are empty in some .*the most in gaps.* make bleu far too good",
        ),
        (["x", "", ""], "ter", "2 of 3 lines are empty in some"),
        (["", "x"], "chrf", None),  # the best reference counts
        ([""], "chrf", "2 of 3 lines have a translation but an empty reference"),
        (["", ""], "exact", "2 of 3 lines have a translation but an empty reference"),
    ],
)
def test_lines_without_a_reference_are_counted_in_a_warning(
    run, files, tmp_path, references, metric, warning
):
    (tmp_path / "gaps").write_text("".join(f"{line}\n" for line in ("", " \t", REFERENCE[2])))
    named = [
        word for each in references for word in ("--reference", "reference" if each else "gaps")
    ]
    _, err = run.ok("--hypotheses", "hypotheses", *named, "--metric", metric)
    warnings = [line for line in err.splitlines() if "warning: " in line]
    assert len(warnings) == (warning is not None)
    assert not warning or re.match(f"warning: {warning}", warnings[0])


def test_a_byte_order_mark_before_trees_is_dropped(run, tmp_path):
    tree = "\ufeff(S (NP (PRP it)) (VP (VBZ rains)))\n"
    for name in ("test.gold", "out"):
        (tmp_path / name).write_text(tree, encoding="utf-8")
    out, err = run.ok("--hypotheses", "out", "--reference", "test.gold")
    assert "warning" not in err
    assert out.startswith("bracket F1 = 100.00")


def test_a_baseline_with_the_same_score_is_not_tested(run, files):
    files["baseline"].write_text("\n".join(HYPOTHESES).lower() + "\n", encoding="utf-8")
    arguments = ("--hypotheses", "hypotheses", "--reference", "reference", "--baseline", "baseline")
    metrics = ("--metric", "ter", "--metric", "chrf")  # TER ignores case
    out, _ = run.ok(*arguments, *metrics)
    _, ter, _, chrf = out.splitlines()
    assert "difference +0.00, no difference to test" in ter
    assert "no difference" not in chrf
    assert ", p = " in chrf
    out, _ = run.ok(*arguments, *metrics, "--json")
    ter, chrf = (each["comparison"] for each in json.loads(out)["scores"])
    assert ter["p_value"] is None
    assert 0 < chrf["p_value"] <= 1


def test_a_small_difference_between_numbers_of_a_program_is_visible(run, files):
    command = "awk '{print 0.85 + length($0) / 100000}'"
    names = ("--hypotheses", "hypotheses", "--reference", "reference")
    out, _ = run.ok(*names, "--baseline", "baseline", "--metric-command", command)
    *_, score, comparison = out.splitlines()
    assert re.match(r"awk = 0\.850\d ± 0\.000\d  nrefs:1\|bs:1000\|", score)
    assert re.search(r"baseline 0\.850\d, difference \+0\.000[1-9], p = 0\.0", comparison)
