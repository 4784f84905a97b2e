"""tfm generate: text → translations, line by line."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from tfm.config import InferenceConfig, SearchConfig
from tfm.data.languages import target_language
from tfm.folders.model_folder import ModelFolder
from tfm.inference.chain import Chain
from tfm.inference.engine import Engine
from tfm.inference.reader import LineReader, count_lines
from tfm.inference.steps import Output, Step
from tfm.inference.workers import MIN_LINES_TO_FORK, Workers, can_fork
from tfm.reporting import Progress, format_number, say
from tfm.stages.generate_plan import Generation
from tfm.stages.partial_output import PartialOutput
from tfm.stages.score import LAST_GENERATION, LAST_GENERATION_FORMAT
from tfm.storage.files import write_json
from tfm.training.loss import perplexity

_SENTENCE_BYTES = 100  # of a document, about


def generate(
    plan: Generation,
    config: SearchConfig,
    *,
    steps: Sequence[Step] = (),
    inference: InferenceConfig,
    runs_dir: Path,
    num_processes: int | None = None,
    output: PartialOutput | None = None,
) -> Iterator[tuple[str, list[Output]]]:
    """Translate or parse a text, or score the targets of a plan; then print a summary.

    The output does not depend on the number of worker processes, each of which has its own GPU if
    the device is cuda; by default, a long text is divided among the cores of a CPU. What is
    translated is recorded in `runs_dir`, for `tfm score`.

    Lines whose outputs an earlier call has written to `output` are left out; the caller writes the
    others to it.

    Yields:
        Each line of the text, in order, with its `n_best` translations or trees in brackets, or its
        scored target. The lines of a document have their line ends.

    Raises:
        DataError: The text does not begin with the lines that an earlier call has translated.
    """
    scores_given = plan.targets is not None
    if not scores_given:
        _record_generation(plan, target_language(plan.info.target, config.tag), runs_dir)
    num_done = 0 if output is None else output.num_lines
    since = f", from line {num_done + 1:,}" if num_done else ""
    proofs = Counter[bool | None]()
    num_lines, num_pieces, log_prob = 0, 0, 0.0
    with _open(plan, inference, num_processes, output=output) as (chain, reader, bar):
        steps = [step.load() for step in steps]
        lines = reader if output is None else output.verified(reader)
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
    total = num_sentences = count_lines(path) if path is not None and path.is_file() else None
    if plan.is_document and path is not None and total is not None:
        num_sentences = path.stat().st_size // _SENTENCE_BYTES
    counts: Mapping[str, Any] = {
        "total": total,
        "unit": "lines",
        "initial": 0 if output is None else output.num_lines,
    }
    with ExitStack() as stack:
        paired_path = plan.prefixes or plan.targets
        reader = stack.enter_context(LineReader(path, paired_path, keep_ends=plan.is_document))
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
        paths = [model.path for model in models]
        return Workers(paths, inference=inference, num_workers=num_processes)
    engine = Engine.start(models, inference)
    num_threads = torch.get_num_threads()
    if num_processes == 1 or num_threads == 1 or not can_fork(engine):
        return engine
    if (reader.num_waiting() if num_lines is None else num_lines) < MIN_LINES_TO_FORK:
        return engine
    return Workers(engine, inference=inference, num_workers=num_threads)


def _record_generation(plan: Generation, target: str, runs_dir: Path) -> None:
    """Record what is translated, for `tfm score` at the other end of a pipe."""
    source = plan.source
    if source.reference is None and not runs_dir.is_dir():
        return  # there is no reference to record, and no older record to replace
    record = {
        "format": LAST_GENERATION_FORMAT,
        "model": [*map(str, plan.models)],
        "data": plan.info.data_dir,
        "split": source.split,
        "source": str(source),
        "reference": None if source.reference is None else str(source.reference),
        "language": target,
    }
    try:
        write_json(runs_dir / LAST_GENERATION, record)
    except OSError as error:
        say(f"warning: {error.filename}: {error.strerror}; tfm score needs --reference this time")
