"""tfm generate: text → translations, one line out for each line in."""

import itertools
import math
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from tfm.config import DeviceName, Precision, SearchConfig
from tfm.data.manifest import Manifest
from tfm.data.trees import Repairs, bracketed, restore
from tfm.errors import DataError, UsageError
from tfm.runtime.checkpoint import ModelInfo, find_model, load_info, newest_run
from tfm.runtime.files import write_json
from tfm.runtime.reporting import Progress, say
from tfm.translator import ScoredTarget, Translation, Translator

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
    """Models and text, chosen and checked.

    Attributes:
        models: Model folders.
        source: What to translate.
        prefixes: What the translation of each line must start with, line by line.
        targets: A translation of each line whose probability is wanted, line by line.
        data_dir: Dataset that the first model was trained on.
        search: Settings of SearchConfig that suit the first model.
        task: What the first model was trained to do: "translation" or "parsing".
    """

    models: Sequence[Path]
    source: Source
    prefixes: Path | None
    targets: Path | None
    data_dir: str
    search: Mapping[str, Any]
    task: str = "translation"


def plan_generation(
    models: Sequence[Path],
    *,
    input_path: Path | None,
    split: Split | None,
    runs_dir: Path,
    prefixes: Path | None = None,
    targets: Path | None = None,
) -> Generation:
    """Choose what is not given: the newest run's model, standard input or the test set.

    Args:
        models: Model or run folders; none means the newest run below `runs_dir`.
        input_path: Text to translate.
        split: A split of the model's dataset instead.
        runs_dir: Where runs are looked for, and where `tfm score` finds what was translated.
        prefixes: What translations must start with, line by line.
        targets: Translations to score instead of searching for any, line by line.

    Raises:
        UsageError: Both text and split are given, or both prefixes and targets.
        CheckpointError: There is no such model.
        DataError: A file is not there, or has not as many lines as the text.
    """
    if input_path is not None and split is not None:
        raise UsageError("--input and --split exclude each other: give one")
    if prefixes is not None and targets is not None:
        raise UsageError("--prefix has no effect on --score-target: leave one out")
    folders = [find_model(path) for path in models or [newest_run(runs_dir)]]
    info = load_info(folders[0])
    if input_path is not None:
        source = Source(path=input_path)
    elif split is None and _standard_input_has_text():
        source = Source(path=None)
    else:
        source = _split_source(info, split or "test", folders[0])
    for path in (source.path, prefixes, targets):
        if path is not None and not path.exists():
            raise DataError(f"{path} does not exist: check its name")
    for path in (prefixes, targets):
        if path is not None:
            _check_alignment(source, path)
    return Generation(
        models=folders,
        source=source,
        prefixes=prefixes,
        targets=targets,
        data_dir=info.data_dir,
        search=info.search,
        task=info.task,
    )


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
        For each line of the text, in order: the line, and its `n_best` translations; of a parser,
        trees in brackets.
    """
    _note(plan, runs_dir)
    translator = Translator.load(*plan.models, device=device, precision=precision)
    proofs: Counter[bool | None] = Counter()
    repairs = Repairs()
    for first_line, lines, prefixes in _chunks(plan.source, plan.prefixes):
        found = translator.search(lines, config, prefixes=prefixes, first_line=first_line)
        proofs.update(best[0].proven for best in found)
        if plan.task == "parsing":
            found = [
                [_with_tree(each, line, repairs) for each in best]
                for line, best in zip(lines, found, strict=True)
            ]
        yield from zip(lines, found, strict=True)
    if config.search == "exact":
        say(
            f"generate: nothing better exists for {proofs[True]:,} of "
            f"{proofs[True] + proofs[False]:,} lines; {proofs[False]:,} not proven within "
            f"--node-limit {config.node_limit:,}"
        )
    if plan.task == "parsing":
        kinds = [f"{n:,} {kind.replace('_', ' ')}" for kind, n in vars(repairs).items() if n]
        say(f"generate: mended in the trees: {', '.join(kinds) or 'nothing'}")


def _with_tree(output: Translation, sentence: str, repairs: Repairs) -> Translation:
    """A parser's output with its symbols made a tree of the sentence's words."""
    words = sentence.split()
    if not words:
        return replace(output, text="")
    tree, mended = restore(output.text.split(), words)
    repairs.add(mended)
    return replace(output, text=bracketed(tree))


def score_targets(
    plan: Generation, config: SearchConfig, *, device: DeviceName, precision: Precision
) -> Iterator[tuple[str, ScoredTarget]]:
    """Compute how probable the models find the targets of a plan, and say it of all together.

    Args:
        plan: Models, text and targets.
        config: Length penalty, longest source and size of batches.
        device: Where to compute.
        precision: Arithmetic of matrix products.

    Yields:
        For each line of the text, in order: the line, and its target.
    """
    translator = Translator.load(*plan.models, device=device, precision=precision)
    num_lines = num_pieces = 0
    log_prob = 0.0
    for first_line, lines, targets in _chunks(plan.source, plan.targets):
        for line, scored in zip(
            lines,
            translator.score_targets(lines, targets or [], config, first_line=first_line),
            strict=True,
        ):
            num_lines += 1
            num_pieces += len(scored.pieces)
            log_prob += scored.log_prob
            yield line, scored
    if num_pieces:
        perplexity = math.exp(-log_prob / num_pieces)
        say(
            f"generate: {num_lines:,} targets of {num_pieces:,} tokens, ends included: "
            f"log probability {log_prob:,.1f}, perplexity {perplexity:.3f} a token"
        )


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
    return Source(path=path, split=split, reference=manifest.reference_path(split))


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


def _check_alignment(source: Source, beside: Path) -> None:
    """See whether a file goes with a text line by line, where that can be seen beforehand."""
    if source.path is not None and source.path.is_file() and beside.is_file():
        num_lines, num_others = _count_lines(source.path), _count_lines(beside)
        if num_lines != num_others:
            raise DataError(
                f"{source} has {num_lines:,} lines, but {beside} has {num_others:,}: "
                "line N of one must belong to line N of the other"
            )


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _chunks(
    source: Source, beside: Path | None
) -> Iterator[tuple[int, list[str], list[str] | None]]:
    """Read a text, and a file that goes along with it, some lines at a time.

    Yields:
        The number of the first of some lines; the lines; the other file's, if there is one.
    """
    path = source.path
    total = _count_lines(path) if path is not None and path.is_file() else None
    with ExitStack() as stack:
        file = stack.enter_context(
            open(sys.stdin.fileno() if path is None else path, "rb", closefd=path is not None)
        )
        other = None if beside is None else stack.enter_context(beside.open("rb"))
        bar = stack.enter_context(Progress("generate", total=total, unit="lines"))
        while True:
            lines = _read(file, str(source), bar.done)
            others = None if other is None else _read(other, str(beside), bar.done)
            if others is not None and len(others) != len(lines):
                shorter, longer = sorted([(len(lines), str(source)), (len(others), str(beside))])
                raise DataError(
                    f"{shorter[1]} ends after {bar.done + shorter[0]:,} lines, before "
                    f"{longer[1]}: line N of one must belong to line N of the other"
                )
            if not lines:
                return
            yield bar.done + 1, lines, others
            bar.update(len(lines))


def _read(file: IO[bytes], name: str, num_before: int) -> list[str]:
    """The next lines, without their ends."""
    lines = list(itertools.islice(file, _BUFFER_LINES))
    try:
        texts = [line.decode().rstrip("\n").rstrip("\r") for line in lines]
    except UnicodeDecodeError as error:
        broken = next(
            i for i, line in enumerate(lines, num_before + 1) if line.endswith(error.object)
        )
        raise DataError(f"{name}, line {broken}: not UTF-8 ({error.reason})") from None
    if texts and num_before == 0:
        texts[0] = texts[0].removeprefix(_BYTE_ORDER_MARK)
    return texts
