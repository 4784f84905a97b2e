"""The checkpoints of a run: which there are, which to go on from, which to keep."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tfm.errors import CheckpointError
from tfm.reporting import say
from tfm.storage.checkpoint.model_folder import (
    CONFIG,
    STATE,
    DamagedCheckpointError,
    Metric,
    check_model,
    load_info,
)
from tfm.storage.files import remove_directory, settle_directory, standing_directory

_STATES_KEPT = 2
_PREFIX, _NUM_DIGITS = "step-", 8
_DAMAGED = "damaged-"


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return run_dir / "checkpoints" / f"{_PREFIX}{step:0{_NUM_DIGITS}d}"


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    named = (run_dir / "checkpoints").glob(_PREFIX + _NUM_DIGITS * "[0-9]")
    return sorted(path for path in named if path.is_dir())


def newest_step(run_dir: Path) -> int | None:
    """The step of a run's newest checkpoint, whole or not; None if there is none."""
    present = checkpoints(run_dir)
    return int(present[-1].name.removeprefix(_PREFIX)) if present else None


def newest_intact_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint to go on from; None if the run has none yet.

    Those that are damaged are named on stderr and renamed to "damaged-step-…", where nothing looks
    for checkpoints and nothing is removed.

    Raises:
        CheckpointError: There are only damaged ones, or those without the state to train on from.
    """
    folder = run_dir / "checkpoints"
    _remove_leftovers(folder)
    present = checkpoints(run_dir)
    while present:
        path = present.pop()
        # State is removed from the oldest first: if an older one has it, this one has lost it.
        needs_state = any((older / STATE).exists() for older in present)
        if not _is_sound(path, partial(check_model, needs_state=needs_state)):
            continue
        if not (path / STATE).exists():
            raise CheckpointError(
                f"{run_dir} cannot go on: {path}, its newest whole checkpoint, has no {STATE}; "
                "translate with it or average it, and train another run with --run"
            )
        return path
    if any(folder.glob(f"{_DAMAGED}*")):
        raise CheckpointError(
            f"{run_dir} has only damaged checkpoints: remove {folder} to start from the "
            "beginning, or train another run with --run"
        )
    return None


def best_checkpoints(run_dir: Path, metric: Metric) -> list[Path]:
    """The validated checkpoints of a run, best first; the newer of equals first.

    Raises:
        CheckpointError: One of them is damaged.
    """
    scored = []
    for path in checkpoints(run_dir):
        try:
            info = load_info(path)
        except CheckpointError:
            if path.exists():
                raise
            continue  # the run, which trains on, has just removed it
        if (quality := info.quality(metric)) is not None:
            scored.append((quality, info.step, path))
    return [path for *_, path in sorted(scored, reverse=True)]


def prune_checkpoints(run_dir: Path) -> None:
    """Keep the newest and the best checkpoints, as many as the run's settings say.

    The training state, twice the size of the model, stays in the two newest only. Only the process
    that writes to the run may call this.

    Raises:
        OSError: Something could not be removed; the next time will do.
    """
    _remove_leftovers(run_dir / "checkpoints")
    present = [path for path in checkpoints(run_dir) if _is_sound(path, load_info)]
    if not present:
        return
    settings = load_info(present[-1]).run.training
    best = best_checkpoints(run_dir, settings.best_metric)[: settings.keep_best]
    kept = {*present[-settings.keep_last :], *best}
    for path in present:
        if path not in kept:
            _remove_checkpoint(path)
        elif path not in present[-_STATES_KEPT:]:
            (path / STATE).unlink(missing_ok=True)


def find_model(path: Path) -> Path:
    """The model folder at a path or, of a run, the average, the best or the newest checkpoint.

    Raises:
        CheckpointError: There is none, or it is damaged.
    """
    for folder in (path, path / "averaged"):
        standing = standing_directory(folder)
        if (standing / CONFIG).is_file():
            return standing
    present = checkpoints(path)
    if not present:
        raise CheckpointError(f"{path} is no run or model folder: train one with tfm train")
    best = best_checkpoints(path, load_info(present[-1]).run.training.best_metric)
    return best[0] if best else present[-1]


def newest_run(runs_dir: Path) -> Path:
    """The run that was last written to.

    Raises:
        CheckpointError: There is none with a checkpoint.
    """
    newest = {
        run.parent: max(map(_changed, checkpoints(run.parent)), default=0.0)
        for run in runs_dir.glob("*/checkpoints")
    }
    newest = {run: time for run, time in newest.items() if time}
    if not newest:
        raise CheckpointError(f'{runs_dir}/ holds no run with a checkpoint: start with "tfm train"')
    return max(newest, key=newest.__getitem__)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its run, which trains on, has just removed it
        return 0.0


def _is_sound(path: Path, check: Callable[[Path], object]) -> bool:
    """Whether a checkpoint stands a check; if not, it is renamed, and that is said."""
    try:
        check(path)
    except DamagedCheckpointError as error:
        number, aside = 1, path.with_name(_DAMAGED + path.name)
        while aside.exists():
            number += 1
            aside = path.with_name(f"{_DAMAGED}{path.name}-{number}")
        os.replace(path, aside)
        problem, *_advice = str(error).split("; ")
        say(f"warning: {problem}; it is set aside as {aside.name}")
        return False
    return True


def _remove_leftovers(folder: Path) -> None:
    """Remove or finish what a run that was killed, on whatever machine, has left half done."""
    for pattern in ("partial", "removed"):
        for leftover in folder.glob(f".{_PREFIX}*.{pattern}"):
            remove_directory(leftover)
    for leftover in folder.glob(f".{_PREFIX}*.old"):
        settle_directory(leftover.with_name(leftover.name[1:].removesuffix(".old")))


def _remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint so that no half of it is ever seen under its name."""
    outgoing = path.with_name(f".{path.name}.removed")
    os.replace(path, outgoing)
    remove_directory(outgoing)
