"""Steps of base that are compiled for an H100: graphs, launches and binaries."""

from contextlib import nullcontext
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from claimed_gpu.inductor import Device, binaries, fake_gpu
from token_dataset import VOCAB_SIZE, write_token_dataset
from torch._dynamo import disable
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tfm.backends.training_compiled import compile_for_sizes
from tfm.config import run_config
from tfm.dataset.parallel import ParallelDataset
from tfm.machine.compute import choose_compute
from tfm.model.attention import Residual
from tfm.model.build import new_model
from tfm.model.cost import model_cost
from tfm.training.accumulation import GradientAccumulation
from tfm.training.trainer import Trainer

SIZES = VOCAB_SIZE, VOCAB_SIZE
SETTINGS = {"model": {"num_encoder_layers": 2, "num_decoder_layers": 2}}
MAX_GRAPHS = 7  # forward
MAX_LAUNCHES = 400  # seen: 373; more if the layers are not compiled
MIN_BINARIES = 20


def make_batch_on_host(accumulation, rows, make_batch=GradientAccumulation._batch):
    with unset_fake_temporarily():
        return make_batch(accumulation, rows)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    write_token_dataset(folder, num_pairs=20_000)
    return ParallelDataset(folder / "bin", "train", vocab_sizes=(VOCAB_SIZE, VOCAB_SIZE))


def train(dataset, fault=None, kernel="flash") -> tuple[Device, set[str]]:
    """Train two steps on one batch; return the device, and what is wrong."""
    run = run_config("base", SETTINGS)
    cost = model_cost(run.model, SIZES)
    model = new_model(run.model, SIZES)
    torch.compiler.reset()
    counters.clear()
    with (
        fake_gpu() as device,
        patch("tfm.backends.selection.compilation_problem", lambda *_: None),
        patch("tfm.backends.selection.working_kernel", lambda *_: (kernel, None)),
        patch("tfm.dataset.batching.copy_to_device", device.copy),
        patch("tfm.model.packing.copy_to_device", device.copy),
        patch.object(GradientAccumulation, "_batch", make_batch_on_host),
        fault or nullcontext(),
    ):
        compute = choose_compute("cuda", "bf16", trains=True)
        model.to(compute.device)
        tied = model.output_weight
        model.source_embedding.weight = model.target_embedding.weight = tied
        trainer = Trainer(model, dataset, run, compute, cost=cost)
        batch = trainer.build(trainer.batcher.epoch(1)[0])
        trainer.step(batch)
        num_graphs, num_launches = len(device.graphs), device.num_launches
        trainer.step(batch)
        num_launches = device.num_launches - num_launches
    found = {f"graph break: {reason}" for reason in counters["graph_break"]}
    if counters["stats"]["unique_graphs"] > MAX_GRAPHS:
        found.add(f"graphs: {counters['stats']}")
    if len(device.graphs) > num_graphs:
        found.add(f"compiled again: {num_graphs}")
    if num_launches > MAX_LAUNCHES:
        found.add(f"launches: {num_launches}")
    return device, found


@pytest.fixture(scope="module")
def trained(dataset):
    return train(dataset)


def test_a_step_compiles_whole_functions_once_and_launches_few_kernels(trained, dataset):
    assert not trained[1]
    assert not train(dataset, kernel="efficient")[1]


def spilling(device: Device, capability: int, folder: Path, **limits) -> list[tuple[str, dict]]:
    """Return the kernels of which a binary keeps registers in memory."""
    with fake_gpu():
        found = [
            x for graph in device.graphs for x in binaries(graph, capability, folder, **limits)
        ]
    assert len(found) > MIN_BINARIES
    return [(name, used) for name, used in found if used["LOCAL"] or used["STACK"]]


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_need_no_more_registers_than_there_are(trained, tmp_path, capability):
    assert not spilling(trained[0], capability, tmp_path)


def test_registers_in_memory_are_noticed(trained, tmp_path):
    assert spilling(trained[0], 90, tmp_path, num_warps=1)


def compile_for_changing_floats(function):
    def scaled(scale, *arguments):
        loss, *gradients = function(*arguments)
        return loss * scale, *gradients

    compiled, numbers = compile_for_sizes(scaled), count()
    return lambda *arguments: compiled(1 + 1e-9 * next(numbers), *arguments)


@pytest.mark.parametrize(
    ("check", "name", "replacement"),
    [
        ("compiled again", "tfm.training.loss.compile_for_sizes", compile_for_changing_floats),
        ("launches", "tfm.backends.training_compiled.compile_for_sizes", lambda function: function),
        ("graph break", "tfm.model.attention.Residual.after", disable(Residual.after)),
    ],
)
def test_a_fault_is_noticed(dataset, check, name, replacement):
    _, found = train(dataset, patch(name, replacement))
    assert any(each.startswith(check) for each in found), found
