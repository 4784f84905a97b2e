"""The outputs that a search has begun: what beam search, sampling and exact search share."""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import BOS, EOS, PAD, UNK
from tfm.search.continuations import Continuations, NextTokens
from tfm.search.hypothesis import Hypothesis, length_penalty
from tfm.search.model import SearchableModel, Step

# For each source the token ids that its output must start with.
Prefixes: TypeAlias = Sequence[Sequence[int]]

NEVER_PRODUCED = [PAD, BOS, UNK]
# Stands for no token where one may be forced.
ANY = -1
# Sentences leave when no more than this share goes on: the others' past is copied then.
_WORTH_KEEPING = 0.75


class Unfinished:
    """Hypotheses that a search goes on with, all of one length.

    B counts the sentences, K the hypotheses of each, t their tokens with BOS. A hypothesis that
    cannot go on stays as a row that is not computed; so do the sentences that have no other, until
    they are enough to be worth removing.

    Attributes:
        model: What extends them.
        state: Where the model stands.
        num_open: Number of sentences with a hypothesis that goes on.
        max_lengths: [B] the most tokens of an output, with EOS, as in `lengths`.
        sentences: [B] their places in the batch, on the CPU.
        tokens: [B, K, t] token ids, BOS first.
        log_probs: [B, K] log probabilities; -inf for one that cannot go on.

    Args:
        model: Anything that can encode and step, in evaluation mode.
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        config: Penalty and limits.
        prefixes: What outputs must start with; nothing if not given.
    """

    def __init__(
        self,
        model: SearchableModel,
        source: Tensor,
        lengths: Tensor,
        config: SearchConfig,
        prefixes: Prefixes | None,
    ) -> None:
        device = lengths.device
        self.model = model
        self.sentences = torch.arange(len(lengths))
        self.tokens = torch.full((len(lengths), 1, 1), BOS, device=device)
        self.log_probs = torch.zeros(len(lengths), 1, device=device)
        self._going_on = torch.arange(len(lengths), device=device)  # [R] index among the B·K
        self.state = model.start(source, lengths)
        self._alpha = config.length_penalty
        self._forced = forced_tokens(prefixes, len(lengths)).to(device)
        self.max_lengths = greatest_lengths(lengths, self._forced, config, model.max_positions)
        self.num_open = len(lengths)
        # Up to where a prefix says what is next, and from where a greatest length does.
        self._free = self._forced.size(1), int(self.max_lengths.min()) if len(lengths) else 0

    @property
    def num_rows(self) -> int:
        """About how many hypotheses go on."""
        return self.num_open * self.tokens.size(1)

    def copy(self) -> "Unfinished":
        """The same hypotheses, to go on with independently of these."""
        other = copy.copy(self)
        other.state = copy.deepcopy(self.state)
        return other

    def next_log_probs(self) -> Tensor:
        """Take in the newest tokens.

        Returns:
            [B, K, V] the model's log probabilities of the next token; -inf where it is ruled out.
        """
        logits = self.model.step(self.tokens[:, :, -1], self.state)
        log_probs = logits.float().log_softmax(dim=-1)
        rows, only = self._forced_rows()
        kept = log_probs[rows, :, only]
        log_probs[:, :, NEVER_PRODUCED] = -math.inf
        log_probs[rows] = -math.inf
        log_probs[rows, :, only] = kept
        return log_probs

    def next_step(self) -> Step:
        """What the model is to take in: the newest tokens of the hypotheses that go on."""
        return self.tokens[:, :, -1], self.state, self._going_on

    def continuations(self, next_tokens: NextTokens, rows: Tensor, size: int) -> Continuations:
        """The most probable continuations, best first.

        Args:
            next_tokens: What the model made of `next_step`.
            rows: [R] index among the B·K hypotheses of those that it made something of.
            size: How many to return for each sentence, if there are so many.
        """
        forced, only = self._forced_rows()
        if forced.numel():
            places = torch.full_like(self.max_lengths, ANY).index_copy_(0, forced, only)
            of_rows = places[rows // self.tokens.size(1)]
            next_tokens.force((of_rows != ANY).nonzero()[:, 0], of_rows[of_rows != ANY])
        return next_tokens.best(self.log_probs, rows, size)

    def _forced_rows(self) -> tuple[Tensor, Tensor]:
        """Which of the B sentences have only one token that may come next, and which it is."""
        length = self.tokens.size(2)
        if self._free[0] < length < self._free[1]:
            nothing = self.max_lengths.new_empty(0)
            return nothing, nothing
        only = self._only_tokens()
        rows = (only != ANY).nonzero()[:, 0]
        return rows, only[rows]

    def _only_tokens(self) -> Tensor:
        """[B] the only token that may come next: EOS at the greatest length, or the prefix's."""
        length = self.tokens.size(2)  # of an output that ends now: EOS makes up for BOS
        only = torch.where(self.max_lengths <= length, EOS, ANY)
        if length <= self._forced.size(1):
            forced = self._forced[:, length - 1]
            only = torch.where(forced == ANY, only, forced)
        return only

    def ended(
        self, totals: Tensor, parents: Tensor, ends: Tensor
    ) -> Iterator[tuple[int, Hypothesis]]:
        """Those among some continuations that are finished outputs.

        Args:
            totals: [B, K'] log probabilities of the continuations.
            parents: [B, K'] which of the K hypotheses each continues.
            ends: [B, K'] whether by EOS.

        Yields:
            The place of the sentence in the batch, and a hypothesis.
        """
        if not ends.any():
            return
        rows, columns = (ends & (totals > -math.inf)).nonzero().unbind(1)
        penalty = length_penalty(self.tokens.size(2), self._alpha)
        sentences = self.sentences[rows.cpu()].tolist()
        tokens = self.tokens[rows, parents[rows, columns], 1:].tolist()
        log_probs = totals[rows, columns].tolist()
        for sentence, ids, log_prob in zip(sentences, tokens, log_probs, strict=True):
            yield (
                sentence,
                Hypothesis(tokens=tuple(ids), log_prob=log_prob, score=log_prob / penalty),
            )

    def needed_log_probs(self, scores: Sequence[float]) -> Tensor:
        """The log probability above which a continuation may still end with a better score.

        It can only fall, and the penalty divides it by most at the greatest length (or, with a
        negative α, at the next): no score can be higher than that.

        Args:
            scores: For each open sentence the score to beat.

        Returns:
            [B] float64.
        """
        to_beat = torch.tensor(scores, dtype=torch.float64, device=self.max_lengths.device)
        next_length = torch.full_like(self.max_lengths, self.tokens.size(2) + 1)
        length = self.max_lengths if self._alpha >= 0 else next_length
        return to_beat * ((5 + length.double()) / 6) ** self._alpha

    def advance(self, log_probs: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Go on with chosen continuations.

        Args:
            log_probs: [B, K'] of each continuation; -inf if it does not go on.
            parents: [B, K'] which of the K hypotheses it continues.
            tokens: [B, K'] by which token.
        """
        goes_on = log_probs > -math.inf
        going_on = goes_on.flatten().nonzero().flatten()
        rows = parents  # [B, K'] index among the B·K
        if len(parents) > 1:
            num_slots, num_hypotheses = self.log_probs.numel(), self.log_probs.size(1)
            firsts = torch.arange(0, num_slots, num_hypotheses, device=parents.device)
            rows = firsts[:, None] + parents
        self.num_open = len(rows)
        if len(going_on) < goes_on.numel():
            is_open = goes_on.any(dim=1)
            self.num_open = int(is_open.sum())
            if self.num_open <= _WORTH_KEEPING * len(rows):
                rows, tokens, log_probs = rows[is_open], tokens[is_open], log_probs[is_open]
                going_on = goes_on[is_open].flatten().nonzero().flatten()
                self.max_lengths = self.max_lengths[is_open]
                self._forced = self._forced[is_open]
                self.sentences = self.sentences[is_open.cpu()]
        past = self.tokens.flatten(0, 1).index_select(0, rows.flatten())
        longer = torch.cat([past, tokens.reshape(-1, 1)], dim=1)
        self.tokens = longer.view(*tokens.shape, longer.size(1))
        self.log_probs = log_probs
        self._going_on = going_on
        if self.num_open:
            self.state.reorder(rows)
        else:
            del self.state  # what is finished may wait for others, but not with its caches


def forced_tokens(prefixes: Prefixes | None, num_sentences: int) -> Tensor:
    """[B, P] the token that is forced at each position of outputs; `ANY` where none is."""
    forced = [torch.tensor(ids, dtype=torch.long) for ids in prefixes or [()] * num_sentences]
    return torch.nn.utils.rnn.pad_sequence(forced, batch_first=True, padding_value=ANY)


def greatest_lengths(
    lengths: Tensor, forced: Tensor, config: SearchConfig, max_positions: int | None
) -> Tensor:
    """The most tokens of outputs, EOS included.

    Args:
        lengths: [B] those of the sources.
        forced: [B, P] see `forced_tokens`.
        config: Limits.
        max_positions: The most tokens that the model takes in on a side; None if there is no limit.
    """
    greatest = lengths + config.max_extra_length
    if max_positions is not None:
        greatest = greatest.clamp(max=max_positions)
    return greatest.maximum((forced != ANY).sum(dim=1) + 1)
