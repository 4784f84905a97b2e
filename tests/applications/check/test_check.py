"""tfm check: each planted fault fails its rows, and no others."""

import json
import re
from types import SimpleNamespace
from unicodedata import normalize
from xml.etree import ElementTree as ET

import pytest
from helpers import write_lines
from html_pages import read_page, text_of, texts

from tfm.applications.check import measures
from tfm.applications.check.rows import ROWS, cases
from tfm.applications.check.suite import check_rows, read_test_set
from tfm.commands.train import train_model
from tfm.translation.steps import Output

WORDS = [
    *("the", "small", "brown", "dog", "runs", "over", "wide", "green", "fields", "near", "some"),
    *("quiet", "village"),
]
LINES = [
    " ".join([WORDS[i % 13].title(), *(WORDS[(i * k) % 13] for k in range(2, 9)), f"mark{c}."])
    for i, c in enumerate("abcdefghijklmnopqrstuvwx")
]
PAIRS = [(line, line) for line in LINES]
MORE = "is an animal with four legs and a tail"
QUICK = ("--lines", "4", "--beam", "1", "--max-extra-length", "3")
CASES = ("upper", "title", "lower")
NUMBERED = ("numbers", "dates", "units", "addresses", "list")


def model(change=lambda text: text, confidence=None):
    """Return a model of the task to copy a line, with a fault."""

    def translate(sources):
        texts = [change(source) for source in sources]
        return [
            Output(
                text,
                -1.0,
                -1.0,
                alignment=tuple(
                    (i, i) for i, word in enumerate(source.split()) if word in text.split()
                ),
                confidence=confidence,
            )
            for source, text in zip(sources, texts, strict=True)
        ]

    return translate


def failed(change=lambda text: text, pairs=PAIRS, confidence=None, **options):
    rows = check_rows(model(change, confidence), pairs, "en", **options)
    return {
        row.name: [each.partition(":")[0] for each in row.failures] for row in rows if row.failures
    }


def test_a_perfect_model_fails_nothing():
    assert failed() == {}


def test_dropped_digits_are_found_where_there_are_digits():
    found = failed(lambda text: re.sub(r"\d", "", text))
    assert set(found) == {*NUMBERED, "placeholders"}
    assert all("numbers" in found[name] for name in ("numbers", "dates", "units", "list"))


def test_units_are_counted_where_they_must_be_copied():
    found = check_rows(model(lambda text: text.replace("%", "")), PAIRS, "en")
    [units] = [row for row in found if row.name == "units"]
    assert units.measures["copied"] == 50
    assert all(each.endswith("(85 )") for each in [w.output for w in units.worst if w.faults])


def test_numbers_may_be_written_as_in_the_language_of_the_translation():
    def localized(text):
        text = text.replace("60274", "60.274").replace("31.12.1999", "31/12/1999")
        return text.translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩"))

    names = {name for name, measures in failed(localized).items() if "numbers" in measures}
    assert names == set()


def test_broken_addresses_are_found():
    assert failed(lambda text: re.sub(r"://|@|www\.", " ", text)) == {"addresses": ["copied"]}


def test_a_model_of_lower_case_fails_in_capitals():
    found = failed(lambda text: re.sub("[A-Z]{2,}", "x", text))
    assert set(found) == {"upper"}
    assert "drop" in found["upper"]


def test_a_model_that_translates_one_sentence_only_loses_the_others():
    found = failed(lambda text: text.split(". ")[0])
    assert {"list", "long", "repeated"} <= set(found)
    assert "unaligned" in found["long"]


@pytest.mark.parametrize(
    ("change", "name", "measure"),
    [
        (lambda text: text or "Hello.", "empty", "long"),
        (lambda text: text if len(text) < 200 else "of the " * 20, "long", "repeating"),
        (lambda text: text if " " in text else f"{text} {MORE}", "word", "long"),
        (lambda text: text if text.isascii() else "very very very very", "script", "repeating"),
        (lambda text: text.replace("  ", " x "), "spaces", "drop"),
        (lambda text: text.lower().title() if text.istitle() else text, "", ""),
    ],
)
def test_other_faults(change, name, measure):
    found = failed(change)
    assert measure in found.get(name, []) if name else found == {}


def test_confidence_is_compared_with_the_result():
    assert failed(confidence=1.0) == {}
    found = failed(lambda text: text if text.islower() else text[::2], confidence=0.95)
    assert "overconfidence" in found["plain"]


def test_words_of_no_training_text_are_found(tmp_path):
    training = write_lines(tmp_path / "train.de", [*LINES, "HELLO"])
    assert failed(training=training) == {}
    found = failed(lambda text: re.sub("dog|fields|the", "xyzzy", text), training=training)
    assert "unknown" in found["plain"]


def test_a_baseline_fails_rows_that_are_significantly_worse():
    few = PAIRS[:9]
    found = failed(lambda text: text.replace("o", ""), few, baseline=model())
    assert "loss" in found["plain"]
    assert failed(pairs=few, baseline=model(lambda text: text.replace("o", ""))) == {}


def test_typos_are_the_same_in_each_call_and_for_fewer_lines():
    [row] = [row for row in ROWS if row.name == "typos"]
    every = cases(row, LINES, "en")
    assert every == cases(row, LINES, "en")
    assert every[:5] == cases(row, LINES[:5], "en")
    assert all(case.source != LINES[case.lines[0]] for case in every)


@pytest.mark.parametrize(
    ("lines", "language", "skipped"),
    [
        (["两只狗在雪地里玩。", "一个人在看书。"] * 4, "zh", {*CASES, "typos", "spaces", "word"}),
        (["दो कुत्ते बर्फ में खेलते हैं।"] * 8, "hi", {*CASES}),
        (["كلبان يلعبان في الثلج."] * 8, "ar", {*CASES}),
        (["iki köpek karda oynuyor"] * 8, "tr", {"lower", "unpunctuated"}),
        (["Ο σκύλος τρέχει στο μικρό δάσος."] * 8, "el", set()),
        (["Zwei graue Hunde."] * 7, "de", {"long"}),
        (["Zwei graue Hunde."], "de", {"list", "long"}),
        (["Hunde"], "de", {"list", "long", "title", "unpunctuated", "typos", "spaces", "word"}),
    ],
)  # fmt: skip
def test_what_does_not_suit_a_script_is_skipped(lines, language, skipped):
    pairs = [(line, line) for line in lines]
    rows = check_rows(model(), pairs, language)
    found = {row.name for row in rows if row.skipped}
    assert found == skipped
    joined = {"list": 3, "long": 8}
    too_few = {row.name for row in rows if row.skipped == "too few lines"}
    assert too_few == {name for name, number in joined.items() if number > len(lines)}
    assert {row.name for row in rows if row.failures} <= {"typos"}


def test_capitals_are_those_of_the_language():
    upper, lower = (row for row in ROWS if row.name in ("upper", "lower"))
    assert cases(upper, ["iki köpek 😀"], "tr")[0].source == "İKİ KÖPEK 😀"
    assert cases(lower, ["İki IŞIK"], "tr")[0].source == "iki ışık"
    assert cases(lower, ["I saw İzmir"], "en")[0].source == "i saw izmir"
    assert measures.words(["KIRMIZI İZMİR ΤΡΕΧΕΙ"]) == measures.words(["kırmızı izmir τρέχει"])


def test_texts_of_other_scripts_are_not_of_the_test_set():
    [row] = [row for row in ROWS if row.name == "script"]
    sources = [case.source for case in cases(row, ["Привет, мир", "今天"], "ru")]
    assert [source[0] for source in sources] == ["T", "ا", "म"]


def test_a_row_may_have_thresholds_of_its_own():
    assert {row.name: row.limits for row in ROWS if row.limits} == {
        "emoji": {"copied": 0},
        "dates": {"numbers": 75},
    }
    found = measures.failures({"drop": 5.01, "copied": 94, "numbers": 90}, {"drop": 5})
    drop, copied = found
    assert re.fullmatch(r"drop: 5\.0 points .* \(at most 5\)", drop)
    assert re.fullmatch(r"copied: 94\.0 % of addresses.* \(at least 95\)", copied)


def test_the_command_prints_rows_and_fails(run, trained_run, monkeypatch):
    code, out, err = run("check", trained_run, *QUICK, "--json")
    found = json.loads(out)
    assert code == 1
    assert [row["name"] for row in found["rows"]] == [row.name for row in ROWS]
    assert (found["num_lines"], found["protects"], found["passed"]) == (4, True, False)
    assert found["rows"][0]["measures"]["chrf"] > 0
    monkeypatch.setattr(measures, "LIMITS", {})
    code, out, err = run("check", trained_run, *QUICK, "--baseline", trained_run, "--no-protect")
    assert code == 0
    assert out.splitlines()[0].split()[:3] == ["row", "cases", "chrf"]
    assert "0 of 19 rows failed; placeholders were not protected" in err


def test_joined_lines_are_truncated_to_the_positions_of_a_model(run, data_dir, tiny_run, elsewhere):
    model = {"learned_positions": 70}
    train_model(data_dir, elsewhere / "run", tiny_run(model=model, training={"max_steps": 1}))
    code, out, _ = run("check", elsewhere / "run", "--lines", "8", *QUICK[2:], "--json")
    [long] = [row for row in json.loads(out)["rows"] if row["name"] == "long"]
    assert (code, long["num_cases"], long["skipped"]) == (1, 1, None)


def test_lines_come_with_the_tag_that_all_of_them_have(tmp_path):
    vocabulary = SimpleNamespace(tags=lambda: ("<2de>", "<2fr>"))
    folder = SimpleNamespace(vocabulary=SimpleNamespace(source=vocabulary))
    sources = [
        "\ufeff<2fr> A dog.\r",
        "<2de> A man.",
        "<2de> Men.",
        "<2fr> Two.",
        "",
        "<2fr> Three.",
    ]
    files = [
        write_lines(tmp_path / "a.en", sources),
        write_lines(
            tmp_path / "a.xx", ["Un chien.", "Ein Mann.", "Männer.", "Deux.", "x", "Trois."]
        ),
    ]
    found = read_test_set(folder, files, 2)
    assert found == ("<2fr>", [("A dog.", "Un chien."), ("Two.", "Deux.")])


def test_decomposed_text_is_equal_to_composed_text():
    pairs = [(normalize("NFD", f"{line} é ü"), f"{line} é ü") for line in LINES]
    assert failed(lambda text: normalize("NFC", text), pairs) == {}


def test_lines_of_files_are_checked(run, trained_run, elsewhere):
    write_lines(elsewhere / "a.en", ["", "Two dogs.", "A man."])
    write_lines(elsewhere / "a.de", ["", "Zwei Hunde.", "Ein Mann."])
    _, out, _ = run(
        *("check", trained_run, "--source", "a.en", "--reference", "a.de", "--beam", "1", "--json")
    )
    assert json.loads(out)["num_lines"] == 2
    write_lines(elsewhere / "a.de", ["", "", ""])
    run.fails(
        *(1, "a.en has no lines with references: .*", "check", trained_run),
        *("--source", "a.en", "--reference", "a.de"),
    )


def test_the_page_and_the_junit_file_have_all_rows(run, trained_run, elsewhere):
    code, _, _ = run(
        *("check", trained_run, *QUICK, "--baseline", trained_run),
        *("--page", "p.html", "--junit", "j.xml"),
    )
    page, suite = read_page(elsewhere / "p.html"), ET.parse(elsewhere / "j.xml").getroot()
    assert code == 1
    assert [case.get("name") for case in suite] == [row.name for row in ROWS]
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) > 0
    [skipped] = suite.findall("testcase[@name='long']/skipped")
    assert skipped.get("message") == "too few lines"
    assert texts(page, ".//th[@scope='row']") == [row.name for row in ROWS]
    assert "{{city}}" in text_of(page)
    taken = trained_run / "config.toml"
    run.fails(2, ".* belongs to a run: .*", "check", trained_run, "--page", taken)
