"""tfm score: translations and references → metrics with their signatures."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from tfm.config import ScoreConfig
from tfm.errors import DataError, UsageError
from tfm.runtime.files import read_json

MetricName = Literal["bleu", "chrf", "ter", "exact"]

DEFAULT_METRICS: tuple[MetricName, ...] = ("bleu", "chrf")
LAST_GENERATION = "last-generation.json"
LAST_GENERATION_FORMAT = 1

_STDIN_NAME = "standard input"
_SEED_VARIABLE = "SACREBLEU_SEED"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A score beside that of a baseline.

    Attributes:
        baseline: The baseline's score.
        p_value: How often chance alone makes such a difference, by paired bootstrap resampling;
            None for a metric without that test.
        mean: Mean score over the bootstrap samples.
        interval: Half the width of the interval that holds 95 % of them.
    """

    baseline: float
    p_value: float | None = None
    mean: float | None = None
    interval: float | None = None


@dataclass(frozen=True, kw_only=True)
class MetricScore:
    """A score that others can compute again.

    Attributes:
        name: What was asked for: "bleu", "chrf", "ter" or "exact".
        label: The name to print: "BLEU", "chrF2", "chrF2++", "TER", "exact".
        value: The score, in points or percent, from 0 to 100; TER may be more, and less is better.
        signature: All that decides the score, as sacreBLEU writes it.
        comparison: The baseline's, if there is one.
    """

    name: MetricName
    label: str
    value: float
    signature: str
    comparison: Comparison | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """The scores of one set of translations.

    Attributes:
        scores: One for each metric, in the order asked for.
        num_lines: Lines scored.
        hypotheses: What was scored: a file, or "standard input".
        references: The files compared with.
        baseline: The file of the other translations, if any.
    """

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
    metrics: Sequence[MetricName] = DEFAULT_METRICS,
    config: ScoreConfig,
    baseline: Path | None = None,
    runs_dir: Path,
) -> ScoreResult:
    """Score a file of translations, one a line.

    Args:
        hypotheses: The translations; None reads standard input.
        references: One or more files of references; if none, the reference of what `tfm generate`
            translated last.
        metrics: What to compute.
        config: How to compute it.
        baseline: Other translations of the same text, to test the difference.
        runs_dir: Where `tfm generate` notes what it translates.

    Raises:
        DataError: A file is missing, empty, not UTF-8, or not of the length of the others.
        UsageError: No reference is given and none is known.
    """
    for name in metrics:  # before anything is waited for
        if name not in get_args(MetricName):
            raise _unknown(name)
    # Standard input ends when generate does, so its note is there by then.
    hypothesis_lines = read_hypotheses(hypotheses)
    paths = list(references) or [default_reference(runs_dir)]
    texts = {str(hypotheses or _STDIN_NAME): hypothesis_lines}
    texts |= {str(path): read_lines(path) for path in paths}
    if baseline is not None:
        texts[str(baseline)] = read_lines(baseline)
    _check_lengths(texts)
    scores = corpus_scores(
        hypothesis_lines,
        [texts[str(path)] for path in paths],
        metrics,
        config,
        baseline=texts[str(baseline)] if baseline is not None else None,
    )
    return ScoreResult(
        scores=scores,
        num_lines=len(hypothesis_lines),
        hypotheses=str(hypotheses or _STDIN_NAME),
        references=[str(path) for path in paths],
        baseline=str(baseline) if baseline is not None else None,
    )


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[MetricName],
    config: ScoreConfig,
    *,
    baseline: Sequence[str] | None = None,
) -> list[MetricScore]:
    """Score translations.

    Args:
        hypotheses: Detokenised text, one for each segment.
        references: One or more lists of detokenised text, each as long as the hypotheses.
        metrics: What to compute; a metric named twice is computed once.
        config: How to compute it.
        baseline: Other translations of the same segments, to test the difference.

    Raises:
        DataError: The lists are empty or not of one length.
    """
    texts = {"hypotheses": hypotheses}
    texts |= {f"reference {number}": lines for number, lines in enumerate(references, start=1)}
    if baseline is not None:
        texts["baseline"] = baseline
    _check_lengths(texts)
    return [
        _exact_score(hypotheses, references, config, baseline)
        if name == "exact"
        else _sacrebleu_score(name, hypotheses, references, config, baseline)
        for name in dict.fromkeys(metrics)
    ]


def read_hypotheses(path: Path | None) -> list[str]:
    """Read translations, one a line, from a file or else from standard input to its end.

    Raises:
        DataError: There are none, or they are not UTF-8.
        UsageError: Standard input is a terminal.
    """
    if path is not None:
        return read_lines(path)
    if sys.stdin.isatty():
        raise UsageError("no translations to score: pipe them in, or name a file (--hypotheses)")
    data = sys.stdin.buffer.read()
    if not data:
        raise DataError(
            f"{_STDIN_NAME} is empty: what should have written the translations wrote none"
        )
    return _lines(data, _STDIN_NAME)


def read_lines(path: Path) -> list[str]:
    """Read a text file whose lines end with LF or CR LF, and with nothing else.

    Raises:
        DataError: It is missing, empty or not UTF-8.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: check its name") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its name") from error
    if not data:
        raise DataError(f"{path} is empty: there is nothing to score")
    return _lines(data, str(path))


def default_reference(runs_dir: Path) -> Path:
    """The reference of what `tfm generate` translated last.

    Args:
        runs_dir: Where it noted that.

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
    if note.get("format") != LAST_GENERATION_FORMAT or "reference" not in note:
        raise DataError(
            f"{path} is not of format {LAST_GENERATION_FORMAT}, which this tfm reads: "
            "generate again, or pass --reference"
        )
    if note["reference"] is None:
        raise UsageError(
            f"no reference given, and tfm generate read {note.get('source')}, whose reference it "
            "does not know: pass --reference"
        )
    return Path(note["reference"])


def _lines(data: bytes, name: str) -> list[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{name}, line {number}, is not UTF-8 text: convert the file to UTF-8"
        ) from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _check_lengths(texts: Mapping[str, Sequence[str]]) -> None:
    """Raise DataError unless all texts have as many lines as the first, and any at all."""
    (first, lines), *others = texts.items()
    if not lines:
        raise DataError(f"{first} has no lines: there is nothing to score")
    for name, other in others:
        if len(other) != len(lines):
            raise DataError(
                f"{first} and {name} have {len(lines):,} and {len(other):,} lines: "
                "both need one for each segment"
            )


def _sacrebleu_score(
    name: MetricName,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    config: ScoreConfig,
    baseline: Sequence[str] | None,
) -> MetricScore:
    metric = _metric(name, references, config)
    if baseline is None:
        result = metric.corpus_score(hypotheses, None)
        signature = str(metric.get_signature())
        return MetricScore(name=name, label=result.name, value=result.score, signature=signature)
    with _bootstrap_seed(config.bootstrap_seed):
        signatures, results = PairedTest(
            [("baseline", baseline), ("hypotheses", hypotheses)],
            {name: metric},
            references=None,
            test_type="bs",
            n_samples=config.bootstrap_samples,
        )()
    [(label, test_signature)] = signatures.items()
    # sacreBLEU types these loosely; some of their numbers are NumPy's.
    before, after = cast("list[Any]", results[label])
    return MetricScore(
        name=name,
        label=label,
        value=float(after.score),
        signature=str(test_signature),
        comparison=Comparison(
            baseline=float(before.score),
            p_value=float(after.p_value),
            mean=float(after.mean),
            interval=float(after.ci),
        ),
    )


def _metric(name: MetricName, references: Sequence[Sequence[str]], config: ScoreConfig) -> Metric:
    """The metric as sacreBLEU computes it, with the references in it."""
    match name:
        case "bleu":
            return BLEU(lowercase=config.lowercase, tokenize=config.tokenize, references=references)
        case "chrf":
            return CHRF(
                lowercase=config.lowercase,
                word_order=config.chrf_word_order,
                references=references,
            )
        case "ter":
            return TER(references=references)
        case _:
            raise _unknown(name)


def _unknown(name: str) -> UsageError:
    return UsageError(
        f'there is no metric "{name}": choose among {", ".join(get_args(MetricName))}'
    )


def _exact_score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    config: ScoreConfig,
    baseline: Sequence[str] | None,
) -> MetricScore:
    """The share of lines that equal a reference, but for space at their ends."""
    case = "lc" if config.lowercase else "mixed"
    return MetricScore(
        name="exact",
        label="exact",
        value=_percent_exact(hypotheses, references, config),
        signature=f"nrefs:{len(references)}|case:{case}",
        comparison=Comparison(baseline=_percent_exact(baseline, references, config))
        if baseline is not None
        else None,
    )


def _percent_exact(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], config: ScoreConfig
) -> float:
    """The share of lines that equal a reference, but for space at their ends, in percent."""

    def normalized(text: str) -> str:
        return text.strip().lower() if config.lowercase else text.strip()

    matches = sum(
        normalized(hypothesis) in map(normalized, candidates)
        for hypothesis, *candidates in zip(hypotheses, *references, strict=True)
    )
    return 100 * matches / len(hypotheses)


@contextlib.contextmanager
def _bootstrap_seed(seed: int) -> Iterator[None]:
    """Set the seed of sacreBLEU's resampling, which it reads from the environment only."""
    before = os.environ.get(_SEED_VARIABLE)
    os.environ[_SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEED_VARIABLE]
        else:
            os.environ[_SEED_VARIABLE] = before
