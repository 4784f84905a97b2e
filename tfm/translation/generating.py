"""Generating: a text → translations or scores, line by line, and the hash of their inputs."""

import hashlib
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from tfm import __version__
from tfm.config import InferenceConfig, SearchConfig, Settings, settings_to
from tfm.disk.files import sha256_of
from tfm.disk.paths import existing_file, files_of_command
from tfm.errors import DataError
from tfm.folders.model_folder import ModelFolder, ensemble_info
from tfm.folders.model_info import ModelInfo
from tfm.machine.cpu import chosen_threads
from tfm.reporting import Progress, format_number, say
from tfm.text.lines import STANDARD_INPUT
from tfm.text.looks import FIRST_LINES, Sign, look
from tfm.text.segments import REFERENCE, SOURCE
from tfm.translation.chain import BatchEngine, Chain
from tfm.translation.engines import (
    arithmetic_of,
    choose_engine,
    start_ctranslate2,
    start_torch,
)
from tfm.translation.partial_output import PartialOutput
from tfm.translation.reader import DocumentReader, LineReader, count_lines
from tfm.translation.steps import Output, Segment, Step

_SENTENCE_BYTES = 100  # of a document, about
MIN_LINES_TO_DIVIDE = 100  # with fewer lines, starting processes takes longer than they save
_MAX_LOSS = 100.0  # nats per token, of which the perplexity is shown


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What is generated: by which models, of which text.

    Attributes:
        models: The models, of an ensemble if they are several.
        source: The text; None for standard input.
        split: The split of the model's dataset that it is; None for other text.
        references: Its references; none if unknown.
        prefixes: A file with the beginning of each translation.
        targets: A file with the translations to score.
        is_document: Whether lines are paragraphs of several sentences.
        is_whole: Whether the text is a single document.
    """

    models: Sequence[ModelFolder]
    source: Path | None
    split: str | None = None
    references: Sequence[Path] = ()
    prefixes: Path | None = None
    targets: Path | None = None
    is_document: bool = False
    is_whole: bool = False

    @property
    def info(self) -> ModelInfo:
        """The description of the models."""
        return ensemble_info(self.models)

    @property
    def text(self) -> str:
        """The name of the text."""
        return str(self.source or STANDARD_INPUT)

    @property
    def parts(self) -> tuple[str | None, str]:
        """What is read of text and paired file; documents and splits are read as they are."""
        return None if self.is_document or self.split else SOURCE, REFERENCE


def hash_of_inputs(
    plan: Generation,
    config: SearchConfig,
    inference: InferenceConfig,
    steps: Settings,
    *,
    form: str,
    texts: Iterable[Path] = (),
) -> str:
    """Return one hash of all inputs and settings that decide an output.

    These are the versions, the models, the contents of the files that settings name, and the
    arithmetic that this machine chooses, but nothing that only divides the work. `form` is the form
    of the output lines. A `PartialOutput` adds the lines of the text itself; files that are hashed
    as a whole are `texts`.
    """
    decisive = {
        "version": __version__,
        "models": [model.fingerprint for model in plan.models],
        "settings": [_decisive(config), _decisive(steps)],
        "arithmetic": arithmetic_of(choose_engine(plan.models, config, inference), inference),
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


def generate_lines(
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
    the device is cuda; by default, a long text is divided among the cores of a CPU. Lines whose
    outputs an earlier call has written to `output` are left out; the caller writes the others.

    Yields:
        Each line of the text, in order, with its `n_best` translations or trees in brackets, or its
        scored target. The lines of a document have their line ends.
    """
    scores_given = plan.targets is not None
    num_done = 0 if output is None else output.num_lines
    since = f", from line {num_done + 1:,}" if num_done else ""
    proofs = Counter[bool | None]()
    num_lines, num_pieces, log_prob = 0, 0, 0.0
    with _open(plan, config, inference, num_processes, output=output) as (chain, reader, bar):
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
        perplexity = math.exp(min(-log_prob / num_pieces, _MAX_LOSS))
        say(
            f"generate: {num_lines:,} targets of {num_pieces:,} tokens, EOS included{since}: "
            f"log probability {log_prob:,.1f}, perplexity {format_number(perplexity, decimals=3)} "
            "per token"
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
                message = f"{plan.text}: {finding}: {advice}"
                is_senseless = sign.is_subword or sign.is_record
                if is_senseless and not num_looked_at and 2 * finding.num_lines >= finding.total:
                    raise DataError(message)
                said.add(sign)
                say(f"warning: {message}")
            num_looked_at = len(first)
        yield lines


@contextmanager
def _open(
    plan: Generation,
    config: SearchConfig,
    inference: InferenceConfig,
    num_processes: int | None,
    *,
    output: PartialOutput | None,
) -> Iterator[tuple[Chain, LineReader, Progress]]:
    """Open the files of a plan and load its models, in this process or in worker processes."""
    path = plan.source
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
            engine = _start_engine(plan, config, inference, num_processes, reader, num_sentences)
        if isinstance(engine, AbstractContextManager):  # worker processes
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
    plan: Generation,
    config: SearchConfig,
    inference: InferenceConfig,
    num_processes: int | None,
    reader: LineReader,
    num_lines: int | None,
) -> BatchEngine:
    """Load models, and divide a long text among the threads of a CPU, unless the user did.

    With torch, there is a process for each thread; processes are started later. For a pipe, only
    the lines count that have arrived when the models are loaded.
    """
    models = plan.models
    if choose_engine(models, config, inference).engine == "ctranslate2":
        if num_processes is None:
            num_lines = reader.num_waiting() if num_lines is None else num_lines
            num_processes = _num_threads(inference) if num_lines >= MIN_LINES_TO_DIVIDE else 1
        torch_engine = partial(start_torch, models, inference)
        return start_ctranslate2(models[0], inference, torch_engine, num_workers=num_processes)
    import torch

    from tfm.translation.engine import Engine
    from tfm.translation.workers import Workers, can_fork

    if num_processes is not None and num_processes > 1:
        return Workers(models, inference=inference, num_workers=num_processes)
    engine = Engine.start(models, inference)
    num_workers = torch.get_num_threads()
    if num_processes == 1 or num_workers == 1:
        return engine
    num_lines = reader.num_waiting() if num_lines is None else num_lines
    if num_lines < MIN_LINES_TO_DIVIDE or not can_fork(engine):
        return engine
    return Workers(engine, inference=inference, num_workers=num_workers)


def _num_threads(inference: InferenceConfig) -> int:
    """Return the number of threads of a process: the setting, OMP_NUM_THREADS, or all cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    is_given = inference.threads is None and given.isdecimal() and int(given) > 0
    return int(given) if is_given else chosen_threads(inference.threads)
