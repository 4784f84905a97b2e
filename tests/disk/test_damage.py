"""Files on disk: whatever damages one, reading gives its error in one line, or an equal result."""

import bz2
import gzip
import lzma
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import REPLACEMENTS, damage
from folders.test_model_folder import edit, load_all, save
from helpers import write_dataset
from hypothesis import given
from hypothesis import strategies as st

from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import ParallelDataset
from tfm.disk.files import read_json, write_json
from tfm.errors import CheckpointError, DataError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import STATE, WEIGHTS
from tfm.folders.run_folder import record_dataset, trained_on
from tfm.text.archives import extract_members
from tfm.text.lines import read_lines

TEXT = "".join(f"line {number}\n" for number in range(300))


@dataclass(frozen=True)
class Reader:
    """Files of one kind: how they are written and read."""

    write: Callable[[Path], Any]  # into a folder
    read: Callable[[Path], Any]
    error: type[Exception] | tuple[type[Exception], ...] = DataError
    is_verified: bool = True  # whether damage that changes what is read is always found
    opens_pipes: bool = False  # as long as somebody writes to them
    files: str = "*"


def write_packed(compress: Callable[[bytes], bytes]) -> Reader:
    return Reader(
        lambda folder: (folder / "text").write_bytes(compress(TEXT.encode())),
        lambda folder: list(read_lines(folder / "text", strict=True)),
        is_verified=False,  # without its first bytes, it looks like another text
    )


def write_tar(folder):
    (folder / "a.txt").write_text(TEXT)
    with tarfile.open(folder / "archive", "w:gz") as tar:
        tar.add(folder / "a.txt", "a.txt")
    (folder / "a.txt").unlink()


def write_zip(folder):
    with zipfile.ZipFile(folder / "archive", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.txt", TEXT)


def read_archive(folder):
    extract_members(folder / "archive", {"a.txt": folder.with_name("out")})
    return folder.with_name("out").read_bytes()


def read_dataset(folder):
    dataset = ParallelDataset(folder, "train", vocab_sizes=(400, 400))
    dataset.verify()
    return list(dataset.source), list(dataset.target)


def read_unverified_dataset(folder):
    dataset = ParallelDataset(folder, "train", vocab_sizes=(400, 400))
    return [side.concatenate(np.arange(len(dataset))) for side in (dataset.source, dataset.target)]


def read_files(folder):
    model = ModelFolder(folder / "model")
    return model.info, model.file(WEIGHTS).read_bytes(), model.file(STATE).read_bytes()


def read_manifest(folder):
    manifest = Manifest.load(folder)
    return manifest.name, manifest.source, manifest.target, manifest.task


TOKEN_IDS = "[dt]*[!t]*"
READERS = {
    "model": Reader(lambda folder: save(folder / "model"),
                    lambda folder: load_all(folder / "model"), CheckpointError, files="model/*"),
    "files of a model": Reader(lambda folder: save(folder / "model"), read_files, CheckpointError,
                               files="model/*"),
    "token ids": Reader(lambda folder: None, read_dataset, files=TOKEN_IDS),
    "token ids before they are verified": Reader(
        lambda folder: None, read_unverified_dataset, is_verified=False, files=TOKEN_IDS
    ),
    "manifest": Reader(lambda folder: write_dataset(folder, {}), read_manifest, is_verified=False),
    "dataset of a run": Reader(lambda folder: record_dataset(folder, Path("data/x")), trained_on,
                               is_verified=False),
    "any JSON": Reader(lambda folder: write_json(folder / "x.json", {"a": [1, "b", {"c": None}]}),
                       lambda folder: read_json(folder / "x.json"), (DataError, OSError),
                       is_verified=False),
    "gzip": write_packed(gzip.compress),
    "bzip2": write_packed(bz2.compress),
    "xz": write_packed(lzma.compress),
    "tar": Reader(write_tar, read_archive, (DataError, OSError), opens_pipes=True),
    "zip": Reader(write_zip, read_archive, (DataError, OSError), opens_pipes=True),
}  # fmt: skip


def is_equal(found, expected):
    """Return whether two results have the same bits, also those of models and their states."""
    if not isinstance(expected, tuple) or not isinstance(expected[1], dict):
        return found == expected
    (info, weights, state), (other_info, others, other_state) = found, expected
    is_same = info == other_info and repr(state) == repr(other_state)
    return is_same and all(torch.equal(weights[name], others[name]) for name in weights | others)


@pytest.fixture
def write_into(data_dir, tmp_path):
    """Write the files of a reader into a new folder."""

    def write(reader):
        shutil.rmtree(tmp_path / "files", ignore_errors=True)
        if reader.files == TOKEN_IDS:
            return shutil.copytree(data_dir / "bin", tmp_path / "files")
        (tmp_path / "files").mkdir()
        reader.write(tmp_path / "files")
        return tmp_path / "files"

    return write


def check(reader, folder, expected, case):
    """Check that reading gives an error of one line, or what was written."""
    if reader.opens_pipes and any(map(Path.is_fifo, folder.iterdir())):
        return
    try:
        found = reader.read(folder)
    except reader.error as error:
        message = str(error)
        assert (message.isprintable(), str(folder) in message) == (True, True), f"{case}: {message}"
    else:
        assert not reader.is_verified or is_equal(found, expected), case


@pytest.mark.parametrize("name", READERS)
@given(seed=st.integers(0, 10**9))
def test_a_damaged_file_gives_its_error_in_one_line_or_an_equal_result(write_into, name, seed):
    reader, generator = READERS[name], random.Random(seed)
    folder = write_into(reader)
    expected = reader.read(folder)
    path = generator.choice(sorted(folder.glob(reader.files)))
    case = damage(generator, path)
    is_edited = path.name == "config.json" and generator.random() < 0.5  # as an attacker would
    if is_edited and path.is_file():  # a pipe would be waited for
        try:
            edit(folder / "model", lambda record: None)
        except (ValueError, OSError, KeyError, AttributeError, RecursionError):
            pass
        else:
            reader = replace(reader, is_verified=False)
    check(reader, folder, expected, case)


@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_something_else_replaces_is_named(write_into, name, kind):
    reader = READERS[name]
    folder = write_into(reader)
    for path in sorted(folder.glob(reader.files)):
        folder = write_into(reader)
        expected = reader.read(folder)
        path.unlink()
        REPLACEMENTS[kind](path)
        check(reader, folder, expected, path)
