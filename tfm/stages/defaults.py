"""What a stage uses where the user names nothing: the newest dataset or run, a preset, a folder."""

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from tfm.config import RunConfig, Table, adapting_table, read_toml, run_config, settings_to
from tfm.errors import DataError, UsageError, install_command, tfm_command
from tfm.storage.paths import DATA_ROOT, RUNS_ROOT, kind_of, where_instead


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
        UsageError: The run folder is inside of a run, holds runs, or is a dataset or model.
    """
    is_new = run is not None and kind_of(run) != "run"
    if run is not None and is_new and (advice := where_instead(run, "run")):
        raise UsageError(f"{run} is no run: {advice}, or choose a new folder with --run")
    if data is not None or run is None or not run.exists():
        return dataset(data)
    from tfm.folders.run_folder import trained_on

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
    from_model: Path | None = None,
) -> RunConfig:
    """Merge the user's settings over the file over the preset, and print a preset that was chosen.

    Without a preset and a file, an existing run keeps its settings, and a new one takes the preset
    that suits the dataset and the device, if the dataset is given. A run that starts from a model
    takes this model's settings, and defaults that suit adapting.

    Args:
        data: The dataset folder; None to only find mistakes in the other arguments.
        run: The run folder.
        arch: Name of the preset.
        config: TOML file of settings.
        overrides: The user's settings, {section: {name: value}}.
        from_model: Model or run folder that a new run starts from.

    Raises:
        UsageError: Names are unknown or values out of range; one message lists all of them. Or the
            settings are those of another model than `from_model`.
        DataError: The dataset is damaged or not binarized.
        CheckpointError: `from_model` is no model, or a damaged one.
    """
    own_config = None if run is None else run / "config.toml"
    if arch is None and config is None and own_config is not None and own_config.exists():
        recorded = read_toml(own_config)
        _check_same_start(run, recorded.get("from_model"), from_model)
        return run_config(None, recorded, overrides)
    table: Table = {} if config is None else read_toml(config)
    if from_model is None and isinstance(table.get("from_model"), str):
        from_model = Path(table["from_model"])
    if from_model is not None:
        return _adapting_settings(from_model, arch, table, overrides)
    if arch is None and config is None and data is not None:
        from tfm.reporting import say
        from tfm.training.data import arch_for_data

        training = overrides.get("training", {})
        arch, reason = arch_for_data(
            data, training.get("device", "auto"), training.get("precision", "auto")
        )
        say(f"train: --arch {arch}, for {reason} (choose another with --arch)")
    return run_config(arch, table, overrides)


def check_extras(settings: RunConfig) -> None:
    """Raise UsageError unless the optional packages that a run needs are installed."""
    if settings.training.tensorboard and find_spec("tensorboardX") is None:
        raise UsageError(
            "--tensorboard needs tensorboardX, which is not installed: run "
            f"{install_command('tensorboard')}, or leave it out"
        )


def _adapting_settings(
    from_model: Path, arch: str | None, table: Table, overrides: Mapping[str, Table]
) -> RunConfig:
    """Return the settings of a run that starts from a model, which must be those of the model."""
    from tfm.folders.model_folder import ModelFolder

    opened = ModelFolder.open(from_model)
    folder, start = opened.path, opened.info.run
    given_arch = table.get("arch", start.arch) if arch in (None, start.arch) else arch
    if given_arch != start.arch:
        raise UsageError(
            f"{folder} has arch {start.arch}, not {given_arch}: leave arch {given_arch} out"
        )
    defaults = adapting_table(start)
    # The number of epochs is only a default, which no other limit has to fit.
    if any("max_steps" in given.get("training", {}) for given in (table, overrides)):
        del defaults["training"]["max_epochs"]
    run = run_config(None, defaults, table, overrides)
    before, after = settings_to(start.model), settings_to(run.model)
    changes = [
        f"{name} {before.get(name, 'unset')}, not {value}"
        for name, value in after.items()
        if value != before.get(name) and not name.endswith("dropout")
    ]
    if changes:
        raise UsageError(
            f"{folder} has {'; '.join(changes)}: only dropout may differ from the model that "
            "training starts from"
        )
    return replace(run, from_model=str(folder))


def _check_same_start(run: Path | None, recorded: object, given: Path | None) -> None:
    """Raise UsageError if a run that exists was started from another model than the given one."""
    if given is None:
        return
    if recorded is None:
        raise UsageError(
            f"{run} was started from scratch, not from {given}: choose another folder with --run"
        )
    # A run folder stands for the model in it that was chosen when the run was started.
    start = Path(os.path.realpath(str(recorded)))
    if Path(os.path.realpath(given)) not in (start, *start.parents[:2]):
        raise UsageError(
            f"{run} was started from {recorded}, not from {given}: leave out --from, or choose "
            "another folder with --run"
        )


def run_folder(run: Path | None, data: Path, settings: RunConfig) -> Path:
    """Return the given run folder, or the one that belongs to a dataset and a preset."""
    suffix = "" if settings.from_model is None else "-adapted"
    name = Path(os.path.abspath(data)).name  # "." has none  # noqa: PTH100
    return run or RUNS_ROOT / f"{name}-{settings.arch}{suffix}"
