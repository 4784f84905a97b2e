"""Which keys a query may attend to: a mask, or a window of near keys."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AttentionMask:
    """Which keys each query may attend to."""

    # [B] number of valid keys, which come first; None if all are valid.
    key_lengths: Tensor | None = None
    causal: bool = False  # whether query i sees keys 0 to i only
    # In self-attention, the number of keys that a query sees, including its own: its
    # neighbors on both sides, or the preceding keys if causal; None for all.
    window: int | None = None

    def allowed(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Return where queries [B, h, T, d_k] may attend to keys [B, h, S, d_k]; None for all.

        It is [B or 1, 1, T or 1, S].
        """
        if self.key_lengths is None and self.window is None and not self.causal:
            return None
        rows = torch.arange(query.size(2), device=query.device)[:, None]
        columns = torch.arange(key.size(2), device=query.device)
        if self.window is not None:
            return self.window_mask(rows, columns, key.size(2))
        allowed = (columns <= rows)[None, None] if self.causal else None
        if self.key_lengths is not None:
            valid = (columns < self.key_lengths[:, None])[:, None, None, :]
            allowed = valid if allowed is None else allowed & valid
        return allowed

    @property
    def is_only_causal(self) -> bool:
        """Whether each query sees all keys up to its own, and nothing else is hidden."""
        return self.causal and self.key_lengths is None and self.window is None

    def is_narrow(self, key: Tensor) -> bool:
        """Return whether computing only the window saves most keys [B, h, S, d_k]."""
        return self.window is not None and key.size(2) > 2 * self.window

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
        ends = columns.new_full((1,), num_keys) if self.key_lengths is None else self.key_lengths
        end = ends.view(-1, 1, *[1] * rows.dim())
        # Outputs at padding are ignored, but a softmax over no key is NaN: padding sees padding.
        return window_mask & (columns >= 0) & ((columns < end) | (rows >= end))


def window_blocks(
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
