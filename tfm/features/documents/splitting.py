"""Documents: paragraphs are split into sentences, and put together with their white space.

The rules for sentences follow split-sentences.perl of Moses, with its lists of abbreviations. A
line break always ends a sentence. In doubt, sentences stay together: a model translates two
sentences in one line better than half a sentence.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from tfm.text.languages import (
    CHINESE_SCRIPTS,
    SENTENCE_MARKS,
    WIDE_SENTENCE_MARKS,
    base_language,
    script_of,
)

if TYPE_CHECKING:
    from tfm.text.units import Span

# Longer sentences are cut: models are trained on few of them.
_MAX_CHARACTERS = 600
_MAX_IDEOGRAPHS = 200  # in scripts without spaces, a character takes more tokens
_LONGEST_ABBREVIATION = 40  # characters
_WITHOUT_SPACES = (*CHINESE_SCRIPTS, "Jpan")  # between sentences, too, unlike Thai

# The start of a line that is no part of a sentence: bullets, "1." or "a)", and "> " or "# ".
_LINE_START = re.compile(
    r"\s*(?:(?:[-–—*+•◦▪·>#]+|\(?(?:\d{1,3}(?:\.\d{1,3})*[.)]|[^\W\d_]\)|[ivxIVX]{1,5}\)))\s+)*"
)
# Marks and what closes with them: quotes, brackets, and the numbers of footnotes. A guillemet
# closes, after a space in French, unless a word follows; so do “ and ‘, as in German.
_END = re.compile(
    rf"[{SENTENCE_MARKS}]"
    rf"(?:[{SENTENCE_MARKS}\"'”’)\]}}」』）】》〉]"
    r"|[ \xa0\u202f]?[»›](?!\w)|[«‹“‘](?!\w)|\[\d{1,3}\])*"
)
# White space, what opens a sentence, and its first character.
_NEXT = re.compile(r"(\s*)((?:[\"'“”‘’«»‹›„‚(\[{¿¡\-–—#@「『（【《〈]\s?)*)(\S?)")
_CLAUSE_END = re.compile(r"[,;:–—،؛](?=\s)|[、，；：]")
_ABBREVIATED_LETTERS = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # U.S, z.B, e.g
_MAX_LETTERS_BEFORE_NUMBER = 6  # such as "Fig. 3"; sentences rarely begin with a number
_TIMES_OF_DAY = ("a.m", "p.m")
_NUMERIC_ONLY = "#NUMERIC_ONLY#"


@dataclass(frozen=True)
class Piece:
    """A part of a text: a sentence to translate, or text to copy.

    White space around sentences is kept, and so are bullets and all text without a letter: models
    are trained on few lines of digits or symbols alone, and make others of them.
    """

    text: str
    is_sentence: bool


def split(text: str, language: str) -> list[Piece]:
    """Split a text into sentences and the text between them; joined, the pieces are the text.

    Args:
        text: Any text, of any number of paragraphs.
        language: Its language code, which selects the abbreviations; English for unknown languages.
    """
    lines = text.splitlines(keepends=True)
    return [piece for line in lines for piece in _split_line(line, language)]


def unbroken(pieces: Sequence[Piece], spans: "Sequence[Span]") -> list[Piece]:
    """Return the pieces of a text, joined where a span, of several in order, goes across."""
    joined: list[Piece] = []
    start = 0
    for piece in pieces:
        index = bisect_left(spans, (start, 0))
        is_within = index > 0 and start < spans[index - 1][1]
        start += len(piece.text)
        if is_within:
            before = joined.pop()
            piece = Piece(before.text + piece.text, before.is_sentence or piece.is_sentence)
        joined.append(piece)
    return joined


def translated_pieces(
    pieces: Sequence[Piece], translations: Sequence[str], *, source: str, target: str
) -> list[str]:
    """Return the translation of each piece, with the white space of the target language.

    Args:
        pieces: The pieces of the text.
        translations: The translation of each sentence.
        source: Language code of the text.
        target: Language code of the translations.
    """
    texts = [piece.text for piece in pieces]
    sentences = [index for index, piece in enumerate(pieces) if piece.is_sentence]
    for index, translation in zip(sentences, translations, strict=True):
        texts[index] = translation
    is_spaced, will_be_spaced = (
        script_of(each) not in _WITHOUT_SPACES for each in (source, target)
    )
    if is_spaced != will_be_spaced:
        words = [index for index, text in enumerate(texts) if not text.isspace()]
        for index, following in pairwise(words):
            if will_be_spaced and following == index + 1 and not texts[index][-1:].isspace():
                texts[index] += " "
            elif not will_be_spaced and following == index + 2:
                between = texts[index + 1]
                if between.splitlines() == [between]:  # within a line
                    texts[index + 1] = ""
    return texts


def _pieces(part: str) -> Iterator[Piece]:
    """Yield a sentence and the white space around it."""
    sentence = part.strip()
    start = len(part) - len(part.lstrip())
    for text in (part[:start], sentence, part[start + len(sentence) :]):
        if text:
            yield Piece(text, any(map(str.isalpha, text)))


def _split_line(line: str, language: str) -> Iterator[Piece]:
    """Yield the pieces of a line; long sentences are cut."""
    limit = _MAX_IDEOGRAPHS if script_of(language) in _WITHOUT_SPACES else _MAX_CHARACTERS
    start = _LINE_START.match(line).end()  # type: ignore[union-attr]  # it matches every line
    if start:
        yield Piece(line[:start], is_sentence=False)
    for end in (*_sentence_ends(line, start, language), len(line)):
        while end - start > limit:
            cut = _cut(line[start : start + limit])
            yield from _pieces(line[start : start + cut])
            start += cut
        yield from _pieces(line[start:end])
        start = end


def _cut(text: str) -> int:
    """Return where to cut a part of a sentence: after a clause, between words, or at its end."""
    half = len(text) // 2
    clauses = [match.end() for match in _CLAUSE_END.finditer(text, half)]
    spaces = [index for index in range(half, len(text)) if text[index].isspace()]
    return (clauses or spaces or [len(text)])[-1]


def _sentence_ends(line: str, start: int, language: str) -> Iterator[int]:
    """Yield the ends of all sentences but the last."""
    if base_language(language) == "el":
        line = line.replace(";", "\u037e")  # the question mark of Greek, which is typed as ;
    for mark in _END.finditer(line, start):
        following = _NEXT.match(line, mark.end())
        if following is not None and _is_end(line, mark, following, language):
            yield mark.end()


def _is_end(line: str, mark: re.Match[str], following: re.Match[str], language: str) -> bool:
    """Test whether a sentence ends with a mark and the next one begins after it."""
    space, opening, first = following.groups()
    if not first or (not opening and unicodedata.category(first).startswith("P")):
        return False  # the line ends, or the sentence goes on with a comma
    marks = mark[0]
    is_closed = marks[-1] not in SENTENCE_MARKS
    if marks[0] in WIDE_SENTENCE_MARKS and not space:
        before = line[max(0, mark.start() - 1) : mark.start()]
        around = unicodedata.normalize("NFKC", before + first)
        if marks == "．" and not opening and around.isalnum() and around.isascii():
            return False  # "３．５", "Ｎｏ．１"
        # After a closing quotation mark, "he said" may follow.
        return not is_closed or bool(opening) or ("。" in marks and not _is_hiragana(first))
    if not space or first.islower():
        return False
    return is_closed or marks != "." or not _is_abbreviation(line, mark.start(), first, language)


def _is_abbreviation(line: str, end: int, first: str, language: str) -> bool:
    """Test whether the word before a period is an abbreviation or an ordinal number.

    `first` is the first character of the next word.
    """
    words = re.split(r"[\s(\[{\"'“„‘«»]", line[max(0, end - _LONGEST_ABBREVIATION) : end])
    word = words[-1]
    is_letter = len(word) == 1 and word.isalpha()
    if first.isdigit() and word.isalpha() and len(word) <= _MAX_LETTERS_BEFORE_NUMBER:
        return True  # "Fig. 3"
    if (is_letter and not word.islower()) or (
        _ABBREVIATED_LETTERS.fullmatch(word) and word.lower() not in _TIMES_OF_DAY
    ):
        return True
    prefixes = _nonbreaking_prefixes(base_language(language))
    numeric_only = prefixes.get(word, prefixes.get(word[:1].lower() + word[1:]))
    return numeric_only is not None and (first.isdigit() or not numeric_only)


@cache
def _nonbreaking_prefixes(language: str) -> dict[str, bool]:
    """Return the abbreviations of a language; the value is True if a number must follow."""
    from sacremoses.corpus import NonbreakingPrefixes  # here, because it loads joblib

    words = (line.partition(_NUMERIC_ONLY) for line in NonbreakingPrefixes().words(language))
    return {word.strip(): bool(marker) for word, marker, _ in words}


def _is_hiragana(character: str) -> bool:
    return "ぁ" <= character <= "ゟ"
