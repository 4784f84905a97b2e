"""Averaging: checkpoints of a run → one model with their mean weights (§6.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tfm.config import AverageConfig
from tfm.disk.paths import where_instead
from tfm.errors import CheckpointError, UsageError
from tfm.folders.model_folder import ModelFolder, best_first, open_checkpoints
from tfm.folders.model_info import is_model
from tfm.folders.saving import save_checkpoint
from tfm.reporting import Result

# By default, only checkpoints after this fraction of the newest one's steps are averaged: while a
# model improves fast, older ones make the average worse than the newest checkpoint alone.
_RECENT = 0.8


@dataclass(frozen=True, kw_only=True)
class AverageResult(Result):
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

    def summary(self) -> list[str]:
        """Return a line that names the model and its checkpoints."""
        return [f"average: {self}"]

    def __str__(self) -> str:
        plural = "s" if len(self.steps) > 1 else ""
        steps = ", ".join(f"{step:,}" for step in self.steps)
        line = f"{self.model_dir} is the mean of step{plural} {steps}"
        if self.calibrated_on is not None:
            line += f", calibrated on {self.calibrated_on:,} lines"
        if self.left_out is not None:
            line += f"; step {self.left_out:,} is left out: saved at a stop, not validated"
        return line


def average_checkpoints(
    run_dir: Path, config: AverageConfig, *, out_dir: Path | None = None
) -> AverageResult:
    """Average the newest or the best checkpoints of a run, which may still be training.

    The model is written to `out_dir`, by default "averaged" in the run folder. In place of an older
    average, it keeps the files that others put there.
    """
    is_chosen, out_dir = out_dir is not None, out_dir or run_dir / "averaged"
    # In its usual place, a damaged average is replaced as well.
    if out_dir.exists() and not _is_average(out_dir, or_damaged=not is_chosen):
        raise UsageError(f"{out_dir} exists and is no average: choose another folder with --out")
    present = open_checkpoints(run_dir)
    if not present:
        advice = where_instead(run_dir, "run") or "train with tfm train"
        raise CheckpointError(
            f"{run_dir} is no run with checkpoints: {advice}", exit_code=UsageError.exit_code
        )
    newest = present[-1]
    training = newest.info.run.training
    if config.best is not None:
        number, ranked = config.best, best_first(present, training.best_metric)
    else:
        # With validation text, a checkpoint has no metrics only if it was saved at a stop.
        ranked = ([each for each in present if each.info.metrics] or present)[::-1]
        recent = [each for each in ranked if each.info.step >= _RECENT * ranked[0].info.step]
        # Only a number that the user gave must be available.
        number = config.last or min(training.average_last, len(recent))
    if number > len(ranked):
        flag = "--last" if config.best is None else "--best"
        raise UsageError(
            f"{flag} {number} is more than the checkpoints in {run_dir}: {len(ranked)}"
        )
    chosen = sorted(ranked[:number], key=lambda each: each.info.step)
    weights = average_weights(chosen)
    if not all(weight.isfinite().all() for weight in weights.values()):
        names = ", ".join(map(str, chosen))
        raise CheckpointError(
            f"the mean of {names} is not finite: training diverged; remove the bad checkpoints, or "
            "train in another --run"
        )
    last, steps = chosen[-1], [each.info.step for each in chosen]
    # The step says how far the run was, so that an outdated average can be recognized.
    info = replace(last.info, step=newest.info.step, metrics={}, averaged=tuple(steps))
    save_checkpoint(out_dir, info, weights, subword_files=last.vocabulary.files())
    is_left_out = config.best is None and newest not in ranked
    return AverageResult(
        model_dir=out_dir, steps=steps, left_out=newest.info.step if is_left_out else None
    )


def _is_average(folder: Path, *, or_damaged: bool) -> bool:
    try:
        return bool(ModelFolder(folder).info.averaged)
    except CheckpointError:
        return or_damaged and is_model(folder)


def average_weights(folders: Sequence[ModelFolder]) -> dict[str, Tensor]:
    """Return the mean of several checkpoints' parameters (Vaswani et al. 2017, §6.1), by name.

    Each tensor, of any shape, is summed in float64 and returned in float32.
    """
    # The weights of a checkpoint that a running training removes can still be read.
    weights = [each.weights() for each in folders]
    first, *shapes = [{name: each.shape for name, each in w.items()} for w in weights]
    if any(each != first for each in shapes):
        raise CheckpointError(
            f"cannot average {', '.join(map(str, folders))}: they are not checkpoints of one "
            "model; choose others"
        )
    return {
        name: torch.as_tensor(sum(w[name].double() for w in weights) / len(weights)).float()
        for name in first
    }
