"""tfm train: a binarized dataset → a run folder with checkpoints, metrics and a report."""

from contextlib import nullcontext
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path

from tfm import __version__
from tfm.backends.selection import verified_compute
from tfm.config import RunConfig, run_toml
from tfm.device.compute import num_gpus
from tfm.distributed.group import Group, joined
from tfm.distributed.interruption import StopRequests
from tfm.distributed.watchdog import Watchdog
from tfm.errors import CheckpointError, UsageError
from tfm.reporting import say
from tfm.stages.training_data import TrainingData, open_data
from tfm.stages.training_run import TrainingRun
from tfm.storage.checkpoint.model_folder import ModelInfo, load_info
from tfm.storage.checkpoint.run_folder import newest_intact_checkpoint
from tfm.storage.files import write_text
from tfm.storage.lock import lock_folder
from tfm.world import World

# A run that is resumed must not change these, or it would be another run; max_tokens may change,
# with the devices.
_FIXED_SECTIONS = ("model", "optimizer", "batching")
_FREE = ("max_tokens",)
# The watchdog, which can say who is to blame, comes before the collectives' own limit.
_TIMEOUTS_OF_COLLECTIVES = 2


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where the run is and how far it has come."""

    run_dir: Path
    step: int
    metrics: dict[str, float]


def train(data_dir: Path, run_dir: Path, run: RunConfig) -> TrainResult:
    """Train a model, or go on where the run folder's newest checkpoint stands.

    Each process that the environment tells of calls it; together they are one run.

    Args:
        data_dir: The dataset folder.
        run_dir: The run folder.
        run: All settings.

    Raises:
        DataError: The dataset cannot be used.
        UsageError: Settings do not suit dataset or device, or are not those of the run to resume.
        CheckpointError: The run's checkpoints are damaged, or its last could not be saved.
        TrainingError: The loss is not finite for too long, or memory too small.
        LostPeersError: The other processes are gone.
        InterruptedRunError: A signal asked to stop; the run is saved.
    """
    world = World.from_environment()
    if run.training.shard and world.size == 1:
        raise UsageError(
            "shard has no effect on a single process: start several, or use --no-shard"
        )
    device, precision = run.training.device, run.training.precision
    compute = verified_compute(device, precision, local_rank=_gpu_index(world), trains=True)
    data = open_data(data_dir, run)
    timeout = timedelta(minutes=run.training.stall_minutes)
    with (
        joined(world, compute.device, timeout=_TIMEOUTS_OF_COLLECTIVES * timeout) as group,
        # After they have met, so that all hear at once if the folder is another's.
        lock_folder(run_dir) if world.is_first else nullcontext(),
        StopRequests() as stop,
        Watchdog(world, group.store, timeout_seconds=timeout.total_seconds()) as watchdog,
    ):
        watchdog.heartbeat("comparing settings", waits=True)
        group.check_equal(_facts(data, str(compute.dtype)))
        watchdog.heartbeat("checking the newest checkpoint", waits=not world.is_first)
        checkpoint = _checkpoint_to_resume(run_dir, data.info, group)
        training = TrainingRun(
            run_dir,
            data,
            compute,
            group=group,
            heartbeat=watchdog.heartbeat,
            stop=stop,
            checkpoint=checkpoint,
        )
        if world.is_first:
            write_text(run_dir / "config.toml", run_toml(run))
        position = training.trainer.position
        if training.is_finished():
            say(f"train: {run_dir} is finished at step {position.step:,}")
        else:
            processes = "" if group.is_alone else f", {world.size} processes"
            say(f"train: {run_dir} on {data_dir}, {compute}{processes}")
            training.loop()
    return TrainResult(run_dir=run_dir, step=position.step, metrics=training.metrics)


def _gpu_index(world: World) -> int:
    """The GPU of a process: Slurm may let each see its own only."""
    return 0 if world.launcher == "Slurm" and num_gpus() == 1 else world.local_rank


def _facts(data: TrainingData, arithmetic: str) -> dict[str, str]:
    """What all processes of a run must have alike."""
    return {
        "version of tfm": __version__,
        "settings": run_toml(data.info.run),
        "dataset": data.checksum,
        "arithmetic": arithmetic,
    }


def _checkpoint_to_resume(run_dir: Path, asked: ModelInfo, group: Group) -> Path | None:
    """The checkpoint from which all processes go on, as the first one finds it; None to start."""
    newest = newest_intact_checkpoint(run_dir) if group.world.is_first else None
    name = group.gather(None if newest is None else newest.name)[0]
    if name is None:
        return None
    checkpoint = run_dir / "checkpoints" / str(name)
    if not checkpoint.is_dir():
        raise CheckpointError(
            f"rank {group.world.rank} does not see {checkpoint}, which rank 0 does: put the run "
            "folder on a disk that all machines share"
        )
    info = load_info(checkpoint)
    _check_same_run(info, asked, run_dir)
    say(f"train: resuming {run_dir} at step {info.step:,}")
    return checkpoint


def _check_same_run(saved: ModelInfo, asked: ModelInfo, run_dir: Path) -> None:
    """Refuse to go on with settings or data that would make it another run."""
    changes = [
        f"{section}.{item.name} was {before}, not {after}"
        for section in _FIXED_SECTIONS
        for item in fields(getattr(saved.run, section))
        if item.name not in _FREE
        and (before := getattr(getattr(saved.run, section), item.name))
        != (after := getattr(getattr(asked.run, section), item.name))
    ]
    if saved.run.training.seed != asked.run.training.seed:
        changes.append(f"training.seed was {saved.run.training.seed}")
    if saved.fingerprint != asked.fingerprint:
        changes.append(f"its subword model was {saved.fingerprint[:8]}")
    if changes:
        raise UsageError(
            f"{run_dir} was started with other settings ({'; '.join(changes)}): "
            "use those, or another folder with --run"
        )
