"""Changes of text, as people also write it: in capitals, without a full stop, with typos."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import regex

from tfm.text.languages import SENTENCE_MARKS, base_language

# The first letter of a word, with quotation marks or brackets before it; in Dutch it may be ij.
_OPENING = r"(?<!\S)([\"“”„«»‹›‚‘¿¡(\[{「『（【《〈]*)"
_WORD, _DUTCH_WORD = re.compile(rf"{_OPENING}(\w)"), re.compile(rf"{_OPENING}(ij|\w)")
# Where languages differ from Unicode's capitals.
_CAPITALS = {code: {ord("i"): "İ"} for code in ("az", "crh", "gag", "tr")}
_CAPITALS["hy"] = {ord("և"): "ԵՎ"}
_GREEK_ACCENT = re.compile("(?<=[ΑΕΗΙΟΥΩ\u0308])\u0301")  # in decomposed text; never on capitals
# Typos in shorter words would often be other words. Marks, such as vowels of Hindi, are no letters.
_TYPO_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]{3,}")
_LETTER = regex.compile(r"\X")  # with its marks
_MIN_TYPO_LETTERS = 3
_WORDS_PER_TYPO = 8


# Returns a changed text in a language.
Change = Callable[[str, str, np.random.Generator], str]


def _upper(text: str, language: str, _: np.random.Generator) -> str:
    """Return a text in capitals as its language writes them: İ for i in Turkish."""
    base = base_language(language)
    text = text.translate(_CAPITALS.get(base, {})).upper()
    if base == "el":
        text = _GREEK_ACCENT.sub("", unicodedata.normalize("NFD", text))
        text = unicodedata.normalize("NFC", text)
    return text


def _title(text: str, language: str, _: np.random.Generator) -> str:
    """Return a text in title case: only the first letter of each word changes, in don't, too."""
    base = base_language(language)
    capitals = _CAPITALS.get(base, {})

    def capitalized(word: re.Match[str]) -> str:
        first = word[2].translate(capitals)
        return word[1] + (first.upper() if base == "nl" else first.title())  # IJ, but ǅ

    return (_DUTCH_WORD if base == "nl" else _WORD).sub(capitalized, text)


def _unpunctuated(text: str, language: str, _: np.random.Generator) -> str:
    question_mark = ";" if base_language(language) == "el" else ""
    return text.rstrip(f"{SENTENCE_MARKS}{question_mark} ")


def _with_typos(text: str, _: str, random: np.random.Generator) -> str:
    words = [
        (match.start(), letters)
        for match in _TYPO_WORD.finditer(text)
        if len(letters := _LETTER.findall(match[0])) >= _MIN_TYPO_LETTERS
    ]
    num_typos = -(-len(words) // _WORDS_PER_TYPO)
    chosen = random.permutation(len(words))[:num_typos]
    for index in sorted(chosen, reverse=True):
        start, letters = words[index]
        end = start + sum(map(len, letters))
        text = text[:start] + _typo(letters, random) + text[end:]
    return text


def _typo(word: Sequence[str], random: np.random.Generator) -> str:
    """Return a word with two letters swapped, or one missing or doubled; its first letter stays."""
    index = int(random.integers(1, len(word) - 1))
    first, second = word[index], word[index + 1]
    letters = (second + first, second, first + first + second)[random.integers(3)]
    return "".join((*word[:index], letters, *word[index + 2 :]))


CHANGES: Mapping[str, Change] = {
    "upper": _upper,
    "title": _title,
    "unpunctuated": _unpunctuated,
    "typo": _with_typos,
}
