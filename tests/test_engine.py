"""Decoding in cache slots, as on a GPU, gives the same translations as without slots."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tfm.backends.plain import Backend
from tfm.config import SearchConfig
from tfm.data.subword import Vocabulary
from tfm.device.compute import choose_compute
from tfm.errors import DataError
from tfm.inference.batches import SentenceBatch
from tfm.inference.translator import Translator
from tfm.model.build import converted, load_model
from tfm.search.slot_beam import SlotBeams
from tfm.storage.checkpoint.model_folder import load_info
from tfm.storage.checkpoint.run_folder import checkpoints

SEARCHES = [
    {"beam": 4},
    {"beam": 4, "num_groups": 2},
    {"search": "exact", "beam": 2},
]
LINES = ["seven", "", "I am buying 3 red cars for $5.", "   ", "on Monday", "seven", "a b c d e f"]


class InSlots(Backend):
    """The backend of GPUs, without kernels."""

    decodes_in_slots = True

    def __init__(self, dtype):
        self.weights_dtype = dtype

    def cast_activations(self, x):
        return x.to(self.weights_dtype)


@pytest.fixture(scope="module")
def plain(trained_run):
    return Translator.load(trained_run, device="cpu")


@pytest.fixture
def folder(trained_run):
    return checkpoints(trained_run)[-1]


@pytest.fixture
def new_translator(folder):
    """Make a translator that decodes in slots, with weights of the given type."""

    def make(dtype=torch.float32, num_models=1):
        loaded = [load_model(folder, load_info(folder)) for _ in range(num_models)]
        compute = choose_compute("cpu", "fp32")
        return Translator(loaded, Vocabulary.load(folder), compute, backend=InSlots(dtype))

    return make


@pytest.fixture
def slot_steps(monkeypatch):
    """The steps taken in slots, one element per step."""
    steps = []
    step = SlotBeams.step
    monkeypatch.setattr(SlotBeams, "step", lambda self: steps.append(step(self)))
    return steps


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("max_tokens", [8, 4096])
def test_translations_are_the_same_in_slots(
    plain, new_translator, slot_steps, beam_size, max_tokens
):
    config = SearchConfig(beam_size=beam_size, n_best=beam_size, max_tokens=max_tokens)
    prefixes = ["", "Haus", "", "", "Haus", "sieben", ""]
    found, expected = (
        translator.search(LINES, config, prefixes=prefixes)
        for translator in (new_translator(), plain)
    )
    assert slot_steps
    for ours, theirs in zip(found, expected, strict=True):
        assert [each.text for each in ours] == [each.text for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs])


@pytest.mark.parametrize(
    "settings",
    [{"num_groups": 2}, {"search": "sample"}, {"beam_size": 65}],
    ids=["diverse", "sample", "wide"],
)
def test_other_searches_and_ensembles_do_not_use_slots(plain, new_translator, slot_steps, settings):
    config = SearchConfig(max_extra_length=5, **settings)
    assert new_translator().translate(LINES, config) == plain.translate(LINES, config)
    ensemble = new_translator(num_models=2)
    assert ensemble.translate(LINES) == plain.translate(LINES)
    assert not slot_steps


@pytest.mark.parametrize("largest", [2, 0])
def test_a_batch_that_does_not_fit_memory_is_searched_in_fewer_slots(
    plain, new_translator, monkeypatch, largest
):
    translator = new_translator()
    step = SlotBeams.step

    def fail_if_large(beams):
        if len(beams.is_open) > largest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(beams)

    with monkeypatch.context() as patched:
        patched.setattr(SlotBeams, "step", fail_if_large)
        if largest:
            assert translator.translate(LINES) == plain.translate(LINES)
        else:
            with pytest.raises(DataError, match=r"^line \d with .* tokens.* needs more memory"):
                translator.translate(LINES)
    # The failure leaves no trace.
    assert translator.translate(LINES) == plain.translate(LINES)


def test_a_batch_is_searched_in_slots(plain, new_translator, slot_steps):
    engine = new_translator()._engine
    batch = SentenceBatch(line_numbers=[1, 2], sources=[[5, 6], [7]], targets=[[], []])
    found = engine.search(batch, SearchConfig())
    assert slot_steps
    for [ours], [theirs] in zip(found, plain._engine.search(batch, SearchConfig()), strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.score == pytest.approx(theirs.score)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_engine_converts_a_copy_of_the_weights_to_the_type_of_the_backend(
    folder, slot_steps, dtype
):
    model = load_model(folder, load_info(folder))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compute = choose_compute("cpu", "fp32")
    translator = Translator([model], Vocabulary.load(folder), compute, backend=InSlots(dtype))
    assert len(translator.translate(LINES)) == len(LINES)
    assert slot_steps
    [used] = translator._engine._models
    assert {parameter.dtype for parameter in used.parameters()} == {dtype}
    assert used.target_embedding.positions.dtype == torch.float32
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_tied_weights_stay_tied_in_a_converted_model(folder):
    model = converted(load_model(folder, load_info(folder)), torch.bfloat16)
    assert model.output_weight is model.source_embedding.weight is model.target_embedding.weight


class NoFloat64(TorchDispatchMode):
    """Refuses tensors in float64, as an Apple GPU does."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for each in torch.utils._pytree.tree_leaves(result):
            assert not isinstance(each, torch.Tensor) or each.dtype != torch.float64, operation
        return result


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_a_search_needs_no_float64_on_a_device_without_it(trained_run, monkeypatch, search):
    translator = Translator.load(trained_run, device="cpu", precision="fp32", kernels="plain")
    expected = translator.translate(LINES, **search)
    monkeypatch.setattr("tfm.search.scoring.has_float64", lambda device: False)
    with NoFloat64():
        assert translator.translate(LINES, **search) == expected


def test_samples_are_drawn_on_the_cpu_for_a_device_without_float64(plain, monkeypatch):
    expected = plain.translate(LINES, search="sample", seed=3)
    monkeypatch.setattr("tfm.search.sampling.has_float64", lambda device: False)
    assert plain.translate(LINES, search="sample", seed=3) == expected
