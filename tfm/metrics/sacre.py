"""BLEU, chrF and TER, and the paired bootstrap test, as sacreBLEU computes them (Post 2018)."""

import contextlib
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from sacrebleu.metrics.base import Metric, Score, Signature
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest
from typing_extensions import override

from tfm.config import ScoreConfig
from tfm.errors import UsageError
from tfm.metrics.command import MetricCommand, ScoredText
from tfm.metrics.metric import Comparison, MetricName, MetricScore
from tfm.metrics.tokenizers import bleu_tokenizer, load_tokenizer

SacreName = Literal["bleu", "chrf", "ter", "command"]

_SEED_VARIABLE = "SACREBLEU_SEED"


def sacrebleu_score(
    name: SacreName,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    config: ScoreConfig,
    *,
    baseline: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
) -> MetricScore:
    """Score detokenized text as `tfm.metrics.scores.corpus_scores` does."""
    metric: Metric
    match name:
        case "bleu":
            if config.tokenize != "auto":
                load_tokenizer(config.tokenize)
            metric = BLEU(
                lowercase=config.lowercase,
                tokenize=config.tokenize,
                references=references,
                force=config.tokenize == "none",  # then no warning that the text is tokenized
            )
        case "chrf":
            metric = CHRF(
                lowercase=config.lowercase, word_order=config.chrf_word_order, references=references
            )
        case "ter":
            metric = TER(references=references)
        case "command":
            metric = _CommandMetric(config.metric_command or "", sources, references)
    return score_metric(metric, hypotheses, config, name=name, baseline=baseline)


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return the chrF of each sentence, from 0 to 100, with sacreBLEU's defaults."""
    metric = CHRF()
    return [
        float(metric.sentence_score(hypothesis, [reference]).score)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]


def sentence_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    config: ScoreConfig,
    language: str,
) -> Iterator[dict[str, float]]:
    """Yield the chrF, BLEU and TER of each sentence, as `corpus_scores` prepares text."""
    if config.tokenize == "auto":
        config = replace(config, tokenize=bleu_tokenizer(language))
    metrics = {
        "chrf": CHRF(lowercase=config.lowercase, word_order=config.chrf_word_order),
        "bleu": BLEU(config.lowercase, tokenize=config.tokenize, effective_order=True),
        "ter": TER(),
    }
    for text, *others in zip(hypotheses, *references, strict=True):
        text, *others = (unicodedata.normalize("NFC", each) for each in (text, *others))
        yield {name: metric.sentence_score(text, others).score for name, metric in metrics.items()}


class _CommandSignature(Signature):
    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self.info |= {"source": args["has_sources"], "command": args["command"]}


class _CommandMetric(Metric):
    """The mean of the numbers that a program prints, which sacreBLEU can resample."""

    _SIGNATURE_TYPE = _CommandSignature

    def __init__(
        self, command: str, sources: Sequence[str] | None, references: Sequence[Sequence[str]]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if len(references) != 1:
            raise UsageError("a metric command takes one reference: leave out the others")
        [self._references] = references
        self._sources = sources or [""] * len(self._references)
        self.command, self.has_sources, self.num_refs = command, sources is not None, 1

    @override
    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: object) -> Any:
        texts = [*map(ScoredText, self._sources, hypotheses, self._references)]
        with MetricCommand(self.command) as command:
            return [[value, 1.0] for value in command.scores(texts, is_last=True)]

    @override
    def _aggregate_and_compute(self, stats: list[list[float]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    @override
    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        total, number = stats
        return Score(self.command.split()[0], float(total / number))

    @override
    def _preprocess_segment(self, sent: str) -> str:
        return sent

    @override
    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {}

    @override
    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[Any]:
        raise NotImplementedError  # the program scores all segments together


def score_metric(
    metric: Metric,
    hypotheses: Sequence[str],
    config: ScoreConfig,
    *,
    name: MetricName,
    baseline: Sequence[str] | None,
) -> MetricScore:
    """Score translations with a sacreBLEU metric that was constructed with the references."""
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
    # The results are untyped, and some of their numbers are NumPy's.
    of_baseline, result = cast("list[Any]", results[label])
    # For equal scores, the p-value means nothing: sacreBLEU counts the samples whose difference
    # exceeds the mean difference, and identical outputs would be significantly different.
    is_equal = result.score == of_baseline.score
    return MetricScore(
        name=name,
        label=label,
        value=float(result.score),
        signature=str(test_signature),
        comparison=Comparison(
            baseline=float(of_baseline.score),
            p_value=None if is_equal else float(result.p_value),
            mean=float(result.mean),
            interval=float(result.ci),
        ),
    )


@contextlib.contextmanager
def _bootstrap_seed(seed: int) -> Iterator[None]:
    """Set the environment variable with the seed of sacreBLEU's resampling."""
    before = os.environ.get(_SEED_VARIABLE)
    os.environ[_SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        del os.environ[_SEED_VARIABLE]
        if before is not None:
            os.environ[_SEED_VARIABLE] = before
