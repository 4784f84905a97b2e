"""The normalization of text: white space, invisible characters, Windows-1252, Unicode."""

import unicodedata
from dataclasses import replace

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from tfm.config import LATEST_NORMALIZATION, Normalization

OFF = Normalization(space=False, unicode=False)
IGNORABLE = regex.compile(r"\p{Default_Ignorable_Code_Point}")
# What scripts and emoji need: joiners, variation selectors, the tags of flags.
NEEDED = regex.compile(r"[\u200c\u200d]|\p{Variation_Selector}|[\U000e0020-\U000e007f]")
CHARACTERS = [
    chr(code) for code in (*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE1100))
]


def test_the_property_of_a_character_decides_if_it_is_kept():
    for char in CHARACTERS:
        found = LATEST_NORMALIZATION.normalize(f"x{char}y")[1:-1]
        if "\x80" <= char <= "\x9f":
            expected = bytes([ord(char)]).decode("cp1252", errors="ignore")
        elif char.isspace():
            expected = " "
        elif (
            unicodedata.category(char) == "Cc"
            or "\ufff9" <= char <= "\ufffb"
            or (IGNORABLE.match(char) and not NEEDED.match(char))
        ):
            expected = ""
        else:
            expected = unicodedata.normalize("NFC", f"x{char}y")[1:-1]
        assert found == expected, hex(ord(char))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("l\x92homme", "l’homme"),
        ("\x84Gut\x93, sagte er\x85\x85oder so\x85", "„Gut“, sagte er……oder so…"),
        ("10 \x80\x81\x8d\x8f\x90\x9d", "10 €"),
        ("do\u2063gs", "dogs"),
        ("\u1160do\u115fgs\u3164\uffa0", "dogs"),
        ("Mu\u0308\u200bller", "Müller"),
        ("Mu\u200b\u0308ller", "Müller"),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af", "한글"),
        ("قا\u200cبل ❤\ufe0f", "قا\u200cبل ❤\ufe0f"),
        ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f3f4\U000e0067\U000e0062\U000e007f"),
        ("ﬁ Ａ ½ ①", "ﬁ Ａ ½ ①"),
    ],
)  # fmt: skip
def test_text_becomes_what_its_writer_meant(text, expected):
    assert LATEST_NORMALIZATION.normalize(text) == expected


@given(st.text(st.sampled_from("ab \t\u2028\u00a0\u200b\x85\x92é\u0301\u0323\u115f")))
def test_normalizing_again_changes_nothing(text):
    rules = LATEST_NORMALIZATION
    result = rules.normalize(text)
    assert rules.normalize(result) == result == " ".join(result.split())
    assert rules.output(text) == result


def test_nothing_is_changed_if_both_are_off_and_only_unicode_if_space_is_off():
    text = "  a\u0301\t\x92\u200b "
    assert OFF.normalize(text) == text
    assert replace(OFF, unicode=True).normalize(text) == "  \xe1\t\x92\u200b "


@pytest.mark.parametrize("rules", [LATEST_NORMALIZATION, OFF], ids=str)
def test_an_output_is_one_line_of_one_column_without_control_characters(rules):
    text = "".join(f"a{char} " for char in CHARACTERS)
    found = rules.output(text)
    assert found.splitlines() == [found]
    assert not [char for char in found if unicodedata.category(char) == "Cc"]


def test_both_forms_of_a_character_are_comparable_with_any_rules():
    for rules in (LATEST_NORMALIZATION, OFF):
        assert rules.comparable("\xe4\u1ec7") == rules.comparable("a\u0308\xea\u0323")
    assert LATEST_NORMALIZATION.comparable("a\u200b  b") == "a b"
