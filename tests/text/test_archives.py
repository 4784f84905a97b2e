"""Unpacking: only requested members, only to the given paths, also from damaged archives."""

import bz2
import gzip
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.errors import DataError
from tfm.text import archives
from tfm.text.archives import extract_files, extract_members, unpack_file

TEXT = b"A line.\nAnother line.\n" * 50


def write_tar(path, members, mode="w:gz", kind=tarfile.GNU_FORMAT):
    """Write (name, bytes) members, or TarInfo objects for members that are not files."""
    with tarfile.open(path, mode, format=kind) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_members_are_extracted_from_each_kind_of_compression(tmp_path, mode):
    members = [("a/text.en", TEXT), ("skipped", b"x"), ("./b/text.de", b"Eine Zeile.\n")]
    packed = write_tar(tmp_path / "x.tar", members, mode)
    out = tmp_path / "out"
    extract_members(packed, {"a/text.en": out / "1.en", "b/text.de": out / "1.de"})
    assert (out / "1.en").read_bytes() == TEXT
    assert (out / "1.de").read_bytes() == b"Eine Zeile.\n"
    assert files_below(out) == {"1.en", "1.de"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_members_that_are_not_regular_files_are_refused(tmp_path, kind):
    target = tmp_path / "secret"
    target.write_text("secret")
    packed = write_tar(tmp_path / "x.tgz", [("t", TEXT), special("a.en", kind, str(target))])
    with pytest.raises(DataError, match=r"a\.en in .*x\.tgz is a link"):
        extract_members(packed, {"a.en": tmp_path / "out.en"})
    assert not (tmp_path / "out.en").exists()


def test_the_error_for_a_missing_member_lists_members_of_the_archive(tmp_path):
    packed = write_tar(tmp_path / "x.tgz", [(f"member-{i}", TEXT) for i in range(9)])
    with pytest.raises(DataError) as caught:
        extract_members(packed, {"member-1": tmp_path / "1", "other": tmp_path / "2"})
    message = str(caught.value)
    assert "x.tgz has no member other;" in message
    assert "member-0, member-1" in message
    assert "member-8" not in message


def test_the_last_of_several_members_with_one_name_is_extracted(tmp_path):
    packed = write_tar(tmp_path / "x.tgz", [("a", b"old"), ("b", b"x"), ("a", b"new")])
    extract_members(packed, {"a": tmp_path / "a"})
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_truncated_archive_is_an_error_and_leaves_no_files(tmp_path, mode):
    noise = os.urandom(20_000)
    whole = write_tar(tmp_path / "whole", [("a", noise), ("b", noise)], mode).read_bytes()
    packed = tmp_path / "x.tar"
    for fraction in (0.1, 0.6):
        packed.write_bytes(whole[: int(len(whole) * fraction)])
        with pytest.raises(DataError, match=r"x\.tar"):
            extract_members(packed, {"a": tmp_path / "out" / "a", "b": tmp_path / "out" / "b"})
        assert files_below(tmp_path / "out") <= {"a"}


def test_a_header_that_promises_more_than_any_disk_holds_is_refused_at_once(tmp_path):
    packed = write_tar(tmp_path / "x.tar", [("x", TEXT), ("a.en", TEXT)], "w")
    with packed.open("r+b") as file:
        info = tarfile.TarInfo("x")
        info.size = 1 << 60
        file.write(info.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(DataError, match="it ends too early"):
        extract_members(packed, {"a.en": tmp_path / "a.en"})


def test_skipped_content_that_expands_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tfm.text.files.ALWAYS_ALLOWED_BYTES", 1 << 16)
    packed = write_tar(tmp_path / "x.tgz", [("x", bytes(1 << 24)), ("a.en", TEXT)])
    with pytest.raises(DataError, match="expands to more than 100 times"):
        extract_members(packed, {"a.en": tmp_path / "a.en"})


def test_damage_after_the_last_requested_member_is_detected(tmp_path):
    packed = write_tar(tmp_path / "x.tar", [("a", TEXT), ("z", os.urandom(50_000))])
    content = bytearray(packed.read_bytes())
    content[-200] ^= 1
    packed.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.tar is truncated or damaged"):
        extract_members(packed, {"a": tmp_path / "a"})


@pytest.mark.parametrize("name", ["bomb", "bomb.gz"])
def test_content_that_expands_too_much_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr("tfm.text.files.ALWAYS_ALLOWED_BYTES", 10_000)
    zeros = bytes(5_000_000)
    packed = write_tar(
        tmp_path / "x.tgz", [(name, gzip.compress(zeros) if name.endswith(".gz") else zeros)]
    )
    with pytest.raises(DataError, match="100 times"):
        extract_members(packed, {name: tmp_path / "out" / "a"})
    assert not files_below(tmp_path / "out")


def test_a_full_disk_is_not_reported_as_a_damaged_archive(tmp_path, monkeypatch):
    packed = write_tar(tmp_path / "x.tgz", [("a", TEXT)])
    with Path("/dev/full").open("wb", 0) as full:
        monkeypatch.setattr(archives, "atomic_write", lambda _: full)
        with pytest.raises(OSError, match="No space left"):
            extract_members(packed, {"a": tmp_path / "a"})


def test_a_single_file_is_decompressed_if_its_content_is_compressed(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "b").write_bytes(bz2.compress(TEXT))
    (tmp_path / "c.gz").write_bytes(TEXT)
    for name in ("a.gz", "b", "c.gz"):
        unpack_file(tmp_path / name, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == TEXT


@pytest.mark.parametrize("content", [gzip.compress(TEXT, mtime=0)[:-9], b"\x1f\x8bno gzip"])
def test_a_damaged_single_file_is_named(tmp_path, content):
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.gz is truncated or damaged"):
        unpack_file(tmp_path / "a.gz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Headers

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def read(folder, content, name="a"):
    """Extract a member; return None if the archive is refused."""
    (folder / "x.tar").write_bytes(content)
    try:
        extract_members(folder / "x.tar", {name: folder / "out"})
    except DataError as error:
        return None if str(error).isprintable() else str(error)
    return (folder / "out").read_bytes()


@pytest.mark.parametrize("kind", FORMATS)
def test_long_names_and_names_in_any_script_are_found(tmp_path, kind):
    for name in ("d/" * 70 + "a", "ä/☃" if kind != tarfile.USTAR_FORMAT else "b"):
        members = [("first", b"x" * 3000), (name, TEXT), ("last", b"x" * 700)]
        packed = write_tar(tmp_path / "y.tar", members, "w", kind)
        assert read(tmp_path, packed.read_bytes(), name) == TEXT


@given(place=st.integers(0, 511), value=st.integers(0, 255))
def test_a_header_with_one_changed_byte_is_refused_or_read_the_same(tmp_path, place, value):
    damaged = bytearray(write_tar(tmp_path / "y.tar", [("a", b"x")], "w").read_bytes())
    damaged[place] = value
    assert read(tmp_path, damaged) in (b"x", None)


# Zip archives


def write_zip(path, members):
    """Write members: (name or ZipInfo, bytes)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            packed.writestr(name, content)
    return path


def change_zip(path, name, *, flags=0, method=None, is_cut=False):
    """Change a member's entries: general flags, compression method, or its local header."""
    with zipfile.ZipFile(path) as archive:
        info, start = archive.getinfo(name), archive.start_dir
        central = path.read_bytes().index(name.encode(), start) - 46
    content = bytearray(path.read_bytes())
    for place in (info.header_offset + 6, central + 8):
        content[place] |= flags
        if method is not None:
            content[place + 2 : place + 4] = method.to_bytes(2, "little")
    if is_cut:
        content[info.header_offset : info.header_offset + 30] = bytes(30)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flags": 1}, "README in .*zip is encrypted"),
        ({"flags": 0x40}, "truncated or damaged"),
        ({"method": 99}, "truncated or damaged"),
        ({"is_cut": True}, "truncated or damaged"),
    ],
)
def test_only_the_requested_members_of_a_zip_are_read(tmp_path, change, reason):
    packed = write_zip(tmp_path / "x.zip", [("README", b"secret"), ("a.en", TEXT)])
    change_zip(packed, "README", **change)
    extract_members(packed, {"a.en": tmp_path / "a.en"})
    assert (tmp_path / "a.en").read_bytes() == TEXT
    with pytest.raises(DataError, match=reason):
        extract_members(packed, {"README": tmp_path / "README"})
    assert files_below(tmp_path) == {"x.zip", "a.en"}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_other_members_of_a_tar_may_be_anything(tmp_path, mode):
    inner = write_zip(tmp_path / "inner.zip", [("a.en", b"another")]).read_bytes()
    others = [
        special("link", tarfile.SYMTYPE, "/etc/passwd"),
        special("hard", tarfile.LNKTYPE, "nowhere"),
        special("device", tarfile.CHRTYPE),
        special("pipe", tarfile.FIFOTYPE),
        special("folder", tarfile.DIRTYPE),
        special("unknown", b"Z"),
        ("encrypted.zip", inner),  # at the end, where the directory of a zip archive is
    ]
    packed = write_tar(tmp_path / "x.tar", [("a.en", TEXT), *others], mode)
    extract_members(packed, {"a.en": tmp_path / "a.en"})
    assert (tmp_path / "a.en").read_bytes() == TEXT


@pytest.mark.parametrize("name", ["x.zip", "x"])
def test_members_of_a_zip_archive_are_extracted_and_never_name_paths(tmp_path, name):
    members = [("../a.en", TEXT), ("README", b"x"), ("b.de.gz", gzip.compress(TEXT))]
    packed = write_zip(tmp_path / name, members)
    out = tmp_path / "out"
    extract_members(packed, {"../a.en": out / "1.en", "b.de.gz": out / "1.de"})
    assert (out / "1.en").read_bytes() == (out / "1.de").read_bytes() == TEXT
    assert files_below(tmp_path) == {name, "out", "out/1.en", "out/1.de"}


@pytest.mark.parametrize(("name", "kind"), [("a.en", stat.S_IFLNK), ("a.en/", stat.S_IFREG)])
def test_members_of_a_zip_archive_that_are_not_regular_files_are_refused(tmp_path, name, kind):
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o644) << 16
    packed = write_zip(tmp_path / "x.zip", [(info, b"/etc/passwd")])
    with pytest.raises(DataError, match=r"a\.en/? in .*x\.zip is a link"):
        extract_members(packed, {name: tmp_path / "out"})


@pytest.mark.parametrize("folder", ["", "a/", "../", "/", "C:\\", "..\\..\\"])
def test_wanted_files_of_a_zip_archive_are_extracted_without_their_folders(tmp_path, folder):
    link = zipfile.ZipInfo("b.en")
    link.external_attr = stat.S_IFLNK << 16
    members = [(f"{folder}a.en", TEXT), (f"{folder}a.sh", TEXT), (link, b"/etc/passwd")]
    packed = write_zip(tmp_path / "x.zip", members)
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    extract_files(packed, out, lambda name: name.endswith(".en"))
    assert files_below(tmp_path) == {"x.zip", "deep", "deep/out", "deep/out/a.en"}
    assert (out / "a.en").read_bytes() == TEXT


def test_wanted_files_that_together_expand_too_much_are_refused(tmp_path, monkeypatch):
    packed = write_zip(tmp_path / "x.zip", [(f"{i}.en", bytes(1000)) for i in range(20)])
    monkeypatch.setattr("tfm.text.files.ALWAYS_ALLOWED_BYTES", 10_000)
    monkeypatch.setattr("tfm.text.files.MAX_EXPANSION", 1)
    with pytest.raises(DataError, match="expands to more than"):
        extract_files(packed, tmp_path, lambda name: True)
    assert files_below(tmp_path) == {"x.zip"}


@pytest.mark.parametrize("content", [b"", b"PK\3\4" + bytes(100)])
def test_a_file_that_is_no_zip_archive_is_named(tmp_path, content):
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.zip is truncated or damaged"):
        extract_members(tmp_path / "x.zip", {"a": tmp_path / "out"})


@given(place=st.integers(0, 299), value=st.integers(0, 255))
def test_a_zip_archive_with_one_changed_byte_is_refused_or_read_the_same(tmp_path, place, value):
    packed = write_zip(tmp_path / "x.tar", [("a", b"A line.\n"), ("b", TEXT)])
    content = bytearray(packed.read_bytes())
    content[place % len(content)] = value
    assert read(tmp_path, content) in (b"A line.\n", None)
