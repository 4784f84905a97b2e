"""tfm score: translations and references → scores with their signatures."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_args

from tfm.commands.declaration import (
    Flag,
    NewFile,
    argument,
    command,
    declaration_of,
    one_or_several,
)
from tfm.config import ScoreConfig, settings_from
from tfm.config.schema import Given, Rules, find_problems
from tfm.config.values import Line, shown
from tfm.disk.files import STDIN_FILE, is_same_file
from tfm.disk.paths import (
    STANDARD_STREAM,
    OutputPath,
    check_outputs,
    check_streams,
    existing_file,
    existing_file_or_stream,
)
from tfm.errors import DataError, TfmError, UsageError, refuse
from tfm.folders.last_generation import LastGeneration
from tfm.metrics.lines import LineScore, report_lines
from tfm.metrics.metric import MetricName, MetricScore
from tfm.metrics.scores import check_lengths, check_metrics, corpus_scores
from tfm.metrics.texts import (
    Text,
    Texts,
    drop_byte_order_marks,
    language_of,
    read,
    read_lines,
    read_references,
    warn_of_byte_order_marks,
    warn_of_empty_lines,
    warn_of_missing_spaces,
    warn_of_signs,
)
from tfm.metrics.tokenizers import bleu_tokenizer, load_tokenizer
from tfm.reporting import Result, say
from tfm.table import Table
from tfm.text.formats import columns_in
from tfm.text.lines import STANDARD_INPUT
from tfm.text.segments import SOURCE

if TYPE_CHECKING:
    from rich.text import Text as StyledText

    from tfm.dataset.test_sets import NamedSet
    from tfm.features.seen.report import SeenReport
    from tfm.folders.model_folder import ModelFolder

AnyText = str | os.PathLike[str] | Iterable[str]  # a file, or its lines

DEFAULT_METRICS: tuple[MetricName, ...] = ("bleu", "chrf")


@dataclass(frozen=True, kw_only=True)
class ScoreResult(Result):
    """The scores of one set of translations, in the requested order, and the names of the files.

    `seen` is the part of the text that its models have seen in training, if known.
    """

    scores: list[MetricScore]
    num_lines: int
    hypotheses: str
    references: list[str]
    baseline: str | None = None
    seen: "SeenReport | None" = None
    worst: list[LineScore] = field(default_factory=list)

    def summary(self) -> list[str]:
        """Return a line with the names of the files."""
        names = f"{self.hypotheses} and {', '.join(self.references)}"
        return [f"score: {self.num_lines:,} lines of {names}"]

    def lines(self, columns: int | None) -> "Iterator[Table | StyledText]":
        """Yield the scores, each with its signature, and the worst lines."""
        from rich.text import Text as StyledText

        for score in self.scores:
            value = f"{score.label} = {score.shown}"
            fits = columns is None or len(value) + 2 + len(score.signature) <= columns
            separator = "  " if fits else "\n  "
            yield StyledText.assemble((value, "bold"), separator, (score.signature, "dim"))
            for text in score.notes():
                yield Table([["  ", text]])
        if self.seen is not None:
            yield Table([[self.seen.summary]])
        for line in self.worst:
            yield line.table()


@command(ScoreConfig)
def score(
    hypotheses: Annotated[AnyText | None, Flag(kind=Path | None)] = None,
    reference: Annotated[AnyText | Sequence[AnyText] | None, Flag(kind=tuple[Path, ...])] = None,
    *,
    test_set: Annotated[str | None, Flag("NAME[:SRC-TGT]"), Rules(excludes=("reference",))] = None,
    mirror: Annotated[str | None, Rules(needs=("test_set",))] = None,
    metric: Annotated[
        MetricName | Sequence[MetricName] | None,
        Flag(f"[{'|'.join(get_args(MetricName))}]", kind=tuple[str, ...]),
    ] = None,
    paper: bool = False,
    language: Annotated[
        str | None, Flag("CODE"), Rules(only={"metrics": ("bleu", "paper-bleu")})
    ] = None,
    baseline: Annotated[AnyText | None, Flag(kind=Path | None)] = None,
    source: Annotated[
        AnyText | None,
        Flag(kind=Path | None),
        Rules(needs=("worst", "per_line", "page", "metric_command")),
    ] = None,
    worst: Annotated[int, Flag("N"), Rules(limits=(0, None))] = 0,
    per_line: NewFile = None,
    page: NewFile = None,
    compare: Annotated[
        tuple[Path, ...], existing_file, Flag("FILE"), Rules(needs=("per_line", "page"))
    ] = (),
    **settings: Any,
) -> ScoreResult:
    """Score translations; each score has a signature of its settings.

    Examples::

        tfm generate --beam 4 | tfm score --paper
        tfm score --hypotheses out.de --test-set wmt14:en-de
        tfm score --hypotheses out.de --reference test.de --metric bleu --metric ter

    Args:
        hypotheses: File of translations (default: standard input).
        reference: Reference file; repeatable (default: the reference of the last tfm generate).
        test_set: Score against a test set by its name in sacreBLEU, such as wmt14:en-de.
        mirror: Folder or URL to fetch the test set's files from, by their names.
        metric: Metric; repeatable (default: bleu and chrf, or bracket-f1 for trees).
        paper: Also compute BLEU as in the paper, and explain the difference to sacreBLEU.
        language: Target language, for BLEU's tokenizer and --paper (default: as in the last tfm
            generate for this reference, or the reference's suffix).
        baseline: Other translations of the same text: test whether the scores differ.
        source: File of the source text, for --metric-command and single lines (default: the text of
            the last tfm generate for this reference).
        worst: Print the N lines with the lowest chrF.
        per_line: Write chrF, BLEU and TER of each line to a file of tab-separated values, or to a
            .jsonl file with the texts.
        page: Write a web page of the lines that marks what differs from the reference.
        compare: File of further translations for the page and the file of lines; repeatable.
        **settings: Settings of [score].

    Raises:
        UsageError: Arguments are wrong or without effect, or there is no reference.
        DataError: A text is missing, empty or not UTF-8, or the files differ in length.

    Note:
        In Python, a list of lines may take the place of each file, and a list of lists the place
        of several references. If the translations are a file, a list of strings names references.
    """
    metrics, config = metrics_and_config(metric, settings["score"], language, paper=paper)
    has_lines = worst > 0 or per_line is not None or page is not None
    translations = _text("hypotheses", hypotheses, existing_file_or_stream)
    references = _texts("reference", reference, are_lines=isinstance(translations, list))
    compared, source_text = _text("baseline", baseline), _text("source", source)
    named = None if test_set is None else _named_set(test_set)
    if references:
        suitable(metrics, references[0], has_lines=has_lines)
    _check_paper(metrics or (), language, references)
    # Mistakes in the command are reported by now, before waiting for standard input. When that
    # ends, tfm generate has ended and has written its record.
    texts = read(translations, "hypotheses")
    last, label = LastGeneration.load(), "reference"
    if named is not None:
        from tfm.text.sources import Downloads  # here, because it would delay tfm --help

        if not named.pair:
            named = named.between(*last.known_languages(named.name))
        of_set = named.read(named.fetch(Downloads(mirror=mirror)))
        set_source, *references = [text.split("\n")[:-1] for text in of_set]
        label, source_text = f"{named} reference", source_text or set_source
        language = language or named.languages[1]
    references = references or last.known_references()
    chosen = suitable(metrics, references[0], has_lines=has_lines)
    _refuse_same(translations, references)
    if source_text is None and last.is_about(references[0]):
        source_text = last.source_file
    known_source = source_text
    if known_source is None and not last.references:
        known_source = last.source_file
    files = [each for each in (*references, known_source) if isinstance(each, Path)]
    check_streams(files)
    written = {"--per-line": per_line, "--page": page}
    check_outputs([OutputPath(path=p, flag=f) for f, p in written.items() if p], files)
    of_references = read_references(references, label)
    takes_source = source_text and (has_lines or "command" in chosen)
    sources = read(source_text, "source", SOURCE) if takes_source else {}
    baselines = read(compared, "baseline") if compared else {}
    others = {name: lines for path in compare for name, lines in read(path).items()}
    language = language or _language(references[0], last)
    result = score_texts(
        texts,
        of_references,
        metrics=chosen,
        config=config,
        language=language,
        baseline=baselines,
        others=others,
        source=sources,
        translated=next(iter(sources.values()), known_source),  # a pipe is read once
        models=map(Path, last.model),
    )
    if not has_lines:
        return result
    scored = {**texts, **baselines, **others}
    lines = report_lines(
        scored, of_references, sources, config, language, per_line=per_line, page=page
    )
    return replace(result, worst=lines[:worst])


def metrics_and_config(
    names: object, given: Mapping[str, Any], language: str | None = None, *, paper: bool = False
) -> tuple[list[MetricName] | None, ScoreConfig]:
    """Return metrics, None to choose them by the reference, and their settings."""
    asked = argument("metric", one_or_several(names), tuple[str, ...])
    metrics = [*(["bleu", "paper-bleu"] if paper else []), *(asked or DEFAULT_METRICS)]
    if "metric_command" in given:
        metrics.append("command")
    elif "command" in metrics:
        raise UsageError("--metric command needs a program: give --metric-command COMMAND instead")
    config = settings_from(ScoreConfig, given)
    rules = declaration_of(score).parameters["language"].rules
    facts = {
        "metrics": Given("--metric", metrics),
        "language": Given("--language", language, rules, is_default=not language),
    }
    refuse(find_problems(config.given(given) | facts))
    check_metrics(metrics)
    if config.tokenize != "auto":
        load_tokenizer(config.tokenize)
    return metrics if asked or paper or given or language else None, config


def suitable(
    metrics: Sequence[MetricName] | None, reference: Text, *, has_lines: bool = False
) -> Sequence[MetricName]:
    """Return the given metrics or the defaults; UsageError for metrics of text on trees."""
    from tfm.dataset.manifest import GOLD  # here, because it would delay tfm --help

    has_trees = isinstance(reference, Path) and reference.suffix == f".{GOLD}"
    if metrics is None:
        metrics = ("bracket-f1",) if has_trees else DEFAULT_METRICS
    if has_trees and "bracket-f1" not in metrics:
        raise UsageError(f"{reference} holds trees, not text: score with --metric bracket-f1")
    if "bracket-f1" in metrics and has_lines:
        raise UsageError(
            "--worst, --per-line and --page are for text, not for trees: leave them out"
        )
    return metrics


def score_texts(
    hypotheses: Texts,
    references: Texts,
    *,
    metrics: Sequence[MetricName],
    config: ScoreConfig,
    language: str,
    baseline: Texts,
    source: Texts,
    translated: Text | None,
    models: Iterable["Path | ModelFolder"],
    others: Texts = MappingProxyType({}),
) -> ScoreResult:
    """Score a text after a look at all texts, which have names.

    `source` is for a program. The lines that `models` have seen are found by the `translated` text.
    """
    [(name, lines)], [first, *_] = hypotheses.items(), references
    texts = {**hypotheses, **references, **baseline, **others}
    check_lengths({**texts, **source})
    if "bracket-f1" in metrics:
        drop_byte_order_marks(texts)
    else:
        warn_of_byte_order_marks({**texts, **source})
        warn_of_signs(texts, name, first, takes_pieces=config.tokenize == "none")
    warn_of_empty_lines(lines, references, metrics)
    if "bleu" in metrics and config.tokenize == "auto" and bleu_tokenizer(language) == "13a":
        warn_of_missing_spaces(first, references[first])
    scored = partial(corpus_scores, config=config, language=language)
    compared, sources = (next(iter(each.values()), None) for each in (baseline, source))
    every = [lines, *references.values()]
    scores = scored(lines, every[1:], metrics, baseline=compared, sources=sources)
    of_clean = [each for each in metrics if each != "command"]  # which may take hours
    return ScoreResult(
        scores=scores,
        seen=_seen(models, translated, every, partial(scored, metrics=of_clean), compared),
        num_lines=len(lines),
        hypotheses=name,
        references=[*references],
        baseline=next(iter(baseline), None),
    )


def _seen(
    models: Iterable["Path | ModelFolder"],
    source: Text | None,
    texts: Sequence[Sequence[str]],
    score_clean: Callable[..., list[MetricScore]],
    baseline: Sequence[str] | None,
) -> "SeenReport | None":
    """Return a report of the translations and references that models have seen in training.

    Returns None if the source is not of these lines, or nothing was recorded of the models.
    """
    sources: list[str] = []
    with suppress(DataError):  # such as of standard input
        sources = [] if source is None else read_lines(source, "source", part=SOURCE)
    if len(sources) != len(texts[0]):
        return None
    from tfm.features.seen.report import find_seen
    from tfm.folders.model_folder import ModelFolder

    try:
        opened = [ModelFolder.open(each) if isinstance(each, Path) else each for each in models]
        return find_seen(opened, sources, texts, score_clean, baseline)
    except (TfmError, OSError) as error:
        say(f"warning: it is unknown what of the text was seen in training: {error}")
    return None


def _text(
    name: str, text: object, check: Callable[[Path], Path | None] = existing_file
) -> Text | None:
    """Return a file that exists, or the lines of a list."""
    if text is None:
        return None
    if not isinstance(text, str | os.PathLike | Iterable):
        raise UsageError(f"{name} is {shown(text)}, but must be a path, or a list of texts")
    if not isinstance(text, str | os.PathLike):
        return list(argument(name, text, tuple[Line, ...]))
    path: Path = argument(name, text, Path)
    if isinstance(text, str) and path != STANDARD_STREAM and not os.path.exists(text):  # noqa: PTH110
        raise UsageError(f"{name}: {shown(text)} is no file: give a file, or a list of lines")
    check(path)
    return None if path == STANDARD_STREAM else path


def _texts(name: str, texts: object, *, are_lines: bool) -> Sequence[Text]:
    """Return one or more texts; a list of strings is one text if `are_lines`, or else files."""
    several = one_or_several(texts)
    is_list = not isinstance(texts, str) and all(isinstance(each, str) for each in several)
    if are_lines and several and is_list:
        return [several]
    found = (_text(f"{name}[{number}]", each) for number, each in enumerate(several))
    return [each for each in found if each is not None]


def _refuse_same(translations: Text | None, references: Sequence[Text]) -> None:
    """Raise UsageError if a file of translations is a reference, unless it holds both."""
    scored = STDIN_FILE if translations is None else translations
    for path in references:
        if isinstance(path, Path) and isinstance(scored, Path) and is_same_file(scored, path):
            if len(columns_in(path)) > 1:
                continue
            name = translations or STANDARD_INPUT
            raise UsageError(f"{name} is the reference {path} itself: name a file of translations")


def _check_paper(
    metrics: Sequence[MetricName], language: str | None, references: Sequence[Text]
) -> None:
    """Raise UsageError if paper BLEU does not know the language, as far as that is known."""
    if "paper-bleu" in metrics and (language or references):
        from tfm.metrics.paper import check_language

        check_language(language or _language(references[0], LastGeneration.load()))


def _language(reference: Text, last: LastGeneration) -> str:
    """Return the language in which `tfm generate` wrote for a reference, or else its suffix."""
    return last.language if last.is_about(reference) else language_of(reference)


def _named_set(name: str) -> "NamedSet":
    from tfm.dataset.test_sets import NamedSet  # here, because few scores need it

    return NamedSet.parse(name)
