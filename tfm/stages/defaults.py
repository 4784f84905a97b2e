"""What a stage uses where the user names nothing: the newest dataset or run, a preset, a folder."""

from collections.abc import Mapping
from pathlib import Path

from tfm.config import RunConfig, Table, read_toml, run_config
from tfm.errors import DataError, tfm_command

DATA_ROOT = Path("data")
RUNS_ROOT = Path("runs")


def dataset(path: Path | None) -> Path:
    """Return the given dataset folder, or find the newest one and print its path.

    Raises:
        DataError: There is no dataset.
    """
    if path is not None:
        return path
    from tfm.data.manifest import newest_dataset
    from tfm.reporting import say

    folder = newest_dataset(DATA_ROOT)
    say(f"dataset: {folder}")
    return folder


def dataset_to_train_on(data: Path | None, run: Path | None) -> Path:
    """Return the given dataset folder, or that of an existing run, or the newest one.

    Raises:
        DataError: There is no dataset, or that of the run is gone.
    """
    if data is not None or run is None or not run.exists():
        return dataset(data)
    from tfm.storage.checkpoint.run_folder import trained_on

    folder = trained_on(run)
    if folder is not None and not folder.exists():
        raise DataError(
            f"{run} was trained on {folder}, which does not exist here: name the folder of this "
            f"dataset, as in {tfm_command('train', 'DATA', '--run', run)}"
        )
    return dataset(folder)


def run_settings(
    data: Path | None,
    *,
    run: Path | None,
    arch: str | None,
    config: Path | None,
    overrides: Mapping[str, Table],
) -> RunConfig:
    """Merge the user's settings over the file over the preset, and print a preset that was chosen.

    Without a preset and a file, an existing run keeps its settings, and a new one takes the preset
    that suits the dataset and the device, if the dataset is given.

    Args:
        data: The dataset folder; None to only find mistakes in the other arguments.
        run: The run folder.
        arch: Name of the preset.
        config: TOML file of settings.
        overrides: The user's settings, {section: {name: value}}.

    Raises:
        UsageError: Names are unknown or values out of range; one message lists all of them.
        DataError: The dataset is damaged or not binarized.
    """
    if arch is None and config is None and run is not None and (run / "config.toml").exists():
        config = run / "config.toml"
    if arch is None and config is None and data is not None:
        from tfm.reporting import say
        from tfm.training.data import arch_for_data

        training = overrides.get("training", {})
        arch, reason = arch_for_data(
            data, training.get("device", "auto"), training.get("precision", "auto")
        )
        say(f"train: --arch {arch}, for {reason} (choose another with --arch)")
    return run_config(arch, {} if config is None else read_toml(config), overrides)


def run_folder(run: Path | None, data: Path, settings: RunConfig) -> Path:
    """Return the given run folder, or the one that belongs to a dataset and a preset."""
    return run or RUNS_ROOT / f"{data.name}-{settings.arch}"
