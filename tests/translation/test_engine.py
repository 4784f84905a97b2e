"""Searches on a device without float64, and the sizes of batches on GPUs."""

from unittest.mock import Mock

import pytest
import torch
from small_models import transformer
from torch.utils._python_dispatch import TorchDispatchMode

from tfm.backends.plain import PLAIN_INFERENCE
from tfm.commands.translator import Translator
from tfm.config import InferenceConfig
from tfm.machine.compute import Compute
from tfm.translation import engine
from tfm.translation.batches import CHUNK_LINES
from tfm.translation.engine import Engine

LINES = ["seven", "", "I am buying 3 red cars for $5.", "   ", "on Monday", "seven", "a b c d e f"]


@pytest.fixture(scope="module")
def plain(trained_run):
    return Translator.load(trained_run, device="cpu")


class NoFloat64(TorchDispatchMode):
    """Refuses tensors in float64, as an Apple GPU does."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for each in torch.utils._pytree.tree_leaves(result):
            assert not isinstance(each, torch.Tensor) or each.dtype != torch.float64, operation
        return result


@pytest.mark.parametrize(
    "search", [{"num_groups": 2}, {"search": "exact", "node_limit": 20}], ids=str
)
def test_a_search_needs_no_float64_on_a_device_without_it(trained_run, search):
    search = {"max_extra_length": 3, **search}
    translator = Translator.load(trained_run, device="cpu", precision="fp32", kernels="plain")
    expected = translator.translate(LINES, **search)
    with NoFloat64():
        assert translator.translate(LINES, **search) == expected


def test_samples_are_drawn_on_the_cpu_for_a_device_without_float64(plain, monkeypatch):
    expected = plain.translate(LINES, search="sample", seed=3)
    monkeypatch.setattr("tfm.search.sampling.has_float64", lambda device: False)
    assert plain.translate(LINES, search="sample", seed=3) == expected


# --- GPUs


@pytest.mark.parametrize(("gigabytes", "scale"), [(8, 1), (16, 1), (80, 5)])
def test_batches_grow_with_the_memory_of_a_gpu(monkeypatch, gigabytes, scale):
    monkeypatch.setattr(engine, "device_memory_bytes", lambda device: gigabytes << 30)
    sizes = []
    for device in ("cpu", "cuda"):
        compute = Compute(torch.device(device), torch.float32)
        limits = Engine([transformer(50, d_model=512)], compute, backend=PLAIN_INFERENCE).limits
        sizes.append((limits.max_tokens, limits.chunk_lines))
    assert sizes == [(8192, CHUNK_LINES), (scale * 8192, scale * CHUNK_LINES)]


def test_processes_take_the_gpus_in_turn_and_share_them(monkeypatch):
    compute = Compute(torch.device("cpu"), torch.float32)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(engine, "verified_compute", chosen := Mock(return_value=compute))
    monkeypatch.setattr(engine, "_load_models", Mock())
    monkeypatch.setattr(Engine, "__init__", new := Mock(return_value=None))
    for index in range(3):
        Engine.start([], InferenceConfig(), index=index, num_processes=3)
    assert [each.kwargs["local_rank"] for each in chosen.call_args_list] == [0, 1, 0]
    assert [each.kwargs["num_sharing"] for each in new.call_args_list] == [2, 2, 2]
