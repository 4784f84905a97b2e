"""tfm generate: text → translations, line by line."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from tfm.config import InferenceConfig, Normalization, SearchConfig
from tfm.data.languages import target_language
from tfm.data.subword import Vocabulary
from tfm.data.trees import bracketed, restore
from tfm.errors import UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.inference.batches import ChunkT
from tfm.inference.documents import paragraphs_of
from tfm.inference.engine import Engine
from tfm.inference.lines import ScoredTarget, Translation
from tfm.inference.reader import LineReader, count_lines
from tfm.inference.translator import Translator
from tfm.inference.workers import MIN_LINES_TO_FORK, Workers, can_fork
from tfm.reporting import Progress, format_figure, say
from tfm.stages.generate_plan import Generation
from tfm.stages.score import LAST_GENERATION, LAST_GENERATION_FORMAT
from tfm.storage.files import write_json
from tfm.storage.partial_output import PartialOutput
from tfm.training.loss import perplexity

if TYPE_CHECKING:
    from tfm.inference.alignment import Aligner

_WORDS_AS_WRITTEN = Normalization(space=False, unicode=False)
_SENTENCE_BYTES = 100  # of a document, about

Aligned = TypeVar("Aligned", Translation, ScoredTarget)


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
    if plan.info.task == "parsing" and config.mbr is not None:
        raise UsageError(f"mbr compares texts, but {plan.models[0]} writes trees: leave it out")
    target = target_language(plan.info.target, config.tag)
    _record_generation(plan, target, runs_dir)
    num_repairs, since = 0, _since(output)
    opened = _open(plan, plan.prefixes, inference, num_processes, output=output)
    with opened as (translator, reader, bar):
        aligner = _load_aligner(plan, inference)
        chunks = _remaining(reader, output)
        found = translator.translate_chunks(chunks, config, valid_first=True)
        for chunk, outputs in _completed(found, config, output, bar):
            if plan.info.task == "parsing":
                words = (_words(line, translator.vocabulary) for line in chunk.lines)
                restored = [
                    [_restore_tree(tree, each) for tree in n_best]
                    for each, n_best in zip(words, outputs, strict=True)
                ]
                outputs = [[tree for tree, _ in n_best] for n_best in restored]
                num_repairs += sum(number for n_best in restored for _, number in n_best)
            if aligner is not None:
                outputs = list(_with_alignments(aligner, chunk.lines, outputs))
            yield from zip(chunk.lines, outputs, strict=True)
    if plan.info.task == "parsing":
        say(f"generate: repairs to the trees{since}: {num_repairs:,}")


def translate_document(
    plan: Generation,
    config: SearchConfig,
    *,
    inference: InferenceConfig,
    runs_dir: Path,
    num_processes: int | None = None,
    output: PartialOutput | None = None,
) -> Iterator[str]:
    """Translate the sentences of a document; arguments and errors as those of `generate`.

    Yields:
        Each line of the document, in order, with its sentences translated and its white space,
        line end included.
    """
    source, target = plan.info.source, target_language(plan.info.target, config.tag)
    _record_generation(plan, target, runs_dir)
    opened = _open(plan, None, inference, num_processes, output=output, is_document=True)
    with opened as (translator, reader, bar):
        chunks = paragraphs_of(reader, source, max_sentences=reader.chunk_lines)
        remaining = _remaining(chunks, output)
        found = translator.translate_chunks(remaining, config, valid_first=True)
        for chunk, outputs in _completed(found, config, output, bar):
            texts = [best.text for best, *_ in outputs]
            yield from chunk.join(texts, source=source, target=target)


def _completed(
    found: Iterable[tuple[ChunkT, list[list[Translation]]]],
    config: SearchConfig,
    output: PartialOutput | None,
    bar: Progress,
) -> Iterator[tuple[ChunkT, list[list[Translation]]]]:
    """Yield chunks and their translations, and record each when the caller has written it.

    In the end, print how many translations exact search has proven optimal.
    """
    proofs, since = Counter[bool | None](), _since(output)
    for chunk, outputs in found:
        proofs.update(best.proven for best, *_ in outputs)
        yield chunk, outputs
        if output is not None:
            output.commit(*chunk.columns)
        bar.update(len(chunk.columns[0]))
    if config.search == "exact":
        say(
            f"generate: {proofs[True]:,} of {proofs[True] + proofs[False]:,} translations are "
            f"proven optimal; {proofs[False]:,} are not, within --node-limit "
            f"{config.node_limit:,}{since}"
        )


def _since(output: PartialOutput | None) -> str:
    """Return where an output is continued, in words."""
    return f", from line {output.num_lines + 1:,}" if output and output.num_lines else ""


def _remaining(chunks: Iterable[ChunkT], output: PartialOutput | None) -> Iterator[ChunkT]:
    """Yield the lines whose translations are not in the output, after verifying the others."""
    if output is None:
        yield from chunks
        return
    num_left = output.num_lines
    for chunk in chunks:
        if num_left:
            done, chunk = chunk[:num_left], chunk[num_left:]
            output.verify(*done.columns)
            num_left -= len(done.columns[0])
        if chunk.columns[0]:
            yield chunk
    if num_left:
        raise output.mismatch("is shorter")


def _words(line: str, vocabulary: Vocabulary) -> list[str]:
    """Return the words of a line that the models read, as the user wrote them."""
    words = line.split()
    return [word for word, text in zip(words, vocabulary.clean(words), strict=True) if text]


def _restore_tree(output: Translation, words: Sequence[str]) -> tuple[Translation, int]:
    """Replace a parser's symbols by a tree over the words; return it with the number of repairs."""
    if not words:
        return replace(output, text=""), 0
    tree, num_repairs = restore(output.text.split(), words)
    return replace(output, text=_WORDS_AS_WRITTEN.output(bracketed(tree))), num_repairs


def score_targets(
    plan: Generation,
    config: SearchConfig,
    *,
    inference: InferenceConfig,
    num_processes: int | None = None,
    output: PartialOutput | None = None,
) -> Iterator[tuple[str, ScoredTarget]]:
    """Score the targets of a plan with forced decoding, and print their perplexity.

    `output` and errors are those of `generate`.

    Yields:
        Each line of the text, in order, with its scored target.
    """
    num_lines = num_pieces = 0
    log_prob, since = 0.0, _since(output)
    opened = _open(plan, plan.targets, inference, num_processes, output=output)
    with opened as (translator, reader, bar):
        aligner = _load_aligner(plan, inference)
        chunks = _remaining(reader, output)
        for chunk, targets in translator.score_chunks(chunks, config, valid_first=True):
            if aligner is not None:
                found = _with_alignments(aligner, chunk.lines, [[target] for target in targets])
                targets = [target for [target] in found]
            for line, scored in zip(chunk.lines, targets, strict=True):
                num_lines += 1
                num_pieces += len(scored.pieces)
                log_prob += scored.log_prob
                yield line, scored
            if output is not None:
                output.commit(*chunk.columns)
            bar.update(len(chunk.lines))
    if num_pieces:
        shown = format_figure(perplexity(-log_prob / num_pieces), decimals=3)
        say(
            f"generate: {num_lines:,} targets of {num_pieces:,} tokens, EOS included{since}: "
            f"log probability {log_prob:,.1f}, perplexity {shown} per token"
        )


@contextmanager
def _open(
    plan: Generation,
    paired_path: Path | None,
    inference: InferenceConfig,
    num_processes: int | None,
    *,
    output: PartialOutput | None = None,
    is_document: bool = False,
) -> Iterator[tuple[Translator, LineReader, Progress]]:
    """Open the files of a plan and load its models, in this process or in worker processes."""
    path = plan.source.path
    total = num_sentences = count_lines(path) if path is not None and path.is_file() else None
    if is_document and path is not None and total is not None:
        num_sentences = path.stat().st_size // _SENTENCE_BYTES
    counts: Mapping[str, Any] = {
        "total": total,
        "unit": "lines",
        "initial": 0 if output is None else output.num_lines,
    }
    with ExitStack() as stack:
        reader = stack.enter_context(LineReader(path, paired_path, keep_ends=is_document))
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
        yield Translator.of(plan.models, engine), reader, bar


def _start_engine(
    models: Sequence[ModelFolder],
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
        paths = [model.path for model in models]
        return Workers(paths, inference=inference, num_workers=num_processes)
    engine = Engine.start(models, inference)
    num_threads = torch.get_num_threads()
    if num_processes == 1 or num_threads == 1 or not can_fork(engine):
        return engine
    if (reader.num_waiting() if num_lines is None else num_lines) < MIN_LINES_TO_FORK:
        return engine
    return Workers(engine, inference=inference, num_workers=num_threads)


def _load_aligner(plan: Generation, inference: InferenceConfig) -> "Aligner | None":
    """Load the models to align with; None without."""
    if not plan.aligners:
        return None
    from tfm.inference.alignment import load_aligner

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
