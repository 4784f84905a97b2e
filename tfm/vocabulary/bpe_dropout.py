"""BPE-dropout (Provilkov et al. 2020): segmentations that leave out merges at random.

SentencePiece has it, too, but since version 0.2.2 its random numbers differ from process to
process, whatever the seed. Here, the words of a block are merged side by side in NumPy.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

_SPACE = "\u2581"  # as SentencePiece writes it
_NEVER = np.iinfo(np.int64).max  # the rank of two pieces that are not merged

Ints = npt.NDArray[np.int64]
TokenIds = tuple[npt.NDArray[np.int32], Ints]  # of lines one after another, and their numbers


class BpeDropout:
    """Segments text with the merges of a SentencePiece model for BPE.

    At each step, every possible merge of a word is left out with some probability, and the
    remaining merge of the highest rank is applied, until none remains.

    Args:
        processor: The SentencePieceProcessor.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        numbers = range(len(processor))
        pieces = [processor.IdToPiece(i) for i in numbers]
        kinds = (processor.IsControl, processor.IsUnknown, processor.IsUnused, processor.IsByte)
        ids = {pieces[i]: i for i in numbers if not any(is_kind(i) for is_kind in kinds)}
        merges = np.array(
            [
                (ids[piece[:cut]] * len(pieces) + ids[piece[cut:]], number)
                for piece, number in ids.items()
                for cut in range(1, len(piece))
                if piece[:cut] in ids and piece[cut:] in ids
            ],
            dtype=np.int64,
        ).reshape(-1, 2)
        merges = merges[np.argsort(merges[:, 0])]
        self._pairs = np.append(merges[:, 0], _NEVER)  # left · V + right
        self._merged = np.append(merges[:, 1], 0)
        scores = np.array([processor.GetScore(i) for i in numbers])
        self._ranks = np.argsort(np.argsort(-scores, kind="stable"))[self._merged]
        # Some models have pieces with spaces inside; their lines are merged as one word.
        merges_words = any(_SPACE in piece[1:].rstrip(_SPACE) for piece in ids)
        self._begins_word = np.array([not merges_words and p.startswith(_SPACE) for p in pieces])

    def encode(self, lines: list[bytes], dropout: float, random: np.random.Generator) -> TokenIds:
        """Encode lines [B] of UTF-8 to their concatenated token ids [N], and their numbers [B].

        Without dropout, these are the model's own.
        """
        # SentencePiece leaves out all merges: this gives characters, bytes and whole tags.
        split = self._processor.EncodeAsIds(
            lines, num_threads=1, enable_sampling=True, nbest_size=-1, alpha=1.0
        )
        lengths = np.fromiter(map(len, split), dtype=np.int64, count=len(split))
        symbols = np.fromiter((i for ids in split for i in ids), np.int64, count=lengths.sum())
        begins_word = self._begins_word[symbols]
        begins_word[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        words = np.cumsum(begins_word) - 1
        line_of_word = np.repeat(np.arange(len(lines)), lengths)[begins_word]
        symbols, words = self._merge(symbols, words, dropout, random)
        lengths = np.bincount(line_of_word[words], minlength=len(lines))
        return symbols.astype(np.int32), lengths

    def _merge(
        self, symbols: Ints, words: Ints, dropout: float, random: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Merge symbols [N] of the words with these numbers [N], which ascend; return the same."""
        done: list[tuple[Ints, Ints]] = [(symbols[:0], words[:0])]
        while len(symbols):
            pairs = symbols[:-1] * len(self._begins_word) + symbols[1:]
            places = np.searchsorted(self._pairs, pairs)
            is_merge = (self._pairs[places] == pairs) & (words[:-1] == words[1:])
            is_merge &= random.random(len(pairs)) >= dropout
            ranks = np.append(np.where(is_merge, self._ranks[places], _NEVER), _NEVER)
            starts = np.flatnonzero(np.diff(words, prepend=-1))
            best = np.minimum.reduceat(ranks, starts)
            sizes = np.diff(starts, append=len(symbols))
            chosen = np.flatnonzero((ranks == np.repeat(best, sizes)) & (ranks < _NEVER))
            chosen = chosen[np.diff(words[chosen], prepend=-1) > 0]  # the leftmost of each word
            symbols[chosen] = self._merged[places[chosen]]
            is_kept = np.ones(len(symbols), dtype=bool)
            is_kept[chosen + 1] = False
            is_active = np.repeat(best < _NEVER, sizes)
            is_done, is_active = is_kept & ~is_active, is_kept & is_active
            done.append((symbols[is_done], words[is_done]))
            symbols, words = symbols[is_active], words[is_active]
        symbols, words = (np.concatenate(each) for each in zip(*done, strict=True))
        order = np.argsort(words, kind="stable")
        return symbols[order], words[order]
