"""Constraints on outputs: no n-gram of tokens twice, and no banned text."""

import functools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfm.config import SearchConfig
from tfm.data.subword import SubwordModel, Vocabulary
from tfm.data.text import read_lines
from tfm.errors import DataError

Array = npt.NDArray[Any]

_MAX_PHRASES = 10_000
_MAX_CHARACTERS = 100
_REPLACEMENT = "\ufffd"  # of bytes that are not UTF-8
_MAX_CHARACTER_BYTES = 4  # of UTF-8


class Constraints:
    """What the tokens of a hypothesis rule out next; EOS always remains possible.

    Args:
        no_repeat_ngram: Number of tokens of which no n-gram may occur twice; None for any.
        banned: Text that no output may contain.

    Attributes:
        never: Tokens that are always ruled out.
    """

    def __init__(self, no_repeat_ngram: int | None, banned: "BannedText | None") -> None:
        self._ngram_size = no_repeat_ngram
        self._banned = banned
        self.never: tuple[int, ...] = () if banned is None else banned.always

    def ruled_out(self, tokens: Array) -> tuple[Array, Array]:
        """Return what may not follow hypotheses [R, t]: N of their rows [N], and a token for each.

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
) -> Constraints | None:
    """Return the constraints of a search, None without any; only banned text needs a vocabulary.

    Raises:
        DataError: The file of banned text is missing, or not usable.
    """
    if config.no_repeat_ngram is None and config.ban is None:
        return None
    banned = None
    if config.ban is not None:
        if vocabulary is None:
            raise ValueError("banning text needs a vocabulary")
        path = Path(config.ban)
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        banned = _banned_text(path, stamp, vocabulary)
    return Constraints(config.no_repeat_ngram, banned)


def read_phrases(path: Path) -> list[str]:
    """Read words and phrases, one per line; white space is one space.

    Raises:
        DataError: The file is missing or not UTF-8, or has no phrase, too many or a too long one.
    """
    phrases = []
    for number, line in enumerate(read_lines(path, strict=True), start=1):
        phrase = " ".join(line.decode().split())
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
def _banned_text(path: Path, stamp: int, vocabulary: Callable[[], Vocabulary]) -> "BannedText":
    """Return the text of a file that was last changed at a time; this takes a while."""
    return BannedText(read_phrases(path), vocabulary().target)


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
    check. Text is compared in UTF-8, because a token may be a single byte of a character.

    A phrase that starts with a digit, or a letter of a script with upper and lower case, must not
    start within a word to be found, and the same holds for its end. Other phrases are found
    anywhere, because their scripts may not separate words.
    """

    def __init__(self, phrases: Iterable[str], subword_model: SubwordModel) -> None:
        self._surfaces = subword_model.surfaces()
        self._order = sorted(range(len(self._surfaces)), key=self._surfaces.__getitem__)
        self._sorted = [self._surfaces[token] for token in self._order]
        # {a phrase: whether it must start and end at a word's boundary}
        self._phrases = {
            subword_model.surface(phrase): (_is_word_like(phrase[0]), _is_word_like(phrase[-1]))
            for phrase in phrases
        }
        # {the start of phrases: whole phrases}; the start of a whole phrase is never produced.
        self._starts: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for phrase in self._phrases:
            for size in range(len(phrase)):
                self._starts[phrase[:size]].append(phrase)
        self._sizes = sorted({len(start) for start in self._starts})
        self._tail_bytes = self._sizes[-1] + _MAX_CHARACTER_BYTES
        self._cache: dict[tuple[bytes, bool], frozenset[int]] = {}
        self.always = tuple(self._containing())

    def completing(self, tokens: Sequence[int]) -> set[int]:
        """Return the tokens that would complete a phrase after those of a hypothesis."""
        tail = b""
        for token in reversed(tokens):
            tail = self._surfaces[token] + tail
            if len(tail) >= self._tail_bytes:
                break
        found: set[int] = set()
        for size in self._sizes:
            if size > len(tail):
                break
            start = tail[len(tail) - size :]
            if start in self._starts:
                found |= self._completing(start, _ends_in_word(tail[: len(tail) - size]))
        return found

    def _completing(self, start: bytes, is_in_word: bool) -> frozenset[int]:
        """Return the tokens that complete a phrase of which the start is there.

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
        must_end_word = self._phrases[phrase][1]
        for index in range(bisect_left(self._sorted, rest), len(self._sorted)):
            surface = self._sorted[index]
            if not surface.startswith(rest):
                break
            if not (must_end_word and _starts_in_word(surface[len(rest) :])):
                yield self._order[index]

    def _containing(self) -> Iterable[int]:
        """Yield the tokens that contain a phrase, whatever precedes them."""
        sizes = sorted({len(phrase) for phrase in self._phrases})
        for token, surface in enumerate(self._surfaces):
            spans = (
                (start, start + size)
                for start in range(len(surface))
                for size in sizes
                if start + size <= len(surface)
            )
            if any(self._is_banned(surface, start, end) for start, end in spans):
                yield token

    def _is_banned(self, surface: bytes, start: int, end: int) -> bool:
        """Return whether a part of a token is a phrase, whatever precedes the token."""
        if surface[start:end] not in self._phrases:
            return False
        must_start_word, must_end_word = self._phrases[surface[start:end]]
        if must_start_word and (start == 0 or _ends_in_word(surface[:start])):
            return False
        return not (must_end_word and _starts_in_word(surface[end:]))


def _is_word_like(character: str) -> bool:
    """Return whether it is a digit, or a letter of a script with upper and lower case."""
    return character.isdigit() or character.lower() != character.upper()


def _ends_in_word(text: bytes) -> bool:
    return _is_in_word(text[-_MAX_CHARACTER_BYTES:].decode(errors="replace")[-1:])


def _starts_in_word(text: bytes) -> bool:
    return _is_in_word(text[:_MAX_CHARACTER_BYTES].decode(errors="replace")[:1])


def _is_in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
