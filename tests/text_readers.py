"""Every way in which commands read the lines of a text."""

import bz2
import gzip
import lzma
import sys

import pytest

from tfm.metrics import texts
from tfm.text.lines import read_lines
from tfm.translation.reader import LineReader, count_lines

PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def write(folder, content, name="text.vi"):
    """Write a text, compressed as its suffix says; return its path."""
    content = content if isinstance(content, bytes) else content.encode()
    pack = PACK.get(name.lower().rpartition(".")[2], bytes)
    (folder / name).write_bytes(pack(content))
    return folder / name


def read_sources(path):
    """Return the lines that tfm generate translates."""
    with LineReader(path, None) as reader:
        lines = [line.source for chunk in reader for line in chunk]
    assert path is None or not path.is_file() or count_lines(path) == len(lines)
    return lines


def _piped(read):
    def read_piped(path):
        with path.open() as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            return read(None)

    return read_piped


READERS = {
    "prepare": lambda path: [line.decode() for line in read_lines(path, strict=True, part="src")],
    "generate": read_sources,
    "score": texts.read_lines,
    "reference": lambda path: texts.read_lines(path, part="ref"),
    "score stdin": _piped(lambda _: next(iter(texts.read(None).values()))),
    "generate stdin": _piped(read_sources),
}
EVERY_READER = pytest.mark.parametrize("reader", READERS)
