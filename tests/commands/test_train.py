"""tfm train: run folders, resuming, stopping and refusals."""

import errno
import itertools
import json
import math
import re
import shutil
import signal
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from helpers import binarize, edit_json, metrics_of, number_pairs, same_weights, steps_of

from tfm.commands.runs import runs
from tfm.commands.train import train_model
from tfm.config import BinarizeConfig, TrainingConfig, read_toml, run_config, settings_to
from tfm.disk.lock import LockedFolderError, lock_folder
from tfm.errors import DETAIL, CheckpointError, DataError, InterruptedRunError, UsageError
from tfm.features.mbr.step import MinimumBayesRisk
from tfm.folders import saving
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.folders.saving import save_checkpoint
from tfm.machine.compute import choose_compute, one_thread
from tfm.machine.world import World
from tfm.model.build import new_model
from tfm.training.data import open_data
from tfm.training.forecast import forecast
from tfm.training.loop import TrainingRun
from tfm.training.report import write_report
from tfm.training.run import _with_history, training_compute
from tfm.training.trainer import Trainer
from tfm.training.validation import Validator

_TIMES = (
    "minutes",
    "target_tokens_per_second",
    "data_waiting_share",
    "flops_per_second",
    "capacity_flops_per_second",
    "paper_estimate_flops",
)


def records(run_dir, kind=None):
    """The lines of metrics.jsonl, without times."""
    return [
        {name: value for name, value in line.items() if name not in _TIMES}
        for line in metrics_of(run_dir, kind)
    ]


@pytest.fixture
def signal_after(monkeypatch):
    """Raise a signal in the middle of a step."""

    def arrange(number, step):
        original = Trainer.step

        def interrupted(self, batch, **options):
            pending, flags = original(self, batch, **options)
            if pending is not None and pending.position.step == step:
                signal.raise_signal(number)
            return pending, flags

        monkeypatch.setattr(Trainer, "step", interrupted)

    yield arrange
    monkeypatch.undo()


@pytest.fixture(scope="module")
def uninterrupted(data_dir, tiny_run, tmp_path_factory):
    """An uninterrupted run of 12 steps, with a report."""
    run_dir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    run = tiny_run(training={"max_steps": 12, "checkpoint_steps": 3})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tfm.training.report.write_report", write_report)
        result = train_model(data_dir, run_dir, run)
    return run, run_dir, result


@pytest.mark.parametrize("error", [ValueError("no backend"), OSError(28, "No space left")])
def test_a_run_without_a_picture_goes_on_and_says_why_once(
    data_dir, tiny_run, tmp_path, capsys, monkeypatch, error
):
    monkeypatch.setattr("tfm.training.report.write_report", Mock(side_effect=error))
    result = train_model(data_dir, tmp_path / "run", tiny_run(training={"checkpoint_steps": 6}))
    assert result.step == 12
    [warning] = [line for line in capsys.readouterr().err.splitlines() if "report.html" in line]
    assert str(error) in warning


def test_a_run_leaves_checkpoints_metrics_settings_and_a_report(uninterrupted):
    run, run_dir, result = uninterrupted
    assert (result.run_dir, result.step) == (run_dir, 12)
    assert steps_of(run_dir) == [3, 6, 9, 12]
    assert run_config(None, read_toml(run_dir / "config.toml")) == run
    assert [line["step"] for line in records(run_dir, "train")] == list(range(3, 13, 3))
    assert [line["step"] for line in records(run_dir, "validation")] == [3, 6, 9, 12]
    assert (run_dir / "report.html").is_file()
    assert result.metrics == ModelFolder(checkpoints(run_dir)[-1]).info.metrics
    assert records(run_dir, "validation")[-1]["loss"] == result.metrics["loss"]


# Within an epoch and a line of metrics, at a checkpoint, and at the end of an epoch; on a GPU, the
# report of a step is read while the next one is computed.
@pytest.mark.parametrize(("step", "max_unread"), [(5, 1), (6, 0), ("epoch", 1)])
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(
    uninterrupted, data_dir, tmp_path, signal_after, monkeypatch, step, max_unread
):
    run, run_dir, result = uninterrupted
    monkeypatch.setattr(TrainingRun, "_max_unread", max_unread)
    if step == "epoch":
        step = forecast(data_dir, run).steps_per_epoch
    signal_after(signal.SIGTERM, step)
    with pytest.raises(InterruptedRunError, match=rf"stopped and saved at step {step};"):
        train_model(data_dir, tmp_path / "run", run)
    assert steps_of(tmp_path / "run")[-1] == step
    resumed = train_model(data_dir, tmp_path / "run", run)
    assert resumed.metrics == result.metrics
    assert records(tmp_path / "run") == records(run_dir)
    assert same_weights(tmp_path / "run", run_dir)


AVERAGED = {"ema": 0.9, "algorithm": "adamw", "lr_schedule": "cosine", "warmup_steps": 4}


@pytest.fixture(scope="module")
def averaged(data_dir, tiny_run, tmp_path_factory):
    """A run of 12 steps with a moving average of the weights."""
    run_dir = tmp_path_factory.mktemp("runs") / "averaged"
    training = {"max_steps": 12, "checkpoint_steps": 6, "average": True}
    run = tiny_run(optimizer=AVERAGED, training=training)
    train_model(data_dir, run_dir, run)
    return run, run_dir


def trained_weights(run_dir):
    state = ModelFolder(checkpoints(run_dir)[-1]).training_state()
    return state["trainer"]["trained_weights"]


def test_a_resumed_run_with_a_moving_average_equals_an_uninterrupted_one(
    averaged, data_dir, tmp_path, signal_after
):
    run, run_dir = averaged
    signal_after(signal.SIGTERM, 7)
    with pytest.raises(InterruptedRunError):
        train_model(data_dir, tmp_path / "run", run)
    train_model(data_dir, tmp_path / "run", run)
    assert records(tmp_path / "run") == records(run_dir)
    assert same_weights(tmp_path / "run", run_dir)
    one, other = map(trained_weights, (run_dir, tmp_path / "run"))
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


def test_the_model_of_a_checkpoint_is_the_moving_average_which_was_validated(averaged, data_dir):
    run, run_dir = averaged
    newest = ModelFolder(checkpoints(run_dir)[-1])
    average, trained = newest.weights(), trained_weights(run_dir)
    assert not any(torch.equal(average[name], weight) for name, weight in trained.items())
    assert not (run_dir / "averaged").exists()
    assert ModelFolder.open(run_dir).path in checkpoints(run_dir)
    data = open_data(data_dir, run)
    validator = Validator(
        split=data.valid,
        vocabulary=data.vocabulary,
        info=replace(data.info, run=replace(run, training=TrainingConfig(validation_beam=0))),
        compute=choose_compute("cpu", "fp32"),
    )
    found = validator.validate(newest.model())
    assert found.metrics["loss"] == pytest.approx(newest.info.metrics["loss"], rel=1e-5)


def test_validating_a_moving_average_draws_no_random_weights(
    data_dir, tiny_run, tmp_path, monkeypatch
):
    calls = []

    def counted(*args, **kwargs):
        calls.append(args)
        return new_model(*args, **kwargs)

    monkeypatch.setattr("tfm.training.data.new_model", counted)
    training = {"max_steps": 2, "checkpoint_steps": 1}
    train_model(data_dir, tmp_path / "run", tiny_run(optimizer={"ema": 0.9}, training=training))
    assert len(calls) == 1


def test_the_trained_weights_are_those_of_a_run_without_a_moving_average(
    averaged, data_dir, tmp_path
):
    run, run_dir = averaged
    plain = replace(run, optimizer=replace(run.optimizer, ema=None))
    train_model(data_dir, tmp_path / "run", plain)
    trained = trained_weights(run_dir)
    expected = ModelFolder(checkpoints(tmp_path / "run")[-1]).weights()
    assert trained.keys() == expected.keys()
    assert all(torch.equal(trained[name], weight) for name, weight in expected.items())
    assert (tmp_path / "run" / "averaged").exists()


def test_the_steps_of_a_schedule_that_ends_with_them_may_not_change(averaged, data_dir):
    run, run_dir = averaged
    longer = replace(run, training=replace(run.training, max_steps=13))
    with pytest.raises(UsageError, match=r"training\.max_steps was 12, not 13"):
        train_model(data_dir, run_dir, longer)


def test_a_finished_run_is_not_changed(uninterrupted, data_dir, capsys):
    run, run_dir, result = uninterrupted
    before = records(run_dir)
    assert train_model(data_dir, run_dir, run) == result
    assert "is finished at step 12" in capsys.readouterr().err
    assert records(run_dir) == before


def test_a_finished_run_is_not_averaged_with_another_number_in_secret(uninterrupted, data_dir):
    run, run_dir, _ = uninterrupted
    other = replace(run, training=replace(run.training, average_last=1))
    with pytest.raises(UsageError, match=r"is finished, so --average-last 1 has no effect: call"):
        train_model(data_dir, run_dir, other)
    assert run_config(None, read_toml(run_dir / "config.toml")) == run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signals_save_and_stop(data_dir, tiny_run, tmp_path, signal_after, number, code):
    signal_after(number, 2)
    with pytest.raises(InterruptedRunError) as stopped:
        train_model(data_dir, tmp_path / "run", tiny_run())
    assert stopped.value.exit_code == code
    assert steps_of(tmp_path / "run") == [2]


# At a checkpoint, and at the last.
@pytest.mark.parametrize("step", [6, 12])
def test_a_signal_interrupts_validation_which_is_repeated_on_resume(
    uninterrupted, data_dir, tmp_path, signal_after, step
):
    run, run_dir, result = uninterrupted
    signal_after(signal.SIGTERM, step)
    with pytest.raises(InterruptedRunError):
        train_model(data_dir, tmp_path / "run", run)
    assert records(tmp_path / "run", "validation")[-1]["step"] == step - 3
    saved = checkpoints(tmp_path / "run")[-1]
    assert ModelFolder(saved).info.metrics == {}
    assert train_model(data_dir, tmp_path / "run", run) == replace(result, run_dir=tmp_path / "run")
    assert "loss" in ModelFolder(saved).info.metrics
    assert records(tmp_path / "run") == records(run_dir)


def test_a_disk_that_stays_full_does_not_keep_a_run_from_validating(
    data_dir, tiny_run, tmp_path, monkeypatch
):
    def save(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saving, "save_checkpoint", save)
    monkeypatch.setattr(saving, "_RETRY_SECONDS", 0.0)  # at every step
    limits = {"checkpoint_minutes": 0.01, "max_minutes": 0.03, "max_steps": 1_000_000}
    with pytest.raises(CheckpointError):
        train_model(data_dir, tmp_path / "run", tiny_run(training=limits))
    assert len(records(tmp_path / "run", "validation")) >= 2


def change(state, *keys, value):
    """Change a value in a nested state."""
    *above, last = keys
    for key in above:
        state = state[key]
    if value is None:
        del state[last]
    else:
        state[last] = value


FIRST = ("trainer", "moments", "output_weight", "exp_avg")


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("trainer",), None),
        (FIRST, None),
        (FIRST, torch.ones(2)),
        (("trainer", "updates"), 10**400),
        (("trainer", "position", "step"), "1"),
        (("trainer", "gradient", "max_tokens"), -5),
        (("window",), [{"step": 1}]),
        (("validations_since_best",), True),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_state_with_wrong_values_is_refused_though_its_checksum_is_correct(
    uninterrupted, data_dir, tmp_path, keys, value
):
    run, run_dir, _ = uninterrupted
    newest = checkpoints(run_dir)[-1]
    copy = tmp_path / "run" / "checkpoints" / newest.name
    state = ModelFolder(newest).training_state()
    change(state, *keys, value=value)
    save_checkpoint(
        copy,
        ModelFolder(newest).info,
        ModelFolder(newest).weights(),
        subword_files={"bpe.model": (newest / "bpe.model").read_bytes()},
        training_state=state,
    )
    with pytest.raises(CheckpointError, match="is not the state of this run") as refused:
        train_model(data_dir, tmp_path / "run", run)
    assert "\n" not in str(refused.value)


def test_patience_without_a_validation_split_is_refused(other_data, tiny_run, tmp_path):
    run = tiny_run(model={"tied_embeddings": "two-way"}, training={"patience": 2})
    with pytest.raises(UsageError, match="patience has no effect without validation text"):
        train_model(other_data, tmp_path / "run", run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"d_ff": 64}}, "model.d_ff was 32, not 64"),
        ({"model": {"d_k": 9}}, "model.d_k was unset, not 9"),
        ({"training": {"seed": 2}}, "training.seed was 1, not 2"),
    ],
    ids=str,
)
def test_other_settings_are_refused_when_resuming(
    uninterrupted, data_dir, tiny_run, changes, message
):
    _, run_dir, _ = uninterrupted
    before = (run_dir / "config.toml").read_bytes()
    with pytest.raises(UsageError, match="was started with other settings: use") as caught:
        train_model(data_dir, run_dir, tiny_run(**changes))
    assert str(caught.value).split(DETAIL)[1:] == [message]
    assert (run_dir / "config.toml").read_bytes() == before


def test_a_dataset_of_other_languages_is_refused_when_resuming(
    uninterrupted, data_dir, tiny_run, tmp_path
):
    copy = shutil.copytree(data_dir, tmp_path / "data")
    edit_json(copy / "manifest.json", source="de", target="en")
    binarize(copy, BinarizeConfig(threads=1), force=True)
    with pytest.raises(UsageError, match="was started with other settings: use") as caught:
        train_model(copy, uninterrupted[1], tiny_run())
    assert str(caught.value).split(DETAIL)[1:] == [
        "source language was en, not de",
        "target language was de, not en",
    ]


def test_the_tokenizer_of_bleu_is_that_of_the_start_of_a_run(trained_run, tiny_run, tmp_path):
    def resumed(**record):
        path = shutil.copytree(checkpoints(trained_run)[-1], tmp_path / str(record))
        before = json.loads((path / "config.json").read_text())
        del before["checksum"], before["bleu_tokenizer"]
        (path / "config.json").write_text(json.dumps(before | record))
        return _with_history(info, ModelFolder(path), None).bleu_tokenizer

    info = replace(ModelFolder(checkpoints(trained_run)[-1]).info, bleu_tokenizer="zh")
    assert _with_history(info, None, None).bleu_tokenizer == "zh"
    assert resumed(bleu_tokenizer="char") == "char"
    assert resumed() == "13a"  # as before there was a choice


@pytest.fixture(scope="module")
def other_data(tmp_path_factory, make_dataset):
    """A dataset with separate vocabularies and no validation split."""
    pairs = list(number_pairs("train", num_pairs=60, seed=2))
    folder = tmp_path_factory.mktemp("data") / "other"
    return make_dataset(folder, {"train": pairs}, vocab_size=350, separate=True)


def test_another_subword_model_is_refused_when_resuming(uninterrupted, other_data, tiny_run):
    run = tiny_run(model={"tied_embeddings": "two-way"})
    with pytest.raises(UsageError, match="subword model was "):
        train_model(other_data, uninterrupted[1], run)


def test_max_tokens_may_change_when_a_run_is_resumed(uninterrupted, data_dir, tiny_run, tmp_path):
    _, run_dir, _ = uninterrupted
    copy = shutil.copytree(run_dir, tmp_path / "run")
    longer = {"max_steps": 13, "checkpoint_steps": 3}
    result = train_model(data_dir, copy, tiny_run(batching={"max_tokens": 99}, training=longer))
    assert result.step == 13


def test_other_data_is_refused_when_resuming(
    uninterrupted, data_dir, tiny_run, tmp_path, make_dataset
):
    run, run_dir, _ = uninterrupted
    other = shutil.copytree(data_dir, tmp_path / "data")
    lines = [(other / f"train.{language}").read_text().splitlines() for language in ("en", "de")]
    for language, side in zip(("en", "de"), lines, strict=True):
        (other / f"train.{language}").write_text("".join(f"{line}\n" for line in side[::-1]))
    binarize(other, BinarizeConfig(threads=1))
    with pytest.raises(UsageError, match="was started on other data than"):
        train_model(other, shutil.copytree(run_dir, tmp_path / "run"), run)


def test_a_second_run_in_the_same_folder_is_refused(data_dir, tiny_run, tmp_path):
    with (
        lock_folder(tmp_path / "run"),
        pytest.raises(LockedFolderError, match="is being written to by process"),
    ):
        train_model(data_dir, tmp_path / "run", tiny_run())
    assert train_model(data_dir, tmp_path / "run", tiny_run()).step == 12


def test_a_disk_that_is_full_for_a_while_does_not_end_a_run(
    uninterrupted, data_dir, tmp_path, monkeypatch, capsys
):
    run, run_dir, _ = uninterrupted
    original, tries = saving.save_checkpoint, itertools.count(1)

    def save(*args, **options):
        if next(tries) in (2, 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        original(*args, **options)

    monkeypatch.setattr(saving, "save_checkpoint", save)
    train_model(data_dir, tmp_path / "run", run)
    assert steps_of(tmp_path / "run") == [3, 12]
    said = capsys.readouterr().err
    assert "cannot save step 6" in said
    assert "is saved again, at step 12" in said
    assert records(tmp_path / "run") == records(run_dir)
    assert same_weights(tmp_path / "run", run_dir)


def test_saving_in_the_background_changes_nothing(uninterrupted, data_dir, tiny_run, tmp_path):
    _, run_dir, _ = uninterrupted
    options = {"max_steps": 12, "checkpoint_steps": 3, "background_saving": True}
    train_model(data_dir, tmp_path / "run", tiny_run(training=options))
    assert steps_of(tmp_path / "run") == [3, 6, 9, 12]
    for ours, theirs in zip(checkpoints(tmp_path / "run"), checkpoints(run_dir), strict=True):
        assert same_weights(ours, theirs)


def test_three_way_tied_embeddings_need_a_joint_vocabulary(other_data, tiny_run):
    with pytest.raises(UsageError, match="--tied-embeddings two-way"):
        open_data(other_data, tiny_run())


def test_a_subword_model_that_was_learned_again_is_refused(
    data_dir, other_data, tiny_run, tmp_path
):
    copy = shutil.copytree(data_dir, tmp_path / "data")
    shutil.copy(other_data / "bpe.source.model", copy / "bpe.model")
    with pytest.raises(DataError, match=r"was binarized with subword model .* run tfm binarize /"):
        open_data(copy, tiny_run())


def test_a_forecast_equals_the_counts_of_the_run(data_dir, tiny_run, uninterrupted):
    run, run_dir, _ = uninterrupted
    found = forecast(data_dir, run)
    assert found.rows()["dataset"] == f"{data_dir}, 200 training pairs"
    epochs = [line["epoch"] for line in records(run_dir, "train")]
    assert epochs[-1] == -(-12 // found.steps_per_epoch)
    weights = ModelFolder(checkpoints(run_dir)[-1]).weights()
    assert found.cost.num_parameters == sum(tensor.numel() for tensor in weights.values())
    assert found.microbatches_per_step > 1
    assert found.estimate.num_steps == 12
    assert found.estimate.epochs == 12 / found.steps_per_epoch
    assert found.estimate.warning is None
    for hours, is_long in ((23.9, False), (24.1, True), (math.nan, False)):
        estimate = replace(found.estimate, seconds_per_step=3600 * hours / 12)
        assert (estimate.warning is not None) is is_long
    files = run_dir.glob("checkpoints/*/*.safetensors")
    num_bytes = sum(file.stat().st_size for file in files)
    assert found.estimate.checkpoint_bytes == pytest.approx(num_bytes, rel=0.4)
    steps = 1001 * found.steps_per_epoch
    warning = forecast(data_dir, tiny_run(training={"max_steps": steps})).estimate.warning
    assert "training would pass over the data about 1,001 times (" in warning


def test_a_forecast_for_a_gpu_counts_no_padding_if_layers_are_compiled(data_dir, tiny_run):
    runs = [tiny_run(training={"device": "cuda", "compile": each}) for each in (True, False)]
    packed, padded = (forecast(data_dir, run).microbatches_per_step for run in runs)
    assert 1 <= packed < padded


def test_the_steps_of_medium_follow_from_the_size_of_the_text(data_dir, tiny_run):
    tables = {"model": settings_to(tiny_run().model), "training": {"device": "cpu"}}
    found = forecast(data_dir, run_config("medium", tables))
    assert found.estimate.num_steps == 50 * found.steps_per_epoch
    assert found.rows()["steps"].startswith(f"{50 * found.steps_per_epoch:,}; ")


@pytest.fixture
def slow_device(monkeypatch):
    monkeypatch.setattr("tfm.training.forecast.measure_product_flops", lambda *_, **__: 1e3)
    monkeypatch.setattr("tfm.training.forecast._measure_steps", lambda *_: (1e3, 1e3))


@pytest.mark.usefixtures("slow_device")
def test_a_run_of_weeks_is_announced_before_it_starts(data_dir, tiny_run, tmp_path, capsys):
    pattern = (
        r"warning: training would take about [0-9,.]+ days \([0-9,.]+ \w+ per step, [0-9,.]+ days "
        r"for 12 steps, "
        r"\S+ GB of checkpoints\): set a smaller --arch or --max-steps"
    )
    assert re.fullmatch(pattern, forecast(data_dir, tiny_run()).estimate.warning)
    train_model(data_dir, tmp_path / "run", tiny_run())
    start, warning, *_ = capsys.readouterr().err.splitlines()
    assert start.startswith(f"train: {tmp_path / 'run'} on ")
    assert re.fullmatch(pattern, warning)


@pytest.mark.usefixtures("slow_device")
@pytest.mark.parametrize("limit", [{"max_minutes": 60.0}, {"max_epochs": 1, "max_steps": 3}])
def test_limits_shorten_the_estimate(data_dir, tiny_run, limit):
    full, limited = (forecast(data_dir, tiny_run(training=each)).estimate for each in ({}, limit))
    assert limited.num_steps < full.num_steps
    assert limited.seconds <= full.seconds
    if "max_minutes" in limit:
        assert (limited.seconds <= 3600, limited.warning) == (True, None)


@pytest.mark.parametrize("share", [0.9, 0.1])
def test_the_forecast_counts_the_fastest_step_and_says_if_others_were_delayed(
    data_dir, tiny_run, monkeypatch, share
):
    monkeypatch.setattr("tfm.training.forecast._measure_steps", lambda *_: (1e9, share * 1e9))
    found = forecast(data_dir, tiny_run()).estimate
    assert found.seconds_per_step == pytest.approx(found.flops_per_step / 1e9)
    assert ("beside other programs" in found.shown_time) is (share < 0.5)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_ends_does_so_with_the_epochs_of_the_run(
    data_dir, tiny_run, tmp_path, schedule
):
    run = tiny_run(
        optimizer={"lr_schedule": schedule, "warmup_steps": 2, "learning_rate": 1e-3},
        training={"max_steps": 100_000, "max_epochs": 2, "log_steps": 1, "validation_beam": 0},
    )
    step = train_model(data_dir, tmp_path / "run", run).step
    lines = records(tmp_path / "run", "train")
    rates = [line["learning_rate"] for line in lines]
    assert max(rates) == 1e-3
    assert 0 < rates[-1] < 0.2e-3
    [summary] = runs([tmp_path / "run"])
    planned = forecast(data_dir, run).estimate.num_steps
    assert step == planned == summary.max_steps == {line["last_step"] for line in lines}.pop()


def test_processes_on_a_cpu_are_no_faster_than_its_cores(data_dir, tiny_run, monkeypatch):
    monkeypatch.setattr("tfm.training.forecast._measure_steps", lambda *_: (1e9, 1e9))
    for module in ("training.forecast", "machine.compute"):
        monkeypatch.setattr(f"tfm.{module}.num_cores", lambda: 2)

    def plan(num_processes):
        with one_thread():
            return forecast(data_dir, tiny_run(), num_processes=num_processes)

    one, two, nine = map(plan, (1, 2, 9))
    per_step = [each.estimate.seconds_per_step for each in (one, two, nine)]
    assert per_step == pytest.approx([per_step[0] / speed for speed in (1, 2, 2)])
    assert [each.warnings for each in (one, two)] == [[], []]
    [warning] = nine.warnings
    assert "9 processes share the 2 cores" in warning


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_run_on_gpus_is_planned_on_a_machine_without(data_dir, tiny_run):
    on_cpu = forecast(data_dir, tiny_run()).rows()
    run = tiny_run(training={"device": "cuda", "precision": "auto"})
    planned = forecast(data_dir, run, num_processes=16)
    rows = planned.rows()
    assert rows["device"] == "16 GPUs, of which this machine has 0; in bf16"
    assert [rows[name] for name in ("parameters", "steps", "training FLOPs", "memory, about")] == [
        on_cpu[name] for name in ("parameters", "steps", "training FLOPs", "memory, about")
    ]
    assert rows["global batch"].endswith("on each of 16 processes")
    assert rows["time, about"].startswith("unknown: ")
    assert ["estimate for 16 GPUs" in each for each in planned.warnings] == [True]


def test_shards_of_a_single_process_are_refused(data_dir, tiny_run, tmp_path):
    run = tiny_run(training={"shard": True})
    with pytest.raises(UsageError, match="shard has no effect without several processes"):
        train_model(data_dir, tmp_path / "run", run)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="shard has no effect without several processes"):
        forecast(data_dir, run)


def test_a_run_out_of_time_is_averaged(data_dir, tiny_run, tmp_path):
    settings = {"checkpoint_steps": 2, "average_last": 2, "max_steps": 4}
    train_model(data_dir, tmp_path / "run", tiny_run(training=settings))
    assert not (tmp_path / "run" / "averaged").exists()
    limits = {"max_steps": 1_000_000, "max_minutes": 0.01, "average": True}
    step = train_model(data_dir, tmp_path / "run", tiny_run(training=settings | limits)).step
    assert ModelFolder(tmp_path / "run" / "averaged").info.step == step


def test_the_average_of_a_finished_run_is_made_again_if_it_is_missing_damaged_or_outdated(
    data_dir, tiny_run, tmp_path, capsys
):
    run_dir, settings = tmp_path / "run", tiny_run(training={"average": True})
    train_model(data_dir, run_dir, settings)
    assert "averaged is the mean of step 12" in capsys.readouterr().err
    written = (run_dir / "averaged" / "config.json").stat().st_mtime_ns
    train_model(data_dir, run_dir, settings)
    assert (run_dir / "averaged" / "config.json").stat().st_mtime_ns == written
    for damage in (shutil.rmtree, lambda folder: (folder / "bpe.model").write_bytes(b"")):
        damage(run_dir / "averaged")
        train_model(data_dir, run_dir, settings)
        assert ModelFolder(run_dir / "averaged").info.step == 12
    train_model(data_dir, run_dir, tiny_run(training={"average": True, "max_steps": 16}))
    assert ModelFolder(run_dir / "averaged").info.step == 16


def test_validation_has_the_steps_that_the_search_of_the_dataset_asks_for(
    data_dir, tiny_run, tmp_path, monkeypatch
):
    most_useful, numbers = MinimumBayesRisk.most_useful, []

    def counted(step, candidates, source):
        numbers.append(len(candidates))
        return most_useful(step, candidates, source)

    def open_with_search(*args, **kwargs):
        data = open_data(*args, **kwargs)
        return replace(data, info=replace(data.info, search={"mbr": "chrf", "n_best": 2}))

    monkeypatch.setattr(MinimumBayesRisk, "most_useful", counted)
    monkeypatch.setattr("tfm.training.data.open_data", open_with_search)
    training = {"max_steps": 2, "checkpoint_steps": 2, "validation_beam": 2}
    train_model(data_dir, tmp_path / "run", tiny_run(training=training))
    assert numbers
    assert set(numbers) == {2}


@pytest.mark.parametrize(
    ("launcher", "num_gpus", "gpu"), [("Slurm", 1, 0), ("Slurm", 8, 3), ("torchrun", 8, 3)]
)
def test_a_task_of_slurm_may_see_all_gpus_or_its_own(
    tiny_run, monkeypatch, launcher, num_gpus, gpu
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    compute = Mock()
    monkeypatch.setattr("tfm.training.run.verified_compute", compute)
    world = World(rank=11, size=16, local_rank=3, local_size=8, launcher=launcher)
    training_compute(tiny_run(), world)
    assert compute.call_args.kwargs["local_rank"] == gpu
