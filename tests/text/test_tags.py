"""Tags before source sentences."""

import pytest

from tfm.errors import DataError
from tfm.text.tags import split_tag, tagged_language, untagged


@pytest.mark.parametrize(
    "line", ["Hallo du", "<bt> Hallo du", "<bt>\xa0Hallo du", "\ufeff<bt>\tHallo du"]
)
def test_a_sentence_loses_the_tag_that_it_will_get(line):
    assert untagged(line, "<bt>", ["<bt>", "<2fr>"].__contains__, place="") == "Hallo du"


@pytest.mark.parametrize("line", ["", " ", "<bt>", "<bt> "])
def test_a_sentence_without_text_stays_empty(line):
    assert not untagged(line, "<bt>", lambda word: True, place="").strip()


def test_another_tag_is_refused_with_its_place_and_other_words_are_text():
    for line in ("<b> fett", "< bt>", "<>", "<2de>x", "<bt>x"):
        assert untagged(line, "<bt>", ["<2de>"].__contains__, place="") == line
    with pytest.raises(DataError, match=r"^x\.en, line 7 begins with the tag <2de>, .* <bt>"):
        untagged("<2de> Hallo", "<bt>", ["<2de>"].__contains__, place="x.en, line 7")


def test_a_tag_names_the_language_that_it_chooses():
    tags = ("<2fr>", ">>fra<<", ">>cmn_Hans<<", "<bt>", "<fr>", "")
    assert [*map(tagged_language, tags)] == ["fr", "fra", "cmn_Hans", "", "", ""]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        *((f">>fra<<{space}你好 a", (">>fra<<", "你好 a")) for space in ("", " ", " \t", "\xa0")),
        ("\ufeff <2de> x\n", ("<2de>", "\ufeff x\n")),
        ("  >>fra<<\r\n", (">>fra<<", "  \r\n")),
        (">>fra<<", (">>fra<<", "")),
        (">>fra<<>>fra<<x", (">>fra<<", ">>fra<<x")),
        *(
            (line, ("", line))
            for line in ("", "  ", "<2de>x", ">>deu<<x", "x >>fra<<", " >>fra <<")
        ),
    ],
)
def test_a_tag_is_separated_from_its_text(line, expected):
    assert split_tag(line, [">>fra<<", "<2de>"]) == expected
