"""What a run needs before its first step: memory, intact data, a model, and a state to resume."""

from concurrent.futures import Future
from functools import partial
from pathlib import Path

import torch

from tfm.disk.tensor_file import record_from
from tfm.errors import CheckpointError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import STATE
from tfm.machine.background import run_in_thread
from tfm.machine.group import Group
from tfm.machine.world import World
from tfm.model.build import Model, new_model
from tfm.model.cost import Cost, gathering_problem, memory_problem, model_cost
from tfm.training.data import TrainingData, num_first_parts
from tfm.training.progress import RunState, StepReport
from tfm.training.trainer import Trainer

_MAX_REASON = 100  # characters


def cost_of(data: TrainingData) -> Cost:
    """Return the cost of the model of a run on a dataset."""
    run = data.info.run
    averages = run.optimizer.ema is not None
    return model_cost(run.model, data.info.vocab_sizes, averages_weights=averages)


def shortage(
    data: TrainingData, cost: Cost, device: torch.device, world: World, *, gathers: bool = True
) -> str | None:
    """Return why a device, or its machine, has too little memory for a run; None if it may do.

    With shard, the machine of rank 0 `gathers` the weights and the state of the optimizer.
    """
    is_sharded = data.info.run.training.shard
    num_copies = world.local_size if device.type == "cpu" else 1.0
    if is_sharded:
        num_copies /= world.size
    problem = memory_problem(cost, device, num_copies=num_copies)
    if problem is None and is_sharded and gathers:
        problem = gathering_problem(cost, device, num_copies=num_copies)
    return problem


def verify_data(data: TrainingData, group: Group) -> Future[None]:
    """Verify parts of the dataset once per machine; later parts in the background.

    Processes wait for each other at each part: verifying all parts on a slow disk could take
    longer than a collective may.
    """
    dataset, is_local_first = data.train, group.world.local_rank == 0
    num_parts = len(dataset.parts)
    num_first = num_parts if data.info.run.training.verify_data else num_first_parts(dataset)
    for number in range(num_first):
        group.heartbeat(f"verifying part {number + 1} of {num_parts} of the data")
        if is_local_first:
            dataset.verify([number])
        group.heartbeat(f"waiting for part {number + 1} of {num_parts} of the data", waits=True)
        group.largest([0])
    others = range(num_first, num_parts) if is_local_first else []
    return run_in_thread(partial(dataset.verify, others))


def first_model(data: TrainingData, start: ModelFolder | None) -> Model:
    """Return the model of a folder with the settings of a run, or a new one without a folder."""
    run = data.info.run
    if start is not None:
        return start.model(run.model)
    torch.manual_seed(run.training.seed)
    return new_model(run.model, data.info.vocab_sizes)


def resume(
    trainer: Trainer, data: TrainingData, checkpoint: ModelFolder, run_dir: Path
) -> tuple[RunState, list[StepReport]]:
    """Give a trainer the state of a checkpoint; return the run's, and the reports not logged."""
    saved, info = checkpoint.training_state(), checkpoint.info
    if saved.get("dataset") != data.checksum:
        raise UsageError(
            f"{run_dir} was started on other data than {data.data_dir}: train on the same data, or "
            "choose another folder with --run"
        )
    try:
        trainer.load_state(saved["trainer"])
        state = record_from(RunState, saved)
        reports = [record_from(StepReport, report) for report in saved["window"]]
        if trainer.position.step != info.step:
            raise ValueError(f"it is of step {trainer.position.step}, not {info.step}")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{checkpoint.path / STATE} is not the state of this run ({type(error).__name__}: "
            f"{str(error)[:_MAX_REASON]}): remove {checkpoint.path} to resume from an older "
            "checkpoint"
        ) from error
    if data.info.run.training.best_metric != info.run.training.best_metric:
        state.best, state.validations_since_best = None, 0
    return state, reports
