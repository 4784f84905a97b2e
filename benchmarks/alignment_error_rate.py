"""Alignment error rate on the generated corpus of numbers, whose word alignment is known.

The corpus has a closed vocabulary, so a dictionary of it gives the alignment of each pair.

    tfm generate MODEL --split test --score-target test.de --align | cut -f 5 > ALIGNMENT
    python benchmarks/alignment_error_rate.py test.en test.de ALIGNMENT [--lines N]

The texts are those of `tfm prepare numbers-en-de`; with --swap, the alignment is German-English.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from tfm.data.synthetic.numbers import english_number, word_pairs
from tfm.data.synthetic.phrases import ADJECTIVES, NOUNS

Links = set[tuple[int, int]]

_NUMBERS = (*range(100), 100, 1_000, 1_000_000)
_NUMBER_WORDS = {word for n in _NUMBERS for word in re.split("[ -]", english_number(n))}
_DEFINITE = ("der", "die", "das", "den", "dem")
_INDEFINITE = ("ein", "eine", "einen", "einem", "einer")
_OTHER_WORDS = word_pairs(
    "basket Korb, box Kiste, package Paket, January Januar, February Februar, March März, "
    "April April, May Mai, June Juni, July Juli, August August, September September, "
    "October Oktober, November November, December Dezember, Monday Montag, Tuesday Dienstag, "
    "Wednesday Mittwoch, Thursday Donnerstag, Friday Freitag, Saturday Samstag, Sunday Sonntag, "
    "quarter Viertel, euro Euro, euros Euro, cent Cent, cents Cent, o'clock Uhr, half halb, "
    "past nach, to vor, i ich, he er, she sie, we wir, they sie, buying kauf, selling verkauf, "
    "looking such, meeting treffen, cost kosten, costs kostet, today heute, is ist, on am, at um, "
    "with mit, for für, from vom, and und"
)
# English words, and the beginnings of the German words that translate them.
_DICTIONARY: dict[str, tuple[str, ...]] = {
    **{noun.english: (noun.german, noun.german_plural) for noun in NOUNS},
    **{noun.english_plural: (noun.german_plural,) for noun in NOUNS},
    **{english: (german,) for english, german in (*ADJECTIVES, *_OTHER_WORDS)},
}


class _Pair:
    """A pair of sentences whose German words are used up from left to right."""

    def __init__(self, english: str, german: str) -> None:
        self.english = [word.strip(".,").lower() for word in english.split()]
        self.german = [word.strip(".,").lower() for word in german.split()]
        self.unused = list(range(len(self.german)))
        self.sure: Links = set()
        self.possible: Links = set()

    def take(self, *beginnings: str, exactly: bool = False) -> int:
        """Return the number of the first unused German word, which is then used."""
        for index in self.unused:
            word = self.german[index]
            if any(word == each if exactly else word.startswith(each) for each in beginnings):
                self.unused.remove(index)
                return index
        raise ValueError(f"{beginnings} is not in {self.german}")


def gold_alignment(english: str, german: str) -> tuple[Links, Links]:
    """Return the sure and the possible links of a pair of the corpus; sure ones are possible."""
    pair = _Pair(english, german)
    numbers: list[tuple[int, int]] = []
    words = pair.english
    index = 0
    while index < len(words):
        end = _number_end(words, index)
        is_unit = words[end : end + 1] in (["euro"], ["cent"], ["o'clock"])
        if end > index and not (words[index:end] == ["one"] and is_unit):
            numbers.append((index, end))
            index = end
            continue
        _link_word(pair, index)
        index += 1
    _link_numbers(pair, numbers)
    if pair.unused:
        raise ValueError(f"{pair.german}: {pair.unused} have no link")
    return pair.sure, pair.sure | pair.possible


def _number_end(words: list[str], start: int) -> int:
    """Return the end of the number, ordinal or year that starts at a word."""
    end = start
    while end < len(words) and (_is_number(words[end]) or _is_joint(words, start, end)):
        end += 1
        if _is_ordinal(words[end - 1]):
            break
    return end


def _is_joint(words: list[str], start: int, end: int) -> bool:
    return words[end] == "and" and end > start and _is_number((*words, "")[end + 1])


def _is_number(word: str) -> bool:
    return word.split("-")[0] in _NUMBER_WORDS or _is_ordinal(word)


def _is_ordinal(word: str) -> bool:
    last = word.split("-")[-1]
    return last in ("first", "second", "third") or (last.endswith("th") and last != "with")


def _link_word(pair: _Pair, index: int) -> None:
    """Link a word that is not a number."""
    words = pair.english
    word, before = words[index], ("", *words)[index]
    link = pair.sure.add
    match word:
        case "a" | "an" | "one":
            link((index, pair.take(*_INDEFINITE, exactly=True)))
        case "the":
            _link_definite_article(pair, index, before)
        case "to" if words[index + 1] == "the":
            link((index, pair.take("bis", exactly=True)))
        case "of":
            month = _DICTIONARY[words[index + 1].capitalize()]
            pair.possible.add((index, pair.german.index(month[0].lower())))
        case "past" if before == "half":
            pair.possible.add((index, pair.german.index("halb")))
        case "am" | "are" | "is" if index + 1 < len(words) and words[index + 1].endswith("ing"):
            pass  # linked with the participle
        case "for" if before == "looking":
            link((index, next(g for e, g in pair.sure if e == index - 1)))
        case _:
            _link_by_dictionary(pair, index)


def _link_definite_article(pair: _Pair, index: int, before: str) -> None:
    """Link "the", which some German prepositions contain."""
    match before:
        case "on":
            german = next(german for english, german in pair.sure if english == index - 1)
        case "from":
            german = pair.german.index("vom")
        case "to":
            german = pair.take("zum", exactly=True)
            pair.possible.add((index - 1, german))
        case _:
            german = pair.take(*_DEFINITE, exactly=True)
    pair.sure.add((index, german))


def _link_by_dictionary(pair: _Pair, index: int) -> None:
    word = pair.english[index]
    entry = _DICTIONARY.get(word) or _DICTIONARY[word.capitalize()]
    german = pair.take(*(each.lower() for each in entry), exactly=word in ("he", "she", "they"))
    pair.sure.add((index, german))
    if word.endswith("ing"):
        pair.sure.add((index - 1, german))  # the auxiliary
    if word == "meeting":
        pair.possible.add((index, pair.take("uns", exactly=True)))


def _link_numbers(pair: _Pair, numbers: list[tuple[int, int]]) -> None:
    """Link the numbers to the German words that no other word is linked to, in order."""
    for start, end in numbers:
        words = pair.english[start:end]
        before, rest = words, []
        if "million" in words:
            place = words.index("million")
            before, rest = words[:place], words[place + 1 :]
            count, unit = pair.unused[:2]
            del pair.unused[:2]
            pair.sure |= {(start + i, count) for i in range(place)} | {(start + place, unit)}
            start, before = start + place + 1, rest
        if before:
            german = pair.unused.pop(0)
            pair.sure |= {(start + i, german) for i in range(len(before))}


def _read_links(path: Path) -> Iterator[Links]:
    for line in path.read_text(encoding="utf-8").splitlines():
        pairs = (each.split("-") for each in line.split())
        yield {(int(source), int(target)) for source, target in pairs}


def main() -> None:
    """Print precision, recall and alignment error rate (Och & Ney 2003, §4)."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("source", "target", "alignment"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--swap", action="store_true", help="the links are target-source")
    parser.add_argument("--lines", type=int, default=None, help="use the first N lines")
    options = parser.parse_args()
    texts = (
        path.read_text(encoding="utf-8").splitlines() for path in (options.source, options.target)
    )
    pairs = list(zip(*texts, _read_links(options.alignment), strict=True))[: options.lines]
    num_found = num_sure = in_sure = in_possible = 0
    for english, german, found in pairs:
        if options.swap:
            found = {(target, source) for source, target in found}
        sure, possible = gold_alignment(english, german)
        num_found, num_sure = num_found + len(found), num_sure + len(sure)
        in_sure, in_possible = in_sure + len(found & sure), in_possible + len(found & possible)
    error_rate = 1 - (in_sure + in_possible) / (num_found + num_sure)
    print(f"{len(pairs)} pairs, {num_sure} sure links, {num_found} found")
    print(f"precision {in_possible / num_found:.3f}, recall {in_sure / num_sure:.3f}")
    print(f"alignment error rate {error_rate:.3f}")


if __name__ == "__main__":
    main()
