"""The requests of clients of LibreTranslate, as their code sends them, and what they read."""

import contextlib
import json
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

pytest.importorskip("uvicorn")
from servers import PAIR, stand_in, translation

from tfm.applications.serve.settings import ServeConfig

TEXT, TRANSLATED = "The dog plays in the snow.", "THE DOG PLAYS IN THE SNOW."
HTML = "<p>The dog plays.</p><p>It's cold &amp; <br>white.</p>"
HTML_TRANSLATED = "<p>THE DOG PLAYS.</p><p>IT'S COLD &amp; <br>WHITE.</p>"
EMOJI = '<span translate="no">:dog:</span>'

# What clients send.
TEXT_PAIR, HTML_PAIR = {"q": TEXT, **PAIR}, {"q": HTML, **PAIR, "format": "html"}
TEXT_AUTO, HTML_AUTO = {**TEXT_PAIR, "source": "auto"}, {**HTML_PAIR, "source": "auto"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}
GZIP = {"Accept-Encoding": "gzip, deflate"}
ORIGIN = {"Origin": "https://page.example"}
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type",
}

# What clients read: values, or their types, by the keys and indexes that lead to them.
PLAIN, MARKUP = {"translatedText": TRANSLATED}, {"translatedText": HTML_TRANSLATED}
DETECTED = {"detectedLanguage.language": "en", "detectedLanguage.confidence": float}
ENGLISH = {"0.language": "en", "0.confidence": float}
LANGUAGES = {"0.code": "en", "0.name": str, "0.targets": ["de"], "1.code": "de", "1.targets": []}
FILE = {"translatedFileUrl": str}
SETTINGS = {
    "charLimit": int,
    "filesTranslation": bool,
    "frontendTimeout": int,
    "keyRequired": bool,
    "language.source.code": str,
    "language.source.name": str,
    "language.target.code": str,
    "suggestions": bool,
    "supportedFilesFormat": list,
}


@dataclass(frozen=True)
class Call:
    """A request, and what the client reads from the answer; it gets the file of an address."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    reads: dict[str, Any]


@dataclass(frozen=True)
class Client:
    """A client.

    Attributes:
        version: The versions, or the commit, whose code was read.
        calls: Its requests, in order.
        joins: Whether it puts "/translate" behind an address that may end with a slash.
        cors: Whether it runs in a web page.
    """

    version: str
    calls: tuple[Call, ...]
    joins: bool
    cors: bool


def client(version, *calls, joins=False, cors=False):
    return Client(version, calls, joins, cors)


def get(path, reads, body=None, **headers):
    return Call("GET", path, headers, body, reads)


def in_query(path, fields, reads, **headers):
    return Call("POST", f"{path}?{urlencode(fields)}", headers, None, reads)


def as_json(path, fields, reads, **headers):
    return Call("POST", path, {**JSON, **headers}, json.dumps(fields).encode(), reads)


def as_form(path, fields, reads, **headers):
    return Call("POST", path, {**FORM, **headers}, urlencode(fields).encode(), reads)


def as_parts(path, fields, reads, quote='"'):
    """Return the call with a form of several parts; .NET quotes the boundary, but no names."""
    details = {"file": '; filename="folder/a.txt"\r\nContent-Type: text/plain'}
    body = "".join(
        f"--x\r\nContent-Disposition: form-data; name={quote}{name}{quote}"
        f"{details.get(name, '')}\r\n\r\n{value}\r\n"
        for name, value in fields.items()
    )
    boundary = "x" if quote else '"x"'
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    return Call("POST", path, headers, f"{body}--x--\r\n".encode(), reads)


CLIENTS = {
    "Mastodon": client(
        "bcba029",
        get("/languages", LANGUAGES, **JSON, **GZIP),
        as_json(
            "/translate",
            {**HTML_PAIR, "q": [HTML, "", EMOJI], "api_key": None},
            {"translatedText": [HTML_TRANSLATED, "", EMOJI]},
            **GZIP,
        ),
        as_json(
            "/translate",
            {**HTML_AUTO, "q": [HTML], "api_key": ""},
            {"translatedText": [HTML_TRANSLATED], "detectedLanguage.0.language": "en"},
            **GZIP,
        ),
        joins=True,
    ),
    "Akkoma": client(
        "7eafb70",
        get("/languages", LANGUAGES),
        as_json("/translate", {**HTML_AUTO, "api_key": None}, {**MARKUP, **DETECTED}),
    ),
    "Rebased": client(
        "81414cc",
        get("/languages", LANGUAGES),
        as_json("/translate", {**HTML_PAIR, "source": "EN", "api_key": "key"}, MARKUP),
        joins=True,
    ),
    "Ditto": client(
        "dcfdfb1",
        as_json("/translate", {**HTML_AUTO, "api_key": "key"}, {**MARKUP, **DETECTED}),
    ),
    "Discourse": client(
        "919fdab",
        as_form("/detect", {"q": TEXT, "api_key": ""}, ENGLISH),
        get("/languages", LANGUAGES),
        as_form("/translate", {**HTML_PAIR, "api_key": ""}, MARKUP),
        joins=True,
    ),
    "wagtail-localize": client(
        "1.14.5",
        as_json(
            "/translate",
            {**HTML_PAIR, "q": [HTML, TEXT], "api_key": "key"},
            {"translatedText": [HTML_TRANSLATED, TRANSLATED]},
            **GZIP,
        ),
        joins=True,
    ),
    "Weblate": client(
        "5.14.3",
        get("/languages", LANGUAGES, Accept="application/json; charset=utf-8"),
        as_json(
            "/translate",
            {**TEXT_PAIR, "q": [TEXT], "api_key": ""},
            {"translatedText": [TRANSLATED]},
            Accept="application/json; charset=utf-8",
        ),
    ),
    "Subtitle Edit": client(
        "f25119b",
        as_json("/translate", {**TEXT_PAIR, "q": "One<br />two"}, {"translatedText": str}),
    ),
    "deep-translator": client(
        "1.11.4",
        in_query("/translate", {**TEXT_PAIR, "format": "text", "api_key": "key"}, PLAIN, **GZIP),
    ),
    "translatepy": client(
        "2.3",
        as_form("/detect", {"q": TEXT}, ENGLISH, Host="libretranslate.com"),
        as_form("/translate", TEXT_PAIR, PLAIN, Host="libretranslate.com"),
    ),
    "translate": client(
        "3.8.1",
        as_form("/detect", {"q": TEXT}, ENGLISH),
        as_form("/translate", {**TEXT_PAIR, "api_key": "key"}, PLAIN),
    ),
    "libretranslatepy": client(
        "2.1.1, 2.1.4",
        as_form("/languages", {"api_key": "key"}, LANGUAGES),
        get("/languages", LANGUAGES, b"api_key=key", **FORM),
        as_form("/detect", {"q": TEXT, "api_key": "key"}, ENGLISH),
        as_form("/translate", TEXT_PAIR, PLAIN),
    ),
    "libretranslate-ts": client(
        "0.5.12",
        get("/languages", LANGUAGES, Accept="application/json"),
        as_json("/detect", {"q": TEXT, "format": "text", "api_key": None}, ENGLISH),
        as_json(
            "/translate",
            {**TEXT_PAIR, "format": "text", "api_key": None, "alternatives": 2},
            {**PLAIN, "alternatives.1": str},
        ),
        joins=True,
    ),
    "libretranslate-rs": client("0.5.2", as_json("/translate", TEXT_AUTO, PLAIN)),
    "LibreTranslate.Net": client(
        "1.0.1",
        get("/languages", LANGUAGES),
        as_form("/translate", {**TEXT_AUTO, "api_key": ""}, PLAIN),
    ),
    "LibreTranslate.Net.Enhanced": client(
        "64c5ef6",
        get("/frontend/settings", SETTINGS),
        as_form("/detect", {"q": TEXT, "api_key": ""}, ENGLISH),
        as_form("/translate", {**TEXT_PAIR, "api_key": "", "format": ""}, PLAIN),
        as_parts("/translate_file", {**PAIR, "api_key": "key", "file": TEXT}, FILE, quote=""),
    ),
    "jefs42/libretranslate, Nextcloud": client(
        "2ef7a03",
        get("/frontend/settings", SETTINGS, **FORM),
        get("/languages", LANGUAGES, **FORM),
        in_query("/detect", {"q": TEXT, "api_key": ""}, ENGLISH, **FORM),
        as_parts("/translate", {**HTML_PAIR, "api_key": ""}, MARKUP),
        as_parts("/translate_file", {**PAIR, "format": "html", "api_key": "", "file": TEXT}, FILE),
    ),
    "Translate for Obsidian": client(
        "2e737bd",
        get("/languages", LANGUAGES),
        as_json("/detect", {"q": TEXT}, ENGLISH),
        as_json("/translate", TEXT_AUTO, {**PLAIN, **DETECTED}),
        joins=True,
    ),
    "LibreTranslate's page": client(
        "1.9.6",
        get("/frontend/settings", SETTINGS),
        get("/languages", LANGUAGES),
        as_parts("/translate", {**HTML_AUTO, "alternatives": 3, "api_key": ""}, MARKUP),
        as_parts("/translate_file", {**PAIR, "source": "auto", "api_key": "", "file": TEXT}, FILE),
    ),
    "voca for Firefox": client(
        "15e6a86",
        Call("OPTIONS", "/translate", {**ORIGIN, **PREFLIGHT}, None, {}),
        get("/languages", LANGUAGES, **ORIGIN),
        as_json("/translate", TEXT_AUTO, {**PLAIN, **DETECTED}, **ORIGIN),
        cors=True,
    ),
}


def answer_to(address, call):
    """Return the headers and the content of an answer, whose status must be 200."""
    with contextlib.closing(HTTPConnection(urlsplit(address).netloc, timeout=20)) as connection:
        connection.request(call.method, call.path, call.body, call.headers)
        answer = connection.getresponse()
        content = answer.read()
    assert answer.status == 200, (call.path, content)
    return answer.headers, content.decode()


def assert_read(answer, expected):
    """Check the values, or their types, by the keys and indexes that lead to them."""
    for path, wanted in expected.items():
        found = answer
        for key in path.split("."):
            found = found[int(key) if key.isdigit() else key]
        is_right = type(found) is wanted if isinstance(wanted, type) else found == wanted
        assert is_right, (path, found)


def capitals(lines, config):
    """Return different translations of lines, of which the best are their capital letters."""
    marks = ["!" * rank for rank in range(config.search.n_best)]
    return [[translation(line.upper() + mark) for mark in marks] for line in lines]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_finds_what_it_reads(start, name):
    pytest.importorskip("py3langid")
    known = CLIENTS[name]
    config = ServeConfig(cors=("*",)) if known.cors else ServeConfig()
    address = start(stand_in(capitals), config)
    for slash in ["", "/"] if known.joins else [""]:
        for call in known.calls:
            headers, content = answer_to(address, replace(call, path=slash + call.path))
            assert_read(json.loads(content) if call.reads else {}, call.reads)
            if known.cors:
                assert headers["access-control-allow-origin"] in ("*", ORIGIN["Origin"])
            if call.reads is FILE:
                url = json.loads(content)["translatedFileUrl"]
                assert answer_to(address, get(url.removeprefix(address), {}))[1] == TRANSLATED


def with_deep_translator(address):
    package = pytest.importorskip("deep_translator")
    client = package.LibreTranslator("en", "de", api_key="key", custom_url=f"{address}/")
    return client.translate(TEXT)


def with_libretranslatepy(address):
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(address, api_key="key")
    assert client.detect(TEXT)[0]["language"] == "en"
    assert [each["code"] for each in client.languages()] == ["en", "de"]
    return client.translate(TEXT, "en", "de")


def with_translate(address):
    package = pytest.importorskip("translate")
    client = package.Translator("de", "autodetect", provider="libre", base_url=address)
    return client.translate(TEXT)


def with_translatepy(address):
    """Run a client whose server is fixed in its code, through a session that changes it."""
    package = pytest.importorskip("translatepy.translators.libre")

    class Session(package.Request):
        def post(self, url, **options):
            return super().post(url.replace("https://libretranslate.com", address), **options)

    client = package.LibreTranslate(request=Session())
    return client.translate(TEXT, "German").result


@pytest.mark.parametrize(
    "translated_with",
    [with_deep_translator, with_libretranslatepy, with_translate, with_translatepy],
)
def test_a_python_client_translates(start, translated_with):
    pytest.importorskip("py3langid")
    assert translated_with(start(stand_in(capitals))) == TRANSLATED
