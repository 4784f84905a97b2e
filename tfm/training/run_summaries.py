"""Summaries of run folders: their states, and a page with their curves."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from tfm.config import TrainingConfig, read_toml
from tfm.config.schema import settings_and_problems
from tfm.disk.files import find_folders
from tfm.disk.lock import is_locked
from tfm.errors import TfmError, UsageError, explain_os_error
from tfm.folders.model_folder import check_newest
from tfm.folders.model_info import MAX_NOISE, DamagedCheckpointError
from tfm.folders.run_folder import METRICS, SETTINGS, is_run, newest_step, trained_on
from tfm.metrics.seeds import group_by_seed
from tfm.reporting import format_duration
from tfm.table import Table
from tfm.training.metrics_log import EndState, Metrics, Record, read_metrics

State = Literal["running", "damaged"] | EndState

_STALL_MINUTES = TrainingConfig().stall_minutes  # of a run without settings
_MAX_GAPS = 3  # lines that a run on another machine may miss
_MAX_DRAWN = 16
# The metrics that rank runs; the first metric that a run has counts, unless its value is noise.
_BEST: Mapping[str, Any] = {"bleu": max, "f1": max, "loss": min}
_BEST_NAMES = {"bleu": ("BLEU", 1), "f1": ("F1", 1), "loss": ("loss", 3)}


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The state of a run.

    Attributes:
        run: The run folder.
        state: "running": a process holds its lock, or on another machine, has written metrics
            lately. "damaged": its newest checkpoint cannot be read. Otherwise, how it ended;
            "stopped" if it was killed.
        limit: The flag of the limit that a finished run has reached; None if unknown.
        step: The newest step that is logged or saved.
        max_steps: The step at which it ends at the latest; None if unknown.
        metric: "bleu", "f1" or "loss", of validation; None without validation.
        best: The best value of the metric.
        best_step: The step of the best value.
        tokens_per_second: Target tokens per second in the newest line of training.
        updated: When its metrics were last written, in ISO 8601.
        age_seconds: The time since then.
        problem: What is damaged; None if nothing is.
    """

    run: str
    state: State
    limit: str | None
    step: int
    max_steps: int | None
    metric: str | None
    best: float | None
    best_step: int | None
    tokens_per_second: float | None
    updated: str
    age_seconds: float
    problem: str | None = None

    def cells(self) -> dict[str, str]:
        """Return the columns of a table of runs."""
        best = ""
        if self.best is not None:
            name, decimals = _BEST_NAMES[str(self.metric)]
            best = f"{name} {self.best:.{decimals}f} at {self.best_step:,}"
        speed = self.tokens_per_second
        is_early = self.step < (self.max_steps or 0)
        return {
            "run": self.run,
            "state": f"{self.state} by {self.limit}" if self.limit and is_early else self.state,
            "step": f"{self.step:,}" + (f" of {self.max_steps:,}" if self.max_steps else ""),
            "best validation": best,
            "tokens/s": "" if speed is None else f"{speed:,.0f}",
            "age": format_duration(self.age_seconds),
        }


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """Runs that differ only by their seeds.

    Attributes:
        name: The names of the runs, joined, such as "runs/base-{1,2,3}".
        runs: The run folders.
        metric: The metric of their best validations; None if it is not the same for all.
        mean: The mean of the best values.
        deviation: Their standard deviation.
    """

    name: str
    runs: Sequence[str]
    metric: str | None
    mean: float | None
    deviation: float | None

    def cells(self) -> dict[str, str]:
        """Return the columns of a table of runs."""
        best = ""
        if self.metric is not None:
            name, decimals = _BEST_NAMES[self.metric]
            best = f"{name} {self.mean:.{decimals}f} ± {self.deviation:.{decimals}f}"
        return {
            "run": self.name,
            "state": f"{len(self.runs)} seeds",
            "step": "",
            "best validation": best,
            "tokens/s": "",
            "age": "",
        }


def seed_groups(runs: Sequence[RunSummary]) -> list[SeedGroup]:
    """Return the groups of two runs or more that differ only by their seeds."""
    by_name = {run.run: run for run in runs}
    settings = {name: _all_settings(Path(name)) for name in by_name}
    seeds = {name: each.pop("training.seed", None) for name, each in settings.items()}
    known = {
        name: (repr(settings[name]), seed) if isinstance(seed, int) else None
        for name, seed in seeds.items()
    }
    groups = group_by_seed(known)
    return [_group(name, [by_name[each] for each in of]) for name, of in groups.items() if of[1:]]


def _group(name: str, runs: Sequence[RunSummary]) -> SeedGroup:
    """Return the group of some runs, with figures if the same metric ranks all of them."""
    metrics = {run.metric for run in runs}
    bests = [run.best for run in runs if run.best is not None and len(metrics) == 1]
    return SeedGroup(
        name=name,
        runs=[run.run for run in runs],
        metric=metrics.pop() if bests else None,
        mean=fmean(bests) if bests else None,
        deviation=stdev(bests) if bests else None,
    )


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Return the run folders at and below some folders, each once."""
    return list(dict.fromkeys(run for folder in folders for run in find_folders(folder, is_run)))


def summarize_run(run_dir: Path) -> RunSummary:
    """Read the state of a run, whatever its process is doing."""
    metrics = Metrics([], [], [])
    max_steps: int | None = None
    stall_minutes: float = _STALL_MINUTES
    problem: TfmError | None = None
    try:
        metrics = read_metrics(run_dir, max_training=1)
        max_steps, stall_minutes = _max_steps_and_stall_minutes(run_dir)
        if max_steps is None:  # the lines of training know how many steps the epochs are
            max_steps = next((each.get("last_step") for each in metrics.training[-1:]), None)
        trained_on(run_dir)
        check_newest(run_dir)
    except TfmError as error:
        problem = error
    except OSError as error:
        problem = TfmError(f"{error.filename}: {explain_os_error(error)}")
    newest = [*metrics.training[-1:], *metrics.validation[-1:]]
    step = max([each["step"] for each in newest] + [newest_step(run_dir) or 0])
    updated = _updated(run_dir)
    age = max(0.0, time.time() - updated)
    if _is_running(run_dir, metrics, age, 60 * stall_minutes):
        state: State = "running"
    elif isinstance(problem, UsageError | DamagedCheckpointError):
        state = "damaged"
    else:
        is_done = max_steps is not None and step >= max_steps
        # A run that was killed does not say how it ended.
        state = metrics.end or ("finished" if is_done else "stopped")
    metric, best, best_step = _best(metrics.validation)
    return RunSummary(
        run=str(run_dir),
        state=state,
        limit=metrics.limit if state == "finished" else None,
        step=step,
        max_steps=max_steps,
        metric=metric,
        best=best,
        best_step=best_step,
        tokens_per_second=next(
            (each.get("target_tokens_per_second") for each in metrics.training[-1:]), None
        ),
        updated=datetime.fromtimestamp(updated).astimezone().isoformat(timespec="seconds"),
        age_seconds=round(age, 1),
        problem=None if problem is None else str(problem),
    )


def draw_runs(runs: Sequence[RunSummary], out: Path) -> None:
    """Draw the curves of some runs into one page; those of a group of seeds have one color."""
    if not 1 <= len(runs) <= _MAX_DRAWN:
        raise UsageError(
            f"a page shows the curves of 1 to {_MAX_DRAWN} runs, not of {len(runs)}: name others"
        )
    from tfm.training.report import write_comparison  # matplotlib would delay the list

    rows = [run.cells() | {"updated": run.updated[:16].replace("T", " ")} for run in runs]
    for number, row in enumerate(rows, start=1):
        row["run"] = f"{number} {row['run']}"
    groups = seed_groups(runs)
    rows += [group.cells() | {"updated": ""} for group in groups]
    for row in rows:
        del row["age"]
    settings = {Path(run.run): _all_settings(Path(run.run)) for run in runs}
    first = {run: group.runs[0] for group in groups for run in group.runs}
    groups_of_runs = [first.get(run.run, run.run) for run in runs]
    colors = [*map([*dict.fromkeys(groups_of_runs)].index, groups_of_runs)]
    write_comparison(out, settings, Table.of(rows, is_numeric=True), colors)


def _max_steps_and_stall_minutes(run_dir: Path) -> tuple[int | None, float]:
    """Return two settings of a run, whose other settings may be from another version of tfm."""
    path = run_dir / SETTINGS
    table = read_toml(path).get("training", {}) if path.is_file() else {}
    if not isinstance(table, Mapping):
        raise UsageError(f"{path}: training is {table!r:.40}, but must be a table")
    given = {name: table[name] for name in ("max_steps", "stall_minutes") if name in table}
    settings, problems = settings_and_problems(TrainingConfig, given)
    if problems:
        raise UsageError(f"{path}: {problems[0]}")
    has_steps = "max_steps" in given and "max_epochs" not in table
    return (settings.max_steps if has_steps else None), settings.stall_minutes


def _all_settings(run_dir: Path) -> dict[str, object]:
    """Return the settings of a run by section and name, and its dataset; {} if it is damaged."""
    path = run_dir / SETTINGS
    try:
        sections = read_toml(path) if path.is_file() else {}
        settings: dict[str, object] = {"dataset": trained_on(run_dir)}
    except (TfmError, OSError):  # its summary has the reason
        return {}
    for name, values in sections.items():
        if isinstance(values, Mapping):
            settings |= {f"{name}.{key}": value for key, value in values.items()}
        else:
            settings[name] = values
    return settings


def _updated(run_dir: Path) -> float:
    """Return the time at which a run was last written to, in seconds since 1970."""
    paths = (run_dir / METRICS, run_dir / SETTINGS, run_dir)
    return next(path for path in paths if path.exists()).stat().st_mtime


def _is_running(run_dir: Path, metrics: Metrics, age: float, stall_seconds: float) -> bool:
    """Return whether a run's process is alive, as far as this machine can know.

    A process on another machine counts as alive while the age of the newest line is at most the
    run's `stall_minutes`, or three times the interval between its last two lines.
    """
    is_held = is_locked(run_dir)
    if is_held is not None:
        return is_held
    minutes = [record.get("minutes") or 0.0 for record in metrics.training[-2:]]
    gap_seconds = 60 * (minutes[-1] - minutes[0]) if minutes else 0.0
    return age <= max(stall_seconds, _MAX_GAPS * gap_seconds)


def _best(validation: Sequence[Record]) -> tuple[str | None, float | None, int | None]:
    """Return the metric that ranks runs, its best value, and the step of the value."""
    for metric, best in _BEST.items():
        points = [
            (each[metric], each["step"]) for each in validation if each.get(metric) is not None
        ]
        value, step = best(points, key=lambda point: point[0], default=(None, None))
        if value is not None and (metric == "loss" or value > MAX_NOISE):
            return metric, value, step
    return None, None, None
