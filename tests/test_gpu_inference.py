"""Searches with the GPU backend equal those with the plain one: on a GPU or in the interpreter.

On a GPU the steps are CUDA graphs, too. Triton's interpreter multiplies bf16 matrices wrongly, so
it tests half precision in fp16.
"""

import pytest
import torch
from triton_device import DEVICE

from tfm.backends.gpu import GpuInferenceBackend
from tfm.backends.plain import PLAIN
from tfm.config import SearchConfig, TransformerConfig
from tfm.device.compute import Compute
from tfm.inference.batches import SentenceBatch
from tfm.inference.engine import Engine
from tfm.model.build import new_model

V = 90
HALF_PRECISION = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


def new_sharp_model(**changes):
    torch.manual_seed(0)
    config = TransformerConfig(
        num_encoder_layers=1,
        num_decoder_layers=2,
        d_model=16,
        d_ff=24,
        num_heads=2,
        **changes,
    )
    model = new_model(config, source_vocab_size=V, target_vocab_size=V).to(DEVICE)
    with torch.no_grad():
        model.output_weight.mul_(4)  # makes its distributions peaked
    return model


@pytest.fixture(params=[{}, {"norm": "pre"}, {"d_k": 3, "d_v": 5}, {"learned_positions": 20}])
def model(request):
    return new_sharp_model(**request.param)


def new_engine(model, backend, dtype=torch.float32):
    return Engine([model], Compute(DEVICE, dtype), backend=backend)


def new_batches(*batch_lengths):
    generator = torch.Generator().manual_seed(1)
    batches = []
    for lengths in batch_lengths:
        sources = [torch.randint(4, V, (n,), generator=generator).tolist() for n in lengths]
        targets = [ids[:1] if len(ids) == 3 else [] for ids in sources]
        numbers = range(len(lengths))
        batches.append(SentenceBatch(line_numbers=numbers, sources=sources, targets=targets))
    return batches


def search_all(engine, batches, config):
    return [hypotheses for batch in batches for hypotheses in engine.search(batch, config)]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_outputs_equal_those_of_the_plain_backend(model, beam_size):
    config = SearchConfig(beam_size=beam_size, n_best=beam_size, max_extra_length=2, max_tokens=32)
    batches = new_batches([5, 2], [3, 4, 1])
    engine = new_engine(model, GpuInferenceBackend(torch.float32))
    expected = search_all(new_engine(model, PLAIN), batches, config)
    for _ in range(2 if DEVICE.type == "cuda" else 1):  # the second time in the slots of the first
        found = search_all(engine, batches, config)
        for ours, theirs in zip(found, expected, strict=True):
            assert [h.tokens for h in ours] == [h.tokens for h in theirs]
            assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], rel=1e-4)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="a CPU has no CUDA graphs")
def test_a_long_source_does_not_change_later_replays():
    engine = new_engine(new_sharp_model(), GpuInferenceBackend(torch.float32))
    short, long = new_batches([5, 2], [300])
    before, _, after = (engine.search(batch, SearchConfig()) for batch in (short, long, short))
    assert before == after


def test_scores_in_half_precision_are_close(model):
    config = SearchConfig(max_extra_length=4)
    [batch] = new_batches([7, 3, 5])
    engine = new_engine(model, GpuInferenceBackend(HALF_PRECISION), HALF_PRECISION)
    found = search_all(engine, [batch], config)
    outputs = [list(best[0].tokens) for best in found]
    scored = new_engine(model, PLAIN).score(
        SentenceBatch(line_numbers=batch.line_numbers, sources=batch.sources, targets=outputs),
        config,
    )
    for best, exact in zip(found, scored, strict=True):
        assert best[0].score == pytest.approx(exact.hypothesis.score, abs=0.05)


@pytest.mark.parametrize("settings", [{"search": "sample"}, {"num_groups": 2}])
def test_sampling_and_diverse_search_equal_those_of_the_plain_backend(model, settings):
    config = SearchConfig(max_extra_length=4, **settings)
    [batch] = new_batches([7, 3, 5])
    found, expected = (
        new_engine(model, backend).search(batch, config)
        for backend in (GpuInferenceBackend(torch.float32), PLAIN)
    )
    assert [best[0].tokens for best in found] == [best[0].tokens for best in expected]
