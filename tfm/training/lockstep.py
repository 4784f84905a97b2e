"""A check that all processes of a run hold the same weights, as they must after every update."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor


def bit_sums(tensors: Iterable[Tensor]) -> list[int]:
    """Return a checksum of each fp32 tensor, of any shape: the sum of its bits as integers.

    The device is waited for once.
    """
    sums = [tensor.detach().view(torch.int32).sum() for tensor in tensors]
    return [int(each) for each in torch.stack(sums).tolist()] if sums else []


def find_difference(by_rank: Sequence[Mapping[str, object]]) -> tuple[list[int], str] | None:
    """Return the ranks that differ from most others, and the name of the first value that differs.

    Without a majority, the ranks that equal rank 0 count as right. None if all are equal.
    """
    for name in by_rank[0]:
        values = [str(found[name]) for found in by_rank]
        counts = Counter(values)  # in order of the ranks, so that ties are won by rank 0
        if len(counts) > 1:
            usual = max(counts, key=counts.__getitem__)
            return [rank for rank, value in enumerate(values) if value != usual], name
    return None
