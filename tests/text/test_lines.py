"""Reading text: line ends, SGML and invalid files."""

import contextlib
import os
from pathlib import Path

import pytest
from helpers import write_pairs
from hypothesis import given
from hypothesis import strategies as st

from tfm.errors import DataError
from tfm.text.lines import UnusableLine, read_blocks, read_lines, read_pairs


def read(tmp_path, content, name="text.en", *, strict=True):
    path = tmp_path / name
    path.write_bytes(content)
    lines = read_lines(path, strict=strict, part="src")
    return [line.decode(errors="surrogateescape") for line in lines]


def test_only_line_feeds_end_lines_and_only_a_mark_at_the_start_is_dropped(tmp_path):
    content = "\ufeffone\r\ntwo\u2028still two\x85\x0b\x0c\x1c\n\n\ufeffin\rside\r\r\nlast".encode()
    lines = read(tmp_path, content)
    assert lines == ["one", "two\u2028still two\x85\x0b\x0c\x1c", "", "\ufeffin\rside", "last"]


@given(st.lists(st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]))))
def test_lines_are_read_as_written(tmp_path_factory, lines):
    content = "".join(f"{line}\n" for line in lines).encode()
    expected = list(lines)
    if expected:
        expected[0] = expected[0].removeprefix("\ufeff")
    assert read(tmp_path_factory.getbasetemp(), content) == expected


TEXT = st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"long", "ä".encode()])).map(b"".join)


@given(TEXT, TEXT, st.integers(1, 20))
def test_blocks_have_all_pairs_in_order_and_a_bounded_size(
    tmp_path_factory, source, target, block_bytes
):
    paths = [tmp_path_factory.getbasetemp() / name for name in ("blocks.en", "blocks.de")]
    for path, content in zip(paths, (source, target), strict=True):
        path.write_bytes(content)
    sides = [list(read_lines(path, strict=True)) for path in paths]
    blocks = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tfm.text.lines._BLOCK_BYTES", block_bytes)
        expected = (
            pytest.raises(DataError, match="lines, but")
            if len(set(map(len, sides))) > 1
            else contextlib.nullcontext()
        )
        with expected:
            blocks.extend(read_blocks(*paths, strict=True))
    num_pairs = min(map(len, sides))
    for side, lines in enumerate(sides):
        assert [line for block in blocks for line in block[side]] == lines[:num_pairs]
        longest = max(map(len, lines), default=0)
        for block in blocks:
            assert len(block[side]) == len(block[0]) > 0
            assert sum(map(len, block[side])) <= block_bytes + longest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((each, "</seg>") for each in (b"<seg>cut", b"<seg>one\n<seg>two</seg>\n")),
        *((each, "damaged") for each in (b"<seg id=1\n" * 9, b"<seg <seg>a</seg>", b"<seg")),
    ],
)
def test_a_segment_or_tag_without_an_end_is_damage(tmp_path, content, message):
    with pytest.raises(DataError, match=rf"x\.sgm.*{message}"):
        read(tmp_path, content, "x.sgm")


@pytest.mark.parametrize(
    "content",
    [
        b"<seg>" + b"\n" * 1_000_000,
        b"<seg" * 1_000_000,
        b"<seg>" + b" " * 1_000_000 + b"x</seg>",
        b"<seg>" + b"</seg" * 200_000,
        b"<seg>" + b"&#" * 500_000 + b"</seg>",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_no_file_takes_quadratic_time(tmp_path, content):
    """In quadratic time, each of these would take hours."""
    with contextlib.suppress(DataError):
        assert len(read(tmp_path, content, "x.sgm")) <= 1


@pytest.mark.parametrize("block_bytes", [1, 7, 1000])
def test_a_bad_line_is_named_in_any_block(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr("tfm.text.lines._BLOCK_BYTES", block_bytes)
    monkeypatch.setattr("tfm.text.lines._MAX_LINE_BYTES", 20)
    monkeypatch.setattr("tfm.text.lines._KEPT_BYTES", 5)
    with pytest.raises(DataError, match=r"text\.en, line 4 is not UTF-8 \(.* at its byte 2\)"):
        read(tmp_path, b"a\nb\n\nc\xff\nd\n")
    assert len(read(tmp_path, b"a\nb\n\nc\xff\nd\n", strict=False)) == 5
    with pytest.raises(DataError, match=r"line 3 has"):
        read(tmp_path, b"a\n\n" + b"x" * 40 + b"\n" + b"y\n" * 20)
    huge = b"z" * 50
    (tmp_path / "text.en").write_bytes(b"\r\n".join([huge, b"a", huge, huge, b"", b"b", huge]))
    lines = list(read_lines(tmp_path / "text.en", strict=False))
    assert [isinstance(line, UnusableLine) for line in lines] == [1, 0, 1, 1, 0, 0, 1]
    assert [lines[number] for number in (1, 4, 5)] == [b"a", b"", b"b"]


def test_the_numbers_of_lines_are_checked(tmp_path):
    source, target = write_pairs(tmp_path, "t", [("a", "b")] * 3)
    assert len(list(read_pairs(source, target, strict=True, num_lines=3))) == 3
    with pytest.raises(DataError, match="3 lines, but should have 4"):
        list(read_pairs(source, target, strict=True, num_lines=4))
    source.write_bytes(b"a\n" * 1_200)
    with pytest.raises(DataError, match=r"t\.en has 1,200 lines.*t\.de has 3"):
        list(read_pairs(source, target, strict=True))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_folders_pipes_and_devices_are_refused(tmp_path, make):
    make(tmp_path / "text.en")
    with pytest.raises(DataError, match=r"text\.en is a (folder|pipe or a device)"):
        list(read_lines(tmp_path / "text.en", strict=False))
