"""What the first lines of a text show: pieces, records, markup and tags of other programs."""

import subprocess
from itertools import chain

import pytest

from tfm.commands.prepare import prepare_recipe as prepare
from tfm.commands.score import score
from tfm.errors import DataError
from tfm.text.corpus.loading import recipe_from_files
from tfm.text.looks import SIGNS, look

WORDS = [
    "Zwei Hunde spielen im Schnee.",
    "Ein Mann — schön — sitzt.",
    "两只狗在雪地里",
    "Ne yapıyorsun?",
]
SHOWN = {
    "cut by @@": ["Zw@@ ei Hun@@ de", "Schn@@ ee@@ ."],
    "U+2581": ["▁Zwei ▁Hun de", "▁ 两 只"],
    "U+FFED": ["Zwei Hunde￭ ."],
    "cut by ##": ["Zwei Hun ##de"],
    "with Ġ": ["Zwei ĠHun de Ġspie len Ġim ."],
    "end with": ["Zwei</w> Hun de</w>", "Zwei_ Hun de_ spie len_ im_ ._"],
    "are JSON": ['{"text": "Zwei"}', ' { "id" : 1, "a": {}}\r', '["Zwei", "a\\""]', '"Zwei."'],
    "markup": ["<b>Zwei</b> Hunde", 'a <a href="x">', "Zwei<br/>Hunde", "Zwei &amp; drei"],
    "tab": ["Zwei Hunde\ttwo dogs"],
    "tag of another": [
        *("<2de> Zwei", "<2de_DE> Zwei", ">>de<< Zwei", ">>deu<<Zwei", "__deu_Latn__ Zwei"),
        *("[DE] Zwei", "<de> Zwei", "de_DE Zwei", "deu_Latn Zwei", "__de__ Zwei", "<|de|> Zwei"),
        *("<to_de> Zwei", "<zh-CN> 两只", "[2de] Zwei", "translate English to German: Zwei"),
        *("<2zh_Hans_CN> Zwei", "<2es-419> Zwei", "<2german> Zwei", "<german> Zwei", "{de} Zwei"),
        *("<en2de> Zwei", "<lang:de> Zwei", "<tgt:de> Zwei", "<lang_de> Zwei", "zh_Hans Zwei"),
        *("es_419 Zwei", "__opt_tgt_de Zwei", "__label__de Zwei", "[GERMAN] Zwei", "«de» Zwei"),
        *("Translate English to German: Zwei", "translate to German: Zwei", "<ZH> 两只"),
    ],
}


@pytest.mark.parametrize(
    ("what", "line"), [(what, line) for what, lines in SHOWN.items() for line in lines]
)
def test_lines_show_what_they_are(what, line):
    [finding] = look([line, ""] * 10)
    assert f"10 of the first 10 lines {finding.sign.what}" in str(finding)
    assert what in finding.sign.what


@pytest.mark.parametrize(
    "line", ["a", "a ", "{", "<a ", '<a x="', "▁a", "</", "@@", '{"', "&#1", "\t"]
)
def test_no_line_takes_quadratic_time(line):
    """In quadratic time, each of these would take minutes."""
    assert len([*look([line * 300_000])]) <= 2


@pytest.mark.parametrize("line", [*chain(*SHOWN.values())])
def test_rare_lines_show_nothing(line):
    assert not [*look([line] + WORDS * 5)]


@pytest.mark.parametrize("line", ["[OK] So", "[AM] So", "<Bob> So", "[1] So", "C ## sharp"])
def test_what_a_tenth_of_lines_have_is_no_sign(line):
    assert not [*look(([line] + WORDS[:3] * 3) * 100)]


def test_known_tags_are_none():
    lines = ["<2de> Zwei", "<2fr> deux"]
    assert [*look(["[DE] Zwei", "[FR] deux"] * 10)]
    assert not [*look(lines, {"<2de>", "<2fr>"}.__contains__)]
    [finding] = look(lines, {"<2fr>"}.__contains__)
    assert (finding.num_lines, finding.example) == (1, "<2de>")


def test_advised_commands_join_pieces_as_they_were():
    texts = {"@@": "Hun@@ de spie@@ len .\nSchn@@ ee\n", "▁": "▁Hun de ▁spie len ▁.\n▁Schn ee\n"}
    for mark, text in texts.items():
        [sign] = [each for each in SIGNS if mark in text and each.pattern.search(text)]
        command = sign.advice.partition("with ")[2].partition(", because")[0]
        done = subprocess.run(
            ["sh", "-c", command], input=text.encode(), capture_output=True, check=True
        )
        assert done.stdout.decode() == "Hunde spielen .\nSchnee\n"


def test_scores_of_pieces_are_refused_unless_they_are_asked_for():
    cut = [["Zw@@ ei Hun@@ de ."] * 4] * 2
    for hypotheses, reference in (cut, (cut[0], ["Zwei Hunde ."] * 4), (["Zwei"] * 4, cut[0])):
        with pytest.raises(DataError, match=r"have words cut by @@.*sed -E .*--tokenize none"):
            score(hypotheses, [reference])
    result = score(cut[0], [cut[1]], metric="bleu", tokenize="none")
    assert result.scores[0].value == pytest.approx(100)


def test_only_differences_from_the_reference_are_reported(capsys):
    marked = ["<b>Zwei Hunde</b> spielen"] * 4
    score(marked, [marked])
    assert "markup" not in capsys.readouterr().err
    score(marked, [["Zwei Hunde spielen"] * 4])
    assert "warning: hypotheses: 4 of the first 4 lines have markup" in capsys.readouterr().err
    for records in (['{"a": "b"}'] * 4, ["a\tb"] * 4):
        for texts, name in ((records, marked), "hypotheses"), ((marked, records), "reference"):
            with pytest.raises(DataError, match=rf"{name}.*: 4 of .* (are JSON|have a tab)"):
                score(texts[0], [texts[1]])


def test_prepare_reports_what_models_would_learn(tmp_path, capsys):
    sides = {"en": "<2de> two dogs in snow {}\n", "de": "Hun@@ de im Schn@@ ee {}\n"}
    for language, line in sides.items():
        text = "".join(line.format(number) for number in range(20))
        (tmp_path / f"a.{language}").write_text(text, encoding="utf-8")
    pair = (tmp_path / "a.en", tmp_path / "a.de")
    recipe = recipe_from_files(name="x", train=[pair])
    prepare(recipe, tmp_path / "x", text_only=True)
    printed = capsys.readouterr().err
    assert "a.en: 20 of the first 20 lines begin with what may be a tag" in printed
    assert "a.de: 20 of the first 20 lines have words cut by @@" in printed
    prepare(recipe, tmp_path / "y", {"subword": {"symbols": "<2de>"}}, text_only=True)
    assert "tag of another" not in capsys.readouterr().err
