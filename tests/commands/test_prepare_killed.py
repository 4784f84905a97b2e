"""tfm prepare writes the same bytes if it is killed at any moment and run again."""

import json
import os
import signal
import subprocess
import sys

import pytest
from helpers import contents, number_pairs, write_pairs, write_tar

from tfm.disk.files import sha256_of

# The real command, which kills itself just before its n-th change on disk.
SELF_KILLER = """
import os, signal, sys

folder, moment = sys.argv.pop(1), int(sys.argv.pop(1))
changes = {"open", "os.mkdir", "os.rename", "os.remove", "os.truncate"}
count = 0

def watch(event, arguments):
    global count
    if event not in changes or not str(arguments[0]).startswith(folder):
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        return
    count += 1
    if count == moment:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
from tfm.cli.main import main
try:
    main()
finally:
    print(count)
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


@pytest.fixture
def prepare(mirror, tmp_path):
    """Start the command on a folder, with arguments for Python."""

    def start(*python, out="data"):
        command = [sys.executable, *python, "prepare", str(mirror / "recipe.toml")]
        command += ["--mirror", str(mirror), "--out", str(tmp_path / out)]
        return subprocess.Popen(
            command,
            env={**os.environ, "no_proxy": "*", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def dataset_in(folder):
    """Return the bytes of all files in a folder, including hidden ones, without their times."""
    found = contents(folder)
    manifest = json.loads(found.pop("manifest.json"))
    del manifest["text_files"]
    return found, manifest


def finish(process):
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output


def test_killed_before_each_change_on_disk_it_resumes(prepare, tmp_path):
    moments = int(finish(prepare("-c", SELF_KILLER, str(tmp_path), "0", out="whole")))
    assert moments > 40
    num_kills = 0
    # Finished steps are not repeated, so each run proceeds further than the previous one.
    for moment in range(moments // 5, moments, moments // 5):
        process = prepare("-c", SELF_KILLER, str(tmp_path), str(moment))
        process.communicate(timeout=60)
        num_kills += process.returncode == -signal.SIGKILL
    finish(prepare("-m", "tfm"))
    assert num_kills >= 3
    assert dataset_in(tmp_path / "data") == dataset_in(tmp_path / "whole")
