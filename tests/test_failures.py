"""How the failure of one of many processes reaches the user."""

import json
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tfm.distributed.failures import Failure, cause, has_launcher, report_failure


@pytest.fixture
def error_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    return tmp_path / "error.json"


def read(path, *, rank=0, exit_code=1):
    """The failure that torch elastic makes of an error file."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    return Failure.of(
        rank, ProcessFailure(local_rank=0, pid=77, exitcode=exit_code, error_file=str(path))
    )


def test_without_a_launcher_nobody_is_told(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "")  # as torchrun does without a folder for logs
    assert not has_launcher()
    assert not report_failure("what")


def test_the_launcher_hears_what_a_process_says(error_file):
    assert has_launcher()
    said = report_failure("what: wo\u2028\udc80", exit_code=2, is_consequence=True, trace="where")
    assert said
    failure = read(error_file)
    assert failure.message == "what: wo\u2028\udc80"
    assert (failure.is_consequence, failure.trace, failure.exit_code) == (True, "where", 2)
    assert list(error_file.parent.iterdir()) == [error_file]


def test_the_first_word_counts(error_file):
    assert report_failure("the cause")
    assert report_failure("what came of it")
    assert read(error_file).message == "the cause"


def test_what_a_process_said_before_it_was_ended_is_not_forgotten(error_file):
    report_failure("what", exit_code=2)
    failure = read(error_file, exit_code=-signal.SIGTERM)
    assert cause([failure, LOST, SAID_NOTHING, ENDED]) == failure
    assert failure.error.exit_code == 2


def test_a_launcher_that_cannot_be_told_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    assert not report_failure("what")


def test_torchrun_understands_it(error_file):
    report_failure("what")
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "what"
    assert int(message["extraInfo"]["timestamp"]) > 0


_ENDS = "import sys; from tfm.distributed.failures import end_process; end_process({message!r})"


@pytest.mark.parametrize(("message", "printed"), [("what", "tfm: what\n"), (None, "")])
def test_a_process_ends_at_once_and_says_why(message, printed):
    done = subprocess.run(
        [sys.executable, "-c", _ENDS.format(message=message)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", printed)


def test_a_process_that_another_speaks_for_is_not_the_cause(error_file):
    done = subprocess.run(
        [sys.executable, "-c", _ENDS.format(message=None)], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert read(error_file).is_consequence


# --- what is said


def failure(rank=3, exit_code=1, timestamp=100, **facts):
    return Failure(rank=rank, pid=77, exit_code=exit_code, timestamp=timestamp, **facts)


def test_a_process_that_said_something_is_quoted():
    error = failure(exit_code=2, message="what: what to do").error
    assert (str(error), error.exit_code) == ("what: what to do", 2)


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (-signal.SIGKILL, r"was killed by SIGKILL \(out of memory\?\)"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-40, "was killed by signal 40"),
        (7, "ended with exit code 7 and said nothing"),
    ],
)
def test_a_process_that_said_nothing_is_named_with_what_ended_it(exit_code, words):
    error = failure(exit_code=exit_code).error
    assert error.exit_code == 1
    pattern = rf"rank 3 \(process 77\) {words}; the same command goes on from the last checkpoint"
    assert re.fullmatch(pattern, str(error))


def test_a_bug_names_the_process_that_came_upon_it():
    error = failure(message="ZeroDivisionError: by 0", trace="Traceback …").error
    assert "rank 3 (process 77)" in str(error)
    assert "ZeroDivisionError: by 0" in str(error)
    assert error.exit_code == 1


KILLED = failure(exit_code=-signal.SIGKILL)
SAID = failure(message="what")
SAID_NOTHING = failure(exit_code=1)
LOST = failure(message="lost the others", is_consequence=True)
ENDED = failure(exit_code=-signal.SIGTERM)


@pytest.mark.parametrize(
    "failures",
    [
        [KILLED, SAID],
        [SAID, failure(message="too", timestamp=101)],
        [SAID, failure(message="too", rank=4)],
        [failure(exit_code=-signal.SIGKILL, timestamp=102)],
        [failure(message="what", timestamp=102), LOST],
        [failure(exit_code=-signal.SIGSEGV, timestamp=150), ENDED],
    ],
)
def test_the_cause_is_told_from_its_consequences(failures):
    assert cause([SAID_NOTHING, *failures]) == failures[0]
    assert cause([SAID_NOTHING, *failures[::-1]]) == failures[0]


def test_who_is_ended_before_any_other_fails_is_the_cause():
    killed = failure(exit_code=-signal.SIGKILL, timestamp=130)
    assert cause([ENDED, killed, LOST, failure(exit_code=-signal.SIGTERM, rank=4)]) == ENDED


def test_who_is_killed_long_after_another_failed_is_not_the_cause():
    killed = failure(exit_code=-signal.SIGKILL, timestamp=130)
    assert cause([SAID_NOTHING, killed]) == SAID_NOTHING


def test_what_is_no_report_of_ours_is_no_message():
    ended = SimpleNamespace(pid=7, exitcode=1, timestamp=1, error_file_data={"message": "<NONE>"})
    assert Failure.of(0, ended).message == ""
