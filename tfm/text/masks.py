"""Masks in the place of words of both sides, by which models learn to copy: see `Masker`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import regex

from tfm.text.units import IN_WORD, Span

# Text of few pieces in any vocabulary with Latin letters and digits, which sentences do not have.
MASKS = tuple(f"QX{number}" for number in range(1, 10))

_MAX_MASKED = 3  # words of a pair
_PLACES = ("{mask}", "{mask}", "{mask} {word}", "{word} {mask}")
_MIN_PAIRS = 3  # that have both words, to call them translations of each other
_MIN_DICE = 0.4
_MAX_SHARE = 0.1  # of the pairs that have a word: others are function words
# Digits, and words of more than one letter, that are not parts of longer words, numbers or names.
_WORD = regex.compile(
    r"(?<![-'’@/.,:]|X)(?:X{2,}+|\p{N})(?![-'’@/]|X|[.,:]X)".replace("X", IN_WORD.pattern),
    regex.VERSION1,
)


class Masker:
    """Puts equal masks in the place of words and their translations, or beside them.

    Words are translations of each other if they are equal or often in the same pairs, by the
    coefficient of Dice, and no other word of the pair is a better one for either of them.

    Args:
        sources: The texts from which the translations of words are learned.
        targets: The translation of each.
    """

    def __init__(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        sides = [[_words(text).keys() for text in side] for side in (sources, targets)]
        self._counts = [Counter(word for words in side for word in words) for side in sides]
        self._most = max(_MIN_PAIRS, _MAX_SHARE * len(sources))
        source_words, target_words = (
            {word for word, count in counts.items() if _MIN_PAIRS <= count <= self._most}
            for counts in self._counts
        )
        self._joint = Counter(
            pair
            for source, target in zip(*sides, strict=True)
            for pair in product(source & source_words, target & target_words)
        )

    def masked(
        self, source: str, target: str, random: np.random.Generator
    ) -> tuple[str, str] | None:
        """Return a pair with up to three masks; None if it has no words to mask."""
        sides = _words(source), _words(target)
        pairs = ((self._dice(*pair), pair) for pair in product(*sides))
        scores = {pair: score for score, pair in pairs if score >= _MIN_DICE}
        links = [
            (word, other)
            for (word, other), score in scores.items()
            if sum(each >= score for (a, b), each in scores.items() if a == word or b == other) == 1
        ]
        if not links:
            return None
        chosen = random.permutation(sorted(links))[: random.integers(1, _MAX_MASKED + 1)].tolist()
        masks = random.permutation(MASKS)[: len(chosen)].tolist()
        places = random.choice(_PLACES, size=len(chosen)).tolist()
        texts = []
        for side, text in enumerate((source, target)):
            spans = [sides[side][pair[side]] for pair in chosen]
            written = (
                place.format(mask=mask, word=text[slice(*span)])
                for place, mask, span in zip(places, masks, spans, strict=True)
            )
            texts.append(with_masks(text, dict(zip(spans, written, strict=True))))
        return texts[0], texts[1]

    def _dice(self, source: str, target: str) -> float:
        counts = self._counts[0][source], self._counts[1][target]
        if source == target and max(counts) <= self._most:
            return 1.0
        together = self._joint[source, target]
        return 2 * together / sum(counts) if together >= _MIN_PAIRS else 0.0


def with_masks(text: str, masks: Mapping[Span, str]) -> str:
    """Return a text with masks in the place of spans."""
    for (start, end), mask in sorted(masks.items(), reverse=True):
        text = text[:start] + mask + text[end:]
    return text


def _words(text: str) -> dict[str, Span]:
    """Return the words that a text has once, in lower case, and their spans."""
    found = [(each[0].casefold(), each.span()) for each in _WORD.finditer(text)]
    counts = Counter(word for word, _ in found)
    return {word: span for word, span in found if counts[word] == 1}
