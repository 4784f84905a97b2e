"""Phrases in the pieces of a vocabulary, and where their words may begin and end."""

from pathlib import Path

import pytest

from tfm.search.phrases import Edges, PhraseEncoder, RequiredPhrases
from tfm.vocabulary.foreign import word_model
from tfm.vocabulary.subword import SubwordModel, Vocabulary

LINES = (
    *(
        "Ein Hund läuft am Zaun.",
        "Der Hund („Hunde“) schläft.",
        "Hund, Katze, Maus",
        "ein-Hund-Haus",
    ),
    *("我有一只狗。", "狗在跑。小狗睡觉。", "他们看到狗，猫和鸟。", "我 的 iPhone 和 iPad"),
    *("İstanbul'da bir köpek var.", "köpekler koşuyor", "ışık ile iyi köpek"),
    *("الكلب يركض في الثلج", "كلب صغير", "एक कुत्ता दौड़ता है", "कुत्ते सोते हैं", "สุนัขวิ่งเล่น"),
)


@pytest.fixture(scope="module")
def vocabulary(make_dataset, tmp_path_factory):
    folder = make_dataset(
        tmp_path_factory.mktemp("many") / "data",
        {"train": [(line, line) for line in LINES * 3], "valid": [("a", "a")]},
        vocab_size=400,
    )
    return Vocabulary.load(folder)


@pytest.fixture(scope="module")
def has(vocabulary):
    """Return whether an output, encoded as it is usual, contains phrases."""
    encoder, edges = PhraseEncoder(vocabulary), list(map(Edges.of, vocabulary.target.surfaces()))

    def check(output, *phrases):
        pairs = [each if isinstance(each, tuple) else (each, each) for each in phrases]
        encoded = [encoder.encode(tuple(a.split("|")), tuple(b.split("|"))) for a, b in pairs]
        needed = RequiredPhrases(encoded, edges)
        progress = needed.start()
        for token in vocabulary.target.encode([output])[0]:
            progress = needed.advanced(progress, token)
        return progress.is_complete

    return check


@pytest.mark.parametrize(
    ("output", "phrase"),
    [
        ("Ein Hund läuft.", "Hund"),
        ("Hund und Zaun", "Hund"),
        ("am Zaun: Hund.", "Hund"),
        ("Der („Hund“) schläft.", "Hund"),
        ("Hund-Haus", "Hund"),
        ("ein Hund läuft am Zaun.", "Hund läuft"),
        ("我有一只狗。", "狗"),
        ("狗在跑。", "狗"),
        ("小狗睡觉。", "狗"),
        ("我 的 iPhone 和", "iPhone"),
        ("bir köpek var", "köpek"),
        ("الكلب صغير كلب", "كلب"),
        ("एक कुत्ता दौड़ता है", "कुत्ता"),
        ("ภาพสุนัขวิ่ง", "สุนัข"),
    ],
)
def test_a_phrase_is_recognized_where_the_subword_model_writes_it(has, output, phrase):
    assert has(output, phrase)
    assert not has(output, phrase, phrase)
    assert has(f"{output} {output}", phrase, phrase)


@pytest.mark.parametrize(
    ("output", "phrase"),
    [
        ("Zwei Hunde laufen.", "Hund"),
        ("ein Windhund", "hund"),
        ("köpekler", "köpek"),
        ("الكلب يركض", "كلب"),
        ("कुत्ते सोते", "कुत्त"),
        ("สุนัขิ", "สุนัข"),
        ("Zaun", "Hund"),
    ],
)
def test_a_part_of_a_word_is_no_phrase(has, output, phrase):
    assert not has(output, phrase)


def test_the_first_word_of_a_sentence_has_its_form(has):
    iyi = ("ışık", "Işık")
    assert has("Işık var", iyi)
    assert has("bir ışık var", iyi)
    assert not has("ışık var", iyi)
    assert not has("bir Işık var", iyi)
    assert has("bir köpek. Işık var", iyi)
    assert has("„Işık“", iyi)


@pytest.mark.parametrize(
    ("before", "is_joined"),
    [("läuft.", False), ("läuft,", False), ("„", True), ("(", True), ("ein-", True), ("狗", True)],
)
def test_a_phrase_follows_the_marks_that_need_a_space_only_after_a_space(
    vocabulary, before, is_joined
):
    model = vocabulary.target
    phrase = PhraseEncoder(vocabulary).encode(("Hund",), ("Hund",))
    needed = RequiredPhrases([phrase], list(map(Edges.of, model.surfaces())))
    progress = needed.start()
    for token in model.encode([f"Ein {before}"])[0]:
        progress = needed.advanced(progress, token)
    firsts = {tokens[0] for tokens in phrase.within}
    with_space = {t for t in firsts if model.surfaces()[t].startswith(b" ")}
    assert len(firsts) == 2
    assert set(needed.following(progress)) == (firsts if is_joined else with_space)


@pytest.mark.parametrize("phrase", ["ძაღლი", "Ċelvēks"])
def test_a_phrase_that_begins_with_bytes_follows_a_word_only_after_a_space(vocabulary, phrase):
    model = vocabulary.target
    encoded = PhraseEncoder(vocabulary).encode((phrase,), (phrase,))
    needed = RequiredPhrases([encoded], list(map(Edges.of, model.surfaces())))
    progress = needed.start()
    for token in model.encode(["Ein Hund"])[0]:
        progress = needed.advanced(progress, token)
    firsts = [model.surfaces()[token][:1] for token in needed.following(progress)]
    assert firsts == [b" "]


def test_a_phrase_in_bytes_ends_where_no_letter_follows(has):
    assert has("Ein ძაღლი läuft.", "ძაღლი")
    assert not has("Ein ძაღლიx läuft.", "ძაღლი")


def test_a_word_that_the_vocabulary_lacks_cannot_be_spelled():
    content = word_model(["<pad>", "<s>", "</s>", "<unk>", "ein", "Hund"])
    model = SubwordModel(content, origin=Path("words"))
    encoder = PhraseEncoder(Vocabulary(model, model))
    assert encoder.encode(("Zaun",), ("Zaun",)) is None
    assert encoder.encode(("ein Hund",), ("Ein Hund",)) is None
    assert encoder.encode(("ein Hund",), ("ein Hund",)).within == ((4, 5),)
    assert encoder.encode(("Zaun", "ein Hund"), ("Zaun", "ein Hund")).within == ((4, 5),)


@pytest.mark.parametrize(
    ("output", "has_any"),
    [
        ("Der Hund schläft.", True),
        ("Zwei Hunde laufen.", True),
        ("Zwei Hundes laufen.", False),
        ("Zaun. Katze und Maus", True),
        ("Zaun: Kater", False),
    ],
)
def test_one_of_several_forms_is_enough_even_if_one_begins_another(has, output, has_any):
    for forms in ("Hund|Hunde|Katze und Maus", "Katze und Maus|Hunde|Hund"):
        assert has(output, forms) == has_any
    assert has("Hund, Hunde", "Hund|Hunde", "Hund|Hunde")
    assert not has("Hund, Maus", "Hund|Hunde", "Hund|Hunde")
