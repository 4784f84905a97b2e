"""BLEU, chrF and TER, and the paired bootstrap test, as sacreBLEU computes them (Post 2018)."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from tfm.config import ScoreConfig
from tfm.metrics.metric import Comparison, MetricName, MetricScore

SacreName = Literal["bleu", "chrf", "ter"]

_SEED_VARIABLE = "SACREBLEU_SEED"


def sacrebleu_score(
    name: SacreName,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    config: ScoreConfig,
    *,
    baseline: Sequence[str] | None = None,
) -> MetricScore:
    """Score detokenized text; see `tfm.metrics.scores.corpus_scores`."""
    metric: Metric
    match name:
        case "bleu":
            metric = BLEU(
                lowercase=config.lowercase, tokenize=config.tokenize, references=references
            )
        case "chrf":
            metric = CHRF(
                lowercase=config.lowercase,
                word_order=config.chrf_word_order,
                references=references,
            )
        case "ter":
            metric = TER(references=references)
    return measured(metric, hypotheses, config, name=name, baseline=baseline)


def measured(
    metric: Metric,
    hypotheses: Sequence[str],
    config: ScoreConfig,
    *,
    name: MetricName,
    baseline: Sequence[str] | None,
) -> MetricScore:
    """Score translations by a metric of sacreBLEU that has the references in it."""
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
