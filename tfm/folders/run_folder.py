"""Run folders: the paths of their checkpoints, and their other records."""

import re
from dataclasses import dataclass
from pathlib import Path

from tfm.disk.files import read_record, write_record
from tfm.errors import CheckpointError, UsageError, tfm_command

DATA, DATA_FORMAT = "data.json", 1
SETTINGS, METRICS = "config.toml", "metrics.jsonl"
PREFIX, _NUM_DIGITS = "step-", 8  # at least
_NAME = re.compile(rf"{PREFIX}[0-9]{{{_NUM_DIGITS},18}}")
DAMAGED = "damaged-"  # before the name of a checkpoint that was set aside


@dataclass(frozen=True)
class _TrainedOn:
    """The record of the dataset of a run, as the user named it."""

    data_dir: str


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run folder, which may not have a checkpoint yet."""
    has_settings = (folder / DATA).is_file() and (folder / SETTINGS).is_file()
    return has_settings or (folder / METRICS).is_file() or bool(checkpoints(folder))


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Return the folder for the checkpoint of a step."""
    return run_dir / "checkpoints" / f"{PREFIX}{step:0{_NUM_DIGITS}d}"


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint's folder."""
    return int(checkpoint.name.removeprefix(PREFIX))


def checkpoints(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    paths = (run_dir / "checkpoints").glob(f"{PREFIX}*")
    found = (path for path in paths if _NAME.fullmatch(path.name) and path.is_dir())
    return sorted(found, key=step_of)


def newest_step(run_dir: Path) -> int | None:
    """Return the step of a run's newest checkpoint, damaged or not; None if there is none."""
    present = checkpoints(run_dir)
    return step_of(present[-1]) if present else None


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
    write_record(run_dir / DATA, _TrainedOn(str(data_dir)), format_=DATA_FORMAT)


def trained_on(run_dir: Path) -> Path | None:
    """Return the dataset of a run; None if it has not started."""
    path = run_dir / DATA
    if not path.exists():
        return None
    command = tfm_command("train", "DATA", "--run", run_dir)
    advice = f"name the dataset of the run, as in {command}"
    return Path(read_record(path, _TrainedOn, format_=DATA_FORMAT, advice=advice).data_dir)


def newest_run(runs_dir: Path) -> Path:
    """Return the run that was last written to."""
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
