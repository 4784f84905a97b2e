"""tfm generate: text → translations, line by line; models and text are checked before."""

import hashlib
import io
import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from tfm import __version__
from tfm.backends.selection import chosen_arithmetic
from tfm.config import InferenceConfig, SearchConfig, Settings, settings_to
from tfm.dataset.shortlist import FILE as SHORTLIST
from tfm.disk.files import STDIN_FILE, sha256_of
from tfm.disk.paths import (
    PARTIAL,
    RUNS_ROOT,
    OutputPath,
    check_outputs,
    existing_file,
    files_of_command,
)
from tfm.errors import DataError, UsageError
from tfm.folders.last_generation import LastGeneration
from tfm.folders.model_folder import ModelFolder, ensemble_info
from tfm.folders.model_info import ModelInfo
from tfm.folders.run_folder import newest_run
from tfm.reporting import Progress, format_number, say
from tfm.search.constraints import ban_file
from tfm.stages.partial_output import PartialOutput
from tfm.steps import StepsConfig
from tfm.text.formats import format_of
from tfm.text.languages import target_language
from tfm.text.looks import FIRST_LINES, Sign, look
from tfm.text.segments import REFERENCE, SOURCE
from tfm.training.loss import perplexity
from tfm.translation.chain import Chain
from tfm.translation.engine import Engine
from tfm.translation.reader import DocumentReader, LineReader, count_lines
from tfm.translation.steps import Output, Segment, Step
from tfm.translation.workers import MIN_LINES_TO_FORK, Workers, can_fork

STANDARD_INPUT = Path("-")
_SENTENCE_BYTES = 100  # of a document, about


@dataclass(frozen=True, kw_only=True)
class Source:
    """Text to translate."""

    path: Path | None  # None for standard input
    split: str | None = None  # of the model's dataset; None for other text
    references: tuple[Path, ...] = ()  # none if unknown

    def __str__(self) -> str:
        return "standard input" if self.path is None else str(self.path)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Checked models and text."""

    models: Sequence[ModelFolder]
    source: Source
    prefixes: Path | None  # file with the beginning of each translation
    targets: Path | None  # file with the translations to score
    is_document: bool = False  # whether lines are paragraphs of several sentences
    is_whole: bool = False  # whether the text is a single document

    @property
    def info(self) -> ModelInfo:
        """The description of the models."""
        return ensemble_info(self.models)

    @property
    def parts(self) -> tuple[str | None, str]:
        """What is read of text and paired file; documents and splits are read as they are."""
        return None if self.is_document or self.source.split else SOURCE, REFERENCE


def plan_generation(
    models: Sequence[Path],
    *,
    input_path: Path | None,
    split: str | None,
    runs_dir: Path,
    prefixes: Path | None = None,
    targets: Path | None = None,
    document: bool = False,
    whole: bool = False,
    output: Path | None = None,
) -> Generation:
    """Check models and text, with the newest run and standard input or test set as defaults.

    Takes the arguments and raises the errors of the command; `targets` has translations to score,
    `runs_dir` is the folder of all runs.
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
    folders = [ModelFolder.open(path) for path in models or [newest_run(runs_dir)]]
    if input_path is not None:
        source = Source(path=None if input_path == STANDARD_INPUT else input_path)
    elif split is None and _standard_input_has_text():
        source = Source(path=None)
    else:
        split = split or "test"
        path, *references = folders[0].split(split, advice="give text with --input or a pipe")
        source = Source(path=path, split=split, references=tuple(references))
    paired = prefixes or targets
    for given in (source.path, paired):
        if given is not None and not given.exists():
            raise DataError(f"{given} does not exist: check its name")
    plan = Generation(
        models=folders,
        source=source,
        prefixes=prefixes,
        targets=targets,
        is_document=document,
        is_whole=whole,
    )
    if paired is not None:
        _check_alignment(plan, paired)
    if output is not None:
        written = OutputPath(path=output, flag="--output", others=PARTIAL)
        check_outputs([written], read=[source.path or STDIN_FILE, *source.references])
    return plan


def checked_search(plan: Generation, config: SearchConfig) -> SearchConfig:
    """Check settings that depend on the model or on files; return them with the file's content."""
    if plan.info.task == "parsing" and (config.is_constrained):
        raise UsageError(
            f"{plan.models[0]} is a parser, whose trees have the words of their sentences: leave "
            "ban and no_repeat_ngram out"
        )
    if plan.info.task == "parsing" and config.mbr is not None:
        raise UsageError(f"mbr compares texts, but {plan.models[0]} writes trees: leave it out")
    return config if config.ban is None else replace(config, ban=ban_file(config.ban))


def check_document(
    plan: Generation, config: SearchConfig, steps: StepsConfig, *, as_json: bool
) -> None:
    """Raise UsageError unless a plan is one to translate a document."""
    flag = "--document" if steps.document else f"--format {steps.format}"
    if plan.source.split is not None:
        raise UsageError(
            f"{flag} needs a text: give one with --input FILE or a pipe; the splits of a dataset "
            "have one sentence per line"
        )
    if plan.info.task == "parsing":
        raise UsageError(f"{plan.models[0]} is a parser, which reads lines: leave out {flag}")
    kind = format_of(plan.source.path.name) if plan.source.path else None
    # Names of HTML and XML may say either: XHTML is both.
    if kind and kind.flag not in ("", steps.format) and "srt" in (kind.flag, steps.format):
        raise UsageError(f"{plan.source} is {kind.name}: give --format {kind.flag}, not {flag}")
    others = {
        "--prefix": plan.prefixes,
        "--score-target": plan.targets,
        "--align": steps.align,
        "--n-best": config.num_outputs > 1,
        "--json": as_json,
    }
    if unsuitable := [other for other, value in others.items() if value]:
        raise UsageError(
            f"{flag} translates a text as a whole, but {unsuitable[0]} is about single lines: give "
            "one"
        )


def hash_of_inputs(
    plan: Generation,
    config: SearchConfig,
    inference: InferenceConfig,
    steps: StepsConfig,
    *,
    form: str,
    texts: Iterable[Path] = (),
) -> str:
    """Return one hash of all inputs and settings that decide an output.

    These are the versions, the models, the contents of the files that settings name, and the
    arithmetic that this machine chooses, but nothing that only divides the work. `form` is the form
    of the output lines. A `PartialOutput` compares the lines of the text itself; files that are
    hashed as a whole are `texts`.
    """
    shortlist = plan.models[0].path / SHORTLIST
    decisive = {
        "versions": [__version__, torch.__version__],
        "models": [model.fingerprint for model in plan.models],
        "shortlist": sha256_of(shortlist) if config.shortlist and shortlist.is_file() else None,
        "settings": [_decisive(config), _decisive(steps)],
        "arithmetic": chosen_arithmetic(inference),
        "form": [form, plan.prefixes is not None, plan.targets is not None],
        "texts": [sha256_of(path) for path in texts],
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _decisive(settings: Settings) -> dict[str, Any]:
    """Return settings that decide an output; files and models by their content, not their name."""
    found = settings_to(settings)
    found.pop("max_tokens", None)
    for item in (each for each in fields(settings) if each.name in found):
        value = found[item.name]
        match item.metadata["metavar"]:
            case "FILE":
                found[item.name] = sha256_of(existing_file(Path(value)))
            case "MODEL":
                found[item.name] = ModelFolder.open(Path(value)).fingerprint
            case "COMMAND":
                found[item.name] = [value, *map(sha256_of, files_of_command(value))]
    return found


def generate(
    plan: Generation,
    config: SearchConfig,
    *,
    steps: Sequence[Step] = (),
    inference: InferenceConfig,
    num_processes: int | None = None,
    output: PartialOutput | None = None,
) -> Iterator[tuple[str, list[Output]]]:
    """Translate or parse a text, or score the targets of a plan; then print a summary.

    The output does not depend on the number of worker processes, each of which has its own GPU if
    the device is cuda; by default, a long text is divided among the cores of a CPU. What is
    translated is recorded for `tfm score`.

    Lines whose outputs an earlier call has written to `output` are left out; the caller writes the
    others to it.

    Yields:
        Each line of the text, in order, with its `n_best` translations or trees in brackets, or its
        scored target. The lines of a document have their line ends.
    """
    scores_given = plan.targets is not None
    if not scores_given:
        _record_generation(plan, target_language(plan.info.target, config.tag))
    num_done = 0 if output is None else output.num_lines
    since = f", from line {num_done + 1:,}" if num_done else ""
    proofs = Counter[bool | None]()
    num_lines, num_pieces, log_prob = 0, 0, 0.0
    with _open(plan, inference, num_processes, output=output) as (chain, reader, bar):
        steps = [step.load() for step in steps]
        lines = reader if output is None else output.verified(reader)
        if plan.parts[0] is not None:
            lines = _looked_at(plan, lines)
        outputs = chain.run(
            lines, config, steps, scores_given=scores_given, num_done=num_done, valid_first=True
        )
        for units, found in outputs:
            for unit, n_best in zip(units, found, strict=True):
                best = n_best[0]
                proofs.update([part.proven for _, part in best.parts] or [best.proven])
                num_lines, num_pieces = num_lines + 1, num_pieces + len(best.pieces)
                log_prob += best.log_prob
                yield unit.source, n_best
            if output is not None:
                output.commit(units)
            bar.update(len(units))
    if scores_given and num_lines:
        shown = format_number(perplexity(-log_prob / num_pieces), decimals=3)
        say(
            f"generate: {num_lines:,} targets of {num_pieces:,} tokens, EOS included{since}: "
            f"log probability {log_prob:,.1f}, perplexity {shown} per token"
        )
    elif config.search == "exact" and not scores_given:
        say(
            f"generate: {proofs[True]:,} of {proofs[True] + proofs[False]:,} translations are "
            f"proven optimal; {proofs[False]:,} are not, within --node-limit "
            f"{config.node_limit:,}{since}"
        )
    for step in steps:
        if (summary := step.summary(since)) is not None:
            say(f"generate: {summary}")


def _looked_at(plan: Generation, chunks: Iterable[list[Segment]]) -> Iterator[list[Segment]]:
    """Yield the lines of a text; warn first if they do not look like plain sentences."""
    vocabulary = plan.models[0].vocabulary
    first: list[str] = []
    said: set[Sign] = set()
    num_looked_at = 0
    for lines in chunks:
        if len(first) < FIRST_LINES:
            first += (line.source for line in lines)
        if len(first) > 2 * num_looked_at:
            for finding in look(first, vocabulary.source.has_tag):
                sign = finding.sign
                is_known = sign.piece and sign.piece in vocabulary.source.vocab_text()
                if is_known or sign in said:
                    continue
                advice = sign.advice or vocabulary.advised_tags(finding.example)
                message = f"{plan.source}: {finding}: {advice}"
                is_senseless = sign.is_subword or sign.is_record
                if is_senseless and not num_looked_at and 2 * finding.num_lines >= finding.total:
                    raise DataError(message)
                said.add(sign)
                say(f"warning: {message}")
            num_looked_at = len(first)
        yield lines


def _standard_input_has_text() -> bool:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except io.UnsupportedOperation:  # that of a notebook
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _check_alignment(plan: Generation, paired_path: Path) -> None:
    """Raise DataError if two regular files differ in their numbers of lines."""
    path = plan.source.path
    if path is not None and path.is_file() and paired_path.is_file():
        num_lines, num_paired = map(count_lines, (path, paired_path), plan.parts)
        if num_lines != num_paired:
            raise DataError(
                f"{path} has {num_lines:,} lines, but {paired_path} has {num_paired:,}: "
                "line N of one must belong to line N of the other"
            )


@contextmanager
def _open(
    plan: Generation,
    inference: InferenceConfig,
    num_processes: int | None,
    *,
    output: PartialOutput | None,
) -> Iterator[tuple[Chain, LineReader, Progress]]:
    """Open the files of a plan and load its models, in this process or in worker processes."""
    path = plan.source.path
    total = num_sentences = count_lines(path, plan.parts[0]) if path and path.is_file() else None
    if plan.is_document and path is not None and total is not None:
        num_sentences = path.stat().st_size // _SENTENCE_BYTES
        total = 1 if plan.is_whole else total
    counts: Mapping[str, Any] = {
        "total": total,
        "unit": "documents" if plan.is_whole else "lines",
        "initial": 0 if output is None else output.num_lines,
    }
    with ExitStack() as stack:
        paired_path = plan.prefixes or plan.targets
        new_reader = DocumentReader if plan.is_whole else LineReader
        reader = new_reader(path, paired_path, keep_ends=plan.is_document, parts=plan.parts)
        stack.enter_context(reader)
        with Progress("generate", start="loading the model", **counts):
            engine = _start_engine(plan.models, inference, num_processes, reader, num_sentences)
        if isinstance(engine, Workers):
            stack.enter_context(engine)
        reader.chunk_lines = engine.limits.chunk_lines
        is_typed = path is None and sys.stdin.isatty()
        # Translations or typed sentences on the terminal would run into a bar.
        shown = not (is_typed or (output is None and sys.stdout.isatty()))
        start = f"the first {min(reader.chunk_lines, total or reader.chunk_lines):,} are underway"
        bar = stack.enter_context(Progress("generate", start=start, shown=shown, **counts))
        if is_typed:
            say("type a sentence, then Enter; Ctrl-D ends")
        yield Chain(engine=engine, vocabulary=plan.models[0].vocabulary), reader, bar


def _start_engine(
    models: Sequence[ModelFolder],
    inference: InferenceConfig,
    num_processes: int | None,
    reader: LineReader,
    num_lines: int | None,
) -> Engine | Workers:
    """Load models, and choose between this process and others, which are not started yet.

    By default, there is a process for each thread of a CPU if the text is long. For a pipe, only
    the lines count that have arrived when the models are loaded.
    """
    if num_processes is not None and num_processes > 1:
        return Workers(models, inference=inference, num_workers=num_processes)
    engine = Engine.start(models, inference)
    num_threads = torch.get_num_threads()
    if num_processes == 1 or num_threads == 1:
        return engine
    num_lines = reader.num_waiting() if num_lines is None else num_lines
    if num_lines < MIN_LINES_TO_FORK or not can_fork(engine):
        return engine
    return Workers(engine, inference=inference, num_workers=num_threads)


def _record_generation(plan: Generation, target: str) -> None:
    """Record what is translated, for `tfm score` at the other end of a pipe."""
    source = plan.source
    if not source.references and not RUNS_ROOT.is_dir():
        return  # there is no reference to record, and no older record to replace
    LastGeneration(
        model=tuple(map(str, plan.models)),
        source=str(source),
        references=tuple(map(str, source.references)),
        language=target,
        source_language=plan.info.source,
    ).save()
