"""Metrics, and the files they are computed from."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.config import ScoreConfig
from tfm.errors import DataError, UsageError
from tfm.stages.score import corpus_scores, default_reference, read_lines, score

CONFIG = ScoreConfig()
REFERENCE = [
    "Der alte Mann sitzt auf einer grünen Bank.",
    "Heute ist der dritte Mai.",
    "Zwei rote Äpfel kosten fünf Euro und zwanzig Cent.",
    'Sie sagte: "Das ist nicht wahr!"',
    "Am Montag kauft er einen schwarzen Hut.",
    "Wir treffen uns um halb vier.",
]
OTHER_REFERENCE = [
    "Ein alter Mann sitzt auf der grünen Bank.",
    "Es ist der 3. Mai.",
    "Zwei rote Äpfel kosten 5,20 Euro.",
    "Sie sagte, das sei nicht wahr.",
    "Montags kauft er einen schwarzen Hut.",
    "Unser Treffen ist um halb vier.",
]
HYPOTHESES = [
    "Der alte Mann sitzt auf einer Bank, die grün ist.",
    "Heute ist der dritte Mai.",
    "Zwei rote Äpfel kosten fünf Euro, zwanzig Cent.",
    "Sie sagte: Das ist wahr!",
    "Am Montag kauft er einen Hut.",
    "Wir treffen uns um halb vier.",
]
BASELINE = [
    "Der Mann sitzt auf Bank.",
    "Heute ist der Mai.",
    "Zwei Äpfel kosten fünf Euro.",
    "Sie sagte: Das ist wahr!",
    "Er kauft am Montag Hut.",
    "Wir treffen uns halb vier.",
]


@pytest.fixture
def files(tmp_path):
    texts = {
        "hypotheses": HYPOTHESES,
        "reference": REFERENCE,
        "other": OTHER_REFERENCE,
        "baseline": BASELINE,
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {name: tmp_path / name for name in texts}


def sacrebleu_command(*arguments: object) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *map(str, arguments)],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


def write_note(runs_dir: Path, **changes: object) -> None:
    note = {
        "format": 1,
        "model": "runs/x",
        "data": "data/x",
        "split": "test",
        "source": "data/x/test.en",
        "reference": "data/x/test.de",
        "lines": 6,
    }
    runs_dir.mkdir(parents=True, exist_ok=True)
    (runs_dir / "last-generation.json").write_text(json.dumps(note | changes))


def pipe_in(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("references", [["reference"], ["reference", "other"]])
def test_scores_and_signatures_are_those_of_the_sacrebleu_command(files, references):
    paths = [files[name] for name in references]
    ours = score(
        files["hypotheses"], paths, metrics=["bleu", "chrf", "ter"], config=CONFIG, runs_dir=Path()
    )
    theirs = json.loads(
        sacrebleu_command(*paths, "-i", files["hypotheses"], "-m", "bleu", "chrf", "ter", "-w", 10)
    )
    assert [(s.label, round(s.value, 10), s.signature) for s in ours.scores] == [
        (s["name"], s["score"], s["signature"]) for s in theirs
    ]


def test_settings_are_those_of_the_sacrebleu_command(files):
    config = ScoreConfig(lowercase=True, tokenize="intl", chrf_word_order=2)
    ours = score(files["hypotheses"], [files["reference"]], config=config, runs_dir=Path())
    flags = ["-lc", "-tok", "intl", "--chrf-lowercase", "--chrf-word-order", 2, "-w", 10]
    theirs = json.loads(
        sacrebleu_command(
            files["reference"], "-i", files["hypotheses"], "-m", "bleu", "chrf", *flags
        )
    )
    assert [(s.label, round(s.value, 10), s.signature) for s in ours.scores] == [
        (s["name"], s["score"], s["signature"]) for s in theirs
    ]


def test_the_test_against_a_baseline_is_that_of_the_sacrebleu_command(files):
    config = ScoreConfig(bootstrap_samples=100)
    ours = score(
        files["hypotheses"],
        [files["reference"]],
        metrics=["bleu", "chrf", "ter"],
        config=config,
        baseline=files["baseline"],
        runs_dir=Path(),
    )
    inputs = ["-i", files["baseline"], files["hypotheses"], "-m", "bleu", "chrf", "ter"]
    text = sacrebleu_command(
        files["reference"], *inputs, "-pbs", "-pbsn", 100, "-w", 4, "-f", "text", "-q"
    )
    theirs = [float(number) for number in re.findall(r"\d+\.\d{4}", text)]
    comparisons = [s.comparison for s in ours.scores]
    values = [(s.value, c.mean, c.interval) for s, c in zip(ours.scores, comparisons, strict=True)]
    assert theirs[0:9:3] == [round(c.baseline, 4) for c in comparisons]
    assert theirs[9:18] == [round(number, 4) for value in values for number in value]
    assert theirs[18:] == [round(c.p_value, 4) for c in comparisons]
    for result in ours.scores:
        assert result.signature in text


def test_another_seed_samples_otherwise_and_leaves_the_environment_alone(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    one, same, other = (
        corpus_scores(
            HYPOTHESES,
            [REFERENCE],
            ["chrf"],
            ScoreConfig(bootstrap_samples=50, bootstrap_seed=seed),
            baseline=BASELINE,
        )[0]
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one.comparison != other.comparison
    assert "seed:1|" in one.signature
    assert os.environ["SACREBLEU_SEED"] == "7"


def test_training_and_the_command_compute_the_same(files):
    result = score(files["hypotheses"], [files["reference"]], config=CONFIG, runs_dir=Path())
    assert result.scores == corpus_scores(HYPOTHESES, [REFERENCE], ["bleu", "chrf"], CONFIG)


def test_exact_is_the_percentage_of_lines_that_equal_a_reference():
    lines = ["a", "b", "c", "d"]
    [alone] = corpus_scores(lines, [["a", "B", "x", "y"]], ["exact"], CONFIG)
    [lowercased] = corpus_scores(
        lines, [["a", "B", "x", "y"]], ["exact"], ScoreConfig(lowercase=True)
    )
    [with_two] = corpus_scores(
        lines, [["a", "B", "x", "y"], ["x", "y", "c ", "z"]], ["exact"], CONFIG
    )
    assert (alone.value, alone.signature) == (25, "nrefs:1|case:mixed")
    assert (lowercased.value, lowercased.signature) == (50, "nrefs:1|case:lc")
    assert (with_two.value, with_two.signature) == (50, "nrefs:2|case:mixed")


def test_exact_is_compared_with_the_baseline_without_a_test():
    [result] = corpus_scores(["a", "b"], [["a", "x"]], ["exact"], CONFIG, baseline=["a", "x"])
    assert (result.value, result.comparison.baseline, result.comparison.p_value) == (50, 100, None)


text_line = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(text_line.filter(str.strip), min_size=1, max_size=5))
def test_a_perfect_translation_has_perfect_scores(lines):
    exact, chrf, ter = corpus_scores(lines, [lines], ["exact", "chrf", "ter"], CONFIG)
    assert exact.value == 100
    assert chrf.value == pytest.approx(100)
    assert ter.value == 0


def test_scores_come_in_the_order_asked_for_and_once():
    scores = corpus_scores(HYPOTHESES, [REFERENCE], ["exact", "bleu", "exact"], CONFIG)
    assert [result.name for result in scores] == ["exact", "bleu"]


def test_a_result_is_json(files):
    result = score(
        files["hypotheses"],
        [files["reference"]],
        metrics=["bleu", "chrf", "ter", "exact"],
        config=ScoreConfig(bootstrap_samples=10),
        baseline=files["baseline"],
        runs_dir=Path(),
    )
    table = json.loads(json.dumps(result.to_json()))
    assert table["num_lines"] == 6
    assert table["references"] == [str(files["reference"])]
    assert [entry["name"] for entry in table["scores"]] == ["bleu", "chrf", "ter", "exact"]


@given(st.lists(text_line.filter(lambda line: not line.endswith("\r")), min_size=1, max_size=6))
def test_lines_end_at_line_feeds_only(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("lines")
    for name, ending in (("lf", "\n"), ("crlf", "\r\n")):
        text = "".join(line + ending for line in lines)
        (folder / name).write_bytes(text.encode())
        assert read_lines(folder / name) == lines


def test_a_last_line_needs_no_line_feed(tmp_path):
    (tmp_path / "text").write_bytes(b"one\n\ntwo")
    assert read_lines(tmp_path / "text") == ["one", "", "two"]


def test_piped_translations_are_scored_against_what_generate_noted(tmp_path, monkeypatch, files):
    write_note(tmp_path / "runs", reference=str(files["reference"]))
    pipe_in(monkeypatch, "".join(f"{line}\n" for line in HYPOTHESES).encode())
    result = score(None, [], config=CONFIG, runs_dir=tmp_path / "runs")
    assert result.references == [str(files["reference"])]
    assert result.scores == corpus_scores(HYPOTHESES, [REFERENCE], ["bleu", "chrf"], CONFIG)


def test_the_note_is_read_only_after_standard_input_has_ended(tmp_path, monkeypatch, files):
    class LateNote(io.BytesIO):
        def read(self, *_):
            write_note(tmp_path / "runs", reference=str(files["reference"]))
            return super().read()

    write_note(tmp_path / "runs", reference=str(tmp_path / "of an older generation"))
    data = "".join(f"{line}\n" for line in HYPOTHESES).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(LateNote(data)))
    assert score(None, [], config=CONFIG, runs_dir=tmp_path / "runs").num_lines == 6


def test_without_a_note_the_user_is_asked_for_a_reference(tmp_path):
    with pytest.raises(UsageError, match="pass --reference"):
        default_reference(tmp_path)


def test_a_note_without_reference_says_what_was_translated(tmp_path):
    write_note(tmp_path, reference=None, source="news.en")
    with pytest.raises(UsageError, match=r"read news\.en, whose reference.*pass --reference"):
        default_reference(tmp_path)


def test_a_note_of_another_format_is_refused(tmp_path):
    write_note(tmp_path, format=2)
    with pytest.raises(DataError, match="generate again"):
        default_reference(tmp_path)


def test_line_counts_that_differ_are_named_with_their_files(tmp_path, files):
    short = tmp_path / "short.de"
    short.write_text("eins\nzwei\n")
    with pytest.raises(DataError) as error:
        score(files["hypotheses"], [short], config=CONFIG, runs_dir=Path())
    assert f"{files['hypotheses']} and {short} have 6 and 2 lines" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=r"short\.de have 6 and 2 lines"):
        score(
            files["hypotheses"],
            [files["reference"]],
            baseline=short,
            config=CONFIG,
            runs_dir=Path(),
        )


def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path, files):
    path = tmp_path / "latin1.de"
    path.write_bytes("eins\nfünf\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin1\.de, line 2, is not UTF-8"):
        score(path, [files["reference"]], config=CONFIG, runs_dir=Path())


def test_empty_and_missing_files_are_named(tmp_path, files):
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="empty is empty"):
        score(tmp_path / "empty", [files["reference"]], config=CONFIG, runs_dir=Path())
    with pytest.raises(DataError, match="missing does not exist"):
        score(files["hypotheses"], [tmp_path / "missing"], config=CONFIG, runs_dir=Path())
    with pytest.raises(DataError, match="cannot be read"):
        score(files["hypotheses"], [tmp_path], config=CONFIG, runs_dir=Path())


def test_an_empty_pipe_says_that_nothing_was_translated(tmp_path, monkeypatch):
    pipe_in(monkeypatch, b"")
    with pytest.raises(DataError, match="standard input is empty"):
        score(None, [], config=CONFIG, runs_dir=tmp_path)


def test_a_terminal_is_not_waited_for(tmp_path, monkeypatch):
    pipe_in(monkeypatch, b"")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    with pytest.raises(UsageError, match="--hypotheses"):
        score(None, [], config=CONFIG, runs_dir=tmp_path)


def test_lists_that_are_empty_or_of_different_lengths_are_refused():
    with pytest.raises(DataError, match="no lines"):
        corpus_scores([], [[]], ["bleu"], CONFIG)
    with pytest.raises(DataError, match="hypotheses and reference 2 have 1 and 2 lines"):
        corpus_scores(["a"], [["a"], ["a", "b"]], ["bleu"], CONFIG)


def test_scoring_starts_without_torch():
    code = "import sys, tfm.stages.score; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
