"""tfm train: a binarized dataset → a run folder with checkpoints, metrics and a report."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import (
    Dataset,
    ExistingFile,
    ExistingFolder,
    Flag,
    NewFolder,
    command,
    declaration_of,
)
from tfm.config import (
    RUN_SETTINGS,
    RunConfig,
    Values,
    adapting_table,
    presets,
    read_toml,
    run_config,
    run_toml,
    sets_steps,
    settings_missing_in,
    settings_to,
)
from tfm.config.imported import imported
from tfm.disk.paths import RUNS_ROOT, OutputPath, check_outputs, kind_of, where_instead
from tfm.errors import DataError, UsageError, install_command, tfm_command
from tfm.machine.interruption import StopRequests, cause_of_restart
from tfm.machine.world import World, current_world, set_slurm_master
from tfm.reporting import Result, say

if TYPE_CHECKING:
    from functools import partial

    from tfm.machine.processes import Placement
    from tfm.training.run import TrainResult

_PROCESSES = Flag(panel="Processes")
_HIDDEN = Flag(hidden=True, panel="Processes")


@command(*RUN_SETTINGS, elsewhere={"gpus": "tfm train --gpus on the command line"})
def train(
    data: Dataset = None,
    *,
    run: NewFolder = None,
    arch: Annotated[str | None, Flag(choices=presets)] = None,
    from_model: Annotated[ExistingFolder, Flag("MODEL", "--from")] = None,
    config: ExistingFile = None,
    **settings: Any,
) -> "TrainResult":
    """Train a model, or resume from the last checkpoint of the run folder.

    Without --config and --arch, an existing --run resumes with its own settings and dataset, and a
    new run takes the preset that suits the number of pairs and the device. The defaults
    shown here are those of --arch base; other presets and --from have others.

    Examples::

        tfm train --arch tiny
        tfm train --run runs/wmt14-en-de-base --max-steps 200000
        tfm train data/wmt14-en-de --arch big --gpus 8
        tfm train data/legal --from runs/wmt14-en-de-base
        srun tfm train data/wmt14-en-de --arch big

    Args:
        data: Dataset folder (default: the newest in data/).
        run: Run folder (default: runs/DATA-ARCH); an existing run is resumed.
        arch: Preset (default: by size of DATA and device).
        from_model: Model or run folder to start from, to adapt it to DATA.
        config: TOML file of settings; flags take precedence over it.
        **settings: Settings of [model], [optimizer], [batching] and [training].

    Raises:
        UsageError: Arguments are wrong, do not fit the dataset or device, or differ from the
            settings of the run to resume.
        DataError: There is no dataset, or it cannot be used.
        CheckpointError: The checkpoints are damaged, or the last one could not be saved.
        TrainingError: Training has diverged, or there is not enough memory.
        InterruptedRunError: A signal stopped the run, which is saved.

    Note:
        In Python, this process trains alone: several GPUs need several processes, which `tfm train
        --gpus N` starts. Ctrl-C and other signals save the run first, if this is the main thread; a
        second Ctrl-C raises KeyboardInterrupt. A run that makes no progress for `stall_minutes`
        ends the process.
    """
    plan = TrainingPlan(
        data=data, run=run, arch=arch, from_model=from_model, config=config, settings=settings
    )
    plan.check()
    set_slurm_master()
    return _train(plan, World.from_environment(), is_terminal=False)


def train_on_command_line(
    call: "partial[TrainResult]",
    /,
    *,
    dry_run: bool = False,
    print_config: bool = False,
    gpus: Annotated[str | None, Flag("[N|auto]"), _PROCESSES] = None,
    processes: Annotated[int | None, _HIDDEN] = None,
    restarts: Annotated[int | None, _HIDDEN] = None,
) -> Result:
    """Train as one of several processes, or print what would be trained.

    Args:
        call: Trains a model.
        dry_run: Print parameters, memory, time and disk, and exit.
        print_config: Print all settings as TOML, and exit.
        gpus: Start one process on each of N GPUs of this machine; auto uses all GPUs.
        processes: Start N processes on the CPU of this machine.
        restarts: After a failure, restart from the last checkpoint, at most N times.
    """
    from tfm.machine.processes import Placement

    arguments = call.keywords
    placement = Placement.from_flags(
        gpus=gpus, processes=processes, restarts=restarts, device=arguments.get("device")
    )
    if placement.device is not None:  # --gpus and --processes imply it
        arguments = {**arguments, "device": placement.device}
    plan = TrainingPlan(**declaration_of(train).checked(**arguments))
    if print_config:
        sys.stdout.write(run_toml(plan.merged(plan.data)))
        return Result()
    plan.check(needs_extras=not dry_run)  # before the dataset is opened and processes are started
    if not dry_run:
        return _train(plan, _launch_processes(placement), is_terminal=True)
    data_dir = plan.data_dir()
    from tfm.training.forecast import forecast

    num_processes = placement.local_size or placement.num_local_processes()
    return forecast(data_dir, plan.merged(data_dir), num_processes=num_processes)


def _launch_processes(placement: "Placement") -> World:
    """Return the world of this process.

    If the flags ask for several processes, and no launcher has started this one, restart this
    command in each; then do not return.
    """
    from tfm.machine.processes import Placement

    set_slurm_master()
    # Flags that say how to start processes do not need the variables of a launcher.
    world = World.from_environment() if placement == Placement() else current_world()
    if world.launcher is not None:
        placement.check(world)
        if world.is_first and (cause := cause_of_restart()):
            say(f"train: {cause}")
        return world
    if placement.needs_launcher:
        from tfm.machine.launch import launch

        raise SystemExit(launch(placement, [sys.executable, "-m", "tfm", *sys.argv[1:]]))
    return world


def _train(plan: "TrainingPlan", world: World, *, is_terminal: bool) -> "TrainResult":
    """Train as one process of a world; in a terminal, print what signals do, and what follows."""
    data_dir = plan.data_dir()
    run = plan.merged(data_dir)
    unit = "step" if run.training.shard else "microbatch"
    notice = (
        f"train: stopping after the current {unit}, then saving; press Ctrl-C again to stop now "
        "without saving"
    )
    stop = StopRequests(notice if is_terminal else None)
    run_dir = plan.run_dir(data_dir, run)
    result = train_model(data_dir, run_dir, run, world=world, stop=stop)
    # Else there is no model that is worth using.
    if is_terminal and result.step and result.has_learned:
        following = ["generate" if run.training.average else "average", run_dir]
        if run.training.average and not any(data_dir.glob("test.*")):
            following += ["--input", "-"]  # what the user types
        say(f"next: {tfm_command(*following)}")
    return result


def train_model(
    data_dir: Path,
    run_dir: Path,
    run: RunConfig,
    *,
    world: World | None = None,
    stop: StopRequests | None = None,
) -> "TrainResult":
    """Train on a dataset with merged settings, as one process of a world; by default, alone.

    Signals are recorded in `stop`, by default without a notice.
    """
    from tfm.steps import ModelSteps, StepsConfig
    from tfm.training import run as training
    from tfm.training.data import open_data
    from tfm.training.validation import validation_search

    world = world or World()
    compute = training.training_compute(run, world)
    data = open_data(data_dir, run, num_processes=world.size)
    steps = (
        ModelSteps(info=data.info).around(
            validation_search(data.info), StepsConfig(no_protect=True)
        )
        if run.training.validation_beam
        else []
    )
    stop = stop or StopRequests()
    return training.train(data, run_dir, compute, world=world, stop=stop, validation_steps=steps)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The arguments of `train`; settings are by section."""

    data: Path | None = None
    run: Path | None = None
    arch: str | None = None
    from_model: Path | None = None
    config: Path | None = None
    settings: Mapping[str, Values] = field(default_factory=dict)

    def check(self, *, needs_extras: bool = True) -> None:
        """Raise UsageError for mistakes that show without a dataset, or if a package is missing."""
        run = self.merged(None)
        for setting, name in run.optimizer.named().items():
            imported(name, setting)
        if needs_extras and run.training.tensorboard and find_spec("tensorboardX") is None:
            raise UsageError(
                "--tensorboard needs tensorboardX, which is not installed: run "
                f"{install_command('tensorboard')}, or leave it out"
            )

    def data_dir(self) -> Path:
        """Return the given dataset folder, or the dataset of an existing run, or the newest one."""
        from tfm.dataset.manifest import chosen_dataset

        run = self.run
        is_new = run is not None and kind_of(run) != "run"
        if run is not None and is_new and (advice := where_instead(run, "run")):
            raise UsageError(f"{run} is no run: {advice}, or choose a folder elsewhere with --run")
        if run is not None and is_new and self.config is not None:
            written = OutputPath(path=run, flag="--run", is_folder=True, others=["config.toml"])
            check_outputs([written], [self.config])
        if self.data is not None or run is None or not run.exists():
            return chosen_dataset(self.data)
        from tfm.folders.run_folder import trained_on

        folder = trained_on(run)
        if folder is not None and not folder.exists():
            raise DataError(
                f"{run} was trained on {folder}, which does not exist here: name the folder of "
                f"this dataset, as in {tfm_command('train', 'DATA', '--run', run)}"
            )
        return chosen_dataset(folder)

    def run_dir(self, data_dir: Path, merged: RunConfig) -> Path:
        """Return the given run folder, or the default folder for a dataset and a preset.

        A run that adapts a model has its preset in its name, or the model's own name if it is in no
        run, as of an import.
        """
        name = Path(os.path.abspath(data_dir)).name  # "." has none  # noqa: PTH100
        if merged.from_model is None:
            return self.run or RUNS_ROOT / f"{name}-{merged.arch}"
        start = Path(merged.from_model).resolve()
        is_in_run = any(kind_of(folder) == "run" for folder in start.parents[:2])
        return self.run or RUNS_ROOT / f"{name}-{merged.arch if is_in_run else start.name}-adapted"

    def merged(self, data_dir: Path | None) -> RunConfig:
        """Merge the settings over the file over the preset, and print a preset that was chosen.

        Without a preset and a file, an existing run keeps its settings, and a new one takes the
        preset that suits the dataset and the device. A run that starts from a model takes this
        model's settings, and defaults that suit adapting.

        Args:
            data_dir: The dataset folder; None to only find mistakes in the arguments.
        """
        run, arch, config, from_model = self.run, self.arch, self.config, self.from_model
        is_plain = arch is None and config is None
        if is_plain and run is not None and (recorded := _own_settings(run)) is not None:
            _check_same_start(run, recorded.get("from_model"), from_model)
            resumed = run_config(None, recorded, self.settings)
            _check_named_again(run, resumed, self.settings)
            return resumed
        table: Values = {} if config is None else read_toml(config)
        if from_model is None and isinstance(table.get("from_model"), str):
            from_model = Path(table["from_model"])
        if from_model is not None:
            return _adapting_settings(from_model, arch, table, self.settings)
        if is_plain and data_dir is not None:
            from tfm.training.data import arch_for_data

            training = self.settings.get("training", {})
            device, precision = training.get("device", "auto"), training.get("precision", "auto")
            arch, reason = arch_for_data(data_dir, device, precision)
            say(f"train: --arch {arch}, for {reason} (choose another with --arch)")
        return run_config(arch, table, self.settings)


def _own_settings(run: Path) -> Values | None:
    """Return the settings of an existing run by section; None if it has not started.

    Without config.toml, they are read from its newest checkpoint.
    """
    from tfm.folders.model_folder import recorded_settings

    path, newest = run / "config.toml", recorded_settings(run)
    if not path.exists():
        return None if newest is None else newest[1]
    settings = read_toml(path)
    if newest is not None and (missing := settings_missing_in(path, newest[1])):
        raise UsageError(
            f"{path} lacks {', '.join(missing)} of {newest[0]}: copy it again, or remove it to "
            "resume with the settings of the checkpoint"
        )
    return settings


def _adapting_settings(
    from_model: Path, arch: str | None, table: Values, overrides: Mapping[str, Values]
) -> RunConfig:
    """Return the settings of a run that starts from a model; they must equal the model's."""
    from tfm.folders.model_folder import ModelFolder

    opened = ModelFolder.open(from_model)
    folder, start = opened.path, opened.info.run
    given_arch = table.get("arch", start.arch) if arch in (None, start.arch) else arch
    if given_arch != start.arch:
        raise UsageError(
            f"{folder} has arch {start.arch}, not {given_arch}: leave arch {given_arch} out"
        )
    defaults = adapting_table(start)
    # The number of epochs is only a default: other limits need not fit it.
    if sets_steps((table, overrides)):
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


def _check_named_again(run: Path, resumed: RunConfig, given: Mapping[str, Values]) -> None:
    """Raise UsageError if a run records code of its user that this call does not name, too."""
    for setting, name in resumed.optimizer.named().items():
        if given.get("optimizer", {}).get(setting) != name:
            raise UsageError(
                f"{run} records {setting} {name}, whose code would run: resume with "
                f"--{setting.replace('_', '-')} {name} if you trust it"
            )


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
