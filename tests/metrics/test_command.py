"""Metrics of other programs."""

import shlex
import sys
import time
from pathlib import Path

import pytest
import sacrebleu

from tfm.config import ScoreConfig
from tfm.errors import UsageError
from tfm.metrics import command as command_module
from tfm.metrics.command import MetricCommand, MetricCommandError, ScoredText
from tfm.metrics.scores import corpus_scores

# Prints the number of words that hypothesis and reference have in common.
COMMON_WORDS = """
import sys
for line in sys.stdin:
    source, hypothesis, reference = line.rstrip("\\n").split("\\t")
    print(len(set(hypothesis.split()) & set(reference.split())), flush=True)
"""
TEXTS = [
    ScoredText("a b", "x y", "y z"),
    ScoredText("", "ü\tü", "ü\u2028v"),
    ScoredText("", "", ""),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Give programs that do not answer up after half a minute, not after ten."""
    monkeypatch.setattr(command_module, "_MAX_SILENCE", 30)


def program(tmp_path: Path, code: str) -> str:
    path = tmp_path / "metric.py"
    path.write_text(code, encoding="utf-8")
    return f"{shlex.quote(sys.executable)} -X utf8 {shlex.quote(str(path))}"


def test_a_program_scores_several_batches_without_being_started_again(tmp_path):
    counted = f"open({str(tmp_path / 'starts')!r}, 'a').write('.')\n{COMMON_WORDS}"
    with MetricCommand(program(tmp_path, counted)) as command:
        assert command.scores(TEXTS) == [1, 1, 0]
        assert command.scores(TEXTS[:1]) == [1]
        assert command.scores([]) == []
    assert (tmp_path / "starts").read_text() == "."


def test_a_program_that_reads_everything_first_works_with_the_last_texts(tmp_path):
    code = "import sys\nlines = sys.stdin.readlines()\nprint(*map(len, lines), sep='\\n')"
    texts = [ScoredText("s" * 1000, "h" * 1000, "r" * n) for n in range(2000)]  # fills all pipes
    with MetricCommand(program(tmp_path, code)) as command:
        assert command.scores(texts, is_last=True) == [2003 + n for n in range(2000)]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import sys; sys.exit('no model: download it')",
            "ended after 0 of 3 lines with exit code 1: no model: download it",
        ),
        ("print(1)", "ended after 1 of 3 lines with exit code 0"),
        (
            "import sys; print(0.5, file=sys.stderr)",
            "ended after 0 of 3 lines with exit code 0: 0.5; it",
        ),
        ("print('0.5 good')", 'printed "0.5 good" for line 1: it must print one number, such as'),
        ("input(); print(1, flush=True); input(); print('nan')", 'printed "nan" for line 2'),
        ("print(); import time; time.sleep(60)", 'printed "" for line 1'),
        *[(f"print({x!r})", f'"{x}" for') for x in ("0,5", "1,000.5", "1_0", "-inf", "٣", "1e999")],
    ],
)
def test_a_program_that_fails_is_named_with_its_last_words(tmp_path, code, message):
    with (
        MetricCommand(program(tmp_path, code)) as command,
        pytest.raises(MetricCommandError) as error,
    ):
        command.scores(TEXTS)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


EACH = "import sys\nfor line in sys.stdin: print(1, flush=True)\n"


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("num_texts", [1, 2, 3])
@pytest.mark.parametrize(
    "code", [EACH.replace("1,", "'1\\n2',"), EACH.replace("1,", "1, '\\n\\n', 2,")]
)
def test_two_numbers_for_a_text_are_never_scored(tmp_path, code, num_texts, is_last):
    command = MetricCommand(program(tmp_path, code))
    with command, pytest.raises(MetricCommandError, match=r'printed ".*" .*: it must print one'):
        command.scores(TEXTS[:num_texts], is_last=is_last)


def test_a_program_that_prints_without_end_and_reads_nothing_is_ended(monkeypatch):
    monkeypatch.setattr(command_module, "_TICK", 0.1)
    texts = [ScoredText("", "", "word " * 300)] * 300  # more than a pipe holds
    with MetricCommand("yes 0.5") as command, pytest.raises(MetricCommandError, match="besides"):
        command.scores(texts, is_last=True)


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("", None),
        ("print()", None),
        ("print('total 1.0')", 'printed "total 1.0" besides a number for each line'),
        ("import time; time.sleep(1.5); print(3)", 'printed "3" besides'),
        ("sys.exit('disk full')", "failed after its last number with exit code 1: disk full"),
        ("import subprocess; subprocess.Popen(['sleep', '60'])", None),
    ],
)
def test_what_a_program_prints_at_its_end_is_no_score(tmp_path, ending, message):
    command = program(tmp_path, EACH + ending)
    if message is None:
        assert MetricCommand(command).scores(TEXTS, is_last=True) == [1, 1, 1]
    else:
        with pytest.raises(MetricCommandError, match=message):
            MetricCommand(command).scores(TEXTS, is_last=True)


def test_numbers_that_come_late_are_not_taken_for_the_next_texts(tmp_path):
    late = EACH.replace("(1,", "(1, flush=True), time.sleep(0.5), print(2,")
    with MetricCommand(program(tmp_path, f"import time, {late[7:]}")) as command:
        assert command.scores(TEXTS[:1]) == [1]
        time.sleep(1)
        with pytest.raises(MetricCommandError, match='printed "2" besides a number for each line'):
            command.scores(TEXTS)


def test_a_program_that_does_not_exist_is_named():
    command = MetricCommand("no-such-program-anywhere --flag")
    with pytest.raises(MetricCommandError, match="no-such-program-anywhere --flag ended after"):
        command.scores(TEXTS)


def test_a_silent_program_is_ended_and_started_again_by_the_next_call(tmp_path, monkeypatch):
    monkeypatch.setattr(command_module, "_MAX_SILENCE", 0.2)
    monkeypatch.setattr(command_module, "_TICK", 0.1)
    waited = []
    path = tmp_path / "wait"
    path.touch()
    code = f"import os, time\nif os.path.exists({str(path)!r}): time.sleep(60)\n{COMMON_WORDS}"
    with MetricCommand(program(tmp_path, code), waiting=waited.append) as command:
        started = time.monotonic()
        with pytest.raises(
            MetricCommandError, match="has scored 0 of 3 lines, and printed nothing"
        ):
            command.scores(TEXTS)
        assert time.monotonic() - started < 30
        assert waited == [0, 0]
        path.unlink()
        monkeypatch.setattr(command_module, "_MAX_SILENCE", 60)
        assert command.scores(TEXTS) == [1, 1, 0]


def test_the_score_of_a_corpus_is_the_mean_and_its_difference_is_tested(tmp_path):
    references = [f"one two three{' four' * (n % 2)}" for n in range(20)]
    baseline = ["one"] * 20
    command = program(tmp_path, COMMON_WORDS)
    config = ScoreConfig(metric_command=command, bootstrap_samples=100)
    [score] = corpus_scores(references, [references], ["command"], config, baseline=baseline)
    assert (score.name, score.value) == ("command", 3.5)
    assert score.comparison is not None
    assert score.comparison.baseline == 1
    assert score.comparison.p_value == pytest.approx(1 / 101)
    assert score.signature == (
        f"nrefs:1|bs:100|seed:12345|source:no|command:{command}|version:{sacrebleu.__version__}"
    )
    with pytest.raises(UsageError, match="one reference"):
        corpus_scores(references, [references, references], ["command"], config)


def test_a_program_gets_the_sources(tmp_path):
    code = "import sys\nfor line in sys.stdin: print(len(line.split('\\t')[0]))"
    config = ScoreConfig(metric_command=program(tmp_path, code))
    [score] = corpus_scores(["a", "b"], [["c", "d"]], ["command"], config, sources=["ab", "abcd"])
    assert score.value == 3
    assert "|source:yes|" in score.signature
