"""A version of tfm whose command line is run and observed."""

import lzma
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One thread; sums that do not depend on the alignment of memory; messages of one width; compiled
# modules are kept, as a user's are.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MKL_CBWR": "AUTO,STRICT"} | {
    "CUDA_VISIBLE_DEVICES": "",
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "TERM": "dumb",
}
LIMIT_SECONDS = 900
CORPUS = Path(__file__).parents[1] / "tfm" / "recipes" / "numbers-en-de.train.tsv.xz"
NUMBERS = """
name = "numbers"
source = "en"
target = "de"
train = [{ source = "train.tsv", target = "train.tsv" }]
valid = [{ source = "valid.tsv", target = "valid.tsv" }]
test = [{ source = "test.tsv", target = "test.tsv" }]
subword = { vocab_size = 400 }
"""
_LINES = {
    "train": (0, 10_000),
    "valid": (10_000, 10_020),
    "test": (10_020, 11_020),
}  # of the corpus
MODEL_FLAGS = "--arch quickstart --max-steps 500 --checkpoint-steps 250 --precision fp32"


@dataclass(frozen=True)
class Version:
    """A version of tfm.

    Attributes:
        name: "before" or "after".
        source: The folder of the package tfm/.
        work: A folder for what this version writes.
        model: A model, which one version trains and both decode with.
        multi30k: The folder of Multi30k's files, if there is one.
        num_lines: The number of lines to translate.
    """

    name: str
    source: Path
    work: Path
    model: Path
    multi30k: Path | None
    num_lines: int

    def run(
        self, *arguments: str | Path, folder: Path | None = None, text: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command on text in a folder, by default `work`."""
        return subprocess.run(
            [sys.executable, "-m", "tfm", *arguments],
            cwd=folder or self.work,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(self.source)},
            input=text,
            capture_output=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def observe(self, *arguments: str | Path, folder: Path | None = None) -> dict[str, Any]:
        """Return the exit code and the output of a command, in which paths are shortened."""
        try:
            done = self.run(*arguments, folder=folder)
        except subprocess.TimeoutExpired:
            return {"code": f"none within {LIMIT_SECONDS} s", "out": "", "err": ""}
        out, err = map(self._shortened, (done.stdout, done.stderr))
        return {"code": done.returncode, "out": out, "err": err}

    def succeed(self, *arguments: str | Path, folder: Path | None = None) -> dict[str, Any]:
        """Observe a command that must not fail; otherwise end with its message."""
        found = self.observe(*arguments, folder=folder)
        if found["code"]:
            command = " ".join(map(str, arguments))
            raise SystemExit(
                f"{self.name}: tfm {command}: exit code {found['code']}: {found['err']}"
            )
        return found

    def numbers(self) -> Path:
        """Return a dataset of generated text that this version has prepared."""
        if not (self.work / "numbers").exists():
            (self.work / "numbers.toml").write_text(NUMBERS)
            lines = lzma.decompress(CORPUS.read_bytes()).splitlines(keepends=True)
            for split, (start, end) in _LINES.items():
                (self.work / f"{split}.tsv").write_bytes(b"".join(lines[start:end]))
            self.succeed("prepare", "numbers.toml", "--out", "numbers")
        return self.work / "numbers"

    def train_model(self) -> None:
        """Train the model that both versions decode with."""
        self.succeed("train", self.numbers(), "--run", self.model, *MODEL_FLAGS.split())

    def _shortened(self, output: bytes) -> str:
        text = output.decode(errors="backslashreplace")
        for path in (self.work, self.source, self.model):
            text = text.replace(str(path), path.name)
        return text
