"""Guesses at the encoding of text that is not UTF-8, to say how to convert it."""

import shlex
from collections.abc import Mapping
from pathlib import Path

_SAMPLE_BYTES = 1 << 20
SIGNATURE_BYTES = 1 << 12
_MIN_HIGH_BYTES = 4
_MAX_HIGH_BYTE = 6  # of Latin, Greek, Cyrillic, Hebrew and Arabic letters in UTF-16
_BYTE_ORDER_MARKS: Mapping[bytes, str] = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
# The 8-bit code page in which text of a language is most often found, where it is not Western.
_CODE_PAGES: Mapping[str, str] = {
    **dict.fromkeys(("cs", "hr", "hu", "pl", "ro", "sk", "sl", "sq"), "WINDOWS-1250"),
    **dict.fromkeys(("be", "bg", "kk", "mk", "ru", "sr", "uk"), "WINDOWS-1251"),
    "ar": "WINDOWS-1256",
    "el": "WINDOWS-1253",
    **dict.fromkeys(("et", "lt", "lv"), "WINDOWS-1257"),
    "fa": "WINDOWS-1256",
    "he": "WINDOWS-1255",
    "ja": "SHIFT_JIS",
    "ko": "EUC-KR",
    "th": "TIS-620",
    "tr": "WINDOWS-1254",
    "vi": "WINDOWS-1258",
    "zh": "GB18030",
}


def likely_encoding(path: Path, language: str) -> str | None:
    """Return the likely encoding of a text file, by the name that iconv knows; None if it is UTF-8.

    Args:
        path: A plain text file, of which the first lines that are not UTF-8 decide.
        language: Its language, such as "de", which decides between 8-bit encodings.
    """
    with path.open("rb") as file:
        if encoding := unicode_encoding(file.read(SIGNATURE_BYTES)):
            return encoding
        file.seek(0)
        while lines := file.readlines(_SAMPLE_BYTES):
            broken = b"".join(line for line in lines if not _is_utf8(line))
            if broken:
                code_page = _CODE_PAGES.get(language[:2].lower(), "WINDOWS-1252")
                return unicode_encoding(broken) or code_page
    return None


def unicode_encoding(start: bytes) -> str | None:
    """Return the UTF-16 or UTF-32 encoding that the first bytes of a text show; None for others.

    Without a byte order mark, control characters show it: they are the first byte of most
    characters in European alphabets, and text in UTF-8 has none.
    """
    for mark, name in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return name
    halves = {"UTF-16BE": start[::2], "UTF-16LE": start[1::2]}
    for name, high_bytes in halves.items():
        if sum(byte <= _MAX_HIGH_BYTE for byte in high_bytes) > max(
            _MIN_HIGH_BYTES, len(start) // 4
        ):
            return name
    return None


def iconv_command(path: Path, encoding: str) -> str:
    """Return the shell command that converts a file to UTF-8."""
    source, converted = (
        shlex.quote(str(each)) for each in (path, path.with_name(f"{path.stem}.utf8{path.suffix}"))
    )
    return f"iconv -f {encoding} -t UTF-8 {source} > {converted}"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
