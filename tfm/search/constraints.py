"""Constraints on outputs: no n-gram of tokens twice, and no banned text."""

import functools
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np

from tfm.config import LATEST_NORMALIZATION, SearchConfig
from tfm.disk.paths import existing_file
from tfm.errors import DataError
from tfm.search.spelling import Array, Spellings
from tfm.text.lines import read_lines
from tfm.vocabulary.subword import Vocabulary, escape

_MAX_PHRASES = 10_000
_MAX_CHARACTERS = 100
_REPLACEMENT = "\ufffd"  # of bytes that are not UTF-8
_MAX_CHARACTER_BYTES = 4  # of UTF-8
_MAX_DECOMPOSED_BYTES = 16  # of a character and its marks, in UTF-8


class Constraints:
    """Rules for the tokens that may not follow a hypothesis; EOS always remains possible.

    Args:
        no_repeat_ngram: Length of n-grams that may not occur twice in an output, in tokens; None
            allows all.
        banned: Text that no output may contain.

    Attributes:
        never: Tokens that are always ruled out.
    """

    def __init__(self, no_repeat_ngram: int | None, banned: "BannedText | None") -> None:
        self._ngram_size = no_repeat_ngram
        self._banned = banned
        self.never: tuple[int, ...] = () if banned is None else banned.always

    def ruled_out(self, tokens: Array) -> tuple[Array, Array]:
        """Return indices [N] of the hypotheses [R, t], and for each a token that may not follow.

        The hypotheses are without BOS. The tokens `never` are left out, and pairs may recur.
        """
        found: list[tuple[Array, Array]] = []
        if self._ngram_size is not None:
            found.append(_repeating(tokens, self._ngram_size))
        if self._banned is not None:
            completing = [self._banned.completing(row) for row in tokens.tolist()]
            rows = np.repeat(np.arange(len(tokens)), list(map(len, completing)))
            found.append((rows, np.array([t for each in completing for t in each], dtype=np.int64)))
        all_rows, ruled_out = zip(*found, strict=True)
        return np.concatenate(all_rows), np.concatenate(ruled_out)


def constraints_of(
    config: SearchConfig, vocabulary: Callable[[], Vocabulary] | None
) -> Constraints:
    """Return the constraints of a constrained search; only banned text needs a vocabulary."""
    banned = None
    if config.ban is not None:
        if vocabulary is None:
            raise ValueError("banning text needs a vocabulary")
        banned = _banned_text(ban_file(config.ban).phrases, vocabulary)
    return Constraints(config.no_repeat_ngram, banned)


class BanFile(str):
    """The path of a file of banned text, with its phrases: a file may be readable only once."""

    __slots__ = ("phrases",)
    phrases: tuple[str, ...]


def ban_file(path: str) -> BanFile:
    """Return the path of a file of banned text with the phrases in it, unless it has them."""
    if isinstance(path, BanFile):
        return path
    file = BanFile(path)
    file.phrases = tuple(read_phrases(existing_file(Path(path))))
    return file


def read_phrases(path: Path) -> list[str]:
    """Read words and phrases, one per line; white space is one space."""
    phrases = []
    for number, line in enumerate(read_lines(path, strict=True), start=1):
        phrase = LATEST_NORMALIZATION.normalize(line.decode())
        if number > _MAX_PHRASES or len(phrase) > _MAX_CHARACTERS:
            raise DataError(
                f"{path}, line {number:,}: at most {_MAX_PHRASES:,} lines of {_MAX_CHARACTERS:,} "
                "characters can be banned"
            )
        if _REPLACEMENT in phrase:
            raise DataError(f"{path}, line {number:,} has U+FFFD, which stands for damaged text")
        phrases.append(phrase)
    if not any(phrases):
        raise DataError(f"{path} has no text to ban: write one word or phrase per line")
    return list(filter(None, phrases))


@functools.lru_cache(maxsize=2)
def _banned_text(phrases: tuple[str, ...], vocabulary: Callable[[], Vocabulary]) -> "BannedText":
    return BannedText(phrases, vocabulary())  # which takes a while


def _repeating(tokens: Array, size: int) -> tuple[Array, Array]:
    """Return rows [N] and the tokens [N] that would repeat an n-gram of hypotheses [R, t]."""
    if tokens.shape[1] < size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ngrams = np.lib.stride_tricks.sliding_window_view(tokens, size, axis=1)
    newest = tokens[:, None, tokens.shape[1] - size + 1 :]  # [R, 1, size - 1]
    rows, starts = (ngrams[:, :, :-1] == newest).all(axis=2).nonzero()
    return rows, ngrams[rows, starts, -1]


class BannedText:
    """Words and phrases that no output may contain, however the vocabulary spells them.

    After each token, the text until then must be free of them, where the end of the text counts as
    the end of a word. So a token that completes a phrase is ruled out, and the output needs no
    check. Text is compared as it is printed, but with Unicode decomposed, so that ä is found in
    both of its forms; and in UTF-8, because a token may be a single byte of a character.

    A phrase that starts with a digit, or a letter of a script with upper and lower case, must not
    start within a word to be found, and the same holds for its end. Other phrases are found
    anywhere, because their scripts may not separate words.
    """

    def __init__(self, phrases: Iterable[str], vocabulary: Vocabulary) -> None:
        model, self._normalization = vocabulary.target, vocabulary.normalization
        self._raw_surfaces = model.surfaces()
        self._surfaces = [self._compared(surface) for surface in self._raw_surfaces]
        self._spellings = Spellings(self._surfaces)
        # {a phrase: whether it must start and end at a word's boundary}
        self._phrases = {
            escape(self._normalization.comparable(phrase)).encode(): (
                _is_word_like(phrase[0]),
                _is_word_like(phrase[-1]),
            )
            for phrase in phrases
        }
        self._phrase_sizes = sorted({len(phrase) for phrase in self._phrases})
        # {the start of phrases: whole phrases}; the start of a whole phrase is never produced.
        self._starts: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for phrase in self._phrases:
            for size in range(len(phrase)):
                self._starts[phrase[:size]].append(phrase)
        self._sizes = sorted({len(start) for start in self._starts})
        # Tokens that begin with a byte within a character, or with a combining mark.
        self._joining = [
            token
            for token, surface in enumerate(self._raw_surfaces)
            if b"\x80" <= surface[:1] < b"\xc0" or _is_mark(_first(surface))
        ]
        self._cache: dict[tuple[bytes, bool], frozenset[int]] = {}
        self.always = tuple(self._containing())

    def completing(self, tokens: Sequence[int]) -> set[int]:
        """Return the tokens that would complete a phrase after the tokens of a hypothesis."""
        raw_tail = b"".join(self._raw_surfaces[token] for token in tokens)
        tail = self._compared(raw_tail)
        found = self._following(tail)
        if self._normalization.space and tail.endswith(b" "):  # a second space is not printed
            more = self._following(tail[:-1])
            found |= {token for token in more if self._surfaces[token].startswith(b" ")}
        for token in self._joining if _is_open(tail) else ():
            text = self._compared(raw_tail + self._raw_surfaces[token])
            first_end = len(text) - len(self._surfaces[token]) - _MAX_DECOMPOSED_BYTES
            if any(self._is_at(text, end, is_whole=True) for end in _from(first_end, text)):
                found.add(token)
        return found

    def _compared(self, surface: bytes) -> bytes:
        """Return text as it is compared; its first and last character may be incomplete."""
        text = self._normalization.comparable(surface.decode(errors="surrogateescape"))
        return text.encode(errors="surrogateescape")

    def _following(self, tail: bytes) -> set[int]:
        """Return the tokens that complete a phrase after a text, perhaps with more behind it."""
        found: set[int] = set()
        for size in self._sizes:
            if size > len(tail):
                break
            start = tail[len(tail) - size :]
            if start in self._starts:
                found |= self._completing(start, _ends_in_word(tail[: len(tail) - size]))
        return found

    def _completing(self, start: bytes, is_in_word: bool) -> frozenset[int]:
        """Return the tokens that complete a phrase after its start.

        `is_in_word` says whether the start is preceded by a character of a word.
        """
        key = start, is_in_word
        if key not in self._cache:
            self._cache[key] = frozenset(
                token
                for phrase in self._starts[start]
                if not (is_in_word and self._phrases[phrase][0])
                for token in self._beginning_with(phrase, phrase[len(start) :])
            ).difference(self.always)
        return self._cache[key]

    def _beginning_with(self, phrase: bytes, rest: bytes) -> Iterable[int]:
        """Yield the tokens that begin with the rest of a phrase, and end it."""
        for token in self._spellings.beginning_with(rest):
            if not self._goes_on(phrase, self._surfaces[token][len(rest) :]):
                yield token

    def _containing(self) -> Iterable[int]:
        """Yield the tokens that contain a phrase, whatever precedes them."""
        for token, surface in enumerate(self._surfaces):
            if any(self._is_at(surface, end, is_whole=False) for end in _from(1, surface)):
                yield token

    def _is_at(self, text: bytes, end: int, *, is_whole: bool) -> bool:
        """Return whether a phrase ends there in a text or, if not whole, whatever precedes it."""
        for size in takewhile(lambda size: size <= end, self._phrase_sizes):
            phrase = text[end - size : end]
            if phrase in self._phrases and not self._goes_on(phrase, text[end:]):
                is_in_word = (size == end and not is_whole) or _ends_in_word(text[: end - size])
                if not (is_in_word and self._phrases[phrase][0]):
                    return True
        return False

    def _goes_on(self, phrase: bytes, following: bytes) -> bool:
        """Return whether the bytes after a phrase continue its last word or character."""
        text, first = phrase.decode(), _first(following)
        if self._phrases[phrase][1] and _is_in_word(first):
            return True
        composed = unicodedata.normalize("NFC", text + first)
        return not composed.startswith(unicodedata.normalize("NFC", text))


def _is_word_like(character: str) -> bool:
    """Return whether it is a digit, or a letter of a script with upper and lower case."""
    return character.isdigit() or character.lower() != character.upper()


def _from(first_end: int, text: bytes) -> range:
    return range(max(1, first_end), len(text) + 1)


def _first(text: bytes) -> str:
    """Return the first character; U+FFFD if it is incomplete."""
    return text[:_MAX_CHARACTER_BYTES].decode(errors="replace")[:1]


def _ends_in_word(text: bytes) -> bool:
    return _is_in_word(text[-_MAX_CHARACTER_BYTES:].decode(errors="replace")[-1:])


def _is_in_word(character: str) -> bool:
    """Return whether it is a character of a word, or a mark on one."""
    return character.isalnum() or character == "_" or _is_mark(character)


def _is_mark(character: str) -> bool:
    return unicodedata.combining(character or " ") > 0


def _is_open(text: bytes) -> bool:
    """Return whether bytes may end the last character, or marks be sorted among its marks."""
    last = text.decode(errors="surrogateescape")[-1:]
    return _is_mark(last) or "\udc80" <= last <= "\udcff"
