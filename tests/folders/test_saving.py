"""Saving in the foreground and in the background, and despite a full disk."""

import errno
import threading
from pathlib import Path

import pytest
import torch
from small_models import new_info

from tfm.errors import CheckpointError
from tfm.folders import saving
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoint_path, checkpoints
from tfm.folders.saving import Saver, newest_intact_checkpoint, save_checkpoint

FILES = {"bpe.model": b"subword"}


def info(step):
    return new_info(step, keep_last=2, keep_best=0, average_last=1)


def model(value):
    return {"a": torch.full((3, 4), float(value)), "b": torch.nn.Parameter(torch.ones(2))}


def state(value):
    moments = {0: {"step": torch.tensor(float(value)), "exp_avg": torch.full((3, 4), 1.0 * value)}}
    return {"optimizer": {"state": moments, "groups": [{"betas": (0.9, 0.98)}]}, "minutes": 1.5}


def save(saver, step):
    saver.save(info(step), model(step), state(step))


def steps(run_dir):
    return [ModelFolder(path).info.step for path in checkpoints(run_dir)]


def test_the_pair_that_verifies_a_model_has_no_more_tokens_than_learned_positions(make_model):
    known = ModelFolder(make_model(learned_positions=3)).info.known
    assert (len(known.source), len(known.target)) == (2, 2)


@pytest.fixture(params=[False, True], ids=["foreground", "background"])
def background(request):
    return request.param


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test advances."""

    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(saving.time, "monotonic", clock)
    return clock


@pytest.fixture
def disk(monkeypatch):
    """A disk that the test can make fail, and that counts attempts to save."""

    class Disk:
        error: int | None = None
        attempts = 0

    disk = Disk()

    def save_unless_full(path, *arguments, **keywords):
        disk.attempts += 1
        if disk.error is not None:
            raise OSError(disk.error, "No space left on device", str(path))
        save_checkpoint(path, *arguments, **keywords)

    monkeypatch.setattr(saving, "save_checkpoint", save_unless_full)
    return disk


def test_a_checkpoint_is_complete_when_saving_is_finished(tmp_path, background):
    saver = Saver(tmp_path, FILES, background=background)
    save(saver, 7)
    saver.finish()
    assert saver.saved_step == 7
    path = newest_intact_checkpoint(tmp_path)
    assert path == checkpoint_path(tmp_path, 7)
    assert ModelFolder(path).info == info(7)
    weights = ModelFolder(path).weights()
    assert all(torch.equal(weights[name], weight) for name, weight in model(7).items())
    assert repr(ModelFolder(path).training_state()) == repr(state(7))
    assert (path / "bpe.model").read_bytes() == b"subword"
    assert saver.problem is None


@pytest.fixture
def slow_disk(monkeypatch):
    """Block writing until the test releases it."""
    released, started = threading.Event(), threading.Event()

    def save_slowly(*arguments, **keywords):
        started.set()
        assert released.wait(timeout=30)
        save_checkpoint(*arguments, **keywords)

    monkeypatch.setattr(saving, "save_checkpoint", save_slowly)
    yield started, released
    released.set()


def test_checkpoints_of_this_run_are_pruned_without_reading_them(tmp_path, monkeypatch):
    saver = Saver(tmp_path, FILES)
    monkeypatch.setattr(saving, "ModelFolder", None)  # it reads the description
    for step in (1, 2, 3, 4):
        save(saver, step)
    monkeypatch.undo()
    assert steps(tmp_path) == [3, 4]


def test_training_continues_while_a_checkpoint_is_written_and_does_not_change_it(
    tmp_path, slow_disk
):
    started, released = slow_disk
    saver = Saver(tmp_path, FILES, background=True)
    weights, training_state = model(1), state(1)
    saver.save(info(1), weights, training_state)
    assert started.wait(timeout=30)
    with torch.no_grad():
        for tensor in (*weights.values(), *training_state["optimizer"]["state"][0].values()):
            tensor.fill_(-1.0)
    training_state["optimizer"]["state"][0].clear()
    training_state["minutes"] = -1.0
    assert checkpoints(tmp_path) == []
    released.set()
    saver.finish()
    [path] = checkpoints(tmp_path)
    assert torch.equal(ModelFolder(path).weights()["a"], model(1)["a"])
    assert repr(ModelFolder(path).training_state()) == repr(state(1))


def test_a_second_save_waits_for_the_first(tmp_path, slow_disk):
    started, released = slow_disk
    saver = Saver(tmp_path, FILES, background=True)
    save(saver, 1)
    assert started.wait(timeout=30)
    second = threading.Thread(target=save, args=(saver, 2))
    second.start()
    second.join(timeout=0.2)
    assert second.is_alive()
    released.set()
    second.join(timeout=30)
    saver.finish()
    assert steps(tmp_path) == [1, 2]
    for step, path in enumerate(checkpoints(tmp_path), start=1):
        assert torch.equal(ModelFolder(path).weights()["a"], model(step)["a"])


def test_a_full_disk_is_reported_once_and_saving_is_retried(
    tmp_path, background, disk, clock, capsys
):
    saver = Saver(tmp_path, FILES, background=background)
    save(saver, 1_000)
    saver.wait()
    disk.error = errno.ENOSPC
    for step in (1_100, 1_200):
        assert not saver.is_retry_due()
        save(saver, step)
        saver.wait()
        assert saver.problem == "not saved since step 1,000: disk full"
        assert saver.saved_step == 1_000
        assert not saver.is_retry_due()
        clock.now += saving._RETRY_SECONDS
        assert saver.is_retry_due()
        clock.now -= 1
    assert steps(tmp_path) == [1_000]
    assert capsys.readouterr().err == (
        f"warning: cannot save step 1,100 in {tmp_path} (disk full): "
        "training continues, and saving is retried every 60 seconds\n"
    )
    disk.error = None
    save(saver, 1_300)
    saver.finish()
    assert saver.problem is None
    assert not saver.is_retry_due()
    assert steps(tmp_path) == [1_000, 1_300]
    assert capsys.readouterr().err == f"train: {tmp_path} is saved again, at step 1,300\n"
    assert disk.attempts == 4


def test_a_run_whose_last_save_failed_ends_with_an_error(tmp_path, background, disk):
    saver = Saver(tmp_path, FILES, background=background)
    disk.error = errno.ENOSPC
    save(saver, 3)
    with pytest.raises(CheckpointError, match="is not saved yet: disk full; free space"):
        saver.finish()


def test_a_bug_while_saving_is_raised(tmp_path, background):
    saver = Saver(tmp_path, FILES, background=background)

    def save_invalid_weights():
        saver.save(info(1), {"a": "not a tensor"}, {})
        saver.wait()

    with pytest.raises(AttributeError):
        save_invalid_weights()
    if background:
        with pytest.raises(AttributeError):
            saver.is_retry_due()


def test_training_continues_if_old_checkpoints_cannot_be_removed(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(saving, "prune_checkpoints", fail)
    saver = Saver(tmp_path, FILES)
    for step in (1, 2, 3):
        save(saver, step)
    saver.finish()
    assert steps(tmp_path) == [1, 2, 3]
    assert capsys.readouterr().err.count("cannot remove old checkpoints") == 1


# Saves in the background in child processes; the N-th is killed before its N-th change on disk.
KILLED_WHILE_SAVING = """
import os, pathlib, signal, sys
sys.path.insert(0, sys.argv[2])
import test_saving
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.folders.saving import newest_intact_checkpoint
from tfm.folders.saving import Saver

run_dir = pathlib.Path(sys.argv[1])
changes = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}

def watch(event, arguments):
    global left
    if event in changes and str(run_dir) in str(arguments[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def train(*steps):
    saver = Saver(run_dir, test_saving.FILES, background=True)
    for step in steps:
        test_saving.save(saver, step)
    saver.finish()

train(1, 2)
for moment in range(1, 1000):
    step = 2 * moment
    child = os.fork()
    if child == 0:
        left = moment
        sys.addaudithook(watch)
        train(step + 1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    for path in checkpoints(run_dir):
        ModelFolder(path).file("model.safetensors")
        ModelFolder(path).file("training.safetensors")
    newest = newest_intact_checkpoint(run_dir)
    assert newest.name in (f"step-{step:08d}", f"step-{step + 1:08d}"), newest
    train(step + 2)
    names = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert names == [newest.name, f"step-{step + 2:08d}"], names
    if status == 0:
        break
print(moment)
"""


def test_a_process_killed_while_saving_leaves_intact_checkpoints(tmp_path, fork_python):
    process = fork_python(KILLED_WHILE_SAVING, tmp_path / "run", Path(__file__).parent)
    num_moments, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert 20 < int(num_moments) < 200
