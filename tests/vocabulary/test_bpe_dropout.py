"""BPE-dropout: stored variants of the segmentation, which epochs take in turn."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from helpers import binarize, contents, learn_bpe, number_pairs, opened

from tfm.config import BatchingConfig, BinarizeConfig, SubwordConfig
from tfm.dataset.batching import Batcher
from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import DatasetIndex
from tfm.errors import DataError, UsageError
from tfm.vocabulary.bpe_dropout import BpeDropout
from tfm.vocabulary.subword import Vocabulary

VOCAB_SIZE, NUM_PAIRS, NUM_VARIANTS = 400, 200, 3
DROPOUT = BinarizeConfig(bpe_dropout=0.2, bpe_variants=NUM_VARIANTS)


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Divide the text into several blocks, so that threads could mix them up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tfm.text.lines._BLOCK_BYTES", 1000)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset):
    """A dataset with variants; tests must leave it as it is."""
    sizes = {"train": NUM_PAIRS, "valid": 12, "test": 12}
    splits = {
        split: list(number_pairs(split, num_pairs=size, seed=1)) for split, size in sizes.items()
    }
    made = make_dataset(tmp_path_factory.mktemp("data") / "x", splits, vocab_size=VOCAB_SIZE)
    binarize(made, DROPOUT)
    return made


def by_variant(sequences):
    sentences = list(sequences)
    return [sentences[i : i + NUM_PAIRS] for i in range(0, len(sentences), NUM_PAIRS)]


def test_runs_with_any_number_of_threads_and_other_processes_write_the_same_bytes(folder):
    before = contents(folder / "bin")
    for threads in (1, 5):
        config = BinarizeConfig(bpe_dropout=0.2, bpe_variants=NUM_VARIANTS, threads=threads)
        binarize(folder, config, force=True)
        assert contents(folder / "bin") == before
    code = f"""
from pathlib import Path
from tfm.config import BinarizeConfig
from tfm.text import lines
from helpers import binarize

lines._BLOCK_BYTES = 1000
binarize(Path({str(folder)!r}), {DROPOUT!r}, force=True)
"""
    helpers = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], cwd=helpers, check=True)
    assert contents(folder / "bin") == before


class Pieces:
    """A model with some pieces of text, of which the first are merged first."""

    def __init__(self, *pieces):
        self._pieces = ["<unk>", *sorted(set("".join(pieces))), *pieces]

    def __len__(self):
        return len(self._pieces)

    def IdToPiece(self, number):  # noqa: N802
        return self._pieces[number]

    def GetScore(self, number):  # noqa: N802
        return -float(number)

    def IsUnknown(self, number):  # noqa: N802
        return number == 0

    def IsControl(self, number):  # noqa: N802
        return False

    IsUnused = IsByte = IsControl

    def EncodeAsIds(self, lines, **options):  # noqa: N802
        return [[self._pieces.index(each) for each in line.decode()] for line in lines]


def test_each_possible_merge_is_left_out_with_the_same_probability():
    model, lines, dropout = Pieces("ab", "bc", "abc"), [b"abc"] * 40_000, 0.3
    ids, lengths = BpeDropout(model).encode(lines, dropout, np.random.default_rng(1))
    drawn = [tuple(each.tolist()) for each in np.split(ids, np.cumsum(lengths)[:-1])]
    a, b, c, ab, bc, abc = range(1, 7)
    first = 1 - dropout  # ab is learned first; then it is merged with c
    second = dropout * (1 - dropout)  # only bc is left; then it is merged with a
    expected = {
        (abc,): (first + second) * (1 - dropout),
        (ab, c): first * dropout,
        (a, bc): second * dropout,
        (a, b, c): dropout * dropout,
    }
    shares = {each: drawn.count(each) / len(drawn) for each in set(drawn)}
    assert shares == pytest.approx(expected, abs=0.01)


def test_words_and_lines_are_segmented_apart():
    text = [b"ab\xe2\x96\x81ab", b"", b"b", b"ab"]
    model = Pieces("ab", "ba", "b\u2581")
    ids, lengths = BpeDropout(model).encode(text, 0.0, np.random.default_rng(1))
    assert lengths.tolist() == [3, 0, 1, 1]
    assert [model.IdToPiece(i) for i in ids] == ["ab", "\u2581", "ab", "b", "ab"]


def test_without_dropout_text_is_segmented_as_by_the_model(folder):
    content = (folder / "bpe.model").read_bytes()
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    random = np.random.default_rng(1)
    known = (folder / "train.en").read_text().split("\n")
    codes = [*range(32, 127), 0x2581, 0x2581, 0xDF, 0x4E2D, 0x1F600, *map(ord, "aehlot   ")]
    odd = ["".join(map(chr, random.choice(codes, size))) for size in random.integers(0, 30, 2_000)]
    lines = [line.encode() for line in (*known, *odd)]
    ids, lengths = BpeDropout(model).encode(lines, 0.0, random)
    expected = model.EncodeAsIds(lines)
    assert lengths.tolist() == [*map(len, expected)]
    assert ids.tolist() == [number for line in expected for number in line]


def test_variants_are_the_same_text_in_other_and_more_pieces(folder):
    model, dataset = Vocabulary.load(folder).source, opened(folder)
    assert (len(dataset), dataset.num_variants) == (NUM_PAIRS, NUM_VARIANTS)
    plain, *variants = by_variant(dataset.source)
    assert plain == model.encode(model.decode(plain))
    assert len(variants) == NUM_VARIANTS
    for number, variant in enumerate(variants):
        assert model.decode(variant) == model.decode(plain)
        assert variant not in variants[:number]
        assert sum(map(len, variant)) > 1.05 * sum(map(len, plain))


def test_another_seed_draws_other_variants(folder):
    before = contents(folder / "bin")
    assert binarize(folder, BinarizeConfig(bpe_dropout=0.2, bpe_variants=NUM_VARIANTS, seed=2))
    assert contents(folder / "bin")["train.en.tokens.npy"] == before["train.en.tokens.npy"]
    assert contents(folder / "bin")["train.v1.en.tokens.npy"] != before["train.v1.en.tokens.npy"]
    first = DatasetIndex.load(folder / "bin").checksum("train")
    assert binarize(folder, DROPOUT)
    assert contents(folder / "bin") == before
    assert DatasetIndex.load(folder / "bin").checksum("train") != first
    assert not binarize(folder, DROPOUT)


def test_variants_have_the_same_pairs_and_keep_the_length_limit(folder):
    sides = (opened(folder).source, opened(folder).target)
    lengths = np.max([[len(ids) for ids in side] for side in sides], axis=0)
    limit = int(np.quantile(lengths[:NUM_PAIRS], 0.9))
    assert (lengths[NUM_PAIRS:] > limit).mean() > 0.15
    binarize(folder, BinarizeConfig(bpe_dropout=0.2, bpe_variants=NUM_VARIANTS, max_length=limit))
    dataset, model = opened(folder), Vocabulary.load(folder).target
    assert len(dataset) == (lengths[:NUM_PAIRS] <= limit).sum() < NUM_PAIRS
    assert dataset.source.longest <= limit
    assert dataset.target.longest == limit
    sentences = model.decode(dataset.target)
    assert sentences == sentences[: len(dataset)] * (1 + NUM_VARIANTS)
    binarize(folder, DROPOUT)


def test_epochs_take_the_variants_in_turn_and_are_planned_by_their_lengths(folder):
    dataset = opened(folder)
    config = BatchingConfig(batch_tokens=300, bucket_tokens=100)
    batcher = Batcher(dataset, config, seed=1)
    for epoch in range(1, 2 * NUM_VARIANTS + 1):
        batches = batcher.epoch(epoch)
        rows = np.concatenate(batches)
        variant = 1 + (epoch - 1) % NUM_VARIANTS
        assert sorted(rows) == list(range(variant * NUM_PAIRS, (variant + 1) * NUM_PAIRS))
        assert sorted(batcher.pairs(rows)) == list(range(NUM_PAIRS))
        sizes = [batcher.batch(each).num_tokens for each in batches]
        assert sum(sizes) == (dataset.target.lengths(rows) + 1).sum()
        assert np.mean(sizes[:-1]) == pytest.approx(300, rel=0.15)
        assert abs(len(batches) - batcher.num_batches()) <= 2
    assert [rows.tolist() for rows in batcher.epoch(1)] != [
        (rows - NUM_VARIANTS * NUM_PAIRS).tolist() for rows in batcher.epoch(1 + NUM_VARIANTS)
    ]


def test_models_without_merges_are_refused(tmp_path, make_dataset):
    pairs = list(number_pairs("train", num_pairs=50, seed=1))
    folder = make_dataset(tmp_path / "x", {"train": pairs}, vocab_size=330)
    assert Vocabulary.load(folder).source.is_bpe
    binarize(folder, DROPOUT)
    learn_bpe(folder, SubwordConfig(vocab_size=330, model_type="unigram"))
    with pytest.raises(UsageError, match="bpe_dropout needs subword models that merge pieces"):
        binarize(folder, DROPOUT)


def test_a_wrong_number_of_variants_in_the_index_is_damage(folder):
    path = folder / "bin" / "dataset.json"
    content = path.read_text()
    path.write_text(content.replace(f'"num_variants": {NUM_VARIANTS}', '"num_variants": 1'))
    with pytest.raises(DataError, match=r"variants are of other pairs"):
        opened(folder)
    path.write_text(content)


def test_counts_tell_tokens_of_variants_from_those_of_the_text(folder):
    counts = Manifest.load(folder).result("binarize")["train"]
    lengths = [len(ids) for ids in opened(folder).source]
    assert (counts["read"], counts["kept"], counts["variants"]) == (NUM_PAIRS, NUM_PAIRS, 3)
    assert counts["tokens"][0] == sum(lengths[:NUM_PAIRS])
    assert counts["variant_tokens"][0] == sum(lengths[NUM_PAIRS:])
