"""Observe the answers of tfm to command lines with mistakes, and to damaged files."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from freeze_version import Version

TABLE = Path(__file__).with_suffix(".txt")
DAMAGED = re.compile(r"(cut|remove|renumber) (\S+): (.+)")
DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "remove": Path.unlink,
    "renumber": lambda path: path.write_text(
        re.sub(r'"format": \d+', '"format": 99', path.read_text(encoding="utf-8"))
    ),
}
FILES = {
    "in.en": b"one\ntwo\nthree\n",
    "two.en": b"one\ntwo\n",
    "latin.en": b"caf\xe9\nna\xefve\n",
    "torn.toml": b"[model\n",
    "wrong.toml": b"[model]\nwidth = 3\ndropout = 2\n[optim]\na = 1\n",
    "wrong-recipe.toml": b'name = "x"\nsource = "en"\ntrain = [{ text = "a" }]\nsubwords = {}\n',
}
TRAINING = (
    "--arch tiny --d-model 16 --d-ff 16 --num-heads 2 --num-encoder-layers 1 --num-decoder-layers 1"
    " --max-steps 2 --precision fp32 --no-average --validation-beam 0 --best-metric loss"
)


def mistakes(version: Version) -> dict[str, Any]:
    """Observe the exit code and the messages of each line of the table."""
    folder = version.work / "mistakes"
    (folder / "folder").mkdir(parents=True)
    shutil.copytree(version.numbers(), folder / "data")
    version.succeed("train", "data", "--run", "run", *TRAINING.split(), folder=folder)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {line: _answer(version, folder, line) for line in lines if line and line[0] != "#"}


def _answer(version: Version, folder: Path, line: str) -> dict[str, Any]:
    damaged = DAMAGED.fullmatch(line)
    if damaged is None:
        return version.observe(*shlex.split(line), folder=folder)
    damage, file, command = damaged.groups()
    copy = version.work / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    DAMAGES[damage](copy / file)
    return version.observe(*shlex.split(command), folder=copy)
