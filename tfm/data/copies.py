"""Copies of training pairs as people also write: in capitals, unpunctuated, with typos."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tfm.data.dataset import Rows
from tfm.data.text import Block, BytesPair

_WORD = re.compile(r"\S+")
_TYPO_WORD = re.compile(r"[^\W\d_]{4,}")  # typos in shorter words would often be other words
_WORDS_PER_TYPO = 8
_FINAL_PUNCTUATION = ".!?…。！？।؟"


class Copier:
    """Adds changed copies of pairs to blocks of text; equal text gives equal copies.

    Capitals, title case and missing final punctuation change both sides. Typos change the source
    only, so that the model learns to correct them. A copy whose source did not change is left out.

    Args:
        shares: {kind, one of `COPIES`: probability that a pair gets a copy of this kind}.
        tags: What may precede the text of a source; it is left as it is.
        seed: Random seed.
    """

    def __init__(self, shares: Mapping[str, float], *, tags: Sequence[str], seed: int) -> None:
        self._changes = [COPIES[kind] for kind, share in shares.items() if share]
        self._shares = [share for share in shares.values() if share]
        self._tag = re.compile("|".join(f"{re.escape(tag)} " for tag in tags))
        self._seed = seed

    def copy(self, block: Block, *, start: int) -> tuple[Block, Rows]:
        """Return a block with each pair followed by its copies.

        Args:
            block: Pairs of lines.
            start: Number of pairs in the blocks before.

        Returns:
            The longer block, and the numbers [N] of all its pairs in the text, from 0.
        """
        sources, targets = block
        if not self._shares:
            return block, np.arange(start, start + len(sources))
        random = np.random.default_rng([self._seed, start])
        is_chosen = random.random((len(sources), len(self._shares))) < self._shares
        copies: dict[int, list[BytesPair]] = {}
        for number, kind in np.argwhere(is_chosen).tolist():
            pair = sources[number].decode(), targets[number].decode()
            changed = self._changed(*pair, self._changes[kind], random)
            if changed is not None:
                copies.setdefault(number, []).append((changed[0].encode(), changed[1].encode()))
        pairs = (
            (number, *pair)
            for number, original in enumerate(zip(sources, targets, strict=True), start)
            for pair in (original, *copies.get(number - start, ()))
        )
        all_numbers, sources, targets = map(list, zip(*pairs, strict=True))
        return (sources, targets), np.array(all_numbers)

    def _changed(
        self, source: str, target: str, change: "Change", random: np.random.Generator
    ) -> tuple[str, str] | None:
        """Return a changed pair; None if the change has no effect on its source, or empties it."""
        match = self._tag.match(source)
        tag = match[0] if match else ""
        text = source.removeprefix(tag)
        changed, target = change(text, target, random)
        return (tag + changed, target) if changed.strip() not in ("", text.strip()) else None


# Returns a changed source and target.
Change = Callable[[str, str, np.random.Generator], tuple[str, str]]


def _upper(source: str, target: str, _: np.random.Generator) -> tuple[str, str]:
    return source.upper(), target.upper()


def _title(source: str, target: str, _: np.random.Generator) -> tuple[str, str]:
    def capitalized(text: str) -> str:
        # str.title would also capitalize the s of it's.
        return _WORD.sub(lambda word: word[0][:1].title() + word[0][1:], text)

    return capitalized(source), capitalized(target)


def _unpunctuated(source: str, target: str, _: np.random.Generator) -> tuple[str, str]:
    return (
        source.rstrip(_FINAL_PUNCTUATION + " "),
        target.rstrip(_FINAL_PUNCTUATION + " ") or target,
    )


def _typos(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    words = [*_TYPO_WORD.finditer(source)]
    num_typos = -(-len(words) // _WORDS_PER_TYPO)
    chosen = random.permutation(len(words))[:num_typos]
    for index in sorted(chosen, reverse=True):
        start, end = words[index].span()
        source = source[:start] + _typo(source[start:end], random) + source[end:]
    return source, target


def _typo(word: str, random: np.random.Generator) -> str:
    """Return a word with two letters swapped, or one missing or doubled; its first letter stays."""
    index = random.integers(1, len(word) - 1)
    first, second = word[index], word[index + 1]
    letters = (second + first, second, first + first + second)[random.integers(3)]
    return word[:index] + letters + word[index + 2 :]


COPIES: Mapping[str, Change] = {
    "upper": _upper,
    "title": _title,
    "unpunctuated": _unpunctuated,
    "typo": _typos,
}
