"""Searches on a device without float64, and with too little memory for a batch."""

import pytest
import torch
from small_models import transformer
from torch.utils._python_dispatch import TorchDispatchMode

from tfm.backends.plain import PLAIN_INFERENCE
from tfm.device.compute import Compute
from tfm.errors import DataError
from tfm.inference import engine
from tfm.inference.batches import CHUNK_LINES
from tfm.inference.engine import Engine
from tfm.inference.translator import Translator

SEARCHES = [
    {"beam": 4},
    {"beam": 4, "num_groups": 2},
    {"search": "exact", "beam": 2},
]
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


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_a_search_needs_no_float64_on_a_device_without_it(trained_run, search):
    translator = Translator.load(trained_run, device="cpu", precision="fp32", kernels="plain")
    expected = translator.translate(LINES, **search)
    with NoFloat64():
        assert translator.translate(LINES, **search) == expected


def test_samples_are_drawn_on_the_cpu_for_a_device_without_float64(plain, monkeypatch):
    expected = plain.translate(LINES, search="sample", seed=3)
    monkeypatch.setattr("tfm.search.sampling.has_float64", lambda device: False)
    assert plain.translate(LINES, search="sample", seed=3) == expected


@pytest.mark.parametrize("largest", [2, 0])
def test_a_batch_that_does_not_fit_memory_is_searched_in_halves(plain, monkeypatch, largest):
    expected = plain.translate(LINES)
    search = engine.search

    def fail_if_large(model, source, *args, **kwargs):
        if len(source) > largest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return search(model, source, *args, **kwargs)

    monkeypatch.setattr(engine, "search", fail_if_large)
    if largest:
        assert plain.translate(LINES) == expected
    else:
        with pytest.raises(DataError, match=r"^line \d with .* tokens.* needs more memory"):
            plain.translate(LINES)


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
