"""Training on the command line: processes, forecasts, and settings as a file."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfm.cli.flags import Call
from tfm.commands.declaration import Flag, declaration_of
from tfm.commands.train import TrainingPlan
from tfm.config import RunConfig, run_toml
from tfm.errors import tfm_command
from tfm.machine.interruption import StopRequests, cause_of_restart
from tfm.machine.world import World, current_world, set_slurm_master
from tfm.reporting import say
from tfm.table import Table

if TYPE_CHECKING:
    from tfm.machine.processes import Placement
    from tfm.stages.train import TrainResult

_PROCESSES = Flag(panel="Processes")
_HIDDEN = Flag(hidden=True, panel="Processes")


def run_training(
    call: Call,
    /,
    *,
    dry_run: bool = False,
    print_config: bool = False,
    gpus: Annotated[str | None, Flag("[N|auto]"), _PROCESSES] = None,
    processes: Annotated[int | None, _HIDDEN] = None,
    restarts: Annotated[int | None, _HIDDEN] = None,
) -> None:
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

    placement = Placement.from_flags(
        gpus=gpus, processes=processes, restarts=restarts, device=call.keywords.get("device")
    )
    if placement.device is not None:  # --gpus and --processes imply it
        call = Call(call.func, **{**call.keywords, "device": placement.device})
    plan = TrainingPlan(**declaration_of(call.func).checked(**call.keywords))
    if print_config:
        typer.echo(run_toml(plan.merged(plan.data)), nl=False)
        return
    plan.check(needs_extras=not dry_run)  # before the dataset is opened and processes are started
    if dry_run:
        _print_forecast(plan, placement)
        return
    world = _launch_processes(placement)
    data_dir = plan.data_dir()
    settings = plan.merged(data_dir)
    unit = "step" if settings.training.shard else "microbatch"
    stop = StopRequests(
        f"train: stopping after the current {unit}, then saving; press Ctrl-C again to stop now "
        "without saving"
    )
    result = plan.train(data_dir, settings, world, stop)
    if result.step and result.has_learned:  # else there is no model that is worth using
        _say_next(result, data_dir, settings)


def _print_forecast(plan: TrainingPlan, placement: "Placement") -> None:
    data_dir = plan.data_dir()
    from tfm.stages.forecast import forecast

    num_processes = placement.local_size or placement.num_local_processes()
    found = forecast(data_dir, plan.merged(data_dir), num_processes=num_processes)
    Table([*found.rows().items()]).print()
    for warning in found.warnings:
        say(warning)


def _say_next(result: "TrainResult", data_dir: Path, settings: RunConfig) -> None:
    following = ["generate" if settings.training.average else "average", result.run_dir]
    if settings.training.average and not any(data_dir.glob("test.*")):
        following += ["--input", "-"]  # what the user types
    say(f"next: {tfm_command(*following)}")


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
