"""Each tutorial works from top to bottom, and its commands print what the page shows.

`console` blocks are run in order in an empty folder. Blocks with a file name as caption are written
there. `sh` blocks take minutes or need a network and are not run.
"""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
# A folder with the text of Multi30k (train.en, val.de, test_2016_flickr.en, …), to test its page.
MULTI30K = os.environ.get("MULTI30K_DIR")

_BLOCK = re.compile(r"^```([^\n]*)\n(?::caption: (\S+)\n+)?(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
# Times, losses and scores, which depend on the machine.
_DECIMAL = re.compile(r"\d+(?:\.\d+)+")
# Lines about the progress of a stage, such as "generate 500/500 lines", which slow machines show.
_PROGRESS = re.compile(r"^[\w-]+ [\d,]+(?:/[\d,]+)? \w+(?: · .*)?\n", re.MULTILINE)


def steps(page):
    """Yield (file, text) and (command, output) pairs of a page, in order."""
    text = (TUTORIALS / f"{page}.md").read_text(encoding="utf-8")
    for kind, file, block in _BLOCK.findall(text):
        if file:
            yield Path(file), block
        elif kind == "console":
            yield from _COMMAND.findall(block.replace("\\\n", " "))


def shown(output):
    """Return a pattern of an output: figures with decimals may differ, `…` is any text."""
    lines = "".join("…" if line.strip() == "…" else line for line in output.splitlines(True))
    parts = ("N".join(map(re.escape, _DECIMAL.split(part))) for part in lines.split("…"))
    return ".*?".join(parts)


@pytest.fixture
def follow(tmp_path):
    """Follow a page in an empty folder."""
    programs = tmp_path / "programs"
    programs.mkdir()
    # The mirror is compressed again, so that its checksums differ.
    mirror = '--mirror "$MIRROR" --no-verify'
    mirrored = f'[ "$1 ${{MIRROR:+set}}" != "prepare set" ] || set -- "$@" {mirror}'
    for name, program in {"tfm": f"{sys.executable} -m tfm", "python": sys.executable}.items():
        script = f'#!/bin/sh\n{mirrored}\nexec {program} "$@"\n'
        (programs / name).write_text(script, encoding="utf-8")
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    folder = tmp_path / "tutorial"
    folder.mkdir()

    def run(page, **variables):
        for step, text in steps(page):
            if isinstance(step, Path):
                (folder / step).write_text(text, encoding="utf-8")
                continue
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", step],
                cwd=folder,
                env=os.environ | environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                check=False,
            )
            found = _DECIMAL.sub("N", _PROGRESS.sub("", done.stdout))
            explanation = f"$ {step}\n{done.stdout}\nThe page shows:\n{text}"
            assert done.returncode == 0, explanation
            assert re.fullmatch(shown(text), found, re.DOTALL), explanation

    return run


@pytest.mark.slow
@pytest.mark.parametrize("page", ["quickstart", "own-text"])
def test_a_tutorial_works_and_prints_what_it_shows(page, follow):
    follow(page)


@pytest.mark.slow
@pytest.mark.skipif(MULTI30K is None, reason="needs the text of Multi30k: set MULTI30K_DIR")
def test_multi30k_works_and_prints_what_it_shows(follow, tmp_path):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for split in "train", "val", "test_2016_flickr":
        for language in "en", "de":
            text = (Path(MULTI30K) / f"{split}.{language}").read_bytes()
            (mirror / f"{split}.{language}.gz").write_bytes(gzip.compress(text))
    follow("multi30k", MIRROR=str(mirror))
