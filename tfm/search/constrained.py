"""Beam search for outputs that contain given phrases.

Hypotheses with the same number of tokens of the phrases form a bank, and the banks share the beam
(dynamic beam allocation: Post & Vilar 2018), by the ranks within them (Hu et al. 2019).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from tfm.config import SearchConfig
from tfm.data.subword import EOS, PAD
from tfm.search.active import (
    ActiveHypotheses,
    Array,
    Continuations,
    Hypothesis,
    keep_best,
    nth_score,
    to_host,
)
from tfm.search.phrases import Progress, RequiredPhrases

# Smaller beams find poor translations: of the first outputs with all phrases, few are good.
_MIN_BEAM = 4
_MAX_WIDTH = 64  # of a beam that is wider than it was set to be


def beam_width(beam_size: int, num_tokens: int) -> int:
    """Return the size of the beam of a sentence with some number of tokens of required phrases."""
    return max(beam_size, min(max(beam_size, _MIN_BEAM) + num_tokens, _MAX_WIDTH))


def constrained_search(
    hypotheses: ActiveHypotheses, required: Sequence[RequiredPhrases], config: SearchConfig
) -> list[list[Hypothesis]]:
    """Find the n best outputs of sentences that contain phrases.

    Candidates are the most probable continuations, the best of each hypothesis, and each token that
    continues or begins a missing phrase. A hypothesis that breaks off a phrase loses its tokens.
    Only one that contains all phrases ends. A sentence is finished when as many have ended as the
    beam was set to hold, at least `_MIN_BEAM`, or none can enter its n best.

    Args:
        hypotheses: The first hypothesis of each sentence.
        required: The phrases of each sentence.
        config: Settings of the beam, which is wider by the number of tokens of the phrases.

    Returns:
        At most `n_best` outputs of each sentence, best first; if none with all phrases was found,
        the best of those with the most phrases.
    """
    beams = [_Beam(each, config) for each in required]
    while hypotheses.num_open:
        chosen = _step(hypotheses, [beams[index] for index in hypotheses.sentences])
        hypotheses.advance(chosen, (chosen.tokens != EOS) & (chosen.tokens != PAD))
    return [beam.finished or beam.incomplete for beam in beams]


class _Candidate(NamedTuple):
    total: float
    parent: int  # index of the hypothesis that it continues
    token: int
    progress: Progress


class _Beam:
    """The hypotheses of a sentence: what each contains, and the outputs that have ended."""

    def __init__(self, required: RequiredPhrases, config: SearchConfig) -> None:
        self.required, self._config = required, config
        self.width = beam_width(config.beam_size, required.num_tokens)
        self._num_to_end = max(config.beam_size, _MIN_BEAM)
        self.progress = [Progress()]
        self.finished: list[Hypothesis] = []
        self.incomplete: list[Hypothesis] = []
        self._num_ended, self._most_phrases = 0, -1

    def to_beat(self) -> float:
        """Return the score that an output must beat; infinite when the sentence is finished."""
        if self._num_ended >= self._num_to_end:
            return float("inf")
        return nth_score(self.finished, self._config.n_best)

    def may_end_early(self, parent: int) -> bool:
        """Return whether an output without all phrases would be better than none."""
        return not (self.finished or self.required.is_complete(self.progress[parent]))

    def following(self, parent: int) -> set[int]:
        """Return the tokens of missing phrases that may follow a hypothesis."""
        return self.required.following(self.progress[parent])

    def end(self, parent: int, hypothesis: Hypothesis) -> None:
        """Add the output of a hypothesis that ends."""
        progress = self.progress[parent]
        if self.required.is_complete(progress):
            self._num_ended += 1
            keep_best(self.finished, hypothesis, self._config.n_best)
            return
        num_phrases = self.required.num_phrases(progress)
        if num_phrases > self._most_phrases:
            self._most_phrases, self.incomplete = num_phrases, []
        if num_phrases == self._most_phrases:
            keep_best(self.incomplete, hypothesis, 1)

    def candidates(self, totals: Array, parents: Array, tokens: Array) -> list[_Candidate]:
        """Return distinct continuations, the most probable first; all arguments are [N]."""
        order = np.argsort(-totals, kind="stable")
        triples = zip(*(x[order].tolist() for x in (totals, parents, tokens)), strict=True)
        found = {(parent, token): total for total, parent, token in triples}
        return [
            _Candidate(total, parent, token, self.required.advanced(self.progress[parent], token))
            for (parent, token), total in found.items()
        ]

    def choose(self, candidates: Iterable[_Candidate]) -> list[_Candidate]:
        """Return those that are continued or end, after the ranks in their banks."""
        ranked: list[tuple[int, int, _Candidate]] = []
        sizes: dict[int, int] = {}
        for each in candidates:
            before = each.progress if each.token != EOS else self.progress[each.parent]
            if each.token == EOS and not self.required.is_complete(before):
                continue
            bank = -self.required.num_done(before)
            sizes[bank] = rank = sizes.get(bank, -1) + 1
            ranked.append((rank, bank, each))
        ranked.sort(key=lambda each: each[:2])
        return [each for _, _, each in ranked[: self.width]]


def _step(hypotheses: ActiveHypotheses, beams: Sequence[_Beam]) -> Continuations:
    """Return continuations [B, K'] of hypotheses, padded by PAD, after adding those that end."""
    rows, found, size = _next_tokens(hypotheses, beams)
    num_sentences, num_hypotheses = hypotheses.log_probs.shape
    bounds = hypotheses.min_log_probs([beam.to_beat() for beam in beams])
    starts = np.searchsorted(rows, np.arange(num_sentences + 1) * num_hypotheses)
    chosen = []
    may_end = np.zeros((num_sentences, num_hypotheses), dtype=bool)
    for row, beam in enumerate(beams):
        block = slice(starts[row], starts[row + 1])
        totals, tokens = found.totals[block], found.tokens[block]
        kept = _most_probable(totals, size, beam.width) & (totals > bounds[row])
        parents = np.broadcast_to(found.parents[block, None], totals.shape)
        selected = beam.choose(beam.candidates(totals[kept], parents[kept], tokens[kept]))
        ending = [each.parent for each in selected if each.token == EOS]
        early = filter(beam.may_end_early, found.parents[block].tolist())
        may_end[row, [*ending, *early]] = True
        chosen.append([each for each in selected if each.token != EOS])
    ends = np.full_like(hypotheses.log_probs, -np.inf)
    ends.reshape(-1)[rows] = found.totals[:, size]
    _end(hypotheses, beams, ends, may_end)
    for beam, selected in zip(beams, chosen, strict=True):
        beam.progress = [each.progress for each in selected]
    return _padded(chosen)


def _next_tokens(
    hypotheses: ActiveHypotheses, beams: Sequence[_Beam]
) -> tuple[Array, Continuations, int]:
    """Run the model; return the tokens that may follow each active hypothesis.

    Returns:
        The rows [R] of hypotheses among the B·K; the index of each in its sentence [R], and its
        continuations [R, N + M]: the N most probable, EOS, and those of missing phrases; and N.
    """
    rows, log_probs = hypotheses.active_log_probs()
    sentences, parents = np.divmod(rows, hypotheses.log_probs.shape[1])
    wanted = [
        [EOS, *beams[sentence].following(parent)]
        for sentence, parent in zip(sentences.tolist(), parents.tolist(), strict=True)
    ]
    longest = max(map(len, wanted))
    padded = np.array([[*each, *[EOS] * (longest - len(each))] for each in wanted])
    size = min(max(beam.width for beam in beams), log_probs.size(1))
    best, tokens = log_probs.topk(size)
    on_device = hypotheses.to_device(padded)
    best = torch.cat([best, log_probs.gather(1, on_device)], dim=1)
    found, tokens_found = to_host(best, torch.cat([tokens, on_device], dim=1))
    totals = hypotheses.log_probs.reshape(-1)[rows, None] + found
    return rows, Continuations(totals, parents, tokens_found), size


def _most_probable(totals: Array, size: int, width: int) -> Array:
    """Return which continuations [R, N + M] of a sentence are candidates, given N.

    Of the first N, which are sorted, these are the `width` best of all, and the best of each row.
    """
    if not len(totals):  # a sentence that has ended
        return np.zeros_like(totals, dtype=bool)
    first = totals[:, :size]
    width = min(width, first.size)
    kept: Array = totals >= np.partition(first, first.size - width, axis=None)[first.size - width]
    kept[:, 0] = kept[:, size:] = True
    return kept


def _end(hypotheses: ActiveHypotheses, beams: Sequence[_Beam], ends: Array, may_end: Array) -> None:
    """Add the outputs of hypotheses that end with log probabilities [B, K], where they may."""
    parents = np.broadcast_to(np.arange(ends.shape[1]), ends.shape)
    ending = Continuations(ends, parents, np.full_like(parents, EOS))
    places = zip(*(may_end & (ends > -np.inf)).nonzero(), strict=True)
    found = hypotheses.finished(ending, may_end)
    for (row, parent), (_, hypothesis) in zip(places, found, strict=True):
        beams[row].end(parent, hypothesis)


def _padded(chosen: Sequence[Sequence[_Candidate]]) -> Continuations:
    """Return the continuations of sentences as arrays [B, K']."""
    width = max(1, *map(len, chosen))
    shape = len(chosen), width
    totals = np.full(shape, -np.inf, np.float32)
    parents, tokens = np.zeros(shape, np.int64), np.full(shape, PAD)
    for row, candidates in enumerate(chosen):
        for column, (total, parent, token, _) in enumerate(candidates):
            totals[row, column], parents[row, column], tokens[row, column] = total, parent, token
    return Continuations(totals, parents, tokens)
