"""Beam search with the GNMT length penalty (Vaswani et al. 2017, §6.1; Wu et al. 2016)."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import EOS
from tfm.search.continuations import Continuations, NextTokens
from tfm.search.hypothesis import Hypothesis, keep_best, nth_score
from tfm.search.model import SearchableModel
from tfm.search.unfinished import NEVER_PRODUCED, Prefixes, Unfinished

# Searches go on side by side until they have so many hypotheses: few make slow matrix products.
_ROWS_AT_ONCE = 512


def beam_search(
    model: SearchableModel,
    source: Tensor,
    lengths: Tensor,
    config: SearchConfig,
    *,
    prefixes: Prefixes | None = None,
) -> list[list[Hypothesis]]:
    """Find the best outputs of a batch of sources.

    At each step all continuations of the hypotheses of a sentence compete. Of the `beam_size` most
    probable, those that end are finished and ranked by their score, the others go on: a beam of
    one is greedy. A sentence is done only when none that goes on can still enter its n best.

    Args:
        model: Anything that can encode and step, in evaluation mode.
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        config: Beam, penalty and limits.
        prefixes: What outputs must start with.

    Returns:
        For each source its `n_best` hypotheses, best first.
    """
    only = [Beams(Unfinished(model, source, lengths, config, prefixes), config)]
    [beams] = finished_beams(model, lambda wait: only.pop() if only else None)
    return beams.finished


def finished_beams(
    model: SearchableModel, take: Callable[[bool], "Beams | None"]
) -> Iterator["Beams"]:
    """Search for the outputs of batches, side by side: as one runs out, the next joins in.

    What is found is the same as of each by itself, but for the rounding of matrix products.

    Args:
        model: Anything that can encode and step, in evaluation mode.
        take: Returns the beams of the next batch; None if there is none, or if it is told not to
            wait, and would have to.

    Yields:
        Beams that are finished, in the order in which they were taken.
    """
    underway: deque[Beams] = deque()
    while True:
        num_rows = sum(beams.hypotheses.num_rows for beams in underway)
        while num_rows < _ROWS_AT_ONCE and (taken := take(not underway)) is not None:
            underway.append(taken)
            num_rows += taken.hypotheses.num_rows * taken.size
        if not underway:
            return
        _take_step(model, [beams for beams in underway if beams.hypotheses.num_open])
        while underway and not underway[0].hypotheses.num_open:
            yield underway.popleft()


def _take_step(model: SearchableModel, searches: Sequence["Beams"]) -> None:
    if not searches:
        return
    steps = [beams.hypotheses.next_step() for beams in searches]
    next_tokens = NextTokens.of(model.step_together(steps), NEVER_PRODUCED)
    each_rows = [rows for _, _, rows in steps]
    parts = next_tokens.parts([rows.numel() for rows in each_rows])
    for beams, part, rows in zip(searches, parts, each_rows, strict=True):
        beams.extend(beams.hypotheses.continuations(part, rows, beams.size))


class Beams:
    """The beams of a batch of sentences.

    Attributes:
        hypotheses: What is being extended.
        finished: For each sentence of the batch its n best finished hypotheses, best first.
        size: Of the beam.

    Args:
        hypotheses: Where to start.
        config: Beam and penalty.
        prune: Whether to leave out single hypotheses that cannot enter the n best. It changes
            nothing in these: what takes the place of such a one is less probable still.
    """

    def __init__(self, hypotheses: Unfinished, config: SearchConfig, *, prune: bool = True) -> None:
        self.hypotheses = hypotheses
        self.finished: list[list[Hypothesis]] = [[] for _ in hypotheses.sentences]
        self.size = config.beam_size
        self._config = config
        self._prune = prune

    def choose(self, log_probs: Tensor, handicaps: Tensor) -> Continuations:
        """The most probable continuations of each sentence, some tokens being at a disadvantage.

        Args:
            log_probs: [B, K, V] of the next token.
            handicaps: [B, V] nats that a token loses in this choice, and in nothing else.
        """
        totals = self.hypotheses.log_probs[:, :, None] + log_probs
        ranked = totals - handicaps[:, None, :]
        size = min(self.size, totals[0].numel())
        index = ranked.flatten(1).topk(size, dim=1).indices
        num_tokens = totals.size(2)
        return Continuations(
            totals.flatten(1).gather(1, index), index // num_tokens, index % num_tokens
        )

    def extend(self, chosen: Continuations) -> None:
        """Make each hypothesis a token longer, and close the sentences that are done."""
        totals, parents, tokens = chosen
        ends = tokens == EOS
        log_probs = totals.masked_fill(ends, -math.inf)
        for sentence, hypothesis in self.hypotheses.ended(totals, parents, ends):
            keep_best(self.finished[sentence], hypothesis, self._config.n_best)
        found = (self.finished[sentence] for sentence in self.hypotheses.sentences.tolist())
        to_beat = [nth_score(best, self._config.n_best) for best in found]
        if max(to_beat) > -math.inf:
            can_improve = log_probs > self.hypotheses.needed_log_probs(to_beat)[:, None]
            if not self._prune:
                can_improve = can_improve.any(dim=1, keepdim=True)
            log_probs = log_probs.masked_fill(~can_improve, -math.inf)
        self.hypotheses.advance(log_probs, parents, tokens)
