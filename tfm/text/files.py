"""Open text: unpack compressed files, and refuse or decode text that is not UTF-8.

Both are told by the content, never by the name.
"""

import bz2
import codecs
import gzip
import importlib
import lzma
import re
import select
import shlex
import sys
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfm.errors import DataError, UsageError, install_command

PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
PIPE = (
    "is a pipe or a device, but is read several times: write it to a file, compressed if you like "
    f"({', '.join(PACKED_SUFFIXES)})"
)

_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_BINARY = {
    rb"PK(\x03\x04|\x05\x06)": "a zip archive or an office document",
    rb".{257}ustar": "a tar archive",
    rb"7z\xbc\xaf\x27\x1c": "a 7z archive",
    rb"Rar!\x1a\x07": "a rar archive",
    rb"%PDF-\d": "a PDF",
    rb"\{\\rtf\d": "an RTF document",
    rb"\xd0\xcf\x11\xe0": "an office document",
    rb"\x89PNG|GIF8[79]a.{1,3}\x00|\xff\xd8\xff": "a picture",
    rb"PAR1\x15|ARROW1\x00": "a table in Parquet or Arrow",
    rb"SQLite format 3\x00": "a database",
    rb"\x93NUMPY|\x89HDF": "an array",
    rb"\x7fELF|MZ\x90": "a program",
}
_MARKS = {  # the longer ones first
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_WIDE = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
_MAGIC_BYTES = 16  # tell how a file is compressed
START_BYTES = 1 << 12  # tell the format of a text
_SAMPLE_BYTES = 1 << 12
_LATIN_NUL_RATE = 0.4  # at least, of bytes in UTF-16
# Up to this rate, text has odd characters; in UTF-8, a sample has two more where it is cut.
_MAX_ODD, _MAX_CUT = 0.01, 2
# In text, NULs are accidents, up to this number and rate.
_MAX_NULS, _MAX_NUL_RATE = 16, 0.001
_MAX_RETURNS = 10  # in the part of a line that has arrived
_INNER_RETURN = re.compile(rb"\r(?=[^\r\n])")
# Text compresses to between a third and a fifth of its size; small files may be very repetitive.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 64 << 20


def unpacked_name(name: str) -> str:
    """Return the name of a file without the suffix of its compression."""
    suffixes = (each for each in PACKED_SUFFIXES if name.lower().endswith(each))
    return name[: len(name) - len(next(suffixes, ""))]


def suffix_of(name: str) -> str:
    """Return the suffix of a file, in lower case and without the suffix of its compression."""
    return Path(unpacked_name(name)).suffix.lower()


def open_packed(file: Any, start: bytes) -> Any | None:
    """Return the unpacked content of a file that begins with `start`; None if it is not packed."""
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(file)
    if re.match(rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)", start):
        return bz2.open(file)
    if start.startswith(b"\xfd7zXZ\0"):
        return lzma.open(file)
    if not re.match(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", start):
        return None
    try:
        zstd = importlib.import_module(_ZSTD)
        # By default, windows of more than 128 MB are refused.
        largest = zstd.DecompressionParameter.window_log_max.bounds()[1]
        return zstd.open(file, options={zstd.DecompressionParameter.window_log_max: largest})
    except ImportError as error:
        raise UsageError(
            f"text that zstd has compressed needs {_ZSTD}, which is not installed: run "
            f"{install_command('zstd')}, or unpack it with zstd -d"
        ) from error


def check_expansion(name: object, packed_bytes: int, num_bytes: int) -> None:
    """Raise DataError if compressed text of a size cannot have this size unpacked."""
    if num_bytes > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * packed_bytes):
        raise DataError(
            f"{name} expands to more than {MAX_EXPANSION} times its compressed size, which text "
            "does not: check where it comes from"
        )


def damage_errors() -> tuple[type[Exception], ...]:
    """Return the errors of decompressors; an OSError of theirs has no number."""
    zstd = sys.modules.get(_ZSTD)
    own = () if zstd is None else (zstd.ZstdError,)
    return (zlib.error, lzma.LZMAError, EOFError, OSError, *own)


class TextFile:
    """The bytes of a text, unpacked if it is compressed, and checked to be text.

    Args:
        file: A binary file or pipe, at its start.
        path: Its path; None for standard input.
        decodes: Whether text in UTF-16 or UTF-32 is read as UTF-8, not refused.

    Attributes:
        encoding: The encoding of decoded text, known once it is read; "UTF-8" of other text.
    """

    def __init__(self, file: Any, path: Path | None, *, decodes: bool = False) -> None:
        self._path, self._decodes = path, decodes
        self._decoder: codecs.IncrementalDecoder | None = None
        self.encoding = "UTF-8"
        self._name = str(path or "standard input")
        self._file = self._content = _Arriving(file.read, file)
        self._unpacked: Any = None
        self._start: bytes | None = None
        self._last = b""  # byte
        self._num_bytes = self._num_nuls = self._num_returns = self._num_feeds = 0

    @property
    def is_packed(self) -> bool:
        """Whether it is compressed, as far as it has been read."""
        return self._unpacked is not None

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, and none only at the end; wait for those of a pipe."""
        return self.read_arrived(size, waits=True) or b""

    def read_arrived(self, size: int, *, waits: bool = False) -> bytes | None:
        """Return what `read` does; unless it `waits`, read a pipe once, and return None for none.

        None is also returned while too little has arrived to tell what the text is.
        """
        if self._start is None and not self._recognize(size, waits=waits):
            return None
        data = self._content.read(size, waits=waits)
        if data is not None and self._decoder is not None:
            return self._decoded(data, size)
        if data is not None:
            self._check(data)
        return data

    def readall(self) -> bytes:
        """Return all that is left."""
        return b"".join(iter(lambda: self.read(1 << 20), b""))

    def _recognize(self, size: int, *, waits: bool) -> bool:
        """Find out what the text is, if enough of it has arrived."""
        start = self._file.look(_MAGIC_BYTES, size, waits=waits)
        if start and (unpacked := open_packed(self._file, start)):
            self._unpacked, self._content = unpacked, _Arriving(self._unpack)
        if start is not None:
            start = self._content.look(START_BYTES, size, waits=waits or self.is_packed)
        if start is None:
            return False
        if self._decodes and (told := _told_encoding(start)):
            self.encoding = told
            self._decoder = codecs.getincrementaldecoder(told)()
        else:
            self._check_start(start)
        self._start = start
        return True

    def _decoded(self, data: bytes, size: int) -> bytes:
        """Return the next bytes in UTF-8; read on if they end within a character."""
        self._num_bytes += len(data)
        try:
            text = self._decoder.decode(data, final=not data)  # type: ignore[union-attr]
        except UnicodeDecodeError as error:
            place = self._num_bytes - len(error.object) + error.start + 1
            raise DataError(
                f"{self._name} is {self.encoding}, but damaged at byte {place:,}: replace it by an "
                "intact copy"
            ) from error
        return text.encode() if text or not data else self.read(size)

    def _unpack(self, size: int) -> bytes:
        try:
            data: bytes = self._unpacked.read1(size)
        except damage_errors() as error:
            if getattr(error, "errno", None) is not None:
                raise
            raise DataError(
                f"{self._name} is truncated or damaged ({error}): replace it by an intact copy"
            ) from error
        check_expansion(self._name, self._file.num_bytes, self._num_bytes + len(data))
        return data

    def _check(self, data: bytes) -> None:
        """Check the next bytes; empty bytes are the end."""
        if b"\0" in data:
            self._check_nuls(data)
        self._num_feeds += data.count(b"\n")
        if b"\r" in data or self._last == b"\r":
            self._num_returns += len(_INNER_RETURN.findall(self._last + data))
        # Within a line, a carriage return is white space. A block may end before a line feed.
        tolerance = 0 if not data or data.endswith(b"\n") else _MAX_RETURNS
        if self._num_returns > self._num_feeds + tolerance:
            raise self._mistake("has lines that end with CR, not LF", r"tr '\r' '\n'")
        self._num_bytes += len(data)
        self._last = data[-1:]

    def _check_start(self, data: bytes) -> None:
        for pattern, kind in _BINARY.items():
            if re.match(pattern, data, re.DOTALL):
                raise DataError(
                    f"{self._name} is {kind}, not text: check its name, or take the text out of it"
                )
        for mark, encoding in _MARKS.items():
            if data.startswith(mark):
                raise self._mistake(f"is {encoding}, not UTF-8", _iconv(encoding))

    def _check_nuls(self, data: bytes) -> None:
        """Raise an error if NULs are no accident: in UTF-16 and UTF-32, and in binary data."""
        self._num_nuls += data.count(0)
        start = -self._num_bytes % 4
        encoding = wide_encoding(data[start : start + _SAMPLE_BYTES])
        if encoding is not None and self._num_nuls > 1:
            raise self._mistake(f"is {encoding}, not UTF-8", _iconv(encoding))
        if self._num_nuls > _MAX_NULS + _MAX_NUL_RATE * (self._num_bytes + len(data)):
            number = self._num_feeds + data[: data.index(0)].count(b"\n") + 1
            mistake = f"has {self._num_nuls:,} NUL bytes, as in line {number:,}"
            raise self._mistake(f"{mistake}, so it is damaged or no text", r"tr -d '\0'")

    def _mistake(self, mistake: str, command: str) -> DataError:
        unpacked = "unpack it, and " if self.is_packed else ""
        return DataError(f"{self._name} {mistake}: {unpacked}{_convert(command, self._path)}")


class _Arriving:
    """The bytes that a function returns of a file or pipe, and how many of them have been read."""

    def __init__(self, read: Callable[[int], bytes | None], file: Any = None) -> None:
        self._read, self._file = read, file
        self._ahead, self._has_ended = b"", False
        self.num_bytes = 0

    def look(self, size: int, block_size: int, *, waits: bool) -> bytes | None:
        """Return `size` bytes or more, a line, or the whole file; None if too few have arrived."""
        while not (self._has_ended or len(self._ahead) >= size or b"\n" in self._ahead):
            if not waits and not is_readable(self._file, wait=False):
                return None
            self._fetch(block_size, waits=waits)
        return self._ahead

    def read(self, size: int, *, waits: bool = True) -> bytes | None:
        """Return at most `size` bytes, and none only at the end; None if none have arrived."""
        if not self._ahead and not self._has_ended:
            self._fetch(size, waits=waits)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        self.num_bytes += len(data)
        return data if data or self._has_ended else None

    def _fetch(self, size: int, *, waits: bool) -> None:
        while (data := self._read(size)) is None and waits:
            is_readable(self._file, wait=True)
        self._has_ended = data == b""
        self._ahead += data or b""


def is_readable(file: Any, *, wait: bool) -> bool:
    """Return whether reading would not block, after waiting for data if `wait`."""
    readable, _, _ = select.select([file], [], [], None if wait else 0)
    return bool(readable)


def wide_encoding(sample: bytes) -> str | None:
    """Return which UTF-16 or UTF-32, without a mark, bytes are text in; None if they are not.

    If they are text without their NULs, these are accidents, unless they are as many as in Latin
    script. Otherwise, the encoding is that with the fewest NULs in the low bytes of characters.
    Line feeds that only UTF-8 would have speak against UTF-16.
    """
    unspoiled = sample.replace(b"\0", b"")
    is_utf8 = not _is_odd(unspoiled.decode(errors="replace"), tolerance=_MAX_CUT)
    if is_utf8 and sample.count(0) < _LATIN_NUL_RATE * len(sample):
        return None
    found: list[tuple[int, str]] = []
    for encoding in _WIDE:
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(sample)
        except UnicodeDecodeError:
            continue
        width, low = int(encoding[4:6]) // 8, 0 if encoding.endswith("LE") else -1
        has_lines = "\n" in text or b"\n" not in sample
        if has_lines and not _is_odd(text):
            found.append((sample[low % width :: width].count(0), encoding))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _told_encoding(start: bytes) -> str | None:
    """Return which UTF-16 or UTF-32 text begins so; None for other text."""
    sample = start[:_SAMPLE_BYTES]
    mark = next((name for mark, name in _MARKS.items() if sample.startswith(mark)), None)
    return mark or (wide_encoding(sample) if b"\0" in sample else None)


def conversion(line: bytes, path: Path | None) -> str:
    """Return what to do about a line that is not UTF-8."""
    text = line.decode(errors="replace")
    if sum(not each.isascii() for each in text) > 2 * text.count("\ufffd"):
        return "other characters are UTF-8, so it is damaged: correct or remove it"
    return f"find out its encoding, and {_convert(_iconv('ENCODING'), path)}"


def _is_odd(text: str, *, tolerance: int = 0) -> bool:
    """Return whether a text has more than a few characters that text does not have."""
    kinds = [unicodedata.category(each) for each in text if each not in "\t\r\n"]
    num_odd = sum(kind in ("Cc", "Cn", "Co", "Cs") for kind in kinds) + text.count("\ufffd")
    return num_odd > tolerance + _MAX_ODD * len(kinds)


def _iconv(encoding: str) -> str:
    return f"iconv -f {encoding} -t UTF-8"


def _convert(command: str, path: Path | None) -> str:
    if path is None:
        return f"pipe it through {command}"
    return f"convert it with {command} < {shlex.quote(str(path))} > NEW_FILE"
