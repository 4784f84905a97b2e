"""tfm generate: text → translations, line by line."""

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from tfm import __version__
from tfm.config import InferenceConfig, SearchConfig, settings_to
from tfm.data.manifest import SPLITS, Manifest
from tfm.data.subword import Vocabulary
from tfm.data.trees.brackets import bracketed
from tfm.data.trees.symbols import Repairs, restore
from tfm.errors import DataError, UsageError
from tfm.inference.batches import Chunk
from tfm.inference.engine import Engine, load_engine, load_vocabulary
from tfm.inference.lines import LineEngine, ScoredTarget, Translation, score_lines, translate_lines
from tfm.inference.reader import LineReader, count_lines
from tfm.inference.workers import MIN_LINES_TO_FORK, Workers, can_fork
from tfm.reporting import Progress, format_figure, say
from tfm.search.constraints import read_phrases
from tfm.stages.score import LAST_GENERATION, LAST_GENERATION_FORMAT
from tfm.storage.checkpoint.calibration import Calibration
from tfm.storage.checkpoint.model_folder import CONFIG, ModelInfo, load_info
from tfm.storage.checkpoint.run_folder import find_model, newest_run
from tfm.storage.files import STDIN_FILE, is_same_file, sha256_of, write_json
from tfm.storage.partial_output import PartialOutput
from tfm.storage.paths import existing_file
from tfm.training.loss import perplexity

if TYPE_CHECKING:
    from tfm.inference.alignment import Aligner

Aligned = TypeVar("Aligned", Translation, ScoredTarget)

STANDARD_INPUT = Path("-")
_DIGITS = 16  # of a checksum that is shown

# The paths of the files that belong to a folder, by a file that shows the kind of the folder.
_OWN_FILES = {
    "manifest.json": (
        "dataset",
        (
            r"manifest\.json|dropped\.txt|shortlist\.safetensors|bpe\..+|(bin|raw|downloads)/.+"
            rf"|({'|'.join(SPLITS)})\.[^.]+"
        ),
    ),
    CONFIG: ("model", r"config\.json|.+\.safetensors|model\.bin|bpe\..+"),
    "config.toml": ("run", r"config\.toml|data\.json|metrics\.jsonl|report\.html"),
}

Split = Literal["test", "valid"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Text to translate."""

    path: Path | None  # None for standard input
    split: Split | None = None  # of the model's dataset; None for other text
    reference: Path | None = None  # None if unknown

    def __str__(self) -> str:
        return "standard input" if self.path is None else str(self.path)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Checked models and text; fields of ModelInfo are those of the first model."""

    models: Sequence[Path]
    source: Source
    prefixes: Path | None  # file with the beginning of each translation
    targets: Path | None  # file with the translations to score
    data_dir: str
    search: Mapping[str, Any]  # settings of SearchConfig
    task: str = "translation"  # or "parsing"
    calibration: Calibration | None = None  # of the only model
    aligners: Sequence[Path] = ()  # the model to align words with, and one for the reverse


def plan_generation(
    models: Sequence[Path],
    *,
    input_path: Path | None,
    split: Split | None,
    runs_dir: Path,
    prefixes: Path | None = None,
    targets: Path | None = None,
    align: bool = False,
    align_reverse: Path | None = None,
    output: Path | None = None,
) -> Generation:
    """Check models and text, with the newest run and standard input or test set as defaults.

    Args:
        models: Model or run folders; the newest run in `runs_dir` if empty.
        input_path: Text to translate; "-" is standard input, even a terminal.
        split: A split of the model's dataset to translate instead.
        runs_dir: The folder of all runs.
        prefixes: File with the beginning of each translation.
        targets: File with a translation per line to score instead of searching.
        align: Whether to align the words of each line and its translations.
        align_reverse: Model or run folder for the opposite direction, to align with both.
        output: File to write; None for standard output.

    Raises:
        UsageError: Both text and split are given, or both prefixes and targets; standard input
            would be read, but is closed; there are no words to align, or the reverse model has
            other languages; or the output would overwrite a file that is read, or one of a dataset,
            model or run.
        CheckpointError: There is no such model.
        DataError: A file does not exist, or differs from the text in its number of lines; or the
            dataset of the model now has other languages.
    """
    if input_path is not None and split is not None:
        raise UsageError("--input and --split exclude each other: give one")
    if prefixes is not None and targets is not None:
        raise UsageError("--prefix has no effect on --score-target: leave one out")
    if sys.stdin is None and split is None and input_path in (None, STANDARD_INPUT):
        raise UsageError(
            "standard input is closed: give text with --input FILE, or translate the test set "
            "with --split test"
        )
    folders = [find_model(path) for path in models or [newest_run(runs_dir)]]
    info = load_info(folders[0])
    if input_path is not None:
        source = Source(path=None if input_path == STANDARD_INPUT else input_path)
    elif split is None and _standard_input_has_text():
        source = Source(path=None)
    else:
        split = split or "test"
        path, reference = split_paths(info, split, folders[0])
        source = Source(path=path, split=split, reference=reference)
    paired = prefixes or targets
    for given in (source.path, paired):
        if given is not None and not given.exists():
            raise DataError(f"{given} does not exist: check its name")
    if paired is not None:
        _check_alignment(source, paired)
    plan = Generation(
        models=folders,
        source=source,
        prefixes=prefixes,
        targets=targets,
        aligners=_aligners(folders[0], info, align_reverse) if align else [],
        data_dir=info.data_dir,
        search=info.search,
        task=info.task,
        calibration=info.calibration if len(folders) == 1 else None,
    )
    if output is not None:
        _check_output(plan, output)
    return plan


def generate(
    plan: Generation,
    config: SearchConfig,
    *,
    inference: InferenceConfig,
    runs_dir: Path,
    num_processes: int | None = None,
    output: PartialOutput | None = None,
) -> Iterator[tuple[str, list[Translation]]]:
    """Translate a text, or parse it if the model is a parser.

    The output does not depend on the number of worker processes, each of which has its own GPU if
    the device is cuda; by default, a long text is divided among the cores of a CPU. What is
    translated is recorded in `runs_dir`, for `tfm score`.

    Lines whose translations an earlier call has written to `output` are left out; the caller writes
    the others to it.

    Yields:
        Each line of the text, in order, with its `n_best` translations or trees in brackets.

    Raises:
        DataError: The text does not begin with the lines that an earlier call has translated.
        UsageError: Minimum Bayes risk decoding of a parser.
    """
    if plan.task == "parsing" and config.mbr is not None:
        raise UsageError(f"mbr compares texts, but {plan.models[0]} writes trees: leave it out")
    _record_generation(plan, runs_dir)
    proofs: Counter[bool | None] = Counter()
    repairs = Repairs()
    num_done = 0 if output is None else output.num_lines
    opened = _open(plan, plan.prefixes, inference, num_processes, num_done=num_done)
    with opened as (engine, vocabulary, reader, bar):
        aligner = _load_aligner(plan, inference)
        chunks = reader if output is None else _remaining(reader, output)
        for chunk, outputs in translate_lines(
            engine, vocabulary, chunks, config, calibration=plan.calibration
        ):
            proofs.update(best.proven for best, *_ in outputs)
            if plan.task == "parsing":
                words = (_words(line, vocabulary) for line in chunk.lines)
                outputs = [
                    [_restore_tree(output, each, repairs) for output in n_best]
                    for each, n_best in zip(words, outputs, strict=True)
                ]
            if aligner is not None:
                outputs = list(_with_alignments(aligner, chunk.lines, outputs))
            yield from zip(chunk.lines, outputs, strict=True)
            if output is not None:  # the caller has written them
                output.commit(*chunk.columns)
            bar.update(len(chunk.lines))
    since = f", from line {num_done + 1:,}" if num_done else ""
    if config.search == "exact":
        say(
            f"generate: {proofs[True]:,} of {proofs[True] + proofs[False]:,} translations are "
            f"proven optimal; {proofs[False]:,} are not, within --node-limit "
            f"{config.node_limit:,}{since}"
        )
    if plan.task == "parsing":
        kinds = [f"{n:,} {kind.replace('_', ' ')}" for kind, n in vars(repairs).items() if n]
        say(f"generate: repairs to the trees{since}: {', '.join(kinds) or 'none'}")


def check_constraints(plan: Generation, config: SearchConfig) -> None:
    """Check the constraints on translations before anything is loaded.

    Raises:
        UsageError: The file of banned text does not exist, or the model is a parser.
        DataError: The file of banned text is not usable.
    """
    if plan.task == "parsing" and (config.ban is not None or config.no_repeat_ngram is not None):
        raise UsageError(
            f"{plan.models[0]} is a parser, whose trees have the words of their sentences: leave "
            "ban and no_repeat_ngram out"
        )
    if config.ban is not None:
        read_phrases(existing_file(Path(config.ban)))


def output_settings(
    plan: Generation, config: SearchConfig, inference: InferenceConfig, *, form: str
) -> dict[str, Any]:
    """Return what decides the output besides the text, so that only the same output is continued.

    `form` is that of the output lines. The number of threads and processes has no effect.
    """
    arithmetic = settings_to(inference)
    arithmetic.pop("threads", None)
    models, aligners = (
        " ".join(sha256_of(folder / CONFIG)[:_DIGITS] for folder in folders)
        for folders in (plan.models, plan.aligners)
    )
    return {
        "version": __version__,
        "models": models,  # config.json has the checksums of the other files
        "aligners": aligners,
        "form": form,
        "prefixes": plan.prefixes is not None,
        **settings_to(config),
        **({} if config.ban is None else {"ban": sha256_of(Path(config.ban))[:_DIGITS]}),
        **arithmetic,
    }


def _remaining(chunks: Iterable[Chunk], output: PartialOutput) -> Iterator[Chunk]:
    """Yield the lines whose translations are not in the output, after verifying the others."""
    num_left = output.num_lines
    for chunk in chunks:
        if num_left:
            done, chunk = chunk[:num_left], chunk[num_left:]
            output.verify(*done.columns)
            num_left -= len(done.lines)
        if chunk.lines:
            yield chunk
    if num_left:
        raise output.mismatch("is shorter")


def _words(line: str, vocabulary: Vocabulary) -> list[str]:
    """Return the words of a line that the models read, as the user wrote them."""
    words = line.split()
    return [word for word, text in zip(words, vocabulary.clean(words), strict=True) if text]


def _restore_tree(output: Translation, words: Sequence[str], repairs: Repairs) -> Translation:
    """Replace a parser's symbols by a tree over the words of the sentence."""
    if not words:
        return replace(output, text="")
    tree, tree_repairs = restore(output.text.split(), words)
    repairs.add(tree_repairs)
    return replace(output, text=bracketed(tree))


def score_targets(
    plan: Generation,
    config: SearchConfig,
    *,
    inference: InferenceConfig,
    num_processes: int | None = None,
) -> Iterator[tuple[str, ScoredTarget]]:
    """Score the targets of a plan with forced decoding, and print their perplexity.

    Yields:
        Each line of the text, in order, with its scored target.
    """
    num_lines = num_pieces = 0
    log_prob = 0.0
    opened = _open(plan, plan.targets, inference, num_processes)
    with opened as (engine, vocabulary, reader, bar):
        aligner = _load_aligner(plan, inference)
        for chunk, targets in score_lines(engine, vocabulary, reader, config):
            if aligner is not None:
                found = _with_alignments(aligner, chunk.lines, [[target] for target in targets])
                targets = [target for [target] in found]
            for line, scored in zip(chunk.lines, targets, strict=True):
                num_lines += 1
                num_pieces += len(scored.pieces)
                log_prob += scored.log_prob
                yield line, scored
            bar.update(len(chunk.lines))
    if num_pieces:
        shown = format_figure(perplexity(-log_prob / num_pieces), decimals=3)
        say(
            f"generate: {num_lines:,} targets of {num_pieces:,} tokens, EOS included: "
            f"log probability {log_prob:,.1f}, perplexity {shown} per token"
        )


@contextmanager
def _open(
    plan: Generation,
    paired_path: Path | None,
    inference: InferenceConfig,
    num_processes: int | None,
    *,
    num_done: int = 0,
) -> Iterator[tuple[LineEngine, Vocabulary, LineReader, Progress]]:
    """Open the files of a plan and load its models, in this process or in worker processes."""
    path = plan.source.path
    total = count_lines(path) if path is not None and path.is_file() else None
    vocabulary = load_vocabulary(plan.models[0], load_info(plan.models[0]))
    with ExitStack() as stack:
        reader = stack.enter_context(LineReader(path, paired_path))
        engine = _start_engine(plan.models, inference, num_processes, reader, total)
        if isinstance(engine, Workers):
            stack.enter_context(engine)
        reader.chunk_lines = engine.limits.chunk_lines
        is_typed = path is None and sys.stdin.isatty()
        # Translations or typed sentences on the terminal would run into a bar.
        shown = not (is_typed or sys.stdout.isatty())
        bar = stack.enter_context(
            Progress("generate", total=total, unit="lines", initial=num_done, shown=shown)
        )
        if is_typed:
            say("type a sentence, then Enter; Ctrl-D ends")
        yield engine, vocabulary, reader, bar


def _start_engine(
    models: Sequence[Path],
    inference: InferenceConfig,
    num_processes: int | None,
    reader: LineReader,
    num_lines: int | None,
) -> Engine | Workers:
    """Load models, and choose between this process and others, which are not started yet.

    By default, there is a process for each thread of a CPU if the text is long, as far as it is
    known: of a pipe, the lines that have arrived when the models are loaded.
    """
    if num_processes is not None and num_processes > 1:
        return Workers(models, inference=inference, num_workers=num_processes)
    engine = load_engine(models, inference)
    num_threads = torch.get_num_threads()
    if num_processes == 1 or num_threads == 1 or not can_fork(engine):
        return engine
    if (reader.num_waiting() if num_lines is None else num_lines) < MIN_LINES_TO_FORK:
        return engine
    return Workers(engine, inference=inference, num_workers=num_threads)


def _aligners(model: Path, info: ModelInfo, reverse: Path | None) -> list[Path]:
    """Return the model to align with, and the reverse model if there is one, after checks."""
    if info.task == "parsing":
        raise UsageError(
            f"{model} is a parser, and a tree has no words to align: leave out --align"
        )
    if reverse is None:
        return [model]
    folder = find_model(reverse)
    other = load_info(folder)
    if (other.task, other.source, other.target) != ("translation", info.target, info.source):
        raise UsageError(
            f"{folder} is for {other.task} from {other.source} to {other.target}, but "
            f"--align-reverse needs a model from {info.target} to {info.source}"
        )
    return [model, folder]


def _load_aligner(plan: Generation, inference: InferenceConfig) -> "Aligner | None":
    """Load the models to align with; None without."""
    if not plan.aligners:
        return None
    from tfm.inference.alignment_heads import load_aligner

    aligner, *reverse = [load_aligner(folder, inference.device) for folder in plan.aligners]
    return replace(aligner, reverse=reverse[0]) if reverse else aligner


def _with_alignments(
    aligner: "Aligner", lines: Sequence[str], outputs: Sequence[list[Aligned]]
) -> Iterator[list[Aligned]]:
    """Yield the outputs of each line with their word alignments."""
    pairs = [
        (line, each.text) for line, found in zip(lines, outputs, strict=True) for each in found
    ]
    alignments = iter(aligner.align(*zip(*pairs, strict=True)))
    for found in outputs:
        yield [replace(each, alignment=next(alignments)) for each in found]


def _standard_input_has_text() -> bool:
    mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def split_paths(info: ModelInfo, split: Split, model: Path) -> tuple[Path, Path]:
    """Return the text and the references of a split of a model's dataset.

    Raises:
        DataError: The dataset is gone, or is now another one.
    """
    data_dir = Path(info.data_dir)
    if not data_dir.is_dir():
        raise DataError(
            f"{data_dir}, the dataset of {model}, does not exist: give text with --input or a pipe"
        )
    manifest = Manifest.load(data_dir)
    if (manifest.task, manifest.source, manifest.target) != (info.task, info.source, info.target):
        raise DataError(
            f"{data_dir}, the dataset of {model}, is now for {manifest.task} from "
            f"{manifest.source} to {manifest.target}, but the model is for {info.task} from "
            f"{info.source} to {info.target}: give text with --input or a pipe"
        )
    path = manifest.text_path(split, manifest.source)
    if not path.is_file():
        raise DataError(f"{data_dir} has no {split} split: give text with --input or a pipe")
    return path, manifest.reference_path(split)


def _record_generation(plan: Generation, runs_dir: Path) -> None:
    """Record what is translated, for `tfm score` at the other end of a pipe."""
    source = plan.source
    if source.reference is None and not runs_dir.is_dir():
        return  # there is no reference to record, and no older record to replace
    record = {
        "format": LAST_GENERATION_FORMAT,
        "model": [str(path) for path in plan.models],
        "data": plan.data_dir,
        "split": source.split,
        "source": str(source),
        "reference": None if source.reference is None else str(source.reference),
    }
    try:
        write_json(runs_dir / LAST_GENERATION, record)
    except OSError as error:
        say(f"warning: {error.filename}: {error.strerror}; tfm score needs --reference this time")


def _check_output(plan: Generation, output: Path) -> None:
    """Raise UsageError if the output is a file that is read, or one of a dataset, model or run."""
    source = plan.source
    partial = PartialOutput(output, {}).path
    for path in (source.path or STDIN_FILE, source.reference, plan.prefixes, plan.targets):
        if path is not None and (is_same_file(output, path) or is_same_file(partial, path)):
            raise UsageError(
                f"{output} would be both read and overwritten: choose another name with --output"
            )
    real_path = Path(os.path.realpath(output))
    for folder in real_path.parents[:2]:
        name = real_path.relative_to(folder).as_posix()
        for marker, (kind, own_names) in _OWN_FILES.items():
            if re.fullmatch(own_names, name) and (folder / marker).is_file():
                raise UsageError(f"{output} belongs to a {kind}: choose another name with --output")


def _check_alignment(source: Source, paired_path: Path) -> None:
    """Raise DataError if two regular files differ in their numbers of lines."""
    if source.path is not None and source.path.is_file() and paired_path.is_file():
        num_lines, num_paired = count_lines(source.path), count_lines(paired_path)
        if num_lines != num_paired:
            raise DataError(
                f"{source} has {num_lines:,} lines, but {paired_path} has {num_paired:,}: "
                "line N of one must belong to line N of the other"
            )
