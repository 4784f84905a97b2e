"""tfm score: scores of single lines, the worst of them, and the page that shows them."""

import json

import pytest
from helpers import write_lines
from html_pages import is_self_contained, read_page, text_of, texts
from sacrebleu import sentence_bleu, sentence_chrf, sentence_ter

from tfm.commands.score import score

SOURCE = ["Two <b>dogs</b>.", "今天天气很好。", "كتاب (2024)."]
REFERENCE = ["Zwei <b>Hunde</b>.", "今天天气很好。", "كتاب é (2024)."]
OUTPUT = ["Zwei <b>Katzen</b>.", "今天天气不好。", "كتاب e\u0301 (2024)."]
OTHER = ["<script>alert(1)</script>", "", "x"]


@pytest.fixture
def files(elsewhere):
    texts = {"in": SOURCE, "ref.de": REFERENCE, "out": OUTPUT, "other": OTHER}
    for name, lines in texts.items():
        write_lines(elsewhere / name, lines)
    records = [
        json.dumps({"source": "", "translations": [{"text": text, "confidence": 0.5}, {}]})
        for text in OUTPUT
    ]
    write_lines(elsewhere / "out.jsonl", records)
    return elsewhere


def call(*arguments):
    return ("score", "--hypotheses", "out", "--reference", "ref.de", *arguments)


def test_each_line_has_the_sentence_scores_of_sacrebleu(run, files):
    code, _, _ = run(*call("--per-line", "lines.tsv", "--compare", "other"))
    head, *rows = (line.split("\t") for line in (files / "lines.tsv").read_text().splitlines())
    assert (code, head) == (0, ["line", "system", "chrf", "bleu", "ter", "confidence"])
    assert [row[:2] for row in rows[:3]] == [["1", "out"], ["1", "other"], ["2", "out"]]
    metrics = (sentence_chrf, sentence_bleu, sentence_ter)
    expected = [metric(OUTPUT[0], [REFERENCE[0]]).score for metric in metrics]
    assert rows[0][2:5] == [f"{value:.4f}" for value in expected]
    assert {row[5] for row in rows} == {""}


def test_lines_with_their_texts_are_json(run, files):
    run(*call("--per-line", "lines.jsonl", "--source", "in"))
    rows = [json.loads(line) for line in (files / "lines.jsonl").read_text().splitlines()]
    assert [(row["source"], row["reference"], row["text"]) for row in rows] == [
        *zip(SOURCE, REFERENCE, OUTPUT, strict=True)
    ]


@pytest.mark.parametrize("source", ["ref.de", "out"])
def test_the_source_may_be_another_text_that_is_scored(files, source):
    expected = REFERENCE if source == "ref.de" else OUTPUT
    result = score("out", "ref.de", source=source, worst=3, metric_command="sed -u s/.*/1/")
    assert {each.line: each.source for each in result.worst} == dict(enumerate(expected, 1))
    assert [each.name for each in result.scores] == ["bleu", "chrf", "command"]


def test_chinese_is_scored_by_characters(files):
    [worst, *_] = score("out", "ref.de", language="zh", worst=3).worst
    [of_words, *_] = score("out", "ref.de", worst=3).worst
    assert [worst.line, of_words.line] == [2, 2]
    assert worst.bleu > of_words.bleu


def test_the_worst_lines_are_printed(run, files):
    code, out, _ = run(*call("--worst", "1", "--metric", "chrf", "--source", "in"))
    words = [line.split(maxsplit=1) for line in out.splitlines()[1:]]
    assert (code, len(words)) == (0, 4)
    assert words[0][1].startswith("2")
    assert [each[1] for each in words[1:]] == [SOURCE[1], REFERENCE[1], OUTPUT[1]]
    _, out, _ = run(*call("--worst", "2", "--json"))
    assert [each["line"] for each in json.loads(out)["worst"]] == [2, 1]


def test_translations_may_be_json_lines_with_confidences(run, files):
    code, out, _ = run(
        *("score", "--hypotheses", "out.jsonl", "--reference", "ref.de", "--worst", "3", "--json")
    )
    found = json.loads(out)
    assert code == 0
    assert found["scores"] == json.loads(run(*call("--json"))[1])["scores"]
    assert {each["confidence"] for each in found["worst"]} == {0.5}


@pytest.mark.parametrize(
    "line", ["x", "[]", "{}", '{"translations": [{"text": 3}]}',
             '{"translations": [{"text": "\\ud800"}]}',
             '{"translations": [{"text": "a", "confidence": "b"}]}',
             '{"translations": [{"text": "a", "confidence": NaN}]}']
)  # fmt: skip
def test_other_json_lines_are_refused(run, files, line):
    write_lines(files / "bad.jsonl", [line] * 3)
    run.fails(
        *(1, r"bad\.jsonl, line 1 has no translation as .*", "score"),
        *("--hypotheses", "bad.jsonl", "--reference", "ref.de"),
    )


def test_the_page_shows_texts_as_text_and_marks_differences(run, files):
    code, _, _ = run(*call("--page", "p.html", "--source", "in", "--compare", "other"))
    assert code == 0
    page = read_page(files / "p.html")
    assert is_self_contained(page)
    lines = page.findall(".//li")
    shown = [line.findall(".//p[@dir='auto']") for line in lines]
    given = [*zip(SOURCE, REFERENCE, OUTPUT, OTHER, strict=True)]
    by_chrf = [given[index] for index in (1, 0, 2)]
    assert [tuple(map(text_of, row)) for row in shown] == by_chrf
    assert [texts(row[2], "mark") for row in shown] == [["不"], ["Katzen"], []]
    lengths = [json.loads(line.get("data-keys"))["length"] for line in lines]
    assert lengths == [len(source) for source, *_ in by_chrf]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--page", "-"], 2, "- is standard output: leave --page out, .*"),
        (["--page", "p.html", "--compare", "none"], 2, "none does not exist: .*"),
        (["--page", "p.html", "--compare", "one"], 1, "out and one have 3 and 1 lines: .*"),
        (["--worst", "1", "--metric", "bracket-f1"], 2, ".* are for text, not for trees: .*"),
    ],
)
def test_mistakes_are_one_line(run, files, arguments, code, message):
    write_lines(files / "one", ["x"])
    run.fails(code, message, *call(*arguments))


def test_trees_have_no_lines(run, files):
    write_lines(files / "test.gold", ["(S x)"] * 3)
    arguments = ("score", "--hypotheses", "out", "--reference", "test.gold", "--worst", "1")
    run.fails(2, ".* are for text, not for trees: leave them out", *arguments)
