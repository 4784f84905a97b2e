"""Multi-head attention, and the functions that it may attend by (Vaswani et al. 2017, §3.2, §4)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.backends.packing import Packing
from tfm.backends.plain import PLAIN, Backend, PackedAttention
from tfm.config import TransformerConfig
from tfm.model.additive import additive_scores, new_additive_weight
from tfm.model.single_sentence import SourceAttention


@dataclass(frozen=True, kw_only=True)
class AttentionMask:
    """Which keys a query may attend to: the meaning, which is rendered where it is used.

    Attributes:
        key_lengths: [B] number of valid keys, counted from the first; None if all are valid.
        causal: Whether query i sees keys 0 to i only.
        window: In self-attention, how many neighbors a query sees, itself among them: the ones
            around it, or if causal the last ones; None if all.
    """

    key_lengths: Tensor | None = None
    causal: bool = False
    window: int | None = None

    @property
    def is_only_causal(self) -> bool:
        """Whether nothing else is hidden than what comes later."""
        return self.causal and self.key_lengths is None and self.window is None

    def allowed(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
        """[B or 1, 1, T or 1, S] True where attention is allowed; None if it is everywhere."""
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
        """How many keys before and after itself a query of a window sees."""
        others = (self.window or 1) - 1
        return (others, 0) if self.causal else (others // 2, others - others // 2)

    def window_mask(self, rows: Tensor, columns: Tensor, num_keys: int) -> Tensor:
        """[B or 1, 1, …] True where a key is in the window of a query, and valid.

        Args:
            rows: […] positions of queries.
            columns: […] positions of keys, which may lie outside of the text.
            num_keys: Length of the text where there are no `key_lengths`.
        """
        before, after = self.window_size()
        distance = columns - rows
        window_mask = ((distance >= -before) & (distance <= after))[None, None]
        ends = columns.new_tensor([num_keys]) if self.key_lengths is None else self.key_lengths
        end = ends.view(-1, 1, *[1] * rows.dim())
        # What stands at padding means nothing, but it must see something: its own padding.
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
    """softmax(scores) V, with dropout on the softmax (§3.2.1).

    Scores are QKᵀ / √d_k, or additive ones if their weight is given. In self-attention with a
    window r, the work grows with r · T, not with T².

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
        blocks, window_mask = _blocks(query, key, value, mask)
        attended = _attend(*blocks, window_mask, additive_weight=additive_weight, dropout=dropout)
        return attended.flatten(2, 3)[:, :, :num_queries]
    # A kernel that is told "causal" skips what is hidden; other masks it is given as they are.
    is_causal = mask.is_only_causal and additive_weight is None
    allowed = None if is_causal else mask.allowed(num_queries, num_keys, query.device)
    return _attend(
        query,
        key,
        value,
        allowed,
        is_causal=is_causal,
        additive_weight=additive_weight,
        dropout=dropout,
    )


def attention_weights(
    query: Tensor, key: Tensor, mask: AttentionMask, *, additive_weight: Tensor | None = None
) -> Tensor:
    """[B, h, T, S] softmax of the scores, as `attention` multiplies the values by."""
    return _softmax(
        _scores(query, key, additive_weight),
        mask.allowed(query.size(2), key.size(2), query.device),
    )


def _scores(query: Tensor, key: Tensor, additive_weight: Tensor | None) -> Tensor:
    if additive_weight is not None:
        return additive_scores(query, key, additive_weight)
    return query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))


def _softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(dim=-1)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    *,
    is_causal: bool = False,
    additive_weight: Tensor | None,
    dropout: float,
) -> Tensor:
    if additive_weight is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, dropout_p=dropout, is_causal=is_causal
        )
    weights = _softmax(additive_scores(query, key, additive_weight), allowed)
    return F.dropout(weights, dropout).to(value.dtype) @ value


def _blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Cut self-attention with a window r into blocks of r queries and the keys that they see.

    Returns:
        Queries [B, h, n, r, d_k], keys and values [B, h, n, 2r - 1, …], and where attention is
        allowed, [B or 1, 1, n, r, 2r - 1].
    """
    window = mask.window or 1
    before, after = mask.window_size()
    num_keys = key.size(2)
    num_blocks = -(-num_keys // window)
    missing = num_blocks * window - num_keys
    padded = F.pad(query, (0, 0, 0, missing))
    queries = padded.reshape(*query.shape[:2], num_blocks, window, -1)
    keys, values = (
        F.pad(x, (0, 0, before, missing + after))
        .unfold(2, window + before + after, window)
        .transpose(-1, -2)
        for x in (key, value)
    )
    starts = window * torch.arange(num_blocks, device=key.device)[:, None, None]
    rows = starts + torch.arange(window, device=key.device)[:, None]
    columns = starts - before + torch.arange(window + before + after, device=key.device)
    return (queries, keys, values), mask.window_mask(rows, columns, num_keys)


# Packed rows, or a padded batch and its [B] lengths; None if all are of full length.
Sentences = Packing | Tensor | None


def _lengths(sentences: Sentences) -> Tensor | None:
    return sentences.device_lengths if isinstance(sentences, Packing) else sentences


def _pad(x: Tensor, sentences: Sentences) -> Tensor:
    """[B, T, …] with padding."""
    return sentences.pad(x) if isinstance(sentences, Packing) else x


def _pack(x: Tensor, sentences: Sentences) -> Tensor:
    """The way back."""
    return sentences.pack(x) if isinstance(sentences, Packing) else x


class MultiHeadAttention(nn.Module):
    """Attention in several heads, each over its own projections (§3.2.2).

    The projections to queries, keys and values are rows of one weight, so that self-attention
    needs one matrix product.
    """

    additive_weight: nn.Parameter | None
    backend: Backend = PLAIN

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.widths = [
            config.num_heads * width
            for width in (config.key_width, config.key_width, config.value_width)
        ]
        self.input = nn.Linear(config.d_model, sum(self.widths))
        self.output = nn.Linear(self.widths[2], config.d_model)
        # Drawn as the one matrix that it is: as three, with their larger weights, it learns later.
        nn.init.xavier_uniform_(self.input.weight)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.input.bias)
        nn.init.zeros_(self.output.bias)
        self.additive_weight = None
        if config.attention == "additive":
            self.additive_weight = new_additive_weight(config.num_heads, config.key_width)

    def project(self, x: Tensor) -> Tensor:
        """[…, d_model] → […, h · (2 d_k + d_v)] queries, keys and values."""
        return self.backend.linear(x, *self._input)

    def project_queries(self, x: Tensor) -> Tensor:
        """[…, d_model] → […, h · d_k]."""
        rows = self.widths[0]
        return self.backend.linear(x, self.input.weight[:rows], self.input.bias[:rows])

    def split_heads(self, projected: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """[G · n, …] what `project` returned → queries, keys and values [G, h, n, …]."""
        if len(set(self.widths)) == 1:
            parts = projected.view(
                num_groups, -1, 3, self.num_heads, self.widths[0] // self.num_heads
            )
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            each = torch.split(projected, self.widths, dim=-1)
            query, key, value = (self.heads(part, num_groups) for part in each)
        return query, key, value

    def heads(self, projected: Tensor, num_groups: int) -> Tensor:
        """[G · n, h · d] → [G, h, n, d]."""
        width = projected.size(-1) // self.num_heads
        return projected.view(num_groups, -1, self.num_heads, width).transpose(1, 2)

    def to_source(self, key: Tensor, value: Tensor) -> SourceAttention:
        """Multiply its projections into keys [h, S, d_k] and values [h, S, d_v] of a source."""
        rows = self.widths[0]
        return SourceAttention.of(
            key,
            value,
            query_weight=self.input.weight[:rows],
            query_bias=self.input.bias[:rows],
            output_weight=self.output.weight,
            output_bias=self.output.bias,
        )

    def project_memory(self, x: Tensor) -> Tensor:
        """[…, d_model] → […, h · (d_k + d_v)] keys and values."""
        rows = self.widths[0]
        return self.backend.linear(x, self.input.weight[rows:], self.input.bias[rows:])

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project [B, S, d_model] to keys [B, h, S, d_k] and values [B, h, S, d_v]."""
        key, value = torch.split(self.project_memory(x), self.widths[1:], dim=-1)
        return self._heads(key), self._heads(value)

    def attend_cached(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Attend in each head, in groups of queries that share their keys, and join the heads.

        Args:
            query: [G, h, n, d_k].
            key: [G, h, d_k, C].
            value: [G, h, C, d_v].
            bias: [G, n or 1, C] added to scores: -inf where a key must not be seen.

        Returns:
            [G · n, h · d_v], which `output` projects.
        """
        bias = None if bias is None else bias[:, None]
        if self.additive_weight is None:
            return self.backend.attend(query, key, value, bias)
        scores = additive_scores(query.to(key.dtype), key.mT, self.additive_weight)
        scores = scores if bias is None else scores + bias
        attended = scores.softmax(dim=-1).to(value.dtype) @ value
        return attended.to(query.dtype).transpose(1, 2).reshape(-1, self.widths[2])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
        """Attend in each head and join the heads to [B, T, h · d_v], which `output` projects."""
        heads = attention(
            query,
            key,
            value,
            mask,
            additive_weight=self.additive_weight,
            dropout=self.dropout if self.training else 0.0,
        )
        return heads.transpose(1, 2).flatten(2)

    def self_attend(
        self, x: Tensor, sentences: Sentences, *, causal: bool = False, window: int | None = None
    ) -> Tensor:
        """Attend to the own sentence.

        Args:
            x: [B, T, d_model], or packed [num_rows, d_model].
            sentences: Where they are.
            causal: Whether a token sees only those up to itself.
            window: As in `AttentionMask`.

        Returns:
            […, h · d_v] the joined heads, which `output` projects.
        """
        projected = self.backend.linear(x, *self._input)
        fused = self._fused_attention
        if fused is not None and window is None and isinstance(sentences, Packing):
            return fused.self_attention(
                projected,
                sentences,
                num_heads=self.num_heads,
                causal=causal,
                dropout=self.dropout if self.training else 0.0,
            )
        parts = torch.split(_pad(projected, sentences), self.widths, dim=-1)
        query, key, value = map(self._heads, parts)
        # No token sees the padding after its sentence if it only sees what is before it.
        lengths = None if causal else _lengths(sentences)
        mask = AttentionMask(key_lengths=lengths, causal=causal, window=window)
        return _pack(self.attend(query, key, value, mask), sentences)

    def cross_attend(
        self, x: Tensor, memory: Tensor, targets: Sentences, sources: Sentences
    ) -> Tensor:
        """Attend to the source of each sentence.

        Args:
            x: [B, T, d_model], or packed [num_rows, d_model].
            memory: The same of the sources.
            targets: Where the sentences of x are.
            sources: Where those of the memory are.

        Returns:
            […, h · d_v] the joined heads, which `output` projects.
        """
        widths = [self.widths[0], sum(self.widths[1:])]
        [for_query, for_memory] = torch.split(self.input.weight, widths)
        [query_bias, memory_bias] = torch.split(self.input.bias, widths)
        query = self.backend.linear(x, for_query, query_bias)
        key_value = self.backend.linear(memory, for_memory, memory_bias)
        fused = self._fused_attention
        if fused is not None and isinstance(targets, Packing) and isinstance(sources, Packing):
            return fused.cross_attention(
                query,
                key_value,
                targets,
                sources,
                num_heads=self.num_heads,
                dropout=self.dropout if self.training else 0.0,
            )
        key, value = torch.split(_pad(key_value, sources), self.widths[1:], dim=-1)
        mask = AttentionMask(key_lengths=_lengths(sources))
        attended = self.attend(
            self._heads(_pad(query, targets)), self._heads(key), self._heads(value), mask
        )
        return _pack(attended, targets)

    def weights(self, query: Tensor, key: Tensor, mask: AttentionMask) -> Tensor:
        """[B, h, T, S] what `attend` weights the values by, but for dropout."""
        return attention_weights(query, key, mask, additive_weight=self.additive_weight)

    @property
    def _fused_attention(self) -> PackedAttention | None:
        """Where it can compute what this module is set to."""
        has_usual_heads = self.additive_weight is None and len(set(self.widths)) == 1
        return self.backend.packed_attention if has_usual_heads else None

    @property
    def _input(self) -> tuple[Tensor, Tensor]:
        return self.input.weight, self.input.bias

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
