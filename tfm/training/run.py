"""A run from its start or newest checkpoint to its end, as one of the processes that train it."""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from tfm import __version__
from tfm.backends.selection import verified_compute
from tfm.config import AverageConfig, RunConfig, run_toml, settings_to
from tfm.config.values import differences
from tfm.dataset.rerun import record_run
from tfm.disk.files import write_text
from tfm.disk.lock import lock_folder
from tfm.errors import DETAIL, CheckpointError, UsageError, tfm_command
from tfm.folders.model_folder import ModelFolder, current_average
from tfm.folders.model_info import ModelInfo
from tfm.folders.run_folder import check_new_run, checkpoints, record_dataset
from tfm.folders.saving import newest_intact_checkpoint
from tfm.machine.compute import Compute, oversubscription
from tfm.machine.group import Group, joined
from tfm.machine.interruption import StopRequests
from tfm.machine.watchdog import Watchdog
from tfm.machine.world import World
from tfm.reporting import Result, say
from tfm.training.averaging import average_checkpoints
from tfm.training.data import TrainingData, check_start
from tfm.training.forecast import estimate_run
from tfm.training.loop import TrainingRun
from tfm.translation.steps import Step

# These settings may not change when a run is resumed, except max_tokens, which suits the devices.
_FIXED_SECTIONS = ("model", "optimizer", "batching", "augmentation")
# Collectives time out after the watchdog, which can say which rank stalled.
_COLLECTIVE_TIMEOUT_FACTOR = 2


@dataclass(frozen=True, kw_only=True)
class TrainResult(Result):
    """The run folder, its last step and the metrics of its newest validation."""

    run_dir: Path
    step: int
    metrics: dict[str, float]
    has_learned: bool = True  # False if a warning says that the model has not


def training_compute(run: RunConfig, world: World) -> Compute:
    """Choose and verify the device of one of the processes of a run, and its arithmetic."""
    # Slurm may show each process its own GPU only.
    gpu = 0 if world.launcher == "Slurm" and torch.cuda.device_count() == 1 else world.local_rank
    training = run.training
    return verified_compute(training.device, training.precision, local_rank=gpu, trains=True)


def train(
    data: TrainingData,
    run_dir: Path,
    compute: Compute,
    *,
    world: World,
    stop: StopRequests,
    validation_steps: Sequence[Step],
) -> TrainResult:
    """Train a model, resuming from the newest checkpoint in the run folder if there is one.

    Every process of `world` calls it, and all of them train one model together.

    Raises the errors of the command, and LostPeersError if other processes are gone.
    """
    run, start = data.info.run, _first_model(run_dir, data)
    timeout = timedelta(minutes=run.training.stall_minutes)
    with (
        joined(world, compute.device, timeout=_COLLECTIVE_TIMEOUT_FACTOR * timeout) as group,
        # Locked after the rendezvous: if another run holds the lock, all ranks are notified.
        lock_folder(run_dir) if world.is_first else nullcontext(),
        stop,
        Watchdog(
            world,
            group.store,
            timeout_seconds=timeout.total_seconds(),
            record_dir=None if group.is_alone else run_dir / "collectives",
        ) as watchdog,
    ):
        group.heartbeat = watchdog.heartbeat
        group.heartbeat("comparing settings", waits=True)
        group.check_equal(
            {
                "version of tfm": __version__,
                "settings": run_toml(run),
                "dataset": data.checksum,
                "arithmetic": str(compute.dtype),
            }
        )
        group.heartbeat("checking the newest checkpoint", waits=not world.is_first)
        checkpoint = _checkpoint_to_resume(run_dir, data.info, group)
        training = TrainingRun(
            run_dir,
            replace(data, info=_with_history(data.info, checkpoint, start)),
            compute,
            group=group,
            stop=stop,
            validation_steps=validation_steps,
            checkpoint=checkpoint,
            start=start,
        )
        limit = training.limit_reached()
        if limit is not None and checkpoint is not None:
            _check_average_last(run_dir, run, checkpoint.info.run)
        if world.is_first:
            _record_datasets(run_dir, data)
            write_text(run_dir / "config.toml", run_toml(run))
        if limit is not None:
            step = training.trainer.position.step
            say(f"train: {run_dir} is finished at step {step:,} by {limit}")
        else:
            _announce(training, is_new=checkpoint is None)
            training.loop()
    return _finish(training)


def _first_model(run_dir: Path, data: TrainingData) -> ModelFolder | None:
    """Return the model that a new run starts from; None if it starts from scratch or exists."""
    if checkpoints(run_dir):
        return None
    check_new_run(run_dir)
    if data.info.run.from_model is None:
        return None
    start = ModelFolder(Path(data.info.run.from_model))
    check_start(start, data)
    return start


def _announce(training: TrainingRun, *, is_new: bool) -> None:
    """Print the run, its dataset and device, and warnings if it is slow or takes very long."""
    data, compute, world = training.data, training.compute, training.group.world
    processes = "" if training.group.is_alone else f", {world.size} processes"
    say(f"train: {training.run_dir} on {data.data_dir}, {compute}{processes}")
    threads, num_local = data.info.run.training.threads, world.local_size
    if warning := oversubscription(compute.device, threads, num_processes=num_local):
        say(warning)
    if is_new and world.is_first:
        training.group.heartbeat("estimating the time of the run")
        batcher, cost = training.trainer.batcher, training.cost
        estimate = estimate_run(
            data, batcher, cost, compute, num_processes=world.size, num_local=num_local
        )
        if estimate.warning is not None:
            say(estimate.warning)
        if data.augmentation is not None:
            num_steps = batcher.num_batches()
            say(f"train: pairs are augmented anew in each epoch of about {num_steps:,} steps")


def _finish(training: TrainingRun) -> TrainResult:
    """Average the checkpoints of a run that has ended, and print if it has not learned."""
    run, run_dir, step = training.data.info.run, training.run_dir, training.trainer.position.step
    averages = run.training.average and run.optimizer.ema is None and step > 0
    if training.group.world.is_first and averages:
        is_averaged = False
        with suppress(CheckpointError):  # of a damaged average, which is replaced
            is_averaged = current_average(run_dir) is not None
        if not is_averaged:
            say(f"train: {average_checkpoints(run_dir, AverageConfig())}")
    failure = training.failure_to_learn()
    if failure is not None:
        say(
            f"warning: the model has not learned: {failure}; train longer, or in another --run "
            "with a lower --learning-rate or with --clip-norm"
        )
    return TrainResult(
        run_dir=run_dir, step=step, metrics=training.metrics, has_learned=failure is None
    )


def _check_average_last(run_dir: Path, run: RunConfig, before: RunConfig) -> None:
    """Raise UsageError if a finished run should average another number of checkpoints."""
    number = run.training.average_last
    if number != before.training.average_last:
        raise UsageError(
            f"{run_dir} is finished, so --average-last {number} has no effect: call "
            f"{tfm_command('average', run_dir, '--last', number)}"
        )


def _with_history(
    info: ModelInfo, checkpoint: ModelFolder | None, start: ModelFolder | None
) -> ModelInfo:
    """Return the description of a run with what was decided when it started."""
    if checkpoint is not None:
        before = checkpoint.info
        return replace(info, ancestors=before.ancestors, bleu_tokenizer=before.bleu_tokenizer)
    if start is None:
        return info
    return replace(info, ancestors=start.lineage())


def _record_datasets(run_dir: Path, data: TrainingData) -> None:
    """Record the dataset in the run, and the run in the datasets that it needs to be resumed."""
    record_dataset(run_dir, data.data_dir)
    record_run(data.data_dir, run_dir, data.checksum)
    for each in data.info.run.training.also_valid:
        record_run(Path(each.partition("=")[2]), run_dir, data.info.fingerprint)


def _checkpoint_to_resume(run_dir: Path, requested: ModelInfo, group: Group) -> ModelFolder | None:
    """Return the newest intact checkpoint, chosen by rank 0 for all; None starts a new run.

    Raises UsageError if settings changed that would make it a different run.
    """
    newest = newest_intact_checkpoint(run_dir) if group.world.is_first else None
    name = group.gather(None if newest is None else newest.name)[0]
    if name is None:
        return None
    checkpoint = run_dir / "checkpoints" / str(name)
    if not checkpoint.is_dir():
        raise CheckpointError(
            f"rank {group.world.rank} does not see {checkpoint}, but rank 0 does: put the run "
            "folder on a disk that all machines share"
        )
    folder = ModelFolder(checkpoint)
    info = folder.info
    if changes := differences(_fixed_values(info), _fixed_values(requested)):
        summary = (
            f"{run_dir} was started with other settings: use the same, or start another --run, "
            f"perhaps from the model of this one with --from {run_dir}"
        )
        raise UsageError(DETAIL.join([summary, *changes]))
    max_steps = requested.run.training.max_steps
    if max_steps < info.step:
        raise UsageError(
            f"--max-steps {max_steps} is below step {info.step}, at which {run_dir} is: set a "
            "larger one to continue"
        )
    say(f"train: resuming {run_dir} at step {info.step:,}")
    return folder


def _fixed_values(info: ModelInfo) -> dict[str, Any]:
    """Return the values that may not change when a run is resumed, by name."""
    settings = {
        f"{section}.{name}": value
        for section in _FIXED_SECTIONS
        for name, value in settings_to(getattr(info.run, section)).items()
        if name != "max_tokens"
    }
    if info.run.optimizer.depends_on_max_steps:
        settings["training.max_steps"] = info.run.training.max_steps
        settings["training.max_epochs"] = info.run.training.max_epochs
    return {
        "task": info.task,
        "source language": info.source,
        "target language": info.target,
        "arch": info.run.arch,
        "from": info.run.from_model or "scratch",
        **settings,
        "training.seed": info.run.training.seed,
        "training.validation_tokenize": info.run.training.validation_tokenize,
        "subword model": info.fingerprint[:8],
    }
