"""Translating on an emulated GPU: the results of the CPU, and few waits of the host."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from claimed_gpu.emulation import emulated_gpu

from tfm.commands.translator import Translator
from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import CheckpointError
from tfm.features.align.heads import AlignmentModel
from tfm.folders.model_folder import ModelFolder
from tfm.model.cache import DecoderCache
from tfm.translation.batches import SentenceBatch
from tfm.translation.engine import Engine

LINES = ["seven", "", "I am buying 3 red cars", "on Monday", "we see the old house", "a"]
TARGETS = ["sieben", "nichts", "ich kaufe 3 rote Autos", "am Montag", "", "ein"]
PREFIXES = ["s", "", "Ich", "am", "", "Hau"]
LONG_PREFIXES = [f"{target} und ein altes rotes Haus " for target in TARGETS]
# Waits of a batch besides those of its steps: for two tensors that are copied to the device, and
# for the lengths and the padding of its sources.
WAITS_OF_BATCH = 4
# Waits a step of the decoder: one for its result, and one in four to drop old columns.
MAX_WAITS = 1.35
SCORE_BOUNDS = {"fp32": 1e-5, "bf16": 0.02}


@pytest.fixture
def folder(make_model) -> Path:
    return make_model(d_model=32)


def problems(
    folder: Path, settings: dict, waits: float = MAX_WAITS, precision: str = "fp32", fault=None
) -> set[str]:
    """Return what differs between the CPU in fp32 and an emulated GPU with a fault."""
    settings = {"max_extra_length": 8, "max_tokens": 1000, **settings}
    plain = Translator.load(folder, device="cpu", precision="fp32", kernels="plain")
    expected = plain.search(LINES, **settings)
    with emulated_gpu() as emulation:
        translator = Translator.load(folder, device="cuda", precision=precision)
        emulation.forget()
        with fault or nullcontext():
            found = translator.search(LINES, **settings)
    names, num_steps = set(), emulation.launches["embedding"]
    texts, scores = (
        [[getattr(each, name) for best in lists for each in best] for lists in (found, expected)]
        for name in ("text", "score")
    )
    if precision == "fp32" and texts[0] != texts[1]:
        names.add(f"translations: {texts}")
    if scores[0] != pytest.approx(scores[1], rel=SCORE_BOUNDS[precision]):
        names.add(f"scores: {scores}")
    if emulation.waits.total() > WAITS_OF_BATCH + waits * num_steps:
        names.add(f"waits: {num_steps} steps, {emulation.waits}")
    return names


@pytest.mark.parametrize(
    ("waits", "settings", "shape"),
    [
        (1, {"beam_size": 1}, {}),
        (MAX_WAITS, {"beam_size": 4, "n_best": 3}, {}),
        (1, {"beam_size": 12}, {}),
        (1.5, {"num_groups": 2}, {}),
        (1.35, {"no_repeat_ngram": 2, "min_length": 5}, {}),
        (1.6, {"prefixes": PREFIXES}, {}),
        (1.6, {"prefixes": LONG_PREFIXES}, {"attention_window": 3}),
        (MAX_WAITS, {"glossary": {"seven": "sieben", "house": "Haus|Haeuser"}}, {}),
        (1.5, {"search": "sample", "n_best": 2, "top_k": 5}, {}),
        (1.2, {"search": "sample", "top_p": 0.9}, {}),
        (3, {"search": "exact", "node_limit": 20}, {}),
        (MAX_WAITS, {}, {"attention": "additive"}),
        (1, {}, {"attention_window": 3}),
        (MAX_WAITS, {}, {"norm": "pre", "learned_positions": 100}),
    ],
    ids=str,
)
def test_a_search_finds_what_it_finds_on_the_cpu(make_model, waits, settings, shape):
    assert not problems(make_model(**{"d_model": 32, **shape}), settings, waits)


def test_a_search_in_half_precision_finds_similar_scores(folder):
    assert not problems(folder, {}, precision="bf16")


def test_banned_words_are_excluded(folder, tmp_path):
    path = tmp_path / "banned"
    path.write_text("ich\nein\n")
    assert not problems(folder, {"ban": path}, 4.25)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_given_targets_have_the_scores_of_the_cpu(folder, precision):
    plain = Translator.load(folder, device="cpu", precision="fp32", kernels="plain")
    expected = [each.score for each in plain.score_targets(LINES, TARGETS)]
    with emulated_gpu() as emulation:
        translator = Translator.load(folder, device="cuda", precision=precision)
        emulation.forget()
        found = [each.score for each in translator.score_targets(LINES, TARGETS)]
    assert found == pytest.approx(expected, rel=SCORE_BOUNDS[precision])
    assert emulation.waits.total() <= 6 + len(LINES), emulation.waits


def test_processes_that_share_a_gpu_find_what_is_found_on_the_cpu_in_smaller_batches(folder):
    opened, inference = [ModelFolder.open(folder)], InferenceConfig(device="cuda", precision="fp32")
    config, numbers = SearchConfig(max_extra_length=8), [1, 3, 4, 6]
    batch = SentenceBatch(numbers, [[4 + n, 9, 7] for n in numbers], [[] for _ in numbers])
    expected = Engine.start(opened, replace(inference, device="cpu")).run(batch, config)
    with emulated_gpu():
        alone = Engine.start(opened, inference)
        shares = [Engine.start(opened, inference, index=n, num_processes=2) for n in range(2)]
        found = [*shares[0].run(batch[:3], config), *shares[1].run(batch[3:], config)]
    assert [best.tokens for [best] in found] == [best.tokens for [best] in expected]
    assert all(2 * each.limits.max_tokens <= alone.limits.max_tokens for each in shares)


def test_words_are_aligned_as_on_the_cpu(folder):
    opened = ModelFolder.open(folder)
    expected = AlignmentModel(opened, "cpu").aligner.align(LINES, TARGETS)
    with emulated_gpu() as emulation:
        aligner = AlignmentModel(opened, "cuda").aligner
        emulation.forget()
        assert aligner.align(LINES, TARGETS) == expected
    assert emulation.waits.total() <= 5, emulation.waits


def copy_each(*tensors):
    return [each.cpu().numpy() for each in tensors]


def copy_without_a_wait(*tensors):
    return [each.to("cpu", non_blocking=True).numpy() for each in tensors]


def continue_the_first(cache, rows, reorder=DecoderCache.reorder):
    reorder(cache, rows - rows % cache.num_hypotheses)


@pytest.mark.parametrize(
    ("check", "name", "replacement"),
    [
        ("waits", "tfm.search.active.to_host", copy_each),
        ("translations", "tfm.model.cache._bias_hiding", torch.zeros_like),
        ("translations", "tfm.model.cache.DecoderCache.reorder", continue_the_first),
        ("CheckpointError", "tfm.search.active.to_host", copy_without_a_wait),
        ("CheckpointError", "torch.zeros", torch.empty),
        ("RuntimeError", "tfm.search.continuations.indices_on", lambda _, ids: torch.tensor(ids)),
    ],
)
def test_a_fault_is_noticed(folder, check, name, replacement):
    try:
        found = problems(folder, {}, fault=patch(name, replacement))
    except (CheckpointError, RuntimeError) as error:
        found = {type(error).__name__}
    assert any(each.startswith(check) for each in found), found
