"""Checks for suspicious sentence pairs: encoding, script, numbers, language, length, punctuation.

Only the check of the length ratio is on by default: the others also drop more good pairs.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from tfm.config import CleaningConfig
from tfm.config.normalization import WINDOWS_1252
from tfm.errors import UsageError
from tfm.text.languages import (
    base_language,
    identified_as,
    language_identifier,
    names_script,
    script_of,
    with_ascii_digits,
)
from tfm.text.lines import BytesPair
from tfm.text.sample import length

if TYPE_CHECKING:
    import regex
    from py3langid.langid import LanguageIdentifier

Expected = TypeVar("Expected")

# The name of a rule, and whether a source and a target break it.
Check = tuple[str, Callable[[str, str], bool]]

_BYTES_OF_WINDOWS_1252 = {ord(char): ord(byte) for byte, char in WINDOWS_1252.items()}
# A word and the punctuation after it that are UTF-8 by chance, such as CAFÉ’S or Spaß“. Wrong
# decoding leaves them within words, or capitals behind small letters; Â and mostly Ã are its signs.
_GOOD_WORD_END = re.compile(
    r"(?:(?:(?<=[A-ZÀ-ÖØ-Þ])|(?<!\w))[Ä-ÖØ-Þ][’”“‘…™®©»›«‹–—•\xa0]"
    r"|(?<=[A-ZÀ-ÖØ-Þ]{2})Ã[”…»\xa0]"
    r"|(?<=[a-zß-ÿ])(?:ß[’”“‘…™®©»›«‹–—•\xa0]|[à-ï][’”“‘…™®©»›«‹–—•\xa0]{2}))"
    r"(?:(?<=’)(?=[sS]\b)|(?!\w))"
)
# ISO 15924 codes of writing systems that Unicode does not assign to letters, and the scripts that
# their letters have in Unicode.
_MIXED_SCRIPTS = {
    "Hans": ["Hani"],
    "Hant": ["Hani"],
    "Jpan": ["Hani", "Hira", "Kana"],
    "Kore": ["Hani", "Hang"],
}
_OTHER_SCRIPTS = {"kk": "Latn", "sr": "Latn", "uz": "Cyrl"}  # in which languages are also written
# A number in groups: the first has one to three digits, and one mark or space separates all. In
# India, all groups but the last have two digits. Marks may be wide or Arabic.
_GROUPED_NUMBER = re.compile(
    r"(?<!\d)(?<!\d[.,])(?:\d{1,3}([.,'’٬،，．\x20\xa0\u2007\u2009\u202f])\d{3}(?:\1\d{3})*"
    r"|\d{1,2}(?:,\d{2})+,\d{3})(?!\d)"
)
_DIGITS = re.compile(r"\d+")
# So that short sentences may differ more.
_RATIO_MARGIN, _LENGTH_MARGIN, _PUNCTUATION_MARGIN = 30, 10, 1
_MIN_CONFIDENCE = 0.5  # of an identified language
_ROUNDING = 1e-9
_MIN_CHECKED, _MAX_CHECKED = 20, 500  # pairs of a text, to find swapped sides


def pair_checks(config: CleaningConfig, source: str, target: str) -> list[Check]:
    """Return the checks of single pairs that are enabled, in order.

    Args:
        config: Cleaning settings.
        source: Code of the source language; the codes of several languages are joined by +.
        target: The same for the target language.
    """
    checks: list[Check] = []
    sides = [source.split("+"), target.split("+")]
    if config.drop_other_script:
        letters = [*map(_letters_of_others, sides)]
        checks.append(("other_script", _of_any_side(_is_in_other_script, letters)))
    if config.drop_unequal_numbers:
        checks.append(("unequal_numbers", lambda s, t: numbers(s) != numbers(t)))
    if config.drop_other_language:
        identifier = language_identifier("drop_other_language")
        labels = set(map(base_language, identifier.labels))
        for code in chain(*sides):
            if identified_as(code) not in labels:
                raise UsageError(
                    f"drop_other_language: py3langid does not know the language {code!r}: use its "
                    "ISO 639 code, or leave the rule out"
                )
        expected = [list(map(identified_as, codes)) for codes in sides]
        is_other = partial(_is_in_other_language, identifier, config.min_identified_characters)
        checks.append(("other_language", _of_any_side(is_other, expected)))
    return checks


def are_swapped(
    pairs: Sequence[BytesPair], config: CleaningConfig, source: str, target: str
) -> bool:
    """Return whether most pairs break a check, but would pass it with swapped sides.

    The scripts of both languages are compared if they are known and differ. Otherwise, py3langid
    identifies the languages, if it is installed and knows both.
    """
    checks = pair_checks(config, source, target)
    has_one_script = script_of(source) == script_of(target)
    with suppress(UsageError):
        strict = replace(
            config, drop_other_language=has_one_script, drop_other_script=not has_one_script
        )
        checks = pair_checks(strict, source, target)
    few = pairs[:: 1 + len(pairs) // _MAX_CHECKED]
    texts = [tuple(side.decode(errors="ignore") for side in pair) for pair in few]
    return len(texts) >= _MIN_CHECKED and any(
        2 * sum(is_broken(s, t) and not is_broken(t, s) for s, t in texts) > len(texts)
        for _, is_broken in checks
    )


def ratio_checks(config: CleaningConfig, ratio: float | None) -> list[Check]:
    """Return the check for sides that are much longer than the text's `length_ratio` predicts.

    The limit applies to both sides alike, after a margin is added to their lengths. If the ratio is
    not known, it is taken for 1, with twice the limit.
    """
    limit, scale = config.max_length_ratio, math.sqrt(ratio or 1.0)
    limit *= 2 if ratio is None else 1

    def is_unequal(source: str, target: str) -> bool:
        one = length(source) * scale + _RATIO_MARGIN
        other = length(target) / scale + _RATIO_MARGIN
        return one > limit * other or other > limit * one

    return [("length_ratio", is_unequal)] if limit else []


def deviation_checks(config: CleaningConfig, pairs: Iterable[BytesPair]) -> list[Check]:
    """Measure the pairs of a text, and return the checks for pairs that are far from its mean.

    Lengths in characters and numbers of punctuation marks are compared as logarithms of the ratio
    of both sides. `pairs` is not read unless a check needs it.
    """
    measures = {
        "odd_length": (config.max_length_deviations, _length_ratio),
        "odd_punctuation": (config.max_punctuation_deviations, _punctuation_ratio),
    }
    enabled = [(rule, limit, measure) for rule, (limit, measure) in measures.items() if limit]
    if not enabled:
        return []
    count, sums = 0, [[0.0, 0.0] for _ in enabled]  # of ratios and of their squares
    for source, target in ((s.decode(), t.decode()) for s, t in pairs):
        count += 1
        for (_, _, measure), powers in zip(enabled, sums, strict=True):
            ratio = measure(source, target)
            powers[0] += ratio
            powers[1] += ratio * ratio
    checks: list[Check] = []
    for (rule, limit, measure), powers in zip(enabled, sums, strict=True):
        mean, square = (power / max(1, count) for power in powers)
        margin = limit * math.sqrt(max(0.0, square - mean * mean)) + _ROUNDING
        checks.append((rule, partial(_is_far, measure, mean, margin)))
    return checks


def is_mojibake(text: str) -> bool:
    """Return whether text is UTF-8 that was decoded as Windows-1252 or Latin-1, or lost characters.

    Other text that has such an encoding is hardly ever valid UTF-8, except at the ends of words.
    """
    if text.isascii():
        return False
    if "\ufffd" in text:
        return True
    try:
        text.translate(_BYTES_OF_WINDOWS_1252).encode("latin-1").decode()
    except UnicodeError:
        return False
    return not _GOOD_WORD_END.sub("", text).isascii()


def numbers(text: str) -> Counter[str]:
    """Count the numbers in digits of a text, without separators of groups and leading zeros.

    1,000, 1.000 and ١٬٠٠٠ are the same number; 3.5 and 3,5 are both the numbers 3 and 5.
    """
    if not _DIGITS.search(text):
        return Counter()
    whole = _GROUPED_NUMBER.sub(lambda number: "".join(_DIGITS.findall(number[0])), text)
    found = _DIGITS.findall(whole)
    return Counter(with_ascii_digits(number).lstrip("0") for number in found)


def _of_any_side(
    is_wrong: Callable[[str, Expected], bool], expected: Sequence[Expected]
) -> Callable[[str, str], bool]:
    return lambda source, target: is_wrong(source, expected[0]) or is_wrong(target, expected[1])


def _letters_of_others(codes: Iterable[str]) -> "regex.Pattern[str]":
    """Return a pattern of the letters that some languages do not use."""
    import regex  # here, because few texts are checked so

    scripts = ["Zyyy"]  # what many scripts share
    for code in codes:
        script = script_of(code) or "none"
        scripts += _MIXED_SCRIPTS.get(script, [script])
        if not names_script(code) and (other := _OTHER_SCRIPTS.get(base_language(code))):
            scripts.append(other)
        try:
            letters = "".join(rf"\p{{Script={script}}}" for script in scripts)
            others = regex.compile(rf"[\p{{Letter}}--[{letters}]]", regex.VERSION1)
        except regex.error:
            raise UsageError(
                f"drop_other_script: the script of the language {code!r} is not known: use its ISO "
                "639 code, or leave the rule out"
            ) from None
    return others


def _is_in_other_script(text: str, letters_of_others: "regex.Pattern[str]") -> bool:
    """Return whether most letters of a text are in other scripts."""
    return 2 * len(letters_of_others.findall(text)) > sum(map(str.isalpha, text))


def _is_in_other_language(
    identifier: "LanguageIdentifier", min_characters: int, text: str, codes: list[str]
) -> bool:
    if len(text) < min_characters:
        return False
    label, confidence = identifier.classify(with_ascii_digits(text))
    return base_language(label) not in codes and confidence > _MIN_CONFIDENCE


def _length_ratio(source: str, target: str) -> float:
    return math.log((len(target) + _LENGTH_MARGIN) / (len(source) + _LENGTH_MARGIN))


@cache
def _punctuation() -> "regex.Pattern[str]":
    import regex

    return regex.compile(r"[\p{P}\p{S}]")


def _punctuation_ratio(source: str, target: str) -> float:
    num_source, num_target = (len(_punctuation().findall(text)) for text in (source, target))
    return math.log((num_target + _PUNCTUATION_MARGIN) / (num_source + _PUNCTUATION_MARGIN))


def _is_far(
    measure: Callable[[str, str], float], mean: float, margin: float, source: str, target: str
) -> bool:
    return abs(measure(source, target) - mean) > margin
