"""Guesses at the encoding of text that is not UTF-8, to say how to convert it."""

import shlex
from collections.abc import Mapping
from pathlib import Path

_SAMPLE_BYTES = 1 << 20
BYTE_ORDER_MARKS: Mapping[bytes, str] = {
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
        start = file.read(4)
        for mark, name in BYTE_ORDER_MARKS.items():
            if start.startswith(mark):
                return name
        file.seek(0)
        while lines := file.readlines(_SAMPLE_BYTES):
            broken = b"".join(line for line in lines if not _is_utf8(line))
            if broken:
                return _guess(broken, language)
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


def _guess(text: bytes, language: str) -> str:
    if text.count(b"\0") > len(text) // 8:
        return "UTF-16LE" if text[1::2].count(b"\0") > text[::2].count(b"\0") else "UTF-16BE"
    return _CODE_PAGES.get(language[:2].lower(), "WINDOWS-1252")
