"""Reading of text to translate: whatever is in it, line by line and within bounds."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfm.errors import DataError
from tfm.stages import text_chunks
from tfm.stages.text_chunks import TextChunks, count_lines


@pytest.fixture
def write(tmp_path):
    def named(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return named


def read(path, beside=None):
    with TextChunks(path, beside) as text:
        return list(text.read())


def lines_of(path):
    return [line for chunk in read(path) for line in chunk.lines]


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


def test_lines_come_in_chunks_with_their_numbers_and_what_goes_along(write, monkeypatch):
    monkeypatch.setattr(text_chunks, "_CHUNK_LINES", 2)
    chunks = read(write("in", b"a\nb\nc\n"), write("beside", b"A\n\nC"))
    assert [(c.first_line, c.lines, c.beside) for c in chunks] == [
        (1, ["a", "b"], ["A", ""]),
        (3, ["c"], ["C"]),
    ]
    assert [chunk.beside for chunk in read(write("in", b"a\nb\nc\n"))] == [None, None]


def test_long_lines_make_short_chunks(write, monkeypatch):
    monkeypatch.setattr(text_chunks, "_CHUNK_CHARACTERS", 10)
    chunks = read(write("in", b"12345\n12345\n12345\n1234567890\n1\n"))
    assert [chunk.lines for chunk in chunks] == [["12345"] * 2, ["12345", "1234567890"], ["1"]]


@pytest.mark.parametrize(
    ("content", "number", "byte"),
    [
        (b"a\n\xff\xfe\n", 2, 1),
        # The third line ends in the bytes of the fifth, which alone are no text.
        ("a\nb\nä\nc\n".encode() + b"\xa4\n", 5, 1),
        (b"abc\xe4", 1, 4),
    ],
)
def test_a_line_that_is_not_utf_8_is_named(write, content, number, byte):
    message = rf"in, line {number} is not UTF-8 \(.* at its byte {byte}\): convert it to UTF-8"
    with pytest.raises(DataError, match=message):
        read(write("in", content))


def test_a_line_without_end_is_refused_before_it_is_in_memory(tmp_path):
    path = tmp_path / "in"
    with path.open("wb") as file:
        file.write(b"a\n")
        file.truncate(1 << 32)  # 4 GiB of nothing that take no room
    with pytest.raises(DataError, match="in, line 2 has 16 MiB or more: this is no text of one"):
        read(path)


@pytest.mark.parametrize(
    ("content", "other", "message"),
    [
        (b"a\nb\nc\n", b"A\nB\n", "other ends after 2 lines, before .*in: line N of one"),
        (b"a\nb\n", b"A\nB\n\n", "in ends after 2 lines, before .*other: line N of one"),
        (b"", b"A\n", "in ends after 0 lines, before .*other"),
    ],
)
@pytest.mark.parametrize("chunk_lines", [1, 2, 1000])
def test_files_of_different_length_are_refused(
    write, monkeypatch, content, other, message, chunk_lines
):
    monkeypatch.setattr(text_chunks, "_CHUNK_LINES", chunk_lines)
    with pytest.raises(DataError, match=message):
        read(write("in", content), write("other", other))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_lines_or_one_clear_error(write, content):
    path = write("in", content)
    try:
        text = content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        with pytest.raises(DataError, match=r"^\S+in, line \d+ is not UTF-8 \([^\n]+$"):
            lines_of(path)
    else:
        rows = text.removesuffix("\n").split("\n") if content else []
        assert lines_of(path) == [row.rstrip("\r") for row in rows]
        assert count_lines(path) == len(rows)


def test_before_each_reading_the_caller_may_wait(write, tmp_path):
    """A pipe is read as it fills, and only after the caller let it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    parts = [b"se", b"ven\nei", b"ght\n"]
    allowed = threading.Semaphore(0)
    waited_for = []

    def fill():
        with path.open("wb", buffering=0) as file:
            for part in parts:
                allowed.acquire()
                file.write(part)
            allowed.acquire()

    def wait(descriptor):
        assert os.get_blocking(descriptor)
        waited_for.append(descriptor)
        allowed.release()

    writer = threading.Thread(target=fill)
    writer.start()
    with TextChunks(path, None) as text:
        [chunk] = text.read(wait)
    writer.join()
    assert chunk.lines == ["seven", "eight"]
    assert len(waited_for) == len(parts) + 1
