"""tfm serve: the LibreTranslate protocol, its limits, and what clients can do wrong."""

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from urllib import parse, request

import numpy as np
import pytest
from helpers import wait_until
from hostile import KINDS
from html_pages import parse_page, texts

from tfm.applications.serve.settings import ServeConfig
from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import DataError, UsageError
from tfm.features.attention.maps import AttentionMaps
from tfm.features.documents.step import Sentences
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import ALIGNMENT
from tfm.steps import StepsConfig
from tfm.text import languages

pytest.importorskip("uvicorn")
from servers import DEFAULT, PAIR, Address, stand_in, translation, upper

from tfm.applications.serve.queue import LineConfig, TranslationQueue
from tfm.applications.serve.served_models import ServedModel, routes_of
from tfm.commands.translator import Translator

CPU = InferenceConfig(device="cpu", precision="fp32", threads=1)
TEXT = "  seven cars\n\n\ttwelve houses \r\nat nine o'clock"


def served(path, steps=None, **search):
    steps = steps or StepsConfig()
    return ServedModel(path, search, config=DEFAULT, inference=CPU, steps=steps)


@pytest.fixture(scope="module")
def model(trained_run):
    return served(trained_run)


@pytest.fixture
def address(start, model):
    return start(routes_of([model]))


@pytest.fixture
def plain(start):
    """A server with a stand-in for a model, whose translations are in capitals."""
    return start(stand_in(upper))


def recorder(release=None):
    """Return the batches of a stand-in for a model, and the stand-in, which may wait."""
    batches = []

    def translate(lines, config):
        batches.append((list(lines), config))
        assert release is None or release.wait(20)
        return upper(lines, config)

    return batches, translate


def lines_of(batches):
    return [line for lines, _ in batches for line in lines]


def translated_file(address, name, content, **fields):
    """Return the status and the text of the translation of a file."""
    _, answer = address.upload(name, content, **fields)
    return address.send(answer["translatedFileUrl"].removeprefix(address))


# --- the protocol


def test_translations_are_those_of_the_library_and_keep_white_space(address, trained_run):
    lines = ["seven cars", "twelve houses", "at nine o'clock"]
    expected = Translator.load(trained_run, device="cpu", precision="fp32").translate(lines)
    whole = "  {}\n\n\t{} \r\n{}".format(*expected)
    for q, translated in ((TEXT, whole), (lines, expected)):
        status, answer = address.post("/translate", {"q": q, **PAIR})
        assert (status, answer["translatedText"]) == (200, translated)


def test_clients_use_common_codes_of_languages_or_others(start):
    """Mastodon, Discourse and others compare codes with their own, which are those of ISO 639-1."""
    pytest.importorskip("py3langid")
    [route] = stand_in(upper).values()
    pairs = [("zho_Hans", "eng"), ("zho_Hant", "eng"), ("en", "zho_Hans")]
    address = start({pair: replace(route, source=pair[0], target=pair[1]) for pair in pairs})
    found = [(each["code"], each["targets"]) for each in address.send("/languages")[1]]
    assert found == [("zh", ["en"]), ("en", ["zh"]), ("zh-Hant", ["en"])]
    shown = address.send("/frontend/settings")[1]["language"]
    assert [shown[side]["code"] for side in ("source", "target")] == ["zh", "en"]
    chinese = {"q": "狗在雪地里玩。"}
    assert address.post("/detect", chinese)[1][0]["language"] == "zh"
    for source, target in ("zh", "en"), ("cmn_Hans", "en-GB"), ("auto", "en"), ("zho_Hans", "eng"):
        status, answer = address.post("/translate", {**chinese, "source": source, "target": target})
        assert (status, answer["translatedText"]) == (200, chinese["q"])
        assert answer.get("detectedLanguage", {}).get("language", "zh") == "zh"
    assert address.post("/translate", {"q": "a", "source": "zh", "target": "zh_Hant"})[0] == 400


def sent_as_forms(address, fields):
    """Return the answers to fields with values: in a query, and in forms of both kinds."""
    form, parts = parse.urlencode(fields), 'form-data; name="{}"\r\n\r\n{}'
    body = "".join(f"--x\r\nContent-Disposition: {parts.format(*pair)}\r\n" for pair in fields)
    return [
        address.send(f"/translate?{form}", b""),
        address.send("/translate", form.encode(), "application/x-www-form-urlencoded"),
        address.send("/translate", f"{body}--x--\r\n".encode(), "multipart/form-data; boundary=x"),
    ]


@pytest.mark.parametrize(
    ("fields", "translated"),
    [
        ([("q", "ä b")], "Ä B"),
        ([("q", '["a", ""]')], ["A", ""]),
        ([("q", "[a")], "[A"),
        ([("q", "a"), ("q", ""), ("q", '["b"]'), ("q", "a")], ["A", "", '["B"]', "A"]),
        ([("q[]", "a")], ["A"]),
        ([("q[0]", "a"), ("q[1]", "[b"), ("q", "c")], ["A", "[B", "C"]),
        ([("q", str(n)) for n in range(500)], [str(n) for n in range(500)]),
    ],
)
def test_forms_may_have_several_texts(start, fields, translated):
    for found in sent_as_forms(start(stand_in(upper)), [*PAIR.items(), *fields]):
        assert found == (200, {"translatedText": translated})


def test_sentences_of_a_paragraph_are_translated_separately(start):
    batches, translate = recorder()
    address = start(stand_in(translate))
    text = "Mr. Smith sleeps.  He dreams!\n\n- one\n- two"
    answer = (200, {"translatedText": text.upper()})
    assert address.post("/translate", {"q": text, **PAIR}) == answer
    assert sorted(lines_of(batches)) == ["He dreams!", "Mr. Smith sleeps.", "one", "two"]


def test_alternatives_are_further_translations_of_the_beam(address):
    fields = {"q": "seven cars", **PAIR, "alternatives": 3}
    status, answer = address.post("/translate", fields)
    texts = [answer["translatedText"], *answer["alternatives"]]
    assert status == 200
    assert len(texts) == len(set(texts)) == 4
    _, listed = address.post("/translate", {**fields, "q": ["seven cars"]})
    assert (listed["translatedText"], listed["alternatives"]) == (texts[:1], [texts[1:]])


def test_auto_chooses_among_the_source_languages(address, monkeypatch):
    pytest.importorskip("py3langid")
    fields = {"q": "seven cars", "source": "auto", "target": "de"}
    status, answer = address.post("/translate", fields)
    assert status == 200
    assert answer["detectedLanguage"]["language"] == "en"
    assert 1 < answer["detectedLanguage"]["confidence"] <= 100
    languages.language_identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    for path in ("/translate", "/detect"):
        status, answer = address.post(path, fields)
        assert status == 400
        assert 'source "auto" needs py3langid, which is not installed' in answer["error"]


def test_the_query_the_form_and_json_are_read_together(plain):
    translated = (200, {"translatedText": "ÄPFEL & BIRNEN"})
    text = {"q": "äpfel & birnen"}
    query, languages_of = parse.urlencode({**text, **PAIR}), parse.urlencode(PAIR)
    assert plain.send(f"/translate?{query}", b"") == translated
    assert plain.send(f"/translate?{query}", b"", "application/json") == translated
    for kind, body in (
        ("application/json; charset=utf-8", json.dumps(text)),
        ("application/problem+json", json.dumps({**text, "source": "EN"})),
        ("application/x-www-form-urlencoded", parse.urlencode(text)),
    ):
        path = f"//translate/?{languages_of}&q=other"
        headers = {"Content-Encoding": "identity"}
        assert plain.send(path, body.encode(), kind, **headers) == translated


def test_text_that_needs_no_translation_comes_back(plain):
    for source, target, q in (
        ("de", "de", "kein Wort"),
        ("en", "en-GB", ["no", "word"]),
        ("en", "de", "12:30 – 7, 8!"),
        ("en", "de", " \n"),
    ):
        answer = (200, {"translatedText": q})
        assert plain.post("/translate", {"q": q, "source": source, "target": target}) == answer
    fields = {"q": "a", "source": "fr", "target": "fr"}
    assert plain.post("/translate", fields)[0] == 400  # it is not served
    fields = {"q": "a", "source": "de", "target": "de", "alternatives": 9}
    assert plain.post("/translate", fields) == (200, {"translatedText": "a", "alternatives": []})


def test_languages_are_detected_among_those_that_are_served(plain):
    pytest.importorskip("py3langid")
    german, french = "Der Hund spielt im Schnee.", "Le chien joue dans la neige."
    assert plain.post("/detect", {"q": german})[1][0]["language"] == "de"
    _, [found, *_] = plain.post("/detect", {"q": french})
    assert found["language"] in ("en", "de")
    _, answer = plain.post("/translate", {"q": german, "source": "auto", "target": "DE"})
    assert answer["translatedText"] == german
    assert answer["detectedLanguage"]["language"] == "de"


def test_the_language_of_each_text_of_a_list_is_detected(start):
    pytest.importorskip("py3langid")
    [english] = stand_in(upper).values()
    [french] = stand_in(lambda lines, _: [[translation("fr")] for _ in lines]).values()
    address = start({("en", "de"): english, ("fr", "de"): replace(french, source="fr")})
    german = [
        "Der Hund spielt im Schnee.",
        "Die Kinder lesen ein Buch.",
        "Ein Mann singt ein Lied.",
    ]
    others = [("The dog plays.", "THE DOG PLAYS.", "en"), ("Le chien joue.", "fr", "fr")]
    known = [*others, *((text, text, "de") for text in german)]
    code = "<style>/* the colors of the page */</style><!-- this is > the text --><p>{}</p>"
    for frame, rows in product(("{}", "<p class=the>{}</p>", code), (known, known[::-1])):
        q, expected, found = zip(*rows, strict=True)
        fields = {"q": [*map(frame.format, q)], "source": "auto", "target": "de", "format": "html"}
        _, answer = address.post("/translate", fields)
        assert answer["translatedText"] == [*map(frame.format, expected)]
        assert [each["language"] for each in answer["detectedLanguage"]] == [*found]
    for text, translated, language in known:
        _, answer = address.post("/translate", {"q": text, "source": "auto", "target": "de"})
        detected = answer["detectedLanguage"]["language"]
        assert (answer["translatedText"], detected) == (translated, language)
        assert translated_file(address, "a.txt", text.encode(), source="auto")[1] == translated
    fields = {"q": ["OK", "Le chien joue."], "source": "auto", "target": "de"}
    assert address.post("/translate", fields)[1]["translatedText"] == ["fr", "fr"]  # OK is either


def test_the_confidence_of_a_text_is_the_lowest_of_its_sentences(start):
    def translate(lines, config):
        return [
            [replace(translation(f"[{line}]"), confidence=int(line[1:]) / 10)] for line in lines
        ]

    q = ["a9\na3", "a7", "!"]
    _, answer = start(stand_in(translate)).post("/translate", {"q": q, **PAIR})
    texts = ["[a9]\n[a3]", "[a7]", "!"]
    assert answer == {"translatedText": texts, "confidence": [0.3, 0.7, None]}
    address = start(stand_in(translate), ServeConfig(min_confidence=0.5))
    _, answer = address.post("/translate", {"q": q, **PAIR})
    assert answer["translatedText"] == ["a9\na3", "[a7]", "!"]
    assert answer["isTranslated"] == [False, True, True]
    for q, expected in ((b"a3", "a3"), (b"a7", "[a7]")):
        assert translated_file(address, "a.txt", q) == (200, expected)


def test_what_sentences_repeat_is_in_the_answer(start):
    def translate(lines, config):
        return [
            [replace(translation(line), repeated="b" if "b" in line else None)] for line in lines
        ]

    address = start(stand_in(translate))
    for q, repeated in ((["a", "b\na\nb"], [[], ["b", "b"]]), ("b", ["b"]), ("a", None)):
        assert address.post("/translate", {"q": q, **PAIR})[1].get("repeated") == repeated


def test_a_glossary_holds_for_all_requests(start, trained_run, tmp_path):
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("seven\tfünf\n", encoding="utf-8")
    address = start(routes_of([served(trained_run, StepsConfig(glossary=str(glossary)))]))
    for q in ("seven cars", "<p>seven <b>cars</b></p>"):
        fields = {"q": q, **PAIR, "format": "html" if "<" in q else "text"}
        assert "fünf" in address.post("/translate", fields)[1]["translatedText"]
    fields = {"q": "seven cars\ntwo cars", **PAIR, "glossary": {"seven": "acht", "two": "neun"}}
    eight, nine = address.post("/translate", fields)[1]["translatedText"].split("\n")
    assert ("acht" in eight, "fünf" in eight, "neun" in nine) == (True, False, True)


def test_a_glossary_of_a_request_holds_for_it_alone(address, capfd):
    plain = {"q": "seven cars", **PAIR}
    before = address.post("/translate", plain)
    terms = {"seven": "fünf", "cars": "日本" * 60}  # too long for a translation
    as_text = {**plain, "glossary": json.dumps(terms)}
    form = parse.urlencode(as_text)
    kind = "application/x-www-form-urlencoded"
    for status, answer in (
        address.post("/translate", {**plain, "glossary": terms}),
        address.post("/translate", as_text),
        address.send("/translate", form.encode(), kind),
        address.send(f"/translate?{form}", b""),
    ):
        assert status == 200
        assert "fünf" in answer["translatedText"]
        assert answer["missingTerms"] == [["cars", terms["cars"]]]
    _, explained = address.post("/explain", as_text)
    assert all("fünf" in each["text"] for each in explained["translations"])
    glossary = as_text["glossary"]
    assert "fünf" in translated_file(address, "a.txt", b"seven cars", glossary=glossary)[1]
    assert address.post("/translate", plain) == before
    wrong = address.post("/translate", {**plain, "glossary": {"seven": ""}})
    assert wrong[0] == 400
    assert 'glossary, term 1 has an empty translation of "seven"' in wrong[1]["error"]
    assert capfd.readouterr().err == ""  # texts of users are not logged


def test_translations_continue_a_prefix(address):
    fields = {"q": " seven cars", **PAIR, "prefix": "sieben ", "alternatives": 2}
    _, answer = address.post("/translate", fields)
    texts = [answer["translatedText"].strip(), *map(str.strip, answer["alternatives"])]
    assert len(set(texts)) == 3
    assert all(text.startswith("sieben ") for text in texts)
    _, explained = address.post("/explain", fields)
    best, *others = [each["text"] for each in explained["translations"]]
    assert best == texts[0]
    assert len({text.split()[1] for text in [best, *others]}) == 1 + len(others) > 3
    status, answer = address.post("/translate", {**fields, "prefix": "a " * 9000})
    assert (status, "allowed: shorten it" in answer["error"]) == (400, True)


def test_html_keeps_its_tags(address):
    fields = {"q": '<p>seven <a href="x">cars</a></p>', **PAIR, "format": "html"}
    status, answer = address.post("/translate", fields)
    assert status == 200
    assert re.fullmatch('<p>.*<a href="x">.*</a>.*</p>', answer["translatedText"])


@pytest.mark.parametrize(
    ("name", "text", "translated"),
    [
        ("a.txt", "\ufeffone.\r\n\ttwo\r\n", "\ufeffONE.\r\n\tTWO\r\n"),
        ("C:\\ü b.HTML", "<b>one</b>", "<b>ONE</b>"),
        ("a.xml", "<a x='y'>one</a>", "<a x='y'>ONE</a>"),
        ("a.srt", *(f"1\n00:00:01,000 --> 00:00:02,000\n{t}\n" for t in ("one", "ONE"))),
        ("a.vtt", *(f"WEBVTT\n\n00:01.000 --> 00:02.000\n{t}\n" for t in ("one", "ONE"))),
        *((f"empty{ending}", "", "") for ending in (".txt", ".html", ".xml", ".srt")),
    ],
)
def test_files_are_translated(plain, name, text, translated):
    status, answer = plain.upload(name, text.encode())
    assert status == 200
    url = answer["translatedFileUrl"]
    with request.urlopen(url, timeout=20) as file:
        assert file.read().decode() == translated
        stem, ending = re.split("[/\\\\]", name)[-1].rsplit(".", 1)
        assert file.headers["content-disposition"].endswith(parse.quote(f"{stem}_de.{ending}"))
        assert file.headers["content-type"] == "application/octet-stream"
    assert plain.send("/download_file/guessed/a.txt")[0] == 404


X = {name: f"X-Forwarded-{name}" for name in ("Proto", "Host", "Port", "Prefix")}
TLS = {X["Proto"]: "https"}
TOLD = [
    ({}, "http://HERE"),
    ({"Host": "a.example"}, "http://a.example"),
    ({**TLS, "Host": "a.example"}, "https://a.example"),
    ({X["Proto"]: "HTTPS, http", X["Host"]: "a.example, b"}, "https://a.example"),
    ({**TLS, X["Host"]: "a.example:8443", X["Port"]: "443"}, "https://a.example:8443"),
    ({**TLS, X["Host"]: "a.example", X["Port"]: "8443"}, "https://a.example:8443"),
    ({**TLS, X["Host"]: "a.example", X["Port"]: "443"}, "https://a.example"),
    ({**TLS, X["Host"]: "a.example", X["Port"]: "80"}, "https://a.example"),
    ({X["Host"]: "[2001:db8::1]:81"}, "http://[2001:db8::1]:81"),
    ({"Host": "a.example", X["Prefix"]: "/mt/"}, "http://a.example/mt"),
    ({"Host": "a.example", X["Prefix"]: "/%C3%BC, /b"}, "http://a.example/%C3%BC/b"),
    ({"Forwarded": 'for="[::1]:9";Proto=https;host="a:81", host=b'}, "https://a:81"),
    ({"Forwarded": "host=b.example;proto=https", X["Host"]: "a.example"}, "https://a.example"),
]
HOSTILE = """a b|javascript:alert(1)|"><script>|//evil|/../x|[|é|/%0d%0aX:x|a:0|/javascript:a()
|host=a b;proto=javascript|host="a/b"|a:65536|host=,""".replace("\n", "").split("|")
TOLD += [
    ({name: each}, "http://HERE") for name in (*X.values(), "Forwarded", "Host") for each in HOSTILE
]


def test_addresses_are_those_by_which_clients_reach_the_server(start, monkeypatch):
    here = start(stand_in(upper))
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.1, 198.51.100.0/24")
    distrustful = start(stand_in(upper))
    for headers, expected in TOLD:
        address = expected.replace("HERE", here.removeprefix("http://"))
        url = here.upload("ü b.txt", b"one", headers)[1]["translatedFileUrl"]
        pattern = re.escape(address) + r"/download_file/[\w-]+/%C3%BC%20b_de\.txt"
        assert re.fullmatch(pattern, url), headers
        assert here.send(url.removeprefix(address))[1] == "ONE"
        path = parse.urlsplit(address).path
        assert (f'<base href="{path}/">' in here.send("/", **headers)[1]) == bool(path), headers
        own = f"http://{headers['Host']}" if headers.get("Host") == "a.example" else distrustful
        url = distrustful.upload("a.txt", b"", headers)[1]["translatedFileUrl"]
        assert url.startswith(f"{own}/download_file/"), headers
        assert "<base" not in distrustful.send("/", **headers)[1]


def test_only_named_origins_may_read_answers(start):
    body = json.dumps({"q": "a", **PAIR}).encode()
    for cors, origin, allowed in (
        ((), "https://a.example", None),
        (("https://a.example",), "https://a.example", "https://a.example"),
        (("https://a.example",), "https://b.example", None),
        (("*",), "https://b.example", "*"),
    ):
        address = start(stand_in(upper), ServeConfig(cors=cors))
        asked = request.Request(
            f"{address}/translate", body, {"Content-Type": "application/json", "Origin": origin}
        )
        with request.urlopen(asked, timeout=20) as answer:
            assert answer.headers.get("access-control-allow-origin") == allowed


def test_clients_can_ask_what_the_server_offers(address):
    assert address.send("/languages") == (
        200,
        [
            {"code": "en", "name": "English", "targets": ["de"]},
            {"code": "de", "name": "German", "targets": []},
        ],
    )
    _, settings = address.send("/frontend/settings")
    assert settings["charLimit"] == DEFAULT.max_characters
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    assert not settings["keyRequired"]
    [model] = settings["models"]
    assert model.pop("name")
    assert model == {"source": "en", "target": "de", "license": None}
    _, health = address.send("/health")
    assert health["status"] == "ok"
    [engine] = health["engines"]
    assert engine.pop("engine").startswith(("CTranslate2 4.", "torch ("))
    assert engine == {"source": "en", "target": "de"}


def test_metrics_count_requests_and_lines(plain):
    plain.post("/translate", {"q": "a\nb", **PAIR})
    plain.post("/translate", {"q": "a"})
    plain.send("/nowhere/at/all")
    _, text = plain.send("/metrics")
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    assert samples['tfm_requests_total{path="/translate",status="200"}'] == "1"
    assert samples['tfm_requests_total{path="/translate",status="400"}'] == "1"
    assert samples['tfm_requests_total{path="other",status="404"}'] == "1"
    assert samples['tfm_lines_total{source="en",target="de"}'] == "2"
    assert samples['tfm_waiting_requests{source="en",target="de"}'] == "0"
    assert samples['tfm_translate_seconds_bucket{le="+Inf"}'] == "1"
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{(\w+="[^"]*",?)+\})? [\d.e+-]+', line)


# --- refusals: a status and one sentence


FIELDS = [
    ({"q": None}, 400, "q is missing"),
    ({"q": []}, 400, "q is missing"),
    ({"q": ["a", 1]}, 400, "q must be a text, or a list of texts"),
    ({"q": 5}, 400, "q must be a text, or a list of texts"),
    ({"q": False}, 400, "q must be a text, or a list of texts"),
    ({"q": "\ud800"}, 400, "q has half of a surrogate pair"),
    ({"q": "a" * 101}, 413, "q has 101 characters, more than the 100 allowed"),
    ({"q": [""] * 101}, 413, "q has 101 characters"),
    ({"source": None}, 400, "source is missing"),
    ({"source": "xx"}, 400, "does not translate from xx to de, only from en to de"),
    ({"target": ["de"]}, 400, "target must be the code of one language"),
    ({"target": "\x00"}, 400, "target is not the code"),
    ({"target": "auto"}, 400, "does not translate from en to auto"),
    ({"format": "markdown"}, 400, 'format must be "text" or "html"'),
    ({"alternatives": -1}, 400, "alternatives must be a whole number"),
    ({"alternatives": "9" * 5000}, 400, "alternatives must be a whole number"),
    ({"alternatives": True}, 400, "alternatives must be a whole number"),
    ({"alternatives": 4}, 400, "alternatives must be at most 3"),
    ({"prefix": ["a"]}, 400, "prefix must be a text"),
    ({"prefix": "a" * 101}, 413, "prefix has 101 characters"),
    ({"prefix": "\udfff"}, 400, "prefix has half of a surrogate pair"),
    ({"prefix": "a", "q": "b\nc"}, 400, "prefix is for a single sentence, but q has 2"),
    ({"prefix": "a", "q": ["b"]}, 400, "prefix is for a single sentence of plain text"),
    ({"prefix": "a", "format": "html"}, 400, "prefix is for a single sentence of plain text"),
    ({"glossary": ["a", "b"]}, 400, "glossary must be an object of terms"),
    ({"glossary": {"a": 1}}, 400, "glossary must be an object of terms"),
    ({"glossary": "a=b"}, 400, "glossary must be an object of terms"),
    ({"glossary": "[" * 99_999}, 400, "glossary must be an object of terms"),
    ({"glossary": 7}, 400, "glossary must be an object of terms"),
    ({"glossary": {"a" * 60: "b" * 60}}, 413, "glossary has 120 characters"),
    ({"glossary": {"a": "\ud800"}}, 400, "glossary has half of a surrogate pair"),
]
JSON, FORM, PARTS = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
BODIES = [
    (b"[" * 100_000, JSON, 400, "not a JSON object"),
    (b"{}{", JSON, 400, "not a JSON object"),
    (b'"text"', JSON, 400, "not a JSON object"),
    (b"\xff\xfe\x00", JSON, 400, "not UTF-8"),
    (b'{"q": "a", "q": "b"}', JSON, 400, "q is given more than once"),
    (b'{"glossary": {"a": "b", "a": "c"}}', JSON, 400, "a is given more than once"),
    (b'{"\\ud800": 1, "\\ud800": 1}', JSON, 400, "? is given more than once"),
    (b" " * 200_000, JSON, 413, "more than 150,000 bytes"),
    (b"q=a", "text/plain", 415, "send application/json or"),
    (b"--x", PARTS, 400, "Missing boundary"),
    (b"--x\r\nbroken", f"{PARTS}; boundary=x", 400, "q is missing"),
    (b"a=&" * 1000, FORM, 400, "more than 1000 fields"),
    (b"q=%ff%00&source=en&target=de", FORM, 400, "not UTF-8"),
    (b"q=\xfcber&source=en&target=de", FORM, 400, "not UTF-8"),
]
FILES = [
    ("a.docx", b"a", 400, "must end with .txt, .html"),
    ("a.txt", b"\xff", 400, "not UTF-8"),
    ("a.txt", b"a" * 101, 413, "the file has 101 characters"),
    ("", b"a", 400, "file is missing"),
]


TWICE = ("source", "target", "format", "api_key", "glossary")


def test_wrong_requests_are_refused(start):
    address = start(stand_in(upper), ServeConfig(max_characters=100, max_body_bytes=150_000))
    fields = {"q": "a", **PAIR}
    found = [
        *((address.post("/translate", {**fields, **each[0]}), *each) for each in FIELDS),
        *((address.send("/translate", *each[:2]), *each) for each in BODIES),
        *((address.upload(*each[:2]), *each) for each in FILES),
        *(
            (each, 400, f"{name[:20]} is given more than once: give it once")
            for name in (*TWICE, "x" * 50)
            for each in sent_as_forms(address, [("q", "a"), *PAIR.items(), *[(name, "en")] * 2])
        ),
        (address.post("/explain", {**fields, "q": ["a", "b"]}), 400, "q must be a single text"),
        (address.send("/translate", b"{}", **{"Content-Encoding": "gzip"}), 415, "is gzip: send"),
        (address.send("/nowhere"), 404, "Not Found"),
        (address.send("/translate"), 405, "Method Not Allowed"),
        (address.send("/health", b"x"), 405, "Method Not Allowed"),
    ]
    for (status, answer), *asked, expected, message in found:
        assert status == expected, asked
        assert message in answer["error"], asked
    assert address.post("/translate", {**fields, "q": "a" * 100})[0] == 200


def test_only_the_key_opens_a_server_with_a_key(start):
    address = start(stand_in(upper), key="Schlüssel")
    fields = {"q": "a", **PAIR}
    assert address.post("/translate", fields)[0] == 403
    assert address.post("/translate", {**fields, "api_key": "schlüssel"})[0] == 403
    assert address.post("/translate", {**fields, "api_key": 7})[0] == 403
    assert address.post("/detect", {"q": "a"})[0] == 403
    assert address.post("/translate", {**fields, "api_key": "Schlüssel"})[0] == 200
    assert address.send("/frontend/settings")[1]["keyRequired"]


def test_a_full_queue_and_a_slow_model_are_answered(start):
    release = threading.Event()
    config = ServeConfig(max_requests=2, answer_seconds=1)
    address = start(stand_in(recorder(release)[1], config), config)
    fields = {"q": "a", **PAIR}
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: address.post("/translate", fields), range(8)))
    assert sorted(status for status, _ in answers) == [503] * 6 + [504] * 2
    assert {"error": "2 requests wait already: try again later"} in [each for _, each in answers]
    release.set()
    assert address.post("/translate", fields) == (200, {"translatedText": "A"})


def test_a_request_that_arrives_slowly_is_ended_and_blocks_nobody(start):
    address = start(stand_in(upper), ServeConfig(receive_seconds=1, max_connections=40))
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    bodies = {b"9\r\n\r\n{": b"408", b"0\r\n\r\n": b"400"}
    slow = [(address.connect(), *each) for _ in range(15) for each in bodies.items()]
    for connection, body, _ in slow:
        connection.sendall(head + b"Content-Length: " + body)
    started = time.monotonic()
    fields = {"q": "a", **PAIR}
    for _ in range(5):
        assert address.post("/translate", fields)[0] == 200
    assert time.monotonic() - started < 1
    for connection, _, status in slow:
        answer = b""
        with connection:
            while part := connection.recv(1000):  # until it is closed, after as long again
                answer += part
        assert answer[9:12] == status
    assert time.monotonic() - started < 10


def test_requests_on_too_many_connections_are_refused(start):
    address = start(stand_in(upper), ServeConfig(max_connections=2))
    with address.connect(), address.connect(), address.connect() as third:
        third.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert third.recv(1000)[9:12] == b"503"


def test_a_client_that_leaves_is_not_translated(start):
    release = threading.Event()
    batches, translate = recorder(release)
    address = start(stand_in(translate))
    body = json.dumps({"q": "left", **PAIR}).encode()
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(address.post, "/translate", {**json.loads(body), "q": "first"})
        wait_until(lambda: batches)
        with address.connect() as leaving:
            leaving.sendall(
                b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            address.wait_for_waiting(2)
        address.wait_for_waiting(1)
        release.set()
        assert first.result()[0] == 200
    assert lines_of(batches) == ["first"]


def test_hostile_requests_are_refused_and_never_break_the_server(start, capfd):
    config = ServeConfig(receive_seconds=1, max_body_bytes=300_000)
    address = start(stand_in(upper, config), config)
    statuses = set()
    for kind in (kind for kind in KINDS if kind.__name__ not in ("slow", "costly")):
        draw = random.Random(kind.__name__)
        for _ in range(10):
            hostile = kind(draw)
            with address.connect() as connection, contextlib.suppress(ConnectionError):
                connection.sendall(hostile.data)
                if not hostile.is_left:
                    statuses.add(connection.recv(12)[9:])
    assert statuses <= {b"", *(str(n).encode() for n in (200, 400, 403, 404, 405, 408, 413, 415))}
    assert address.post("/translate", {"q": "a", **PAIR}) == (200, {"translatedText": "A"})
    assert 'status="500"' not in address.send("/metrics")[1]  # nor after a client has left
    log = capfd.readouterr().err.splitlines()
    assert [line for line in log if not line.startswith("warning: a tag in line")] == []


# --- the page


def test_the_page_loads_nothing_and_runs_only_its_own_script(plain):
    with request.urlopen(plain + "/") as answer:
        policy, page = answer.headers["content-security-policy"], answer.read().decode()
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for element in ("script", "style"):
        [content] = texts(parse_page(page), f".//{element}")
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert not re.search(
        r"innerHTML|outerHTML|document\.write|insertAdjacentHTML|eval|https?:", page
    )


def test_the_page_gets_sentences_other_translations_and_attention(address):
    fields = {"q": "seven cars\ntwo trees", **PAIR, "parts": True}
    _, answer = address.post("/translate", fields)
    assert [part["source"] for part in answer["parts"]] == ["seven cars", "\n", "two trees"]
    assert [part["is_sentence"] for part in answer["parts"]] == [True, False, True]
    assert "".join(part["translation"] for part in answer["parts"]) == answer["translatedText"]
    fields = {**fields, "q": "seven cars", "translation": "sieben Autos"}
    status, answer = address.post("/explain", fields)
    assert status == 200
    assert len({each["text"] for each in answer["translations"]}) == 4
    assert answer["source"] == ["seven", "cars", "</s>"]
    assert answer["target"] == ["sieben", "Autos", "</s>"]
    weights = np.array(answer["weights"])
    assert weights.shape == (1, 2, 3, 3)
    assert np.allclose(weights.sum(-1), 1000, atol=3)
    searched = [re.findall("tfm_lines_total{.*", address.send("/metrics")[1])]
    for name in ("q", "translation", "prefix"):
        too_long = {**fields, "translation": None, name: "a " * 300}
        status, answer = address.post("/explain", too_long)
        assert (status, "less than 200 pieces" in answer["error"]) == (400, True)
    searched.append(re.findall("tfm_lines_total{.*", address.send("/metrics")[1]))
    assert searched[0] == searched[1] != []
    assert address.post("/explain", {**fields, "q": " "})[0] == 400


def test_attention_between_words_sums_keys_and_averages_queries():
    rows = [[0.5, 0.3, 0.1, 0.1], [0.1, 0.1, 0.0, 0.8], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    weights = np.array([[rows]], dtype=np.float32)
    pieces = ["▁a", "b", "▁c", "</s>"]
    maps = AttentionMaps(kind="cross", queries=pieces, keys=pieces, weights=weights)
    words = maps.by_words()
    assert words.queries == words.keys == ["ab", "c", "</s>"]
    assert np.allclose(words.weights, [[[[0.5, 0.05, 0.45], [0, 1, 0], [0, 0, 1]]]])
    pieces = ["▁犬", "が", "いる", "</s>"]
    words = AttentionMaps(kind="cross", queries=pieces, keys=pieces, weights=weights).by_words()
    assert words.queries == words.keys == ["犬", "が", "いる", "</s>"]
    assert np.array_equal(words.weights, weights)


# --- requests that arrive together


def queue_of(translate, **limits):
    return TranslationQueue(
        translate, ThreadPoolExecutor(1), **{"batch_characters": 8, "max_requests": 100, **limits}
    )


def asked_together(translate, *requests, **limits):
    """Return the answers of a queue to requests that arrive together, or their errors."""

    async def ask():
        queue = queue_of(translate, **limits)
        asked = (queue.translate(lines, config) for lines, config in requests)
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(ask())


PLAIN = LineConfig(SearchConfig())


def test_requests_that_wait_are_translated_together():
    batches, translate = recorder()
    found = asked_together(translate, *(([f"{number}"], PLAIN) for number in range(10)))
    assert [best.text for [[best]] in found] == [str(number) for number in range(10)]
    assert [len(batch) for batch, _ in batches] == [8, 2]


def test_a_long_text_does_not_delay_short_ones():
    finished = []

    async def ask():
        queue = queue_of(upper)

        async def translate(name, num_lines, n_best=1):
            await queue.translate([name] * num_lines, LineConfig(SearchConfig(n_best=n_best)))
            finished.append((name, queue.num_batches))

        jobs = [("x", 100, 1), ("a", 1, 1), ("b", 2, 1), ("n-best", 1, 3)]
        await asyncio.gather(*(translate(*job) for job in jobs))

    asyncio.run(ask())
    assert finished[:3] == [("a", 1), ("b", 1), ("n-best", 2)]
    assert finished[3] == ("x", 14)  # 5 lines of the first batch, 8 of each other but n-best


def test_lines_with_terms_form_smaller_batches():
    """Their search takes longer, and other requests wait for it."""
    batches, translate = recorder()
    requests = ((["a"] * 16, replace(PLAIN, terms=terms)) for terms in ((), (("a", "b"),)))
    asked_together(translate, *requests, batch_characters=16)
    sizes = [(len(lines), len(config.terms)) for lines, config in batches]
    assert sizes == [(16, 0), *[(2, 1)] * 8]


def test_no_request_starves():
    """Long lines are translated although short ones keep coming."""

    async def ask():
        queue = queue_of(upper)
        long = asyncio.create_task(queue.translate(["x" * 20] * 3, PLAIN))
        short = [asyncio.create_task(queue.translate(["a"], PLAIN)) for _ in range(9)]
        while not long.done():
            done = await short.pop(0)
            assert done[0][0].text == "A"
            short.append(asyncio.create_task(queue.translate(["a"], PLAIN)))
        await asyncio.gather(*short)
        return queue.num_batches

    assert asyncio.run(ask()) < 20


def test_the_request_that_fails_fails_alone():
    def translate(lines, config):
        if "bad" in lines:
            raise DataError("too long")
        return upper(lines, config)

    a, bad, c = asked_together(translate, *(([line], PLAIN) for line in ("a", "bad", "c")))
    assert [a[0][0].text, str(bad), c[0][0].text] == ["A", "too long", "C"]


# --- models and settings


def test_models_that_cannot_be_served_are_refused(model, make_model, trained_run):
    with pytest.raises(UsageError, match="both translate from en to de"):
        routes_of([model, served(trained_run)])
    for path, search, message in (
        (make_model(task="parsing"), {}, "is a parser"),
        (trained_run, {"search": "sample"}, "is not beam search, which tfm serve needs"),
    ):
        with pytest.raises(UsageError, match=message):
            served(path, **search)


def test_tags_choose_among_the_target_languages_of_a_model(start):
    source = SimpleNamespace(has_tag=lambda tag: tag != "<2it>", tags=tuple)
    vocabulary = SimpleNamespace(source=source, tags=())
    model = SimpleNamespace(search=SearchConfig(), vocabulary=vocabulary, folder="m")
    model.steps = lambda *settings: [Sentences(settings[-1], "de")]
    model.info = SimpleNamespace(source="en+nl", target="de+fr")
    model.pairs = partial(ServedModel.pairs, model)
    model.queue = queue_of(
        lambda lines, config: [[translation(config.search.tag + line)] for line in lines]
    )
    address = start(routes_of([model]))
    for source, target in product(["en", "nl"], ["de", "fr"]):
        fields = {"q": "a", "source": source, "target": target}
        assert address.post("/translate", fields) == (200, {"translatedText": f"<2{target}>a"})
    targets = {each["code"]: each["targets"] for each in address.send("/languages")[1]}
    assert targets == {"en": ["de", "fr"], "nl": ["de", "fr"], "de": [], "fr": []}
    vocabulary.tags, model.info.target = (">>cmn_Hans<<", ">>fra<<"), "fra+cmn_Hans"
    routes = routes_of([model])
    tags = [(source, target, route.search.tag) for (source, target), route in routes.items()]
    assert tags[:2] == [("en", "fra", ">>fra<<"), ("nl", "fra", ">>fra<<")]
    assert tags[2:] == [(each, "cmn_Hans", ">>cmn_Hans<<") for each in ("en", "nl")]
    model.info.target = "de+it"
    with pytest.raises(UsageError, match="has no tag <2it> that chooses the language"):
        routes_of([model])


@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        (["--port", "{busy}"], "cannot listen on 127.0.0.1:.*: Address already in use: choose .*"),
        (["--host", "nowhere.invalid"], "cannot listen on nowhere.invalid:5000: .*"),
        (["--api-key-file", "/dev/null"], "/dev/null is empty: write the key on one line"),
        (["--api-key-file", "none"], "none does not exist: check its name"),
        (["--ban", "none"], "none does not exist: check its name"),
    ],
)
def test_mistakes_are_one_line(run, trained_run, elsewhere, flags, pattern):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        flags = [flag.format(busy=busy.getsockname()[1]) for flag in flags]
        code = 1 if "cannot listen" in pattern else 2
        run.fails(code, pattern, "serve", trained_run, "--device", "cpu", *flags)


def test_without_the_extra_a_message_says_how_to_install_it(run, trained_run, monkeypatch):
    monkeypatch.delitem(sys.modules, "tfm.applications.serve.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = run("serve", trained_run)
    remedy = "pip install python-multipart starlette uvicorn"
    message = f"tfm serve needs uvicorn, which is not installed: run {remedy}"
    assert (code, err) == (2, f"tfm: {message}\n")


def test_a_stop_answers_all_accepted_requests(start):
    release = threading.Event()
    address = start(stand_in(recorder(release)[1]))
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(address.post, "/translate", {"q": "a", **PAIR}) for _ in range(8)]
        address.wait_for_waiting(8)
        address.server.should_exit = True
        with contextlib.suppress(ConnectionError):
            while True:
                address.connect().close()
        release.set()
        assert [each.result()[0] for each in asked] == [200] * 8


_SERVE = "import sys; sys.argv[0] = 'tfm'; from tfm.cli.main import main; main()"
_STOPPED = """
import os, signal
from tfm.applications.serve import server

def say(text):
    if text.startswith("serve: http"):
        os.kill(os.getpid(), signal.SIGTERM)

server.say = say
"""
_WATCHED = """
import os, sys
folder = os.environ["WATCHED"]

def watch(event, arguments):
    is_inside = event == "open" and str(arguments[0]).startswith(folder)
    if is_inside and os.path.exists(folder + ".gone"):
        os.write(2, f"opened: {arguments[0]}\\n".encode())

sys.addaudithook(watch)
"""


def answers(address):
    """Return the answers of a server to requests of every kind."""
    cars = {"q": "seven cars", **PAIR}
    kinds = (
        ("/translate", cars),
        ("/translate", {**cars, "q": ["seven cars", "", "see {x} at http://a.b/c", "\u202eone"]}),
        ("/translate", {**cars, "q": ["<p>seven <b>cars</b> &amp; {x}</p>"], "format": "html"}),
        ("/translate", {**cars, "glossary": {"cars": "Wagen"}, "alternatives": 3}),
        ("/translate", {**cars, "q": "two houses", "prefix": "zwei "}),
        ("/explain", {**cars, "prefix": "s"}),
        ("/translate", {**cars, "source": "auto"}),
        ("/detect", cars),
    )
    found = [address.post(path, fields) for path, fields in kinds]
    found += map(address.send, ("/", "/languages", "/frontend/settings", "/health"))
    for name in ("a.txt", "a.html", "a.srt"):
        content = b"1\n00:00:01,000 --> 00:00:02,000\n<i>one</i> {x}"
        found.append(translated_file(address, name, content))
    assert address.send("/metrics")[0] == 200
    return found


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_server_reads_its_files_once(
    start, fork_python, trained_run, make_model, tmp_path, is_replaced
):
    pytest.importorskip("py3langid")
    model = ModelFolder.open(trained_run).path
    folder, files = tmp_path / "served" / model.name, tmp_path / "files"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns(ALIGNMENT))
    files.mkdir()
    (files / "terms").write_text("seven\tfünf\n", encoding="utf-8")
    (files / "ban").write_text("acht\n", encoding="utf-8")
    search, steps = {}, StepsConfig(glossary=str(files / "terms"))
    flags = ["--glossary", files / "terms", "--port", "0"]
    flags += ["--device", "cpu", "--precision", "fp32", "--threads", "1"]
    if not is_replaced:  # with a ban, torch computes all
        search["ban"] = str(files / "ban")
        flags += ["--ban", files / "ban"]
    server = fork_python(_WATCHED + _SERVE, "serve", folder, *flags, WATCHED=str(folder))
    found = wait_until(lambda: re.search(r"serve: (http://\S+)", server.errors), server)
    expected = answers(start(routes_of([served(model, steps, **search)])))
    shutil.rmtree(folder)
    shutil.rmtree(files)
    if is_replaced:
        shutil.copytree(make_model(seed=1), folder)
    (tmp_path / "served" / f"{model.name}.gone").touch()
    assert answers(Address(found[1])) == expected
    server.send_signal(signal.SIGTERM)
    _, errors = server.communicate(60)
    assert "opened" not in errors
    assert not (folder / ALIGNMENT).exists()


def test_a_server_imports_torch_only_for_a_request_that_needs_it(trained_norms, tmp_path):
    pytest.importorskip("ctranslate2")
    command = [sys.executable, "-X", "importtime", "-m", "tfm", "serve", trained_norms["pre"]]
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        server = subprocess.Popen([*command, "--port", "0", "--device", "cpu"], stderr=file)
    server.errors = ""  # read below
    found = wait_until(lambda: re.search(r"serve: (http://\S+)", errors.read_text()), server)
    address = Address(found[1])
    for prefix, needs_torch in (("", False), ("acht", True)):
        assert address.post("/translate", {"q": "one two", "prefix": prefix, **PAIR})[0] == 200
        assert bool(re.search(r"\| +torch$", errors.read_text(), re.MULTILINE)) == needs_torch
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0


def test_sigterm_ends_a_server_as_soon_as_it_says_that_it_listens(fork_python, trained_run):
    server = fork_python(_STOPPED + _SERVE, "serve", trained_run, "--port", "0", "--device", "cpu")
    server.communicate(60)
    assert server.returncode == 0


def test_sigterm_ends_the_server_without_an_error_of_a_request(fork_python, trained_run):
    server = fork_python(_SERVE, "serve", trained_run, "--port", "0", "--device", "cpu")
    found = wait_until(lambda: re.search(r"serve: http://(\S+)", server.errors), server)
    body = json.dumps({"q": "seven cars\n" * 20, **PAIR})

    def ask(keeps_connection):
        """Return the statuses until the server closes or refuses a connection, and the error."""
        connection = http.client.HTTPConnection(found[1], timeout=60)
        statuses = []
        while True:
            try:
                connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
            except OSError as error:
                connection.close()
                return [*statuses, type(error)]
            if not keeps_connection:
                connection.close()

    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(ask, number % 2) for number in range(8)]
        time.sleep(1)
        server.send_signal(signal.SIGTERM)
        statuses = [status for each in asked for status in each.result(60)]
    _, errors = server.communicate(60)
    errors_of_clients = [status for status in statuses if status != 200]
    assert len(errors_of_clients) == 8
    assert all(issubclass(error, ConnectionError) for error in errors_of_clients)
    assert server.returncode == 0
    assert errors.endswith("serve: stopped; all accepted requests were answered\n")
    assert "Traceback" not in errors
