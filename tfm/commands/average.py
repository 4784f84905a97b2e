"""tfm average: checkpoints of a run → one model with their mean weights."""

from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import ExistingFolder, Flag, NewFolder, command
from tfm.config import AverageConfig, settings_from
from tfm.disk.paths import RUNS_ROOT

if TYPE_CHECKING:
    from tfm.stages.average import AverageResult


@command(AverageConfig)
def average(
    run: Annotated[ExistingFolder, Flag("RUN")] = None, *, out: NewFolder = None, **settings: Any
) -> "AverageResult":
    """Average the last checkpoints of a run, as the paper does.

    Example: tfm average runs/wmt14-en-de-base --last 5

    Args:
        run: Run folder (default: the newest in runs/).
        out: Folder of the averaged model (default: RUN/averaged).
        **settings: Settings of [average].

    Raises:
        UsageError: Arguments are wrong, there are fewer checkpoints than requested, or `out` holds
            something else than an average.
        CheckpointError: The run has no checkpoints, or a damaged one; or training has diverged.
        DataError: The validation text is gone, or too short to calibrate on.
    """
    config = settings_from(AverageConfig, settings["average"])
    from tfm.folders.run_folder import newest_run
    from tfm.stages.average import average as run_stage

    return run_stage(run or newest_run(RUNS_ROOT), config, out_dir=out)
