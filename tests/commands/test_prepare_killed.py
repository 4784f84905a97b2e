"""tfm prepare writes the same bytes if it is killed at any moment and run again."""

import json
import random

import pytest
from helpers import contents, number_pairs, python, write_pairs, write_tar

from tfm.disk.files import sha256_of

# The real command, which copies what a kill would leave on disk, just before each of its changes.
WITH_COPIES = """
import os, shutil, sys

folder, copies = sys.argv.pop(1), sys.argv.pop(1)
changes = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
count = 0

def watch(event, arguments):
    global count
    if event not in changes:
        return
    path = str(arguments[0])  # relative where shutil removes a folder
    if os.path.isabs(path) and not path.startswith(folder) or event == "open" and path[0] != "/":
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

SPLITS = {"valid": 10, "test": 10, "train": 300}


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """Archives of generated text, and a recipe for them."""
    folder = tmp_path_factory.mktemp("mirror")
    lines = ['name = "small"', 'source = "en"', 'target = "de"']
    texts = []
    for split, size in SPLITS.items():  # training text comes last
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
    write_pairs(folder, "more", pairs[:50] + list(number_pairs("train", num_pairs=150, seed=2)))
    settings = [
        "[cleaning]",
        "shard_pairs = 120",
        "[subword]",
        "vocab_size = 400",
        "[binarize]",
        "threads = 1",
    ]
    (folder / "recipe.toml").write_text("\n".join([*lines, *texts, *settings]) + "\n")
    return folder


def dataset_in(folder):
    """Return the bytes of all files in a folder, including hidden ones, without their times."""
    found = contents(folder)
    manifest = json.loads(found.pop("manifest.json"))
    del manifest["text_files"]
    return found, manifest


PREPARE = "prepare {mirror}/recipe.toml --mirror {mirror} --out {folder}"
FETCH, TEXT = f"{PREPARE} --fetch-only", f"{PREPARE} --text-only"
SHARES = [f"{PREPARE} --share 2/2", f"{PREPARE} --share 1/2"]
# For each way to write text: the calls before, the one that is killed, and those after it.
WAYS = {
    "prepare": ([], PREPARE, []),
    "replace": ([PREPARE], f"{TEXT} --no-drop-duplicates", []),
    "append": (
        [PREPARE],
        "prepare --append --train {mirror}/more.en {mirror}/more.de --out {folder}",
        [],
    ),
    "share": ([FETCH], SHARES[0], [TEXT]),
    "join": ([FETCH, *SHARES], TEXT, []),
}


@pytest.mark.parametrize("most", [4, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_killed_before_any_change_on_disk_it_resumes(mirror, tmp_path, run, way, most):
    def words(call, folder):
        return call.format(mirror=mirror, folder=folder).split()

    before, killed, after = WAYS[way]
    whole, copies = tmp_path / "whole", tmp_path / "copies"
    for call in before:
        run.ok(*words(call, whole))
    done = python("-c", WITH_COPIES, whole, copies, *words(killed, whole))
    assert done.returncode == 0, done.stderr
    for call in after:
        run.ok(*words(call, whole))
    expected = dataset_in(whole)
    states = {}
    for moment in sorted(copies.iterdir()):
        left = contents(moment), {str(path.relative_to(moment)) for path in moment.rglob("*")}
        if left not in states.values():
            states[moment] = left
    assert len(states) > 10
    moments = list(states)
    for moment in moments if most is None else random.sample(moments, most):
        for call in (killed, *after):
            run.ok(*words(call, moment))
        assert dataset_in(moment) == expected, moment
