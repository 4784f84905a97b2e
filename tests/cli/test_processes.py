"""tfm train in several processes: one launches the others, and one reports for all."""

import json
import sys
import tomllib

import pytest

from tfm.cli import main as cli
from tfm.errors import InterruptedRunError
from tfm.machine.processes import Placement
from tfm.training.run import TrainResult

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def launched(monkeypatch):
    """The calls of the launcher, as (placement, command)."""
    from tfm.machine import launch

    calls = []
    monkeypatch.setattr(launch, "launch", lambda *call: calls.append(call) or 0)
    monkeypatch.setattr(Placement, "num_local_processes", lambda placed: placed.local_size or 3)
    return calls


@pytest.fixture
def trained(monkeypatch):
    """The device of each training in this process."""
    devices = []

    def note(data_dir, run_dir, settings, *, world, stop):
        devices.append(settings.training.device)
        return TrainResult(run_dir=run_dir, step=1, metrics={})

    monkeypatch.setattr("tfm.commands.train.train_model", note)
    return devices


@pytest.mark.parametrize(
    ("flags", "placement"),
    [
        ("--processes 2", Placement(local_size=2, device="cpu")),
        ("--gpus auto", Placement(local_size=None, device="cuda")),
        ("--restarts 2", Placement(restarts=2)),
        ("--processes 2 --restarts 3", Placement(local_size=2, device="cpu", restarts=3)),
    ],
)
def test_several_processes_run_the_same_command(run, launched, trained, flags, placement):
    flags = ["train", ".", "--max-steps", "3", *flags.split()]
    assert run(*flags) == (0, "", "")
    assert launched == [(placement, [sys.executable, "-m", "tfm", *flags])]
    assert not trained


@pytest.mark.parametrize(
    ("flags", "device"),
    [("", "auto"), ("--processes 1", "cpu"), ("--gpus 1", "cuda")],
)
def test_a_single_process_is_not_launched(run, launched, trained, flags, device):
    assert run("train", ".", "--arch", "tiny", *flags.split())[0] == 0
    assert (launched, trained) == ([], [device])


@pytest.mark.parametrize(("flag", "device"), [("--gpus", "cuda"), ("--processes", "cpu")])
def test_printing_settings_launches_nothing(run, launched, flag, device):
    _, out, _ = run("train", flag, 2, "--print-config")
    assert tomllib.loads(out)["training"]["device"] == device
    run.fails(2, r"\. is no dataset .*", "train", flag, 2, "--dry-run", ".")
    assert not launched


COMPLETE = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "2",
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}  # fmt: skip


@pytest.fixture(params=["incomplete", "without port", "not numbers"])
def stray_variables(request, monkeypatch):
    """Variables of a launcher that a shell has inherited, and that describe no world."""
    missing = {"incomplete": "LOCAL_RANK", "without port": "MASTER_PORT"}.get(request.param)
    changes = {"RANK": "first"} if request.param == "not numbers" else {}
    for name, value in (COMPLETE | changes).items():
        if name != missing:
            monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("stray_variables")
def test_training_refuses_the_variables_of_half_a_launcher(run, trained):
    message = ".*(MASTER_ADDR|MASTER_PORT|must be numbers).*"
    run.fails(2, message, "train", ".", "--arch", "tiny")
    assert not trained


@pytest.mark.usefixtures("stray_variables")
def test_flags_that_start_processes_win_over_the_variables_of_half_a_launcher(
    run, launched, trained
):
    assert run("train", ".", "--arch", "tiny", "--processes", 1)[0] == 0
    assert trained == ["cpu"]
    assert run("train", ".", "--arch", "tiny", "--processes", 2)[0] == 0
    assert len(launched) == 1


@pytest.mark.usefixtures("stray_variables")
def test_commands_that_do_not_train_ignore_the_variables_of_launchers(run, elsewhere):
    for name in ("text", "copy"):
        (elsewhere / name).write_text("a\n")
    assert run("--help")[0] == 0
    code, _, err = run("score", "--hypotheses", "text", "--reference", "none")
    assert (code, len(err.splitlines())) == (2, 1)
    code, out, err = run("score", "--hypotheses", "copy", "--reference", "text", "--metric", "chrf")
    assert (code, "100" in out, len(err.splitlines())) == (0, True, 1)
    assert run("train", "--print-config")[0] == 0


@pytest.fixture
def one_of_two(monkeypatch, elsewhere):
    """Make this process one of two; return the file that its launcher reads."""

    def make(rank):
        (elsewhere / "elastic").mkdir()
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2,
                     "MASTER_ADDR": "a", "MASTER_PORT": 1,
                     "TORCHELASTIC_ERROR_FILE": elsewhere / "elastic" / "error.json"}  # fmt: skip
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(cli, "stop_with_launcher", lambda: None)
        return elsewhere / "elastic" / "error.json"

    return make


def test_one_of_several_processes_launches_no_others(run, launched, trained, one_of_two):
    one_of_two(0)
    assert run("train", ".", "--arch", "tiny", "--processes", 2)[0] == 0
    assert (launched, trained) == ([], ["cpu"])


def test_one_of_several_processes_reports_its_failure_to_the_launcher(run, launched, one_of_two):
    error_file = one_of_two(1)
    assert run("train", ".", "--processes", 3) == (2, "", "")
    message = json.loads(error_file.read_text())["message"]
    assert message["message"].startswith("torchrun has started 2 processes")
    assert message["extraInfo"]["exit_code"] == 2


@pytest.mark.parametrize(("rank", "err"), [(0, "tfm: saved at step 3\n"), (1, "")])
def test_processes_that_stop_cleanly_report_it_once(run, monkeypatch, one_of_two, rank, err):
    def stop(*args, **kwargs):
        raise InterruptedRunError("saved at step 3", exit_code=130)

    error_file = one_of_two(rank)
    monkeypatch.setattr("tfm.commands.train.train_model", stop)
    assert run("train", ".", "--arch", "tiny") == (0, "", err)
    message = json.loads(error_file.read_text())["message"]
    assert (message["message"], message["extraInfo"]["exit_code"]) == ("", 130)
