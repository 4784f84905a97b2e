"""Exact search: the best outputs there are, proven to be (Stahlberg and Byrne 2019)."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import EOS
from tfm.search.active import ActiveHypotheses
from tfm.search.beam import beam_search
from tfm.search.constraints import Prefixes
from tfm.search.model import SearchableModel
from tfm.search.scoring import Hypothesis, keep_best, nth_score

_MAX_ROWS = 64  # prefixes that are extended together


@dataclass(frozen=True, kw_only=True)
class ExactResult:
    """What exact search found for one source.

    Attributes:
        hypotheses: The n best, best first, each saying whether that is proven.
        proven: Whether no other output has a better score than the last of them.
        num_nodes: Prefixes that were extended.
    """

    hypotheses: list[Hypothesis]
    proven: bool
    num_nodes: int


def exact_search(
    model: SearchableModel,
    source: Tensor,
    lengths: Tensor,
    config: SearchConfig,
    *,
    prefixes: Prefixes | None = None,
) -> list[ExactResult]:
    """Find the best outputs of a batch of sources, and prove that there are no better ones.

    Depth first, by branch and bound. What beam search finds is to be beaten: a prefix that cannot
    end with a better score, however it goes on, is cut, and so is all that starts with it. Up to
    `_MAX_ROWS` prefixes of one length are extended together, and for each length only the states
    of so many are kept: memory is bounded by the greatest length, whatever the number of nodes.

    A proof holds to within the rounding of the model's arithmetic, and for outputs within the limit
    of length.

    Args:
        model: Anything that can encode and step, in evaluation mode; its states can be copied.
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        config: Penalty and limits; the beam to start from.
        prefixes: What outputs must start with.

    Returns:
        For each source its `n_best` hypotheses, or the best found before the limit of nodes.
    """
    found = beam_search(model, source, lengths, config, prefixes=prefixes)
    results = []
    for index, best in enumerate(found):
        one, size = slice(index, index + 1), int(lengths[index])
        prefix = None if prefixes is None else prefixes[one]
        start = ActiveHypotheses(model, source[one, :size], lengths[one], config, prefix)
        results.append(_Search(best, config).run(start))
    return results


@dataclass
class _Branch:
    """Prefixes of one sentence, and those of their continuations that are still to be looked at.

    Attributes:
        prefixes: K prefixes of one length.
        totals: [N] log probability of each continuation, best first.
        parents: [N] which prefix it continues.
        tokens: [N] by which token.
    """

    prefixes: ActiveHypotheses
    totals: Tensor
    parents: Tensor
    tokens: Tensor

    def __len__(self) -> int:
        return len(self.totals)

    def take(self, num: int) -> ActiveHypotheses:
        """Remove the best so many continuations, to go on with them."""
        taken = self.prefixes.copy() if num < len(self) else self.prefixes
        totals, parents, tokens = (
            part[None, :num] for part in (self.totals, self.parents, self.tokens)
        )
        taken.advance(totals, parents, tokens)
        self.keep(slice(num, None))
        return taken

    def keep(self, which: slice) -> None:
        """Forget all continuations but some."""
        self.totals, self.parents, self.tokens = (
            self.totals[which],
            self.parents[which],
            self.tokens[which],
        )


class _Search:
    """The search for the best outputs of one sentence.

    Args:
        best: What is to be beaten.
        config: Number of outputs and limit of nodes.
    """

    def __init__(self, best: list[Hypothesis], config: SearchConfig) -> None:
        self._best = list(best)
        self._config = config
        self._num_nodes = 0

    def run(self, start: ActiveHypotheses) -> ExactResult:
        """Look at all that starts with the one hypothesis given, as far as it can be better."""
        branches = [self._grow(start)]
        while branches and (num_left := self._config.node_limit - self._num_nodes):
            branch = branches.pop()
            self._cut(branch)
            if not len(branch):
                continue
            taken = branch.take(min(len(branch), _MAX_ROWS, num_left))
            if len(branch):
                branches.append(branch)
            branches.append(self._grow(taken))
        for branch in branches:
            self._cut(branch)
        proven = not any(map(len, branches))
        hypotheses = [replace(hypothesis, proven=proven) for hypothesis in self._best]
        return ExactResult(hypotheses=hypotheses, proven=proven, num_nodes=self._num_nodes)

    def _grow(self, prefixes: ActiveHypotheses) -> _Branch:
        """Extend prefixes: note what is finished, and keep the continuations that may be better."""
        log_probs = prefixes.next_log_probs()
        _, num_prefixes, num_tokens = log_probs.shape
        self._num_nodes += num_prefixes
        totals = prefixes.log_probs[:, :, None] + log_probs
        ends = totals[:, :, EOS]
        every = torch.arange(num_prefixes, device=ends.device)[None]
        for _, hypothesis in prefixes.finished(
            ends, every, torch.ones_like(ends, dtype=torch.bool)
        ):
            keep_best(self._best, hypothesis, self._config.n_best)
        totals[:, :, EOS] = -math.inf
        num_better = int((totals > self._min_log_probs(prefixes)).sum())
        # There is no use for more than can be extended, but for one that tells of them.
        num = min(num_better, self._config.node_limit - self._num_nodes + 1)
        best, index = totals.flatten().topk(num)
        return _Branch(prefixes, best, index // num_tokens, index % num_tokens)

    def _cut(self, branch: _Branch) -> None:
        """Forget the continuations that cannot end with a better score than the n best."""
        num = int((branch.totals > self._min_log_probs(branch.prefixes)).sum())
        branch.keep(slice(num))

    def _min_log_probs(self, prefixes: ActiveHypotheses) -> Tensor:
        return prefixes.min_log_probs([nth_score(self._best, self._config.n_best)])
