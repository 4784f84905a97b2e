"""The reader of Marian's YAML reads what a YAML package does, or refuses it."""

import pytest

from tfm.applications.importing.yaml_lines import read_mapping

yaml = pytest.importorskip("yaml")

PIECES = [
    *("▁", "a", "▁the", ",", "-", ":", "'", '"', "''", "\\", "#", "a#b", "&", "*", "!", "|", "%"),
    *("@", "`", "{", "}", "[", "]", "?", "~", "null", "true", "1", "1.5", "-a", "a:b", "a: b"),
    *("a #b", " a", "a ", "", "🙂", "é", "क्ष", "ﷺ", "\u2028", "\ufeff", "\x85", "\t", "<<"),
    *(">>fra<<", "=", "…", "---", "...", "x" * 200),
]


@pytest.mark.parametrize("options", [{}, {"allow_unicode": True}, {"default_style": "'"}])
def test_each_piece_that_a_package_writes_is_read(options):
    ids = {piece: number for number, piece in enumerate(PIECES)}
    text = yaml.safe_dump(ids, width=10_000, sort_keys=False, **options)
    try:
        found = read_mapping(text.split("\n"))
    except ValueError:
        assert any(line.startswith("? ") for line in text.split("\n"))
        text = "".join(
            f"{yaml.safe_dump(piece, default_style=chr(34), width=10_000).strip()}: {number}\n"
            for piece, number in ids.items()
        )
        found = read_mapping(text.split("\n"))
    assert found == {piece: str(number) for piece, number in ids.items()}


def test_lists_comments_and_escapes_are_read():
    lines = [
        "# settings",
        "---",
        "models:",
        "  - a/model.npz  # the best",
        "vocabs:",
        "- 'it''s.spm'",
        '- "\\x41\\u2581\\U0001F642\\t.spm"',
        "none:",
        "  []",
        "inline: [1, 'b']",
        "beam-size: 6 # fast",
        'empty: ""',
        "",
    ]
    assert read_mapping(lines) == yaml.load("\n".join(lines), yaml.BaseLoader)


@pytest.mark.parametrize(
    "lines",
    [
        ["a"],
        ["a: &x 1"],
        ["a: *x"],
        ["a: !!python/object/apply:os.system [id]"],
        ["{a: 1}"],
        ["a: {b: 1}"],
        ["? a", ": 1"],
        ["a: |", "  text"],
        ["a: 1", "a: 2"],
        ['"\\q": 1'],
        ['"\\UFFFFFFFF": 1'],
        ['"a: 1'],
        ["a" + " " * 100_000],
    ],
)
def test_other_yaml_is_refused_with_the_number_of_its_line(lines):
    with pytest.raises(ValueError, match=r"^line [12] "):
        read_mapping(lines)
