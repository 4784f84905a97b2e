"""The checkpoints of a run: list them, find the one to resume from, remove old ones."""

import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tfm.errors import CheckpointError, DataError, UsageError, tfm_command
from tfm.folders.model_folder import (
    CONFIG,
    STATE,
    DamagedCheckpointError,
    ModelInfo,
    check_model,
    load_info,
    num_parameters,
)
from tfm.reporting import say
from tfm.storage.files import (
    finish_replacement,
    intact_directory,
    is_same_file,
    read_json,
    remove_path,
    write_json,
)
from tfm.storage.metrics_log import METRICS
from tfm.storage.paths import existing_folder, where_instead

DATA, DATA_FORMAT = "data.json", 1
RUNS, RUNS_FORMAT = "runs.json", 1  # in a dataset
SETTINGS = "config.toml"
NUM_STATES_KEPT = 2
_PREFIX, _NUM_DIGITS = "step-", 8  # at least
_NAME = re.compile(rf"{_PREFIX}[0-9]{{{_NUM_DIGITS},18}}")
_DAMAGED = "damaged-"


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, which may not have a checkpoint yet."""
    has_settings = (folder / DATA).is_file() and (folder / SETTINGS).is_file()
    return has_settings or (folder / METRICS).is_file() or bool(checkpoints(folder))


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Return the folder for the checkpoint of a step."""
    return run_dir / "checkpoints" / f"{_PREFIX}{step:0{_NUM_DIGITS}d}"


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint's folder."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def checkpoints(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    paths = (run_dir / "checkpoints").glob(f"{_PREFIX}*")
    found = (path for path in paths if _NAME.fullmatch(path.name) and path.is_dir())
    return sorted(found, key=step_of)


def newest_step(run_dir: Path) -> int | None:
    """Return the step of a run's newest checkpoint, damaged or not; None if there is none."""
    present = checkpoints(run_dir)
    return step_of(present[-1]) if present else None


def newest_intact_checkpoint(run_dir: Path) -> Path | None:
    """Return the checkpoint to resume from; None if the run has none yet.

    Damaged checkpoints are reported and renamed to "damaged-step-…"; they are never removed.

    Raises:
        CheckpointError: All checkpoints are damaged, or the newest intact one has no training
            state.
    """
    folder = run_dir / "checkpoints"
    _remove_leftovers(folder)
    present = checkpoints(run_dir)
    while present:
        path = present.pop()
        # Pruning removes the state of the oldest first: if an older one has it, this one lost it.
        needs_state = any((older / STATE).exists() for older in present)
        if not _is_intact(path, partial(check_model, needs_state=needs_state)):
            continue
        if not (path / STATE).exists():
            raise CheckpointError(
                f"cannot resume {run_dir}: its newest intact checkpoint, {path}, has no {STATE}; "
                "use it to translate or average, and start another run with --run"
            )
        return path
    if any(folder.glob(f"{_DAMAGED}*")):
        raise _only_damaged(run_dir)
    return None


def check_newest(run_dir: Path) -> None:
    """Raise CheckpointError if the newest checkpoint is damaged, or all were set aside.

    Of the weights, only the size is checked.
    """
    present = checkpoints(run_dir)
    if present:
        load_info(present[-1])
        num_parameters(present[-1])
    elif any((run_dir / "checkpoints").glob(f"{_DAMAGED}*")):
        raise _only_damaged(run_dir)


def check_new_run(run_dir: Path) -> None:
    """Raise UsageError if a folder without checkpoints has files that a new run would replace."""
    if (run_dir / DATA).exists() or (run_dir / SETTINGS).exists():  # it has started
        return
    for name in (METRICS, "report.html", "averaged"):
        if (run_dir / name).exists():
            raise UsageError(
                f"{run_dir / name} exists, but {run_dir} is no run: choose another folder with "
                "--run"
            )


def record_dataset(run_dir: Path, data_dir: Path) -> None:
    """Write the dataset of a run, as the user gave it, so that the run resumes on it."""
    write_json(run_dir / DATA, {"format": DATA_FORMAT, "data_dir": str(data_dir)})


def record_run(data_dir: Path, run_dir: Path, needed: str) -> None:
    """Write to a dataset, if that is possible, which content of it a run needs to be resumed."""
    runs = {**recorded_runs(data_dir), str(run_dir.absolute()): needed}
    record = {"format": RUNS_FORMAT, "data_dir": str(data_dir.absolute()), "runs": runs}
    with suppress(OSError, UsageError):
        write_json(data_dir / RUNS, record)


def recorded_runs(data_dir: Path) -> dict[str, str]:
    """Return the paths of the runs that a dataset records, and what they need.

    There are none if it is a copy of the dataset that did.
    """
    try:
        record = read_json(data_dir / RUNS)
    except (DataError, OSError):
        return {}
    original, runs = Path(str(record.get("data_dir"))), record.get("runs")
    is_copy = original.exists() and not is_same_file(original, data_dir)
    if is_copy or record.get("format") != RUNS_FORMAT or not isinstance(runs, dict):
        return {}
    return {run: str(needed) for run, needed in runs.items()}


def trained_on(run_dir: Path) -> Path | None:
    """Return the dataset of a run; None if it has not started.

    Raises:
        DataError: The run's record of its dataset is damaged.
    """
    path = run_dir / DATA
    if not path.exists():
        return None
    try:
        record = read_json(path)
    except DataError:
        record = {}
    data_dir = record.get("data_dir")
    if record.get("format") != DATA_FORMAT or not isinstance(data_dir, str):
        raise DataError(
            f"{path} is damaged, or not of format {DATA_FORMAT}, which this tfm reads: name the "
            f"dataset of the run, as in {tfm_command('train', 'DATA', '--run', run_dir)}"
        )
    return Path(data_dir)


def last_good_checkpoint(run_dir: Path, *, before: int) -> Path | None:
    """Return the newest intact checkpoint that was validated or is older than a step.

    None if there is none. A validation without a finite loss does not count.
    """
    for path in reversed(checkpoints(run_dir)):
        with suppress(DamagedCheckpointError):
            info = load_info(path)
            quality = info.quality("loss")
            if info.step < before or (quality is not None and math.isfinite(quality)):
                return path
    return None


def best_checkpoints(run_dir: Path, metric: str) -> list[Path]:
    """Return the validated checkpoints of a run, best first; of equals, the newer first.

    Raises:
        CheckpointError: One of them is damaged.
    """
    qualities = [(info.quality(metric), info.step, path) for path, info in _present(run_dir)]
    scored = [(quality, step, path) for quality, step, path in qualities if quality is not None]
    return [path for *_, path in sorted(scored, reverse=True)]


def scheduled_checkpoints(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first, without those written when it was stopped.

    Only the others are validated, unless the run has no validation split.

    Raises:
        CheckpointError: One of them is damaged.
    """
    present = _present(run_dir)
    return [path for path, info in present if info.metrics] or [path for path, _ in present]


def _present(run_dir: Path) -> list[tuple[Path, ModelInfo]]:
    """Return the checkpoints of a run that may still be training, with their descriptions."""
    present = []
    for path in checkpoints(run_dir):
        try:
            info = load_info(path)
        except CheckpointError:
            if path.exists():
                raise
            continue  # a running training has just removed it
        present.append((path, info))
    return present


def prune_checkpoints(run_dir: Path) -> None:
    """Remove all checkpoints but the newest and the best, by the run's settings.

    Only the two newest keep their training state, which is twice the size of the model. Only the
    process that writes to the run may call this.

    Raises:
        OSError: A file could not be removed; the next call tries again.
    """
    _remove_leftovers(run_dir / "checkpoints")
    present = [path for path in checkpoints(run_dir) if _is_intact(path, load_info)]
    if not present:
        return
    settings = load_info(present[-1]).run.training
    best = best_checkpoints(run_dir, settings.best_metric)[: settings.keep_best]
    kept = {*present[-settings.keep_last :], *best}
    for path in present:
        if path not in kept:
            outgoing = path.with_name(f".{path.name}.removed")
            os.replace(path, outgoing)  # atomic, unlike the removal of the files
            remove_path(outgoing)
        elif path not in present[-NUM_STATES_KEPT:]:
            (path / STATE).unlink(missing_ok=True)


def has_current_average(run_dir: Path) -> bool:
    """Return whether a run has an average that no checkpoint is newer than.

    Raises:
        CheckpointError: The average is damaged.
    """
    averaged = intact_directory(run_dir / "averaged")
    if not (averaged / CONFIG).is_file():
        return False
    return load_info(averaged).step >= (newest_step(run_dir) or 0)


def find_model(path: Path) -> Path:
    """Return the model folder at a path; for a run, its average, best or newest checkpoint.

    An average is passed over, with a warning, if the run has newer checkpoints. A message says why
    an older checkpoint than the newest is used.

    Raises:
        UsageError: The path does not exist, or is a file.
        CheckpointError: There is no model, or it is damaged.
    """
    existing_folder(path)
    folder, averaged = intact_directory(path), intact_directory(path / "averaged")
    if (folder / CONFIG).is_file():
        return folder
    if has_current_average(path):
        return averaged
    present = checkpoints(path)
    if not present:
        advice = where_instead(path, "run", "model") or "train one with tfm train"
        raise CheckpointError(
            f"{path} is not a run or model folder: {advice}",
            exit_code=UsageError.exit_code,
        )
    newest = present[-1]
    info = load_info(newest)
    metric = info.run.training.best_metric
    chosen, *_ = best_checkpoints(path, metric) or [newest]
    if (averaged / CONFIG).is_file():
        say(
            f"warning: {averaged} is older than the newest checkpoint: using {chosen} instead; "
            f"make a new average with {tfm_command('average', path)}"
        )
    if chosen != newest:
        reason = f"has a worse {metric}" if info.metrics else "was not validated"
        say(f"{path}: using {chosen.name}, the best by validation {metric}; {newest.name} {reason}")
    return chosen


def newest_run(runs_dir: Path) -> Path:
    """Return the run that was last written to.

    Raises:
        CheckpointError: No run has a checkpoint.
    """
    runs = {path.parent: checkpoints(path.parent) for path in runs_dir.glob("*/checkpoints")}
    newest = [(max(map(_changed, present)), run) for run, present in runs.items() if present]
    if not newest:
        raise CheckpointError(
            f"{runs_dir}/ holds no run with a checkpoint: start with tfm train",
            exit_code=UsageError.exit_code,
        )
    return max(newest)[1]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # a running training has just removed it
        return 0.0


def _is_intact(path: Path, check: Callable[[Path], object]) -> bool:
    """Return whether a check finds no damage; otherwise rename the checkpoint and report it."""
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


def _only_damaged(run_dir: Path) -> CheckpointError:
    return DamagedCheckpointError(
        f"{run_dir} has only damaged checkpoints: remove {run_dir / 'checkpoints'} to train from "
        "scratch, or start another run with --run"
    )


def _remove_leftovers(folder: Path) -> None:
    """Remove or finish the incomplete checkpoints of a killed run, on any machine."""
    for pattern in ("partial", "removed"):
        for leftover in folder.glob(f".{_PREFIX}*.{pattern}"):
            remove_path(leftover)
    for leftover in folder.glob(f".{_PREFIX}*.old"):
        finish_replacement(leftover.with_name(leftover.name[1:].removesuffix(".old")))
