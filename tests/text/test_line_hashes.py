"""Hashes of lines and of their 4-grams: which spellings are the same text."""

import unicodedata

import numpy as np
import pytest

from tfm.text.line_hashes import hash_lines

SAME = {
    "case, spaces, punctuation": ("A dog, and a CAT run.", "a  dog — and «a cat»\trun!"),
    "an apostrophe": ("l'homme n'est pas là", "l’homme n’est pas là"),
    "decomposed": ("Der Käse schmeckt gut", unicodedata.normalize("NFD", "Der Käse schmeckt gut")),
    "sharp s": ("Die Straße ist groß hier", "DIE STRASSE IST GROSS HIER"),
    "wide letters": ("ABC 123 def ghi", "ＡＢＣ　１２３ ｄｅｆ ｇｈｉ"),
    "units": ("bei 5 ㎒ im Test", "BEI 5 MHZ IM TEST"),
    "Chinese": ("我爱北京，天安门。", "我爱北京 天安门"),
    "Arabic": ("هل أنت بخير اليوم؟", "هل أنت بخير اليوم"),
    "Hindi": ("यह एक अच्छा दिन है।", "यह एक अच्छा दिन है"),
    "emoji": ("so much fun today 😀🎉", "so much fun today"),
    "soft hyphen": ("die Auto\u00adbahn ist heute leer", "die Autobahn ist heute leer"),
    "byte order mark, CR": ("\ufeffone two three four\r", "one two three four"),
    "a tag": ("<2fr> one two three four", "one two three four"),
    "a tag of OPUS-MT": (">>fra<< one two three four", "one two three four"),
}
DIFFERENT = {
    "order": ("a dog bites the man", "the man bites a dog"),
    "a letter": ("a dog bites the man", "a dog bites the men"),
    "an accent": ("il a mange du pain", "il a mangé du pain"),
    "numbers": ("page 12 of the book", "page 21 of the book"),
    "Turkish i": ("kılı kırk yarar bazen", "kili kirk yarar bazen"),
    "vowel signs": ("कल वह घर गया", "कल वह घर गयी"),
    "another word in brackets": ("<x y> one two three four", "one two three four"),
}


STABLE_LINES = ["83547415b3898b3f", "142e8fbf1e82c3a7"]
STABLE_GRAMS = "2f1e6885466bb551"


def hashed(*lines):
    return hash_lines([line.encode() for line in lines])


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_spellings_of_a_text_have_the_same_hashes(pair):
    lines, grams, owners = hashed(*pair)
    assert lines[0] == lines[1]
    assert lines[0]
    assert grams[owners == 0].tolist() == grams[owners == 1].tolist()


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_other_texts_have_other_hashes(pair):
    lines, grams, owners = hashed(*pair)
    assert lines[0] != lines[1]
    assert set(grams[owners == 0]) != set(grams[owners == 1])


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("", 0),
        ("?! …", 0),
        ("one two three", 0),
        ("one two three four", 1),
        ("well-known: one two", 1),
        ("one two three four five six", 3),
        ("我爱北京天安门", 4),
        ("ผมรักเธอ", 5),
        ("GPT 是 一个 模型", 3),
        ("カタカナ", 1),
        ("한국어 문장 네 단어", 1),
    ],
)
def test_tokens_are_words_or_letters_of_scripts_without_spaces(line, number):
    assert len(hashed(line)[1]) == number


def test_the_hashes_of_a_line_do_not_depend_on_others():
    texts = [text for pair in (*SAME.values(), *DIFFERENT.values()) for text in pair]
    texts = [*texts, "", "one", "x " * 5000, "", "𠀀𠀁𠀂𠀃"]
    lines, grams, owners = hashed(*texts)
    for number, text in enumerate(texts):
        alone = hashed(text)
        assert alone[0].tolist() == [lines[number]]
        assert alone[1].tolist() == grams[owners == number].tolist()
    assert (lines == 0).tolist() == [not text for text in texts]


def test_bytes_that_are_not_utf8_are_ignored():
    assert hash_lines([b"a b\xff c d"])[0] == hash_lines([b"a b c d"])[0]


def test_hashes_are_part_of_the_format_and_stay():
    lines, grams, _ = hashed("Zwei Hunde spielen im Schnee.", "两只狗在雪地里玩耍")
    assert [f"{value:016x}" for value in lines] == STABLE_LINES
    assert f"{np.bitwise_xor.reduce(grams):016x}" == STABLE_GRAMS
