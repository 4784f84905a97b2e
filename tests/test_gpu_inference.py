"""A model decoded as a GPU does it finds what the plain one finds: there, or in the interpreter.

On a GPU the steps are CUDA graphs, too. The interpreter takes the bits of bf16 for integers in
matrix products: half precision is tried in fp16 there.
"""

import os

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
pytest.importorskip("triton", minversion="3.7")

from tfm.backends.gpu_inference import GpuInferenceBackend  # noqa: E402
from tfm.backends.plain import PLAIN  # noqa: E402
from tfm.config import SearchConfig, TransformerConfig  # noqa: E402
from tfm.device.compute import Compute  # noqa: E402
from tfm.inference.batches import SentenceBatch  # noqa: E402
from tfm.inference.engine import Engine  # noqa: E402
from tfm.model.build import new_model  # noqa: E402

V = 90
NARROW = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


@pytest.fixture(params=[{}, {"norm": "pre"}, {"d_k": 3, "d_v": 5}, {"learned_positions": 20}])
def model(request):
    torch.manual_seed(0)
    config = TransformerConfig(
        num_encoder_layers=1,
        num_decoder_layers=2,
        d_model=16,
        d_ff=24,
        num_heads=2,
        **request.param,
    )
    model = new_model(config, source_vocab_size=V, target_vocab_size=V).to(DEVICE)
    with torch.no_grad():
        model.output_weight.mul_(4)  # makes it decided
    return model


def new_engine(model, backend, dtype=torch.float32):
    return Engine([model], Compute(DEVICE, dtype), backend=backend)


def new_batches(*each_lengths):
    generator = torch.Generator().manual_seed(1)
    batches = []
    for lengths in each_lengths:
        sources = [torch.randint(4, V, (n,), generator=generator).tolist() for n in lengths]
        targets = [ids[:1] if len(ids) == 3 else [] for ids in sources]
        numbers = range(len(lengths))
        batches.append(SentenceBatch(line_numbers=numbers, sources=sources, targets=targets))
    return batches


def found_by(engine, batches, config):
    return [hypotheses for batch in batches for hypotheses in engine.search(batch, config)]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_best_outputs_are_those_of_plain_operations(model, beam_size):
    config = SearchConfig(beam_size=beam_size, n_best=beam_size, max_extra_length=2, max_tokens=32)
    batches = new_batches([5, 2], [3, 4, 1])
    engine = new_engine(model, GpuInferenceBackend(torch.float32))
    expected = found_by(new_engine(model, PLAIN), batches, config)
    for _ in range(2 if DEVICE.type == "cuda" else 1):  # in the rooms of the first time, too
        found = found_by(engine, batches, config)
        for ours, theirs in zip(found, expected, strict=True):
            assert [each.tokens for each in ours] == [each.tokens for each in theirs]
            assert [each.score for each in ours] == pytest.approx(
                [each.score for each in theirs], rel=1e-4
            )


def test_half_precision_comes_close(model):
    config = SearchConfig(max_extra_length=4)
    [batch] = new_batches([7, 3, 5])
    engine = new_engine(model, GpuInferenceBackend(NARROW), NARROW)
    found = found_by(engine, [batch], config)
    outputs = [list(best[0].tokens) for best in found]
    scored = new_engine(model, PLAIN).score(
        SentenceBatch(line_numbers=batch.line_numbers, sources=batch.sources, targets=outputs),
        config,
    )
    for best, given in zip(found, scored, strict=True):
        assert best[0].score == pytest.approx(given.hypothesis.score, abs=0.05)


@pytest.mark.parametrize("settings", [{"search": "sample"}, {"num_groups": 2}])
def test_other_searches_work_as_well(model, settings):
    config = SearchConfig(max_extra_length=4, **settings)
    [batch] = new_batches([7, 3, 5])
    found, expected = (
        new_engine(model, backend).search(batch, config)
        for backend in (GpuInferenceBackend(torch.float32), PLAIN)
    )
    assert [best[0].tokens for best in found] == [best[0].tokens for best in expected]
