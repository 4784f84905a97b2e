"""tfm train: limits of a run, and the checkpoints that are kept."""

import itertools
import time

import pytest
from helpers import metrics_of, steps_of

from tfm.commands.train import train_model
from tfm.errors import UsageError
from tfm.folders.model_folder import best_first, open_checkpoints
from tfm.training.forecast import forecast
from tfm.training.loop import TrainingRun
from tfm.training.run_summaries import summarize_run
from tfm.training.validation import Validation


def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(
    data_dir, tiny_run, tmp_path, monkeypatch
):
    monkeypatch.setattr("tfm.training.data.new_model", None)
    run = tiny_run(model={"num_encoder_layers": 50, "d_model": 65_536, "d_ff": 1 << 20})
    with pytest.raises(UsageError, match=r"need .* GB, but this machine has .* GB: set a smaller"):
        train_model(data_dir, tmp_path / "run", run)
    [warning] = forecast(data_dir, run).warnings[1:]
    assert warning.startswith("warning: weights, gradients and optimizer state of the model need")


@pytest.fixture
def train_with(data_dir, tiny_run, tmp_path, monkeypatch):
    """Train with patience 3 and the given figures of the validation of each step."""

    def call(measured, metric, *, max_steps):
        def validate(run, _split, _model):
            values = {name: each[run.trainer.position.step - 1] for name, each in measured.items()}
            metrics = {name: float(each) for name, each in values.items() if each is not None}
            return Validation(metrics={"perplexity": 1.0, **metrics})

        monkeypatch.setattr(TrainingRun, "_validate_on", validate)
        settings = {"checkpoint_steps": 1, "patience": 3, "validation_beam": 1}
        settings |= {"metric_command": "cat", "best_metric": metric, "max_steps": max_steps}
        return train_model(data_dir, tmp_path / "run", tiny_run(training=settings)).step

    return call


FALLING = [9, 8, 7, 6, 5, 4, 3, 2]


@pytest.mark.parametrize(
    ("metric", "measured", "num_validations", "best", "ranked_by"),
    [
        # The loss decides while BLEU is noise, up to exactly 1; then BLEU does, also below 1.
        ("score", {"loss": FALLING, "bleu": [0.29, 0.24, 0.08, 0.05, 1, 0.9, 0, 0]}, 8, 8, "loss"),
        ("score", {"loss": [5, 4, 4.1, 6, 4.5, 3, 3, 3], "bleu": [0.1, 0.2] * 4}, 5, 2, "loss"),
        ("score", {"loss": FALLING, "bleu": [0.3, 0.1, 1.01, 0.9, 0.5, 0.2, 9, 9]}, 6, 3, "score"),
        ("score", {"loss": FALLING, "bleu": [0.3, 0.1, 1.5, 1.4, 1.3, 1.6, 1, 0]}, 8, 6, "score"),
        ("score", {"loss": FALLING[::-1], "bleu": [2, 3, 4, 5, 6, 7, 8, 9]}, 8, 8, "score"),
        ("loss", {"loss": FALLING[::-1], "bleu": [2, 3, 4, 5, 6, 7, 8, 9]}, 4, 1, "loss"),
        # The scale of a command is unknown. A validation in which it failed does not count.
        ("command", {"loss": FALLING, "command": [-2, -3, -3, -3, 0, 1, 2, 3]}, 4, 1, "command"),
        ("command", {"loss": FALLING, "command": [0.1, 0.2, *[None] * 4, 0, 0]}, 8, 2, "command"),
    ],
)
def test_the_loss_decides_on_patience_and_the_best_checkpoint_while_scores_are_noise(
    train_with, tmp_path, capsys, metric, measured, num_validations, best, ranked_by
):
    train_with(measured, metric, max_steps=4)
    assert train_with(measured, metric, max_steps=8) == num_validations  # resumed, decides alike
    assert best_first(open_checkpoints(tmp_path / "run"), metric)[0].info.step == best
    assert metrics_of(tmp_path / "run", "validation")[-1]["ranked_by"] == ranked_by
    said = f"--patience 3, 3 validations without a better {ranked_by}"
    assert (said in capsys.readouterr().err) is (num_validations < 8)


def test_another_metric_counts_from_where_the_run_is_resumed(train_with):
    measured = {"loss": FALLING, "bleu": FALLING}
    assert train_with(measured, "score", max_steps=3) == 3
    assert train_with(measured, "loss", max_steps=8) == 8


@pytest.mark.parametrize(
    ("limit", "state"),
    [({"max_epochs": 2}, "finished"), ({"max_minutes": 0.01}, "finished by --max-minutes 0.01")],
)
def test_epochs_and_minutes_limit_a_run(data_dir, tiny_run, tmp_path, limit, state):
    run = tiny_run(training={**limit, "max_steps": 1_000_000, "checkpoint_steps": 1_000_000})
    step = train_model(data_dir, tmp_path / "run", run).step
    if "max_epochs" in limit:
        assert step == 2 * forecast(data_dir, run).steps_per_epoch
    else:
        [validation] = metrics_of(tmp_path / "run", "validation")
        assert 0.01 <= validation["minutes"] < 0.2
    assert train_model(data_dir, tmp_path / "run", run).step == step
    assert summarize_run(tmp_path / "run").cells()["state"] == state


def test_minutes_count_the_time_of_all_parts_of_a_run(data_dir, tiny_run, tmp_path):
    start = time.monotonic()
    for max_steps in (4, 8, 12):
        train_model(data_dir, tmp_path / "run", tiny_run(training={"max_steps": max_steps}))
    minutes = [each["minutes"] for each in metrics_of(tmp_path / "run", "validation")]
    assert len(minutes) == 3
    assert 0 < minutes[0] < minutes[1] < minutes[2] < (time.monotonic() - start) / 60


def test_checkpoints_can_be_saved_by_minutes(data_dir, tiny_run, tmp_path, monkeypatch):
    clock = itertools.count(step=0.5)  # seconds; it is read several times a step
    monkeypatch.setattr("tfm.training.loop.time.monotonic", lambda: next(clock))
    # The watchdog's clock is accelerated as well.
    run = tiny_run(training={"checkpoint_minutes": 0.1, "max_steps": 20, "stall_minutes": 1e6})
    train_model(data_dir, tmp_path / "run", run)
    assert 2 <= len(steps_of(tmp_path / "run")) < 20
