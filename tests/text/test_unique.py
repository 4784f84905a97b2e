"""One of the pairs that share a side, and pairs to hold out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.errors import DataError
from tfm.text import unique as unique_module
from tfm.text.unique import UniqueSides, choose_held_out

SIDES = {"source": (0,), "target": (1,), "both": (0, 1)}
LETTERS = st.sampled_from("abcdefgh")
SCORED = st.dictionaries(st.tuples(LETTERS, LETTERS), st.integers(0, 4), min_size=1, max_size=40)


def encoded(pairs):
    return [(source.encode(), target.encode()) for source, target in pairs]


@given(SCORED, st.sampled_from([*SIDES]), st.integers(1, 20))
def test_the_best_of_pairs_that_share_a_side_is_chosen_or_else_the_first(scores, sides, size):
    pairs = [*scores]
    expected, seen = [], set()
    for pair in sorted(pairs, key=lambda pair: -scores[pair]):  # the sort is stable
        keys = {(side, pair[side]) for side in SIDES[sides]}
        if not keys & seen:
            expected.append(pair)
            seen |= keys
    unique = UniqueSides(sides)
    for start in range(0, len(pairs), size):
        block = pairs[start : start + size]
        unique.add(encoded(block), None, [scores[pair] for pair in block])
    unique.add(encoded(pairs), "<2fr>", [1.0] * len(pairs))  # which are other pairs
    unique.choose()
    is_known, is_chosen = unique.look_up(encoded(pairs), None)
    assert is_known.all()
    assert {pair for pair, flag in zip(pairs, is_chosen, strict=True) if flag} == {*expected}
    others = encoded([("x", "y"), *pairs])
    assert unique.look_up(others, "<bt>")[0].tolist() == [False] * len(others)


def test_held_out_pairs_share_no_side_and_depend_on_seed_and_text_alone(monkeypatch):
    pairs = encoded((f"source {n % 500}", f"Ziel {n % 700}") for n in range(3_000))
    pairs += encoded([("...", "—"), ("yes", "ja"), ("YES!", "Ja.")] * 2_000)
    chosen = choose_held_out(pairs, 100, seed=1)
    assert chosen == choose_held_out(pairs, 100, seed=1) != choose_held_out(pairs, 100, seed=2)
    assert sorted(chosen, key=pairs.index) == chosen
    for side in (0, 1):
        assert len({pair[side] for pair in chosen} - {b"...", "—".encode()}) == 100
    often = sum(
        pair[1].lower().startswith(b"ja")
        for seed in range(40)
        for pair in choose_held_out(pairs, 10, seed)
    )
    assert often <= 4  # of 400, though two thirds of all sources are "yes"
    with pytest.raises(DataError, match=r"only 50. of .* but 600 are needed: .* --hold-out"):
        choose_held_out(pairs, 600, seed=1)
    few = choose_held_out(pairs, 20, seed=3)
    monkeypatch.setattr(unique_module, "_SPARE", 1_000)  # without leaving out candidates early
    assert choose_held_out(pairs, 20, seed=3) == few
