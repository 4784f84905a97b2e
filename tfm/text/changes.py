"""Changes of text, as people also write it: in capitals, without a full stop, with typos."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import regex

from tfm.text.languages import SENTENCE_MARKS, base_language, target_language

# The first letter of a word, with quotation marks or brackets before it; in Dutch it may be ij.
_OPENING = r"(?<!\S)([\"“”„«»‹›‚‘¿¡(\[{「『（【《〈]*)"
_WORD, _DUTCH_WORD = re.compile(rf"{_OPENING}(\w)"), re.compile(rf"{_OPENING}(ij|\w)")
# Where languages differ from Unicode's capitals.
_DOTTED = ("az", "crh", "gag", "tr")
_CAPITALS = {code: {ord("i"): "İ"} for code in _DOTTED}
_CAPITALS["hy"] = {ord("և"): "ԵՎ"}
_GREEK_ACCENT = re.compile("(?<=[ΑΕΗΙΟΥΩ\u0308])\u0301")  # in decomposed text; never on capitals
# Typos in shorter words would often be other words. Marks, such as vowels of Hindi, are no letters.
_TYPO_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]{3,}")
_LETTER = regex.compile(r"\X")  # with its marks
_MIN_TYPO_LETTERS = 3
_WORDS_PER_TYPO = 8


# Returns a changed text in a language.
Change = Callable[[str, str, np.random.Generator], str]
# Returns a changed sentence pair.
PairChange = Callable[[str, str, np.random.Generator], tuple[str, str]]


def pair_changes(languages: tuple[str, str], tags: Iterable[str]) -> list[PairChange]:
    """Return `CHANGES`, in their order, as functions of sentence pairs.

    Typos change the source only, so that the model learns to correct them; the others change both
    sides. A side stays as it is if its change would leave nothing, and so does the target of a
    source that does not change.

    Args:
        languages: Source and target; their rules for capitals apply.
        tags: The tags that may precede the text of a source; a tag never changes.
    """
    pattern = re.compile("|".join(f"{re.escape(tag)} " for tag in tags))

    def on_pair(
        change: Change, source: str, target: str, random: np.random.Generator
    ) -> tuple[str, str]:
        match = pattern.match(source)
        tag = match[0] if match else ""
        text = source.removeprefix(tag)
        changed = change(text, languages[0], random)
        if changed.strip() in ("", text.strip()):
            return source, target
        if change is not _with_typos:
            language = target_language(languages[1], tag.strip() or None)
            changed_target = change(target, language, random)
            target = changed_target if changed_target.strip() else target
        return tag + changed, target

    return [partial(on_pair, change) for change in CHANGES.values()]


def _upper(text: str, language: str, _: np.random.Generator) -> str:
    """Return a text in capitals as its language writes them: İ for i in Turkish."""
    base = base_language(language)
    text = text.translate(_CAPITALS.get(base, {})).upper()
    if base == "el":
        text = _GREEK_ACCENT.sub("", unicodedata.normalize("NFD", text))
        text = unicodedata.normalize("NFC", text)
    return text


def lowered(text: str, language: str, _: np.random.Generator) -> str:
    """Return a text in lower case as its language writes it: ı for I in Turkish."""
    text = text.replace("İ", "i")
    return (text.replace("I", "ı") if base_language(language) in _DOTTED else text).lower()


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


# In the order in which they apply to the same pair.
CHANGES: Mapping[str, Change] = {
    "unpunctuated": _unpunctuated,
    "typo": _with_typos,
    "title": _title,
    "upper": _upper,
}
