"""Generated token datasets: realistic lengths and ids."""

import numpy as np
import pytest

from tfm.config import run_config
from tfm.data.dataset import ParallelDataset
from tfm.data.subword import UNK
from tfm.data.synthetic.token_dataset import VOCAB_SIZE, sentence_lengths, write_token_dataset
from tfm.training.data import open_data


@pytest.fixture(scope="module")
def lengths():
    return sentence_lengths(100_000, random=np.random.default_rng(1))


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """A dataset of 3,000 pairs."""
    folder = tmp_path_factory.mktemp("data") / "generated"
    write_token_dataset(folder, num_pairs=3_000)
    return folder


def test_lengths_have_the_mean_and_deviation_of_wmt16(lengths):
    means = lengths.mean(axis=0)
    assert means == pytest.approx([29.5, 30.6], rel=0.01)
    assert lengths.std(axis=0) / means == pytest.approx([0.56, 0.58], abs=0.02)


def test_lengths_of_both_sides_are_correlated(lengths):
    assert 0.92 < np.corrcoef(lengths.T)[0, 1] < 0.96


def test_lengths_are_bounded(lengths):
    assert lengths.min() >= 2  # a token and EOS
    assert lengths.max() <= 256


def test_a_generated_dataset_can_be_opened_for_training(generated):
    data = open_data(generated, run_config("base"))
    assert data.info.vocab_sizes == (VOCAB_SIZE, VOCAB_SIZE)
    assert len(data.train) == 3_000
    assert data.valid is None
    sides = (data.train.source, data.train.target)
    with_eos = [side.lengths().mean() + 1 for side in sides]
    assert with_eos == pytest.approx([29.5, 30.6], rel=0.05)


def test_ids_are_pieces_with_a_zipf_distribution(generated):
    data = ParallelDataset(generated / "bin", "train", vocab_sizes=(VOCAB_SIZE, VOCAB_SIZE))
    ids = np.concatenate([np.array(sentence) for sentence in data.target])
    assert ids.min() == UNK + 1
    counts = np.bincount(ids, minlength=VOCAB_SIZE)
    assert counts.argmax() == UNK + 1
    assert np.sort(counts)[::-1][:100].sum() > len(ids) / 4
    assert ids.max() > 0.9 * VOCAB_SIZE


def test_the_seed_determines_the_dataset(generated, tmp_path):
    def files(folder):
        return {path.name: path.read_bytes() for path in (folder / "bin").glob("*.npy")}

    write_token_dataset(tmp_path / "same", num_pairs=3_000)
    write_token_dataset(tmp_path / "other", num_pairs=3_000, seed=2)
    assert files(tmp_path / "same") == files(generated)
    assert files(tmp_path / "other") != files(generated)
