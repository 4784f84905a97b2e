"""tfm generate: text → translations, one line out for each line in."""

import math
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tfm.config import InferenceConfig, SearchConfig
from tfm.data.manifest import Manifest
from tfm.data.subword import Vocabulary
from tfm.data.trees.brackets import bracketed
from tfm.data.trees.symbols import Repairs, restore
from tfm.errors import DataError, UsageError
from tfm.inference.engine import load_engine
from tfm.inference.lines import (
    LineEngine,
    ScoredTarget,
    Translation,
    score_lines,
    translate_lines,
)
from tfm.inference.reader import LineReader, count_lines
from tfm.inference.workers import Workers
from tfm.reporting import Progress, say
from tfm.storage.checkpoint.model_folder import ModelInfo, load_info
from tfm.storage.checkpoint.run_folder import find_model, newest_run
from tfm.storage.files import write_json

RECORD_FORMAT = 1
STANDARD_INPUT = Path("-")

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
        input_path: Text to translate; "-" is standard input, a terminal too.
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
        source = Source(path=None if input_path == STANDARD_INPUT else input_path)
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
    inference: InferenceConfig,
    runs_dir: Path,
    num_processes: int = 1,
) -> Iterator[tuple[str, list[Translation]]]:
    """Translate.

    Args:
        plan: Models and text.
        config: How to search.
        inference: Where to compute, and how.
        runs_dir: Where to note what is translated, for `tfm score`.
        num_processes: How many processes share the work, each on a GPU of its own if the device is
            cuda; they change nothing in what comes out.

    Yields:
        For each line of the text, in order: the line, and its `n_best` translations; of a parser,
        trees in brackets.
    """
    _note(plan, runs_dir)
    proofs: Counter[bool | None] = Counter()
    repairs = Repairs()
    with _opened(plan, plan.prefixes, inference, num_processes) as work:
        for chunk, found in translate_lines(work.engine, work.vocabulary, work.reader, config):
            proofs.update(best[0].proven for best in found)
            if plan.task == "parsing":
                found = [
                    [_with_tree(each, line, repairs) for each in best]
                    for line, best in zip(chunk.lines, found, strict=True)
                ]
            yield from zip(chunk.lines, found, strict=True)
            work.bar.update(len(chunk.lines))
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
    plan: Generation,
    config: SearchConfig,
    *,
    inference: InferenceConfig,
    num_processes: int = 1,
) -> Iterator[tuple[str, ScoredTarget]]:
    """Compute how probable the models find the targets of a plan, and say it of all together.

    Args:
        plan: Models, text and targets.
        config: Length penalty, longest source and size of batches.
        inference: Where to compute, and how.
        num_processes: How many processes share the work, as in `generate`.

    Yields:
        For each line of the text, in order: the line, and its target.
    """
    num_lines = num_pieces = 0
    log_prob = 0.0
    with _opened(plan, plan.targets, inference, num_processes) as work:
        for chunk, targets in score_lines(work.engine, work.vocabulary, work.reader, config):
            for line, scored in zip(chunk.lines, targets, strict=True):
                num_lines += 1
                num_pieces += len(scored.pieces)
                log_prob += scored.log_prob
                yield line, scored
            work.bar.update(len(chunk.lines))
    if num_pieces:
        perplexity = math.exp(-log_prob / num_pieces)
        say(
            f"generate: {num_lines:,} targets of {num_pieces:,} tokens, ends included: "
            f"log probability {log_prob:,.1f}, perplexity {perplexity:.3f} a token"
        )


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Text to be read, what translates it, and the bar that says how far it has come."""

    engine: LineEngine
    vocabulary: Vocabulary
    reader: LineReader
    bar: Progress


@contextmanager
def _opened(
    plan: Generation,
    paired_path: Path | None,
    inference: InferenceConfig,
    num_processes: int,
) -> Iterator[_Work]:
    """Open the files of a plan and load its models, in this process or in others."""
    path = plan.source.path
    total = count_lines(path) if path is not None and path.is_file() else None
    vocabulary = Vocabulary.load(plan.models[0])
    engine: LineEngine
    with ExitStack() as stack:
        bar = stack.enter_context(Progress("generate", total=total, unit="lines"))
        if num_processes == 1:
            engine = load_engine(plan.models, inference)
        else:
            engine = stack.enter_context(
                Workers(plan.models, inference=inference, num_workers=num_processes)
            )
        reader = stack.enter_context(
            LineReader(path, paired_path, chunk_lines=engine.limits.chunk_lines)
        )
        yield _Work(engine=engine, vocabulary=vocabulary, reader=reader, bar=bar)


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


def _check_alignment(source: Source, paired_path: Path) -> None:
    """See whether a file goes with a text line by line, where that can be seen beforehand."""
    if source.path is not None and source.path.is_file() and paired_path.is_file():
        num_lines, num_others = count_lines(source.path), count_lines(paired_path)
        if num_lines != num_others:
            raise DataError(
                f"{source} has {num_lines:,} lines, but {paired_path} has {num_others:,}: "
                "line N of one must belong to line N of the other"
            )
