"""BLEU, chrF and TER, and the paired bootstrap test, as sacreBLEU computes them (Post 2018)."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from sacrebleu import __version__ as VERSION
from sacrebleu.metrics.base import Metric, Score
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import estimate_ci

from tfm.config import ScoreConfig
from tfm.errors import UsageError
from tfm.metrics.command import MetricCommand, ScoredText
from tfm.metrics.metric import Comparison, MetricName, MetricScore
from tfm.metrics.tokenizers import bleu_tokenizer, load_tokenizer

SacreName = Literal["bleu", "chrf", "ter", "command"]

_MAX_RESAMPLED_LINES = 100_000  # more take minutes; a baseline is tested in any case


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
    metric: AnyMetric
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


def sentence_chrf(hypotheses: Sequence[str], *references: Sequence[str]) -> list[float]:
    """Return the chrF of each sentence, from 0 to 100, with sacreBLEU's defaults."""
    metric = CHRF()
    return [
        float(metric.sentence_score(hypothesis, others).score)
        for hypothesis, *others in zip(hypotheses, *references, strict=True)
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


class _CommandMetric:
    """The mean of the numbers that a program prints, with the methods of sacreBLEU's metrics."""

    n_bootstrap, seed = 0, ""

    def __init__(
        self, command: str, sources: Sequence[str] | None, references: Sequence[Sequence[str]]
    ) -> None:
        if len(references) != 1:
            raise UsageError("a metric command takes one reference: leave out the others")
        [self._references] = references
        self._sources = sources or [""] * len(self._references)
        self.command, self.has_sources = command, sources is not None

    def get_signature(self) -> str:
        test = f"|bs:{self.n_bootstrap}|seed:{self.seed}" if self.seed else ""
        source = "yes" if self.has_sources else "no"
        return f"nrefs:1{test}|source:{source}|command:{self.command}|version:{VERSION}"

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], _: None) -> list[list[float]]:
        texts = [*map(ScoredText, self._sources, hypotheses, self._references)]
        with MetricCommand(self.command) as command:
            return [[value, 1.0] for value in command.scores(texts, is_last=True)]

    def _aggregate_and_compute(self, stats: list[list[float]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        total, number = stats
        return Score(self.command.split()[0], float(total / number))


AnyMetric = Metric | _CommandMetric


def score_metric(
    metric: AnyMetric,
    hypotheses: Sequence[str],
    config: ScoreConfig,
    *,
    name: MetricName,
    baseline: Sequence[str] | None,
) -> MetricScore:
    """Score translations with a sacreBLEU metric that was constructed with the references.

    Intervals and p-values equal those of sacreBLEU, which has all samples in memory.
    """
    texts = [hypotheses] if baseline is None else [hypotheses, baseline]
    counts = [metric._extract_corpus_statistics(text, None) for text in texts]
    result, *others = [metric._aggregate_and_compute(count) for count in counts]
    score = MetricScore(
        name=name,
        label=result.name,
        value=float(result.score),
        signature=str(metric.get_signature()),
    )
    if len(hypotheses) > _MAX_RESAMPLED_LINES and baseline is None:
        return score
    samples = _bootstrap(metric, counts, config)
    mean, interval = map(float, estimate_ci(samples[:, 0]))
    score = replace(score, mean=mean, interval=interval)
    if baseline is None:
        return score
    metric.n_bootstrap, metric.seed = config.bootstrap_samples, str(config.bootstrap_seed)
    other = float(others[0].score)
    differences = np.abs(samples[:, 0] - samples[:, 1])
    num_larger = (differences - differences.mean() > abs(score.value - other)).sum()
    # For equal scores, the p-value means nothing: sacreBLEU counts the samples whose difference
    # exceeds the mean difference, and identical outputs would be significantly different.
    p_value = None if score.value == other else (int(num_larger) + 1) / (len(samples) + 1)
    compared = Comparison(baseline=other, p_value=p_value)
    return replace(score, signature=str(metric.get_signature()), comparison=compared)


def _bootstrap(metric: AnyMetric, counts: Sequence[Any], config: ScoreConfig) -> Any:
    """Return [S, T] the scores of T texts in S samples of their lines."""
    generator = np.random.default_rng(config.bootstrap_seed)
    texts, size = [np.array(count, dtype=np.float32) for count in counts], len(counts[0])
    drawn = (generator.choice(size, size) for _ in range(config.bootstrap_samples))
    score = metric._compute_score_from_stats
    return np.array([[score(text[lines].sum(0)).score for text in texts] for lines in drawn])
