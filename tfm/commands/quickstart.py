"""tfm quickstart: run all seven stages on a small corpus, or copy the examples."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tfm.commands.declaration import NewFolder, command
from tfm.config.schema import Rules
from tfm.disk.files import atomic_write, read_json
from tfm.disk.paths import LAST_GENERATION, OutputPath
from tfm.errors import InterruptedRunError, TfmError, UsageError, tfm_command
from tfm.machine.search_path import same_search_path
from tfm.reporting import format_duration
from tfm.table import Table

_THIS_PROGRAM = (sys.executable, "-m", "tfm")
_EXAMPLE_SUFFIXES = (".py", ".sh", ".toml")
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
    ("Train a small Transformer.", ("train --arch quickstart --no-average",)),
    ("Average the last checkpoints, which is better than each of them.", ("average",)),
    ("Translate the test set, and score the translations.", (_GENERATE, _SCORE)),
)
_NEXT_STEPS = (
    (
        'echo "two red apples cost five euros" | tfm generate',
        "translate your own sentence, similar to those above",
    ),
    ('tfm attend "two red apples cost five euros"', "see what each word of it attends to"),
    ("tfm train --help-all", "list all settings"),
    ("tfm prepare multi30k-en-de", "a real corpus: captions of pictures, 29,000 pairs"),
    (
        (
            "tfm prepare --train train.en train.de --valid valid.en valid.de "
            "--test test.en test.de --out data/mine"
        ),
        "your own corpus: two text files per split, one sentence per line",
    ),
)


@command()
def quickstart(
    *,
    out: Annotated[Path, OutputPath(is_folder=True)] = Path("quickstart"),
    examples: Annotated[NewFolder, Rules(excludes=("out",))] = None,
) -> None:
    """Run all seven stages on a small corpus in minutes, without network or GPU.

    Examples::

        tfm quickstart
        tfm quickstart --examples examples

    Args:
        out: Folder for data and runs.
        examples: Only copy the recipes, settings and scripts of examples to this folder, such as
            the rows of the paper's Table 3, and list them.

    Raises:
        UsageError: A file in `examples` has other content than that of tfm.
        TfmError: A stage failed, with the exit code of the stage.
        InterruptedRunError: Ctrl-C stopped a stage.
    """
    if examples is not None:
        Table(_copy_examples(examples)).print()
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    console.print(f"Seven stages, in the folder {out}:", markup=False, soft_wrap=True)
    outputs: dict[str, bytes] = {}
    times = []
    for purpose, commands in _COMMAND_LINES:
        line = " | ".join(f"tfm {each}" for each in commands)
        console.print(f"\n# {purpose}", style="dim", markup=False)
        console.print(f"$ {line}", style="bold", markup=False, soft_wrap=True)
        started = time.monotonic()
        outputs |= _run(commands, out)
        duration = format_duration(time.monotonic() - started)
        times.append((duration, line))
        console.print(duration, style="dim")
    scores = [
        (score["label"], f"{score['value']:.1f}", score["signature"])
        for score in json.loads(outputs[_SCORE])["scores"]
    ]
    samples = _samples(out, outputs[_GENERATE].decode().removesuffix("\n").split("\n"))
    for table in (
        Table(times, ("time", "stage")),
        Table(samples),
        Table(scores, ("metric", "score", "signature")),
    ):
        console.print()
        table.print(stderr=True)
    console.print()
    console.print("What to try next:", style="bold")
    reports = sorted(map(str, out.glob("runs/*/report.html")))
    steps = [(report, "the training curves (open in a browser)") for report in reports]
    if shutil.which("tfm") is None:
        activate = shlex.quote(f"{sys.prefix}/bin/activate")
        steps.append((f". {activate}", "so that the shell finds tfm"))
    steps += [(f"cd {shlex.quote(str(out))}", "the folder with the model"), *_NEXT_STEPS]
    for line, purpose in steps:
        console.print(f"  {line}\n      {purpose}", markup=False, soft_wrap=True)


def _copy_examples(folder: Path) -> list[tuple[str, str]]:
    """Copy the examples to a folder; return the path and the first line of each file."""
    package = Path(__file__).parents[1]
    # A wheel has the examples in the package, a checkout beside it.
    roots = (package / "examples", package.parent / "examples")
    root = next(filter(Path.is_dir, roots))
    files = {
        folder / path.relative_to(root): path
        for path in sorted(root.rglob("*.*"))
        if path.suffix in _EXAMPLE_SUFFIXES
    }
    for copy, path in files.items():
        if copy.exists() and copy.read_bytes() != path.read_bytes():
            raise UsageError(f"{copy} has been changed: name another folder with --examples")
    for copy, path in files.items():
        if not copy.exists():
            with atomic_write(copy) as file:
                file.write(path.read_bytes())
            copy.chmod(path.stat().st_mode)
    return [(str(copy), _first_line(path)) for copy, path in files.items()]


def _first_line(path: Path) -> str:
    """Return the first sentence of the comment or docstring that a file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines[lines[0].startswith("#!")].strip('# ":')


def _run(commands: Sequence[str], out: Path) -> dict[str, bytes]:
    """Run a command, or several commands as a pipeline.

    Returns:
        The output of each of several commands; a single command writes to the terminal instead.
    """
    outputs: dict[str, bytes] = {}
    output: bytes | None = None
    for each in commands:
        with same_search_path():
            process = subprocess.Popen(  # noqa: S603 - this program itself
                [*_THIS_PROGRAM, *each.split()],
                cwd=out,
                # Standard input is not inherited: tfm generate would translate it.
                stdin=subprocess.DEVNULL if output is None else subprocess.PIPE,
                stdout=subprocess.PIPE if len(commands) > 1 else None,
            )
        try:
            output, _ = process.communicate(output)
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C interrupts the stage as well, which may be saving its work
            raise InterruptedRunError(f"quickstart: stopped in tfm {each}", exit_code=130) from None
        # Popen returns -N for signal N, a shell 128 + N.
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        if code:
            raise TfmError(
                f'"tfm {each}" in {out} failed with exit code {code} (see its message '
                "above): correct the cause and resume there with "
                + tfm_command("quickstart", "--out", out),
                exit_code=code,
            )
        outputs[each] = output or b""
    return outputs


def _samples(out: Path, translations: Sequence[str]) -> list[tuple[str, str]]:
    """Show the translations at the beginning, the middle and the end of the test set."""
    from tfm.metrics.texts import read_lines

    record = read_json(out / "runs" / LAST_GENERATION)
    paths = (record["source"], record["references"][0])
    sources, references = (read_lines(out / path) for path in paths)
    return [
        row
        for number in (0, (len(translations) - 1) // 2, len(translations) - 1)
        for row in (
            ("source", sources[number]),
            ("translation", translations[number]),
            ("reference", references[number]),
            ("", ""),
        )
    ][:-1]
