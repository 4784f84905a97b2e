"""Reading of tar archives: what tarfile reads of sound ones, and an end to hostile ones."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.tar import TarDamageError, read_members

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
part = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
names = st.lists(part, min_size=1, max_size=4).map("/".join) | st.just("a/" * 70 + "b")


def read(content):
    return [
        (member.name, read_all(member.content), member.is_file)
        for member in read_members(io.BytesIO(content))
    ]


def read_all(content):
    return b"".join(iter(lambda: content.read(7), b""))


def make(members, kind=tarfile.GNU_FORMAT):
    """Members are (name, content) or (name, content, type)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for name, content, *type_ in members:
            info = tarfile.TarInfo(name)
            info.type = type_[0] if type_ else tarfile.REGTYPE
            info.linkname = "target" if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            info.size = len(content) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return buffer.getvalue()


def header(**values):
    """One header with the right checksum, whatever it says."""
    info = tarfile.TarInfo(values.pop("name", "a"))
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for start, value in values.pop("fields").items():
        block[start : start + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


END = bytes(1024)
SIZE, KIND = 124, 156


@given(
    members=st.lists(
        st.tuples(names, st.binary(max_size=1500), st.sampled_from(KINDS)), max_size=5
    ),
    kind=st.sampled_from(FORMATS),
)
def test_a_sound_archive_is_read_as_tarfile_reads_it(members, kind):
    try:
        content = make(members, kind)
    except (ValueError, UnicodeError):
        return  # USTAR_FORMAT cannot hold every name
    expected = []
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for info in tar:
            data = tar.extractfile(info).read() if info.isreg() else b""
            expected.append((info.name, data, info.isreg()))
    assert read(content) == expected


def test_contents_that_are_not_read_are_skipped():
    content = make([("a", b"x" * 3000), ("b", b"y")])
    assert [member.name for member in read_members(io.BytesIO(content))] == ["a", "b"]


def test_a_large_size_may_be_written_in_bytes():
    content = header(fields={SIZE: b"\x80" + (3).to_bytes(11, "big")}) + b"abc".ljust(512, b"\0")
    assert read(content + END) == [("a", b"abc", True)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "ends too early"),
        (b"x" * 2000, "checksum|number"),
        (header(fields={SIZE: b"-0000000512\0"}), "something else for a number"),
        (header(fields={SIZE: b"\xff" * 12}), "something else for a number"),
        (header(fields={SIZE: b"\x80" + b"\xff" * 11}), "ends too early"),
        (header(fields={SIZE: b"7777777777\0", KIND: b"L"}), "holds a name of"),
        (header(fields={SIZE: b"7777777777\0", KIND: b"x"}), "holds a name of"),
        (header(fields={KIND: b"S"}) + END, "holes"),
        (make([("a", b"x" * 600)])[:1000], "ends too early"),
        (make([("a", b"x" * 600)])[:1536], "ends too early"),
    ],
)
def test_what_is_no_sound_archive_is_named(content, complaint):
    with pytest.raises(TarDamageError, match=complaint):
        read(content)


@pytest.mark.parametrize(
    "records",
    [
        b"19 GNU.sparse.map=1\n",
        b"12 size=1_0\n",
        b"11 size=-1\n",
        b"99 path=a\n",
        b"9 path=a",
        b"0 path=a\n",
        b"path=a\n",
        b"99999999999 path=a\n",
    ],
)
def test_records_of_another_form_are_damage(records):
    size = b"%011o\0" % len(records)
    content = header(fields={SIZE: size, KIND: b"x"}) + records.ljust(512, b"\0")
    with pytest.raises(TarDamageError):
        read(content + make([("a", b"x")]))


def test_headers_about_headers_about_headers_end():
    about = header(fields={SIZE: b"00000000001\0", KIND: b"L"}) + b"n".ljust(512, b"\0")
    assert read(about * 20_000 + make([("a", b"x")])) == [("n", b"x", True)]


@given(place=st.integers(0, 511), value=st.integers(0, 255))
def test_a_header_with_another_byte_is_damage_or_says_the_same(place, value):
    sound = make([("a", b"x")])
    damaged = bytearray(sound)
    damaged[place] = value
    try:
        assert read(damaged) == read(sound)
    except TarDamageError:
        assert damaged != sound
