"""How fast `tfm binarize` is beside SentencePiece alone, and what memory it takes.

SentencePiece encodes both sides of the text as lists of lines, with all cores, in chunks of several
sizes; only its calls are timed, neither reading nor what is done with the ids. Of tfm the whole
command is timed, from its start to its end: reading, checking, encoding, writing, checksums. They
are run in turn (A B A B), and medians are printed, beside the peak memory of the command.

The text is that of two files of your own, repeated to the sizes asked for; whatever is repeated has
a word changed, so that nothing is encoded twice:

    .venv/bin/python benchmarks/binarize_speed.py train.en train.de --folder /tmp/binarize-speed
    .venv/bin/python benchmarks/binarize_speed.py train.en train.de --pairs 3000000 --rounds 1 \
        --folder /tmp/binarize-speed
"""

import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import sentencepiece
import typer

from tfm.config import SubwordConfig
from tfm.data.manifest import Manifest
from tfm.stages.learn_bpe import learn_bpe

_CHUNKS = (10_000, 100_000)  # lines that SentencePiece is given at a time
_LANGUAGES = ("source", "target")
_TFM = "tfm binarize"
_POLL_SECONDS = 0.05
_SAMPLE = 200_000  # sentences that the subword model is learned from


def main(
    source: Annotated[Path, typer.Argument(help="Text to repeat.")],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.")],
    folder: Annotated[Path, typer.Option(help="Where to work; removed at the end.")],
    pairs: Annotated[list[int] | None, typer.Option(help="Size; may be repeated.", min=1)] = None,
    vocab_size: Annotated[int, typer.Option(help="Number of joint pieces.", min=300)] = 16_000,
    rounds: Annotated[int, typer.Option(help="How often each is run.", min=1)] = 5,
) -> None:
    """Time both in turn."""
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists: choose another")
    rows = []
    try:
        for size in pairs or [300_000]:
            data_dir = folder / str(size)
            _write_dataset(data_dir, (source, target), num_pairs=size, vocab_size=vocab_size)
            rows += _rows(data_dir, num_pairs=size, rounds=rounds)
            shutil.rmtree(data_dir)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        "| pairs | | seconds | pairs a second | CPU seconds | rate to SentencePiece's | peak MB |"
    )
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))


def _write_dataset(
    data_dir: Path, texts: tuple[Path, Path], *, num_pairs: int, vocab_size: int
) -> None:
    sides = [text.read_text(encoding="utf-8").removesuffix("\n").split("\n") for text in texts]
    manifest = Manifest.create(
        data_dir, name="speed", source="source", target="target", settings={}
    )
    files = [manifest.text_path("train", language) for language in _LANGUAGES]
    for lines, file in zip(sides, files, strict=True):
        with file.open("w", encoding="utf-8", newline="\n") as opened:
            opened.writelines(islice(_repeated(lines), num_pairs))
    learn_bpe(data_dir, SubwordConfig(vocab_size=vocab_size, sample_sentences=_SAMPLE))


def _repeated(lines: list[str]) -> Iterator[str]:
    """The lines, then the same with a word of each changed, and so on."""
    yield from (f"{line}\n" for line in lines)
    chooser = random.Random(1)
    while True:
        for line in lines:
            words = line.split(" ")
            place = chooser.randrange(len(words))
            words[place] = f"{words[place][::-1]}{chooser.randrange(1000)}"
            yield " ".join(words) + "\n"


def _rows(data_dir: Path, *, num_pairs: int, rounds: int) -> list[str]:
    """Time everything in turn and show the medians."""
    timings: dict[str, list[tuple[float, float]]] = {}
    peaks = []
    for _ in range(rounds):
        for chunk in _CHUNKS:
            name = f"SentencePiece, {chunk:,} lines at a time"
            timings.setdefault(name, []).append(_sentencepiece_seconds(data_dir, chunk))
        wall, cpu, peak = _binarize_cost(data_dir)
        timings.setdefault(_TFM, []).append((wall, cpu))
        peaks.append(peak)
    medians = {
        name: [statistics.median(column) for column in zip(*found, strict=True)]
        for name, found in timings.items()
    }
    best = min(wall for name, (wall, _) in medians.items() if name != _TFM)
    return [
        f"| {num_pairs:,} | {name} | {wall:.2f} | {num_pairs / wall:,.0f} | {cpu:.2f} "
        f"| {best / wall:.2f} | {f'{max(peaks):,.0f}' if name == _TFM else ''} |"
        for name, (wall, cpu) in medians.items()
    ]


def _sentencepiece_seconds(data_dir: Path, chunk: int) -> tuple[float, float]:
    """Seconds, and those of all cores, that encoding takes, without the reading."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto((data_dir / "bpe.model").read_bytes())
    wall = cpu = 0.0
    for language in _LANGUAGES:
        with (data_dir / f"train.{language}").open(encoding="utf-8", newline="\n") as file:
            while lines := [line.removesuffix("\n") for line in islice(file, chunk)]:
                started = time.perf_counter(), time.process_time()
                processor.EncodeAsIds(lines, num_threads=-1)
                wall += time.perf_counter() - started[0]
                cpu += time.process_time() - started[1]
    return wall, cpu


def _binarize_cost(data_dir: Path) -> tuple[float, float, float]:
    """Seconds, those of all cores, and the peak memory in MB of the whole command."""
    command = [sys.executable, "-m", "tfm", "binarize", str(data_dir), "--force"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    peak = 0.0
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        peak = _peak_memory(process.pid) or peak
        time.sleep(_POLL_SECONDS)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return wall, ended[2].ru_utime + ended[2].ru_stime, peak


def _peak_memory(process_id: int) -> float:
    """Peak memory in MB of a running process so far; what wait4 says begins with our own."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    typer.run(main)
