"""Copies of training pairs as people also write: in capitals, with typos; and with masks."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import regex

from tfm.text.languages import SENTENCE_MARKS, base_language, target_language
from tfm.text.lines import Block, BytesPair
from tfm.text.masks import Masker

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


class Copier:
    """Adds changed copies of pairs to blocks of text; equal text gives equal copies.

    Capitals, title case and missing final punctuation change both sides. Typos change the source
    only, so that the model learns to correct them. A copy whose source did not change is left out.
    Masks replace words and their translations, which are learned from each block.

    Args:
        shares: {kind, one of `COPIES` or "masked": probability that a pair gets such a copy}.
        languages: Source and target; their rules for capitals apply.
        tags: What may precede the text of a source; it is left as it is.
        seed: Random seed.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        *,
        languages: tuple[str, str],
        tags: Sequence[str],
        seed: int,
    ) -> None:
        self._kinds = [kind for kind, share in shares.items() if share]
        self._shares = [share for share in shares.values() if share]
        self._tag = re.compile("|".join(f"{re.escape(tag)} " for tag in tags))
        self._languages, self._seed = languages, seed

    def copy(self, block: Block, *, start: int) -> tuple[Block, npt.NDArray[np.int64]]:
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
        texts = ([line.decode() for line in side] for side in block)
        changes = [COPIES[kind] if kind in COPIES else Masker(*texts) for kind in self._kinds]
        for number, kind in np.argwhere(is_chosen).tolist():
            pair = sources[number].decode(), targets[number].decode()
            changed = self._changed(*pair, changes[kind], random)
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
        self, source: str, target: str, change: "Change | Masker", random: np.random.Generator
    ) -> tuple[str, str] | None:
        """Return a changed pair; None if the change has no effect on its source, or empties it."""
        match = self._tag.match(source)
        tag = match[0] if match else ""
        text = source.removeprefix(tag)
        if isinstance(change, Masker):
            pair = change.masked(text, target, random)
            return pair and (tag + pair[0], pair[1])
        changed = change(text, self._languages[0], random)
        if changed.strip() in ("", text.strip()):
            return None
        if change is not _with_typos:
            language = target_language(self._languages[1], tag.strip() or None)
            target = change(target, language, random) or target
        return tag + changed, target


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


COPIES: Mapping[str, Change] = {
    "upper": _upper,
    "title": _title,
    "unpunctuated": _unpunctuated,
    "typo": _with_typos,
}
