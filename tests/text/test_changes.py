"""Changes of text: in capitals, in title case, without a full stop, with typos."""

import unicodedata

import numpy as np
import pytest
import regex

from tfm.text.changes import CHANGES, pair_changes


def changed(kind, text, language="en", seed=1):
    return CHANGES[kind](text, language, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("language", "text", "capitals", "title"),
    [
        ("en", "i don't mind", "I DON'T MIND", "I Don't Mind"),
        ("tr", "istanbul ılık mı", "İSTANBUL ILIK MI", "İstanbul Ilık Mı"),
        ("azj_Latn", "iki qız", "İKİ QIZ", "İki Qız"),
        ("de", "süße maß", "SÜSSE MASS", "Süße Maß"),
        ("el", "ο οδυσσέας πρωί", "Ο ΟΔΥΣΣΕΑΣ ΠΡΩΙ", "Ο Οδυσσέας Πρωί"),
        ("el", "άυλος μαΐου", "ΑΥΛΟΣ ΜΑΪΟΥ", "Άυλος Μαΐου"),
        ("nl", "ijs in 't ijsland", "IJS IN 'T IJSLAND", "IJs In 't IJsland"),
        ("hr", "ǆep džep", "ǄEP DŽEP", "ǅep Džep"),
        ("hy", "և", "ԵՎ", "Եվ"),
        ("es", "¿qué dice “él”?", "¿QUÉ DICE “ÉL”?", "¿Qué Dice “Él”?"),
        ("fr", "l’été (très) «beau» 3e", "L’ÉTÉ (TRÈS) «BEAU» 3E", "L’été (Très) «Beau» 3e"),
        ("en", "it 's <b>bold</b> #tag", "IT 'S <B>BOLD</B> #TAG", "It 's <b>bold</b> #tag"),
    ],
)
def test_capitals_are_those_of_the_language(language, text, capitals, title):
    assert changed("upper", text, language) == capitals
    assert changed("title", text, language) == title


@pytest.mark.parametrize("mark", ".!?…؟۔।॥։።፧။។។。！？｡．‽")
def test_final_marks_of_all_scripts_are_left_out(mark):
    assert changed("unpunctuated", f"ab{mark}") == changed("unpunctuated", f"ab {mark}?") == "ab"
    assert changed("unpunctuated", "τι;", "el") == "τι"
    assert changed("unpunctuated", "b;") == "b;"


def test_a_typo_changes_letters_in_long_words():
    source = "A dog looks at 3000 other animals."
    seen = set()
    for seed in range(50):
        words = changed("typo", source, seed=seed).split()
        differing = [(a, b) for a, b in zip(source.split(), words, strict=True) if a != b]
        for before, after in differing:
            assert before in ("looks", "other", "animals.")
            assert before[0] == after[0]
            assert abs(len(before) - len(after)) <= 1
            seen.add(after)
        assert len(differing) <= 1  # swapping equal letters changes nothing
    assert len(seen) > 10
    assert changed("typo", "a dog") == "a dog"


@pytest.mark.parametrize(
    ("word", "letters"),
    [
        ("नमस्कार", regex.findall(r"\X", "नमस्कार")),
        ("ประเทศไทย", regex.findall(r"\X", "ประเทศไทย")),
        (unicodedata.normalize("NFD", "größten"), [*"gr", "o\u0308", *"ßten"]),
        ("مُدَرِّسَة", ["مُ", "دَ", "رِّ", "سَ", "ة"]),
    ],
)
def test_a_typo_keeps_letters_with_their_marks(word, letters):
    seen = {changed("typo", word, "xx", seed) for seed in range(30)}
    assert len(seen) > 3
    for each in seen:
        assert set(regex.findall(r"\X", each)) <= set(letters)
        assert each.startswith(letters[0])


def changed_pair(kind, source, target, *, languages=("en", "de"), tags=()):
    change = pair_changes(languages, tags)[[*CHANGES].index(kind)]
    return change(source, target, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("kind", "pair", "expected"),
    [
        ("upper", ("It's a dog.", "Großer Hund"), ("IT'S A DOG.", "GROSSER HUND")),
        ("title", ("it's a dog  now", "ein HUND"), ("It's A Dog  Now", "Ein HUND")),
        ("unpunctuated", ("Stop! Now?!", "Halt! Jetzt ?"), ("Stop! Now", "Halt! Jetzt")),
        ("unpunctuated", ("Now.", "?"), ("Now", "?")),
        ("upper", ("<2fr> a <2fr> dog.", "un chien."), ("<2fr> A <2FR> DOG.", "UN CHIEN.")),
        ("typo", ("cat abab", "Katze abab"), ("cat aabb", "Katze abab")),
    ],
)
def test_both_sides_change_but_for_typos_and_tags(kind, pair, expected):
    found = changed_pair(kind, *pair, tags=["<bt>", "<2fr>"])
    assert (found[0] != pair[0]) and found[1] == pair[1] if kind == "typo" else found == expected


def test_capitals_are_those_of_the_language_that_a_tag_chooses():
    options = {"tags": ["<2tr>"], "languages": ("en", "de+tr")}
    assert changed_pair("upper", "<2tr> inn", "in", **options) == ("<2tr> INN", "İN")
    assert changed_pair("upper", "inn", "in", **options) == ("INN", "IN")


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("upper", "IT'S 7"),
        ("title", "A Dog"),
        ("unpunctuated", "a dog"),
        ("unpunctuated", "?!"),
        ("unpunctuated", "<2fr> ?"),
        ("typo", "a dog"),
        *((kind, "") for kind in CHANGES),
    ],
)
def test_a_pair_stays_if_its_source_would_not_change_or_be_empty(kind, source):
    pair = source, "ein Hund."
    assert changed_pair(kind, *pair, tags=["<2fr>"]) == pair
