"""tfm average: checkpoints of a run → one model, the mean of their weights (§6.1)."""

from dataclasses import dataclass, replace
from pathlib import Path

from tfm.config import AverageConfig
from tfm.data.subword import Vocabulary
from tfm.errors import CheckpointError, UsageError
from tfm.storage.checkpoint.model_folder import average_weights, load_info, save_checkpoint
from tfm.storage.checkpoint.run_folder import best_checkpoints, checkpoints


@dataclass(frozen=True, kw_only=True)
class AverageResult:
    """The averaged model and the steps of the checkpoints in it."""

    model_dir: Path
    steps: list[int]


def average(run_dir: Path, config: AverageConfig, *, out_dir: Path | None = None) -> AverageResult:
    """Average the newest or the best checkpoints of a run, which may be training on.

    Args:
        run_dir: The run.
        config: Which checkpoints.
        out_dir: Where to write the model; the run's "averaged" if not given.

    Raises:
        CheckpointError: The run has no checkpoint, or damaged ones.
        UsageError: It has fewer than asked for, or the place of the model is taken.
    """
    out_dir = out_dir or run_dir / "averaged"
    if out_dir.exists() and not (out_dir / "config.json").is_file():
        raise UsageError(f"{out_dir} is there and holds no model: choose another folder with --out")
    present = checkpoints(run_dir)
    if not present:
        raise CheckpointError(f'{run_dir} has no checkpoints: train with "tfm train"')
    training = load_info(present[-1]).run.training
    if config.best is not None:
        wanted, ranked = config.best, best_checkpoints(run_dir, training.best_metric)
    else:
        # As many as there are, unless the user counts on a number.
        wanted, ranked = config.last or min(training.average_last, len(present)), present[::-1]
    if wanted > len(ranked):
        raise UsageError(f"{run_dir} has {len(ranked)} such checkpoints, not {wanted}")
    chosen = sorted(ranked[:wanted])
    infos = [load_info(path) for path in chosen]
    steps = [info.step for info in infos]
    subword_files = Vocabulary.load(chosen[-1]).files()
    save_checkpoint(
        out_dir,
        replace(infos[-1], metrics={}, averaged=tuple(steps)),
        average_weights(chosen),
        subword_files=subword_files,
    )
    return AverageResult(model_dir=out_dir, steps=steps)
