"""tfm score: translations and references → scores with their signatures."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from tfm.commands.declaration import Flag, Line, NewFile, argument, command, one_or_several
from tfm.config import ScoreConfig, settings_from
from tfm.config.values import shown
from tfm.disk.paths import (
    RUNS_ROOT,
    STANDARD_STREAM,
    existing_file,
    existing_file_or_stream,
)
from tfm.errors import UsageError
from tfm.metrics.metric import MetricName

if TYPE_CHECKING:
    from tfm.stages.score import ScoreResult

Text = str | os.PathLike[str] | Iterable[str]  # a file, or its lines

_BOOTSTRAPPED: tuple[MetricName, ...] = ("bleu", "paper-bleu", "chrf", "ter", "command")
# The metrics that each setting affects.
_AFFECTED_METRICS: Mapping[str, tuple[MetricName, ...]] = {
    "language": ("bleu", "paper-bleu"),
    "lowercase": ("bleu", "paper-bleu", "chrf", "exact"),
    "tokenize": ("bleu",),
    "normalize_punctuation": ("paper-bleu",),
    "split_compounds": ("paper-bleu",),
    "chrf_word_order": ("chrf",),
    "metric_command": ("command",),
    "bootstrap_samples": _BOOTSTRAPPED,
    "bootstrap_seed": _BOOTSTRAPPED,
}


@command(ScoreConfig)
def score(
    hypotheses: Annotated[Text | None, Flag(kind=Path | None)] = None,
    reference: Annotated[Text | Sequence[Text] | None, Flag(kind=tuple[Path, ...])] = None,
    *,
    test_set: Annotated[str | None, Flag("NAME[:SRC-TGT]")] = None,
    mirror: str | None = None,
    metric: Annotated[
        MetricName | Sequence[MetricName] | None,
        Flag(f"[{'|'.join(get_args(MetricName))}]", kind=tuple[str, ...]),
    ] = None,
    paper: bool = False,
    language: Annotated[str | None, Flag("CODE")] = None,
    baseline: Annotated[Text | None, Flag(kind=Path | None)] = None,
    source: Annotated[Text | None, Flag(kind=Path | None)] = None,
    worst: Annotated[int, Flag("N")] = 0,
    per_line: NewFile = None,
    page: NewFile = None,
    compare: Annotated[tuple[Path, ...], existing_file, Flag("FILE")] = (),
    **settings: Any,
) -> "ScoreResult":
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
        In Python, a list of lines may take the place of each file, and a list of lists that of
        several references. If the translations are a file, a list of strings names references.
    """
    given = settings["score"]
    metrics = requested_metrics(
        argument("metric", one_or_several(metric), tuple[str, ...]),
        [*given, *(["language"] if language else [])],
        paper=paper,
        has_baseline=baseline is not None,
    )
    if worst < 0:
        raise UsageError(f"--worst is {worst}, but must be at least 0")
    has_lines = worst > 0 or per_line is not None or page is not None
    if source is not None and "command" not in (metrics or ()) and not has_lines:
        raise UsageError(
            "--source only affects the scores of a program and of lines: add --metric-command, "
            "--worst, --per-line or --page"
        )
    if compare and per_line is None and page is None:
        raise UsageError("--compare has no effect without --per-line or --page")
    if test_set is not None and one_or_several(reference):
        raise UsageError("--test-set has its references: leave out --reference")
    if test_set is None and mirror is not None:
        raise UsageError("--mirror has no effect without --test-set")
    is_file = hypotheses is None or isinstance(hypotheses, str | os.PathLike)
    text = None if hypotheses is None else _text("hypotheses", hypotheses, existing_file_or_stream)
    references = _texts("reference", reference, are_lines=not is_file)
    lines = None
    if has_lines:
        from tfm.stages.score_lines import LineOutputs

        lines = LineOutputs(per_line=per_line, page=page, worst=worst, others=compare)
    from tfm.stages import score as stage

    return stage.score(
        None if text == STANDARD_STREAM else text,
        references,
        metrics=metrics,
        config=settings_from(ScoreConfig, given),
        baseline=None if baseline is None else _text("baseline", baseline),
        language=language,
        source=None if source is None else _text("source", source),
        test_set=test_set,
        mirror=mirror,
        lines=lines,
        runs_dir=RUNS_ROOT,
    )


def requested_metrics(
    names: Sequence[MetricName], settings: Collection[str], *, paper: bool, has_baseline: bool
) -> list[MetricName] | None:
    """Return the metrics that a user asks for; None selects metrics that suit the reference.

    Raises:
        UsageError: A setting has no effect on the metrics.
    """
    if not has_baseline and any(name.startswith("bootstrap") for name in settings):
        raise UsageError("the paired bootstrap needs a --baseline to compare with")
    metrics: list[MetricName] = list(names) or ["bleu", "chrf"]
    if paper:
        metrics = ["bleu", "paper-bleu", *metrics]
    if "metric_command" in settings:
        metrics.append("command")
    elif "command" in metrics:
        raise UsageError("--metric command needs a program: give --metric-command COMMAND instead")
    for name in settings:
        affected = _AFFECTED_METRICS[name]
        if not set(affected) & set(metrics):
            raise UsageError(
                f"--{name.replace('_', '-')} only affects {', '.join(affected)}: "
                f"add --metric {affected[0]}"
            )
    return metrics if names or paper or settings else None


def _text(
    name: str, text: object, check: Callable[[Path], Path | None] = existing_file
) -> Path | list[str]:
    """Return a file that exists, or the lines of a list."""
    if not isinstance(text, str | os.PathLike | Iterable):
        raise UsageError(f"{name} is {shown(text)}, but must be a path, or a list of texts")
    if not isinstance(text, str | os.PathLike):
        return list(argument(name, text, tuple[Line, ...]))
    path: Path = argument(name, text, Path)
    check(path)
    return path


def _texts(name: str, texts: object, *, are_lines: bool) -> list[Path | list[str]]:
    """Return one or more texts; a list of strings is one text if `are_lines`, or else files."""
    several = one_or_several(texts)
    is_list = not isinstance(texts, str) and all(isinstance(each, str) for each in several)
    if are_lines and several and is_list:
        return [several]
    return [_text(f"{name}[{number}]", each) for number, each in enumerate(several)]
