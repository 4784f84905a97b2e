"""The formats of text that users have: some are read as lines, others are refused by name."""

import io
import re
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from tfm.errors import DataError
from tfm.text.files import START_BYTES, TextFile, suffix_of
from tfm.text.segments import columns_of, has_segments, segment_lines, talk_lines

TABLES, JSON_LINES, MEMORIES = (".tsv", ".csv"), (".jsonl", ".ndjson"), (".tmx",)
SEGMENTS = (".sgm", ".sgml", ".xml")
RECORD_SUFFIXES = (*TABLES, *JSON_LINES, *MEMORIES)  # of files with source and target
BOTH_SIDES = (*RECORD_SUFFIXES, *SEGMENTS)  # a file may have source and target
RECORDS = "records"  # the part of a table or JSON lines that is all of it
_TALKS, TALKS = "train.tags.", ".iwslt"  # the name of IWSLT's training text, and its suffix here

_PROLOG = rb"\s*(?:<\?xml[^<>]*>\s*|<!--(?:(?!-->).)*-->\s*|<!DOCTYPE[^<>\[]*>\s*)*"
_TIMES = rb"\d+\r?\n(?:\d+:)?\d+:\d+[,.]\d+\s*-->"


class Format(NamedTuple):
    """A format of text: its name, suffixes and start, and what to do with such a file.

    Attributes:
        name: The name in messages.
        suffixes: Suffixes of file names.
        start: A pattern of the first bytes, to recognize files without one of the suffixes.
        advice: What to do with such a file; "" if its lines are read.
        flag: The --format that translates it; "" if none does.
    """

    name: str
    suffixes: tuple[str, ...]
    start: bytes
    advice: str = ""
    flag: str = ""


def _translated_by(flag: str) -> tuple[str, str]:
    return f"give tfm generate --format {flag}, or take its sentences out, one per line", flag


_TAKE_OUT = "take its sentences out, one per line"
_CONVERT = f"convert it to HTML for tfm generate --format html, or {_TAKE_OUT}"
_TO_SUBRIP = "convert it to SubRip (.srt)"
# The first row with a fitting suffix, or else start, counts. XML is told by its root element.
FORMATS = (
    Format("IWSLT", (TALKS,), b""),
    Format("TMX", MEMORIES, _PROLOG + rb"<tmx\b", f"{_TAKE_OUT} and language"),
    Format(
        "XLIFF",
        (".xlf", ".xliff", ".sdlxliff", ".mqxliff"),
        _PROLOG + rb"<xliff\b",
        *_translated_by("xml"),
    ),
    Format(
        "HTML",
        (".html", ".htm", ".xhtml"),
        rb"(?i:\s*<!DOCTYPE html\b|" + _PROLOG + rb"<html\b)",
        *_translated_by("html"),
    ),
    Format(
        "SGML", SEGMENTS[:2], rb"(?i:" + _PROLOG + rb"<(?:srcset|refset|tstset|mteval|dataset)\b)"
    ),
    Format("XML", (".xml", ".dita", ".docbook"), rb"\s*<\?xml\b", *_translated_by("xml")),
    Format("SubRip", (".srt",), rb"\s*" + _TIMES, *_translated_by("srt")),
    Format("WebVTT", (".vtt",), rb"WEBVTT\b", *_translated_by("srt")),
    Format("SubStation Alpha", (".ass", ".ssa"), rb"\[Script Info\]", _TO_SUBRIP),
    Format("SubViewer", (".sbv",), rb"\s*\d+:\d+:\d+\.\d+,\d+:\d+:\d+\.\d+\s*\n", _TO_SUBRIP),
    Format("MicroDVD", (".sub",), rb"\s*\{\d+\}\{\d+\}", _TO_SUBRIP),
    Format("LRC", (".lrc",), rb"(?:\s*\[[a-z]+:[^\]\n]*\])*\s*\[\d+:\d+\.\d+\]", _TO_SUBRIP),
    Format("a table (TSV)", TABLES[:1], b"", "take the column of sentences out with cut -f"),
    Format("a table (CSV)", TABLES[1:], b"", "save its column of sentences as plain text"),
    Format("JSON lines", JSON_LINES, b"", "take the sentences out, as with jq -r .FIELD"),
    Format(
        "JSON",
        (".json",),
        rb"\s*(?:(?:\[\s*\{|\{[^\S\n]*\n)\s*\"[^\"\n]*\"\s*:|\[[^\S\n]*\n\s*\"[^\"\n]*\",\s*\n)",
        "take the sentences out, as with jq -r",
    ),
    Format("gettext (PO)", (".po",), rb"(?:#[^\n]*\n|\s)*msg(?:id|ctxt) \"", _TAKE_OUT),
    Format("Markdown", (".md", ".markdown"), b"", _CONVERT),
    Format("reStructuredText", (".rst",), b"", _CONVERT),
    Format("LaTeX", (".tex",), rb"\s*\\documentclass\b", _CONVERT),
    Format("YAML", (".yaml", ".yml"), rb"%YAML\b", _TAKE_OUT),
    Format("a resource file", (".properties", ".strings", ".ini", ".toml", ".ftl"), b"", _TAKE_OUT),
)


def format_of(name: str, start: bytes = b"") -> Format | None:
    """Return the format of a file by its name, or else by its start; None for plain text."""
    suffix = TALKS if name.startswith(_TALKS) else suffix_of(name)
    start = start.removeprefix(b"\xef\xbb\xbf")[:START_BYTES]
    by_suffix = next((each for each in FORMATS if suffix in each.suffixes), None)
    if by_suffix is not None and by_suffix.name != "XML":
        return by_suffix
    by_start = (each for each in FORMATS if each.start and re.match(each.start, start, re.DOTALL))
    return next(by_start, by_suffix)


def open_text(file: Any, path: Path | None, part: str | None) -> TextFile:
    """Return the lines of a text: unpacked, checked, and of its `part` if it has segments.

    All commands open their text here. What is no text of a sentence per line is refused when it is
    read. Without a `part`, the text is plain, whatever its name.

    Args:
        file: A binary file or pipe, at its start.
        path: Its path; None for standard input.
        part: The part of a text with segments that is read, as `segment_lines` says; the lines of
            `RECORDS` are those of the file, which may be in UTF-16.
    """
    if part in (None, RECORDS):
        return TextFile(file, path, decodes=part == RECORDS)
    return _FormattedText(file, path, part)


def encoding_of(path: Path) -> str:
    """Return in which UTF-16 or UTF-32 a text is; "UTF-8" for others."""
    with path.open("rb") as file:
        text = TextFile(file, path, decodes=True)
        text.read(START_BYTES)
        return text.encoding


def columns_in(path: Path) -> dict[str, list[bytes]]:
    """Return the columns of a file with segments, as `columns_of` does; {} of other text."""
    if not path.is_file():  # a pipe can be read once
        return {}
    with path.open("rb") as file:
        text = TextFile(file, path)
        start = text.read(START_BYTES)
        kind = format_of(path.name, start)
        if kind is None or not {*kind.suffixes} & {*SEGMENTS}:
            return {}
        return columns_of(start + text.readall(), path)


class _FormattedText(TextFile):
    """A text whose format is known once its first bytes are read. Plain text is not changed."""

    def __init__(self, file: Any, path: Path | None, part: str) -> None:
        super().__init__(file, path)
        self._part = part
        self._lines: io.BytesIO | None = None

    @property
    @override
    def is_packed(self) -> bool:
        return self._lines is not None or super().is_packed

    @override
    def read_arrived(self, size: int, *, waits: bool = False) -> bytes | None:
        if self._lines is not None:
            return self._lines.read(size)
        is_at_start = not self._num_bytes
        data = super().read_arrived(size, waits=waits)
        if not data or not is_at_start:
            return data
        kind = format_of(self._path.name if self._path else "", self._start or b"")
        if kind is None:
            return data
        text = b"" if kind.advice and kind.name != "XML" else data + self.readall()
        if kind.advice and not has_segments(text):
            raise DataError(
                f"{self._name} is {kind.name}, not one sentence per line: {kind.advice}"
            )
        lines = (
            talk_lines(text)
            if TALKS in kind.suffixes
            else segment_lines(text, self._part, self._path)
        )
        self._lines = io.BytesIO(b"".join(line + b"\n" for line in lines))
        return self._lines.read(size)
