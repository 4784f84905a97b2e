"""Multi-head attention with dot-product or additive scores (Vaswani et al. 2017, §3.2, §4)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import TransformerConfig
from tfm.data.packing import Layout

# At most this many elements of the sums of queries and keys exist at a time.
_CHUNK_ELEMENTS = 1 << 24


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Return vᵀ tanh(q + k) of projected queries and keys (Bahdanau et al. 2015, A.1.2).

    Args:
        query: [B, h, …, T, d_k].
        key: [B, h, …, S, d_k].
        weight: [h, d_k] v of each head.

    Returns:
        [B, h, …, T, S].
    """
    scores: Tensor = _AdditiveScores.apply(query, key, weight)  # type: ignore[no-untyped-call]
    return scores


class _AdditiveScores(torch.autograd.Function):
    """Computes the sums q + k, which are d_k times as large as the scores, in chunks."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, weight)
        column = _per_head(weight.to(query.dtype), query).mT
        chunks = [
            (_tanh_of_sums(query[chunk], key) @ column).squeeze(-1) for chunk in _chunks(query, key)
        ]
        return torch.cat(chunks, dim=-2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, weight = ctx.saved_tensors
        row = _per_head(weight.to(query.dtype), query)
        grad_query, grad_key = torch.empty_like(query), torch.zeros_like(key)
        grad_weight = torch.zeros_like(weight)
        summed_dims = [dim for dim in range(query.dim()) if dim not in (1, query.dim() - 1)]
        for chunk in _chunks(query, key):
            tanh = _tanh_of_sums(query[chunk], key)
            grad_weight += (grad[chunk].unsqueeze(-2) @ tanh).squeeze(-2).sum(summed_dims)
            slope = tanh.square_().neg_().add_(1).mul_(row).mul_(grad[chunk].unsqueeze(-1))
            grad_query[chunk] = slope.sum(-2)
            grad_key += slope.sum(-3)
        return grad_query, grad_key, grad_weight


def _tanh_of_sums(query: Tensor, key: Tensor) -> Tensor:
    """Return [B, h, …, T, S, d_k]."""
    return (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()


def _per_head(weight: Tensor, query: Tensor) -> Tensor:
    """View [h, d_k] to broadcast against [B, h, …, T, S, d_k]."""
    return weight.view(len(weight), *[1] * (query.dim() - 2), -1)


def _chunks(query: Tensor, key: Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield indices that select chunks of T in tensors [B, h, …, T, d_k]."""
    rows = max(1, _CHUNK_ELEMENTS // max(1, key.numel()))
    for start in range(0, query.size(-2), rows):
        yield (..., slice(start, start + rows), slice(None))


def new_additive_weight(num_heads: int, key_width: int) -> nn.Parameter:
    """Draw v [h, d_k] of additive attention so that scores start with a variance of at most 1."""
    return nn.Parameter(torch.empty(num_heads, key_width).normal_(std=key_width**-0.5))


@dataclass(frozen=True, kw_only=True)
class AttentionMask:
    """Which keys each query may attend to."""

    # [B] number of valid keys, which come first; None if all are valid.
    key_lengths: Tensor | None = None
    causal: bool = False  # whether query i sees keys 0 to i only
    # In self-attention, the number of keys that a query sees, including its own: its
    # neighbors on both sides, or the preceding ones if causal; None for all.
    window: int | None = None

    def allowed(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
        """Return [B or 1, 1, T or 1, S], True where attention is allowed; None if all is."""
        if self.key_lengths is None and self.window is None and not self.causal:
            return None
        rows = torch.arange(num_queries, device=device)[:, None]
        columns = torch.arange(num_keys, device=device)
        if self.window is not None:
            return self.window_mask(rows, columns, num_keys)
        allowed = (columns <= rows)[None, None] if self.causal else None
        if self.key_lengths is not None:
            valid = (columns < self.key_lengths[:, None])[:, None, None, :]
            allowed = valid if allowed is None else allowed & valid
        return allowed

    def window_size(self) -> tuple[int, int]:
        """Return the numbers of keys before and after its own that a query sees in the window."""
        neighbors = (self.window or 1) - 1
        return (neighbors, 0) if self.causal else (neighbors // 2, neighbors - neighbors // 2)

    def window_mask(self, rows: Tensor, columns: Tensor, num_keys: int) -> Tensor:
        """Return [B or 1, 1, …], True where a key is valid and in the window of a query.

        Positions of queries, `rows`, and of keys, `columns`, broadcast to […]. Key positions may
        lie outside the sentence, which has `num_keys` tokens if there are no `key_lengths`.
        """
        before, after = self.window_size()
        distance = columns - rows
        window_mask = ((distance >= -before) & (distance <= after))[None, None]
        ends = columns.new_tensor([num_keys]) if self.key_lengths is None else self.key_lengths
        end = ends.view(-1, 1, *[1] * rows.dim())
        # Outputs at padding are ignored, but a softmax over no key is NaN: padding sees padding.
        return window_mask & (columns >= 0) & ((columns < end) | (rows >= end))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    *,
    additive_weight: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(scores) V, with dropout on the softmax (§3.2.1).

    Scores are QKᵀ / √d_k, or additive if `additive_weight` is given. Self-attention with a window r
    costs O(r · T), not O(T²).

    Args:
        query: [B, h, T, d_k].
        key: [B, h, S, d_k].
        value: [B, h, S, d_v].
        mask: Which keys each query may attend to; at least one.
        additive_weight: [h, d_k] of `additive_scores`.
        dropout: Probability of dropping an attention weight.

    Returns:
        [B, h, T, d_v].
    """
    num_queries, num_keys = query.size(2), key.size(2)
    if mask.window is not None and num_keys > 2 * mask.window:
        attended = _attend(*_blocks(query, key, value, mask), additive_weight, dropout)
        return attended.flatten(2, 3)[:, :, :num_queries]
    is_only_causal = mask.causal and mask.key_lengths is None and mask.window is None
    if is_only_causal and additive_weight is None:
        # Without a mask tensor, kernels skip the blocks of keys that are hidden.
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    allowed = mask.allowed(num_queries, num_keys, query.device)
    return _attend(query, key, value, allowed, additive_weight, dropout)


def attention_weights(
    query: Tensor, key: Tensor, mask: AttentionMask, *, additive_weight: Tensor | None = None
) -> Tensor:
    """Return [B, h, T, S], the weights by which `attention` multiplies values, before dropout."""
    allowed = mask.allowed(query.size(2), key.size(2), query.device)
    return _weights(query, key, allowed, additive_weight)


def _weights(
    query: Tensor, key: Tensor, allowed: Tensor | None, additive_weight: Tensor | None
) -> Tensor:
    if additive_weight is None:
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
    else:
        scores = additive_scores(query, key, additive_weight)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(dim=-1)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    additive_weight: Tensor | None,
    dropout: float,
) -> Tensor:
    if additive_weight is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, dropout_p=dropout
        )
    weights = _weights(query, key, allowed, additive_weight)
    return F.dropout(weights, dropout).to(value.dtype) @ value


def _blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut self-attention with a window r into blocks of r queries and the keys that they see.

    The n blocks are queries [B, h, n, r, d_k], keys and values [B, h, n, 2r - 1, …], and the mask
    [B or 1, 1, n, r, 2r - 1], True where attention is allowed.
    """
    window = mask.window or 1
    before, after = mask.window_size()
    num_keys = key.size(2)
    num_blocks = -(-num_keys // window)
    padding = num_blocks * window - num_keys
    padded = F.pad(query, (0, 0, 0, padding))
    queries = padded.reshape(*query.shape[:2], num_blocks, window, -1)
    keys, values = (
        F.pad(x, (0, 0, before, padding + after))
        .unfold(2, window + before + after, window)
        .transpose(-1, -2)
        for x in (key, value)
    )
    starts = window * torch.arange(num_blocks, device=key.device)[:, None, None]
    rows = starts + torch.arange(window, device=key.device)[:, None]
    columns = starts - before + torch.arange(window + before + after, device=key.device)
    return queries, keys, values, mask.window_mask(rows, columns, num_keys)


class InputProjection(nn.Linear):
    """The projections to queries, keys and values of all heads, as one weight (§3.2.2).

    One weight, as in torch.nn.MultiheadAttention: self-attention needs one product.
    """

    def __init__(self, d_model: int, widths: Sequence[int]) -> None:
        super().__init__(d_model, sum(widths))
        self.part_widths = [widths[0], sum(widths[1:])]  # queries; keys and values

    def forward(self, x: Tensor) -> Tensor:
        """Project […, d_model] to queries, keys and values […, h · (2 d_k + d_v)]."""
        return self.linear(x, self.weight, self.bias)

    def queries(self, x: Tensor) -> Tensor:
        """Project […, d_model] to […, h · d_k]."""
        return self.linear(x, *self.parts()[0])

    def keys_values(self, memory: Tensor) -> Tensor:
        """Project […, d_model] to keys and values […, h · (d_k + d_v)]."""
        return self.linear(memory, *self.parts()[1])

    def queries_and_keys_values(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries of x […, d_model] and the keys and values of memory […, d_model]."""
        # Split once: the gradient of the weight is then one concatenation.
        for_queries, for_memory = self.parts()
        return self.linear(x, *for_queries), self.linear(memory, *for_memory)

    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """Return weight [out, d_model] and bias [out] for queries, and for keys and values."""
        weights, biases = (torch.split(x, self.part_widths) for x in (self.weight, self.bias))
        return list(zip(weights, biases, strict=True))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return x Wᵀ + b: […, in] → […, out]."""
        return F.linear(x, weight, bias)


class Heads(nn.Module):
    """Attention in h heads, between the projections of input and output (§3.2.2).

    Args:
        num_heads: h.
        widths: h · d_k of queries and keys, and h · d_v of values.
        dropout: Probability of dropping an attention weight.
        causal: Whether query i sees keys 0 to i only.
        window: The number of keys that a query sees in self-attention; None for all.
    """

    def __init__(
        self,
        num_heads: int,
        widths: Sequence[int],
        *,
        dropout: float,
        causal: bool = False,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.widths = list(widths)
        self.dropout = dropout
        self.causal = causal
        self.window = window

    def arguments(self) -> dict[str, Any]:
        """Return the arguments from which a subclass builds the same heads."""
        names = ("num_heads", "widths", "dropout", "causal", "window")
        return {name: getattr(self, name) for name in names}

    @property
    def active_dropout(self) -> float:
        """The probability of dropping an attention weight now."""
        return self.dropout if self.training else 0.0

    def forward(
        self,
        projections: Sequence[Tensor],
        queries: Layout,
        keys: Layout,
        additive_weight: Tensor | None,
    ) -> Tensor:
        """Let each token attend to its sentence, or each target token to the source of its pair.

        Args:
            projections: Joint queries, keys and values […, h · (2 d_k + d_v)]; or queries
                […, h · d_k], and joint keys and values […, h · (d_k + d_v)].
            queries: The layout of the queries.
            keys: The layout of the keys.
            additive_weight: [h, d_k] of `additive_scores`; None for dot products.

        Returns:
            […, h · d_v], with the layout of the queries.
        """
        *separate, joint = projections
        split = torch.split(keys.pad(joint), self.widths[len(separate) :], dim=-1)
        parts = [*(queries.pad(x) for x in separate), *split]
        query, key, value = (self.split(part, len(part)) for part in parts)
        # With a causal mask, no token sees the padding after its sentence.
        lengths = None if self.causal else keys.device_lengths
        mask = AttentionMask(key_lengths=lengths, causal=self.causal, window=self.window)
        attended = self.attend(query, key, value, mask, additive_weight)
        return queries.pack(attended.transpose(1, 2).flatten(2))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask,
        additive_weight: Tensor | None,
    ) -> Tensor:
        """Attend as `attention` does, with the dropout of training: [B, h, T, d_v]."""
        dropout = self.active_dropout
        return attention(query, key, value, mask, additive_weight=additive_weight, dropout=dropout)

    def attend_cached(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        additive_weight: Tensor | None,
    ) -> Tensor:
        """Attend to cached keys and join the heads; the n queries of a group share their keys.

        Args:
            query: [G, h, n, d_k]; its dtype may differ from the dtype of keys and values.
            key: [G, h, d_k, C].
            value: [G, h, C, d_v].
            bias: [G, n or 1, C] added to scores: -inf where a key is hidden.
            additive_weight: [h, d_k] of `additive_scores`; None for dot products.

        Returns:
            [G · n, h · d_v], of the query's dtype.
        """
        bias = None if bias is None else bias[:, None]
        if additive_weight is None:
            return self.attend_cached_dot_product(query, key, value, bias)
        scores = additive_scores(query.to(key.dtype), key.mT, additive_weight)
        scores = scores if bias is None else scores + bias
        attended = scores.softmax(dim=-1).to(value.dtype) @ value
        return attended.to(query.dtype).transpose(1, 2).reshape(-1, self.widths[2])

    def attend_cached_dot_product(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Attend as `attend_cached` does with dot products; the bias is [G, 1, n or 1, C]."""
        # On a CPU, SDPA misreads an fp32 mask of fp64 scores as fp64.
        bias = None if bias is None else bias.to(key.dtype)
        attended = F.scaled_dot_product_attention(
            query.to(key.dtype), key.mT, value, attn_mask=bias
        )
        return attended.to(query.dtype).transpose(1, 2).flatten(2).flatten(0, 1)

    def split_joint(self, projected: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """Split joint projections [G · n, …] into queries, keys and values [G, h, n, …]."""
        if len(set(self.widths)) == 1:  # one view is faster than three
            heads = (num_groups, -1, 3, self.num_heads, self.widths[0] // self.num_heads)
            query, key, value = projected.view(heads).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            split = torch.split(projected, self.widths, dim=-1)
            query, key, value = (self.split(x, num_groups) for x in split)
        return query, key, value

    def split(self, projected: Tensor, num_groups: int) -> Tensor:
        """View [G · n, h · d], or [G, n, h · d], as heads [G, h, n, d]."""
        width = projected.size(-1) // self.num_heads
        return projected.view(num_groups, -1, self.num_heads, width).transpose(1, 2)


class MultiHeadAttention(nn.Module):
    """Attention in several heads, each with its own projections (§3.2.2).

    `causal` and `window` are documented at `AttentionMask`.
    """

    additive_weight: nn.Parameter | None

    def __init__(
        self, config: TransformerConfig, *, causal: bool = False, window: int | None = None
    ) -> None:
        super().__init__()
        head_widths = (config.key_width, config.key_width, config.value_width)
        widths = [config.num_heads * width for width in head_widths]
        self.input = InputProjection(config.d_model, widths)
        self.output = nn.Linear(widths[2], config.d_model)
        # Initialized as one matrix: three, with their larger weights, learn more slowly at first.
        for linear in (self.input, self.output):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.additive_weight = None
        if config.attention == "additive":
            self.additive_weight = new_additive_weight(config.num_heads, config.key_width)
        self.heads = Heads(
            config.num_heads,
            widths,
            dropout=config.attention_dropout,
            causal=causal,
            window=window,
        )

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Attend from tokens […, d_model] to all tokens of their sentence: self-attention."""
        attended = self.heads([self.input(x)], layout, layout, self.additive_weight)
        out: Tensor = self.output(attended)
        return out

    def attend_to(self, x: Tensor, memory: Tensor, targets: Layout, sources: Layout) -> Tensor:
        """Attend from targets […, d_model] to the encoded sources […, d_model]."""
        projections = self.input.queries_and_keys_values(x, memory)
        attended = self.heads(projections, targets, sources, self.additive_weight)
        out: Tensor = self.output(attended)
        return out

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project [B, S, d_model] to keys [B, h, S, d_k] and values [B, h, S, d_v]."""
        projected = self.input.keys_values(memory)
        key, value = torch.split(projected, self.heads.widths[1:], dim=-1)
        return self.heads.split(key, len(memory)), self.heads.split(value, len(memory))
