"""Attention within packed sentences by plain arithmetic: a CPU build of torch has no kernels.

What the kernel requires is asserted: a GPU would read other memory without a word.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch


def attend(q, k, v, cu_q, cu_k, seed, dropout, causal, window_size_left, window_size_right):
    out = torch.full_like(q, torch.nan)  # rows outside of all sentences are not written
    random = torch.Generator().manual_seed(int(seed[0]))
    after = 0 if causal else window_size_right
    for (a, b), (c, d) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        scores = torch.einsum("qhd,khd->hqk", q[a:b].float(), k[c:d].float()) / q.size(-1) ** 0.5
        # Queries and keys end at the same position.
        distance = torch.arange(c - d, 0) - torch.arange(a - b, 0)[:, None]
        for limit, too_far in ((window_size_left, -distance), (after, distance)):
            if limit not in (None, -1):
                scores = scores.masked_fill(too_far > limit, -torch.inf)
        kept = torch.rand(scores.shape, generator=random) >= dropout
        weights = scores.softmax(-1) * kept / (1 - dropout)
        out[a:b] = torch.einsum("hqk,khd->qhd", weights, v[c:d].float()).to(q.dtype)
    return out


def _check(x, offsets, longest):
    assert offsets.dtype == torch.int32
    assert (x.dim(), x.stride(-1), x.size(-1) % 8, int(offsets[0])) == (3, 1, 0, 0)
    assert 0 <= offsets.diff().min() <= offsets.diff().max() <= longest
    assert offsets[-1] <= len(x)


def _forward(
    q, k, v, cu_q, cu_k, max_q, max_k, dropout, causal, return_debug_mask,
    *, window_size_left=None, window_size_right=None,
):  # fmt: skip
    for x, offsets, longest in ((q, cu_q, max_q), (k, cu_k, max_k), (v, cu_k, max_k)):
        assert x.dtype in (torch.bfloat16, torch.float16)
        _check(x, offsets, longest)
    assert not return_debug_mask
    seed, empty = torch.randint(1 << 31, (2,)), torch.zeros(0)
    mask = causal, window_size_left, window_size_right
    out = attend(q, k, v, cu_q, cu_k, seed, dropout, *mask)
    return out, torch.zeros(q.size(1), len(q)), seed, empty, empty


def _backward(
    grad, q, k, v, out, normalizers, cu_q, cu_k, max_q, max_k, dropout, causal, seed, unused,
    *, window_size_left=None, window_size_right=None,
):  # fmt: skip
    def gradients():
        inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        mask = causal, window_size_left, window_size_right
        found = attend(*inputs, cu_q, cu_k, seed, dropout, *mask)
        return torch.autograd.grad(found, inputs, grad)

    with ThreadPoolExecutor(1) as pool:  # a thread that records gradients, and sees no mode
        return pool.submit(gradients).result()


def _efficient_forward(
    q, k, v, bias, cu_q, cu_k, max_q, max_k, dropout, mask_type, compute_log_sumexp=False
):
    assert bias is None
    assert compute_log_sumexp
    for x, offsets, longest in ((q, cu_q, max_q), (k, cu_k, max_k), (v, cu_k, max_k)):
        _check(x[0], offsets, longest)
    seed, offset = torch.randint(1 << 31, (2, 1))
    out = attend(q[0], k[0], v[0], cu_q, cu_k, seed, dropout, bool(mask_type), None, None)
    normalizers = torch.zeros(len(cu_q) - 1, q.size(2), -(-max_q // 32) * 32)
    return out[None], normalizers, seed, offset, max_q, max_k


def _efficient_backward(
    grad, q, k, v, bias, out, cu_q, cu_k, max_q, max_k, normalizers, dropout, seed, offset,
    mask_type, bias_requires_grad, **options,
):  # fmt: skip
    assert not bias_requires_grad
    layout, unused = (cu_q, cu_k, max_q, max_k), None
    inputs = [x[0] for x in (grad, q, k, v)]
    found = _backward(*inputs, out, normalizers, *layout, dropout, bool(mask_type), seed, unused)
    return *(x[None] for x in found), torch.zeros(0)


def attend_in_one_product(
    kernel, query, key, value, queries, keys, *, dropout, causal, window=None
):
    """Attend as `packed_attention` does, by operations that torch compiles for a CPU."""
    rows = [
        torch.bucketize(torch.arange(len(x)), each.offsets[1:], right=True)
        for x, each in ((query, queries), (key, keys))
    ]
    allowed = rows[0][:, None] == rows[1]
    if causal:
        allowed = allowed.tril()
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.size(-1) ** 0.5
    weights = scores.masked_fill(~allowed, -1e9).softmax(-1)
    return torch.einsum("hqk,khd->qhd", torch.dropout(weights, dropout, train=True), value)


# By the name of the operation.
KERNELS = {
    "_flash_attention_forward": _forward,
    "_flash_attention_backward": _backward,
    "_efficient_attention_forward": _efficient_forward,
    "_efficient_attention_backward": _efficient_backward,
}
