"""Generate a binarized dataset of random token ids, for benchmarks.

The lengths follow WMT16 English-German with a joint vocabulary of 32,000 merges, whose 4.5 million
pairs have 132.9 million English and 137.6 million German tokens.
"""

from pathlib import Path

import numpy as np

from tfm.dataset.manifest import BINARIZE, Manifest
from tfm.dataset.parallel import DatasetIndex, Ids, Integers, ShardIds, id_dtype
from tfm.text.corpus.recipe import Recipe
from tfm.vocabulary.learning import learn_word_model
from tfm.vocabulary.subword import UNK, Vocabulary, model_paths

VOCAB_SIZE = 37_000  # Vaswani et al. 2017, §5.1

_LANGUAGES = ("en", "de")
_MEAN_LENGTHS = np.array([29.5, 30.6])  # with EOS
_MAX_LENGTH = 256
# Standard deviations of the logarithms of lengths. They match those of Europarl and News
# Commentary, where the standard deviations of lengths are 0.56 and 0.58 times their means.
_DEVIATIONS = np.array([0.52, 0.535])
_CORRELATION = 0.95
# Zipf's law: the frequency of the piece of rank r is proportional to 1 / (r + shift).
_ZIPF_SHIFT = 2.7


def sentence_lengths(num_pairs: int, *, random: np.random.Generator) -> Integers:
    """Draw the lengths [num_pairs, 2] of sentence pairs in tokens, EOS included."""
    covariance = np.outer(_DEVIATIONS, _DEVIATIONS)
    covariance[[0, 1], [1, 0]] *= _CORRELATION
    logarithms = random.multivariate_normal(
        np.log(_MEAN_LENGTHS) - _DEVIATIONS**2 / 2, covariance, size=num_pairs
    )
    return np.clip(np.rint(np.exp(logarithms)), 2, _MAX_LENGTH).astype(np.int64)


def write_token_dataset(
    data_dir: Path, *, num_pairs: int, vocab_size: int = VOCAB_SIZE, seed: int = 1
) -> None:
    """Write a dataset folder for training; it has no text and no other splits."""
    random = np.random.default_rng(seed)
    source, target = _LANGUAGES
    bin_dir = data_dir / "bin"
    bin_dir.mkdir(parents=True)
    lengths = sentence_lengths(num_pairs, random=random) - 1  # EOS is added to each batch
    for side, language in enumerate(_LANGUAGES):
        offsets = np.concatenate([[0], np.cumsum(lengths[:, side])])
        ids = _zipf_ids(int(offsets[-1]), vocab_size=vocab_size, random=random)
        np.save(bin_dir / f"train.{language}.tokens.npy", ids)
        np.save(bin_dir / f"train.{language}.offsets.npy", offsets.astype(np.uint32))
    vocabulary = _write_vocabulary(data_dir, vocab_size)
    DatasetIndex(
        source=source,
        target=target,
        fingerprint=vocabulary.fingerprint,
        shards={"train": (ShardIds.of_files(bin_dir, "train", _LANGUAGES),)},
    ).save(bin_dir)
    manifest = Manifest.draft(data_dir, Recipe(name="synthetic", source=source, target=target))
    # The ids are drawn at random, not encoded from text.
    manifest.record(BINARIZE, inputs={"text": {}}, outputs=bin_dir.iterdir(), result={})
    manifest.save()


def _zipf_ids(count: int, *, vocab_size: int, random: np.random.Generator) -> Ids:
    """Draw ids [count] of ordinary pieces, by the inverse of Zipf's distribution function."""
    num_pieces = vocab_size - UNK - 1
    growth = np.float32(np.log1p(num_pieces / _ZIPF_SHIFT))
    ranks = _ZIPF_SHIFT * np.expm1(random.random(count, dtype=np.float32) * growth)
    ids: Ids = (UNK + 1 + np.minimum(ranks, num_pieces - 1)).astype(id_dtype(vocab_size))
    return ids


def _write_vocabulary(data_dir: Path, vocab_size: int) -> Vocabulary:
    """Write a vocabulary of `vocab_size` invented words."""
    text = data_dir / f"train.{_LANGUAGES[0]}"
    text.write_text("".join(f"w{number}\n" for number in range(vocab_size - UNK - 1)))
    model = learn_word_model([text])
    text.unlink()
    [path] = model_paths(data_dir, separate=False)
    path.write_bytes(model.content)
    return Vocabulary(model, model)
