"""Documents: sentences, white space, and tfm generate --document."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tfm.commands.translator import Translator
from tfm.features.documents.splitting import split, translated_pieces
from tfm.features.documents.step import Sentences
from tfm.translation import engine
from tfm.translation.steps import Output, Segment

TEXTS = st.text() | st.text(
    alphabet="aB1. !?…。「」“”»«()-\"'\n\r\t\x85\u2028\u3000 ,、", max_size=300
)
LANGUAGES = st.sampled_from(["en", "de", "ja", "zh_Hans", "unknown"])


def sentences(text, language):
    return [piece.text for piece in split(text, language) if piece.is_sentence]


def translated(text, source, target, translations=None):
    """Return a text with translations of its sentences, by default themselves."""
    translations = sentences(text, source) if translations is None else translations
    parts = translated_pieces(split(text, source), translations, source=source, target=target)
    return "".join(parts)


@given(TEXTS, LANGUAGES)
@example("word " * 1000, "en")
@example("x" * 1500 + ". Next", "ja")
def test_the_pieces_of_any_text_are_the_text(text, language):
    pieces = split(text, language)
    assert "".join(piece.text for piece in pieces) == text
    assert translated(text, language, language) == text
    for piece in pieces:
        assert piece.text
        if piece.is_sentence:
            assert any(map(str.isalpha, piece.text))
            assert piece.text == piece.text.strip()
            assert len(piece.text) <= 600
            assert len(piece.text.splitlines()) == 1


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Dr. Smith met J. R. Jones in the U.S. in Jan. 2020.| He left."),
        ("en", "He said so, i.e. the boss (approx. 5 km away).| See Fig. 3, No. 5, etc.| OK!"),
        ("en", 'It cost $5.50.| "Really?"| "Yes!" she said.| (It rained.)| Then?!| Well... no.'),
        ("en", "We met at 5 p.m.| It was 1990.| Then it ended.[12]| See www.example.com.| Bye"),
        ("de", "Am 3. Oktober kam z.B. Dr. Müller (vgl. Abb. 4).| »Ja.«| „Gut.“| 1990.| Er"),
        ("fr", "« Bonjour ! » dit-il.| « Ça va ? »| Elle dit : « Oui. »| M. Dupont ?| Non !"),
        ("es", "¿Qué tal?| ¡Hola!| El Sr. García llegó."),
        ("deu_Latn", "Am 3. Oktober kam Dr. Müller (bzw. Frau X).| Er"),
        ("el", "Τι κάνεις;| Καλά· εσύ;| Ναι."),
        ("km", "ខ្ញុំទៅ។| គាត់មក។"),
        ("hi", "यह एक वाक्य है।| यह दूसरा है।| हाँ।"),
        ("ja", "これはペンです。|何ですか？|「行こう！」と言った。|「はい。」|次。|U.S.A.に。"),
        ("ja", "Ｎｏ．１は３．５％．|学生．|５つ。|A．Bの（３．１）。"),
        ("zho_Hans", "“你好！”他说。|好！|走……行。"),
        ("zh", "他说：“我走了。”|然后离开了。|“你好！”他说。|好！|走……行。"),
    ],
)  # fmt: skip
def test_sentences_end_where_a_reader_ends_them(language, text):
    pieces = [piece.text for piece in split(text.replace("|", ""), language)]
    words = [piece for piece in pieces if not piece.isspace()]
    assert words == [part.strip() for part in text.split("|")]


def test_bullets_numbers_and_lines_without_words_are_kept():
    text = "# Plan\n\n1. First. Second\n  • (a) third\n> > quoted\n-----\n3.5 is a number\n- \n"
    assert [(piece.text, piece.is_sentence) for piece in split(text, "en")] == [
        ("# ", False), ("Plan", True), ("\n", False), ("\n", False),
        ("1. ", False), ("First.", True), (" ", False), ("Second", True), ("\n", False),
        ("  • (a) ", False), ("third", True), ("\n", False),
        ("> > ", False), ("quoted", True), ("\n", False),
        ("-----\n", False),
        ("3.5 is a number", True), ("\n", False),
        ("- \n", False),
    ]  # fmt: skip
    assert sentences("б) Один. Два.", "ru") == ["Один.", "Два."]


@pytest.mark.parametrize(
    "text",
    ["12345", "3 + 4 = 7.", "٣٤٥", "१२३ — ४", "№ 5 ½ ²", "👩‍👩‍👧 🇩🇪 ❤️", "…!?\t€100\n", "Ⅳ ①"],
)
def test_digits_marks_and_symbols_alone_are_no_sentence(text):
    assert sentences(text, "en") == []


@pytest.mark.parametrize("text", ["5 kg", "一二三", "கி", "ﬁ", "x²", "7이", "1ª", "𝒙 = 1"])
def test_a_letter_of_any_script_makes_a_sentence(text):
    assert sentences(text, "en") == [text]


@pytest.mark.parametrize(
    ("text", "source", "target", "joined"),
    [
        ("一。12。二。", "zh", "en", "一。 12。 二。"),
        ("1. 一。\n- 二。", "zh", "en", "1. 一。\n- 二。"),
        ("Something! 12! Cd e.", "en", "zh", "Something!12!Cd e."),
    ],
)
def test_numbers_between_sentences_have_the_spaces_of_the_target(text, source, target, joined):
    assert translated(text, source, target) == joined


def test_a_long_sentence_is_cut_after_a_clause_or_a_word():
    clause = "this clause goes on, " * 60
    parts = sentences(clause, "en")
    assert [part[-1] for part in parts] == [","] * len(parts)
    words = sentences("word " * 500, "en")
    assert {*" ".join(words).split()} == {"word"}
    assert [len(part) for part in sentences("字" * 450, "zh")] == [200, 200, 50]


@pytest.mark.parametrize("unit", [".", ". - ", "a. ", ". «"])
def test_splitting_takes_linear_time(unit):
    text = unit * (100_000 // len(unit))
    start = time.process_time()
    assert "".join(piece.text for piece in split(text, "en")) == text
    assert time.process_time() - start < 10


def test_spaces_between_sentences_are_those_of_the_target_language():
    english, japanese = "  One. Two.\n\nThree. -- Four.\n", "\u3000一。二。\n\n三。四。\n"

    def numbered(text, source, target):
        numbers = ["1", "2", "3", "4"][: len(sentences(text, source))]
        return translated(text, source, target, numbers)

    assert numbered(japanese, "ja", "en") == "\u30001 2\n\n3 4\n"
    for code in ("zh_Hans", "zho_Hans", "cmn-Hans", "zh-CN", "yue", "jpn"):
        assert numbered(japanese, "jpn", code) == "\u300012\n\n34\n"
        assert numbered(japanese, code, "eng_Latn") == "\u30001 2\n\n3 4\n"
    assert numbered(japanese, "ja", "zh_Latn") == "\u30001 2\n\n3 4\n"
    assert numbered("  One. Two.\n\nThree. Four.\n", "en", "ja") == "  12\n\n34\n"
    assert numbered("  One. Two.\n\nThree. Four.\n", "en-GB", "de") == "  1 2\n\n3 4\n"
    with pytest.raises(ValueError, match="shorter"):
        translated(english, "en", "de", ["1"])


def test_paragraphs_become_numbered_sentences_and_are_joined_by_rank():
    step = Sentences("en", "de")
    lines = ["One. Two.\n", "\n", "- Three.\n"]
    pairs = [step.before(Segment(number, line)) for number, line in enumerate(lines, 1)]
    segments = [segment for found, _ in pairs for segment in found]
    assert [(each.number, each.source) for each in segments] == [
        (1, "One."), (2, "Two."), (3, "Three.")
    ]  # fmt: skip
    found = [
        [Output(text, -1.0, -2.0, ("x", "</s>")) for text in texts] for texts in ("ab", "c", "d")
    ]
    first, empty, last = step.after([state for _, state in pairs], found)
    assert [each.text for each in first] == ["a c\n", "b c\n"]
    assert (first[0].score, first[0].log_prob, len(first[0].pieces)) == (-2.0, -4.0, 4)
    assert [(source, each.text) for source, each in first[0].parts] == [
        ("One.", "a"), (" ", " "), ("Two.", "c"), ("\n", "\n")
    ]  # fmt: skip
    assert [each.text for each in empty] == ["\n"]
    assert [bool(each.pieces) for _, each in last[0].parts] == [False, True, False]


def test_the_tag_of_a_paragraph_is_that_of_each_sentence():
    step = Sentences("en", "deu+zho_Hans", tags=(">>deu<<", ">>zho_Hans<<"))
    lines = ["  >>zho_Hans<<One. Two.\n", ">>deu<< One. Two.\r\n", ">>deu<<\n", "One. Two."]
    pairs = [step.before(Segment(number, line)) for number, line in enumerate(lines, 1)]
    tags = [">>zho_Hans<< ", ">>deu<< ", "", ""]
    expected = [[f"{tags[i]}One.", f"{tags[i]}Two."] if i != 2 else [] for i in range(4)]
    assert [[each.source for each in found] for found, _ in pairs] == expected
    found = [[Output(text, -1.0, -2.0, ("x",))] for text in "abcdef"]
    joined = [each.text for [each] in step.after([state for _, state in pairs], found)]
    assert joined == ["  ab\n", "c d\r\n", "\n", "e f"]


DOCUMENT = "  On Monday. I am!\r\n\r\n\t- seven\n* * *\n\n8. “Today is the third of May.” I am"


@pytest.mark.parametrize("flags", [(), ("--output", "out")])
def test_a_document_keeps_its_white_space(run, trained_run, tmp_path, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "CHUNK_LINES", 2)
    (tmp_path / "in").write_bytes(f"\ufeff{DOCUMENT}".encode())
    command = ["generate", trained_run, "--device", "cpu", "--input", "in", "--document"]
    code, out, err = run(*command, "--max-extra-length", 3, *flags)
    assert code == 0, err
    translator = Translator.load(trained_run, device="cpu")
    source = ["On Monday.", "I am!", "seven", "“Today is the third of May.”", "I am"]
    first, second, third, fourth, fifth = translator.translate(source, max_extra_length=3)
    expected = f"  {first} {second}\r\n\r\n\t- {third}\n* * *\n\n8. {fourth} {fifth}"
    written = (tmp_path / "out").read_bytes().decode() if "--output" in flags else out
    assert written == expected


def test_a_parser_has_no_documents(run, make_model, tmp_path):
    (tmp_path / "in").write_text("seven\n")
    parser = make_model(task="parsing")
    code, _, err = run("generate", parser, "--document", "--input", tmp_path / "in")
    assert code == 2
    assert "is a parser, which reads lines: leave out --document" in err


@pytest.mark.parametrize(("name", "flag"), [("x.SRT", "html"), ("x.vtt", "xml"), ("x.xlf", "srt")])
def test_a_format_that_the_name_contradicts_is_refused(run, trained_run, tmp_path, name, flag):
    (tmp_path / name).write_text("seven\n")
    code, _, err = run("generate", trained_run, "--format", flag, "--input", tmp_path / name)
    assert code == 2
    assert f", not --format {flag}" in err
