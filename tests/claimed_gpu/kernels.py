"""Flash attention within packed sentences by plain arithmetic, since a CPU build of torch has none.

What the kernel requires is asserted: a GPU would read other memory without a word.
"""

from itertools import pairwise

import torch
from torch import Tensor


def flash_attention_forward(
    query, key, value, cu_q, cu_k, max_q, max_k, dropout, causal, return_debug_mask, **window
):
    for x, offsets, longest in ((query, cu_q, max_q), (key, cu_k, max_k), (value, cu_k, max_k)):
        lengths = offsets.diff()
        assert x.dtype in (torch.bfloat16, torch.float16)
        assert offsets.dtype == torch.int32
        assert (x.dim(), x.stride(-1), x.size(-1) % 8, int(offsets[0])) == (3, 1, 0, 0)
        assert 0 <= lengths.min() <= lengths.max() <= longest
        assert offsets[-1] <= len(x)
    assert not return_debug_mask
    seed = torch.randint(1 << 31, (2,))
    attended = torch.full_like(query, torch.nan)  # rows outside of all sentences are not written
    for rows, keys in _sentences(cu_q, cu_k):
        weights, kept = _weights(query[rows], key[keys], seed, dropout, causal, **window)
        out = torch.einsum("hqk,khd->qhd", weights * kept, value[keys].float())
        attended[rows] = out.to(query.dtype)
    normalizers = torch.zeros(query.size(1), len(query))
    return attended, normalizers, seed, torch.zeros(0), torch.zeros(0)


def flash_attention_backward(
    grad, query, key, value, _, __, cu_q, cu_k, ___, ____, dropout, causal, seed, _____, **window
):
    of_query, of_key, of_value = (
        torch.full_like(x, torch.nan, dtype=torch.float32) for x in (query, key, value)
    )
    for rows, keys in _sentences(cu_q, cu_k):
        q, k, v, g = (x.float() for x in (query[rows], key[keys], value[keys], grad[rows]))
        weights, kept = _weights(q, k, seed, dropout, causal, **window)
        of_value[keys] = torch.einsum("hqk,qhd->khd", weights * kept, g)
        of_weights = torch.einsum("qhd,khd->hqk", g, v) * kept
        of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
        of_scores /= q.size(-1) ** 0.5
        of_query[rows] = torch.einsum("hqk,khd->qhd", of_scores, k)
        of_key[keys] = torch.einsum("hqk,qhd->khd", of_scores, q)
    return tuple(x.to(query.dtype) for x in (of_query, of_key, of_value))


def _sentences(cu_q: Tensor, cu_k: Tensor) -> list[tuple[slice, slice]]:
    bounds = ([slice(*each) for each in pairwise(x.tolist())] for x in (cu_q, cu_k))
    return list(zip(*bounds, strict=True))


def _weights(
    q, k, seed, dropout, causal, *, scale=None, window_size_left=None, window_size_right=None
) -> tuple[Tensor, Tensor]:
    """Return the weights [h, queries, keys], and the factors by which dropout scales them."""
    assert scale is None
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) / q.size(-1) ** 0.5
    # Queries and keys end at the same position.
    distance = torch.arange(len(k)) - torch.arange(len(q))[:, None] - (len(k) - len(q))
    after = 0 if causal else window_size_right
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if window_size_left is not None and window_size_left >= 0:
        hidden |= distance < -window_size_left
    if after is not None and after >= 0:
        hidden |= distance > after
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    # The backward pass draws the same numbers again.
    generator = torch.Generator().manual_seed(int(seed[0]) + weights.numel())
    drawn = torch.rand(weights.shape, generator=generator)
    return weights, (drawn >= dropout) / (1 - dropout)


# By the name of the operation.
KERNELS = {
    "_flash_attention_forward": flash_attention_forward,
    "_flash_attention_backward": flash_attention_backward,
}
