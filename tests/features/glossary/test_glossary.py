"""Glossaries: their files, terms in texts, outputs with the translations, and what is missing."""

import json
import random
import re
import unicodedata

import pytest
from helpers import python
from native_models import new_native

from tfm.commands.translator import Translator
from tfm.errors import DataError, UsageError
from tfm.features.glossary.finding import Finder, Found, apart, capitalized
from tfm.features.glossary.step import Glossary
from tfm.features.glossary.terms import finder_of, read_terms
from tfm.translation.steps import Output, RequiredText, Segment

LINES = ["I am buying a red hat", "", "seven", "on Monday"]


@pytest.fixture
def write(tmp_path):
    def write(text, name="terms.tsv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def sources_in(write):
    """Return the source terms of a glossary that are found in a text."""

    def find(glossary, text, language="en"):
        return [each.value.source for each in read_terms(write(glossary), language).find(text)]

    return find


# --- terms in a text


@pytest.mark.parametrize(
    ("glossary", "text", "expected"),
    [
        ("dog\tHund", "A dog, the dog's bowl and a hot-dog.", ["dog"] * 3),
        ("dog\tHund", "dogs dogma underdog dog_1 Dog", []),
        ("dog|dogs|doggy\tHund", "Dogs! “Doggy” dog", ["dog|dogs|doggy"] * 3),
        ("/dog(s|gies)?/\tHund", "dogs doggies doggy", ["/dog(s|gies)?/"] * 2),
        ("bench\tBank\tThe noun\nred\trot\t/red/\t", "The noun red bench", ["red", "bench"]),
        ("# the pets\n#dog\tKöter\n\ndog\tHund\t\t\n# end", "dog #dog", ["dog", "dog"]),
        (
            "user's\tA\nco-op\tB",
            "user’s user‘s userʼs user＇s co‐op co‑op",
            ["user's"] * 4 + ["co-op"] * 2,
        ),
        (
            "user’s co‑op\tA\nＰＣ７\tB\nｶﾞ\tC",
            "user's co-op, PC7 ガ",
            ["user’s co‑op", "ＰＣ７", "ｶﾞ"],
        ),
        ("/l’\\w+/\tA", "l'eau, l’or", ["/l’\\w+/"] * 2),
        ("dog\tHund\nhot dog\tHotdog", "a hot dog and a dog", ["hot dog", "dog"]),
        ("New York\tA\nYork Times Square\tB", "New York Times Square", ["York Times Square"]),
        ("a b\tA\nb c\tB", "a b c", ["a b"]),
        ("may\tdürfen", "May I? You may, in May. (May we?)", ["may"] * 3),
        ("May\tMai", "May I? You may, in May.", ["May"] * 2),
        ("iPhone\tiPhone", "iPhone, IPhone", ["iPhone"]),
        ("C++\tC++", "C++ and C", ["C++"]),
        ("狗\tdog", "小狗在跑，狗。", ["狗", "狗"]),
        ("สุนัข\tdog", "ภาพสุนัขวิ่ง", ["สุนัข"]),
        ("كلب\tdog", "كلب في الكلب", ["كلب"]),
        ("कुत्त\tdog", "कुत्ता", []),
        ("कुत्ता\tdog", "एक कुत्ता है", ["कुत्ता"]),
        ("cafe\u0301\tCafé", "a caf\u00e9", ["caf\u00e9"]),
        ("cafe\tX", "a cafe\u0301", []),
        ("👍\tgut", "so 👍!", ["👍"]),
        ("dog\tHund\n\ndog\tHund\t\t\n", "dog", ["dog"]),  # no mistake
        ('"dog"\t"Hund"\n"5"" disk"\t"Diskette"\n', 'a dog, a 5" disk', ["dog", '5" disk']),
        ("dog\tHund\ta\tb\t\tc\ncat\tKatze\t\td", "a dog, b cat", ["dog", "cat"]),
    ],
)
def test_whole_terms_are_found_the_longest_first(sources_in, glossary, text, expected):
    assert sources_in(glossary, text) == expected
    assert sources_in(unicodedata.normalize("NFD", glossary), text) == expected
    assert sources_in(glossary.replace("\n", "\r\n") + "\r\n", text) == expected
    assert sources_in("\ufeff" + glossary, text) == expected


def test_the_first_letter_of_a_sentence_is_that_of_its_language(sources_in):
    assert sources_in("ilaç\tdrug", "İlaç var. Ilaç", "tr") == ["ilaç"]
    assert sources_in("ilaç\tdrug", "İlaç var. Ilaç", "en") == ["ilaç"]
    assert [sources_in("ılık\twarm", text, "tur") for text in ("Ilık", "İlık")] == [["ılık"], []]
    assert capitalized("iyi gün", "tr") == "İyi gün"
    assert capitalized("iyi gün", "de") == "Iyi gün"
    for same in ("https://a.b", "www.a.b c", "me@a.b", "a_b", "read.me"):
        assert capitalized(same, "de") == same
    assert [capitalized(each, "de") for each in ("iPhone", "ß", "ein NATO-Rat", "1a", "")] == [
        *("iPhone", "ß", "Ein NATO-Rat", "1a", "")
    ]


# --- files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "terms.tsv has no terms: write a source term, a tab and its translation"),
        ("\n \n\t\t\n", "terms.tsv has no terms"),
        ("dog\tHund\nfence\n", 'line 2 has no translation of "fence"'),
        ("dog,Hund\n", 'line 1 has no tab, "dog,Hund" may be CSV: write a source term, a tab and'),
        ("dog = Hund\n", 'line 1 has no translation of "dog = Hund"'),
        ("dog\t | \tdogs\ncat\t\n", "terms.tsv has no terms"),
        ("\tHund\n", "line 1 has no source term"),
        (" | \tHund\n", "line 1 has no source term"),
        ("en\tde\n# x\n", "terms.tsv has no terms"),
        ("user's\tA\nuser’s\tB\n", 'line 2: "user’s" has the translation "B", but "A" in line 1'),
        ("dog\tHund\ncat\tKatze\ndog\tKöter\n", 'line 3: "dog" has the .*"Hund" in line 1: keep'),
        ("dog|pet\tHund\npet\tTier\n", 'line 2: "pet" has the translation "Tier", but "Hund"'),
        ("/do(g/\tHund\n", r"line 1: /do\(g/ is not a regular expression \(missing \)"),
        ("/x*/\tHund\n", r"line 1: /x\*/ matches empty text"),
        ("dog\t" + "x" * 300, "line 1 has a term of more than 200 characters"),
        ("dog\tH\ufffdnd", r"line 1 has U\+FFFD"),
        (b"dog\tH\xfcnd\n", "not UTF-8"),
    ],
)
def test_a_wrong_glossary_is_one_line_that_says_what_to_do(write, text, message):
    with pytest.raises(DataError, match=message) as caught:
        read_terms(write(text), "en")
    assert "\n" not in str(caught.value)


def test_rows_with_an_empty_translation_are_skipped_and_named(sources_in, capsys):
    glossary = "cat\t\ndog\tHund\n犬\t | \t名詞\n/x+/\t\n" + "hat\t\n" * 12
    assert sources_in(glossary, "dog cat 犬 xx") == ["dog"]
    lines = r'skipped: line 1 \("cat"\), 3 \("犬"\), 4 \("/x\+/"\), .* and 5 more\n$'
    assert re.search(lines, capsys.readouterr().err)


TITLES = "en\tde EN-US\tde_DE source\ttarget Term\tTranslation German\tEnglish English\tDeutsch"


@pytest.mark.parametrize("titles", [*TITLES.split(" "), "Source term (en)\tTarget term\tComment"])
def test_titles_are_no_terms_and_named(write, capsys, titles):
    for before in ("", "\ufeff", "# x\r\n\n"):
        finder = read_terms(write(f"{before}{titles}\r\nlast\tletzte"), "eng", "de+fr")
        source, target = titles.split("\t")[:2]
        assert not finder.find(source)
        assert f'has titles, "{source}" and "{target}", and no term' in capsys.readouterr().err
        finder = read_terms(write(f"last\tletzte\n{titles}"), "eng", "de+fr")  # not the first row
        assert finder.find(source)


TERMS = "it\tes source\tQuelle source\tsource German\tDeutsch may\tdürfen …\t... (c)\t(C) is\tno"


@pytest.mark.parametrize("term", TERMS.split(" "))
def test_terms_like_titles_are_terms(write, capsys, term):
    finder = read_terms(write(term), "en", "de")
    assert finder.find(term.split("\t")[0])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("pattern", ["(a|a)*", "(?:a+)+", "(?:a|aa)+"])
def test_a_pattern_that_would_not_end_is_stopped(write, monkeypatch, pattern):
    monkeypatch.setattr("tfm.features.glossary.finding._PATTERN_SECONDS", 0.05)
    finder = read_terms(write(f"dog\tHund\n/{pattern}b/\tA\n"), "en")
    with pytest.raises(DataError, match=r"line 2: .*takes more than 0.05 s to search \"a+…\""):
        finder.find("a" * 5000 + "!b")


# --- the step


def missing_in(texts, step, segment):
    """Return the terms of a segment that each of its translations lacks."""
    _, state = step.before(segment)
    [checked] = step.after([state], [[Output(text, score=-1.0, log_prob=-1.0) for text in texts]])
    return [each.missing_terms for each in checked]


def test_segments_require_translations_with_their_form_at_the_start(write):
    step = Glossary(write("dog\tgroßer Hund\nsnow\tSchnee"), source="en", target="de")

    def required(source):
        [segment], _ = step.before(Segment(1, source))
        return segment.required

    hund, upper = "großer Hund", "Großer Hund"
    schnee = RequiredText(("Schnee",), ("Schnee",))
    assert required("A dog.  dog") == (RequiredText((hund,), (upper,)),) * 2
    assert required("a dog, snow") == (RequiredText((hund,), (hund,)), schnee)
    assert required("A cat") == ()


def test_the_first_word_is_capitalized_in_the_language_of_the_tag(write):
    tags = ("<2de>", "<2tr>")
    step = Glossary(write("drug\tilaç"), source="en", target="de+tr", tags=tags)
    for tag, expected in zip(tags, ("Ilaç", "İlaç"), strict=True):
        unit = Segment(1, f"{tag} Drug")
        [segment], _ = step.before(unit)
        assert segment.required == (RequiredText(("ilaç",), (expected,)),)
        assert missing_in([expected], step, unit) == [None]


def test_targets_that_differ_by_their_apostrophe_are_counted_together(write):
    step = Glossary(write("water\tl’eau\nsea\tl'eau"), source="en", target="fr")
    found = missing_in(["l'eau l’eau", "l’eau"], step, Segment(1, "water, sea"))
    assert found == [None, (("sea", "l'eau"),)]


def test_text_without_terms_passes_unchanged(write):
    step = Glossary(write("dog\tHund"), source="en", target="de")
    unit = Segment(1, " A  cat ", given="Eine")
    [segment], state = step.before(unit)
    n_best = [Output("Eine Katze", score=-1.0, log_prob=-1.0)]
    assert segment is unit
    assert step.after([state], [n_best])[0] is n_best


def test_a_missing_term_is_reported_with_its_line(write, capsys):
    step = Glossary(write("dog\tHund\nred hat\troter Hut"), source="en", target="de")
    texts = ["Roter Hut, Hunde, Hund", "Hund Hund: roter Hut", "roter Huthund"]
    missing = missing_in(texts, step, Segment(7, "Red hat, dog, dog"))
    dog, hat = ("dog", "Hund"), ("red hat", "roter Hut")
    assert missing == [(dog,), None, (hat, dog, dog)]
    assert capsys.readouterr().err == (
        'warning: line 7: the translation of "dog" could not be "Hund"\n'
    )
    assert step.summary("") == "2 of 3 terms are as in the glossary"


# --- translations


@pytest.fixture(scope="module")
def translator(trained_run):
    return Translator.load(trained_run, device="cpu")


@pytest.fixture
def glossary(write):
    return str(write("hat\tMütze\nMonday|monday\tMontag\nbuying\twerbe für\n"))


@pytest.mark.parametrize("settings", [{}, {"beam": 1}, {"n_best": 3}, {"n_best": 4, "mbr": "chrf"}])
def test_translations_have_the_terms_and_other_lines_stay(translator, glossary, settings):
    plain = translator.search(LINES, **settings)
    hat, empty, seven, monday = translator.search(LINES, **settings, glossary=glossary)
    for each in hat:
        assert " Mütze" in f" {each.text}"
        assert "werbe für" in each.text
        assert each.missing_terms is None
    assert all("Montag" in each.text for each in monday)
    assert [empty, seven] == plain[1:3]


def test_the_search_chooses_among_the_forms_of_a_translation(translator, write):
    source = "on Monday"
    for forms in ("Sonntag | Montag", "am Montag|Montag|Sonntag"):
        [best] = translator.search([source], glossary=str(write(f"Monday\t{forms}")))[0]
        assert "Montag" in best.text
        assert best.missing_terms is None
    forms = str(write("Monday\t\u4e00|\U0001f600|Sonntag"))
    assert "Sonntag" in translator.translate(source, glossary=forms)


def test_forms_that_are_missing_are_reported_together(write):
    step = Glossary(write("dog\tHund | Hunde\ncat\tKatze|Hunde"), source="en", target="de")
    missing = missing_in(
        ["Hunde und Hunde", "Hunde", "Ein Hund, Hunde"], step, Segment(1, "A dog and a cat")
    )
    assert missing == [None, (("cat", "Katze|Hunde"),), None]


def test_a_prefix_and_a_whole_text_keep_the_terms(translator, glossary):
    [[best]] = translator.search(LINES[:1], prefixes=["ich"], glossary=glossary)
    assert best.text.startswith("ich")
    assert "Mütze" in best.text
    text = "A red hat.  Seven!\n\nOn Monday.\n"
    found = translator.translate_text(text, glossary=glossary)
    assert "Mütze" in found
    assert "Montag" in found
    html = "<p>A <b>red hat</b> for {name}</p>"
    found = translator.translate_text(html, format="html", glossary={"hat": "Mütze"})
    assert "Mütze" in found
    assert "{name}" in found


def test_an_ensemble_and_alignments_work_with_a_glossary(run, trained_run, glossary, write):
    source = write("\n".join(LINES) + "\n", "in.en")
    options = "--input", source, "--glossary", glossary, "--device", "cpu"
    command = "generate", trained_run, *options
    rows = [line.split("\t") for line in run.ok(*command, "--align")[0].splitlines()]
    assert "Mütze" in rows[0][0]
    assert len(rows) == 4
    out, err = run.ok(*command[:2], trained_run, *command[2:])
    assert re.search(rf"ensemble.* of {trained_run}.*, {trained_run}.* translates", err)
    averaged = out.splitlines()
    assert averaged == [row[0] for row in rows]


def test_what_cannot_be_placed_is_in_the_record(translator, glossary, write, run, trained_run):
    source = write("seven hat hat\n", "in.en")
    command = ["generate", trained_run, "--input", source, "--device", "cpu", "--json"]
    limits = ["--no-repeat-ngram", "1", "--glossary", glossary]
    [best] = json.loads(run.ok(*command, *limits)[0])["translations"]
    assert best["missing_terms"] == [["hat", "Mütze"]]
    [best] = json.loads(run.ok(*command, "--glossary", glossary)[0])["translations"]
    assert "missing_terms" not in best


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"search": "sample"}, "glossary has no effect on search sample, only on beam"),
        ({"glossary": "nowhere"}, "nowhere does not exist"),
        ({"glossary": {"dog": 3}}, r"glossary.* is 3, but must be text"),
        ({"glossary": {3: "dog"}}, r"glossary.* is 3, but must be text"),
    ],
)
def test_other_searches_and_glossaries_are_refused(translator, glossary, settings, message):
    with pytest.raises(UsageError, match=message):
        translator.search(LINES, **{"glossary": glossary, **settings})


def test_a_translation_that_is_banned_is_refused(translator, glossary, write):
    banned = str(write("für\n", "banned"))
    message = r'terms.tsv, line 3: "werbe für" has "für", which .*banned bans'
    with pytest.raises(DataError, match=message):
        translator.search(LINES, glossary=glossary, ban=banned)
    allowed = str(write("mütze\nFü\n", "allowed"))
    assert "Mütze" in translator.search(LINES, glossary=glossary, ban=allowed)[0][0].text


def test_terms_of_a_mapping_go_before_those_of_a_file(translator, write):
    terms = {"monday": "Sonntag", "monday evening|monday’s": "am Abend"}
    path = write("Monday|monday\tDienstag\nred\trot\nevening red\tAbendrot")
    step = Glossary(path, terms, source="en", target="de")
    [segment], _ = step.before(Segment(1, "monday evening red Monday monday's monday"))
    assert [each.texts for each in segment.required] == [
        *[("am Abend",), ("rot",), ("Dienstag",), ("am Abend",), ("Sonntag",)]
    ]
    assert "Sonntag" in translator.translate("on Monday", glossary={"Monday": "Sonntag"})


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"dog": "Hund", "cat": " "}, 'glossary, term 2 has an empty translation of "cat": add'),
        ({" ": "Hund"}, "glossary, term 1 has no source term: add one"),
        ({"x": "y" * 300}, "glossary, term 1 has a term of more than 200 characters"),
        ({"a  b": "A", "a b": "B"}, 'glossary, term 2: "a b" has the translation "B", but "A" in'),
    ],
)
def test_a_wrong_term_of_a_mapping_is_named(translator, terms, message):
    with pytest.raises(DataError, match=message):
        translator.translate("dog", glossary=terms)


def test_an_empty_mapping_changes_nothing(translator):
    assert translator.translate(LINES, glossary={}) == translator.translate(LINES)


def test_of_overlapping_finds_the_first_given_are_kept():
    draw = random.Random(1).randrange
    found = [Found(start, start + 1 + draw(5), i) for i, start in enumerate(map(draw, [40] * 60))]
    kept = []
    for each in found:
        if all(each.end <= other.start or other.end <= each.start for other in kept):
            kept.append(each)
    assert apart(found) == sorted(kept)


def test_a_finder_of_many_terms_reads_a_text_once():
    finder = Finder({f"term {i}": i for i in range(50_000)}, "en")
    assert [each.value for each in finder.find("term 7 and term 49999 " * 50)] == [7, 49999] * 50


@pytest.mark.parametrize("vocabulary", ["spm", "opus"])
def test_models_of_other_programs_place_terms(tmp_path, run, write, vocabulary):
    new_native(tmp_path / "marian", vocabulary=vocabulary)
    run.ok("import", tmp_path / "marian", "--out", tmp_path / "model")
    glossary = str(write("Monday\tMontag\neight\tachte Mai\nseven\tein Hut\n"))
    found = Translator.load(tmp_path / "model").search(
        ["seven, eight on Monday", "seven"], glossary=glossary, max_extra_length=20
    )
    for [best], terms in zip(found, (("Montag", "ein Hut"), ("ein Hut",)), strict=True):
        placed = all(term in best.text for term in terms)
        assert placed == (best.missing_terms is None)
        assert placed


def test_translating_without_a_glossary_loads_nothing_of_it(trained_run):
    code = (
        "import sys\n"
        "from tfm.commands.translator import Translator\n"
        f"Translator.load({str(trained_run)!r}, device='cpu').translate('seven')\n"
        "print(*sys.modules)"
    )
    loaded = python("-c", code).stdout.split()
    assert "tfm.search.beam" in loaded
    parts = ("features.glossary", "search.phrases", "search.constrained")
    assert not [each for each in loaded if each.startswith(tuple(f"tfm.{p}" for p in parts))]


def test_a_mapping_has_at_most_the_greatest_number_of_terms(monkeypatch):
    monkeypatch.setattr("tfm.features.glossary.terms._MAX_TERMS", 2)
    assert finder_of({"one": "eins", "two": "zwei"}, "en")
    with pytest.raises(DataError, match="glossary has more than 2 terms"):
        finder_of({"one": "eins", "two": "zwei", "three": "drei"}, "en")
