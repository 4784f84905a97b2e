"""Protected text around a search: taken out, put back, once each."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.commands.translator import Translator
from tfm.errors import DataError, UsageError
from tfm.features.align.step import Align
from tfm.features.documents.step import Sentences
from tfm.features.formats.step import Formats
from tfm.features.protect.cuts import place, put_back, take_out
from tfm.features.protect.step import Protect
from tfm.folders.model_folder import ModelFolder
from tfm.text.units import units
from tfm.translation.chain import Part
from tfm.translation.steps import Output, Segment

SPANS = ("{name}", "%s", "http://x.org/a?b=1", "<ph id='1'/>", "#tag", "$x y$", "%(n)d")
WORDS = (
    *("one", "two", "a", ",", ".", "(", "你好", "今天", "سلام", "नमस्ते", "cafe\u0301", "👍🏽"),
    "100 %",
)


class Diagonal:
    """Aligns the n-th unit of sources with the n-th unit of targets, perhaps counted backwards."""

    settings = {}  # noqa: RUF012 - it is never changed

    def __init__(self, *, is_reversed=False):
        self._step = -1 if is_reversed else 1

    def align_units(self, sources, targets):
        pairs = zip(sources, targets, strict=True)
        return [list(zip(units(s), units(t)[:: self._step], strict=False)) for s, t in pairs]


DIAGONAL = Diagonal()


def translated(text, translate, *, aligner=DIAGONAL, given=None, around=(), patterns=(), tags=()):
    """What is searched of a text with protected text, and its translations by a function of it.

    The vocabulary has no symbols.
    """
    protect = Protect(patterns, lambda: tags, aligner, lacks=lambda _: True)
    part = Part.of([Segment(1, text, given)], [*around, protect])
    outputs = [translate(segment) for segment in part.segments]
    found = [[Output(text, -1.0, -2.0, ("x", "</s>")) for text in each] for each in outputs]
    [finished] = part.finish(found)
    return part.segments, [each.text for each in finished]


def upper(segment):
    return [segment.source.upper()]


@given(st.data())
def test_each_span_comes_back_once_whatever_the_translation_is(data):
    draw = data.draw
    parts = draw(st.lists(st.sampled_from(WORDS + SPANS), min_size=1, max_size=12))
    spans, source = [], ""
    for each in parts:
        source += draw(st.sampled_from(["", " "]))
        if each in SPANS:
            spans.append((len(source), len(source) + len(each)))
        source += each
    target = draw(st.sampled_from(["", " "])).join(
        draw(st.lists(st.sampled_from(WORDS), max_size=8))
    )
    remaining, cuts = take_out(source, spans)
    units_of_both = units(remaining), units(target)
    links = [(s, t) for s in units_of_both[0] for t in units_of_both[1] if draw(st.booleans())]
    text, kept = put_back(target, cuts, place(remaining, cuts, target, links))
    assert [source[slice(*span)] for span, _ in kept] == [cut.text for cut in cuts]
    assert [text[slice(*span)] for _, span in kept] == [cut.text for cut in cuts]
    for _, (start, end) in sorted(kept, key=lambda pair: pair[1], reverse=True):
        text = text[:start] + " " + text[end:]
    assert "".join(text.split()) == "".join(target.split())


@given(st.lists(st.sampled_from(("one", "two", "سلام", "नमस्ते", "ist,", *SPANS)), min_size=1))
def test_a_translation_that_equals_its_source_gets_its_spans_where_they_were(words):
    source, spans = " ".join(words), []
    for number, word in enumerate(words):
        start = sum(len(each) + 1 for each in words[:number])
        spans += [(start, start + len(word))] * (word in SPANS)
    remaining, cuts = take_out(source, spans)
    links = [(span, span) for span in units(remaining)]
    text, kept = put_back(remaining, cuts, place(remaining, cuts, remaining, links))
    assert text == source
    assert kept == [(span, span) for span in spans]


@pytest.mark.parametrize(
    ("source", "searched", "target", "result"),
    [
        ("Hello {name}, how are you?", "Hello, how are you?", "Hallo, wie geht es?", None),
        ("{name} plays", "plays", "spielt", "{name} spielt"),
        ('Say "{word}" now', "Say now", "Sag jetzt", 'Sag "{word}" jetzt'),
        ("about {n}% less", "about less", "etwa weniger", "etwa {n}% weniger"),
        ("see <name>'s car", "see car", "sieh Auto", "sieh <name>'s Auto"),
        ("好{name}，再", "好，再", "Hello, bye", "Hello {name}, bye"),
        ("Hello {name}, bye", "Hello, bye", "你好，再见", "你{name}好，再见"),
        ("see http://x.org.", "see.", "siehe.", "siehe http://x.org."),
        ("bir {x} var", "bir var", "هناك واحد", "هناك {x} واحد"),
        # Words in and beside tags and line breaks are translated.
        ("red <b>hat</b> now", "red hat now", "roter Hut nun", "roter <b>Hut</b> nun"),
        ("A <0>b</0>, <a b='c'>d</a>.", "A b, d.", "E f, g.", "E <0>f</0>, <a b='c'>g</a>."),
        ("Red<br/>hat \\C[2]on\\C[0] me", "Red hat on me", "A b c d", "A<br/>b \\C[2]c\\C[0] d"),
        ("A hat.\\nTwo", "A hat. Two", "Ein Hut. Zwei", "Ein Hut.\\nZwei"),
        ("{% if x %}A b{% end %} c", "A b c", "A B C", "{% if x %}A B{% end %} C"),
        # So are the words beside symbols.
        ("love❤️me", "love me", "liebe mich", "liebe❤️mich"),
        ("Go 👍🏽! 🎉", "Go! ", "Los!", "Los 👍🏽! 🎉"),
        ("a boy+girl at 20°C.", "a boy girl at.", "ein Junge Kind bei", "ein Junge+Kind bei 20°C"),
        ("我❤你", "我你", "I you", "I❤you"),
        ("点<b>这</b>吧", "点这吧", "Klick hier jetzt", "Klick <b>hier</b> jetzt"),
    ],
)
def test_spans_go_between_the_translations_of_their_neighbors(source, searched, target, result):
    [segment], [text] = translated(source, lambda _: [target])
    assert segment.source == searched
    assert text == (result or "Hallo {name}, wie geht es?")


def test_a_span_moves_with_its_neighbors():
    aligner = Diagonal(is_reversed=True)
    found = translated("red {x} car", lambda _: ["Auto rotes"], aligner=aligner)[1]
    assert found == ["Auto {x} rotes"]


def test_messages_with_forms_are_copied_with_a_warning():
    notes = []
    protect = Protect(notify=notes.append)
    message = "{n, plural, one {# item} other {{x} items, all of them}}"
    texts = ("{x} and {n, number}", f"You have {message}.", message, "{ $n -> [a] b *[c] d }")
    for number, text in enumerate(texts):
        protect.before(Segment(number, text))
    assert [note[:17] for note in notes] == [f"warning: line {n}: " for n in (1, 2, 3)]
    assert "the text in {n, plural …} is copied, not translated: put it on" in notes[0]


def test_text_without_spans_is_passed_on_unchanged():
    unit = Segment(7, "100 % sure, e.g. $5  \t", "So")
    assert Protect().before(unit) == ([unit], None)


@pytest.mark.parametrize(
    ("source", "copy"),
    [(" {a}, \t{b}! ", "{a}, {b}!"), ("http://x.org", "http://x.org"), ("<fr> %s 5", "%s 5")],
)
def test_text_with_nothing_else_is_copied_without_a_search(source, copy):
    assert translated(source, pytest.fail, tags=["<fr>"])[1] == [copy]


def test_every_candidate_has_each_span():
    _, found = translated("a {x} b {x} c %d", lambda _: ["eins zwei", "", "drei"])
    assert [(text.count("{x}"), text.count("%d")) for text in found] == [(2, 1)] * 3


HELLO, ONE = "Hello {name}, how are you", "one {x} two {y} three"


@pytest.mark.parametrize(
    ("source", "prefix", "searched", "translation", "result"),
    [
        (HELLO, "Hallo {name}, wie", "Hallo, wie", "Hallo, wie geht", "Hallo {name}, wie geht"),
        (HELLO, "Hallo {na", "Hallo ", "Hallo, wie", "Hallo {name}, wie"),
        (HELLO, "{name}", "", "hallo", "{name} hallo"),
        (HELLO, "Hallo", "Hallo", "Hallo, wie", "Hallo {name}, wie"),
        (HELLO, "cafe\u0301 {name}", "cafe\u0301 ", "café auf", "café {name} auf"),
        (HELLO, "l\xada\u200b {name}", "l\xada\u200b ", "la auf", "la {name} auf"),
        (ONE, "eins {y} {x} zwei", "eins zwei", "eins zwei drei", "eins {y} {x} zwei drei"),
        (ONE, "eins zwei {y}", "eins zwei ", "eins zwei drei", "eins zwei {y} {x} drei"),
        (ONE, "eins zw", "eins zw", "eins zwei drei", "eins zwei {x} {y} drei"),
        (ONE, "eins zwei drei ", "eins zwei drei ", "eins zwei drei", "eins zwei drei {x} {y}"),
        (ONE, "一二{y}", "一二", "一二三", "一二{y} {x}三"),
    ],
)
def test_a_translation_begins_with_its_prefix_and_spans(
    source, prefix, searched, translation, result
):
    [segment], [text] = translated(source, lambda _: [translation], given=prefix)
    assert segment.given == searched
    assert text == result


class Unneeded:
    """An aligner that must not be asked."""

    settings = {}  # noqa: RUF012 - it is never changed
    align_units = pytest.fail


def test_sentences_do_not_end_within_a_span():
    text, patterns = "One xy. Za. Ab. Is.\r\nTwo {x}. Three.", [r"xy\. Za\. Ab"]
    sentences = Sentences("en", "de", unbroken=Protect(patterns).spans)
    found = translated(text, upper, aligner=None, around=[sentences], patterns=patterns)[1]
    assert found == ["ONE xy. Za. Ab. IS.\r\nTWO {x}. THREE."]


def test_markup_never_divides_a_span():
    steps = [Formats("html", DIAGONAL), Sentences("en", "de", (), Protect().spans)]
    text = "<p>See <b>{user.name}</b> and <i>http://x.org/a-b?c=1&amp;d=2</i> now</p>"
    _, found = translated(text, upper, around=steps)
    assert found == [text.replace("See", "SEE").replace("and", "AND").replace("now", "NOW")]


class Distracted(Diagonal):
    """Links all of a translation to the first placeholder that it sees in the source, if any."""

    def align_units(self, sources, targets):
        links = super().align_units(sources, targets)
        for source, target, found in zip(sources, targets, links, strict=True):
            if "{" in source:
                at = source.index("{")
                found[:] = [((at, at + 1), span) for span in units(target)]
        return links


def test_an_element_around_a_span_is_placed_around_its_copy():
    steps = [Formats("html", Distracted()), Sentences("en", "de")]
    text = "<p>red hats <b>{w}</b> in snow</p>"
    _, found = translated(text, lambda _: ["rote Hüte im Schnee"], around=steps)
    assert found == ["<p>rote Hüte <b>{w}</b> im Schnee</p>"]


@pytest.fixture(scope="module")
def translator(trained_run):
    return Translator.load(trained_run, device="cpu")


SPAN = r"\{\w+\}|%s|\$\d|#tag"
LINES = ["I am {name} buying a red hat", "on %s Monday", "{x}", "seven", "$1 $2 hat #tag", ""]


@pytest.mark.parametrize(
    "search",
    [
        {"beam": 1},
        {"beam": 4, "n_best": 4},
        {"search": "sample", "n_best": 3},
        {"beam": 4, "n_best": 4, "mbr": "chrf"},
        {"beam": 4, "no_repeat_ngram": 2},
    ],
)
def test_searches_return_each_span_once_and_other_lines_as_before(translator, search):
    for line, n_best in zip(LINES, translator.search(LINES, **search), strict=True):
        for each in n_best:
            for span in re.findall(SPAN, line):
                assert each.text.count(span) == 1
    others = ["seven", ""]  # by themselves, because other lines of a batch change the rounding
    plain = translator.search(others, no_protect=True, **search)
    assert translator.search(others, **search) == plain


def test_spans_are_aligned_with_their_copies(translator, trained_run):
    align = Align([ModelFolder.open(trained_run)], "cpu").load()
    source, text = "red {a b} hat", "rot {a b} hut"
    output = Output(text, -1.0, -1.0, ("x",), kept=(((4, 9), (4, 9)),))
    [[found]] = align.after([Segment(1, source)], [[output]])
    middle = [link for link in found.alignment if set(link) & {1, 2}]
    assert middle == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_only_symbols_without_a_piece_are_copied(translator, trained_run):
    vocabulary = ModelFolder.open(trained_run).vocabulary
    assert vocabulary.lacks("🎉")
    assert not vocabulary.lacks("seven")
    assert translator.translate(["seven 🎉♪", "🎉"])[1] == "🎉"
    assert translator.translate("seven 🎉♪").count("🎉♪") == 1


def test_translator_takes_patterns(translator):
    assert "HAT" in translator.translate("a red HAT", protect=["HAT"])
    assert translator.translate_text("a {x}. a HAT.", protect=["HAT"]).count("HAT") == 1
    assert ":hat" in translator.translate("a red :hat", protect_for=["Laravel"])
    with pytest.raises(UsageError, match=r"protect_for: x is no program .*: give one of .net"):
        translator.translate("a", protect_for=["x"])
    with pytest.raises(UsageError, match=r"protect: \(a is no regular expression"):
        translator.translate("a", protect=["(a"])
    with pytest.raises(UsageError, match="exclude each other"):
        translator.translate("a", protect=["a"], no_protect=True)
    with pytest.raises(DataError, match="line 1: the pattern"):
        translator.translate("a" * 100 + "!", protect=[r"(?:(a+)+\1)+$"])


def test_nothing_is_imported_for_text_without_spans():
    code = (
        "import sys; from tfm.features.protect.step import Protect\n"
        "from tfm.translation.steps import Segment\n"
        "before = set(sys.modules)\n"
        "Protect().before(Segment(1, 'Two dogs, 100 % sure, $ 5, 3.5.'))\n"
        "print('regex' in sys.modules, len(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "0"]
