"""Reading text to translate, of any content, line by line and in bounded memory."""

import contextlib
import os
import re
import select
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tfm.errors import DataError
from tfm.text import files
from tfm.text.formats import format_of
from tfm.translation import reader
from tfm.translation.reader import LineReader, count_lines
from tfm.translation.steps import Segment


@pytest.fixture
def write(tmp_path):
    def named(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return named


def read(path, paired_path=None, chunk_lines=1000):
    with LineReader(path, paired_path, chunk_lines=chunk_lines) as lines:
        return list(lines)


def texts_of(chunk):
    return [line.source for line in chunk]


def lines_of(path):
    return [line for chunk in read(path) for line in texts_of(chunk)]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\r\r\nc\r", ["a\rb", "c"]),
        (b"a\0b\n\0\n", ["a\0b", "\0"]),
        ("a\u2028b\x0cc\n".encode(), ["a\u2028b\x0cc"]),
        ("\ufeffa\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
        (b"x" * 100_000 + b"\ny\n", ["x" * 100_000, "y"]),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_only_line_feeds_end_lines(write, content, lines):
    path = write("in", content)
    assert lines_of(path) == lines
    assert count_lines(path) == len(lines)


def test_lines_come_in_chunks_with_their_numbers_and_paired_lines(write):
    chunks = read(write("in", b"a\nb\nc\n"), write("beside", b"A\n\nC"), chunk_lines=2)
    assert chunks == [[Segment(1, "a", "A"), Segment(2, "b", "")], [Segment(3, "c", "C")]]
    chunks = read(write("in", b"a\nb\nc\n"), chunk_lines=2)
    assert [line.given for chunk in chunks for line in chunk] == [None] * 3


def test_long_lines_make_short_chunks(write, monkeypatch):
    monkeypatch.setattr(reader, "_CHUNK_CHARACTERS", 10)
    chunks = read(write("in", b"12345\n12345\n12345\n1234567890\n1\n"))
    assert [texts_of(chunk) for chunk in chunks] == [["12345"] * 2, ["12345", "1234567890"], ["1"]]


@pytest.mark.parametrize(
    ("content", "number", "byte"),
    [
        (b"a\n\xff\xfe\n", 2, 1),
        # The third line ends in the bytes of the fifth, which are invalid by themselves.
        ("a\nb\nä\nc\n".encode() + b"\xa4\n", 5, 1),
        (b"abc\xe4", 1, 4),
    ],
)
def test_a_line_that_is_not_utf_8_is_named(write, content, number, byte):
    message = rf"in, line {number} is not UTF-8 \(.* at its byte {byte}\): .*iconv"
    with pytest.raises(DataError, match=message):
        read(write("in", content))


@pytest.mark.parametrize("chunk_lines", [1, 2, 1000])
@pytest.mark.parametrize(
    ("content", "other"),
    [(b"a\nb\nc\n\xff\nd\n", b"A\n" * 5), (b"a\nb\nc\nd\n", b"A\nB\nC\n"),
     (b"a\nb\nc\n" + bytes(9999), b"A\n" * 5), (b"a\nb\nc\nd\n", b"A\nB\nC\n\xff\n")],
)  # fmt: skip
def test_the_lines_before_a_bad_one_are_yielded_first(
    write, monkeypatch, content, other, chunk_lines
):
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 6)
    found = []
    lines = LineReader(write("in", content), write("o", other), chunk_lines=chunk_lines)
    with lines, pytest.raises(DataError):
        found.extend(lines)
    assert [line for chunk in found for line in texts_of(chunk)] == ["a", "b", "c"]


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path):
    path = tmp_path / "in"
    with path.open("wb") as file:
        file.write(b"a\n")
        file.truncate(1 << 32)  # 4 GiB of zeros, sparse on disk
    with pytest.raises(DataError, match="in has 65,534 NUL bytes, as in line 2"):
        read(path)


def test_a_long_line_is_refused_when_its_start_has_arrived(write, monkeypatch):
    monkeypatch.setattr("tfm.text.lines._MAX_LINE_BYTES", 20)
    with pytest.raises(DataError, match=r"in, line 2 has .* MiB or more: the text must have one"):
        read(write("in", b"a\n" + b"x" * 50))


@pytest.mark.parametrize(
    ("content", "other", "message"),
    [
        (b"a\nb\nc\n", b"A\nB\n", "other ends after 2 lines, but .*in has more: line N of one"),
        (b"a\nb\n", b"A\nB\n\n", "in ends after 2 lines, but .*other has more: line N of one"),
        (b"", b"A\n", "in ends after 0 lines, but .*other has more"),
    ],
)
@pytest.mark.parametrize("chunk_lines", [1, 2, 1000])
def test_files_of_different_length_are_refused(write, content, other, message, chunk_lines):
    with pytest.raises(DataError, match=message):
        read(write("in", content), write("other", other), chunk_lines)


@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_give_lines_or_one_clear_error(write, content):
    path = write("in", content)
    try:
        re.sub(rb"[\0\r]", b"\xff", content).decode()
    except UnicodeDecodeError:
        expected = pytest.raises(DataError, match=r"^\S+in[, ][^\n]+$")
        is_text = b"\xff" not in content and not content.decode(errors="replace").count("\ufffd")
        with contextlib.suppress(DataError) if is_text else expected:
            lines_of(path)
    else:
        assume(format_of("in", content) is None)
        assume(not any(re.match(pattern, content, re.DOTALL) for pattern in files._BINARY))
        rows = content.decode().removeprefix("\ufeff").removesuffix("\n").split("\n")
        assert lines_of(path) == (rows if content else [])
        assert count_lines(path) == (len(rows) if content else 0)


# --- text that arrives slowly


@contextmanager
def pipe():
    """A path to read from, and the file to write to."""
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb", buffering=0) as file:
        yield Path(f"/dev/fd/{reading}"), file


def is_readable(descriptor):
    return bool(select.select([descriptor], [], [], 0)[0])


def never_wait(descriptor, *, wait):
    assert is_readable(descriptor) or not wait, "it waits"
    return is_readable(descriptor)


CONTENT = st.lists(st.sampled_from(["\n", "\r\n", "a", "long", "ä", "b\nc\n"])).map("".join)


@given(content=CONTENT, size=st.integers(1, 9), chunk_lines=st.integers(1, 4))
def test_lines_that_have_arrived_are_yielded_before_blocking(
    monkeypatch, content, size, chunk_lines
):
    parts = [content.encode()[i:][:size] for i in range(0, len(content.encode()), size)]
    written = b""
    lines = []

    def is_ready(descriptor, *, wait):
        nonlocal written
        if wait and not is_readable(descriptor):
            assert len(lines) == written.count(b"\n")
            if parts:
                written += parts[0]
                file.write(parts.pop(0))
            else:
                file.close()
        return is_readable(descriptor)

    monkeypatch.setattr(reader, "is_readable", is_ready)
    with pipe() as (path, file), LineReader(path, None, chunk_lines=chunk_lines) as chunks:
        for chunk in chunks:
            assert (chunk[0].number, len(chunk) <= chunk_lines) == (len(lines) + 1, True)
            lines += texts_of(chunk)
    rows = content.removesuffix("\n").split("\n") if content else []
    assert lines == [row.rstrip("\r") for row in rows]


def test_a_line_is_yielded_as_soon_as_its_paired_line_has_arrived(monkeypatch):
    monkeypatch.setattr(reader, "is_readable", never_wait)
    with (
        pipe() as (path, file),
        pipe() as (other_path, other),
        LineReader(path, other_path) as text,
    ):
        chunks = iter(text)
        file.write(b"a\nb\nc\n")
        other.write(b"A\nB")
        assert next(chunks) == [Segment(1, "a", "A")]
        other.write(b"\nC\n")
        assert next(chunks) == [Segment(2, "b", "B"), Segment(3, "c", "C")]
        file.close()
        other.close()
        assert list(chunks) == []


def test_reading_blocks_again_if_another_program_has_read_the_data(monkeypatch):
    def is_ready(descriptor, *, wait):
        os.set_blocking(descriptor, False)  # as another program may have done
        if wait and parts:
            file.write(parts.pop(0))
        elif wait:
            file.close()
        return wait or is_readable(descriptor)

    monkeypatch.setattr(reader, "is_readable", is_ready)
    with pipe() as (path, file), LineReader(path, None) as text:
        parts = [b"se", b"", b"ven\nei", b"", b"ght"]
        assert [texts_of(chunk) for chunk in text] == [["seven"], ["eight"]]
