"""Compare the speed of `tfm binarize` with that of SentencePiece alone, and measure its memory.

SentencePiece encodes both sides of the text as lists of lines, on all cores, in chunks of several
sizes. Only these calls are timed, not reading or the use of the ids. Of tfm, the whole command is
timed: start, reading, checks, encoding, writing and checksums. Both run in turn (A B A B). The
table shows medians, and the peak memory of the command.

The text consists of two files of yours, repeated to the given sizes. In repetitions, a word of each
line is changed, so that no line is encoded twice:

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

_CHUNK_SIZES = (10_000, 100_000)  # lines per call of SentencePiece
_LANGUAGES = ("source", "target")
_TFM = "tfm binarize"
_POLL_SECONDS = 0.05
_NUM_SAMPLE_SENTENCES = 200_000  # for learning the subword model


def main(
    source: Annotated[Path, typer.Argument(help="Source text to repeat.")],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.")],
    folder: Annotated[Path, typer.Option(help="Temporary folder, removed at the end.")],
    pairs: Annotated[
        list[int] | None, typer.Option(help="Number of pairs; may be given several times.", min=1)
    ] = None,
    vocab_size: Annotated[
        int, typer.Option(help="Size of the joint vocabulary.", min=300)
    ] = 16_000,
    rounds: Annotated[int, typer.Option(help="Number of runs of each.", min=1)] = 5,
) -> None:
    """Time both programs in turn."""
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
        "| pairs | | seconds | pairs per second | CPU seconds | speed relative to SentencePiece "
        "| peak MB |"
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
    learn_bpe(
        data_dir, SubwordConfig(vocab_size=vocab_size, sample_sentences=_NUM_SAMPLE_SENTENCES)
    )


def _repeated(lines: list[str]) -> Iterator[str]:
    """Yield the lines, then repeat them forever with one word of each changed."""
    yield from (f"{line}\n" for line in lines)
    generator = random.Random(1)
    while True:
        for line in lines:
            words = line.split(" ")
            index = generator.randrange(len(words))
            words[index] = f"{words[index][::-1]}{generator.randrange(1000)}"
            yield " ".join(words) + "\n"


def _rows(data_dir: Path, *, num_pairs: int, rounds: int) -> list[str]:
    """Time both programs in turn and return the rows of the table."""
    timings: dict[str, list[tuple[float, float]]] = {}
    peaks = []
    for _ in range(rounds):
        for chunk_size in _CHUNK_SIZES:
            name = f"SentencePiece, {chunk_size:,} lines per call"
            timings.setdefault(name, []).append(_sentencepiece_seconds(data_dir, chunk_size))
        wall, cpu, peak = _binarize_cost(data_dir)
        timings.setdefault(_TFM, []).append((wall, cpu))
        peaks.append(peak)
    medians = {
        name: [statistics.median(column) for column in zip(*seconds, strict=True)]
        for name, seconds in timings.items()
    }
    best = min(wall for name, (wall, _) in medians.items() if name != _TFM)
    return [
        f"| {num_pairs:,} | {name} | {wall:.2f} | {num_pairs / wall:,.0f} | {cpu:.2f} "
        f"| {best / wall:.2f} | {f'{max(peaks):,.0f}' if name == _TFM else ''} |"
        for name, (wall, cpu) in medians.items()
    ]


def _sentencepiece_seconds(data_dir: Path, chunk_size: int) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds of encoding, without reading."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto((data_dir / "bpe.model").read_bytes())
    wall = cpu = 0.0
    for language in _LANGUAGES:
        with (data_dir / f"train.{language}").open(encoding="utf-8", newline="\n") as file:
            while lines := [line.removesuffix("\n") for line in islice(file, chunk_size)]:
                start = time.perf_counter(), time.process_time()
                processor.EncodeAsIds(lines, num_threads=-1)
                wall += time.perf_counter() - start[0]
                cpu += time.process_time() - start[1]
    return wall, cpu


def _binarize_cost(data_dir: Path) -> tuple[float, float, float]:
    """Return the wall-clock seconds, CPU seconds and peak memory in MB of the whole command."""
    command = [sys.executable, "-m", "tfm", "binarize", str(data_dir), "--force"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    peak = 0.0
    while (status := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        peak = _peak_memory(process.pid) or peak
        time.sleep(_POLL_SECONDS)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status[1])
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return wall, status[2].ru_utime + status[2].ru_stime, peak


def _peak_memory(process_id: int) -> float:
    """Return the peak memory in MB of a running process; wait4 would include that of this one."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) / 1024 if match else 0.0


if __name__ == "__main__":
    typer.run(main)
