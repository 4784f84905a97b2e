"""Tags before source sentences."""

import pytest

from tfm.data.tags import tagged, untagged
from tfm.errors import DataError


@pytest.mark.parametrize("line", ["Hallo du", "<bt> Hallo du", "<bt>\tHallo du", " <bt>  Hallo du"])
def test_a_sentence_with_or_without_its_tag_gets_it_once(line):
    plain = untagged(line, "<bt>", ["<bt>", "<2fr>"].__contains__, place="x, line 7")
    assert tagged(plain, "<bt>") == "<bt> Hallo du"


@pytest.mark.parametrize("line", ["", " ", "<bt>", "<bt> "])
def test_a_sentence_without_text_stays_empty(line):
    assert not tagged(untagged(line, "<bt>", lambda word: True, place=""), "<bt>").strip()


def test_another_tag_is_refused_with_its_place_and_other_words_are_text():
    for line in ("<b> fett", "< bt>", "<>", "<2de>x", "<bt>x"):
        assert untagged(line, "<bt>", ["<2de>"].__contains__, place="") == line
    with pytest.raises(DataError, match=r"^x\.en, line 7 begins with the tag <2de>, .* <bt>"):
        untagged("<2de> Hallo", "<bt>", ["<2de>"].__contains__, place="x.en, line 7")
