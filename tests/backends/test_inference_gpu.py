"""Inference with weights in the dtype of matrix products, as on a GPU, against autocast."""

import pytest
import torch
from small_models import batch_of, recurrent, transformer

from tfm.backends.inference_gpu import GpuInference
from tfm.backends.plain import PLAIN_INFERENCE
from tfm.config import SearchConfig
from tfm.machine.compute import Compute
from tfm.translation.batches import SentenceBatch
from tfm.translation.engine import Engine
from tfm.vocabulary.subword import EOS

BF16 = Compute(torch.device("cpu"), torch.bfloat16)


@pytest.fixture(params=["sinusoids", "learned positions", "recurrent"])
def model(request):
    if request.param == "recurrent":
        return recurrent(50, sharpness=2)
    positions = 30 if request.param == "learned positions" else None
    return transformer(50, sharpness=2, learned_positions=positions)


def test_scores_are_about_those_of_autocast(model):
    batch = SentenceBatch([1, 2], [[5, 6, 7], [8]], [[9, 10, 11, 12], [6]], is_scored=True)
    expected, found = (
        Engine([model], BF16, backend=backend).run(batch, SearchConfig())
        for backend in (PLAIN_INFERENCE, GpuInference(torch.bfloat16))
    )
    for [ours], [theirs] in zip(found, expected, strict=True):
        assert ours.token_log_probs == pytest.approx(theirs.token_log_probs, abs=0.05)


def test_weights_are_cast_in_a_copy_and_positions_stay_exact(model):
    before = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    cast = GpuInference(torch.bfloat16).optimized(model)
    for name, tensor in [*cast.named_parameters(), *cast.named_buffers()]:
        is_position = name.endswith("positions")
        assert tensor.dtype == (torch.float32 if is_position else torch.bfloat16), name
    assert {name: tensor.dtype for name, tensor in model.state_dict().items()} == before
    with torch.inference_mode():
        logits = cast.step(torch.tensor([[4]]), cast.start(*batch_of([[5, 6, EOS]])))
    assert logits.dtype == torch.bfloat16


def test_the_cast_weights_of_recurrent_layers_are_joined_once(monkeypatch):
    model, joined = recurrent(50), []
    monkeypatch.setattr(
        torch.nn.LSTM, "flatten_parameters", lambda layers: joined.append(layers.weight_ih_l0.dtype)
    )
    GpuInference(torch.bfloat16).optimized(model)
    assert joined == [torch.bfloat16] * 2


def test_tied_weights_stay_tied():
    cast = GpuInference(torch.bfloat16).optimized(transformer(50))
    assert cast.output_weight is cast.source_embedding.weight is cast.target_embedding.weight
