"""Hostile requests to a server that speaks the LibreTranslate protocol."""

import gzip
import json
import random
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
PAIR = {"source": "en", "target": "de"}
_BOMBS = (gzip.compress(b" " * 20_000_000), zlib.compress(b"[" * 20_000_000))
_STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("-inf"), 10**400, "", " ", "\0"),
    *([], {}, [[]], [None], {"a": {}}, {"": ""}, "\ud800", "\u202e", "a" * 30_000, "9" * 5_000),
    *("xx", "auto", "EN", "en\r\nX: y", "../../etc/passwd", "' OR 1=1 --", "<script>", "{{7*7}}"),
)
_FIELDS = ("q", "source", "target", "format", "alternatives", "api_key", "glossary", "prefix")
_MORE_FIELDS = ("parts", "translation", "pair", "unknown", "__proto__")
_POSTS = ("/translate", "/translate_file", "/explain", "/detect", "/languages")


class Hostile(NamedTuple):
    """A request.

    Attributes:
        data: Its bytes.
        is_slow: Whether they are sent one by one, for a while.
        is_left: Whether the client closes the connection without reading.
    """

    data: bytes
    is_slow: bool = False
    is_left: bool = False


def request(
    path: str,
    body: bytes = b"",
    kind: str = JSON,
    *,
    method: str = "POST",
    length: object = None,
    **headers: str,
) -> bytes:
    """Return the bytes of a request; underscores in names of headers are hyphens."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body) if length is None else length}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def translate(**fields: Any) -> bytes:
    """Return the bytes of a translation request with changed fields."""
    return request("/translate", json.dumps({"q": "A dog.", **PAIR, **fields}).encode())


def wrong_types(draw: random.Random) -> Hostile:
    """Return a request with strange values of fields."""
    names = draw.sample(_FIELDS + _MORE_FIELDS, draw.randrange(1, 5))
    fields = {"q": "A dog.", **PAIR} | {name: draw.choice(_STRANGE) for name in names}
    return Hostile(request(draw.choice(_POSTS), json.dumps(fields).encode()))


def strange_forms(draw: random.Random) -> Hostile:
    """Return a form with strange values of fields."""
    names = draw.sample(_FIELDS + _MORE_FIELDS, draw.randrange(1, 5))
    values = {"q": "A dog.", **PAIR} | {name: str(draw.choice(_STRANGE)) for name in names}
    form = urlencode(values, errors="surrogatepass").encode()
    return Hostile(request(draw.choice(_POSTS), form, FORM))


def deep_json(draw: random.Random) -> Hostile:
    """Return JSON that is nested more deeply than parsers allow."""
    depth = draw.choice((900, 5_000, 100_000, 400_000))
    opening = draw.choice((b"[", b'{"q":', b'{"q":"a","glossary":['))
    return Hostile(request("/translate", opening * min(depth, 900_000 // len(opening))))


def broken_bodies(draw: random.Random) -> Hostile:
    """Return a body that is not what its headers say."""
    body = json.dumps({"q": "Ein Hund.", **PAIR}).encode()
    parts = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n'
    kinds = (
        request("/translate", draw.randbytes(draw.randrange(2_000))),
        request("/translate", body.replace(b"Ein", b"\xff\xfe\xc0\x80")),
        request("/translate", body.decode().encode("utf-16")),
        request("/translate", b"q=%ff%fe%00&source=en&target=de", FORM),
        request("/translate", b"&".join(b"%d=a" % number for number in range(5_000)), FORM),
        request("/translate", body, draw.choice(("text/plain", "", "*/*", "a/b; c=" + "d" * 999))),
        request("/translate", body, "application/json; charset=utf-7"),
        request("/translate", b"--x", "multipart/form-data"),
        request("/translate", parts, "multipart/form-data; boundary=x"),
        request("/translate", parts * 2_000 + b"--x--", "multipart/form-data; boundary=x"),
        request(
            "/translate_file", draw.randbytes(500), "multipart/form-data; boundary=" + "x" * 99
        ),
        request("/translate?" + "q=a&" * 2_000, body),
        request("/translate?q=%ff", body),
    )
    return Hostile(draw.choice(kinds))


def compressed(draw: random.Random) -> Hostile:
    """Return a body whose compression is wrong, or that grows a thousandfold."""
    body = json.dumps({"q": "A dog.", **PAIR}).encode()
    coding, data = draw.choice(
        (
            ("gzip", _BOMBS[0]),
            ("deflate", _BOMBS[1]),
            ("gzip", gzip.compress(body)[:-5]),
            ("gzip", gzip.compress(gzip.compress(body))),
            ("gzip", gzip.compress(body) * 3),
            ("gzip", body),
            ("deflate", draw.randbytes(300)),
            ("br", body),
            ("gzip, gzip", gzip.compress(body)),
        )
    )
    return Hostile(request("/translate", data, Content_Encoding=coding))


def wrong_lengths(draw: random.Random) -> Hostile:
    """Return a request whose length is wrong, or whose chunks are."""
    body = json.dumps({"q": "A dog.", **PAIR}).encode()
    lengths = ("-1", "x", "1e3", "99999999999999999999", str(len(body) + 5), "0", "3")
    wrong = request("/translate", body, length=draw.choice(lengths))
    head = request("/translate").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    chunks = (b"zz\r\n", b"-5\r\n", b"ffffffffffffffffffff\r\n", b"5\r\n{}", b"0\r\n\r\n")
    both = request("/translate", body, Transfer_Encoding="chunked")
    huge = request("/translate", b"x" * 3_000_000)
    return Hostile(draw.choice((wrong, head + draw.choice(chunks) + body, both, huge)))


def not_http(draw: random.Random) -> Hostile:
    """Return bytes that are no request, or one with strange lines."""
    kinds = (
        draw.randbytes(draw.randrange(1, 3_000)),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(500),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 200_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 5_000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nA\0\x01: \x7f\r\n\r\n",
        b"POST /translate HTTP/1.1\nHost: x\nContent-Length: 2\n\n{}",
        b"\r\n" * 2_000,
    )
    data = draw.choice(kinds)
    return Hostile(data, is_left=b"\r\n\r\n" not in data)  # the server waits for its end


def changed_bytes(draw: random.Random) -> Hostile:
    """Return a request some of whose bytes are replaced, and perhaps its end is missing."""
    data = bytearray(translate())
    for _ in range(draw.randrange(4)):
        place = draw.randrange(len(data))
        data[place : place + draw.randrange(9)] = draw.randbytes(draw.randrange(9))
    return Hostile(bytes(data[: draw.choice([len(data), draw.randrange(len(data))])]), is_left=True)


def paths_and_methods(draw: random.Random) -> Hostile:
    """Return a request for an unknown path, or with an unknown method."""
    paths = (
        *_POSTS,
        *("/", "//", "/..%2f..%2fetc/passwd", "/download_file/x/y", "/download_file/%00/%ff", "*"),
        *("/%zz", "/" + "a" * 9_000, "/" + "/" * 9_000, "/suggest", "/metrics?a=b", "http://a/b"),
        quote("/ü\n\t"),
    )
    methods = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "X")
    return Hostile(request(draw.choice(paths), b"{}", method=draw.choice(methods)))


def strange_texts(draw: random.Random) -> Hostile:
    """Return a request that is right, but for its strange text."""
    texts = (
        "".join(map(chr, range(32))) + "A dog.",
        "".join(chr(draw.randrange(0xD800)) for _ in range(90)),
        "A" + "\u0301" * 90,
        "\u202e\u2066\u200b\ufeff\ufffe\U000e0001 dog",
        "👩‍👩‍👧‍👦" * 90,
        "<2de> <s> </s> <unk> ▁ <pad>",
        "\r\n\u2028\u2029\x85" * 500,
        "&#x110000;&#0;&amp" * 9,
    )
    changes: dict[str, Any] = {"q": draw.choice(texts)}
    changes |= draw.choice(
        ({}, {"format": "html"}, {"glossary": {"A": "\0"}}, {"prefix": "\x7f"}, {"alternatives": 3})
    )
    return Hostile(translate(**changes))


def strange_markup(draw: random.Random) -> Hostile:
    """Return markup that is nested deeply or never ends, in a field or in a file."""
    entity = '<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;&b;&b;">]><a>&d;</a>'
    texts = ("<b>" * 5_000, "<a href='" * 900, "<!--", "<![CDATA[", entity, "<x " + "y=z " * 2_000)
    text = draw.choice(texts)
    if draw.randrange(2):
        return Hostile(translate(q=text, format="html"))
    name = draw.choice(("a.xml", "a.html", "a.srt", "a.vtt", "a.exe", "../../a.txt", "a\0.txt", ""))
    fields = {**PAIR, f'file"; filename="{name}': text}
    parts = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in fields.items()
    )
    body = f"{parts}--x--\r\n".encode()
    return Hostile(request("/translate_file", body, "multipart/form-data; boundary=x"))


def half_sent(draw: random.Random) -> Hostile:
    """Return the beginning of a request, after which the client leaves."""
    data = translate()
    return Hostile(data[: draw.randrange(1, len(data))], is_left=True)


def left(_: random.Random) -> Hostile:
    """Return a whole request, whose client does not wait for the answer."""
    return Hostile(translate(q="A man plays a guitar.\n" * 5), is_left=True)


def slow(_: random.Random) -> Hostile:
    """Return a request that arrives byte by byte, until the client leaves."""
    return Hostile(translate(), is_slow=True, is_left=True)


def costly(draw: random.Random) -> Hostile:
    """Return a request that takes the model long."""
    words = ["a", "man", "dog", "ball", "street", "snow", "girl", "blue", "shirt", "water"]
    text = " ".join(draw.choice(words) for _ in range(3_000))
    changes: tuple[dict[str, Any], ...] = (
        {"q": "x" * 20_000},
        {"q": "".join(chr(draw.randrange(0xD800)) for _ in range(2_000))},
        {"q": "漢" * 20_000},
        {"q": text},
        {"q": text, "glossary": {word: word.upper() for word in words}},
        {"q": "A dog.", "glossary": {f"{number}": f"{number}" for number in range(3_000)}},
        {"q": "A dog.", "prefix": "Ein " * 2_000},
        {"q": ["A dog."] * 2_000},
    )
    return Hostile(translate(**draw.choice(changes)))


# Each kind, with how often it is drawn.
KINDS: Mapping[Callable[[random.Random], Hostile], int] = {
    wrong_types: 40,
    strange_forms: 20,
    deep_json: 10,
    broken_bodies: 30,
    compressed: 20,
    wrong_lengths: 15,
    not_http: 20,
    changed_bytes: 20,
    paths_and_methods: 30,
    strange_texts: 30,
    strange_markup: 15,
    half_sent: 15,
    left: 10,
    slow: 10,
    costly: 1,
}
