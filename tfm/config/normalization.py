"""The rules by which lines of text are normalized, as datasets and models record them."""

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

# All white space of Unicode and Python. U+2028 and U+2029 do not end lines here.
SPACES = re.compile("[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_CONTROLS = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"  # control characters but white space
# What is deleted: controls, U+FFF9 to U+FFFB, and Unicode's Default_Ignorable_Code_Point, but for
# what scripts and emoji need: the joiners U+200C and U+200D, variation selectors, tags of flags.
INVISIBLE = re.compile(
    f"[{_CONTROLS}\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e001f\U000e0080-\U000e00ff\U000e01f0-\U000e0fff]"
)
# The invisible characters that Python calls printable.
_INVISIBLE_LETTERS = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]")
# U+0080 to U+009F in text are bytes of Windows-1252 that were read as Latin-1. In WMT's text of
# 2014, all of U+0085 are the ellipsis of this encoding, and none a line end.
WINDOWS_1252 = {
    chr(byte): char
    for byte in range(0x80, 0xA0)
    if (char := bytes([byte]).decode("cp1252", errors="ignore"))
}
_DECODED = str.maketrans(WINDOWS_1252)
BREAKS = re.compile("[\t-\r\x1c-\x1f\x85\u2028\u2029]")  # would end a line or a column


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """Rules that normalize text, both for training and for translation.

    Attributes:
        space: Whether runs of white space become one space, and invisible characters are deleted.
        unicode: Whether Unicode is composed, to its normal form C.
        version: Version of the rules.
    """

    space: bool = True
    unicode: bool = True
    version: Literal[2] = 2

    def normalize(self, text: str) -> str:
        """Return a line as it is in the training text."""
        if self.space and not self._has_clean_space(text):
            text = self._collapsed(text).strip(" ")
        return self._composed(text)

    def output(self, text: str) -> str:
        """Return the output of a model as one line without control characters."""
        return self.normalize(text) if self.space else self._composed(_without_controls(text))

    def comparable(self, text: str) -> str:
        """Return a part of an output in a form that is the same for all spellings of its text."""
        text = self._collapsed(text) if self.space else _without_controls(text)
        return text if text.isascii() else unicodedata.normalize("NFD", text)

    def finds_windows_1252(self, text: str) -> bool:
        """Return whether text has characters that are decoded as Windows-1252."""
        return not self.replacements.keys().isdisjoint(text)

    @property
    def replacements(self) -> dict[str, str]:
        """Replacements of single characters, applied before characters are deleted."""
        return WINDOWS_1252 if self.space else {}

    def _has_clean_space(self, text: str) -> bool:
        """Return whether collapsing and stripping white space would not change a line."""
        # Except for the space and a few letters, no character in the patterns is printable.
        return (
            text.isprintable()
            and "  " not in text
            and text[:1] != " " != text[-1:]
            and (text.isascii() or not _INVISIBLE_LETTERS.search(text))
        )

    def _collapsed(self, text: str) -> str:
        return SPACES.sub(" ", INVISIBLE.sub("", text.translate(_DECODED)))

    def _composed(self, text: str) -> str:
        is_composed = not self.unicode or text.isascii()
        return text if is_composed else unicodedata.normalize("NFC", text)


LATEST_NORMALIZATION = Normalization()


def _without_controls(text: str) -> str:
    return text if text.isprintable() else re.sub(f"[{_CONTROLS}]", "", BREAKS.sub(" ", text))


def is_combining(character: str) -> bool:
    """Return whether a character is part of another one in decomposed Unicode."""
    return unicodedata.combining(character) > 0 or "\u1160" <= character <= "\u11ff"
