"""Scores of translations, for validation and `tfm score`."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from tfm.config import ScoreConfig
from tfm.errors import DataError, UsageError
from tfm.metrics.metric import Comparison, MetricName, MetricScore
from tfm.metrics.tokenizers import bleu_tokenizer


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[MetricName],
    config: ScoreConfig,
    *,
    baseline: Sequence[str] | None = None,
    language: str | None = None,
    sources: Sequence[str] | None = None,
) -> list[MetricScore]:
    """Score detokenized translations, or trees for "bracket-f1", one per segment.

    Unicode is composed (NFC) in all of them, so that both forms of a letter are equal. There may be
    several lists of references. With a baseline (other translations of the same segments), the
    difference to it is tested. `language` is the language of the translations, which chooses the
    tokenizer of BLEU and of "paper-bleu". `sources` are for the metric "command". Duplicate metrics
    are computed once.
    """
    hypotheses, references = _composed(hypotheses), [*map(_composed, references)]
    texts = {"hypotheses": hypotheses}
    texts |= {f"reference {number}": lines for number, lines in enumerate(references, start=1)}
    if baseline is not None:
        texts["baseline"] = baseline = _composed(baseline)
    if sources is not None:
        texts["sources"] = sources
    check_metrics(metrics)
    check_lengths(texts)
    config = replace(config, tokenize=bleu_tokenizer(language or "", config.tokenize))

    def score(name: MetricName) -> MetricScore:
        match name:
            case "bleu" | "chrf" | "ter" | "command":
                # Imported late: tfm generate imports this module, but needs no sacreBLEU.
                from tfm.metrics.sacre import sacrebleu_score

                return sacrebleu_score(
                    name, hypotheses, references, config, baseline=baseline, sources=sources
                )
            case "exact":
                return _exact_score(hypotheses, references, config, baseline=baseline)
            case "bracket-f1":
                from tfm.metrics.brackets import bracket_f1

                return bracket_f1(hypotheses, references, baseline=baseline)
            case "paper-bleu":
                # Imported late: it takes longer than computing most scores.
                from tfm.metrics.paper import paper_bleu

                return paper_bleu(
                    hypotheses, references, config, language=language or "", baseline=baseline
                )

    return [score(name) for name in dict.fromkeys(metrics)]


def _composed(lines: Sequence[str]) -> Sequence[str]:
    return [unicodedata.normalize("NFC", line) for line in lines]


def check_metrics(names: Sequence[str]) -> None:
    """Raise UsageError unless all metrics exist and apply to the same kind of text."""
    for name in names:
        if name not in get_args(MetricName):
            known = ", ".join(get_args(MetricName))
            raise UsageError(f'there is no metric "{name}": choose among {known}')
    if "bracket-f1" in names and set(names) != {"bracket-f1"}:
        raise UsageError(
            "bracket-f1 scores trees, but other metrics and --paper score text: use it alone"
        )


def check_lengths(texts: Mapping[str, Sequence[str]]) -> None:
    """Raise DataError if the texts are empty or differ in their numbers of lines."""
    (first, lines), *other_texts = texts.items()
    if not lines:
        raise DataError(f"{first} has no lines to score")
    for name, other_lines in other_texts:
        if len(other_lines) != len(lines):
            message = (
                f"{first} and {name} have {len(lines):,} and {len(other_lines):,} lines: "
                "both need one for each segment"
            )
            if other_lines and len(lines) % len(other_lines) == 0:
                n_best = len(lines) // len(other_lines)
                message += f" (tfm generate --n-best {n_best} prints {n_best})"
            raise DataError(message)


def _exact_score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    config: ScoreConfig,
    *,
    baseline: Sequence[str] | None,
) -> MetricScore:
    """Compute the percentage of lines that equal a reference, except for outer whitespace."""

    def normalize(text: str) -> str:
        return text.strip().lower() if config.lowercase else text.strip()

    def percent_exact(lines: Sequence[str]) -> float:
        matches = sum(
            normalize(line) in map(normalize, candidates)
            for line, *candidates in zip(lines, *references, strict=True)
        )
        return 100 * matches / len(lines)

    case = "lc" if config.lowercase else "mixed"
    return MetricScore(
        name="exact",
        label="exact",
        value=percent_exact(hypotheses),
        signature=f"nrefs:{len(references)}|case:{case}",
        comparison=None if baseline is None else Comparison(baseline=percent_exact(baseline)),
    )
