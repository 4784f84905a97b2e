"""tfm prepare writes the same bytes if it is killed at any moment and run again."""

import json

import pytest
from helpers import contents, number_pairs, python, write_pairs, write_tar

from tfm.disk.files import sha256_of

# The real command, which copies what a kill would leave on disk, just before each of its changes.
WITH_COPIES = """
import os, shutil, sys

folder, copies = sys.argv.pop(1), sys.argv.pop(1)
changes = {"open", "os.mkdir", "os.rename", "os.remove", "os.truncate"}
count = 0

def watch(event, arguments):
    global count
    if event not in changes or not str(arguments[0]).startswith(folder):
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        return
    count += 1
    if os.path.isdir(folder):
        shutil.copytree(folder, f"{copies}/{count:03}")

sys.addaudithook(watch)
from tfm.cli.main import main
main()
"""

SPLITS = {"train": 300, "valid": 10, "test": 10}


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """Archives of generated text, and a recipe for them."""
    folder = tmp_path_factory.mktemp("mirror")
    lines = ['name = "small"', 'source = "en"', 'target = "de"']
    texts = []
    for split, size in SPLITS.items():
        pairs = list(number_pairs(split, num_pairs=size, seed=1))
        sides = write_pairs(folder, split, pairs)
        members = {path.name: path.read_bytes() for path in sides}
        archive = folder / f"{split}.tgz"
        write_tar(archive, members)
        url = f"http://unreachable.invalid/{archive.name}"
        lines += ["[[archives]]", f'url = "{url}"', f'sha256 = "{sha256_of(archive)}"']
        source, target = members
        texts += [f"[[{split}]]", f'archive = "{archive.name}"']
        texts += [f'source = "{source}"', f'target = "{target}"']
    settings = ["[subword]", "vocab_size = 400", "threads = 1", "[binarize]", "threads = 1"]
    (folder / "recipe.toml").write_text("\n".join([*lines, *texts, *settings]) + "\n")
    return folder


def dataset_in(folder):
    """Return the bytes of all files in a folder, including hidden ones, without their times.

    Also without the records of encoded parts, which a kill at the last moment leaves behind.
    """
    found = contents(folder)
    manifest = json.loads(found.pop("manifest.json"))
    del manifest["text_files"]
    records = {f"bin/{split}.json" for split in SPLITS}
    return {name: content for name, content in found.items() if name not in records}, manifest


def test_killed_before_any_change_on_disk_it_resumes(mirror, tmp_path, run):
    command = ["prepare", mirror / "recipe.toml", "--mirror", mirror, "--out"]
    whole, copies = tmp_path / "whole", tmp_path / "copies"
    done = python("-c", WITH_COPIES, whole, copies, *command, whole)
    assert done.returncode == 0, done.stderr
    moments = sorted(copies.iterdir())
    assert len(moments) > 40
    resumed = []
    for moment in moments:
        left = contents(moment), {str(path.relative_to(moment)) for path in moment.rglob("*")}
        if left not in resumed:
            resumed.append(left)
            run.ok(*command, moment)
            assert dataset_in(moment) == dataset_in(whole), moment
    assert len(resumed) > 20
