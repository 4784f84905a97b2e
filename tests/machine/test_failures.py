"""How the failure of one of many processes reaches the user."""

import subprocess
import sys

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from tfm.machine.interruption import has_launcher, report_failure


@pytest.fixture
def error_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    return tmp_path / "error.json"


def read(path):
    """Return the message and facts that torch reads from an error file."""
    failure = ProcessFailure(local_rank=0, pid=77, exitcode=1, error_file=str(path))
    assert failure.timestamp > 0
    return failure.message["message"], failure.message["extraInfo"]


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
    message, facts = read(error_file)
    assert message == "what: wo\u2028\udc80"
    assert (facts["is_consequence"], facts["py_callstack"], facts["exit_code"]) == (
        True,
        "where",
        2,
    )
    assert list(error_file.parent.iterdir()) == [error_file]


def test_only_the_first_report_counts(error_file):
    assert report_failure("the cause")
    assert report_failure("a consequence")
    assert read(error_file)[0] == "the cause"


def test_a_failure_is_not_reported_if_the_error_file_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    assert not report_failure("what")


_END_PROCESS = """
from tfm.machine.interruption import end_process
end_process("what", exit_code=3, is_consequence={})
"""


@pytest.mark.parametrize(("is_consequence", "printed"), [(False, "tfm: what\n"), (True, "")])
def test_without_a_launcher_a_process_ends_at_once_with_its_message(is_consequence, printed):
    command = [sys.executable, "-c", _END_PROCESS.format(is_consequence)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", printed)


@pytest.mark.parametrize("is_consequence", [False, True])
def test_a_process_that_ends_leaves_its_message_to_the_launcher(error_file, is_consequence):
    command = [sys.executable, "-c", _END_PROCESS.format(is_consequence)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3, b"")
    message, facts = read(error_file)
    assert (message, facts["is_consequence"]) == ("what", is_consequence)
