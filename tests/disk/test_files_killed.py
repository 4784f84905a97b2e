"""A process killed while it replaces a folder leaves the old or the new one, complete."""

import subprocess
import sys

# Replaces a folder in child processes; the N-th is killed before its N-th change on disk.
KILLED_WHILE_REPLACING = """
import os, pathlib, signal, sys
from tfm.disk import files

path = pathlib.Path(sys.argv[1]) / "folder"
changes = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}

def fill(text):
    with files.atomic_directory(path) as folder:
        for name in ("a", "b"):
            (folder / name).write_text(text)

def watch(event, arguments):
    global left
    if event in changes:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def read():
    intact = files.intact_directory(path)
    return [(intact / name).read_text() for name in ("a", "b")]

fill("0")
for moment in range(1, 1000):
    child = os.fork()
    if child == 0:
        left = moment
        sys.addaudithook(watch)
        fill(str(moment))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    assert read() in ([str(moment)] * 2, ["0"] * 2), (moment, read())
    fill("0")
    assert read() == ["0"] * 2
    assert sorted(child.name for child in path.parent.iterdir()) == ["folder"], moment
    if status == 0:
        break
print(moment)
"""


def test_a_folder_is_complete_whenever_its_replacement_is_killed(tmp_path):
    arguments = [sys.executable, "-c", KILLED_WHILE_REPLACING, str(tmp_path)]
    moments = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    assert 10 < int(moments) < 100
