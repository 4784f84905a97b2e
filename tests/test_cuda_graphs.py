"""What is recorded on a GPU does again what it did; a CPU has nothing to record."""

import pytest
import torch

from tfm.backends.cuda_graphs import recorded


def test_a_cpu_gets_the_function_as_it_is():
    calls = []
    assert recorded(lambda: calls.append(1), torch.device("cpu"))() is None
    assert calls == [1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_recording_reads_what_is_in_memory_when_it_is_replayed():
    x, total = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    replay = recorded(lambda: total.add_(x), torch.device("cuda"))
    before = total.clone()
    x.fill_(5)
    replay()
    replay()
    assert (total - before).tolist() == [10, 10, 10]
