"""Multi-head attention with dot-product or additive scores (Vaswani et al. 2017, §3.2, §4)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.backends.packing import Packing
from tfm.backends.plain import PLAIN, Backend, PackedAttention
from tfm.config import TransformerConfig
from tfm.model.additive import additive_scores, new_additive_weight


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

        Positions of queries, `rows`, and of keys, `columns`, broadcast to […]. Those of keys may be
        outside of the sentence, which has `num_keys` tokens if there are no `key_lengths`.
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


# The sentences of packed rows, or the [B] lengths of a padded batch; None without padding.
Sentences = Packing | Tensor | None


def _lengths(sentences: Sentences) -> Tensor | None:
    return sentences.device_lengths if isinstance(sentences, Packing) else sentences


def _pad(x: Tensor, sentences: Sentences) -> Tensor:
    return sentences.pad(x) if isinstance(sentences, Packing) else x


def _pack(x: Tensor, sentences: Sentences) -> Tensor:
    return sentences.pack(x) if isinstance(sentences, Packing) else x


class MultiHeadAttention(nn.Module):
    """Attention in several heads, each with its own projections (§3.2.2).

    The projections to queries, keys and values are one weight, as `in_proj_weight` is in
    torch.nn.MultiheadAttention, so that self-attention needs one matrix product.
    """

    additive_weight: nn.Parameter | None
    backend: Backend = PLAIN

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        head_widths = (config.key_width, config.key_width, config.value_width)
        self.widths = [config.num_heads * width for width in head_widths]
        self.input = nn.Linear(config.d_model, sum(self.widths))
        self.output = nn.Linear(self.widths[2], config.d_model)
        # Initialized as one matrix: three, with their larger weights, learn more slowly at first.
        for linear in (self.input, self.output):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.additive_weight = None
        if config.attention == "additive":
            self.additive_weight = new_additive_weight(config.num_heads, config.key_width)

    def project(self, x: Tensor) -> Tensor:
        """Project […, d_model] to queries, keys and values […, h · (2 d_k + d_v)]."""
        return self.backend.linear(x, self.input.weight, self.input.bias)

    def project_queries(self, x: Tensor) -> Tensor:
        """Project […, d_model] to […, h · d_k]."""
        return self.backend.linear(x, *self._query_and_memory_input[0])

    def project_memory(self, x: Tensor) -> Tensor:
        """Project […, d_model] to keys and values […, h · (d_k + d_v)]."""
        return self.backend.linear(x, *self._query_and_memory_input[1])

    def split_heads(self, projected: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """Split the result of `project` [G · n, …] into queries, keys and values [G, h, n, …]."""
        if len(set(self.widths)) == 1:  # one view is faster than three
            heads = (num_groups, -1, 3, self.num_heads, self.widths[0] // self.num_heads)
            query, key, value = projected.view(heads).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            split = torch.split(projected, self.widths, dim=-1)
            query, key, value = (self.heads(x, num_groups) for x in split)
        return query, key, value

    def heads(self, projected: Tensor, num_groups: int) -> Tensor:
        """View [G · n, h · d], or [G, n, h · d], as heads [G, h, n, d]."""
        width = projected.size(-1) // self.num_heads
        return projected.view(num_groups, -1, self.num_heads, width).transpose(1, 2)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project [B, S, d_model] to keys [B, h, S, d_k] and values [B, h, S, d_v]."""
        key, value = torch.split(self.project_memory(x), self.widths[1:], dim=-1)
        return self.heads(key, len(x)), self.heads(value, len(x))

    def attend_cached(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Attend to cached keys and join the heads; the n queries of a group share their keys.

        Args:
            query: [G, h, n, d_k].
            key: [G, h, d_k, C].
            value: [G, h, C, d_v].
            bias: [G, n or 1, C] added to scores: -inf where a key is hidden.

        Returns:
            [G · n, h · d_v], the input of the output projection.
        """
        bias = None if bias is None else bias[:, None]
        if self.additive_weight is None:
            return self.backend.attend(query, key, value, bias)
        scores = additive_scores(query.to(key.dtype), key.mT, self.additive_weight)
        scores = scores if bias is None else scores + bias
        attended = scores.softmax(dim=-1).to(value.dtype) @ value
        return attended.to(query.dtype).transpose(1, 2).reshape(-1, self.widths[2])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
        """Attend as `attention` does, and join the heads to [B, T, h · d_v]."""
        weight, dropout = self.additive_weight, self._active_dropout
        heads = attention(query, key, value, mask, additive_weight=weight, dropout=dropout)
        return heads.transpose(1, 2).flatten(2)

    def self_attend(
        self, x: Tensor, sentences: Sentences, *, causal: bool = False, window: int | None = None
    ) -> Tensor:
        """Attend from tokens [B, T, d_model], or packed [num_rows, d_model], to their sentence.

        `causal` and `window` are those of `AttentionMask`. Returns […, h · d_v], the input of the
        output projection.
        """
        projections = [self.project(x)]
        return self._attend_heads(projections, sentences, sentences, causal=causal, window=window)

    def cross_attend(
        self, x: Tensor, memory: Tensor, targets: Sentences, sources: Sentences
    ) -> Tensor:
        """Attend from targets x [B, T, d_model] to the encoder's output memory [B, S, d_model].

        Either may be packed, [num_rows, d_model]. Returns […, h · d_v], the input of the output
        projection.
        """
        # Split once: the gradient of the weight is then one concatenation.
        inputs = zip((x, memory), self._query_and_memory_input, strict=True)
        projections = [self.backend.linear(each, *linear) for each, linear in inputs]
        return self._attend_heads(projections, targets, sources)

    def _attend_heads(
        self,
        projections: Sequence[Tensor],
        queries: Sentences,
        keys: Sentences,
        *,
        causal: bool = False,
        window: int | None = None,
    ) -> Tensor:
        """Attend from projections, joint or of queries and of memory, by a fused kernel if any."""
        fused = self._fused_attention if window is None else None
        if fused is not None and isinstance(queries, Packing) and isinstance(keys, Packing):
            return fused.attend(
                projections,
                queries,
                keys,
                num_heads=self.num_heads,
                causal=causal,
                dropout=self._active_dropout,
            )
        *separate, joint = projections
        split = torch.split(_pad(joint, keys), self.widths[len(separate) :], dim=-1)
        parts = [*(_pad(x, queries) for x in separate), *split]
        query, key, value = (self.heads(part, len(part)) for part in parts)
        # With a causal mask, no token sees the padding after its sentence.
        lengths = None if causal else _lengths(keys)
        mask = AttentionMask(key_lengths=lengths, causal=causal, window=window)
        return _pack(self.attend(query, key, value, mask), queries)

    @property
    def _active_dropout(self) -> float:
        return self.dropout if self.training else 0.0

    @property
    def _fused_attention(self) -> PackedAttention | None:
        """The backend's kernel, if it computes this kind of attention and these widths."""
        has_usual_heads = self.additive_weight is None and len(set(self.widths)) == 1
        return self.backend.packed_attention if has_usual_heads else None

    @property
    def _query_and_memory_input(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of the projection to queries, and of that to keys and values."""
        widths = [self.widths[0], sum(self.widths[1:])]
        weights, biases = (torch.split(x, widths) for x in (self.input.weight, self.input.bias))
        return list(zip(weights, biases, strict=True))
