"""Guesses at the encoding of text that is not UTF-8, to say how to convert it."""

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
        path: A plain text file without a byte order mark, which text readers look for. Its first
            lines that are not UTF-8 decide.
        language: Its language, such as "de", which decides between 8-bit encodings.
    """
    with path.open("rb") as file:
        while lines := file.readlines(_SAMPLE_BYTES):
            broken = b"".join(ln for ln in lines if ln.decode(errors="ignore").encode() != ln)
            if broken.count(b"\0") > len(broken) // 8:
                is_little_endian = broken[1::2].count(b"\0") > broken[::2].count(b"\0")
                return "UTF-16LE" if is_little_endian else "UTF-16BE"
            if broken:
                return _CODE_PAGES.get(language[:2].lower(), "WINDOWS-1252")
    return None


def iconv_command(path: Path, encoding: str) -> str:
    """Return the shell command that converts a file to UTF-8."""
    converted = path.with_name(f"{path.stem}.utf8{path.suffix}")
    return f"iconv -f {encoding} -t UTF-8 '{path}' > '{converted}'"
