"""Masks in the place of words of both sides."""

import re

import numpy as np
import pytest

from tfm.text.masks import MASKS, Masker, with_masks

# Nouns with their translations.
NOUNS = {f"thing{letter}": f"Ding{letter}" for letter in "abcdefghijklmnopqrst"}


def masked(source, target, corpus=(), seed=1):
    """The masked pair, whose translations of words are learned from it and a corpus."""
    masker = Masker(*map(list, zip(*corpus, (source, target), strict=True)))
    return masker.masked(source, target, np.random.default_rng(seed))


def seen(source, target, corpus=()):
    """The masked pairs of several seeds, with # for each mask."""
    found = set()
    for seed in range(60):
        texts = masked(source, target, corpus, seed)
        masks = [re.findall(r"QX\d", text) for text in texts]
        assert sorted(masks[0]) == sorted({*masks[0]}) == sorted(masks[1])
        found.add(tuple(re.sub(r"QX\d", "#", text) for text in texts))
    return found


@pytest.mark.parametrize(
    ("source", "target", "word"),
    [
        ("We met @.", "Wir trafen @.", "Ada"),
        ("It is @ now", "Es ist jetzt @", "7"),
        ("在@年", "في @", "2012"),
        ("@ ve İnci", "Kim ist @?", "Ada"),
        ("नमस्ते @", "Hallo @", "Ada"),
    ],
)
def test_masks_are_in_the_place_of_an_equal_word_or_beside_it(source, target, word):
    pair = source.replace("@", word), target.replace("@", word)
    assert seen(*pair) == {
        (source.replace("@", text), target.replace("@", text))
        for text in ("#", f"# {word}", f"{word} #")
    }


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("It costs 3.5", "Es kostet 3.5"),  # 3 and 5 are parts of a number
        ("Ada-Lin e-mail a@b.org", "Ada-Lin x E-Mail a@b.org"),
        ("Ada and Ada", "Ada und Ada"),  # of which there are two
        ("今天好", "今天好"),  # whose words no space separates
        ("", "Ada"),
        ("one", "eins"),
    ],
)
def test_pairs_without_equal_whole_words_are_not_masked(source, target):
    assert masked(source, target) is None


def test_words_that_are_often_together_are_masked_together():
    corpus = [
        (f"the {noun} is there {size}", f"dort ist das {meaning} {other}")
        for noun, meaning in NOUNS.items()
        for size, other in (("now", "nun"), ("red", "rot"), ("old", "alt"))
    ]
    found = seen("a thingc and Eve", "Dingc und Eve", corpus)
    assert ("a # and Eve", "# und Eve") in found
    assert ("a # and #", "# und #") in found
    assert ("a # thingc and Eve #", "# Dingc und Eve #") in found
    assert all(source.count("#") == target.count("#") for source, target in found)


def test_masks_are_drawn_at_random_for_up_to_three_words():
    text, numbers = "one Ada two Bob three Chi four Dan", set()
    for seed in range(50):
        source, target = masked(text, "Dan Chi Bob Ada", seed=seed)
        found = re.findall(r"QX\d", source)
        assert sorted(found) == sorted(re.findall(r"QX\d", target))
        assert 1 <= len(found) == len({*found}) <= 3
        numbers |= {*found}
    assert numbers == {*MASKS}


def test_masks_replace_spans():
    assert with_masks("ab cd", {(3, 5): "QX2", (0, 2): "QX1"}) == "QX1 QX2"
    assert with_masks("ab", {}) == "ab"
