"""The generated corpus of number, date and price phrases."""

import os
import re

import pytest
from helpers import python
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.synthetic.corpus import generate_pairs
from tfm.data.synthetic.phrases import (
    ADJECTIVES,
    NOUNS,
    english_number,
    english_ordinal,
    german_number,
    german_ordinal_stem,
    noun_phrase,
)

SIZES = {"train": 4_000, "valid": 2_800, "test": 1_000}
ENGLISH_WORDS = {english_number(n): n for n in (*range(20), *range(20, 100, 10))}
GERMAN_WORDS = {german_number(n): n for n in (*range(20), *range(20, 100, 10))} | {"ein": 1}


def english_value(words: str) -> int:
    """Read an English number below a million, knowing only the words below a hundred."""
    thousands, _, rest = words.rpartition("thousand")
    if thousands:
        return 1000 * english_value(thousands) + english_value(rest)
    hundreds, _, rest = words.rpartition("hundred")
    if hundreds:
        return 100 * english_value(hundreds) + english_value(rest)
    return sum(ENGLISH_WORDS[word] for word in re.split("[ -]", words) if word not in ("", "and"))


def german_value(word: str) -> int:
    """Read a German number below a million, knowing only the words below a hundred."""
    for name, factor in (("tausend", 1000), ("hundert", 100)):
        count, found, rest = word.rpartition(name)
        if found:
            return factor * german_value(count) + (german_value(rest) if rest else 0)
    if word in GERMAN_WORDS:
        return GERMAN_WORDS[word]
    unit, tens = word.rsplit("und", 1)
    return GERMAN_WORDS[unit] + GERMAN_WORDS[tens]


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (17, "seventeen", "siebzehn"),
        (66, "sixty-six", "sechsundsechzig"),
        (101, "one hundred and one", "einhunderteins"),
        (1_100, "one thousand one hundred", "eintausendeinhundert"),
        (342_000, "three hundred and forty-two thousand", "dreihundertzweiundvierzigtausend"),
        (1_000_001, "one million and one", "eine Million eins"),
        (
            7_216_016,
            "seven million two hundred and sixteen thousand and sixteen",
            "sieben Millionen zweihundertsechzehntausendsechzehn",
        ),
    ],
)
def test_numbers_are_written_as_people_write_them(number, english, german):
    assert english_number(number) == english
    assert german_number(number) == german


@given(st.integers(0, 999_999))
def test_words_of_any_number_have_the_right_value(number):
    assert english_value(english_number(number)) == number
    assert german_value(german_number(number)) == number
    assert " " not in german_number(number)


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (1, "first", "erst"),
        (3, "third", "dritt"),
        (7, "seventh", "siebt"),
        (8, "eighth", "acht"),
        (12, "twelfth", "zwölft"),
        (16, "sixteenth", "sechzehnt"),
        (20, "twentieth", "zwanzigst"),
        (31, "thirty-first", "einunddreißigst"),
    ],
)
def test_ordinals_are_written_as_people_write_them(number, english, german):
    assert english_ordinal(number) == english
    assert german_ordinal_stem(number) == german


# Article, adjective and noun in the nominative, the accusative and the dative.
@pytest.mark.parametrize(
    ("english", "number", "is_definite", "german"),
    [
        ("an old hat", 1, False, ("ein alter Hut", "einen alten Hut", "einem alten Hut")),
        ("the old hat", 1, True, ("der alte Hut", "den alten Hut", "dem alten Hut")),
        ("a red lamp", 1, False, ("eine rote Lampe", "eine rote Lampe", "einer roten Lampe")),
        ("the red lamp", 1, True, ("die rote Lampe", "die rote Lampe", "der roten Lampe")),
        ("a big egg", 1, False, ("ein großes Ei", "ein großes Ei", "einem großen Ei")),
        ("two red apples", 2, False, ("zwei rote Äpfel", "zwei rote Äpfel", "zwei roten Äpfeln")),
        ("the red apples", 9, True, ("die roten Äpfel", "die roten Äpfel", "den roten Äpfeln")),
        ("the red knives", 2, True, ("die roten Messer", "die roten Messer", "den roten Messern")),
    ],
)
def test_articles_and_endings_agree_with_the_noun(english, number, is_definite, german):
    _, look, thing = english.split()
    noun = next(noun for noun in NOUNS if thing in (noun.english, noun.english_plural))
    adjective = next(pair for pair in ADJECTIVES if pair[0] == look)
    for case, expected in zip(("nominative", "accusative", "dative"), german, strict=True):
        phrase = noun_phrase(noun, adjective, case=case, number=number, is_definite=is_definite)
        assert phrase == (english, expected)


@pytest.fixture(scope="module")
def corpus():
    return {split: list(generate_pairs(split, num_pairs=n, seed=1)) for split, n in SIZES.items()}


HAND_CHECKED = """
A key costs nine euros and one cent. | Ein Schlüssel kostet neun Euro und einen Cent.
The black knives cost two hundred euros. | Die schwarzen Messer kosten zweihundert Euro.
On Thursday he is looking for a package with the red apples. \
| Am Donnerstag sucht er ein Paket mit den roten Äpfeln.
On Tuesday, the fourth of May, she is looking for a box with twenty-two blue coats. \
| Am Dienstag, dem vierten Mai, sucht sie eine Kiste mit zweiundzwanzig blauen Mänteln.
On the first of July he is buying eleven coats. | Am ersten Juli kauft er elf Mäntel.
today is the third of March | heute ist der dritte März
from the first to the seventh of November | vom ersten bis zum siebten November
the third of August nineteen thirty-seven | der dritte August neunzehnhundertsiebenunddreißig
the fifth of October twenty twenty-five | der fünfte Oktober zweitausendfünfundzwanzig
On the first of August we are meeting at half past twelve. \
| Am ersten August treffen wir uns um halb eins.
We are meeting at quarter to three. | Wir treffen uns um Viertel vor drei.
"""


def test_known_sentences_have_the_expected_translation(corpus):
    translations = dict(pair for pairs in corpus.values() for pair in pairs)
    for line in HAND_CHECKED.strip().splitlines():
        english, german = line.split(" | ")
        assert translations[english] == german


def test_every_sentence_has_one_translation(corpus):
    translations = dict(pair for pairs in corpus.values() for pair in pairs)
    for split in SIZES:
        for english, german in generate_pairs(split, num_pairs=300, seed=2):
            assert translations.setdefault(english, german) == german


def test_sentences_are_distinct_and_splits_disjoint_for_any_seeds(corpus):
    english = {split: {pair[0] for pair in pairs} for split, pairs in corpus.items()}
    assert [*map(len, english.values())] == [*SIZES.values()]
    english["test"] |= {pair[0] for pair in generate_pairs("test", num_pairs=500, seed=9)}
    assert english["train"].isdisjoint(english["valid"])
    assert english["train"].isdisjoint(english["test"])
    assert english["valid"].isdisjoint(english["test"])


def test_pairs_depend_only_on_the_seed_and_fewer_are_a_prefix(corpus):
    assert list(generate_pairs("train", num_pairs=500, seed=1)) == corpus["train"][:500]
    assert list(generate_pairs("train", num_pairs=500, seed=2)) != corpus["train"][:500]


def test_the_corpus_does_not_depend_on_the_hash_seed_of_the_process(corpus):
    code = (
        "from tfm.data.synthetic.corpus import generate_pairs\n"
        "for pair in generate_pairs('valid', num_pairs=50, seed=1): print(ascii(pair))"
    )
    run = python("-c", code, env={**os.environ, "PYTHONHASHSEED": "77"})
    assert run.stdout.splitlines() == [ascii(pair) for pair in corpus["valid"][:50]]
