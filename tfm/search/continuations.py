"""The most probable continuations of hypotheses, without sorting the vocabulary.

The n best tokens are in the n blocks of the vocabulary with the greatest maxima.
"""

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.machine.compute import has_fast_exp
from tfm.vocabulary.subword import EOS

# The vocabulary is searched in blocks of about this many tokens.
_BLOCK_SIZE = 64
# Logits that a thread converts to fp32 at a time, so that they stay in the cache of its core.
_CACHED_LOGITS = 1 << 17
_MIN_SUM = 1e-30  # of exponentials; in a smaller sum, some may have underflowed


@dataclass(frozen=True)
class NextTokens:
    """The distributions of the next token of R hypotheses.

    Attributes:
        vocab_size: V.
        scores: [R, blocks, block] log probabilities in fp32 or float64, or logits in another
            dtype; -inf for excluded tokens and after the last token.
        normalizers: [R, 1] the logits of a hypothesis are greater than its log probabilities by
            this; None if the scores are log probabilities.
        block_max: [R, blocks] greatest log probability of each block.
        excluded: [N] tokens that are excluded.
        excluded_scores: [R, N] their scores.
    """

    vocab_size: int
    scores: Tensor
    normalizers: Tensor | None
    block_max: Tensor
    excluded: Tensor
    excluded_scores: Tensor

    @classmethod
    def of(cls, logits: Tensor, excluded: tuple[int, ...]) -> "NextTokens":
        """Compute the distributions of logits [R, V], which may be overwritten.

        Excluded tokens must not be produced, but keep their share of the probability.
        """
        num_rows, vocab_size = logits.shape
        block_size = _block_size(vocab_size)
        if vocab_size % block_size:
            logits = F.pad(logits, (0, -vocab_size % block_size), value=-math.inf)
        columns = indices_on(logits.device, excluded)
        if logits.is_cpu and logits.dtype.itemsize < torch.float32.itemsize:
            excluded_scores = logits.index_select(1, columns)
            normalizers, block_max = _normalize(logits, block_size, by_exp=has_fast_exp())
            scores = logits.index_fill_(1, columns, -math.inf).view(num_rows, -1, block_size)
            blocks = columns // block_size  # their maxima may have been excluded tokens
            block_max[:, blocks] = scores[:, blocks].amax(dim=2).float() - normalizers
            return cls(vocab_size, scores, normalizers, block_max, columns, excluded_scores)
        scores = logits if logits.dtype == torch.float64 else logits.float()
        scores = torch.log_softmax(scores, dim=1, out=scores)
        excluded_scores = scores.index_select(1, columns)
        scores = scores.index_fill_(1, columns, -math.inf).view(num_rows, -1, block_size)
        return cls(vocab_size, scores, None, scores.amax(dim=2), columns, excluded_scores)

    def rule_out(self, rows: Tensor, tokens: Tensor) -> None:
        """Rule out [N] tokens of [N] rows."""
        num_blocks, block_size = self.scores.shape[1:]
        blocks = tokens // block_size
        self.scores[rows, blocks, tokens % block_size] = negative_infinity(self.scores)
        self.block_max[rows, blocks] = self._log_probs(rows * num_blocks + blocks).amax(dim=1)

    def force(self, rows: Tensor, tokens: Tensor) -> None:
        """Exclude all tokens but [N] tokens of [N] rows, which keep their probability."""
        num_blocks, block_size = self.scores.shape[1:]
        blocks, columns = tokens // block_size, tokens % block_size
        forced = self._scores_of(tokens, rows)
        self.scores[rows] = negative_infinity(self.scores)
        self.scores[rows, blocks, columns] = forced
        self.block_max[rows] = negative_infinity(self.block_max)
        self.block_max[rows, blocks] = self._log_probs(rows * num_blocks + blocks).amax(dim=1)

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
        num_rows, num_blocks, block_size = self.scores.shape
        size = min(size, num_hypotheses * self.vocab_size)
        past = log_probs.view(-1, 1)
        if size == num_hypotheses == 1 and num_rows == num_sentences:
            return self._most_probable(past)
        # The best blocks of each sentence, [B, n] among its K · blocks.
        if num_rows == num_slots:
            best = self.block_max + past
        else:
            best = past.new_full((num_slots, num_blocks), -math.inf)
            computed = self.block_max + past.index_select(0, rows)
            best.index_copy_(0, rows, computed)
        best = best.view(num_sentences, -1)
        chosen = best.topk(min(size, best.size(1)), dim=1, sorted=False).indices
        # The same blocks among the R · blocks that were computed.
        blocks = chosen
        if num_sentences > 1:
            firsts = torch.arange(0, num_slots * num_blocks, best.size(1), device=rows.device)
            blocks = blocks + firsts[:, None]
        blocks = blocks.flatten()
        if num_rows < num_slots:
            # Blocks of other hypotheses have only -inf: any row can stand in for them.
            row_of_slot = rows.new_zeros(num_slots)
            row_of_slot[rows] = torch.arange(num_rows, device=rows.device)
            slots = blocks // num_blocks
            blocks = row_of_slot.index_select(0, slots) * num_blocks + blocks % num_blocks
        # The tokens of these blocks, [B, n · block], and the best of them.
        candidates = self._log_probs(blocks)
        past = log_probs.gather(1, chosen // num_blocks)[:, :, None]
        totals = (candidates.view(*chosen.shape, -1) + past).flatten(1)
        best, index = totals.topk(min(size, totals.size(1)), dim=1)
        chosen = chosen.gather(1, index // block_size)
        tokens = chosen % num_blocks * block_size + index % block_size
        if self.vocab_size % block_size:
            tokens = tokens.clamp(max=self.vocab_size - 1)  # padding has no probability
        return best, chosen // num_blocks, tokens

    def best_and_given(self, past: Tensor, rows: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """Return continuations of each hypothesis: its most probable token, and some tokens.

        Args:
            past: [B, K] log probabilities of all hypotheses.
            rows: [R] indices of the hypotheses of the distributions, as in `best`.
            given: [R, N] tokens.

        Returns:
            Total log probabilities [R, 1 + N], and the tokens [R, 1 + N].
        """
        past = past.view(-1, 1).index_select(0, rows)
        best, _, tokens = self._most_probable(past)
        log_probs = self.scores.flatten(1).gather(1, given)
        if self.normalizers is not None:
            log_probs = log_probs - self.normalizers
        return torch.cat([best, log_probs + past], dim=1), torch.cat([tokens, given], dim=1)

    def _most_probable(self, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the single best continuation of each of R sentences with one hypothesis [R, 1]."""
        num_rows, num_blocks, block_size = self.scores.shape
        chosen = blocks = self.block_max.argmax(dim=1)
        if num_rows > 1:
            stop = num_rows * num_blocks
            blocks = blocks + torch.arange(0, stop, num_blocks, device=blocks.device)
        best, column = self._log_probs(blocks).max(dim=1, keepdim=True)
        return best + past, torch.zeros_like(column), chosen[:, None] * block_size + column

    def _log_probs(self, blocks: Tensor) -> Tensor:
        """Return the log probabilities [N, block] of blocks [N] among the R · blocks."""
        _, num_blocks, block_size = self.scores.shape
        scores = self.scores.view(-1, block_size).index_select(0, blocks)
        if self.normalizers is None:
            return scores
        return scores - self.normalizers.index_select(0, blocks // num_blocks)

    def _scores_of(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Return the scores [N] of tokens [N] of rows [N], even of excluded tokens."""
        block_size = self.scores.size(2)
        scores = self.scores[rows, tokens // block_size, tokens % block_size]
        for token, excluded in zip(self.excluded, self.excluded_scores[rows].mT, strict=True):
            scores = torch.where(tokens == token, excluded, scores)
        return scores


def _normalize(logits: Tensor, block_size: int, *, by_exp: bool) -> tuple[Tensor, Tensor]:
    """Return the normalizers [R, 1] of logits [R, V], and the maxima of blocks [R, V / block].

    The maxima are log probabilities. Only a part of the logits is in fp32 at a time. With `by_exp`,
    the normalizers are logarithms of sums of exponentials, unless these overflow or underflow.
    """
    num_rows, vocab_size = logits.shape
    normalizers = torch.empty(num_rows, 1)
    block_max = torch.empty(num_rows, vocab_size // block_size)
    size = max(1, torch.get_num_threads() * _CACHED_LOGITS // vocab_size)
    buffer = torch.empty(min(size, num_rows), vocab_size)
    tensors = logits, normalizers, block_max
    parts = zip(*(torch.split(x, size) for x in tensors), strict=True)
    for part, part_normalizers, part_max in parts:
        x = buffer[: len(part)].copy_(part)
        torch.amax(x.view(len(x), -1, block_size), dim=2, out=part_max)
        if by_exp:
            torch.sum(x.exp_(), 1, keepdim=True, out=part_normalizers)
        else:
            # EOS is never impossible, so its logit is finite.
            torch.log_softmax(x, dim=1, out=x)
            torch.sub(part[:, EOS, None], x[:, EOS, None], out=part_normalizers)
    if by_exp:
        if not (normalizers.min() > _MIN_SUM and normalizers.max() < math.inf):
            return _normalize(logits, block_size, by_exp=False)
        normalizers.log_()
    return normalizers, block_max.sub_(normalizers)


def negative_infinity(x: Tensor) -> Tensor:
    """Return -inf as a scalar tensor with the dtype and device of x […].

    If a Python number is written to indices on a GPU, the host waits for a copy.
    """
    return x.new_full((), -math.inf)


@functools.cache
def indices_on(device: torch.device, numbers: tuple[int, ...]) -> Tensor:
    """Return N numbers as a tensor [N] on a device; it is copied there only once."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, device=device)


@functools.cache
def _block_size(vocab_size: int) -> int:
    """Return about `_BLOCK_SIZE`, preferably a divisor of the vocabulary's size."""
    sizes = range(_BLOCK_SIZE // 2, 2 * _BLOCK_SIZE + 1)
    divisors = [size for size in sizes if vocab_size % size == 0]
    return min(divisors, key=lambda size: abs(size - _BLOCK_SIZE), default=_BLOCK_SIZE)
