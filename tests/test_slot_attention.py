"""Attention in slots: each hypothesis by itself, with its own past gathered."""

import pytest
import torch
import torch.nn.functional as F

from tfm.backends.slot_attention import slot_attention

N, K, H, T = 3, 4, 2, 6
KEY_WIDTH, VALUE_WIDTH = 5, 3


def random_slots(num_columns, *, dtype=torch.float64):
    """Queries, keys and values; the last two are parts of one tensor."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(N, K, H, KEY_WIDTH, generator=generator, dtype=torch.float64)
    room = torch.randn(N, num_columns, H, KEY_WIDTH + VALUE_WIDTH, generator=generator).double()
    return query.to(dtype), room[..., :KEY_WIDTH].to(dtype), room[..., KEY_WIDTH:].to(dtype)


def random_ancestors():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(K, (N, K, T), generator=generator, dtype=torch.int16)


def alone(query, key, value):
    """[h, d_k] of one hypothesis, [n, h, d] of what it sees → [h · d_v]."""
    attended = F.scaled_dot_product_attention(
        query[:, None], key.transpose(0, 1), value.transpose(0, 1)
    )
    return attended[:, 0].flatten()


def one_by_one(query, key, value, columns_of):
    return torch.stack(
        [
            torch.stack(
                [
                    alone(query[n, k], key[n, columns_of(n, k)], value[n, columns_of(n, k)])
                    for k in range(K)
                ]
            )
            for n in range(N)
        ]
    )


@pytest.mark.parametrize("ends", [[1, 6, 3], [2, 2, 2]])
def test_each_hypothesis_attends_to_its_own_past_as_if_that_were_gathered(ends):
    slots = random_slots(T * K)
    ancestors = random_ancestors()

    def columns_of(n, k):
        return [t * K + int(ancestors[n, k, t]) for t in range(ends[n])]

    torch.testing.assert_close(
        slot_attention(*slots, torch.tensor(ends), ancestors), one_by_one(*slots, columns_of)
    )


def test_all_hypotheses_of_a_slot_attend_to_its_source():
    slots = random_slots(7)
    ends = [7, 1, 4]
    torch.testing.assert_close(
        slot_attention(*slots, torch.tensor(ends)),
        one_by_one(*slots, lambda n, _k: list(range(ends[n]))),
    )


@pytest.mark.parametrize("with_past", [False, True])
def test_what_lies_behind_the_ends_changes_nothing(with_past):
    query, key, value = random_slots(T * K)
    ancestors = random_ancestors() if with_past else None
    ends = torch.tensor([1, 5, 3])
    before = slot_attention(query, key, value, ends, ancestors)
    for n, end in enumerate(ends.tolist()):
        unused = slice(end * K if with_past else end, None)
        key[n, unused] = 1e3
        value[n, unused] = -1e3
        if with_past:
            ancestors[n, :, end:] = 0
    assert torch.equal(before, slot_attention(query, key, value, ends, ancestors))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_fp32_and_the_result_is_of_the_type_of_the_query(dtype):
    slots = random_slots(40, dtype=dtype)
    ends = torch.full((N,), 40)
    attended = slot_attention(*slots, ends)
    assert attended.dtype == dtype
    exact = slot_attention(*(x.double() for x in slots), ends)
    torch.testing.assert_close(attended, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
