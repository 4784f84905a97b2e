"""YAML as Marian writes it is read as text, and other YAML is refused."""

import pytest
import yaml

from tfm.applications.importing.yaml_mapping import read_mapping

PIECES = [
    *("▁", "a", "▁the", ",", "-", ":", "'", '"', "''", "\\", "#", "a#b", "&", "*", "!", "|", "%"),
    *("@", "`", "{", "}", "[", "]", "?", "~", "null", "true", "1", "1.5", "-a", "a:b", "a: b"),
    *("a #b", " a", "a ", "", "🙂", "é", "क्ष", "ﷺ", "\u2028", "\ufeff", "\t", "<<"),
    *(">>fra<<", "=", "…", "---", "...", "x" * 200),
]


@pytest.mark.parametrize("options", [{}, {"allow_unicode": True}, {"default_style": "'"}])
def test_each_piece_of_a_vocabulary_is_read(options):
    ids = {piece: str(number) for number, piece in enumerate(PIECES)}
    assert read_mapping(yaml.safe_dump(ids, width=10_000, sort_keys=False, **options)) == ids


def test_values_are_text_or_lists_of_text():
    text = (
        "# settings\n---\nmodels:\n  - a/model.npz  # best\nnone:\n  []\ninline: [1, 'b']\nn: 06\n"
    )
    expected = {"models": ["a/model.npz"], "none": [], "inline": ["1", "b"], "n": "06"}
    assert read_mapping(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("a", "a: &x 1", "a: *x", "a: !!python/object/apply:os.system [id]", "a: {b: 1}", "[a]"),
        *(
            "[a]: 1",
            "a: 1\na: 2",
            '"\\q": 1',
            '"a: 1',
            "a: [[1]]",
            "a: \x00",
            "",
            "a: " + "[" * 9_999,
        ),
    ],
)
def test_other_yaml_is_refused_with_the_number_of_its_line(text):
    with pytest.raises(ValueError, match=r"^line [12] "):
        read_mapping(text)
