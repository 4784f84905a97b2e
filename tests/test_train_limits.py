"""tfm train: limits of a run, and the checkpoints that are kept."""

import itertools

import pytest
from helpers import metrics_of, steps_of

from tfm.errors import UsageError
from tfm.stages.forecast import forecast
from tfm.stages.train import train
from tfm.training.loop import TrainingRun


def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(
    data_dir, tiny_run, tmp_path, monkeypatch
):
    monkeypatch.setattr("tfm.training.loop.new_model", None)
    run = tiny_run(model={"num_encoder_layers": 50, "d_model": 65_536, "d_ff": 1 << 20})
    with pytest.raises(UsageError, match=r"need .* GB, but this machine has .* GB: set a smaller"):
        train(data_dir, tmp_path / "run", run)
    [warning] = forecast(data_dir, run).warnings[1:]
    assert warning.startswith("warning: weights, gradients and optimizer state of the model need")


def test_patience_stops_a_run_that_does_not_improve(data_dir, tiny_run, tmp_path):
    run = tiny_run(
        optimizer={"learning_rate": 0.3, "warmup_steps": 10},
        training={"checkpoint_steps": 2, "patience": 3, "max_steps": 100},
    )
    result = train(data_dir, tmp_path / "run", run)
    found = [line["loss"] for line in metrics_of(tmp_path / "run", "validation")]
    assert result.step == 2 * len(found) < 100
    assert found.index(min(found)) == len(found) - 4
    assert train(data_dir, tmp_path / "run", run).step == result.step


@pytest.mark.parametrize(("limit", "epochs"), [({"max_epochs": 2}, 2), ({"max_minutes": 0.01}, 0)])
def test_epochs_and_minutes_limit_a_run(data_dir, tiny_run, tmp_path, monkeypatch, limit, epochs):
    monkeypatch.setattr(TrainingRun, "_minutes", lambda _: 0.01)
    run = tiny_run(training={**limit, "max_steps": 1000, "checkpoint_steps": 500})
    result = train(data_dir, tmp_path / "run", run)
    assert result.step == epochs * forecast(data_dir, run).steps_per_epoch
    assert train(data_dir, tmp_path / "run", run).step == result.step


def test_checkpoints_can_be_saved_by_minutes(data_dir, tiny_run, tmp_path, monkeypatch):
    clock = itertools.count(step=0.5)  # seconds; it is read several times a step
    monkeypatch.setattr("tfm.training.loop.time.monotonic", lambda: next(clock))
    # The watchdog's clock is accelerated as well.
    run = tiny_run(training={"checkpoint_minutes": 0.1, "max_steps": 20, "stall_minutes": 1e6})
    train(data_dir, tmp_path / "run", run)
    assert 2 <= len(steps_of(tmp_path / "run")) < 20
