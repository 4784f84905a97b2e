"""The last word of a prefix, which a search may spell in other pieces, and continue.

The subword model splits "Hun" into other pieces than the "Hun" of "Hunde", so that no model would
continue them to this word. Instead, the tokens after the words before it must spell "Hun", and the
last of them may spell more ("token healing"). A word that is complete may be continued, too: only a
space after it says that it has ended.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tfm.vocabulary.subword import UNK

Array: TypeAlias = npt.NDArray[Any]

# Words of more pieces are open at their end only, and so is text without spaces.
_MAX_OPEN_PIECES = 4


class SpellingStep(NamedTuple):
    """The tokens that may follow when a part of an open end is spelled."""

    tokens: Array  # [N] ascending
    # [N] number of bytes that are spelled after each; larger than the open end if it continues
    ends: Array


# For each number of bytes that are spelled so far; empty without an open end.
OpenEnd: TypeAlias = Sequence[SpellingStep]


def next_step(open_end: OpenEnd, tokens: Sequence[int]) -> SpellingStep | None:
    """Return the next tokens of an open end after some tokens; None if these spell all of it."""
    spelled = 0
    for token in tokens:
        step = open_end[spelled]
        place = int(np.searchsorted(step.tokens, token))
        if place == len(step.tokens) or step.tokens[place] != token:
            return None  # the token of a hypothesis that is not continued
        spelled = int(step.ends[place])
        if spelled >= len(open_end):
            return None
    return open_end[spelled] if open_end else None


class Spellings:
    """The tokens that spell any text.

    Args:
        surfaces: The text of each token, in UTF-8; empty for special tokens.
    """

    def __init__(self, surfaces: Sequence[bytes]) -> None:
        self.surfaces = surfaces
        usable = (token for token, surface in enumerate(surfaces) if surface and token != UNK)
        self._order = sorted(usable, key=surfaces.__getitem__)
        self._sorted = [surfaces[token] for token in self._order]
        self._open_end = lru_cache(maxsize=1 << 10)(self._spell)

    def beginning_with(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that begin with a text."""
        for index in range(bisect_left(self._sorted, text), len(self._sorted)):
            if not self._sorted[index].startswith(text):
                break
            yield self._order[index]

    def open(
        self, prefixes: Sequence[Sequence[int]], max_positions: int | None
    ) -> tuple[list[Sequence[int]], list[OpenEnd]]:
        """Divide prefixes into the tokens that are fixed, and their open ends.

        An end is not open if its spelling could exceed the maximum number of positions.
        """
        fixed: list[Sequence[int]] = []
        open_ends: list[OpenEnd] = []
        for prefix in prefixes:
            num_fixed = len(prefix)
            for token in prefix[: -1 - _MAX_OPEN_PIECES : -1]:
                if token == UNK:
                    break
                num_fixed -= 1
                if self.surfaces[token].startswith(b" "):
                    break
            text = b"".join(self.surfaces[token] for token in prefix[num_fixed:])
            if max_positions is not None and num_fixed + len(text) >= max_positions:
                num_fixed, text = len(prefix), b""
            fixed.append(prefix[:num_fixed])
            open_ends.append(self._open_end(text))
        return fixed, open_ends

    def _spell(self, text: bytes) -> OpenEnd:
        """Return the steps that spell a text; after each of them, the rest can be spelled."""
        steps: dict[int, dict[int, int]] = {len(text): {}}
        for start in range(len(text) - 1, -1, -1):
            following = self.beginning_with(text[start:])
            found = {token: start + len(self.surfaces[token]) for token in following}
            for end in steps.keys() - {len(text)}:
                part = text[start:end]
                same = slice(bisect_left(self._sorted, part), bisect_right(self._sorted, part))
                found |= dict.fromkeys(self._order[same], end)
            if found:
                steps[start] = found
        return [
            SpellingStep(*np.array(sorted(steps.get(start, {}).items()), np.int64).reshape(-1, 2).T)
            for start in range(len(text))
        ]
