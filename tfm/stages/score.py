"""tfm score: files of translations and references → scores with their signatures."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfm.config import ScoreConfig
from tfm.data.manifest import GOLD
from tfm.data.text import decoded_lines
from tfm.errors import DataError, UsageError
from tfm.metrics.metric import MetricName, MetricScore
from tfm.metrics.scores import check_lengths, check_metrics, corpus_scores
from tfm.storage.files import read_json

DEFAULT_METRICS: tuple[MetricName, ...] = ("bleu", "chrf")
LAST_GENERATION = "last-generation.json"
LAST_GENERATION_FORMAT = 1

_STDIN_NAME = "standard input"


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """The scores of one set of translations, in the order asked for, and the files compared."""

    scores: list[MetricScore]
    num_lines: int
    hypotheses: str
    references: list[str]
    baseline: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def score(
    hypotheses: Path | None,
    references: Sequence[Path],
    *,
    metrics: Sequence[MetricName] | None = None,
    config: ScoreConfig,
    baseline: Path | None = None,
    language: str | None = None,
    runs_dir: Path,
) -> ScoreResult:
    """Score a file of translations, one a line.

    Args:
        hypotheses: The translations; None reads standard input.
        references: One or more files of references; if none, the reference of what `tfm generate`
            translated last.
        metrics: What to compute; if not given, DEFAULT_METRICS for text and bracket F1 for trees.
        config: How to compute it.
        baseline: Other translations of the same text, to test the difference.
        language: Target language, which "paper-bleu" needs; if not given, the suffix of the first
            reference, as in a dataset.
        runs_dir: Where `tfm generate` notes what it translates.

    Raises:
        DataError: A file is missing, empty, not UTF-8, or not of the length of the others.
        UsageError: No reference is given and none is known, or a metric cannot be computed.
    """
    check_metrics(metrics or ())
    if references:
        _suitable(metrics, references[0])
    if metrics and "paper-bleu" in metrics and (language or references):
        from tfm.metrics.paper import check_language

        check_language(language or _language_of(references[0]))
    # What is wrong with the command is said by now, before anything is waited for. Standard input
    # ends when generate does, so its note is there by then.
    name = str(hypotheses or _STDIN_NAME)
    hypothesis_lines = read_hypotheses(hypotheses)
    paths = list(references) or [default_reference(runs_dir)]
    texts = {name: hypothesis_lines} | {str(path): read_lines(path) for path in paths}
    if baseline is not None:
        texts[str(baseline)] = read_lines(baseline)
    check_lengths(texts)
    scores = corpus_scores(
        hypothesis_lines,
        [texts[str(path)] for path in paths],
        _suitable(metrics, paths[0]),
        config,
        baseline=None if baseline is None else texts[str(baseline)],
        language=language or _language_of(paths[0]),
    )
    return ScoreResult(
        scores=scores,
        num_lines=len(hypothesis_lines),
        hypotheses=name,
        references=[str(path) for path in paths],
        baseline=None if baseline is None else str(baseline),
    )


def read_hypotheses(path: Path | None) -> list[str]:
    """Read translations, one a line, from a file or else from standard input to its end."""
    if path is not None:
        return read_lines(path)
    if sys.stdin.isatty():
        raise UsageError("no translations to score: pipe them in, or name a file (--hypotheses)")
    lines = list(decoded_lines(sys.stdin.buffer.readline, _STDIN_NAME))
    if not lines:
        raise DataError(
            f"{_STDIN_NAME} is empty: what should have written the translations wrote none"
        )
    return lines


def read_lines(path: Path) -> list[str]:
    """Read a text file whose lines end with LF or CR LF, and with nothing else.

    Raises:
        DataError: It is missing, empty or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            lines = list(decoded_lines(file.readline, str(path)))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: check its name") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its name") from error
    except ValueError as error:  # no name of a file has a zero byte or half a surrogate pair
        raise DataError(f"{str(path)!r} is no name that a file can have: check it") from error
    if not lines:
        raise DataError(f"{path} is empty: there is nothing to score")
    return lines


def default_reference(runs_dir: Path) -> Path:
    """The reference of what `tfm generate` translated last, as it noted in its runs folder.

    Raises:
        DataError: The note is damaged.
        UsageError: There is no note, or it says that no reference is known.
    """
    path = runs_dir / LAST_GENERATION
    if not path.is_file():
        raise UsageError(
            f"no reference given, and {path} does not say what was translated: pass --reference"
        )
    note = read_json(path)
    reference, source = note.get("reference", 0), note.get("source")
    if (
        note.get("format") != LAST_GENERATION_FORMAT
        or not isinstance(source, str)
        or not isinstance(reference, str | None)
    ):
        raise DataError(
            f"{path} is not of format {LAST_GENERATION_FORMAT}, which this tfm reads: "
            "generate again, or pass --reference"
        )
    if reference is None:
        raise UsageError(
            f"no reference given, and tfm generate read {source}, whose reference it does not "
            "know: pass --reference"
        )
    return Path(reference)


def _suitable(metrics: Sequence[MetricName] | None, reference: Path) -> Sequence[MetricName]:
    """The metrics, or those that suit the reference; a dataset's trees are not scored as text."""
    has_trees = reference.suffix == f".{GOLD}"
    if metrics is None:
        return ("bracket-f1",) if has_trees else DEFAULT_METRICS
    if has_trees and "bracket-f1" not in metrics:
        raise UsageError(f"{reference} holds trees, not text: score with --metric bracket-f1")
    return metrics


def _language_of(reference: Path) -> str:
    return reference.suffix.removeprefix(".").lower()
