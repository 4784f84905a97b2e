"""Swapped sides are found by the text of other splits, or by what a rule drops."""

from importlib.util import find_spec

import pytest
from helpers import number_pairs, write_pairs

from tfm.commands.prepare import prepare_recipe as prepare
from tfm.config import CleaningConfig
from tfm.errors import DataError
from tfm.text.cleaning import look_swapped
from tfm.text.corpus.loading import recipe_from_files
from tfm.text.pair_checks import are_swapped

PAIRS = list(number_pairs("train", num_pairs=200, seed=1))
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


@pytest.mark.parametrize(
    ("pairs", "languages"),
    [
        (RUSSIAN, ("en", "ru")),
        ([("雪舟は水墨画家。", "Sesshu painted.")] * 20, ("ja", "en")),
        ([("كلب يركض", "狗在跑 DOG")] * 20, ("ar", "zh_Hans")),
        ([("Пас трчи.", "Pas trči.")] * 20, ("sr_Cyrl", "sr_Latn")),
        pytest.param(
            [
                (f"The dogs play in the snow near {n} houses.", f"Die Hunde spielen im Schnee {n}.")
                for n in range(20)
            ],
            ("en", "de"),
            marks=pytest.mark.skipif(find_spec("py3langid") is None, reason="py3langid is needed"),
        ),
    ],
)
def test_swapped_sides_are_in_the_script_or_language_of_the_other(pairs, languages):
    pairs = [(source.encode(), target.encode()) for source, target in pairs]
    swap = swapped(pairs)
    assert are_swapped(swap, CleaningConfig(), *languages)
    assert not are_swapped(pairs, CleaningConfig(), *languages)
    assert not are_swapped(swap[:19], CleaningConfig(), *languages)
    assert not are_swapped(swap, CleaningConfig(), "source", "target")
    assert not are_swapped(swap[:9] + pairs[:20], CleaningConfig(), *languages)


@pytest.mark.parametrize(
    ("train", "valid", "rules", "named"),
    [
        (swapped(PAIRS), PAIRS[:60], {}, "train"),
        (PAIRS, swapped(PAIRS[:60]), {}, "(train|valid)"),  # valid, if languages are identified
        (PAIRS, PAIRS[:60], {}, None),
        (swapped(RUSSIAN), swapped(RUSSIAN), {}, "valid"),
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
