"""Phrases that an output must contain, as token ids, and which of them a hypothesis contains."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple, Self

import regex

from tfm.text.languages import SENTENCE_MARKS
from tfm.text.units import IN_WORD
from tfm.vocabulary.subword import UNK, Vocabulary, escape

Tokens = tuple[int, ...]

_MAX_CHARACTER_BYTES = 4  # of UTF-8
_MAX_STATES = 300  # that an automaton keeps
# A phrase is encoded after each of these, for its pieces without a space before it.
_BEFORE = ("(", "„", "«", '"', "。", "-")
_NEEDS_SPACE = ".,;:!?…)]}%"  # after these, the words of a script with spaces
_LETTER = regex.compile(r"[\p{L}\p{N}]")
_MARK = regex.compile(r"\p{M}")


@dataclass(frozen=True)
class Phrase:
    """The token ids that spell a text which an output must contain.

    Attributes:
        opening: The spellings at the very beginning of an output.
        first: The spellings of the first word of a sentence.
        within: The spellings after other words.
    """

    opening: tuple[Tokens, ...]
    first: tuple[Tokens, ...]
    within: tuple[Tokens, ...]

    @cached_property
    def size(self) -> int:
        """The maximum number of tokens."""
        return max(map(len, self.spellings()))

    def spellings(self) -> tuple[Tokens, ...]:
        """Return all spellings."""
        return (*self.opening, *self.first, *self.within)

    def renumbered(self, ids: Mapping[int, int]) -> "Phrase":
        """Return the phrase with other ids for tokens."""

        def new(spellings: tuple[Tokens, ...]) -> tuple[Tokens, ...]:
            return tuple(tuple(ids[token] for token in each) for each in spellings)

        return Phrase(new(self.opening), new(self.first), new(self.within))


class PhraseEncoder:
    """Spells phrases in the pieces of a vocabulary, as its subword model does within sentences."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._model, self._normalization = vocabulary.target, vocabulary.normalization
        self._surfaces = self._model.surfaces()
        self._before = [(mark, self._pieces(mark)) for mark in _BEFORE]
        self.encode = lru_cache(maxsize=1 << 12)(self._encode)

    def _encode(self, texts: tuple[str, ...], starts: tuple[str, ...]) -> Phrase | None:
        """Return a phrase for any of some texts; `starts` are their forms as first words.

        Texts are left out if pieces are lacking; the phrase is None if no text is left.
        """
        found = [
            self._one(*map(self._normalization.normalize, each))
            for each in zip(texts, starts, strict=True)
        ]
        spelled = [each for each in found if all(each)]
        kinds = (tuple(dict.fromkeys(chain(*kind))) for kind in zip(*spelled, strict=True))
        return Phrase(*kinds) if spelled else None

    def _one(self, text: str, at_start: str) -> tuple[tuple[Tokens, ...], ...]:
        """Return the spellings of a text at the very beginning, as first word, and elsewhere."""
        opening = tuple(filter(None, [self._spaced(at_start)]))
        return opening, self._spellings(at_start), self._spellings(text)

    def _pieces(self, text: str) -> Tokens:
        return tuple(self._model.encode([text])[0])  # one by one: lists are for many texts

    def _spaced(self, text: str) -> Tokens:
        tokens = self._pieces(text)
        return () if UNK in tokens else tokens

    def _spellings(self, text: str) -> tuple[Tokens, ...]:
        """Return the spellings after a space, if the script has spaces, and without a space."""
        spaced = self._spaced(text)
        joined = self._joined(text, spaced)
        if IN_WORD.match(text) and joined and _is_partial(self._surfaces[joined[0]]):
            joined = ()  # the first byte of a letter does not show that it would continue a word
        is_unspaced = _LETTER.match(text) and not IN_WORD.match(text)
        found = [joined or spaced] if is_unspaced else [spaced, joined]
        return tuple(filter(None, dict.fromkeys(found)))

    def _joined(self, text: str, spaced: Tokens) -> Tokens:
        """Return the spelling of a text that has no space before it; empty if there is none."""
        expected = escape(text).encode()
        for tokens in chain(self._after_marks(text), (spaced[1:], spaced)):
            if UNK not in tokens and b"".join(map(self._surfaces.__getitem__, tokens)) == expected:
                return tokens
        return ()

    def _after_marks(self, text: str) -> Iterator[Tokens]:
        for mark, before in self._before:
            whole = self._pieces(mark + text)
            if whole[: len(before)] == before:
                yield whole[len(before) :]


def _is_partial(surface: bytes) -> bool:
    """Return whether a text is a single byte of a character."""
    return len(surface) == 1 and surface >= b"\x80"


class Edges(NamedTuple):
    """What the text of a token begins and ends with."""

    begins_in_word: bool  # with a character of a word
    ends_in_word: bool
    joins: bool  # begins with a mark or byte that belongs to the character before
    has_word: bool
    ends_sentence: bool
    needs_space: bool  # before a word

    @classmethod
    def of(cls, surface: bytes) -> Self:
        """Return the edges of a text in UTF-8."""
        first = surface[:_MAX_CHARACTER_BYTES].decode(errors="replace")[:1]
        last = surface[-_MAX_CHARACTER_BYTES:].decode(errors="replace")[-1:]
        return cls(
            bool(IN_WORD.match(first)),
            bool(IN_WORD.match(last)) or _is_partial(surface),
            b"\x80" <= surface[:1] < b"\xc0" or bool(_MARK.match(first)),
            bool(_LETTER.search(surface.decode(errors="replace"))),
            last != "" and last in SENTENCE_MARKS,
            last != "" and last in _NEEDS_SPACE,
        )

    def end(self) -> "Edges":
        """Return only the edge at the end."""
        return self._replace(begins_in_word=False, joins=False, has_word=False)

    def may_begin(self, before: "Edges | None") -> bool:
        """Return whether a phrase may begin with it, because its text has the space it needs."""
        if before is not None and before.needs_space and self.begins_in_word:
            return False
        return self.separates(before)

    def separates(self, before: "Edges | None") -> bool:
        """Return whether a word may begin with it, or end before it."""
        if before is None:
            return True
        return not (self.joins or (before.ends_in_word and self.begins_in_word))


class _Part(NamedTuple):
    """The first tokens of a spelling of a phrase, at the end of a hypothesis."""

    phrase: int
    spelling: Tokens
    num: int


class _Contents(NamedTuple):
    """What a hypothesis contains of phrases, as far as later tokens can change it.

    Attributes:
        before: The edges of its last token; None at the beginning.
        has_word: Whether it has a letter or digit.
        matches: The phrases in it, which do not overlap, each after the number of tokens since its
            end, with a minus; at most as many as the longest phrase has. The newest is the last.
        parts: Phrases that its last tokens begin.
    """

    before: Edges | None = None
    has_word: bool = False
    matches: tuple[tuple[int, int], ...] = ()
    parts: tuple[_Part, ...] = ()


@dataclass(eq=False, slots=True)
class Progress:
    """The phrases in a hypothesis: a state of an automaton, which reads its tokens.

    Attributes:
        num_phrases: How many it contains.
        num_done: How many of the tokens of all phrases it has, in whole phrases and one part.
        is_complete: Whether it contains all phrases.
        following: What `_Automaton.following` has returned.
        after: The states after tokens that `_Automaton.advance` has returned.
    """

    contents: _Contents
    num_phrases: int
    num_done: int
    is_complete: bool
    following: tuple[int, ...] | None = None
    after: "dict[int | Edges, Progress]" = field(default_factory=dict)


class _Automaton:
    """Reads hypotheses, and keeps the states that it has computed.

    Args:
        needed: Phrases of numbered tokens, each with how often it is needed.
        edges: The edges of the tokens.
    """

    def __init__(self, needed: tuple[tuple[Phrase, int], ...], edges: tuple[Edges, ...]) -> None:
        self._phrases = [phrase for phrase, _ in needed]
        self._needed = [num for _, num in needed]
        self._edges = edges
        self._longest = max((phrase.size for phrase in self._phrases), default=0)
        self.num_tokens = sum(phrase.size * num for phrase, num in needed)
        self._states: dict[_Contents, Progress] = {}

    def start(self) -> Progress:
        """Return the state without tokens."""
        return self._state(_Contents())

    def _state(self, contents: _Contents) -> Progress:
        if contents not in self._states:
            if len(self._states) >= _MAX_STATES:
                self._states = {}
            self._states[contents] = self._new_state(contents)
        return self._states[contents]

    def _new_state(self, contents: _Contents) -> Progress:
        matches, missing = contents.matches, self._missing(contents)
        parts = [part for part in contents.parts if part.phrase in missing]
        sizes = [min(part.num, self._phrases[part.phrase].size - 1) for part in parts]
        covered = sum(self._phrases[phrase].size for _, phrase in matches)
        num_done = min(covered + max(sizes, default=0), self.num_tokens - bool(missing))
        return Progress(contents, len(matches), num_done, not missing)

    def following(self, progress: Progress) -> tuple[int, ...]:
        """Return the tokens that continue or begin a missing phrase, by their numbers."""
        if progress.following is None:
            contents, missing = progress.contents, self._missing(progress.contents)
            begun = (*contents.parts, *self._beginnings(contents))
            tokens = {part.spelling[part.num] for part in begun if part.phrase in missing}
            progress.following = tuple(sorted(tokens))
        return progress.following

    def advance(self, progress: Progress, token: int | Edges) -> Progress:
        """Return the state after a token of the phrases, by its number, or any other one."""
        before, has_word, matches, parts = contents = progress.contents
        edges = self._edges[token] if isinstance(token, int) else token
        if matches and matches[-1][0] == 0 and not edges.separates(before):
            matches = matches[:-1]
            contents = contents._replace(matches=matches)
        begun = (*parts, *self._beginnings(contents)) if isinstance(token, int) else ()
        grown = [p._replace(num=p.num + 1) for p in begun if p.spelling[p.num] == token]
        matches = tuple((max(age - 1, -self._longest), phrase) for age, phrase in matches)
        whole = [part for part in grown if part.num == len(part.spelling)]
        parts = tuple(part for part in grown if part.num < len(part.spelling))
        for phrase, _, num in sorted(whole, key=lambda part: -part.num)[:1]:
            matches = (*(each for each in matches if -each[0] >= num), (0, phrase))
            parts = tuple(part for part in parts if part.num >= num)
        has_word = has_word or edges.has_word
        contents = _Contents(edges.end(), has_word, tuple(sorted(matches)), parts)
        progress.after[token] = after = self._state(contents)
        return after

    def _missing(self, contents: _Contents) -> set[int]:
        """Return the phrases that a hypothesis has too rarely."""
        found = [phrase for _, phrase in contents.matches]
        return {each for each, num in enumerate(self._needed) if found.count(each) < num}

    def _beginnings(self, contents: _Contents) -> Iterator[_Part]:
        """Yield the spellings of missing phrases that may begin next."""
        for phrase in sorted(self._missing(contents)):
            for spelling in self._spellings(self._phrases[phrase], contents):
                if self._edges[spelling[0]].may_begin(contents.before):
                    yield _Part(phrase, spelling, 0)

    def _spellings(self, phrase: Phrase, contents: _Contents) -> Sequence[Tokens]:
        if contents.before is None:
            return phrase.opening
        if not contents.has_word:
            return phrase.first
        if contents.before.ends_sentence:
            return list(dict.fromkeys([*phrase.within, *phrase.first]))
        return phrase.within


# Sentences share it if their phrases have equal numbers of tokens.
_automaton = lru_cache(maxsize=128)(_Automaton)


class RequiredPhrases:
    """The phrases that the output of a sentence must contain, each as often as it is given.

    A phrase counts if it begins and ends where words do: tokens that continue its last word undo
    it. Of phrases that overlap in a hypothesis, the longer one counts.

    Args:
        phrases: The phrases.
        edges: [V] the edges of all tokens.
    """

    def __init__(self, phrases: Iterable[Phrase], edges: Sequence[Edges]) -> None:
        counts, self._edges = Counter(phrases), edges
        spellings = chain.from_iterable(phrase.spellings() for phrase in counts)
        self.tokens = tuple(dict.fromkeys(chain.from_iterable(spellings)))
        self._numbers = {token: number for number, token in enumerate(self.tokens)}
        needed = ((each.renumbered(self._numbers), num) for each, num in counts.items())
        self._automaton = _automaton(tuple(needed), tuple(edges[token] for token in self.tokens))
        self.num_tokens = self._automaton.num_tokens

    def start(self) -> Progress:
        """Return the progress of a hypothesis without tokens."""
        return self._automaton.start()

    def following(self, progress: Progress) -> list[int]:
        """Return the tokens that continue or begin a phrase that is missing."""
        return [self.tokens[number] for number in self._automaton.following(progress)]

    def advanced(self, progress: Progress, token: int) -> Progress:
        """Return the progress of a hypothesis after another token."""
        number = self._numbers.get(token)
        key = self._edges[token] if number is None else number
        return progress.after.get(key) or self._automaton.advance(progress, key)
