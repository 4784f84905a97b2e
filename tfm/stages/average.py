"""tfm average: checkpoints of a run → one model with their mean weights (§6.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfm.config import AverageConfig, InferenceConfig, SearchConfig
from tfm.data.shortlist import shortlist_files
from tfm.data.subword import Vocabulary
from tfm.data.text import read_pairs
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.folders.calibration import MIN_LINES, Calibration
from tfm.folders.model_folder import ModelInfo, is_model, load_info
from tfm.folders.model_tensors import average_weights, save_checkpoint
from tfm.folders.run_folder import (
    best_checkpoints,
    checkpoints,
    scheduled_checkpoints,
    step_of,
)
from tfm.inference.calibration import calibrate
from tfm.inference.engine import load_engine, load_vocabulary
from tfm.stages.generate_plan import split_paths
from tfm.storage.paths import where_instead

# By default, only checkpoints after this fraction of the newest one's steps are averaged: while a
# model improves fast, older ones make the average worse than the newest checkpoint alone.
_RECENT = 0.8


@dataclass(frozen=True, kw_only=True)
class AverageResult:
    """The averaged model and the steps of its checkpoints.

    Attributes:
        model_dir: The folder of the averaged model.
        steps: Steps of the checkpoints that it averages.
        left_out: Step of a newer checkpoint, saved when the run was stopped; None if there is none.
        calibrated_on: Number of lines that its confidence was calibrated on; None without.
    """

    model_dir: Path
    steps: list[int]
    left_out: int | None = None
    calibrated_on: int | None = None

    @property
    def summary(self) -> str:
        """A line that names the model and its checkpoints."""
        plural = "s" if len(self.steps) > 1 else ""
        steps = ", ".join(f"{step:,}" for step in self.steps)
        summary = f"{self.model_dir} is the mean of step{plural} {steps}"
        if self.calibrated_on is not None:
            summary += f", calibrated on {self.calibrated_on:,} lines"
        if self.left_out is None:
            return summary
        return f"{summary}; step {self.left_out:,} is left out: saved at a stop, not validated"


def average(run_dir: Path, config: AverageConfig, *, out_dir: Path | None = None) -> AverageResult:
    """Average the newest or the best checkpoints of a run, which may still be training.

    The model is written to `out_dir`, by default "averaged" in the run folder. In place of an older
    average, it keeps the files that others put there, such as a shortlist. Calibrating it takes
    as long as translating the validation text; until then, the folder has the model without.

    Raises:
        CheckpointError: The run has no checkpoints, or a damaged one; or training has diverged.
        UsageError: There are fewer checkpoints than requested, or `out_dir` holds something else
            than an average.
        DataError: The validation text is gone, or too short to calibrate on.
    """
    is_chosen, out_dir = out_dir is not None, out_dir or run_dir / "averaged"
    # In its usual place, a damaged average is replaced as well.
    if out_dir.exists() and not _is_average(out_dir, or_damaged=not is_chosen):
        raise UsageError(f"{out_dir} exists and is no average: choose another folder with --out")
    present = checkpoints(run_dir)
    if not present:
        advice = where_instead(run_dir, "run") or "train with tfm train"
        raise CheckpointError(
            f"{run_dir} has no checkpoints: {advice}", exit_code=UsageError.exit_code
        )
    newest = load_info(present[-1])
    training, newest_step = newest.run.training, newest.step
    validation_text = _validation_text(newest, run_dir) if config.calibrate else None
    if config.best is not None:
        number, ranked = config.best, best_checkpoints(run_dir, training.best_metric)
    else:
        ranked = scheduled_checkpoints(run_dir)[::-1]
        recent = [path for path in ranked if step_of(path) >= _RECENT * step_of(ranked[0])]
        # Only a number that the user gave must be available.
        number = config.last or min(training.average_last, len(recent))
    if number > len(ranked):
        flag = "--last" if config.best is None else "--best"
        raise UsageError(
            f"{flag} {number} is more than the checkpoints in {run_dir}: {len(ranked)}"
        )
    chosen = sorted(ranked[:number], key=step_of)
    infos = [load_info(path) for path in chosen]
    steps = [info.step for info in infos]
    weights = average_weights(chosen)
    if not all(weight.isfinite().all() for weight in weights.values()):
        raise CheckpointError(
            f"the mean of {', '.join(map(str, chosen))} is not finite: training diverged; remove "
            "the bad checkpoints, or train in another --run"
        )
    # The step says how far the run was, so that an outdated average can be recognized.
    info = replace(infos[-1], step=newest_step, metrics={}, averaged=tuple(steps))
    vocabulary = Vocabulary.load(chosen[-1])
    files = vocabulary.files() | shortlist_files(chosen[-1], vocabulary)
    save_checkpoint(out_dir, info, weights, subword_files=files)
    if validation_text is not None:
        info = replace(info, calibration=_calibration(out_dir, info, *validation_text))
        save_checkpoint(out_dir, info, weights, subword_files=files)
    left_out = newest_step if config.best is None and present[-1] not in ranked else None
    return AverageResult(
        model_dir=out_dir,
        steps=steps,
        left_out=left_out,
        calibrated_on=None if info.calibration is None else info.calibration.num_lines,
    )


def _is_average(folder: Path, *, or_damaged: bool) -> bool:
    try:
        return bool(load_info(folder).averaged)
    except CheckpointError:
        return or_damaged and is_model(folder)


def _validation_text(info: ModelInfo, run_dir: Path) -> tuple[list[str], list[str]]:
    """Return the source and target lines of the validation split, without empty ones."""
    if info.task == "parsing":
        raise UsageError(
            f"{run_dir} trains a parser, but confidence is the expected chrF of translations: "
            "leave --calibrate out"
        )
    source, target = split_paths(info, "valid", run_dir)
    pairs = [
        (line.decode(), reference.decode())
        for line, reference in read_pairs(source, target, strict=True)
        if line.strip() and reference.strip()
    ]
    if len(pairs) < MIN_LINES:
        raise DataError(
            f"{source} has {len(pairs)} lines, but calibrating takes at least {MIN_LINES}: leave "
            "--calibrate out, or prepare more validation text"
        )
    return [line for line, _ in pairs], [reference for _, reference in pairs]


def _calibration(
    model_dir: Path, info: ModelInfo, lines: Sequence[str], references: Sequence[str]
) -> Calibration:
    """Return the calibration of a model with its own search settings."""
    config = SearchConfig.for_model(info.search, {})
    engine = load_engine([model_dir], InferenceConfig())
    return calibrate(engine, load_vocabulary(model_dir, info), lines, references, config)
