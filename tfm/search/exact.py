"""Exact search: the provably best outputs (Stahlberg and Byrne 2019)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfm.config import SearchConfig
from tfm.search.active import ActiveHypotheses, Continuations, to_host
from tfm.search.hypotheses import Hypothesis, keep_best, nth_score
from tfm.vocabulary.subword import EOS

_MAX_ROWS = 64  # prefixes that are extended together


@dataclass(frozen=True, kw_only=True)
class ExactResult:
    """The result of exact search for one source."""

    hypotheses: list[Hypothesis]  # the n best, best first
    proven: bool  # whether no other output has a better score than the last of them
    num_nodes: int  # number of prefixes that were extended


def exact_search(
    start: ActiveHypotheses, best: Sequence[Hypothesis], config: SearchConfig
) -> ExactResult:
    """Find the provably best outputs of one sentence, which starts from one hypothesis.

    Depth-first branch and bound, from the n best of beam search: prefixes that cannot end with a
    better score are cut. Up to `_MAX_ROWS` prefixes of one length are extended together, and their
    states are kept once per length, so memory is bounded by the maximum length.

    A proof holds up to the rounding of the model's arithmetic, for outputs within the maximum
    length. At the limit of nodes, the best outputs so far are returned, unproven.
    """
    return _Search(best, config).run(start)


@dataclass
class _Branch:
    """Prefixes of one sentence, and their continuations that are not yet extended."""

    prefixes: ActiveHypotheses  # K prefixes of one length
    continuations: Continuations  # [1, N], best first

    def __len__(self) -> int:
        return self.continuations.totals.size

    def pop(self, num: int) -> ActiveHypotheses:
        """Remove the `num` best continuations, and return them as hypotheses."""
        popped = self.prefixes.copy() if num < len(self) else self.prefixes
        best = Continuations(*(each[:, :num] for each in self.continuations))
        popped.advance(best, np.full((1, num), fill_value=True))
        self.keep(slice(num, None))
        return popped

    def keep(self, kept: slice) -> None:
        """Drop the other continuations."""
        self.continuations = Continuations(*(each[:, kept] for each in self.continuations))


class _Search:
    """The search for the best outputs of one sentence, from the n best of beam search."""

    def __init__(self, best: Sequence[Hypothesis], config: SearchConfig) -> None:
        self._best = list(best)
        self._config = config
        self._num_nodes = 0

    def run(self, start: ActiveHypotheses) -> ExactResult:
        """Search all continuations of one hypothesis that can enter the n best."""
        branches = [self._expand(start)]
        while branches and (num_left := self._config.node_limit - self._num_nodes):
            branch = branches.pop()
            self._cut(branch)
            if not len(branch):
                continue
            prefixes = branch.pop(min(len(branch), _MAX_ROWS, num_left))
            if len(branch):
                branches.append(branch)
            branches.append(self._expand(prefixes))
        for branch in branches:
            self._cut(branch)
        proven = not any(map(len, branches))
        hypotheses = [replace(hypothesis, proven=proven) for hypothesis in self._best]
        return ExactResult(hypotheses=hypotheses, proven=proven, num_nodes=self._num_nodes)

    def _expand(self, prefixes: ActiveHypotheses) -> _Branch:
        """Extend prefixes: keep finished outputs, and branch into continuations worth extending."""
        log_probs = prefixes.next_log_probs()
        _, num_prefixes, num_tokens = log_probs.shape
        self._num_nodes += num_prefixes
        totals = prefixes.to_device(prefixes.log_probs)[:, :, None] + log_probs
        [ends] = to_host(totals[:, :, EOS])
        parents = np.arange(num_prefixes)[None]
        ending = Continuations(ends, parents, np.full_like(parents, EOS))
        for _, hypothesis in prefixes.finished(ending, ending.tokens == EOS):
            keep_best(self._best, hypothesis, self._config.n_best)
        totals[:, :, EOS] = -math.inf
        num_better = int((totals > self._min_log_prob(prefixes)).sum())
        # One more than can be extended, so that the result is known to be unproven.
        num = min(num_better, self._config.node_limit - self._num_nodes + 1)
        best, index = totals.flatten(1).topk(num)
        found = to_host(best, index // num_tokens, index % num_tokens)
        return _Branch(prefixes, Continuations(*found))

    def _cut(self, branch: _Branch) -> None:
        """Drop the continuations that cannot enter the n best."""
        is_better = branch.continuations.totals > self._min_log_prob(branch.prefixes)
        branch.keep(slice(int(is_better.sum())))

    def _min_log_prob(self, prefixes: ActiveHypotheses) -> float:
        """Return the log probability to exceed, rounded down to fp32 so that comparing is exact."""
        [bound] = prefixes.min_log_probs([nth_score(self._best, self._config.n_best)])
        rounded = np.float32(bound)
        return float(rounded if rounded <= bound else np.nextafter(rounded, np.float32(-np.inf)))
