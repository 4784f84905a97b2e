"""Beam search for outputs that contain given phrases.

Hypotheses with the same number of tokens of the phrases form a bank, and the banks share the beam
(dynamic beam allocation: Post & Vilar 2018), by the ranks within them (Hu et al. 2019).
"""

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from tfm.config import SearchConfig
from tfm.search.active import ActiveHypotheses, Continuations
from tfm.search.hypotheses import Hypothesis, keep_best, nth_score
from tfm.search.phrases import Progress, RequiredPhrases
from tfm.vocabulary.subword import EOS, PAD

# A beam that is wider than it was set to be: by a hypothesis for each token of the phrases, but
# caches of more than this are not shared.
_SPARE_BEAM, _MAX_WIDTH = 4, 8
_MIN_BEGINNINGS = 2  # hypotheses without any token of the phrases
_MIN_ENDED = 8  # of the first outputs with all phrases, few are good


def beam_width(beam_size: int, num_tokens: int) -> int:
    """Return the size of the beam of a sentence with some number of tokens of required phrases."""
    return max(beam_size, min(_SPARE_BEAM + num_tokens, _MAX_WIDTH))


def constrained_search(
    hypotheses: ActiveHypotheses, required: Sequence[RequiredPhrases], config: SearchConfig
) -> list[list[Hypothesis]]:
    """Find the n best outputs of sentences that contain phrases.

    Candidates are the most probable continuations, the best of each hypothesis, and each token that
    continues or begins a missing phrase. With a beam of K, a candidate is dropped if K others are
    more probable and have at least as many tokens of phrases (at least `_MIN_BEGINNINGS` others if
    it has no token of a phrase). A hypothesis that breaks off a phrase loses its tokens. Only
    hypotheses that contain all phrases end. A sentence is finished when K hypotheses, at least
    `_MIN_ENDED`, have ended, or none can enter its n best.

    Args:
        hypotheses: The first hypothesis of each sentence.
        required: The phrases of each sentence.
        config: Settings of the beam; it is wider by the number of tokens of the phrases.

    Returns:
        At most `n_best` outputs of each sentence, best first; if no output has all phrases, the
        best outputs with the most phrases.
    """
    beams = [_Beam(each, config) for each in required]
    length = 1
    while hypotheses.num_open:
        open_beams = [beams[index] for index in hypotheses.sentences]
        for beam, forced in zip(open_beams, hypotheses.tokens[:, 0, length:].tolist(), strict=True):
            for token in forced:  # of the only hypothesis, by a prefix
                beam.progress = [beam.required.advanced(beam.progress[0], token)]
        chosen = _step(hypotheses, open_beams)
        length = hypotheses.length + 1
        hypotheses.advance(chosen, chosen.tokens != PAD)
    return [beam.finished or beam.incomplete for beam in beams]


# Total log probability, the index of the hypothesis that it continues, and the token.
_Candidate: TypeAlias = tuple[float, int, int]


class _Beam:
    """The hypotheses of a sentence, the phrases that each contains, and the finished outputs."""

    def __init__(self, required: RequiredPhrases, config: SearchConfig) -> None:
        self.required, self._n_best = required, config.n_best
        self.width = beam_width(config.beam_size, required.num_tokens)
        self._beam_size = config.beam_size
        self.num_best = min(self.width, 2 * config.beam_size)
        self._num_to_end = max(config.beam_size, _MIN_ENDED)
        self.progress = [required.start()]
        self.finished: list[Hypothesis] = []
        self.incomplete: list[Hypothesis] = []
        self._num_ended, self._most_phrases = 0, -1

    def to_beat(self) -> float:
        """Return the score that an output must beat; infinite when the sentence is finished."""
        if self._num_ended >= self._num_to_end:
            return float("inf")
        return nth_score(self.finished, self._n_best)

    def following(self, parent: int) -> list[int]:
        """Return the tokens of missing phrases that may follow a hypothesis."""
        return self.required.following(self.progress[parent])

    def choose(self, candidates: Iterable[_Candidate]) -> list[tuple[_Candidate, Progress]]:
        """Return candidates, given the most probable first, that are continued or end."""
        ranked: list[tuple[int, int, _Candidate, Progress]] = []
        sizes: dict[int, int] = {}  # of banks
        for each in candidates:
            _, parent, token = each
            progress = self.progress[parent]
            if token != EOS:
                progress = self.required.advanced(progress, token)
            elif not progress.is_complete:
                continue
            done = progress.num_done
            better = sum([size for bank, size in sizes.items() if bank >= done])
            if better < self._beam_size or (not done and better < _MIN_BEGINNINGS):
                rank = sizes.get(done, 0)
                sizes[done] = rank + 1
                ranked.append((rank, -done, each, progress))
        ranked.sort(key=lambda each: each[:2])
        return [each[2:] for each in ranked[: self.width]]

    def is_best_incomplete(self, parent: int, score: float) -> bool:
        """Return whether no output has all phrases, and this one is the best of the others."""
        progress = self.progress[parent]
        if progress.is_complete or self.finished or progress.num_phrases < self._most_phrases:
            return False
        return progress.num_phrases > self._most_phrases or score > self.incomplete[0].score

    def end(self, parent: int, hypothesis: Hypothesis) -> None:
        """Add the output of a hypothesis that ends."""
        progress = self.progress[parent]
        if progress.is_complete:
            self._num_ended += 1
            keep_best(self.finished, hypothesis, self._n_best)
        elif self.is_best_incomplete(parent, hypothesis.score):
            self.incomplete, self._most_phrases = [hypothesis], progress.num_phrases


def _step(hypotheses: ActiveHypotheses, beams: Sequence[_Beam]) -> Continuations:
    """Return continuations [B, K'] of hypotheses, padded by PAD; add finished ones to outputs."""
    bounds = hypotheses.min_log_probs([beam.to_beat() for beam in beams]).tolist()
    continued, progress, ended = [], [], []
    for beam, bound, found in zip(beams, bounds, _candidates(hypotheses, beams), strict=True):
        found.sort(reverse=True)
        chosen = beam.choose([each for each in found if each[0] > bound])
        early = [
            (total, parent, token)
            for total, parent, token in found
            if token == EOS and beam.is_best_incomplete(parent, hypotheses.score(total))
        ]
        ended.append([*(each for each, _ in chosen if each[2] == EOS), *early])
        continued.append([each for each, _ in chosen if each[2] != EOS])
        progress.append([after for each, after in chosen if each[2] != EOS])
    _end(hypotheses, beams, ended)
    for beam, after in zip(beams, progress, strict=True):
        beam.progress = after
    return _padded(continued)


def _candidates(hypotheses: ActiveHypotheses, beams: Sequence[_Beam]) -> list[list[_Candidate]]:
    """Run the model; return the distinct candidates of each sentence."""
    num_hypotheses = hypotheses.log_probs.shape[1]
    places = [divmod(row, num_hypotheses) for row in hypotheses.rows.tolist()]
    wanted = [[EOS, *beams[row].following(parent)] for row, parent in places]
    longest = max(map(len, wanted))
    given = np.array([[*each, *[EOS] * (longest - len(each))] for each in wanted])
    size = max(beam.num_best for beam in beams)
    best, of_rows, tokens_of_rows = hypotheses.best_and_given(size, given)
    found: list[dict[tuple[int, int], float]] = []
    for beam, *columns in zip(beams, *(x.tolist() for x in best), strict=True):
        candidates = zip(*(column[: beam.num_best] for column in columns), strict=True)
        found.append({(parent, t): total for total, parent, t in candidates if total > -math.inf})
    for (row, parent), totals, tokens in zip(
        places, of_rows.tolist(), tokens_of_rows.tolist(), strict=True
    ):
        continued = zip(totals, tokens, strict=True)
        found[row] |= {(parent, t): total for total, t in continued if total > -math.inf}
    return [[(total, *key) for key, total in each.items()] for each in found]


def _end(
    hypotheses: ActiveHypotheses, beams: Sequence[_Beam], ended: Sequence[Sequence[_Candidate]]
) -> None:
    """Add the outputs of hypotheses that end."""
    ends = _padded(ended)
    found = hypotheses.finished(ends, ends.tokens == EOS)
    for beam, candidates in zip(beams, ended, strict=True):
        for each, (_, hypothesis) in zip(candidates, found, strict=False):
            beam.end(each[1], hypothesis)


def _padded(chosen: Sequence[Sequence[_Candidate]]) -> Continuations:
    """Return the continuations of sentences as arrays [B, K']."""
    width = max(1, *map(len, chosen))
    padding: _Candidate = (-math.inf, 0, PAD)
    rows = [[*each, *[padding] * (width - len(each))] for each in chosen]
    totals, parents, tokens = np.array(rows).transpose(2, 0, 1)
    return Continuations(
        totals.astype(np.float32), parents.astype(np.int64), tokens.astype(np.int64)
    )
