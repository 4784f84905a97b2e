"""Attention over cache slots, against attention of one hypothesis to its own columns."""

import pytest
import torch
import torch.nn.functional as F

from tfm.backends.slot_attention import slot_attention

N, K, H, T = 3, 4, 2, 6
KEY_WIDTH, VALUE_WIDTH = 5, 3


def random_slots(num_columns, *, dtype=torch.float64):
    """Return queries, keys and values; the last two are views of one tensor."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(N, K, H, KEY_WIDTH, generator=generator, dtype=torch.float64)
    cache = torch.randn(N, num_columns, H, KEY_WIDTH + VALUE_WIDTH, generator=generator).double()
    return query.to(dtype), cache[..., :KEY_WIDTH].to(dtype), cache[..., KEY_WIDTH:].to(dtype)


def random_ancestors():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(K, (N, K, T), generator=generator, dtype=torch.int16)


def attend_one(query, key, value):
    """Attend one hypothesis: query [h, d_k], visible keys and values [n, h, d] → [h · d_v]."""
    attended = F.scaled_dot_product_attention(
        query[:, None], key.transpose(0, 1), value.transpose(0, 1)
    )
    return attended[:, 0].flatten()


def attend_each(query, key, value, columns_of):
    return torch.stack(
        [
            torch.stack(
                [
                    attend_one(query[n, k], key[n, columns_of(n, k)], value[n, columns_of(n, k)])
                    for k in range(K)
                ]
            )
            for n in range(N)
        ]
    )


@pytest.mark.parametrize("ends", [[1, 6, 3], [2, 2, 2]])
def test_each_hypothesis_attends_to_the_columns_of_its_ancestors(ends):
    slots = random_slots(T * K)
    ancestors = random_ancestors()

    def columns_of(n, k):
        return [t * K + int(ancestors[n, k, t]) for t in range(ends[n])]

    torch.testing.assert_close(
        slot_attention(*slots, torch.tensor(ends), ancestors), attend_each(*slots, columns_of)
    )


def test_all_hypotheses_of_a_slot_attend_to_its_source():
    slots = random_slots(7)
    ends = [7, 1, 4]
    torch.testing.assert_close(
        slot_attention(*slots, torch.tensor(ends)),
        attend_each(*slots, lambda n, _k: list(range(ends[n]))),
    )


@pytest.mark.parametrize("with_ancestors", [False, True])
def test_columns_after_the_ends_do_not_matter(with_ancestors):
    query, key, value = random_slots(T * K)
    ancestors = random_ancestors() if with_ancestors else None
    ends = torch.tensor([1, 5, 3])
    before = slot_attention(query, key, value, ends, ancestors)
    for n, end in enumerate(ends.tolist()):
        unused = slice(end * K if with_ancestors else end, None)
        key[n, unused] = 1e3
        value[n, unused] = -1e3
        if with_ancestors:
            ancestors[n, :, end:] = 0
    assert torch.equal(before, slot_attention(query, key, value, ends, ancestors))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_fp32_and_results_have_the_dtype_of_the_query(dtype):
    slots = random_slots(40, dtype=dtype)
    ends = torch.full((N,), 40)
    attended = slot_attention(*slots, ends)
    assert attended.dtype == dtype
    exact = slot_attention(*(x.double() for x in slots), ends)
    torch.testing.assert_close(attended, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
