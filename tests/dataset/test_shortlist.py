"""Shortlists: learned from aligned text, and searched within."""

import itertools
import json
import math
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import binarize
from small_models import batch_of, recurrent, transformer

from tfm.backends.inference_cpu import CpuInference
from tfm.backends.products_cpu import PREPACK
from tfm.commands.average import average
from tfm.commands.train import train_model
from tfm.commands.translator import Translator
from tfm.config import BinarizeConfig, SearchConfig
from tfm.dataset import shortlist as learning
from tfm.dataset.parallel import DatasetIndex, ParallelDataset, Part
from tfm.dataset.shortlist import FILE, Shortlist, learn_shortlist, shortlist_files
from tfm.errors import DataError
from tfm.features.confidence.step import fit
from tfm.search import search
from tfm.search.constraints import Constraints
from tfm.search.model import Ensemble
from tfm.search.shortlist import search_shortlist
from tfm.vocabulary.learning import learn_word_model
from tfm.vocabulary.subword import EOS, PAD, Vocabulary

NUM_WORDS, FIRST = 20, 4  # source pieces 4 to 23 become target pieces 24 to 43
V = FIRST + 2 * NUM_WORDS
SOURCES = [[5, 6, 7, EOS], [8, 9, EOS], [12, 11, 10, 4, 4, 13, EOS], [30, EOS]]
CONFIG = SearchConfig(beam_size=3, n_best=3, max_extra_length=6)
SEARCHES = [
    CONFIG,
    SearchConfig(beam_size=1, max_extra_length=6),
    SearchConfig(beam_size=4, num_groups=2, n_best=4, max_extra_length=6),
    SearchConfig(search="sample", n_best=3, top_p=0.9, max_extra_length=6),
    SearchConfig(search="exact", n_best=2, max_extra_length=3, node_limit=2_000),
]
SHORTLIST = BinarizeConfig(threads=1, shortlist=True, shortlist_size=5, shortlist_frequent=20)


@pytest.fixture
def aligned(tmp_path):
    """Return a dataset whose target words are those of the source in random order."""
    random = np.random.default_rng(0)
    (tmp_path / "bin").mkdir()
    lengths = random.integers(1, 9, size=400)
    source = random.integers(FIRST, FIRST + NUM_WORDS, size=lengths.sum())
    sentences = np.split(source, np.cumsum(lengths)[:-1])
    target = np.concatenate([random.permutation(each) + NUM_WORDS for each in sentences])
    for language, ids in (("en", source), ("de", target)):
        np.save(tmp_path / f"bin/train.{language}.tokens.npy", ids.astype(np.uint16))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        np.save(tmp_path / f"bin/train.{language}.offsets.npy", offsets.astype(np.uint32))
    part = Part.of_files(tmp_path / "bin", "train", ("en", "de"))
    index = DatasetIndex(source="en", target="de", fingerprint="", parts={"train": (part,)})
    index.save(tmp_path / "bin")
    return ParallelDataset(tmp_path / "bin", "train", vocab_sizes=(V, V))


@pytest.fixture
def vocabulary(tmp_path):
    words = tmp_path / "words"
    words.write_text("".join(f"w{number}\n" for number in range(2 * NUM_WORDS)))
    model = learn_word_model([words])
    assert len(model) == V
    return Vocabulary(model, model)


def learned(dataset, vocabulary, *, size=1, num_frequent=0, max_pairs=1_000):
    return learn_shortlist(
        dataset, vocabulary, size=size, num_frequent=num_frequent, max_pairs=max_pairs
    )


@pytest.mark.parametrize("max_pairs", [1_000, 200])
def test_the_translation_of_each_word_is_found(aligned, vocabulary, max_pairs):
    shortlist = learned(aligned, vocabulary, max_pairs=max_pairs)
    words = np.arange(FIRST, FIRST + NUM_WORDS)
    assert (shortlist.candidates[words, 0] == words + NUM_WORDS).all()
    assert (shortlist.candidates[:, 1] == np.arange(V)).all()  # a joint vocabulary's can be copied


def test_the_result_does_not_depend_on_the_chunks(aligned, vocabulary, monkeypatch):
    expected = learned(aligned, vocabulary, size=3, num_frequent=4)
    monkeypatch.setattr(learning, "_CHUNK_SIZE", 100)
    found = learned(aligned, vocabulary, size=3, num_frequent=4)
    assert (found.candidates == expected.candidates).all()
    assert (found.frequent == expected.frequent).all()


def test_with_little_memory_the_rarest_pairs_of_pieces_are_dropped(
    aligned, vocabulary, monkeypatch
):
    monkeypatch.setattr(learning, "_CHUNK_SIZE", 100)
    monkeypatch.setattr(learning, "_MAX_ENTRIES", 3 * NUM_WORDS)
    shortlist = learned(aligned, vocabulary, size=3)
    words = np.arange(FIRST, FIRST + NUM_WORDS)
    is_found = (shortlist.candidates[words] == words[:, None] + NUM_WORDS).any(axis=1)
    assert is_found.mean() > 0.7


def test_frequent_pieces_take_no_place_among_the_candidates(aligned, vocabulary):
    shortlist = learned(aligned, vocabulary, size=5, num_frequent=10)
    assert len(shortlist.frequent) == 10
    assert not np.isin(shortlist.candidates[:, :-1], shortlist.frequent).any()


def everything(vocab_size=V):
    """Return a shortlist of all pieces for every sentence."""
    nothing = np.full((vocab_size, 1), EOS, dtype=np.uint16)
    return Shortlist(nothing, np.arange(vocab_size, dtype=np.uint16), "")


def some():
    """Return a shortlist of a few pieces for each source piece."""
    candidates = np.random.default_rng(1).integers(FIRST, V, size=(V, 3)).astype(np.uint16)
    candidates[PAD] = EOS
    return Shortlist(candidates, np.array([30, 31], dtype=np.uint16), "")


def found_in(
    shortlist, models, sources=SOURCES, config=CONFIG, prefixes=None, first_line=1, constraints=None
):
    with torch.inference_mode():
        return search_shortlist(
            models,
            shortlist,
            *batch_of(sources),
            config,
            line_numbers=range(first_line, first_line + len(sources)),
            prefixes=prefixes or [[]] * len(sources),
            constraints=constraints,
        )


def without(model, config):
    with torch.inference_mode():
        numbers = range(1, len(SOURCES) + 1)
        return search(model, *batch_of(SOURCES), config, line_numbers=numbers)


def assert_equal(found, expected):
    for some_best, other_best in zip(found, expected, strict=True):
        assert [each.tokens for each in some_best] == [each.tokens for each in other_best]
        scores = [each.score for each in other_best]
        assert [each.score for each in some_best] == pytest.approx(scores, abs=1e-4)


def models(kind, sharpness=3.0):
    new = {"transformer": transformer, "recurrent": recurrent}[kind.removesuffix("s")]
    return [new(V, seed, sharpness=sharpness) for seed in range(2 if kind.endswith("s") else 1)]


@pytest.mark.parametrize("config", SEARCHES, ids=str)
@pytest.mark.parametrize("kind", ["transformer", "recurrent", "transformers"])
def test_a_shortlist_of_all_pieces_changes_nothing(kind, config):
    members = models(kind)
    expected = without(Ensemble(members) if len(members) > 1 else members[0], config)
    assert_equal(found_in(everything(), members, config=config), expected)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.int8, pytest.param(torch.bfloat16, marks=pytest.mark.needs_bf16)],
    ids=str,
)
def test_prepacked_weights_change_nothing(dtype):
    activations = torch.float32 if dtype == torch.int8 else dtype
    backend = CpuInference(PREPACK[dtype], activations, limit_sizes=True)
    model = backend.optimized(transformer(V, sharpness=3.0))
    assert_equal(found_in(everything(), [model]), without(model, CONFIG))


@pytest.mark.parametrize("config", SEARCHES, ids=str)
def test_a_sentence_only_uses_its_own_pieces_whatever_the_batch(config):
    members, shortlist = models("transformers"), some()
    together = found_in(shortlist, members, config=config)
    for index, source in enumerate(SOURCES):
        allowed = shortlist.allowed(np.array([source]), V)[0]
        assert all(allowed[list(each.tokens)].all() for each in together[index])
        alone = found_in(shortlist, members, [source], config, first_line=index + 1)
        assert_equal(alone, together[index : index + 1])


def test_probabilities_are_normalized_over_the_pieces_of_the_sentence():
    [model], shortlist = models("transformer"), some()
    for source, n_best in zip(SOURCES, found_in(shortlist, [model]), strict=True):
        allowed = torch.from_numpy(shortlist.allowed(np.array([source]), V)[0])
        allowed[:FIRST] = True
        for each in n_best:
            assert each.vocabulary == "shortlist"
            shifted, expected = [1, *each.tokens], [*each.tokens, EOS]
            with torch.inference_mode():
                hidden = model(*batch_of([source]), torch.tensor([shifted]))[0]
                logits = model.logits(hidden).masked_fill(~allowed, -math.inf)
            log_probs = logits.log_softmax(dim=1)[range(len(expected)), expected]
            assert each.log_prob == pytest.approx(float(log_probs.sum()), abs=1e-4)


@pytest.mark.parametrize("config", SEARCHES, ids=str)
def test_forced_prefixes_may_have_any_pieces(config):
    prefixes = [[40, 17], [], [5], [9]]
    found = found_in(some(), models("transformer"), config=config, prefixes=prefixes)
    for prefix, n_best in zip(prefixes, found, strict=True):
        assert all(list(each.tokens[: len(prefix)]) == prefix for each in n_best)


class RuledOut(Constraints):
    """Rules out some tokens always, and the newest token of each hypothesis next."""

    def __init__(self, never):
        self.never = tuple(never)

    def ruled_out(self, tokens):
        rows = np.arange(len(tokens) if tokens.shape[1] else 0)
        return rows, tokens[rows, -1] if len(rows) else rows


@pytest.mark.parametrize("config", SEARCHES, ids=str)
def test_constraints_hold_for_the_pieces_of_the_model(config):
    shortlist = some()
    plain = found_in(shortlist, models("transformer"), config=config)
    usual = Counter(token for n_best in plain for each in n_best for token in each.tokens)
    never = [token for token, _ in usual.most_common(2)]
    absent = [*{*range(FIRST, V)}.difference(shortlist.candidates.flat)][:1]
    found = found_in(
        shortlist, models("transformer"), config=config, constraints=RuledOut([*never, *absent])
    )
    for each in (each for n_best in found for each in n_best):
        assert not set(never) & set(each.tokens)
        assert all(one != other for one, other in itertools.pairwise(each.tokens))


@pytest.fixture
def dataset(data_dir, tmp_path):
    folder = shutil.copytree(data_dir, tmp_path / "data")
    assert binarize(folder, SHORTLIST)
    return folder


def test_it_is_learned_again_only_after_a_change(dataset):
    before = (dataset / FILE).read_bytes()
    assert not binarize(dataset, SHORTLIST)
    assert not binarize(dataset, BinarizeConfig(threads=1))
    assert (dataset / FILE).read_bytes() == before
    assert binarize(dataset, replace(SHORTLIST, shortlist_size=6))
    assert (dataset / FILE).read_bytes() != before


def test_a_shortlist_of_older_data_is_removed(dataset, capsys):
    assert binarize(dataset, BinarizeConfig(threads=1, max_length=9))
    assert not (dataset / FILE).exists()
    assert "--shortlist" in capsys.readouterr().err


def test_checkpoints_and_averages_contain_it(dataset, tiny_run, tmp_path):
    train_model(dataset, tmp_path / "run", tiny_run(training={"max_steps": 4}))
    folder = average(tmp_path / "run").model_dir
    assert (folder / FILE).read_bytes() == (dataset / FILE).read_bytes()
    translator = Translator.load(folder, device="cpu", precision="fp32")
    calibration = fit([-1.0, -2.0] * 10, [0.9, 0.1] * 10)
    translator._info = replace(translator._info, calibration=calibration)
    [[found]] = translator.search(["seven cars"], beam=1, shortlist=True)
    assert found.vocabulary == "shortlist"
    assert found.confidence is None  # it is calibrated for probabilities of the whole vocabulary
    [[found]] = translator.search(["seven cars"], beam=1)
    assert found.vocabulary is None
    assert found.confidence is not None


def test_a_model_without_shortlist_says_how_to_get_one(trained_run, dataset, tmp_path, run):
    (tmp_path / "in").write_text("seven cars\n")
    model = shutil.copytree(trained_run / "checkpoints/step-00000012", tmp_path / "model")
    arguments = ("generate", model, "--shortlist", "--input", tmp_path / "in", "--json")
    code, _, error = run(*arguments)
    assert code == 2
    assert "tfm binarize DATA --shortlist" in error.splitlines()[-1]
    shutil.copy(dataset / FILE, model)
    assert json.loads(run.ok(*arguments)[0])["translations"][0]["vocabulary"] == "shortlist"


def test_a_shortlist_of_another_vocabulary_or_a_damaged_one_is_refused(dataset, tmp_path):
    with pytest.raises(DataError, match="--shortlist"):
        Shortlist.load(dataset, "of another model", (1, 1))
    (dataset / FILE).write_bytes((dataset / FILE).read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged"):
        shortlist_files(dataset, Vocabulary.load(dataset))


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("candidates", [[0, 1, 2]]),
        ("candidates", [0, 1, 2]),
        ("candidates", [[0.0], [1.0], [2.0]]),
        ("candidates", [[0], [1], [4]]),
        ("frequent", [[0, 1]]),
        ("frequent", [True]),
        ("frequent", [-1]),
        ("frequent", [1 << 40]),
        ("frequent", 1),
    ],
)
def test_a_shortlist_of_anything_but_ids_of_pieces_is_refused(tmp_path, name, ids):
    good = {"candidates": np.array([[0], [1], [3]]), "frequent": np.array([0])}
    Shortlist(**good, fingerprint="a").save(tmp_path)
    assert Shortlist.load(tmp_path, "a", (3, 4)) is not None
    Shortlist(**(good | {name: np.array(ids)}), fingerprint="a").save(tmp_path)
    with pytest.raises(DataError, match="ids of pieces"):
        Shortlist.load(tmp_path, "a", (3, 4))
