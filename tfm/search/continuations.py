"""The most probable continuations of hypotheses, without sorting the vocabulary."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.backends.token_blocks import block_max_and_logsumexp

# The vocabulary is looked through in blocks of about so many tokens.
_BLOCK = 64
# All of so few are made log probabilities: it is fewer operations, but more to write.
_FEW_ELEMENTS = 1 << 18

# [R, blocks, block] logits → the greatest of each block, and the logarithm of the sum of all.
BlockReduction = Callable[[Tensor], tuple[Tensor, Tensor]]


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
        vocab_size: V.
        logits: [R, blocks, block] of the next token, as fp32 if they are few, else of any type;
            -inf where a token is ruled out, and behind the last.
        block_max: [R, blocks] the greatest logit of each block.
        logsumexp: [R, 1] logarithm of the sum of their exponentials, of those ruled out, too; None
            if that is zero.
        never: [N] tokens that are ruled out.
        never_logits: [R, N] what their logits were.
    """

    vocab_size: int
    logits: Tensor
    block_max: Tensor
    logsumexp: Tensor | None
    never: Tensor
    never_logits: Tensor

    @classmethod
    def of(
        cls, logits: Tensor, never: Sequence[int], look: BlockReduction = block_max_and_logsumexp
    ) -> "NextTokens":
        """Look through logits [R, V], which may be changed.

        Args:
            logits: Of the next token.
            never: Tokens that are not to be produced; they have their share of the probability.
            look: Looks through them if they are many.
        """
        num_rows, vocab_size = logits.shape
        are_few = logits.numel() <= _FEW_ELEMENTS
        if are_few:
            logits = logits.float().log_softmax(dim=1)
        columns = _on_device(tuple(never), logits.device)
        never_logits = logits.index_select(1, columns)
        logits.index_fill_(1, columns, -math.inf)
        size = _block_size(vocab_size)
        if vocab_size % size:
            logits = F.pad(logits, (0, -vocab_size % size), value=-math.inf)
        logits = logits.view(num_rows, -1, size)
        logsumexp = None
        if are_few:
            block_max = logits.amax(dim=2)
        else:
            block_max, others = (each.float() for each in look(logits))
            logsumexp = torch.logaddexp(others, never_logits.float().logsumexp(dim=1))[:, None]
        return cls(vocab_size, logits, block_max, logsumexp, columns, never_logits)

    def force(self, rows: Tensor, tokens: Tensor) -> None:
        """Rule out all tokens but one, which keeps its probability, or has it again.

        Args:
            rows: [N] which of the R distributions.
            tokens: [N] the token of each.
        """
        block_size = self.logits.size(2)
        blocks, places = tokens // block_size, tokens % block_size
        kept = self._logits_of(tokens, rows)
        self.logits[rows] = -math.inf
        self.logits[rows, blocks, places] = kept
        self.block_max[rows] = -math.inf
        self.block_max[rows, blocks] = kept.float()

    def log_probs_of(self, tokens: Tensor) -> Tensor:
        """[R] log probability of one token [R] of each distribution, even if it is ruled out."""
        logits = self._logits_of(tokens, torch.arange(len(tokens), device=tokens.device))
        return self._normalized(logits.float()[:, None])[:, 0]

    def best(self, log_probs: Tensor, rows: Tensor, size: int) -> Continuations:
        """The most probable continuations of each sentence, best first.

        Args:
            log_probs: [B, K] of all hypotheses.
            rows: [R] index among the B·K of those that the distributions are of, in order.
            size: How many to return, if there are so many.
        """
        (num_sentences, num_hypotheses), num_slots = log_probs.shape, log_probs.numel()
        num_rows, num_blocks, block_size = self.logits.shape
        size = min(size, num_hypotheses * self.vocab_size)
        before = log_probs.view(-1, 1)
        if size == num_hypotheses == 1 and num_rows == num_sentences:
            return self._most_probable(before)
        # The best blocks of each sentence, [B, n] among its K · blocks.
        if num_rows == num_slots:
            best = self._normalized(self.block_max) + before
        else:
            best = before.new_full((num_slots, num_blocks), -math.inf)
            known = self._normalized(self.block_max) + before.index_select(0, rows)
            best.index_copy_(0, rows, known)
        best = best.view(num_sentences, -1)
        chosen = best.topk(min(size, best.size(1)), dim=1, sorted=False).indices
        # The same among the R · blocks that there are logits of.
        blocks = chosen
        if num_sentences > 1:
            firsts = torch.arange(0, num_slots * num_blocks, best.size(1), device=rows.device)
            blocks = blocks + firsts[:, None]
        blocks = blocks.flatten()
        if num_rows < num_slots:
            # Slots that nothing is known of have only blocks of -inf: any row does for them.
            places = rows.new_zeros(num_slots)
            places[rows] = torch.arange(num_rows, device=rows.device)
            blocks = places.index_select(0, blocks // num_blocks) * num_blocks + blocks % num_blocks
        # Their tokens, [B, n · block], and the best of these.
        logits = self.logits.view(-1, block_size).index_select(0, blocks).float()
        if self.logsumexp is not None:
            logits = logits - self.logsumexp.index_select(0, blocks // num_blocks)
        past = log_probs.gather(1, chosen // num_blocks)[:, :, None]
        totals = (logits.view(*chosen.shape, -1) + past).flatten(1)
        best, places = totals.topk(min(size, totals.size(1)), dim=1)
        chosen = chosen.gather(1, places // block_size)
        tokens = chosen % num_blocks * block_size + places % block_size
        if self.vocab_size % block_size:
            tokens = tokens.clamp(max=self.vocab_size - 1)  # what is behind them cannot go on
        return Continuations(best, chosen // num_blocks, tokens)

    def _most_probable(self, before: Tensor) -> Continuations:
        """What `best` finds by hypotheses [R, 1] each of its own sentence, if one is wanted."""
        num_rows, num_blocks, block_size = self.logits.shape
        chosen = blocks = self.block_max.argmax(dim=1)
        if num_rows > 1:
            blocks = blocks + torch.arange(
                0, num_rows * num_blocks, num_blocks, device=blocks.device
            )
        logits = self.logits.view(-1, block_size).index_select(0, blocks).float()
        best, place = self._normalized(logits).max(dim=1, keepdim=True)
        parents = torch.zeros_like(place)
        return Continuations(best + before, parents, chosen[:, None] * block_size + place)

    def _logits_of(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """[N] what the logits of tokens [N] of rows [N] are, or were before they were ruled out."""
        block_size = self.logits.size(2)
        logits = self.logits[rows, tokens // block_size, tokens % block_size]
        for token, before in zip(self.never, self.never_logits[rows].mT, strict=True):
            logits = torch.where(tokens == token, before, logits)
        return logits

    def _normalized(self, logits: Tensor) -> Tensor:
        """Log probabilities of logits [R, …]."""
        return logits if self.logsumexp is None else logits - self.logsumexp


@functools.cache
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(numbers, device=device)


@functools.cache
def _block_size(vocab_size: int) -> int:
    """About `_BLOCK`, and if there is such a number, one that divides the vocabulary."""
    sizes = sorted(range(_BLOCK // 2, 2 * _BLOCK + 1), key=lambda size: abs(size - _BLOCK))
    return next((size for size in sizes if vocab_size % size == 0), _BLOCK)
