"""The training loop: divergence, the metrics of the last steps, and what is printed."""

import json
import math
import re

import pytest
import torch
from helpers import number_pairs, steps_of

from tfm.commands.train import train_model
from tfm.config import ScoreConfig, run_toml
from tfm.errors import TrainingError
from tfm.folders.run_folder import checkpoint_path
from tfm.metrics.scores import corpus_scores
from tfm.training import validation
from tfm.training.trainer import Trainer


@pytest.fixture(scope="module")
def no_valid_dir(tmp_path_factory, make_dataset):
    """Return a dataset without a validation split."""
    pairs = list(number_pairs("train", num_pairs=100, seed=2))
    return make_dataset(tmp_path_factory.mktemp("data") / "bare", {"train": pairs}, vocab_size=350)


def records(run_dir, kind):
    """The lines of one kind in metrics.jsonl, which must be valid JSON."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    parsed = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    return [line for line in parsed if line["kind"] == kind]


@pytest.fixture
def break_weights_after(monkeypatch):
    """Make a weight infinite after a step."""

    def arrange(step):
        original = Trainer.step

        def break_after(self, batch, **options):
            pending, flags = original(self, batch, **options)
            if self.position.step == step:
                with torch.no_grad():
                    self.model.output_weight[-1] = math.inf
            return pending, flags

        monkeypatch.setattr(Trainer, "step", break_after)

    return arrange


@pytest.fixture
def huge_updates(monkeypatch):
    """Make training diverge at its first update."""
    monkeypatch.setattr("tfm.training.trainer.learning_rate", lambda *_: 1e30)


def diverge(data_dir, run_dir, run):
    """Train; return the one line with which training ends."""
    with pytest.raises(TrainingError) as stopped:
        train_model(data_dir, run_dir, run)
    message = str(stopped.value)
    assert "\n" not in message
    assert "lower --learning-rate or with --clip-norm" in message
    assert stopped.value.exit_code == 1
    assert not (run_dir / "averaged").exists()
    return message


# --- divergence


def test_weights_that_are_not_finite_are_not_saved(
    no_valid_dir, tiny_run, tmp_path, break_weights_after
):
    break_weights_after(8)
    message = diverge(no_valid_dir, tmp_path / "run", tiny_run(training={"average": True}))
    good = checkpoint_path(tmp_path / "run", 4)
    assert message.startswith(f"step 8: the weights are not finite; last good checkpoint: {good}. ")
    assert steps_of(tmp_path / "run") == [4]


def test_a_validation_loss_that_is_not_finite_ends_the_run(
    data_dir, tiny_run, tmp_path, break_weights_after
):
    break_weights_after(8)
    run = tiny_run(training={"validation_beam": 1, "average": True})
    message = diverge(data_dir, tmp_path / "run", run)
    assert re.match(
        r"step 8: the validation loss is (nan|inf); last good .*step-00000004\. ", message
    )
    assert [line["step"] for line in records(tmp_path / "run", "validation")] == [4]
    assert [line["step"] for line in records(tmp_path / "run", "train")] == [3, 6, 8]


@pytest.mark.usefixtures("huge_updates")
def test_a_checkpoint_that_no_later_step_has_confirmed_is_not_called_good(
    no_valid_dir, tiny_run, tmp_path
):
    run = tiny_run(training={"checkpoint_steps": 1, "max_skipped_steps": 3})
    message = diverge(no_valid_dir, tmp_path / "run", run)
    assert message.startswith("step 4: loss ")
    assert "; 3 steps in a row were skipped; last good checkpoint: none" in message
    pairs = records(tmp_path / "run", "skipped")[-1]["pairs"]
    assert ", ".join(map(str, sorted(pairs)[:10])) in message
    # Without validation, nothing is saved while steps are skipped.
    assert steps_of(tmp_path / "run") == [1]


# --- models that have not learned


def test_a_loss_that_is_not_better_than_a_guess_is_reported(
    no_valid_dir, data_dir, tiny_run, tmp_path, capsys
):
    run = tiny_run(optimizer={"learning_rate": 1e-9}, training={"max_steps": 7, "log_steps": 4})
    for name, folder in (("valid", data_dir), ("bare", no_valid_dir)):
        for _ in range(2):  # a finished run, too
            assert not train_model(folder, tmp_path / name, run).has_learned
            *_, warning = capsys.readouterr().err.splitlines()
            assert re.fullmatch(
                r"warning: the model has not learned: its loss of [67]\.\d\d nats per token is not "
                r"below 5\.\d\d, the loss of a guess among all \d+ pieces; train longer, .*"
                r"--run .*",
                warning,
            )


def test_a_score_of_zero_is_reported(data_dir, tiny_run, tmp_path, monkeypatch, capsys):
    found = corpus_scores(["a"], [["b"]], ["bleu"], ScoreConfig())
    monkeypatch.setattr(validation, "corpus_scores", lambda *_: found)
    run = tiny_run(training={"max_steps": 60, "validation_beam": 1})
    assert not train_model(data_dir, tmp_path / "run", run).has_learned
    assert "not learned: its score on the validation text is 0.00;" in capsys.readouterr().err


@pytest.mark.usefixtures("huge_updates")
def test_a_run_of_mostly_skipped_steps_is_reported(no_valid_dir, tiny_run, tmp_path, capsys):
    training = {"max_skipped_steps": 100, "max_steps": 5, "checkpoint_steps": 100}
    run = tiny_run(training=training)
    assert not train_model(no_valid_dir, tmp_path / "run", run).has_learned
    assert "the model has not learned: 4 of 5 steps were skipped;" in capsys.readouterr().err


# --- metrics of the last steps


def test_the_last_steps_are_logged_although_they_do_not_fill_a_line(data_dir, tiny_run, tmp_path):
    def settings(max_steps):
        training = {"max_steps": max_steps, "checkpoint_steps": 4, "log_steps": 5}
        return tiny_run(training=training)

    def losses(run_dir):
        return [(line["step"], line["loss"]) for line in records(run_dir, "train")]

    train_model(data_dir, tmp_path / "whole", settings(16))
    train_model(data_dir, tmp_path / "run", settings(8))
    first = losses(tmp_path / "run")
    assert [step for step, _ in first] == [5, 8]
    train_model(data_dir, tmp_path / "run", settings(8))
    assert losses(tmp_path / "run") == first
    train_model(data_dir, tmp_path / "run", settings(16))
    assert [step for step, _ in losses(tmp_path / "run")] == [5, 10, 15, 16]
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


# --- messages


def test_a_run_whose_messages_cannot_be_written_saves_and_ends_well(
    data_dir, tiny_run, tmp_path, fork_python
):
    (tmp_path / "run.toml").write_text(run_toml(tiny_run()))
    source = """
import os
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
from tfm.cli.main import main
main()
"""
    settings = ("--config", tmp_path / "run.toml")
    process = fork_python(source, "train", data_dir, "--run", tmp_path / "run", *settings)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert steps_of(tmp_path / "run") == [4, 8, 12]
