"""BPE-dropout: segmentations that leave out merges at random."""

import numpy as np
import pytest
import sentencepiece
from helpers import number_pairs

from tfm.vocabulary.bpe_dropout import BpeDropout


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


def test_without_dropout_text_is_segmented_as_by_the_model(tmp_path, make_dataset):
    pairs = list(number_pairs("train", num_pairs=200, seed=1))
    folder = make_dataset(tmp_path / "x", {"train": pairs}, vocab_size=400)
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
