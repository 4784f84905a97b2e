"""Minimum Bayes risk decoding: the candidate that is most similar to all candidates.

The scores equal sacreBLEU's `sentence_score`, which would extract the n-grams of both candidates
for each score. Here, the n-grams of a candidate are extracted once.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tfm.config import BleuTokenizer
from tfm.metrics.command import MetricCommand, ScoredText
from tfm.metrics.tokenizers import load_tokenizer
from tfm.translation.steps import Output, Segment, Step

Utility = Literal["chrf", "bleu"] | MetricCommand
Counts = Mapping[Hashable, int]
Matrix = npt.NDArray[np.float64]

_BLOCK_ELEMENTS = 1 << 22  # elements of the matrix of texts and n-grams that is in memory


def pairwise_utilities(
    texts: Sequence[str], utility: Utility, *, tokenizer: BleuTokenizer = "13a", source: str = ""
) -> Matrix:
    """Return the scores [N, N] of each text (row) with each as the reference.

    They are from 0 to 100, or the numbers of a program, which also gets the source.
    """
    match utility:
        case "chrf":
            return _pairwise_chrf(texts)
        case "bleu":
            return _pairwise_bleu(texts, tokenizer)
        case command:
            pairs = [ScoredText(source, one, other) for one, other in product(texts, repeat=2)]
            return np.array(command.scores(pairs)).reshape(len(texts), len(texts))


def _pairwise_chrf(texts: Sequence[str]) -> Matrix:
    """Return chrF2 (Popović 2015) [N, N] of texts, with sacreBLEU's defaults."""
    from sacrebleu.metrics.chrf import CHRF  # here, because loading it takes time
    from sacrebleu.metrics.helpers import extract_all_char_ngrams

    by_order = zip(*(extract_all_char_ngrams(text, CHRF.CHAR_ORDER) for text in texts), strict=True)
    precision, recall, num_orders = np.zeros((3, len(texts), len(texts)))
    for counts in by_order:
        matches = _common_counts(counts)
        sizes = np.diag(matches)
        # An order without n-grams on one side, because the text is too short, does not count.
        effective = (sizes[:, None] > 0) & (sizes > 0)
        num_orders += effective
        precision += np.divide(matches, sizes[:, None], where=effective, out=np.zeros_like(matches))
        recall += np.divide(matches, sizes, where=effective, out=np.zeros_like(matches))
    precision, recall = (x / np.maximum(num_orders, 1) for x in (precision, recall))
    factor = CHRF.BETA**2
    total = factor * precision + recall
    return 100 * (1 + factor) * precision * recall / np.where(total > 0, total, 1)


def _pairwise_bleu(texts: Sequence[str], tokenizer: BleuTokenizer) -> Matrix:
    """Return sentence BLEU [N, N] of texts, with sacreBLEU's default, exponential smoothing."""
    from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER
    from sacrebleu.metrics.helpers import extract_all_word_ngrams

    tokenize = load_tokenizer(tokenizer)
    max_order = MAX_NGRAM_ORDER
    counted = [extract_all_word_ngrams(tokenize(text), 1, max_order) for text in texts]
    lengths = [length for _, length in counted]
    matches = [
        _common_counts(
            [{n: c for n, c in counts.items() if len(n) == order} for counts, _ in counted]
        )
        for order in range(1, max_order + 1)
    ]
    correct = np.stack(matches, axis=-1).astype(int)
    utilities = np.empty((len(texts), len(texts)))
    for hypothesis, reference in np.ndindex(utilities.shape):
        utilities[hypothesis, reference] = BLEU.compute_bleu(
            correct=correct[hypothesis, reference].tolist(),
            total=correct[hypothesis, hypothesis].tolist(),
            sys_len=lengths[hypothesis],
            ref_len=lengths[reference],
            smooth_method="exp",
            effective_order=True,
        ).score
    return utilities


def _common_counts(counted: Sequence[Counts]) -> Matrix:
    """Return the numbers [N, N] of n-grams that each two texts have in common.

    The k-th occurrence of an n-gram in a text is the element (n-gram, k) of a set. The sizes of the
    intersections of such sets are a product of matrices of zeros and ones.
    """
    columns: dict[Hashable, int] = {}
    rows_of: list[list[int]] = []
    for row, counts in enumerate(counted):
        for ngram, count in Counter(counts).items():
            for occurrence in range(count):
                column = columns.setdefault((ngram, occurrence), len(columns))
                if column == len(rows_of):
                    rows_of.append([])
                rows_of[column].append(row)
    common = np.zeros((len(counted), len(counted)))
    size = max(1, _BLOCK_ELEMENTS // len(counted))
    for start in range(0, len(rows_of), size):
        block = rows_of[start : start + size]
        has = np.zeros((len(counted), len(block)), np.float32)
        for column, rows in enumerate(block):
            has[rows, column] = 1
        common += has @ has.T
    return common


@dataclass(frozen=True, kw_only=True)
class MinimumBayesRisk(Step):
    """Keeps only the candidate of a search with the greatest expected utility.

    Attributes:
        utility: The measure of similarity between candidates.
        are_samples: Whether the candidates are samples.
        tokenizer: The tokenizer of BLEU.
    """

    utility: Utility
    are_samples: bool
    tokenizer: BleuTokenizer = "13a"

    @override
    def after(self, states: Sequence[Segment], outputs: list[list[Output]]) -> list[list[Output]]:
        return [
            [self.most_useful(candidates, unit.source)]
            for unit, candidates in zip(states, outputs, strict=True)
        ]

    def most_useful(self, candidates: Sequence[Output], source: str = "") -> Output:
        """Return the first candidate with the greatest expected utility; `source` is for a program.

        The candidates are also the references of the expectation: samples count equally (Eikema &
        Aziz 2020, §4.3), translations of a beam by their probabilities (Kumar & Byrne 2004, §2.3).
        """
        weight_of: dict[str, float] = defaultdict(float)  # of equal texts together
        best_log_prob = max(each.log_prob for each in candidates)
        for each in candidates:
            weight = 1.0 if self.are_samples else math.exp(each.log_prob - best_log_prob)
            weight_of[each.text] += weight
        texts, weights = list(weight_of), np.array(list(weight_of.values()))
        if len(texts) == 1 and not isinstance(self.utility, MetricCommand):
            return replace(candidates[0], utility=100.0)
        utilities = pairwise_utilities(texts, self.utility, tokenizer=self.tokenizer, source=source)
        expected = (utilities * weights).sum(axis=1) / weights.sum()
        best = int(expected.argmax())
        chosen = next(each for each in candidates if each.text == texts[best])
        return replace(chosen, utility=float(expected[best]))
