"""The most probable continuations of hypotheses, without sorting the vocabulary."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# The vocabulary is looked through in blocks of so many tokens.
_BLOCK = 64
# So many elements of it at a time, which a CPU's cache holds.
_ELEMENTS_AT_ONCE = 1 << 18


class Continuations(NamedTuple):
    """The continuations that a beam goes on with or ends by; K' of them for each sentence."""

    totals: Tensor  # [B, K'] log probability
    parents: Tensor  # [B, K'] which of the K hypotheses it continues
    tokens: Tensor  # [B, K'] by which token


@dataclass(frozen=True)
class NextTokens:
    """The distributions of the next token of R hypotheses.

    The best of a vocabulary are found in two steps: the best blocks by their greatest logit, and in
    these the best tokens. No token of another block can be among them.

    Attributes:
        logits: [R, V] of the next token, of any type; -inf where a token is ruled out.
        greatest: [R, blocks] the greatest logit of each block.
        log_sums: [R] logarithm of the sum of their exponentials, of those ruled out, too.
        never: [N] tokens that are ruled out.
        never_logits: [R, N] what their logits were.
    """

    logits: Tensor
    greatest: Tensor
    log_sums: Tensor
    never: Tensor
    never_logits: Tensor

    @classmethod
    def of(cls, logits: Tensor, never: Sequence[int]) -> "NextTokens":
        """Look through logits [R, V], which are changed.

        Args:
            logits: Of the next token.
            never: Tokens that are not to be produced; they have their share of the probability.
        """
        columns = torch.tensor(never, device=logits.device)
        never_logits = logits.index_select(1, columns)
        logits.index_fill_(1, columns, -math.inf)
        greatest, others = _greatest_and_sums(logits)
        log_sums = torch.logaddexp(others, never_logits.float().logsumexp(dim=1))
        return cls(logits, greatest, log_sums, columns, never_logits)

    def parts(self, sizes: Sequence[int]) -> "Iterator[NextTokens]":
        """Those of the first so many hypotheses, those of the next, and so on."""
        start = 0
        for size in sizes:
            rows = slice(start, start + size)
            yield NextTokens(
                self.logits[rows],
                self.greatest[rows],
                self.log_sums[rows],
                self.never,
                self.never_logits[rows],
            )
            start += size

    def force(self, rows: Tensor, tokens: Tensor) -> None:
        """Rule out all tokens but one, which keeps its probability, or has it again.

        Args:
            rows: [N] which of the R distributions.
            tokens: [N] the token of each.
        """
        kept = self.logits[rows, tokens]
        for token, logits in zip(self.never, self.never_logits[rows].mT, strict=True):
            kept = torch.where(tokens == token, logits, kept)
        self.logits[rows] = -math.inf
        self.logits[rows, tokens] = kept
        self.greatest[rows] = -math.inf
        self.greatest[rows, tokens // _BLOCK] = kept.float()

    def best(self, log_probs: Tensor, rows: Tensor, size: int) -> Continuations:
        """The most probable continuations of each sentence.

        Args:
            log_probs: [B, K] of all hypotheses.
            rows: [R] index among the B·K of those that the distributions are of.
            size: How many to return, if there are so many.
        """
        num_blocks = self.greatest.size(1)
        before = log_probs.flatten()[rows, None]
        best = torch.full(
            (log_probs.numel(), num_blocks), -math.inf, device=log_probs.device
        ).index_copy_(0, rows, (self.greatest - self.log_sums[:, None]) + before)
        best = best.view(len(log_probs), -1)
        index = best.topk(min(size, best.size(1)), dim=1, sorted=False).indices
        parents, blocks = index // num_blocks, index % num_blocks
        # Rows that nothing is known of have only blocks of -inf: any row does for them.
        place = torch.zeros_like(log_probs, dtype=torch.long).flatten()
        place[rows] = torch.arange(len(rows), device=rows.device)
        chosen = place.view_as(log_probs).gather(1, parents)
        return self._best_of_blocks(log_probs, parents, chosen, blocks, size)

    def _best_of_blocks(
        self, log_probs: Tensor, parents: Tensor, chosen: Tensor, blocks: Tensor, size: int
    ) -> Continuations:
        """The best continuations by the tokens of some blocks.

        Args:
            log_probs: [B, K] of all hypotheses.
            parents: [B, n] which of the K hypotheses each block belongs to.
            chosen: [B, n] which of the R distributions.
            blocks: [B, n] which blocks of it.
            size: How many.
        """
        vocab_size = self.logits.size(1)
        tokens = blocks[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=blocks.device)
        there = tokens.clamp(max=vocab_size - 1)
        logits = self.logits[chosen[:, :, None], there].float()
        before = log_probs.gather(1, parents)[:, :, None]
        totals = (logits - self.log_sums[chosen][:, :, None]) + before
        totals = totals.masked_fill_(tokens >= vocab_size, -math.inf).flatten(1)
        size = min(size, log_probs.size(1) * vocab_size)
        best, index = totals.topk(min(size, totals.size(1)), dim=1)
        return Continuations(
            best, parents.gather(1, index // _BLOCK), there.flatten(1).gather(1, index)
        )


def _greatest_and_sums(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest logit of each block, [R, blocks], and the logarithm of the sum of all, [R]."""
    num_rows, vocab_size = logits.shape
    num_whole = vocab_size // _BLOCK
    greatest = logits.new_empty((num_rows, -(-vocab_size // _BLOCK)), dtype=torch.float32)
    log_sums = logits.new_empty(num_rows, dtype=torch.float32)
    at_once = num_rows if logits.is_cuda else max(1, _ELEMENTS_AT_ONCE // vocab_size)
    for start in range(0, num_rows, at_once):
        part = slice(start, start + at_once)
        values = logits[part].float()
        whole = values[:, : num_whole * _BLOCK].view(len(values), num_whole, _BLOCK)
        greatest[part, :num_whole] = whole.amax(dim=2)
        if num_whole < greatest.size(1):
            greatest[part, num_whole] = values[:, num_whole * _BLOCK :].amax(dim=1)
        most = greatest[part].amax(dim=1)
        log_sums[part] = (values - most[:, None]).exp_().sum(dim=1).log_() + most
    return greatest, log_sums
