"""The most probable continuations of hypotheses, without sorting the vocabulary.

The n best tokens are in the n blocks of the vocabulary with the greatest maxima.
"""

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# The vocabulary is searched in blocks of about this many tokens.
_BLOCK_SIZE = 64
# With at most this many logits, computing all log probabilities is faster: fewer operations.
_MAX_DENSE_ELEMENTS = 1 << 18
# Logits per chunk: few enough to stay in a CPU's cache.
_CHUNK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class NextTokens:
    """The distributions of the next token of R hypotheses.

    Attributes:
        vocab_size: V.
        logits: [R, blocks, block] of any type, or log probabilities in fp32 if they are few; -inf
            for excluded tokens and after the last token.
        block_max: [R, blocks] greatest logit of each block.
        logsumexp: [R, 1] logsumexp of all logits, including those of excluded tokens; None if the
            logits are log probabilities.
        excluded: [N] tokens that are excluded.
        excluded_logits: [R, N] their logits.
    """

    vocab_size: int
    logits: Tensor
    block_max: Tensor
    logsumexp: Tensor | None
    excluded: Tensor
    excluded_logits: Tensor

    @classmethod
    def of(cls, logits: Tensor, excluded: tuple[int, ...]) -> "NextTokens":
        """Prepare the distributions of logits [R, V], which may be overwritten.

        Excluded tokens must not be produced, but keep their share of the probability.
        """
        num_rows, vocab_size = logits.shape
        is_dense = logits.numel() <= _MAX_DENSE_ELEMENTS
        if is_dense:
            logits = logits.float().log_softmax(dim=1)
        columns = indices_on(logits.device, excluded)
        excluded_logits = logits.index_select(1, columns)
        logits.index_fill_(1, columns, -math.inf)
        block_size = _block_size(vocab_size)
        if vocab_size % block_size:
            logits = F.pad(logits, (0, -vocab_size % block_size), value=-math.inf)
        logits = logits.view(num_rows, -1, block_size)
        logsumexp = None
        if is_dense:
            block_max = logits.amax(dim=2)
        else:
            block_max, allowed = (x.float() for x in block_max_and_logsumexp(logits))
            logsumexp = torch.logaddexp(allowed, excluded_logits.float().logsumexp(dim=1))[:, None]
        return cls(vocab_size, logits, block_max, logsumexp, columns, excluded_logits)

    def rule_out(self, token: int, rows: Tensor) -> None:
        """Rule out a token for the rows [R] that are True."""
        block, index = divmod(token, self.logits.size(2))
        self.logits[:, block, index] = self.logits[:, block, index].masked_fill(rows, -math.inf)
        self.block_max[:, block] = self.logits[:, block].amax(dim=1).float()

    def force(self, rows: Tensor, tokens: Tensor) -> None:
        """Exclude all tokens but [N] tokens of [N] rows, which keep their probability."""
        block_size = self.logits.size(2)
        blocks, columns = tokens // block_size, tokens % block_size
        forced = self._logits_of(tokens, rows)
        self.logits[rows] = -math.inf
        self.logits[rows, blocks, columns] = forced
        self.block_max[rows] = -math.inf
        self.block_max[rows, blocks] = forced.float()

    def best(self, log_probs: Tensor, rows: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the most probable continuations of each sentence, best first.

        These are [B, K'] log probabilities, the indices of the hypotheses that they continue, and
        their tokens.

        Args:
            log_probs: [B, K] log probabilities of all hypotheses.
            rows: [R] indices, among the B·K, of the hypotheses of the distributions, ascending.
            size: Maximum number of continuations of a sentence.
        """
        (num_sentences, num_hypotheses), num_slots = log_probs.shape, log_probs.numel()
        num_rows, num_blocks, block_size = self.logits.shape
        size = min(size, num_hypotheses * self.vocab_size)
        past = log_probs.view(-1, 1)
        if size == num_hypotheses == 1 and num_rows == num_sentences:
            return self._most_probable(past)
        # The best blocks of each sentence, [B, n] among its K · blocks.
        if num_rows == num_slots:
            best = self._normalized(self.block_max) + past
        else:
            best = past.new_full((num_slots, num_blocks), -math.inf)
            computed = self._normalized(self.block_max) + past.index_select(0, rows)
            best.index_copy_(0, rows, computed)
        best = best.view(num_sentences, -1)
        chosen = best.topk(min(size, best.size(1)), dim=1, sorted=False).indices
        # The same blocks among the R · blocks of the logits.
        blocks = chosen
        if num_sentences > 1:
            firsts = torch.arange(0, num_slots * num_blocks, best.size(1), device=rows.device)
            blocks = blocks + firsts[:, None]
        blocks = blocks.flatten()
        if num_rows < num_slots:
            # Blocks of hypotheses without logits have only -inf: any row can stand in for them.
            row_of_slot = rows.new_zeros(num_slots)
            row_of_slot[rows] = torch.arange(num_rows, device=rows.device)
            slots = blocks // num_blocks
            blocks = row_of_slot.index_select(0, slots) * num_blocks + blocks % num_blocks
        # The tokens of these blocks, [B, n · block], and the best of them.
        logits = self.logits.view(-1, block_size).index_select(0, blocks).float()
        if self.logsumexp is not None:
            logits = logits - self.logsumexp.index_select(0, blocks // num_blocks)
        past = log_probs.gather(1, chosen // num_blocks)[:, :, None]
        totals = (logits.view(*chosen.shape, -1) + past).flatten(1)
        best, index = totals.topk(min(size, totals.size(1)), dim=1)
        chosen = chosen.gather(1, index // block_size)
        tokens = chosen % num_blocks * block_size + index % block_size
        if self.vocab_size % block_size:
            tokens = tokens.clamp(max=self.vocab_size - 1)  # padding has no probability
        return best, chosen // num_blocks, tokens

    def _most_probable(self, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the single best continuation of each of R sentences with one hypothesis [R, 1]."""
        num_rows, num_blocks, block_size = self.logits.shape
        chosen = blocks = self.block_max.argmax(dim=1)
        if num_rows > 1:
            stop = num_rows * num_blocks
            blocks = blocks + torch.arange(0, stop, num_blocks, device=blocks.device)
        logits = self.logits.view(-1, block_size).index_select(0, blocks).float()
        best, column = self._normalized(logits).max(dim=1, keepdim=True)
        return best + past, torch.zeros_like(column), chosen[:, None] * block_size + column

    def _logits_of(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Return the logits [N] of tokens [N] of rows [N], even of excluded tokens."""
        block_size = self.logits.size(2)
        logits = self.logits[rows, tokens // block_size, tokens % block_size]
        for token, excluded in zip(self.excluded, self.excluded_logits[rows].mT, strict=True):
            logits = torch.where(tokens == token, excluded, logits)
        return logits

    def _normalized(self, logits: Tensor) -> Tensor:
        """Return the log probabilities of logits [R, …]."""
        return logits if self.logsumexp is None else logits - self.logsumexp


def block_max_and_logsumexp(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the greatest logit of each block, and the logsumexp of each row.

    Args:
        logits: [R, blocks, block] of R distributions; -inf for padding and forbidden tokens.

    Returns:
        [R, blocks] and [R], both fp32 (float64 of float64); -inf where all logits are.
    """
    precision = torch.promote_types(logits.dtype, torch.float32)
    num_rows = len(logits)
    block_max = logits.new_empty(logits.shape[:2], dtype=precision)
    logsumexp = logits.new_empty(num_rows, dtype=precision)
    row_size = logits.shape[1:].numel()
    chunk_size = num_rows if logits.is_cuda else max(1, _CHUNK_ELEMENTS // row_size)
    lowest = torch.finfo(precision).min
    for start in range(0, num_rows, chunk_size):
        chunk = slice(start, start + chunk_size)
        values = logits[chunk].to(precision)
        block_max[chunk] = values.amax(dim=2)
        # Finite, to avoid -inf - -inf.
        row_max = block_max[chunk].amax(dim=1).clamp(min=lowest)
        exponentials = (values - row_max[:, None, None]).exp_()
        logsumexp[chunk] = exponentials.flatten(1).sum(dim=1).log_() + row_max
    return block_max, logsumexp


@functools.cache
def indices_on(device: torch.device, numbers: tuple[int, ...]) -> Tensor:
    """Return N numbers as a tensor [N], which is copied to a device only once."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, device=device)


@functools.cache
def _block_size(vocab_size: int) -> int:
    """Return about `_BLOCK_SIZE`, preferably a divisor of the vocabulary's size."""
    sizes = range(_BLOCK_SIZE // 2, 2 * _BLOCK_SIZE + 1)
    divisors = [size for size in sizes if vocab_size % size == 0]
    return min(divisors, key=lambda size: abs(size - _BLOCK_SIZE), default=_BLOCK_SIZE)
