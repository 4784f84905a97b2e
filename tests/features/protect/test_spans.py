"""What is protected, and what ordinary text is not."""

import time

import pytest

from tfm.errors import DataError
from tfm.features.protect.step import Protect


def found(text, *patterns):
    return [text[slice(*span)] for span in Protect(patterns).spans(text, "line 1")]


FOUND = [
    ("Hello {name}, you have %d mails and %s.", ("{name}", "%d", "%s")),
    ("{{x}} {0} {1:N2} {} {a.b}", ("{{x}}", "{0}", "{1:N2}", "{}", "{a.b}")),
    ("in {n, number}, not {n, m}", ("{n, number}",)),
    ("%(n)d %1$s %@ %5.2f %{x}", ("%(n)d", "%1$s", "%@", "%5.2f", "%{x}")),
    ("${x} $user $HOME #{x}", ("${x}", "$user", "$HOME", "#{x}")),
    ("$1 and $2", ("$1", "$2")),
    ("on %Y-%m-%d at %H:%M, %d%% done in %dms", ("%Y-%m-%d", "%H:%M", "%d%%", "%d")),
    ('A <ph id="1"/> and <b>x</b>, <0>y</0>.', ('<ph id="1"/>', "<b>", "</b>", "<0>", "</0>")),
    ("See (https://x.org/a_(b)?q=1&r=2#z).", ("https://x.org/a_(b)?q=1&r=2#z",)),
    ("example.com, www.x.de/{id} or", ("example.com", "www.x.de/{id}")),
    ("de.wikipedia.org/wiki/Köln!", ("de.wikipedia.org/wiki/Köln",)),
    ("Mail bob.smith+x@mail.example.co.uk.", ("bob.smith+x@mail.example.co.uk",)),
    ("Open config.json, ../a/b.txt or", ("config.json", "../a/b.txt")),
    ("/etc/passwd or C:\\Users\\me", ("/etc/passwd", "C:\\Users\\me")),
    ("by @torch_dev about #MachineLearning!", ("@torch_dev", "#MachineLearning")),
    ("你好{name}，请访问http://x.org/a，第%d页", ("{name}", "http://x.org/a", "%d")),
    ("打开文件config.json。", ("config.json",)),
    ("مرحبا {name}، راجع https://x.org/ar/مقالة.", ("{name}", "https://x.org/ar/مقالة")),
    ("#हिन्दी ve #İstanbul, #U\u0308bung", ("#हिन्दी", "#İstanbul", "#U\u0308bung")),
    ("#话题# 今天", ("#话题#",)),
]


@pytest.mark.parametrize(("text", "spans"), FOUND)
def test_placeholders_addresses_files_and_tags_are_found(text, spans):
    assert found(text) == list(spans)


def test_a_numbered_argument_within_an_address_belongs_to_it():
    assert found("see http://x.org/$1 and $1") == ["http://x.org/$1", "$1"]


@pytest.mark.parametrize(
    "part",
    [
        "{a",
        "a-",
        "a.",
        "/a",
        "-/a",
        "a@",
        "#a",
        "$a",
        "<a ",
        "%-",
        "http://",
        "{[a]",
        "{{",
        "1.",
        "'",
    ],
)
def test_hostile_text_takes_linear_time(part):
    start = time.monotonic()
    found(part * 20_000)
    found("{" + part.strip("{") * 20_000)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "text",
    [
        *("100 % sure", "100% sure, 3.5%", "5 % i.Tr.", "yüzde %5 indirim, %50'si", "50%的人"),
        *("It costs $5, $1.50 or $2.", "$1 million", "US$5, A$AP, Ke$ha", "Cost: 5$/month"),
        *("a.m. and e.g. this, U.S. 3.5", "the end.Then", "Wait...what", "Dr. Smith vs. No. 5"),
        *("and/or", "1/2/3, 30 km/h, he/she", "10:30 - 11:00", "https: //", "C#, C++, F#"),
        *("#1 fan", "@ home", "x@y", "I <3 you", "a < b and c > d", "{a, b} and {1, 2, 3}"),
    ],
)
def test_ordinary_text_is_not_protected(text):
    assert found(text) == []


def test_patterns_of_the_user_come_first_and_lose_white_space():
    assert found("Nike Air, {x}", r"Nike \w+", r"\s+\{x\}") == ["Nike Air", "{x}"]
    assert found("see http://x.org/a now", "x.org") == ["x.org"]
    assert found("no match of what is empty", "x*") == []


def test_a_pattern_that_never_ends_is_named():
    with pytest.raises(DataError, match=r"line 1: the pattern .* takes more than 1 second"):
        found("a" * 100 + "!", r"(?:(a+)+\1)+$")


def test_the_tag_of_a_model_is_not_protected():
    spans = Protect(tags=lambda: ["<fr>"]).spans("<fr> see {name}", "line 1")
    assert spans == [(9, 15)]
