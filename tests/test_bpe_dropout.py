"""BPE-dropout: stored variants of the segmentation, which epochs take in turn."""

import numpy as np
import pytest

from tfm.config import BatchingConfig, BinarizeConfig, SubwordConfig
from tfm.data import text
from tfm.data.batching import Batcher
from tfm.data.dataset import DatasetIndex, ParallelDataset
from tfm.data.manifest import Manifest
from tfm.data.subword import Vocabulary
from tfm.data.synthetic.corpus import generate_pairs
from tfm.errors import DataError, UsageError
from tfm.stages.binarize import binarize
from tfm.stages.learn_bpe import learn_bpe
from tfm.stages.train import train

VOCAB_SIZE, NUM_PAIRS, NUM_VARIANTS = 400, 200, 3
DROPOUT = BinarizeConfig(bpe_dropout=0.2, bpe_variants=NUM_VARIANTS)


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Divide the text into several blocks, so that threads could mix them up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_BLOCK_BYTES", 1000)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset):
    """A dataset with variants; tests must leave it as it is."""
    sizes = {"train": NUM_PAIRS, "valid": 12, "test": 12}
    splits = {
        split: list(generate_pairs(split, num_pairs=size, seed=1)) for split, size in sizes.items()
    }
    made = make_dataset(tmp_path_factory.mktemp("data") / "x", splits, vocab_size=VOCAB_SIZE)
    binarize(made, DROPOUT)
    return made


def opened(folder, split="train"):
    return ParallelDataset(folder / "bin", split, vocab_sizes=(VOCAB_SIZE, VOCAB_SIZE))


def by_variant(sequences):
    sentences = list(sequences)
    return [sentences[i : i + NUM_PAIRS] for i in range(0, len(sentences), NUM_PAIRS)]


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "bin").iterdir())}


def test_runs_with_any_number_of_threads_write_the_same_bytes(folder):
    before = contents(folder)
    for threads in (1, 2, 5):
        config = BinarizeConfig(bpe_dropout=0.2, bpe_variants=NUM_VARIANTS, threads=threads)
        binarize(folder, config, force=True)
        assert contents(folder) == before


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
    before = contents(folder)
    assert binarize(folder, BinarizeConfig(bpe_dropout=0.2, bpe_variants=NUM_VARIANTS, seed=2))
    assert contents(folder)["train.en.tokens.npy"] == before["train.en.tokens.npy"]
    assert contents(folder)["train.v1.en.tokens.npy"] != before["train.v1.en.tokens.npy"]
    assert binarize(folder, DROPOUT)
    assert contents(folder) == before
    assert not binarize(folder, DROPOUT)


def test_other_splits_and_pairs_without_dropout_are_those_of_a_dataset_without_it(folder):
    with_dropout, plain = contents(folder), by_variant(opened(folder).source)[0]
    binarize(folder, BinarizeConfig())
    without = contents(folder)
    assert list(opened(folder).source) == plain
    assert DatasetIndex.load(folder / "bin").num_variants == 0
    names = [name for name in without if name.startswith(("valid", "test"))]
    assert len(names) == 8
    assert [without[name] for name in names] == [with_dropout[name] for name in names]
    binarize(folder, DROPOUT)


def test_variants_have_the_same_pairs_and_keep_the_length_limit(folder):
    lengths = np.maximum(opened(folder).source.lengths(), opened(folder).target.lengths())
    limit = int(np.quantile(lengths[:NUM_PAIRS], 0.9))
    assert (lengths[NUM_PAIRS:] > limit).mean() > 0.2
    binarize(folder, BinarizeConfig(bpe_dropout=0.2, bpe_variants=NUM_VARIANTS, max_length=limit))
    dataset, model = opened(folder), Vocabulary.load(folder).target
    assert len(dataset) == (lengths[:NUM_PAIRS] <= limit).sum() < NUM_PAIRS
    assert dataset.source.lengths().max() <= limit
    assert dataset.target.lengths().max() == limit
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


@pytest.mark.parametrize("stop_after", [5, 23])
def test_a_run_resumes_to_the_bit_in_any_variant(folder, tiny_run, tmp_path, stop_after):
    def run(max_steps):
        training = {"max_steps": max_steps, "checkpoint_steps": 50, "validation_beam": 0}
        return tiny_run(training=training)

    train(folder, tmp_path / "at-once", run(30))
    for max_steps in (stop_after, 30):
        train(folder, tmp_path / "resumed", run(max_steps))
    weights = [
        next((tmp_path / name / "checkpoints").glob("step-*30/model.safetensors")).read_bytes()
        for name in ("at-once", "resumed")
    ]
    assert weights[0] == weights[1]


def test_a_dataset_with_another_number_of_variants_is_other_data(folder):
    index = DatasetIndex.load(folder / "bin")
    binarize(folder, BinarizeConfig(bpe_dropout=0.2, bpe_variants=2))
    other = DatasetIndex.load(folder / "bin")
    assert index.checksum("train") != other.checksum("train")
    binarize(folder, DROPOUT)


@pytest.mark.parametrize(
    "subword", [{"model_type": "unigram"}, {"separate": True, "target_words": True}]
)
def test_models_without_merges_are_refused(tmp_path, make_dataset, subword):
    pairs = list(generate_pairs("train", num_pairs=50, seed=1))
    folder = make_dataset(tmp_path / "x", {"train": pairs}, vocab_size=330)
    assert Vocabulary.load(folder).source.is_bpe
    binarize(folder, DROPOUT)
    learn_bpe(folder, SubwordConfig(vocab_size=330, **subword))
    with pytest.raises(UsageError, match="bpe_dropout needs subword models that merge pieces"):
        binarize(folder, DROPOUT)


def test_variants_without_dropout_are_refused():
    [problem] = BinarizeConfig(bpe_variants=4).problems()
    assert problem.startswith("bpe_variants has no effect without BPE-dropout")
    [problem] = BinarizeConfig(seed=4).problems()
    assert problem.startswith("seed has no effect")
    assert not list(BinarizeConfig(bpe_variants=4, bpe_dropout=0.1, seed=4).problems())


def test_a_wrong_number_of_variants_in_the_index_is_damage(folder):
    path = folder / "bin" / "dataset.json"
    content = path.read_text()
    path.write_text(content.replace(f'"num_variants": {NUM_VARIANTS}', '"num_variants": 1'))
    with pytest.raises(DataError, match=r"variants are of other pairs"):
        opened(folder)
    path.write_text(content)


def test_counts_tell_tokens_of_variants_from_those_of_the_text(folder):
    counts = Manifest.load(folder).result("binarize")["train"]
    lengths = opened(folder).source.lengths()
    assert (counts["read"], counts["kept"], counts["variants"]) == (NUM_PAIRS, NUM_PAIRS, 3)
    assert counts["tokens"][0] == lengths[:NUM_PAIRS].sum()
    assert counts["variant_tokens"][0] == lengths[NUM_PAIRS:].sum()
