"""Swapped sides are found by the text of other splits, or by what a rule drops."""

import pytest
from helpers import write_pairs

from tfm.data.cleaning import PairCounts, look_swapped
from tfm.data.corpus.loading import recipe_from_files
from tfm.data.synthetic.corpus import generate_pairs
from tfm.errors import DataError
from tfm.stages.prepare import prepare

PAIRS = list(generate_pairs("train", num_pairs=200, seed=1))
ENCODED = [(source.encode(), target.encode()) for source, target in PAIRS]
RUSSIAN = [(f"Dog {n} runs.", f"Собака {n} бежит.") for n in range(100)]


def swapped(pairs):
    return [pair[::-1] for pair in pairs]


def test_swapped_sides_resemble_the_other_sides_of_other_text():
    first, second = ENCODED[:100], ENCODED[100:]
    assert look_swapped(swapped(first), second)
    assert look_swapped(first, swapped(second))
    assert not look_swapped(first, second)
    assert not look_swapped(swapped(first), second[:20])  # too few
    assert not look_swapped([(s, s) for s, _ in first], second)
    assert not look_swapped([(b"\xff", b"")] * 100, second)


def test_a_rule_that_would_pass_most_pairs_with_swapped_sides_tells():
    def counts(*dropped, read=10):
        found = PairCounts(read=read)
        for pair in dropped:
            found.drop("other_script", pair)
        return found

    checks = [("other_script", lambda source, target: source > target)]
    assert counts(*[(b"b", b"a")] * 6).fit_swapped(checks)
    assert not counts(*[(b"b", b"a")] * 6, read=20).fit_swapped(checks)
    always = [("other_script", lambda source, target: True)]
    assert not counts(*[(b"b", b"a")] * 6).fit_swapped(always)


@pytest.mark.parametrize(
    ("train", "valid", "rules", "named"),
    [
        (swapped(PAIRS), PAIRS[:60], {}, "train"),
        (PAIRS, swapped(PAIRS[:60]), {}, "train"),
        (PAIRS, PAIRS[:60], {}, None),
        (swapped(RUSSIAN), None, {"drop_other_script": True}, "train"),
        (RUSSIAN, None, {"drop_other_script": True}, None),
    ],
)
def test_a_text_with_swapped_sides_is_refused_by_name(tmp_path, train, valid, rules, named):
    files = {
        split: [write_pairs(tmp_path, split, pairs, languages=("0.txt", "1.txt"))]
        for split, pairs in {"train": train, "valid": valid}.items()
        if pairs
    }
    target = "ru" if train[0] in (RUSSIAN[0], RUSSIAN[0][::-1]) else "de"
    recipe = recipe_from_files(name="x", languages=("en", target), **files)

    def run():
        config = {"cleaning": rules}
        return prepare(recipe, tmp_path / "data", overrides=config, text_only=True)

    if named is None:
        assert run().is_new
        return
    with pytest.raises(
        DataError, match=rf"{named}\.0\.txt and .*{named}\.1\.txt: are the sides swapped"
    ):
        run()
    assert not (tmp_path / "data" / "manifest.json").exists()
