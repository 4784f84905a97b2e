"""The segments of SGML, of WMT's XML and of IWSLT's training text, which are lines of text.

A file may hold several columns of segments: the source, references of several translators and
translations of several systems. They are called as sacreBLEU calls them: src, ref:A, hyp:Online-B.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tfm.errors import DataError

SOURCE, REFERENCE, TRANSLATION, ALL = "src", "ref", "hyp", ""

_TAG = re.compile(rb"<(/?)(srcset|refset|tstset|src|ref|hyp|doc|seg)\b([^<>]*)>", re.IGNORECASE)
_SEGMENT_TAG = re.compile(rb"<seg\b", re.IGNORECASE)
_ATTRIBUTE = re.compile(rb"(?<![\w:.-])([\w:.-]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'/>]+))")
_KINDS = {b"srcset": SOURCE, b"refset": REFERENCE, b"tstset": TRANSLATION}
_NAMES = (b"translator", b"system", b"refid", b"sysid")  # attributes with the name of a column
_ENTITY = re.compile(rb"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6}));")
_ENTITIES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}
_TALK_MARKUP = re.compile(rb"<[^<>]*>")
_TALK_TEXT = (b"<title>", b"<description>")
_LINE_ENDS = re.compile(rb"[\r\n]+")

_Key = tuple[bytes, bytes]  # document and segment


class _Segment(NamedTuple):
    column: str
    key: _Key
    line: bytes
    is_of_wmt: bool  # whether it is in an element of WMT's XML, not in a set of SGML


def has_segments(text: bytes) -> bool:
    """Return whether a text has elements of segments."""
    return _SEGMENT_TAG.search(text) is not None


def segment_lines(text: bytes, part: str, path: Path | None) -> list[bytes]:
    """Return the segments of a part of a text, each as one line.

    A part is a kind of columns, or a column. Segments that no reference translates are left out,
    as sacreBLEU does, so that all parts have as many. Of several references, `REFERENCE` is the
    first one that translates all others. SGML with a single column, which may be named after the
    other direction, is every part. `ALL` is all segments in order.
    """
    found = _segments(text, path)
    if part == ALL:
        return [each.line for each in found]
    columns = _aligned(found, path)
    chosen = [name for name in columns if name == part or name.startswith(f"{part}:")]
    if len(columns) == 1 and not found[0].is_of_wmt:
        chosen = [*columns]
    if part == REFERENCE and chosen:
        complete = [name for name in chosen if all(columns[name])]
        if not complete:
            rows = zip(*(columns[name] for name in chosen), strict=True)
            return [next(filter(None, row), b"") for row in rows]
        chosen = complete[:1]
    if len(chosen) != 1:
        names = ", ".join(columns)
        problem = f"has no <{part}>, only {names}" if not chosen else f"has several: {names}"
        raise DataError(
            f"{path or 'standard input'} {problem}: give a file with the one that is to be read"
        )
    return columns[chosen[0]]


def columns_of(text: bytes, path: Path | None) -> dict[str, list[bytes]]:
    """Return the lines of the columns of a text; a segment that a column lacks is empty there."""
    return _aligned(_segments(text, path), path)


def talk_lines(text: bytes) -> list[bytes]:
    """Return the lines of talks, their titles and descriptions, without others about them."""
    lines = text.removesuffix(b"\n").split(b"\n") if text else []
    kept = (line for line in lines if line[:1] != b"<" or line.startswith(_TALK_TEXT))
    return [_TALK_MARKUP.sub(b"", line).strip() if line[:1] == b"<" else line for line in kept]


def _segments(text: bytes, path: Path | None) -> list[_Segment]:
    """Return all segments in order; DataError if there are none, or one does not end."""
    found = list(_find_segments(text))
    if len(found) != len(_SEGMENT_TAG.findall(text)):
        raise DataError(f"{path} is truncated or damaged: not every <seg> has its </seg>")
    if not found:
        raise DataError(f"{path} has no <seg>: give text with a sentence per line, or SGML")
    return found


def _find_segments(text: bytes) -> Iterator[_Segment]:
    place, start = _Place(), -1
    for tag in _TAG.finditer(text):
        element = tag[2].lower()
        if tag[1]:
            if element == b"seg" and start >= 0:
                yield place.segment(join_lines(_ENTITY.sub(_unescape, text[start : tag.start()])))
                start = -1
        elif start < 0:
            given = {item[0].lower(): b"".join(item[1:]) for item in _ATTRIBUTE.findall(tag[3])}
            place.enter(element, given)
            if element == b"seg" and tag[3].endswith(b"/"):
                yield place.segment(b"")
            elif element == b"seg":
                start = tag.end()


class _Place:
    """The elements around a segment."""

    def __init__(self) -> None:
        self._kind, self._name, self._is_of_wmt = "", b"", False
        self._document = self._segment = b""
        self._num_documents = self._num_segments = 0

    def enter(self, element: bytes, given: Mapping[bytes, bytes]) -> None:
        """Enter an element with attributes; documents and segments without an id are numbered."""
        if element == b"seg":
            self._num_segments += 1
            self._segment = given.get(b"id") or b"%d" % self._num_segments
            return
        self._num_segments = 0
        if element == b"doc":
            self._num_documents += 1
            self._document = given.get(b"docid") or given.get(b"id") or b"%d" % self._num_documents
        else:
            self._kind, self._name = _KINDS.get(element) or element.decode(), b""
            self._is_of_wmt = element not in _KINDS
            if not self._is_of_wmt:
                self._num_documents = 0
        if self._kind in (REFERENCE, TRANSLATION):
            self._name = next(filter(None, map(given.get, _NAMES)), self._name)

    def segment(self, line: bytes) -> _Segment:
        """Return the segment at this place."""
        name = self._name.decode(errors="replace")
        column = f"{self._kind}:{name}" if name else self._kind
        return _Segment(column, (self._document, self._segment), line, self._is_of_wmt)


def _aligned(found: Sequence[_Segment], path: Path | None) -> dict[str, list[bytes]]:
    """Return the columns; if there are several, their lines belong together."""
    columns: dict[str, dict[_Key, bytes]] = {each.column: {} for each in found}
    if len(columns) == 1:
        return {found[0].column: [each.line for each in found]}
    for each in found:
        if each.key in columns[each.column]:
            raise DataError(
                f"{path} has two segments {each.key[1].decode(errors='replace')} of a document: "
                "correct their id"
            )
        columns[each.column][each.key] = each.line
    keys = columns.get(SOURCE) or dict.fromkeys(each.key for each in found)
    references = [lines for name, lines in columns.items() if name.startswith(REFERENCE)]
    translated = {key for lines in references for key, line in lines.items() if line}
    kept = [key for key in keys if not references or key in translated]
    return {name: [lines.get(key, b"") for key in kept] for name, lines in columns.items()}


def join_lines(text: bytes) -> bytes:
    """Return the lines of a text as one, without the spaces around them."""
    lines = _LINE_ENDS.split(text)
    return b" ".join(filter(None, (line.strip() for line in lines)))


def _unescape(match: re.Match[bytes]) -> bytes:
    name, decimal, hexadecimal = match.groups()
    if name:
        return _ENTITIES[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    is_character = 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
    return chr(code).encode() if is_character else match[0]
