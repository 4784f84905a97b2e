"""A captured CUDA graph replays its operations; on a CPU the function is returned unchanged."""

from unittest.mock import MagicMock

import pytest
import torch

from tfm.backends.cuda_graphs import recorded


def test_on_a_cpu_the_function_is_called_unchanged():
    calls = []
    assert recorded(lambda: calls.append(1), torch.device("cpu"))() is None
    assert calls == [1]


@pytest.mark.parametrize("caller_infers", [False, True])
def test_warm_ups_and_the_capture_are_in_inference_mode(caller_infers, monkeypatch):
    modes = []

    def note_mode(*_):
        modes.append(torch.is_inference_mode_enabled())

    cuda = MagicMock()
    cuda.graph.return_value.__enter__.side_effect = note_mode
    monkeypatch.setattr(torch, "cuda", cuda)
    with torch.inference_mode(caller_infers):
        recorded(note_mode, torch.device("cuda"))
        assert torch.is_inference_mode_enabled() == caller_infers
    assert len(modes) == 4  # two warm-ups, the beginning of the capture, the captured call
    assert all(modes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_replay_reads_current_memory():
    x, total = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    replay = recorded(lambda: total.add_(x), torch.device("cuda"))
    before = total.clone()
    x.fill_(5)
    replay()
    replay()
    assert (total - before).tolist() == [10, 10, 10]
