"""How the failure of one of many processes reaches the user."""

import json
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tfm.distributed.failures import Failure, has_launcher, report_failure, root_cause


@pytest.fixture
def error_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    return tmp_path / "error.json"


def read(path, *, rank=0, exit_code=1):
    """Return the failure that torch elastic reads from an error file."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    return Failure.from_elastic(
        rank, ProcessFailure(local_rank=0, pid=77, exitcode=exit_code, error_file=str(path))
    )


def test_without_a_launcher_a_failure_is_not_reported(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "")  # torchrun does so without a log folder
    assert not has_launcher()
    assert not report_failure("what")


def test_the_launcher_reads_the_report_of_a_process(error_file):
    assert has_launcher()
    is_reported = report_failure(
        "what: wo\u2028\udc80", exit_code=2, is_consequence=True, trace="where"
    )
    assert is_reported
    failure = read(error_file)
    assert failure.message == "what: wo\u2028\udc80"
    assert (failure.is_consequence, failure.trace, failure.exit_code) == (True, "where", 2)
    assert list(error_file.parent.iterdir()) == [error_file]


def test_only_the_first_report_counts(error_file):
    assert report_failure("the cause")
    assert report_failure("a consequence")
    assert read(error_file).message == "the cause"


def test_a_report_counts_though_its_process_was_terminated_afterwards(error_file):
    report_failure("what", exit_code=2)
    failure = read(error_file, exit_code=-signal.SIGTERM)
    assert root_cause([failure, LOST, NO_REPORT, TERMINATED]) == failure
    assert failure.error.exit_code == 2


def test_a_failure_is_not_reported_if_the_error_file_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    assert not report_failure("what")


def test_a_report_has_the_format_of_torchrun(error_file):
    report_failure("what")
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "what"
    assert int(message["extraInfo"]["timestamp"]) > 0


_END_PROCESS = (
    "import sys; from tfm.distributed.failures import end_process; end_process({message!r})"
)


@pytest.mark.parametrize(("message", "printed"), [("what", "tfm: what\n"), (None, "")])
def test_a_process_ends_at_once_with_its_message(message, printed):
    done = subprocess.run(
        [sys.executable, "-c", _END_PROCESS.format(message=message)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", printed)


def test_a_process_that_ends_quietly_is_not_the_root_cause(error_file):
    done = subprocess.run(
        [sys.executable, "-c", _END_PROCESS.format(message=None)], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert read(error_file).is_consequence


# --- messages and root causes


def failure(rank=3, exit_code=1, timestamp=100, **facts):
    return Failure(rank=rank, pid=77, exit_code=exit_code, timestamp=timestamp, **facts)


def test_the_report_of_a_process_is_shown_unchanged():
    error = failure(exit_code=2, message="what: what to do").error
    assert (str(error), error.exit_code) == ("what: what to do", 2)


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (-signal.SIGKILL, r"was killed by SIGKILL \(out of memory\?\)"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-40, "was killed by signal 40"),
        (7, "exited with code 7 without an error message"),
    ],
)
def test_a_process_without_a_report_is_named_with_its_signal_or_exit_code(exit_code, words):
    error = failure(exit_code=exit_code).error
    assert error.exit_code == 1
    resume = "run the same command again to resume from the last checkpoint"
    pattern = rf"rank 3 \(process 77\) {words}; {resume}"
    assert re.fullmatch(pattern, str(error))


def test_a_bug_names_its_process():
    error = failure(message="ZeroDivisionError: by 0", trace="Traceback …").error
    assert "rank 3 (process 77)" in str(error)
    assert "ZeroDivisionError: by 0" in str(error)
    assert error.exit_code == 1


KILLED = failure(exit_code=-signal.SIGKILL)
REPORTED = failure(message="what")
NO_REPORT = failure(exit_code=1)
LOST = failure(message="lost the others", is_consequence=True)
TERMINATED = failure(exit_code=-signal.SIGTERM)


@pytest.mark.parametrize(
    "failures",
    [
        [KILLED, REPORTED],
        [REPORTED, failure(message="too", timestamp=101)],
        [REPORTED, failure(message="too", rank=4)],
        [failure(exit_code=-signal.SIGKILL, timestamp=102)],
        [failure(message="what", timestamp=102), LOST],
        [failure(exit_code=-signal.SIGSEGV, timestamp=150), TERMINATED],
    ],
)
def test_the_root_cause_is_found_among_its_consequences(failures):
    assert root_cause([NO_REPORT, *failures]) == failures[0]
    assert root_cause([NO_REPORT, *failures[::-1]]) == failures[0]


def test_a_process_terminated_before_any_other_failure_is_the_root_cause():
    killed = failure(exit_code=-signal.SIGKILL, timestamp=130)
    assert root_cause([TERMINATED, killed, LOST, failure(exit_code=-signal.SIGTERM, rank=4)]) == (
        TERMINATED
    )


def test_a_process_killed_long_after_another_failed_is_not_the_root_cause():
    killed = failure(exit_code=-signal.SIGKILL, timestamp=130)
    assert root_cause([NO_REPORT, killed]) == NO_REPORT


def test_an_error_file_in_another_format_has_no_message():
    failed = SimpleNamespace(pid=7, exitcode=1, timestamp=1, error_file_data={"message": "<NONE>"})
    assert Failure.from_elastic(0, failed).message == ""
