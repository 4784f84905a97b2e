"""Label-smoothed cross-entropy, fused with the output projection (Vaswani et al. 2017, §5.4)."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from tfm.backends.training_compiled import compile_for_sizes
from tfm.config.imported import imported
from tfm.dataset.batching import PADDING, Batch
from tfm.errors import UsageError
from tfm.machine.compute import autocast_dtype, device_memory_bytes
from tfm.model.build import Model
from tfm.model.recurrent import Recurrent
from tfm.model.source_attention import reinforce_loss

# (hidden_states, weight, gradients of both or None) → loss, negative log-likelihood.
ComputeLoss = Callable[[Tensor, Tensor, tuple[Tensor, Tensor] | None], tuple[Tensor, Tensor]]
# [2] sums of loss and negative log-likelihood, gradient of the states, and of the matrix.
ChunkLoss = tuple[Tensor, Tensor, Tensor]

# Logits per chunk: few enough to stay in a CPU's cache; on a GPU half a gigabyte in bf16, which has
# not been measured.
_CPU_CHUNK_ELEMENTS, _GPU_CHUNK_ELEMENTS = 1 << 22, 1 << 28
_CHUNK_MULTIPLE = 64
# The least number of rows of a chunk on a CPU, for fast products; and of the product that gives the
# gradient of the matrix, which joins chunks: adding up the gradient of each would take longer.
_MIN_CHUNK_ROWS, _MIN_PRODUCT_ROWS = 256, 1024
# Bytes of the logits of a compiled chunk and of their gradient, at most, and as a share of the
# memory: few chunks, so that the host makes few calls. The numbers have not been measured.
_COMPILED_CHUNK_BYTES, _COMPILED_CHUNK_SHARE = 2 << 30, 1 / 16
_MIN_PROBABILITY = 1e-30
_BIAS_COLUMNS = 8  # a power of two, so that sharing out the bias is exact; GPUs need multiples of 8


class ClassWeights(NamedTuple):
    """The weights of the classes' negative log probabilities in the loss of a token."""

    gold: float  # of the right class, in addition to `other`
    other: float  # of every class

    @classmethod
    def of(cls, label_smoothing: float, num_classes: int) -> "ClassWeights":
        """Return 1 - ε for the right class, and an equal share of ε for each other class (§5.4)."""
        other = label_smoothing / (num_classes - 1)
        return cls(gold=1.0 - label_smoothing - other, other=other)


class BatchLoss(nn.Module):
    """Smoothed loss and negative log-likelihood of batches, summed over target tokens.

    Both are scalars in nats.

    Args:
        model: The model.
        label_smoothing: ε, the probability that the wrong classes share.
        custom: MODULE:NAME of a loss of the user, to import in the place of cross-entropy.
        autocast: Returns the context of a forward pass.
        compiles: Whether to compile the loss.
    """

    def __init__(
        self,
        model: Model,
        *,
        label_smoothing: float,
        custom: str | None = None,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
        compiles: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self._label_smoothing = label_smoothing
        self._autocast = autocast
        self._chunk_loss: Callable[..., ChunkLoss] | None = None
        if custom is not None:
            self._chunk_loss = partial(_custom_chunk_loss, custom, imported(custom, "loss"))
        elif compiles:
            self._chunk_loss = compile_for_sizes(_chunk_loss)

    @override
    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        model, samples = self.model, None
        inputs = (batch.source, batch.sources, batch.target_input, batch.targets)
        with self._autocast():
            if isinstance(model, Recurrent):
                hidden_states, samples = model.decode_packed(*inputs)
            else:
                hidden_states = model.forward_packed(*inputs)
            weight: Tensor = model.output_weight
            if model.output_bias is not None:
                hidden_states, weight = join_bias(hidden_states, weight, model.output_bias)
            token_nll = None if samples is None else samples.new_empty(len(samples))
            loss, nll = label_smoothed_cross_entropy(
                hidden_states,
                weight,
                batch.target_output,
                label_smoothing=self._label_smoothing,
                num_tokens=batch.num_tokens,
                chunk_loss=self._chunk_loss if self.training and samples is None else None,
                token_nll=token_nll,
            )
        if samples is not None and token_nll is not None:
            rows = slice(batch.num_tokens)
            loss = loss + reinforce_loss(samples[rows], token_nll[rows])
        return loss, nll


def join_bias(hidden_states: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return [N, d_model + 8] states that end in ones, and [V, d_model + 8] a weight with the bias.

    Their product is the product of [N, d_model] and [V, d_model], plus the bias [V].
    """
    columns = (bias / _BIAS_COLUMNS)[:, None].expand(-1, _BIAS_COLUMNS)
    return F.pad(hidden_states, (0, _BIAS_COLUMNS), value=1.0), torch.cat([weight, columns], dim=1)


def perplexity(nll: float) -> float:
    """Return the perplexity of a mean negative log-likelihood in nats, at most e^100."""
    return math.exp(min(nll, 100.0))


def label_smoothed_cross_entropy(
    hidden_states: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float,
    num_tokens: int,
    chunk_loss: Callable[..., ChunkLoss] | None = None,
    token_nll: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss against targets with 1 - ε for the right class and ε for the others (§5.4).

    Args:
        hidden_states: [N, d_model] decoder outputs.
        weight: [V, d_model] output projection.
        targets: [N] token ids, then `PADDING` in spare rows.
        label_smoothing: ε.
        num_tokens: The number of rows before the spare rows.
        chunk_loss: `_chunk_loss`, compiled, or a loss of the user; None to compute without.
        token_nll: [N] in which to write the negative log-likelihood of each token; needs
            `chunk_loss` to be None.

    Returns:
        The smoothed loss and the negative log-likelihood: scalars, each summed over rows, in nats.
    """
    if not torch.is_grad_enabled():  # an autograd.Function does not see this
        hidden_states, weight = hidden_states.detach(), weight.detach()
    weights = ClassWeights.of(label_smoothing, len(weight))
    if chunk_loss is not None:
        compute = partial(_compute_by_chunks, chunk_loss, targets=targets, weights=weights)
    else:
        compute = partial(
            _compute, targets=targets, num_tokens=num_tokens, weights=weights, token_nll=token_nll
        )
    loss, nll = _LossWithGradients.apply(compute, hidden_states, weight)  # type: ignore[no-untyped-call]
    return loss, nll


class _LossWithGradients(torch.autograd.Function):
    """Computes gradients in the forward pass, so that only a chunk of logits exists at a time."""

    @staticmethod
    def forward(
        ctx: Any, compute: ComputeLoss, hidden_states: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        gradients = None
        if any(ctx.needs_input_grad):
            precision = torch.promote_types(weight.dtype, torch.float32)
            grad_weight = torch.zeros_like(weight, dtype=precision)
            gradients = torch.empty_like(hidden_states), grad_weight
            ctx.save_for_backward(*gradients)
        loss, nll = compute(hidden_states, weight, gradients)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_states, grad_weight = ctx.saved_tensors
        return None, grad_hidden_states * grad_loss, grad_weight * grad_loss


def _compute(
    hidden_states: Tensor,
    weight: Tensor,
    gradients: tuple[Tensor, Tensor] | None,
    *,
    targets: Tensor,
    num_tokens: int,
    weights: ClassWeights,
    token_nll: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of chunks of rows, and its gradients.

    The gradient of a logit is p - q, where p is the model's probability and q the target's. As q is
    the same for all classes but the right one, smoothing contributes through the sum of the
    projection's rows, without a pass over the logits.
    """
    compute_dtype = autocast_dtype(hidden_states)
    precision = torch.promote_types(hidden_states.dtype, torch.float32)
    gold, other = weights
    with torch.autocast(hidden_states.device.type, enabled=False):
        matrix = weight.to(compute_dtype)
        is_cpu = hidden_states.device.type == "cpu"
        # A CPU reads this matrix faster in bf16.
        is_copied = is_cpu and compute_dtype == torch.bfloat16
        columns = matrix.T.contiguous() if is_copied else matrix.T
        row_sum = matrix.sum(0, dtype=precision)
        loss, nll = (hidden_states.new_zeros((), dtype=precision) for _ in range(2))
        chunk_elements = _CPU_CHUNK_ELEMENTS if is_cpu else _GPU_CHUNK_ELEMENTS
        num_rows = max(chunk_elements // len(weight), _MIN_CHUNK_ROWS)
        num_chunks = -(-len(hidden_states) // num_rows)
        chunks = _chunks(len(hidden_states), num_chunks)
        # Allocating memory for each chunk costs as much as filling it.
        size = chunks[0].stop
        num_joined = -(-_MIN_PRODUCT_ROWS // size)  # chunks of a product
        logits_buffer = matrix.new_empty(size, len(weight))
        grads = matrix.new_empty(min(num_joined * size, len(hidden_states)), len(weight))
        for number, chunk in enumerate(chunks):
            start = chunk.start - number % num_joined * size  # of the rows of the product
            states = hidden_states[chunk].to(compute_dtype)
            index = targets[chunk, None].clamp(min=0)
            num_real = min(len(states), max(0, num_tokens - chunk.start))
            logits = logits_buffer[: len(states)]
            probs = grads[chunk.start - start :][: len(states)]
            torch.mm(states, columns, out=logits)
            if gradients is not None:  # products of gradients round probabilities in any case
                torch.softmax(logits, -1, out=probs)
            else:
                probs = logits.softmax(-1, dtype=precision)
            gold_logits = logits.gather(1, index).to(precision)
            log_normalizer = _log_normalizer(logits, probs, index, gold_logits)
            chunk_nll = (log_normalizer - gold_logits)[:num_real]
            sums = (states.to(precision) @ row_sum)[:num_real]
            all_nll = len(weight) * log_normalizer[:num_real, 0] - sums
            loss += gold * chunk_nll.sum() + other * all_nll.sum()
            nll += chunk_nll.sum()
            if token_nll is not None:
                token_nll[chunk][:num_real] = chunk_nll[:, 0]
            if gradients is None:
                continue
            grad_hidden_states, grad_weight = gradients
            grad = probs
            grad[torch.arange(len(grad), device=grad.device), index[:, 0]] -= gold
            grad[num_real:] = 0
            chunk_grad = grad @ matrix
            chunk_grad[:num_real] -= other * row_sum.to(compute_dtype)
            grad_hidden_states[chunk] = chunk_grad
            grad_weight -= other * states[:num_real].sum(0, dtype=precision)
            if chunk is chunks[-1] or (number + 1) % num_joined == 0:
                joined = hidden_states[start : chunk.stop].to(compute_dtype)
                grad_weight += (grads[: len(joined)].T @ joined).to(grad_weight.dtype)
    return loss, nll


def _compute_by_chunks(
    chunk_loss: Callable[..., ChunkLoss],
    hidden_states: Tensor,
    weight: Tensor,
    gradients: tuple[Tensor, Tensor] | None,
    *,
    targets: Tensor,
    weights: ClassWeights,
) -> tuple[Tensor, Tensor]:
    """Compute the loss as `_compute` does, in equal chunks, since each size is compiled."""
    dtype = autocast_dtype(hidden_states)
    precision = torch.promote_types(hidden_states.dtype, torch.float32)
    sums = hidden_states.new_zeros(2, dtype=precision)
    with torch.autocast(hidden_states.device.type, enabled=False):
        matrix = weight.to(dtype)
        start = 0
        num_bytes = 2 * len(hidden_states) * len(weight) * dtype.itemsize
        num_chunks = _num_compiled_chunks(num_bytes, device_memory_bytes(weight.device))
        for states in torch.split(hidden_states, -(-len(hidden_states) // num_chunks)):
            rows = slice(start, start + len(states))
            loss, grad_states, grad_matrix = chunk_loss(
                states.to(dtype), matrix, targets[rows], weights
            )
            start = rows.stop
            sums += loss
            if gradients is not None:
                gradients[0][rows] = grad_states
                gradients[1].add_(grad_matrix)
    loss, nll = (each.clone() for each in sums)  # FSDP warns of views
    return loss, nll


def _num_compiled_chunks(num_bytes: int, memory_bytes: int) -> int:
    """Return a power of two, because the number of rows is a multiple of a large one."""
    limit = min(_COMPILED_CHUNK_BYTES, int(_COMPILED_CHUNK_SHARE * memory_bytes))
    return 1 << max(0, (-(-num_bytes // limit) - 1).bit_length())


def _chunk_loss(
    states: Tensor, matrix: Tensor, targets: Tensor, weights: ClassWeights
) -> ChunkLoss:
    """Return the [2] sums of loss and negative log-likelihood, and the gradients of the loss."""
    precision = torch.promote_types(states.dtype, torch.float32)
    gold, other = weights
    logits = (states @ matrix.T).to(precision)
    is_real = (targets != PADDING)[:, None]
    index = targets.clamp(min=0)[:, None]
    log_normalizer = logits.logsumexp(-1, keepdim=True)
    nll = (log_normalizer - logits.gather(1, index)) * is_real
    all_nll = (len(matrix) * log_normalizer - logits.sum(-1, keepdim=True)) * is_real
    is_gold = index == torch.arange(len(matrix), device=index.device)
    grad = ((logits - log_normalizer).exp() - other - gold * is_gold) * is_real
    grad = grad.to(states.dtype)
    loss = gold * nll.sum() + other * all_nll.sum()
    return torch.stack([loss, nll.sum()]), grad @ matrix, grad.T @ states


def _custom_chunk_loss(
    name: str,
    token_losses: Callable[[Tensor, Tensor], Tensor],
    states: Tensor,
    matrix: Tensor,
    targets: Tensor,
    _: ClassWeights,
) -> ChunkLoss:
    """Return what `_chunk_loss` returns, for the losses of tokens by a function of the user."""
    precision = torch.promote_types(states.dtype, torch.float32)
    is_real, index = targets != PADDING, targets.clamp(min=0)
    logits = (states @ matrix.T).to(precision)
    nll = F.cross_entropy(logits, index, reduction="none") * is_real
    with torch.enable_grad():
        losses = token_losses(logits.requires_grad_(), index)
        if not isinstance(losses, Tensor) or losses.shape != index.shape:
            shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise UsageError(f"loss {name} returns {shape}, but must return {list(index.shape)}")
        loss = (losses * is_real).sum()
    grad = torch.autograd.grad(loss, logits)[0].to(states.dtype)
    return torch.stack([loss.detach(), nll.sum()]), grad @ matrix, grad.T @ states


def _chunks(num_rows: int, num_chunks: int) -> list[slice]:
    """Return slices of one size, except for the last: oneDNN prepares for each new size."""
    size = -(-num_rows // max(1, num_chunks))
    size = -(-size // _CHUNK_MULTIPLE) * _CHUNK_MULTIPLE
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def _log_normalizer(logits: Tensor, probs: Tensor, index: Tensor, gold_logits: Tensor) -> Tensor:
    """Return the [N, 1] logsumexp, from the gold logit and its probability unless that is tiny."""
    gold_probs = probs.gather(1, index).to(gold_logits.dtype)
    # Deciding would make the host wait for a GPU.
    if logits.device.type != "cpu" or bool((gold_probs < _MIN_PROBABILITY).any()):
        return logits.to(gold_logits.dtype).logsumexp(-1, keepdim=True)
    return gold_logits - gold_probs.log()
