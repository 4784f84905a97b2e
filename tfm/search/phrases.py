"""Phrases that an output must contain, as token ids, and which of them a hypothesis contains."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import regex

from tfm.data.languages import SENTENCE_MARKS
from tfm.data.subword import UNK, Vocabulary, escape
from tfm.data.units import IN_WORD

Array = npt.NDArray[Any]
Tokens = tuple[int, ...]

_MAX_CHARACTER_BYTES = 4  # of UTF-8
# The pieces of a phrase without a space before it are those after one of these.
_BEFORE = ("(", "„", "«", '"', "。", "-")
_NEEDS_SPACE = ".,;:!?…)]}%"  # after these, the words of a script with spaces
_LETTER = regex.compile(r"[\p{L}\p{N}]")
_MARK = regex.compile(r"\p{M}")


@dataclass(frozen=True)
class Phrase:
    """The token ids that spell a text which an output must contain.

    Attributes:
        opening: The spelling at the very beginning of an output.
        first: The spellings of the first word of a sentence.
        within: The spellings after other words.
    """

    opening: Tokens
    first: tuple[Tokens, ...]
    within: tuple[Tokens, ...]

    @cached_property
    def size(self) -> int:
        """The maximum number of tokens."""
        return max(map(len, (self.opening, *self.first, *self.within)))

    def tokens(self) -> set[int]:
        """Return the tokens of all spellings."""
        return set().union(self.opening, *self.first, *self.within)

    def first_tokens(self) -> set[int]:
        """Return the first token of each spelling."""
        return {tokens[0] for tokens in (self.opening, *self.first, *self.within)}

    def renumbered(self, ids: Array) -> "Phrase":
        """Return the phrase with other ids [V] for tokens."""

        def new(tokens: Tokens) -> Tokens:
            return tuple(ids[list(tokens)].tolist())

        return Phrase(new(self.opening), *(tuple(map(new, x)) for x in (self.first, self.within)))


class PhraseEncoder:
    """Spells phrases in the pieces of a vocabulary, as its subword model does within sentences."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._model, self._normalization = vocabulary.target, vocabulary.normalization
        self._surfaces = self._model.surfaces()
        self.encode = lru_cache(maxsize=1 << 12)(self._encode)

    def _encode(self, text: str, at_start: str) -> Phrase | None:
        """Return a phrase, which is `at_start` as the first word; None if pieces are lacking."""
        text, at_start = map(self._normalization.normalize, (text, at_start))
        opening, first, within = self._spaced(at_start), *map(self._spellings, (at_start, text))
        return Phrase(opening, first, within) if opening and first and within else None

    def _spaced(self, text: str) -> Tokens:
        tokens = tuple(self._model.encode([text])[0])
        return () if UNK in tokens else tokens

    def _spellings(self, text: str) -> tuple[Tokens, ...]:
        """Return the spellings after a space, if the script has spaces, and without a space."""
        spaced = self._spaced(text)
        joined = self._joined(text, spaced)
        is_unspaced = _LETTER.match(text) and not IN_WORD.match(text)
        found = [joined or spaced] if is_unspaced else [spaced, joined]
        return tuple(filter(None, dict.fromkeys(found)))

    def _joined(self, text: str, spaced: Tokens) -> Tokens:
        """Return the spelling of a text that has no space before it; empty if there is none."""
        expected = escape(text, self._model.escapes).encode()
        lists = self._model.encode([part for mark in _BEFORE for part in (mark, mark + text)])
        candidates = [
            tuple(whole[len(mark) :])
            for mark, whole in zip(lists[::2], lists[1::2], strict=True)
            if whole[: len(mark)] == mark
        ]
        for tokens in (*candidates, spaced[1:], spaced):
            if UNK not in tokens and b"".join(map(self._surfaces.__getitem__, tokens)) == expected:
                return tokens
        return ()


class Boundaries(NamedTuple):
    """What the texts of the tokens of a vocabulary begin and end with; all are [V]."""

    begins_in_word: Array  # with a character of a word
    ends_in_word: Array
    joins: Array  # begins with a mark or byte that belongs to the character before
    has_word: Array
    ends_sentence: Array
    needs_space: Array  # before a word

    @classmethod
    def of(cls, surfaces: Iterable[bytes]) -> "Boundaries":
        """Return the boundaries of tokens, given their texts in UTF-8."""
        rows = list(map(_boundaries, surfaces))
        return cls(*np.array(rows, dtype=bool).T)

    def chosen(self, pieces: Array) -> "Boundaries":
        """Return those of the pieces [V'] of a smaller vocabulary."""
        return Boundaries(*(each[pieces] for each in self))

    def may_begin(self, before: int | None, token: int) -> bool:
        """Return whether a phrase may begin with a token, whose text has the spaces it needs."""
        if before is not None and self.needs_space[before] and self.begins_in_word[token]:
            return False
        return self.separates(before, token)

    def separates(self, before: int | None, token: int) -> bool:
        """Return whether a word may begin with a token, or end before it."""
        if before is None:
            return True
        in_word = self.ends_in_word[before] and self.begins_in_word[token]
        return not (in_word or self.joins[token])


def _boundaries(surface: bytes) -> tuple[bool, ...]:
    """Return the fields of `Boundaries` for the text of a token."""
    first = surface[:_MAX_CHARACTER_BYTES].decode(errors="replace")[:1]
    last = surface[-_MAX_CHARACTER_BYTES:].decode(errors="replace")[-1:]
    return (
        bool(IN_WORD.match(first)),
        bool(IN_WORD.match(last)),
        b"\x80" <= surface[:1] < b"\xc0" or bool(_MARK.match(first)),
        bool(_LETTER.search(surface.decode(errors="replace"))),
        last != "" and last in SENTENCE_MARKS,
        last != "" and last in _NEEDS_SPACE,
    )


class _Part(NamedTuple):
    """The first tokens of a spelling, with which a hypothesis ends."""

    phrase: Phrase
    spelling: Tokens
    start: int


class _Match(NamedTuple):
    phrase: Phrase
    start: int
    end: int


class Progress(NamedTuple):
    """What a hypothesis contains of phrases.

    Attributes:
        length: Its number of tokens.
        newest: The last of them.
        has_word: Whether it has a letter or digit.
        matches: The phrases in it, in its order, which do not overlap.
        parts: Phrases that its last tokens begin.
    """

    length: int = 0
    newest: int | None = None
    has_word: bool = False
    matches: tuple[_Match, ...] = ()
    parts: tuple[_Part, ...] = ()


class RequiredPhrases:
    """The phrases that the output of a sentence must contain, each as often as it is given.

    A phrase counts if it begins and ends where words do: tokens that continue its last word undo
    it. Of phrases that overlap in a hypothesis, the longer one counts.
    """

    def __init__(self, phrases: Iterable[Phrase], boundaries: Boundaries) -> None:
        self._needed, self._boundaries = Counter(phrases), boundaries
        self._first_tokens = set().union(*(phrase.first_tokens() for phrase in self._needed))
        self.num_tokens = sum(phrase.size * num for phrase, num in self._needed.items())

    def tokens(self) -> set[int]:
        """Return the tokens that spell the phrases."""
        return set().union(*(phrase.tokens() for phrase in self._needed))

    def renumbered(self, pieces: Array, ids: Array) -> "RequiredPhrases":
        """Return the phrases in a smaller vocabulary of pieces [V'], given its ids [V]."""
        phrases = (phrase.renumbered(ids) for phrase in self._needed.elements())
        return RequiredPhrases(phrases, self._boundaries.chosen(pieces))

    def num_phrases(self, progress: Progress) -> int:
        """Return how many phrases a hypothesis contains."""
        return len(progress.matches)

    def is_complete(self, progress: Progress) -> bool:
        """Return whether a hypothesis contains all phrases."""
        return len(progress.matches) == self._needed.total()

    def num_done(self, progress: Progress) -> int:
        """Return how many of all `num_tokens` a hypothesis has, in whole phrases and one part."""
        sizes = (min(progress.length - p.start, p.phrase.size - 1) for p in progress.parts)
        part = max(sizes, default=0)
        covered = sum(match.phrase.size for match in progress.matches)
        return min(covered + part, self.num_tokens - (not self.is_complete(progress)))

    def following(self, progress: Progress) -> set[int]:
        """Return the tokens that continue or begin a phrase that is missing."""
        continuing = {part.spelling[progress.length - part.start] for part in progress.parts}
        return continuing.union(part.spelling[0] for part in self._beginnings(progress))

    def advanced(self, progress: Progress, token: int) -> Progress:
        """Return the progress of a hypothesis after another token."""
        length, matches = progress.length, progress.matches
        separates = self._boundaries.separates(progress.newest, token)
        if matches and matches[-1].end == length and not separates:
            matches = matches[:-1]
        parts = [p for p in progress.parts if p.spelling[length - p.start] == token]
        if token in self._first_tokens:
            freed = progress._replace(matches=matches)
            parts += [part for part in self._beginnings(freed) if part.spelling[0] == token]
        whole = [part for part in parts if part.start + len(part.spelling) == length + 1]
        parts = [part for part in parts if part not in whole]
        for phrase, _, start in sorted(whole, key=lambda part: part.start)[:1]:
            matches = (*(m for m in matches if m.end <= start), _Match(phrase, start, length + 1))
            parts = [part for part in parts if part.start <= start and part.phrase != phrase]
        has_word = progress.has_word or bool(self._boundaries.has_word[token])
        return Progress(length + 1, token, has_word, matches, tuple(parts))

    def _beginnings(self, progress: Progress) -> Iterator[_Part]:
        """Yield the spellings of missing phrases that may begin next."""
        found = Counter(match.phrase for match in progress.matches)
        for phrase, num in self._needed.items():
            if found[phrase] < num:
                for spelling in self._spellings(phrase, progress):
                    if self._boundaries.may_begin(progress.newest, spelling[0]):
                        yield _Part(phrase, spelling, progress.length)

    def _spellings(self, phrase: Phrase, progress: Progress) -> Sequence[Tokens]:
        if progress.newest is None:
            return [phrase.opening]
        if not progress.has_word:
            return phrase.first
        if self._boundaries.ends_sentence[progress.newest]:
            return list(dict.fromkeys([*phrase.within, *phrase.first]))
        return phrase.within
