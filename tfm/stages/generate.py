"""tfm generate: text → translations, one line out for each line in."""

import itertools
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from tfm.config import DeviceName, Precision, SearchConfig
from tfm.data.manifest import Manifest
from tfm.errors import DataError, UsageError
from tfm.runtime.checkpoint import ModelInfo, find_model, load_info, newest_run
from tfm.runtime.files import write_json
from tfm.runtime.reporting import Progress, say
from tfm.translator import Translation, Translator

RECORD_FORMAT = 1
# Lines that are sorted by length together; the next are read when these are translated.
_BUFFER_LINES = 1_000
_BYTE_ORDER_MARK = "\ufeff"

Split = Literal["test", "valid"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Text to translate.

    Attributes:
        path: Its file; None for standard input.
        split: The split of the model's dataset that it is; None if it is none.
        reference: The translation to score against, where it is known.
    """

    path: Path | None
    split: Split | None = None
    reference: Path | None = None

    def __str__(self) -> str:
        return "standard input" if self.path is None else str(self.path)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Models and text, chosen and checked."""

    models: Sequence[Path]
    source: Source
    data_dir: str


def plan_generation(
    models: Sequence[Path], *, input_path: Path | None, split: Split | None, runs_dir: Path
) -> Generation:
    """Choose what is not given: the newest run's model, standard input or the test set.

    Args:
        models: Model or run folders; none means the newest run below `runs_dir`.
        input_path: Text to translate.
        split: A split of the model's dataset instead.
        runs_dir: Where runs are looked for, and where `tfm score` finds what was translated.

    Raises:
        UsageError: Both text and split are given.
        CheckpointError: There is no such model.
        DataError: The text is not there.
    """
    if input_path is not None and split is not None:
        raise UsageError("--input and --split exclude each other: give one")
    folders = [find_model(path) for path in models or [newest_run(runs_dir)]]
    info = load_info(folders[0])
    if input_path is not None:
        source = Source(path=input_path)
    elif split is None and _standard_input_has_text():
        source = Source(path=None)
    else:
        source = _split_source(info, split or "test", folders[0])
    if source.path is not None and not source.path.exists():
        raise DataError(f"{source.path} does not exist: check its name")
    return Generation(models=folders, source=source, data_dir=info.data_dir)


def generate(
    plan: Generation,
    config: SearchConfig,
    *,
    device: DeviceName,
    precision: Precision,
    runs_dir: Path,
) -> Iterator[tuple[str, list[Translation]]]:
    """Translate.

    Args:
        plan: Models and text.
        config: How to search.
        device: Where to compute.
        precision: Arithmetic of matrix products.
        runs_dir: Where to note what is translated, for `tfm score`.

    Yields:
        For each line of the text, in order: the line, and its `n_best` translations.
    """
    _note(plan, runs_dir)
    translator = Translator.load(*plan.models, device=device, precision=precision)
    path = plan.source.path
    total = _count_lines(path) if path is not None and path.is_file() else None
    with (
        open(sys.stdin.fileno() if path is None else path, "rb", closefd=path is not None) as file,
        Progress("generate", total=total, unit="lines") as bar,
    ):
        while lines := _read(file, plan.source, bar.done):
            yield from zip(lines, translator.search(lines, config), strict=True)
            bar.update(len(lines))


def _standard_input_has_text() -> bool:
    mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _split_source(info: ModelInfo, split: Split, model: Path) -> Source:
    data_dir = Path(info.data_dir)
    if not data_dir.is_dir():
        raise DataError(
            f"{data_dir}, the dataset of {model}, is not here: give text with --input or by a pipe"
        )
    manifest = Manifest.load(data_dir)
    path = manifest.text_path(split, manifest.source)
    if not path.is_file():
        raise DataError(f"{data_dir} has no {split} split: give text with --input or by a pipe")
    return Source(path=path, split=split, reference=manifest.text_path(split, manifest.target))


def _note(plan: Generation, runs_dir: Path) -> None:
    """Let `tfm score`, at the other end of a pipe, know what is being translated."""
    source = plan.source
    if source.reference is None and not runs_dir.is_dir():
        return  # nothing to tell, and no older note to take back
    record = {
        "format": RECORD_FORMAT,
        "model": [str(path) for path in plan.models],
        "data": plan.data_dir,
        "split": source.split,
        "source": str(source),
        "reference": None if source.reference is None else str(source.reference),
    }
    try:
        write_json(runs_dir / "last-generation.json", record)
    except OSError as error:
        say(f"warning: {error.filename}: {error.strerror}; tfm score needs --reference this time")


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _read(file: IO[bytes], source: Source, num_before: int) -> list[str]:
    """The next lines, without their ends."""
    lines = list(itertools.islice(file, _BUFFER_LINES))
    try:
        texts = [line.decode().rstrip("\n").rstrip("\r") for line in lines]
    except UnicodeDecodeError as error:
        broken = next(
            i for i, line in enumerate(lines, num_before + 1) if line.endswith(error.object)
        )
        raise DataError(f"{source}, line {broken}: not UTF-8 ({error.reason})") from None
    if texts and num_before == 0:
        texts[0] = texts[0].removeprefix(_BYTE_ORDER_MARK)
    return texts
