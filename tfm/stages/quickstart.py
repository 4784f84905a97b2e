"""tfm quickstart: run all seven stages as shell commands on a small synthetic corpus."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from tfm.errors import TfmError
from tfm.stages.score import LAST_GENERATION, read_lines
from tfm.storage.files import read_json

_THIS_PROGRAM = (sys.executable, "-m", "tfm")
_GENERATE = "generate --beam 4"
_SCORE = "score --metric bleu --metric chrf --metric exact --json"


# The purpose of each command line, and its commands, which are joined by pipes.
_COMMAND_LINES = (
    (
        "Write a small corpus, English and German: numbers, dates, times and prices.",
        ("prepare numbers-en-de --text-only",),
    ),
    ("Learn a vocabulary of subword pieces.", ("learn-bpe",)),
    ("Encode the text as token ids.", ("binarize",)),
    ("Train a small Transformer.", ("train --arch quickstart",)),
    ("Average the last checkpoints, which is better than each of them.", ("average",)),
    ("Translate the test set, and score the translations.", (_GENERATE, _SCORE)),
)
_NEXT_STEPS = (
    (
        'echo "two red apples cost five euros" | tfm generate',
        "translate your own sentence, similar to those above",
    ),
    ("tfm train --help-all", "list all settings"),
    ("tfm prepare multi30k-en-de", "a real corpus: captions of pictures, 29,000 pairs"),
    (
        "tfm prepare --train FILE.en FILE.de --valid FILE.en FILE.de",
        "your own corpus: two text files per split, one sentence per line",
    ),
)


class Sample(NamedTuple):
    """A sentence of the test set with its translation and reference."""

    source: str
    translation: str
    reference: str


@dataclass(frozen=True, kw_only=True)
class QuickstartResult:
    """What a quickstart measured and wrote."""

    seconds: dict[str, float]  # by command line
    scores: list[dict[str, Any]]  # as in `tfm score --json`
    samples: list[Sample]
    reports: list[Path]  # of all runs


class StageFailedError(TfmError):
    """A stage failed; the quickstart ends with the exit code of the stage."""

    def __init__(self, command: str, exit_code: int, out_dir: Path) -> None:
        super().__init__(
            f'"{command}" in {out_dir} failed with exit code {exit_code} (see its message above): '
            'correct the cause and run "tfm quickstart" again, which resumes there'
        )
        self.exit_code = exit_code


def quickstart(
    out_dir: Path = Path("quickstart"), *, program: Sequence[str] = _THIS_PROGRAM
) -> QuickstartResult:
    """Run all stages and explain them on stderr, reusing the files of an earlier quickstart.

    Raises:
        StageFailedError: A stage failed.
    """
    console = Console(stderr=True, highlight=False)
    out_dir.mkdir(parents=True, exist_ok=True)
    console.print(f"Seven stages, in the folder {out_dir}:", markup=False, soft_wrap=True)
    outputs: dict[str, bytes] = {}
    seconds: dict[str, float] = {}
    for purpose, commands in _COMMAND_LINES:
        line = " | ".join(f"tfm {command}" for command in commands)
        console.print(f"\n# {purpose}", style="dim", markup=False)
        console.print(f"$ {line}", style="bold", markup=False, soft_wrap=True)
        started = time.monotonic()
        outputs |= _run(commands, out_dir, program)
        seconds[line] = time.monotonic() - started
        console.print(f"{seconds[line]:.1f} s", style="dim")
    result = QuickstartResult(
        seconds=seconds,
        scores=json.loads(outputs[_SCORE])["scores"],
        samples=_samples(out_dir, outputs[_GENERATE].decode().removesuffix("\n").split("\n")),
        reports=sorted(out_dir.glob("runs/*/report.html")),
    )
    _summarize(console, result, out_dir)
    return result


def _run(commands: Sequence[str], out_dir: Path, program: Sequence[str]) -> dict[str, bytes]:
    """Run a command, or several that are joined by pipes.

    Returns:
        The output of each piped command; a single command writes to the terminal instead.
    """
    piped = subprocess.PIPE if len(commands) > 1 else None
    processes = [
        subprocess.Popen(  # noqa: S603 - this program itself
            [*program, *command.split()],
            cwd=out_dir,
            # Standard input is not inherited: tfm generate would translate it.
            stdin=piped if number else subprocess.DEVNULL,
            stdout=piped,
        )
        for number, command in enumerate(commands)
    ]
    outputs: list[bytes | None] = [None]
    try:
        for process in processes:
            outputs.append(process.communicate(outputs[-1])[0])
    except KeyboardInterrupt:
        # Ctrl-C interrupts the stages as well; they may be saving their work.
        for process in processes:
            process.wait()
        raise
    for command, process in zip(commands, processes, strict=True):
        # Popen returns -N for signal N, a shell 128 + N.
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        if code:
            raise StageFailedError(f"tfm {command}", code, out_dir)
    return {c: o for c, o in zip(commands, outputs[1:], strict=True) if o is not None}


def _samples(out_dir: Path, translations: Sequence[str]) -> list[Sample]:
    """Return the translations at the beginning, the middle and the end of the test set."""
    record = read_json(out_dir / "runs" / LAST_GENERATION)
    sources, references = (read_lines(out_dir / record[key]) for key in ("source", "reference"))
    last = len(translations) - 1
    return [Sample(sources[i], translations[i], references[i]) for i in (0, last // 2, last)]


def _summarize(console: Console, result: QuickstartResult, out_dir: Path) -> None:
    """Print times, sample translations, scores and what to try next."""
    times = Table("stage", Column("seconds", justify="right"))
    for line, seconds in result.seconds.items():
        times.add_row(line, f"{seconds:.1f}")
    samples = Table.grid(padding=(0, 2))
    for sample in result.samples:
        for name, text in sample._asdict().items():
            samples.add_row(name, Text(text))
        samples.add_row()
    scores = Table("metric", Column("score", justify="right"), "signature")
    for score in result.scores:
        scores.add_row(score["label"], f"{score['value']:.1f}", score["signature"])
    console.print("", times, "", samples, scores, "")
    reports = [(str(path), "the training curves (open in a browser)") for path in result.reports]
    console.print("What to try next:", style="bold")
    first = [(f"cd {out_dir}", "the folder with the model")]
    if shutil.which("tfm") is None:
        first.insert(0, (f". {sys.prefix}/bin/activate", "so that the shell finds tfm"))
    for command, purpose in (*first, *_NEXT_STEPS, *reports):
        console.print(f"  {command}\n      {purpose}", markup=False, soft_wrap=True)
