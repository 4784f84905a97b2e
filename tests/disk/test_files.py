"""Files and folders appear under their names complete or not at all."""

import contextlib
import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import contents, limited_files

from tfm.disk import files
from tfm.disk.files import (
    atomic_directory,
    atomic_write,
    finish_replacement,
    intact_directory,
    make_directory,
    read_json,
    remove_leftovers,
    sha256_of,
    sync_directory,
    write_json,
    write_text,
)
from tfm.errors import DataError, UsageError


class StoppedError(Exception):
    """An error while a file is being written."""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "deep" / "down" / "file"
    with atomic_write(path) as file:
        file.write(b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content"
    assert names(path.parent) == ["file"]


def test_a_folder_replaces_an_older_one_as_a_whole(tmp_path):
    path = tmp_path / "folder"
    for name in ("old", "new"):
        with atomic_directory(path) as folder:
            (folder / name).write_text(name)
    assert names(path) == ["new"]
    assert names(tmp_path) == ["folder"]


def fill(path, name):
    with atomic_directory(path) as folder:
        (folder / name).write_text(name)


@contextlib.contextmanager
def replacing(path):
    """Write a file, or a file in a folder, aside."""
    if path.name == "file":
        with atomic_write(path) as file:
            yield file
    else:
        with atomic_directory(path) as folder, (folder / "new").open("wb") as file:
            yield file


@pytest.fixture(params=["file", "folder"])
def older(request, tmp_path):
    """An older file or folder; it must stay the only one."""
    path = tmp_path / request.param
    write_text(path, "old") if request.param == "file" else fill(path, "old")
    before = contents(tmp_path)
    yield path
    assert contents(tmp_path) == before
    assert names(tmp_path) == [request.param]


@pytest.mark.parametrize("error", [StoppedError, KeyboardInterrupt])
def test_an_error_leaves_the_older_file_or_folder_and_nothing_else(older, error):
    def fail():
        with replacing(older) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()


def test_a_full_disk_leaves_the_older_file_or_folder_and_the_error_names_it(older):
    with (
        pytest.raises(OSError, match="too large") as caught,
        limited_files(1_000),
        replacing(older) as file,
    ):
        file.write(b"x" * 2_000)
    assert caught.value.filename == str(older)


@pytest.mark.parametrize("path", [".", "..", "a/.."])
def test_a_folder_without_a_name_is_not_replaced(tmp_path, monkeypatch, path):
    fill(tmp_path / "x" / "a", "old")
    monkeypatch.chdir(tmp_path / "x")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="by its name"), atomic_directory(Path(path)):
        pass
    assert contents(tmp_path) == before


def test_the_older_folder_is_restored_if_the_new_one_cannot_be_renamed(tmp_path, monkeypatch):
    fill(tmp_path / "folder", "old")
    rename = os.replace

    def fail(source, target):
        if source.name.endswith(".partial"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="Input/output error"):
        fill(tmp_path / "folder", "new")
    assert names(tmp_path / "folder") == ["old"]
    assert names(tmp_path) == ["folder"]


def test_an_interrupted_replacement_leaves_the_older_folder(tmp_path):
    path = tmp_path / "folder"
    assert intact_directory(path) == path
    fill(tmp_path / ".folder.old", "old")
    assert names(intact_directory(path)) == ["old"]
    finish_replacement(path)
    assert names(path) == ["old"]
    fill(tmp_path / ".folder.old", "older")  # killed after the new folder was renamed
    assert intact_directory(path) == path
    finish_replacement(path)
    assert names(path) == ["old"]
    assert names(tmp_path) == ["folder"]


def test_names_that_are_not_own_are_copied_into_the_new_folder(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    fill(path, "own")
    (path / "other").write_text("mine")
    (path / "deep" / "down").mkdir(parents=True)
    (path / "deep" / "down" / "x").write_text("mine")
    (path / "link").symlink_to("nowhere")
    (path / "other").chmod(0o444)
    flushed, sync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: flushed.add(os.fstat(file).st_ino) or sync(file))
    with atomic_directory(path, own=["own", "gone"]) as folder:
        (folder / "new").write_text("new")
    assert {each.lstat().st_ino for each in path.rglob("*") if not each.is_symlink()} <= flushed
    assert names(path) == ["deep", "link", "new", "other"]
    assert (path / "other").read_text() == (path / "deep" / "down" / "x").read_text() == "mine"
    assert (path / "link").readlink() == Path("nowhere")
    assert names(tmp_path) == ["folder"]


def test_links_are_followed_and_stay(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "file").write_text("old")
    fill(tmp_path / "disk" / "folder", "old")
    for name in ("file", "folder", "new"):
        (tmp_path / f"first-{name}").symlink_to(f"second-{name}")
        (tmp_path / f"second-{name}").symlink_to(Path("disk") / name)
    write_text(tmp_path / "first-file", "new")
    write_text(tmp_path / "first-new", "new")
    fill(tmp_path / "first-folder", "new")
    assert all(path.is_symlink() for path in tmp_path.glob("*-*"))
    assert [(tmp_path / "disk" / name).read_text() for name in ("file", "new")] == ["new", "new"]
    assert names(tmp_path / "disk") == ["file", "folder", "new"]
    assert names(tmp_path / "disk" / "folder") == ["new"]


def test_an_interrupted_replacement_behind_a_link_is_undone(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk/folder")
    fill(tmp_path / "disk" / ".folder.old", "old")
    assert names(intact_directory(tmp_path / "link")) == ["old"]
    fill(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "disk") == ["folder"]
    assert names(tmp_path / "link") == ["new"]


@pytest.fixture
def odd_paths(tmp_path, monkeypatch):
    """A folder with links and things that are neither files nor folders; it is entered."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name, target in {
        "to-pipe": "pipe",
        "to-folder": "folder",
        "to-null": "/dev/null",
        "loop": "loop",
        "to-nowhere": "away/file",
        "to-no-folder": "away/folder",
    }.items():
        (tmp_path / name).symlink_to(target)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pipe", "a pipe or a device"),
        ("socket", "a pipe or a device"),
        ("to-pipe", "a pipe or a device"),
        ("to-null", "a pipe or a device"),
        ("folder", "a folder"),
        ("to-folder", "a folder"),
        ("loop", "symbolic links"),
        ("to-nowhere", "a link, and there is no folder .*away"),
        ("file/below", "file is not a folder"),
        ("to-no-folder/below", "to-no-folder is a link to a folder that does not exist"),
    ],
)
def test_what_is_no_file_is_never_replaced_by_one(odd_paths, name, reason):
    before = {path.name: path.lstat().st_ino for path in odd_paths.iterdir()}
    for path in (Path(name), odd_paths / name):
        with pytest.raises(UsageError, match=rf"^cannot write to {path}: .*{reason}.*: choose"):
            write_text(path, "new")
    assert {path.name: path.lstat().st_ino for path in odd_paths.iterdir()} == before


@pytest.mark.parametrize("name", ["pipe", "file", "to-null", "loop", "to-nowhere", "file/below"])
def test_what_is_no_folder_is_never_replaced_by_one(odd_paths, name):
    with pytest.raises(UsageError, match=f"^cannot write to {name}: .*: choose another name"):
        fill(Path(name), "new")
    assert (odd_paths / "file").read_text() == "mine"


REFUSED_OPEN_FILES = """
import json, os, pathlib
from tfm.errors import UsageError
from tfm.disk.files import output_target

found = {}
for number in range(4):
    path = pathlib.Path(str(number))
    os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    path.with_name("link").unlink(missing_ok=True)
    path.with_name("link").symlink_to(f"/dev/fd/{number}")
    for name in (f"/dev/fd/{number}", f"/proc/self/fd/{number}", "link", path):
        try:
            output_target(pathlib.Path(name), flag="--output")
        except UsageError as error:
            found.setdefault(number, []).append(str(error))
pathlib.Path("found.json").write_text(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_open_files_are_never_replaced(tmp_path):
    """In another process, whose standard streams are files: pytest has its own."""
    subprocess.run([sys.executable, "-c", REFUSED_OPEN_FILES], cwd=tmp_path, check=True)
    found = json.loads((tmp_path / "found.json").read_text())
    for number, (words, count) in enumerate(
        [
            ("overwritten", 4),
            ("standard output: leave --output out, or", 4),
            ("standard error: choose", 4),
            ("open file: choose", 3),  # its name is not refused: nothing is known to write to it
        ]
    ):
        assert len(found[str(number)]) == count
        assert all(words in message for message in found[str(number)])


@pytest.fixture
def events(monkeypatch):
    """Return the flushes and renames, in order."""
    recorded = []
    sync, rename = os.fsync, os.replace

    def record(kind, function):
        def call(*paths):
            recorded.append((kind, *(path.name for path in paths)))
            return function(*paths)

        return call

    def record_sync(descriptor):
        recorded.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        sync(descriptor)

    monkeypatch.setattr(files.os, "fsync", record_sync)
    monkeypatch.setattr(files.os, "replace", record("rename", rename))
    return recorded


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
@pytest.mark.parametrize("replaces", [False, True])
def test_content_is_flushed_before_the_rename_and_the_rename_before_the_end(
    tmp_path, events, replaces
):
    path = tmp_path / "runs" / "folder"
    if replaces:
        fill(path, "old")
    else:
        make_directory(path.parent)
        assert events == [("sync", tmp_path.name)]  # the folder that contains the name "runs"
    events.clear()
    fill(path, "new")
    partial = f".folder.{os.getpid()}.partial"
    aside = [("rename", "folder", ".folder.old")] if replaces else []
    renames = [*aside, ("rename", partial, "folder")]
    assert events == [("sync", "new"), ("sync", partial), *renames, ("sync", "runs")]


def test_file_systems_that_cannot_flush_folders_are_supported(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(files.os, "fsync", fail)
    sync_directory(tmp_path)


def test_the_umask_determines_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        fill(tmp_path / "folder", "a")
        write_text(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750
    for path in (tmp_path / "folder" / "a", tmp_path / "file"):
        assert path.stat().st_mode & 0o777 == 0o640


@pytest.fixture
def dead_process():
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_writing_a_file_removes_its_leftovers_of_killed_processes(tmp_path, dead_process):
    for name in ("file", "other"):
        (tmp_path / f".{name}.{dead_process}.partial").write_text("half")
    write_text(tmp_path / "file", "whole")
    assert names(tmp_path) == [f".other.{dead_process}.partial", "file"]


def test_only_leftovers_of_killed_processes_are_removed(tmp_path, dead_process):
    kept = [".a.1.partial", ".a.partial", "a.1.partial", f"b.{dead_process}.partial", "c"]
    for name in [*kept, f".a.{dead_process}.partial", f".a.b.{dead_process}.partial"]:
        (tmp_path / name).write_text("x")
    leftover = tmp_path / f".folder.{dead_process}.partial"
    leftover.mkdir()
    (leftover / "half").write_text("x")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted(kept)
    remove_leftovers(tmp_path / "missing")


@pytest.mark.parametrize(
    "value",
    [{}, {"ä": [1, 2.5, None, True], "b": {"c": "\u2028\n"}}, {"path": os.fsdecode(b"caf\xe9")}],
)
def test_json_is_read_as_it_was_written(tmp_path, value):
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value


def test_json_that_is_too_deep_or_too_large_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"x\.json is damaged"):
        read_json(path)
    path.write_text('{"a": ' + "9" * 10_000 + "}")
    with pytest.raises(DataError, match=r"x\.json is damaged"):
        read_json(path)
    monkeypatch.setattr(files, "_MAX_JSON_BYTES", 100)
    path.write_text('{"a": ' + " " * 100 + "1}")
    with pytest.raises(DataError, match=r"x\.json is damaged \(too large\)"):
        read_json(path)


@pytest.mark.parametrize("size", [0, (1 << 20) + 1])
def test_sha256_is_computed_over_the_whole_file(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    assert sha256_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()
