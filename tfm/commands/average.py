"""tfm average: checkpoints of a run → one model with their mean weights."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import ExistingFolder, Flag, NewFolder, command
from tfm.config import AverageConfig, settings_from
from tfm.disk.paths import RUNS_ROOT

if TYPE_CHECKING:
    from tfm.training.averaging import AverageResult


@command(AverageConfig)
def average(
    run: Annotated[ExistingFolder, Flag("RUN")] = None, *, out: NewFolder = None, **settings: Any
) -> "AverageResult":
    """Average the newest checkpoints of a run, as the paper does with its last 5 or 20.

    Example: tfm average runs/wmt14-en-de-base --last 5

    Args:
        run: Run folder (default: the newest in runs/).
        out: Folder of the averaged model (default: RUN/averaged).
        **settings: Settings of [average].

    Raises:
        UsageError: Arguments are wrong, there are fewer checkpoints than requested, or `out` holds
            something other than an average.
        CheckpointError: The run has no checkpoints, or a damaged one; or training has diverged.
        DataError: The validation text is gone, or too short to calibrate on.
    """
    config = settings_from(AverageConfig, settings["average"])
    from tfm.features.confidence.calibration import calibrate, validation_text
    from tfm.folders.model_folder import ModelFolder, open_checkpoints
    from tfm.folders.run_folder import newest_run
    from tfm.training.averaging import average_checkpoints

    run = run or newest_run(RUNS_ROOT)
    newest = open_checkpoints(run)[-1:] if config.calibrate else []
    text = validation_text(newest[0], run) if newest else None
    result = average_checkpoints(run, config, out_dir=out)
    if text is not None:
        calibration = calibrate(ModelFolder(result.model_dir), text)
        result = replace(result, calibrated_on=calibration.num_lines)
    return result
