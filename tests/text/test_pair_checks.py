"""The checks for suspicious pairs: encoding, script, numbers, language, length, punctuation."""

import math
import string
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.config import CleaningConfig
from tfm.errors import UsageError
from tfm.text import languages
from tfm.text import pair_checks as module
from tfm.text.pair_checks import deviation_checks, is_mojibake, numbers, pair_checks

SENTENCES = [
    "Zwei Männer stehen am Herd und kochen für Gäste.",
    "Ça coûte 12 €, dit « le garçon ».",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Здравствуй, мир!",
    "“Straße” — ‘Größe’…",
    "世界、こんにちは。",
]


def broken(source, target, languages=("en", "de"), **settings):
    """Return the rules that a pair breaks."""
    checks = pair_checks(CleaningConfig(**settings), *languages)
    return [rule for rule, is_broken in checks if is_broken(source, target)]


def wrongly_decoded(text, encoding):
    decoded = [bytes([byte]).decode(encoding, errors="ignore") for byte in text.encode()]
    return "".join(char or chr(byte) for char, byte in zip(decoded, text.encode(), strict=True))


@pytest.mark.parametrize("text", SENTENCES)
def test_text_of_any_language_is_mojibake_only_if_it_was_decoded_wrongly(text):
    assert not is_mojibake(text)
    assert is_mojibake(wrongly_decoded(text, "cp1252"))
    assert is_mojibake(wrongly_decoded(text, "latin-1"))


@pytest.mark.parametrize(
    "text",
    [
        "CAFÉ’",
        "CAFÉ’S",
        "BEAUTÉ™ X",
        "ÉTÉ…",
        "À…",
        "(LIBERTÉ”)",
        "É\xa0!",
        "C'EST L'ÉTÉ\xa0!",
        "ATÉ AMANHÃ…",
        "AMANHÃ”",
        "PERÙ»",
        "CORAZÓN Y PASIÓ…",
        "KÖ–",
        "Spaß“",
        'Er rief "Gruß…"',
        "Viel Spaß™!",
        "fatigué…”",
        "voilà\xa0»",
        *(f"ABC{lead}{end}" for lead in "ÄÅÈÉÊËÌÍÎÏÑÒÓÔÖØÙÚÜÝ" for end in "’”“…™»—\xa0"),
    ],
)
def test_a_capital_before_punctuation_is_no_mojibake(text):
    assert not is_mojibake(text)
    assert is_mojibake(wrongly_decoded(text, "cp1252"))


WORDS = """café CAFÉ ÉTÉ Köln KÖLN CÔTE più PIÙ® hôtel España ESPAÑA NOËL Åse 25°C NIKE® Fé w się
też đi gəlir əlbəttə vējas VĖJAS TĒVS Ērgļi și привет В§ ΑΒΓ Ναι שלום سلام नमस्ते 你好 問 don’t a—b
ＡＢ 😀 é e\u0301 n\u0303"""


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
@pytest.mark.parametrize("text", WORDS.split())
def test_words_that_were_decoded_wrongly_are_mojibake(text, encoding):
    if not text.isascii():
        assert not is_mojibake(text)
        assert is_mojibake(wrongly_decoded(text, encoding))


def test_lost_characters_are_mojibake_and_ascii_is_not():
    assert is_mojibake("f\ufffdr")
    assert not is_mojibake(string.printable)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("1,000 dogs", "1.000 Hunde"),
        ("1,234,567.5 km", "1 234 567,5 km"),
        ("at 2:30 on 05/06/2010", "am 5.6.2010 um 2.30 Uhr"),
        ("٣ dogs and 12", "12 und 3"),
        ("In 2010 300 people", "300 Leute im Jahr 2010"),
        ("In 2010, 3,000 people", "3 000 Leute 2010"),
        ("10 of 2000 300 m", "10 2000 300"),
        ("1,00,000 and 12,34,567", "100.000 und 1 234 567"),
        ("₹१,००,०००", "100000"),
        ("12’345 or 12'345", "12.345 12\u202f345"),
        ("1\xa0000 5\u2009000", "1.000 5,000"),
        ("١٬٢٣٤٫٥", "1,234.5"),
        ("۱۲۳ ۴٬۵۶۷", "123 4567"),
        ("１，２３４．５", "1,234.5"),
        ("2010.300", "2010,300"),
        ("1.234,567", "1,234.567"),
        ("1.2.300", "1, 2 und 300"),
        ("1,2,300", "1 2 und 300"),
        ("007", "7"),
        ("no number", "keine Zahl"),
        ("1" * 5000, "0" + "1" * 5000),
    ],
)
def test_the_same_numbers_may_be_written_and_ordered_differently(source, target):
    assert numbers(source) == numbers(target)
    assert not broken(source, target, drop_unequal_numbers=True)


@given(st.lists(st.integers(0, 10**6)), st.lists(st.integers(0, 10**6)))
def test_pairs_break_the_rule_of_numbers_if_they_differ_in_any(sources, targets):
    source, target = ("; ".join(map(str, values)) for values in (sources, targets))
    expected = [] if sorted(sources) == sorted(targets) else ["unequal_numbers"]
    assert broken(source, target, drop_unequal_numbers=True) == expected


@pytest.mark.parametrize(
    ("languages", "text", "is_other"),
    [
        (("en", "ru"), "A dog runs.", True),
        (("en", "ru"), "IBM PC — это компьютер", False),
        (("en", "de-AT"), "Größe", False),
        (("en", "de"), "Собака", True),
        (("en", "sr"), "Pas trči. Пас трчи.", False),
        (("en", "ja"), "コンピューターは速い。", False),
        (("en", "ja"), "ＡＢＣ", True),
        (("en", "zh_Hant"), "電腦很快。", False),
        (("eng_Latn", "cmn_Hans"), "电脑很快。", False),
        (("eng", "jpn"), "コンピューターは速い。", False),
        (("en", "sr_Latn"), "Пас трчи.", True),
        (("en", "uz-Cyrl"), "Bu it.", True),
        (("en", "npi_Deva"), "कुकुर दौड्छ।", False),
        (("en", "kas_Deva"), "کتاب", True),
        (("en", "de+ru"), "Собака", False),
        (("en", "de"), "12:30 — ☺", False),
    ],
)
def test_a_side_mostly_in_another_script_is_dropped(languages, text, is_other):
    expected = ["other_script"] if is_other else []
    assert broken("A dog runs.", text, languages, drop_other_script=True) == expected
    if is_other:
        assert broken(text, "A dog runs.", languages[::-1], drop_other_script=True) == expected


def test_a_language_without_known_script_is_refused():
    with pytest.raises(UsageError, match=r"drop_other_script: the script of .* 'tlh' is not known"):
        broken("", "", ("en", "tlh"), drop_other_script=True)


@given(
    st.lists(st.tuples(st.text("ab .,", max_size=30), st.text("ab .,", max_size=30)), max_size=30),
    st.floats(0.1, 4),
)
def test_pairs_further_than_some_deviations_from_the_mean_of_the_text_are_dropped(pairs, limit):
    config = CleaningConfig(max_length_deviations=limit, max_punctuation_deviations=limit)
    encoded = [(source.encode(), target.encode()) for source, target in pairs]
    checks = dict(deviation_checks(config, encoded))
    values = {
        "odd_length": [math.log((len(t) + 10) / (len(s) + 10)) for s, t in pairs],
        "odd_punctuation": [
            math.log((1 + sum(map(t.count, ".,"))) / (1 + sum(map(s.count, ".,"))))
            for s, t in pairs
        ],
    }
    for rule, ratios in values.items():
        distances = np.abs(np.array(ratios) - np.mean(ratios or [0]))
        bound = limit * np.std(ratios or [0])
        for pair, distance in zip(pairs, distances, strict=True):
            if abs(distance - bound) > 1e-6:  # otherwise, rounding decides
                assert checks[rule](*pair) == (distance > bound)


def test_marks_of_all_scripts_are_punctuation():
    pairs = [(b"a.", f"ab{mark}".encode()) for mark in "؛؟٪۔।॥։:׳፧።។။།·\u037e、。！＠﹐"]
    checks = deviation_checks(CleaningConfig(max_punctuation_deviations=1), pairs)
    [(_, is_far)] = checks
    assert not any(is_far(source.decode(), target.decode()) for source, target in pairs)
    assert is_far("a.", "ab")


@pytest.fixture
def identified(monkeypatch):
    """Replace py3langid by a stand-in, which finds the language in the text itself: "de 0.9 …"."""

    def classify(text):
        code, confidence, *_ = text.split()
        return code, float(confidence)

    identifier = SimpleNamespace(labels=["en", "de", "fr", "no", "tl"], classify=classify)
    monkeypatch.setattr(module, "language_identifier", lambda _: identifier)


@pytest.mark.parametrize(
    ("languages", "target", "is_other"),
    [
        (("en", "de"), "de 0.9", False),
        (("en", "de"), "fr 0.9", True),
        (("en", "de"), "fr 0.4", False),  # unsure
        (("en", "de"), "en 0.9", True),
        (("en-GB", "de+fr"), "fr 0.9", False),
        (("eng", "deu+fra_Latn"), "fr 0.9", False),
        (("eng", "nob"), "no 0.9", False),
        (("eng", "fil"), "tl 0.9", False),
    ],
)
@pytest.mark.usefixtures("identified")
def test_a_side_identified_as_another_language_is_dropped(languages, target, is_other):
    expected = ["other_language"] if is_other else []
    long = "en 0.9" + " x" * 40, target + " x" * 40
    assert broken(*long, languages, drop_other_language=True) == expected
    assert broken(*long[::-1], languages[::-1], drop_other_language=True) == expected


@pytest.mark.usefixtures("identified")
def test_the_language_of_short_sides_is_not_identified_unless_asked():
    short = "en 0.9", "fr 0.9".ljust(39)
    assert not broken(*short, drop_other_language=True)
    assert broken(*short, drop_other_language=True, min_identified_characters=39)


@pytest.mark.usefixtures("identified")
def test_a_language_that_cannot_be_identified_is_refused():
    with pytest.raises(UsageError, match=r"py3langid does not know the language 'tlh'"):
        broken("", "", ("en", "tlh"), drop_other_language=True)


_OLD = SimpleNamespace(MODEL_FILE="", LanguageIdentifier=str)


@pytest.mark.parametrize("found", [None, _OLD])
def test_without_py3langid_a_message_says_how_to_install_it(monkeypatch, found):
    monkeypatch.setitem(sys.modules, "py3langid.langid", found)
    monkeypatch.setitem(sys.modules, "py3langid", ModuleType("py3langid"))
    languages.language_identifier.cache_clear()
    with pytest.raises(UsageError, match=r"py3langid.*not installed.*pip install py3langid$"):
        broken("", "", drop_other_language=True)


def test_py3langid_identifies_sentences():
    pytest.importorskip("py3langid", reason="an extra")
    languages.language_identifier.cache_clear()
    english, german = "Two young men are outside near many bushes.", SENTENCES[0]
    french = "Deux jeunes hommes sont dehors près de buissons."
    assert not broken(english, german, drop_other_language=True)
    assert broken(english, french, drop_other_language=True)
    assert broken(german, english, drop_other_language=True)
    digits = "२०१० में ९१७ लोगों ने शहर में २४,८५,७१७ किताबें खरीदीं।"
    assert not broken(english, digits, ("eng", "hin_Deva"), drop_other_language=True)
