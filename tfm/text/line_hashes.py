"""Hashes of lines and of their 4-grams, without case, spaces, punctuation and Unicode's variants.

They are part of the format of `SeenText`.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_ORDER = 4  # tokens of an n-gram
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_SEPARATOR, _LETTER, _TOKEN, _IGNORED, _UNKNOWN = range(5)
_KINDS = {"L": _LETTER, "N": _LETTER, "M": _LETTER, "Cf": _IGNORED}  # by Unicode's category
_HAN = 0x20000  # from here on, all letters are Han
_LAST = 0x3FFFF  # stands for all later characters; they are no letters
# Scripts without spaces between words: Thai to Burmese, Khmer, Tai, kana and Han.
_UNSPACED = (
    *((0xE00, 0x10A0), (0x1780, 0x1800), (0x1950, 0x19E0), (0x1A20, 0x1AB0), (0x3005, 0x3008)),
    *((0x3040, 0x3100), (0x31F0, 0x3200), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xA9E0, 0xAA00)),
    *((0xAA60, 0xAAE0), (0xF900, 0xFB00), (_HAN, _LAST)),
)
_TAG = re.compile(rb"^(?:<[\w-]{1,30}>|>>[\w-]{1,30}<<) ", re.MULTILINE)


def hash_lines(lines: Sequence[bytes]) -> tuple[Hashes, Hashes, npt.NDArray[np.int64]]:
    """Hash lines of UTF-8 text, without a tag such as <2fr> at their start.

    A token is a run of letters, digits and marks, or one letter of a script without spaces.

    Returns:
        [N] hashes of the tokens of lines, 0 for a line without any; [G] hashes of the 4-grams of
        tokens; and [G] the number of the line of each.
    """
    if not lines:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64)
    text = _composed(b"\n".join(lines)).encode("utf-32-le")
    codes = np.minimum(np.frombuffer(text, dtype="<u4"), _LAST).astype(np.intp)
    kinds, letters = _kinds(codes), _tables()[1]
    if (is_ignored := kinds == _IGNORED).any():
        codes, kinds = codes[~is_ignored], kinds[~is_ignored]
    begins, is_token = kinds != _SEPARATOR, kinds == _TOKEN
    begins[1:] &= ~begins[:-1] | is_token[1:] | is_token[:-1]  # the right side is computed first
    starts = np.flatnonzero(begins)
    sums, inverses = _polynomial(letters[codes])
    tokens = _mixed(np.diff(sums[np.append(starts, len(codes))]) * inverses[starts])
    ends = np.searchsorted(starts, np.flatnonzero(codes == ord("\n")))
    bounds = np.concatenate(([0], ends, [len(tokens)]))
    sums, inverses = _polynomial(tokens)
    of_lines = _mixed(np.diff(sums[bounds]) * inverses[bounds[:-1]])  # 0 stays 0
    owners = np.repeat(np.arange(len(ends) + 1), np.diff(bounds))
    size = max(0, len(tokens) - _ORDER + 1)
    grams = np.zeros(size, dtype=np.uint64)
    for first in range(_ORDER):
        grams = grams * np.uint64(_BASE) + tokens[first : first + size]
    is_whole = owners[:size] == owners[_ORDER - 1 :]
    return of_lines, _mixed(grams[is_whole]), owners[:size][is_whole]


def _composed(text: bytes) -> str:
    """Return text in Unicode's compatible, composed form, without tags and sharp s."""
    if text[:1] in b"<>" or b"\n<" in text or b"\n>>" in text:
        text = _TAG.sub(b"", text)
    decoded = text.decode(errors="ignore").replace("ß", "ss").replace("ẞ", "ss")
    if unicodedata.is_normalized("NFKC", decoded):  # a fast check, as in each line
        return decoded
    return "\n".join([unicodedata.normalize("NFKC", line) for line in decoded.split("\n")])


def _polynomial(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return [N + 1] partial sums of values times powers of a base, and inverses of these powers.

    A difference of two sums times an inverse is the polynomial of values in a range. Numbers wrap.
    """
    size = len(values)
    powers, inverses = _powers(size.bit_length(), values.dtype.name)
    sums = np.zeros(size + 1, dtype=values.dtype)
    np.cumsum(values * powers[:size], out=sums[1:], dtype=values.dtype)
    return sums, inverses


@cache
def _powers(num_bits: int, dtype: str) -> list[npt.NDArray[Any]]:
    """Return the powers 1 to 2**num_bits of the base, and of its inverse."""
    bases = (_BASE, pow(_BASE, -1, 1 << 64))
    return [np.full(1 << num_bits, b, dtype=np.uint64).cumprod().astype(dtype) for b in bases]


def _mixed(values: npt.NDArray[Any]) -> Hashes:
    """Mix the bits of numbers, as SplitMix64 does."""
    mixed: Hashes = values.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@cache
def _tables() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """Return the kind of each character, and a random number for each letter in lower case.

    They are filled as characters occur, because few of all do.
    """
    return np.full(_LAST + 1, _UNKNOWN, np.uint8), np.zeros(_LAST + 1, np.uint32)


def _kinds(codes: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
    """Return the kinds of characters; add new characters to the tables."""
    all_kinds, letters = _tables()
    kinds = all_kinds[codes]
    if (is_new := kinds == _UNKNOWN).any():
        new = np.unique(codes[is_new])
        all_kinds[new] = [*map(_kind, new.tolist())]
        lower = np.array([*map(_lower, new.tolist())])
        letters[new] = np.where(all_kinds[new] == _SEPARATOR, 0, _mixed(lower + 1))
        kinds = all_kinds[codes]
    return kinds


def _kind(code: int) -> int:
    if code == _LAST:
        return _IGNORED
    category = unicodedata.category(chr(code)) if code < _HAN else "Lo"
    kind = _KINDS.get(category, _KINDS.get(category[0], _SEPARATOR))
    is_unspaced = kind == _LETTER and any(start <= code < stop for start, stop in _UNSPACED)
    return _TOKEN if is_unspaced else kind


def _lower(code: int) -> int:
    """Return the character that stands for all of its cases, if that is a single one."""
    has_case = code < _HAN and unicodedata.category(chr(code)) in ("Ll", "Lt", "Lu")
    folded = chr(code).casefold() if has_case else ""
    return ord(folded) if len(folded) == 1 else code
