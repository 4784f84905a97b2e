"""A captured CUDA graph replays its operations; on a CPU the function is returned unchanged."""

import pytest
import torch

from tfm.backends.cuda_graphs import recorded


def test_on_a_cpu_the_function_is_called_unchanged():
    calls = []
    assert recorded(lambda: calls.append(1), torch.device("cpu"))() is None
    assert calls == [1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_replay_reads_current_memory():
    x, total = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    replay = recorded(lambda: total.add_(x), torch.device("cuda"))
    before = total.clone()
    x.fill_(5)
    replay()
    replay()
    assert (total - before).tolist() == [10, 10, 10]
