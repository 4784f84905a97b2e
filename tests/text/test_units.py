"""The units of text: words, and the characters of scripts without spaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.text.units import blanked, units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don't  stop, co-op x2!", ["don't", "stop", ",", "co", "-", "op", "x2", "!"]),
        ("Bob's l'eau п’ять", ["Bob", "'", "s", "l'eau", "п’ять"]),
        ("中文abc日本語", [*"中文", "abc", *"日本語"]),
        ("नमस्ते cafe\u0301 e\u200dx", ["नमस्ते", "cafe\u0301", "e\u200dx"]),
        ("สวัสดี", ["ส", "วั", "ส", "ดี"]),
        ("👍🏽👩‍👩‍👧🇩🇪✔️", ["👍🏽", "👩‍👩‍👧", "🇩🇪", "✔️"]),
        (" \u3000\n", []),
    ],
)
def test_units_are_words_and_what_readers_take_for_characters(text, expected):
    assert [text[slice(*span)] for span in units(text)] == expected


@given(st.text())
def test_white_space_alone_is_between_units(text):
    ends = [0, *(end for _, end in units(text))]
    starts = [*(start for start, _ in units(text)), len(text)]
    assert not "".join(text[a:b] for a, b in zip(ends, starts, strict=True)).strip()


def test_blanked_text_keeps_its_white_space_and_the_places_of_all_other_text():
    found = blanked("see {a b}, <x> 中{c}", [(4, 9), (16, 19)])
    assert found == "see \u200b\u200b \u200b\u200b, <x> 中\u200b\u200b\u200b"
    assert blanked("", []) == ""
