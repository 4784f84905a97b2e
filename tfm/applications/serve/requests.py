"""Reading the requests of the LibreTranslate protocol, within limits."""

import asyncio
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import PurePath
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from tfm.applications.serve.queue import Terms
from tfm.applications.serve.settings import ServeConfig
from tfm.steps import TextFormat

# The formats of files, by the ends of their names.
FILE_FORMATS: Mapping[str, TextFormat] = {
    ".txt": "text",
    ".html": "html",
    ".htm": "html",
    ".xml": "xml",
    ".srt": "srt",
    ".vtt": "srt",
}
# Codes of LibreTranslate that follow no standard.
_OLDER_CODES = {"zt": "zh_Hant", "pb": "pt_BR"}
_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_MAX_FIELDS = 1_000
_TEXT = re.compile(r"q(\[\d*\])?")  # as forms name a text, and one of several
_MAX_CODE = 20  # characters of a language code

Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TranslationRequest:
    """A checked request for translations.

    Attributes:
        texts: The texts to translate.
        format: The format of the texts.
        is_list: Whether the answer is a list, even of one text.
        source: Source language, or "auto".
        target: Target language.
        terms: A glossary.
        num_alternatives: Number of further translations of each text.
        prefix: What the translation of a text begins with, if it is a single sentence.
        wants_parts: Whether the answer has the sentences of the texts, as the page needs them.
        translation: A translation whose attention the page shows; None for the best one.
    """

    texts: list[str]
    format: TextFormat
    is_list: bool
    source: str
    target: str
    terms: Terms
    num_alternatives: int = 0
    prefix: str | None = None
    wants_parts: bool = False
    translation: str | None = None

    @classmethod
    def from_fields(
        cls, fields: Fields, config: ServeConfig, pairs: Iterable[tuple[str, str]]
    ) -> "TranslationRequest":
        """Check the fields of a request to a server for pairs of languages."""
        limit = config.max_characters
        texts, is_list = _texts(fields.get("q"), limit)
        prefix = None if fields.get("prefix") is None else _text(fields, "prefix", limit)
        text_format: Any = fields.get("format") or "text"
        if text_format not in ("text", "html"):
            raise HTTPException(400, 'format must be "text" or "html"')
        if prefix and (is_list or text_format != "text"):
            raise HTTPException(400, "prefix is for a single sentence of plain text")
        return cls(
            texts=texts,
            format=text_format,
            is_list=is_list,
            source=_language(fields, "source", pairs),
            target=_language(fields, "target", pairs),
            num_alternatives=_number(fields, "alternatives"),
            terms=_terms(fields, config),
            prefix=prefix,
            wants_parts=fields.get("parts") is True,
            translation=_text(fields, "translation", limit) or None,
        )


async def read_fields(request: Request, config: ServeConfig) -> Fields:
    """Return the fields of the query and of the body, a JSON object or a form, which come first."""
    body = await _read_body(request, config)
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise HTTPException(415, f"Content-Encoding is {coding[:20]}: send the body as it is")
    query = _form_fields(request.scope["query_string"], "the query")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _FORM:
        return query | _form_fields(body, "the form")
    if kind == _MULTIPART:
        return query | await _read_multipart(request, body)
    if kind == "application/json" or kind.endswith("+json"):
        return query | (_json_fields(body) if body or not query else {})
    if body:
        raise HTTPException(415, f"send application/json or {_FORM}: Content-Type says which it is")
    return query


async def _read_body(request: Request, config: ServeConfig) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(config.receive_seconds):
            async for part in request.stream():
                body += part
                if len(body) > config.max_body_bytes:
                    limit = f"{config.max_body_bytes:,}"
                    raise HTTPException(413, f"the body has more than {limit} bytes: send less")
    except TimeoutError:
        raise HTTPException(
            408, f"the request did not arrive within {config.receive_seconds:g} seconds"
        ) from None
    return bytes(body)


def _json_fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, object_pairs_hook=_once)
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8: send JSON in UTF-8") from None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return fields


def _form_fields(encoded: bytes, place: str) -> dict[str, Any]:
    """Return the fields of a query or of a form."""
    try:
        pairs = parse_qsl(
            encoded.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
        )
    except UnicodeDecodeError:
        raise HTTPException(400, f"{place} is not UTF-8: send text in UTF-8") from None
    except ValueError:
        raise HTTPException(400, f"{place} has more than {_MAX_FIELDS} fields") from None
    return _gathered(pairs)


async def _read_multipart(request: Request, body: bytes) -> dict[str, Any]:
    """Return the fields of a form of several parts, of which one may be a file."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    whole = Request(request.scope, receive)
    limits = {"max_files": 1, "max_fields": _MAX_FIELDS, "max_part_size": len(body) + 1}
    async with whole.form(**limits) as form:
        fields: list[tuple[str, Any]] = [
            (name, (value.filename or "", await value.read()))
            if isinstance(value, UploadFile)
            else (name, value)
            for name, value in form.multi_items()
        ]
    if all(isinstance(value, str) for _, value in fields):
        try:
            body.decode()
        except UnicodeDecodeError:
            raise HTTPException(400, "the form is not UTF-8: send text in UTF-8") from None
    return _gathered(fields)


def _gathered(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a form; its texts are several `q`, several `q[]`, or a list in JSON."""
    texts = [pair for pair in pairs if _TEXT.fullmatch(pair[0])]
    fields = _once(pair for pair in pairs if not _TEXT.fullmatch(pair[0]))
    match texts:
        case []:
            return fields
        case [("q", text)]:
            return fields | {"q": _as_list(text)}
    return fields | {"q": [text for _, text in texts]}


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return fields; raise HTTPException if one is given twice."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            shown = name[:_MAX_CODE].encode(errors="replace").decode()
            raise HTTPException(400, f"{shown} is given more than once: give it once")
        fields[name] = value
    return fields


def file_of(
    fields: Fields, config: ServeConfig, pairs: Iterable[tuple[str, str]]
) -> tuple[str, TranslationRequest]:
    """Return the name of the uploaded file of a request, and the request for its translation."""
    source, target = (_language(fields, side, pairs) for side in ("source", "target"))
    file = fields.get("file")
    if not isinstance(file, tuple) or not file[0]:
        raise HTTPException(400, f"file is missing: send it in a form of type {_MULTIPART}")
    path = PurePath(file[0].replace("\\", "/"))
    text_format = FILE_FORMATS.get(path.suffix.lower())
    if text_format is None:
        raise HTTPException(
            400, f"the name of the file must end with {', '.join(FILE_FORMATS)}: convert the file"
        )
    try:
        text = file[1].decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the file is not UTF-8: convert it") from None
    _check("the file", [text], config.max_characters)
    return path.name, TranslationRequest(
        texts=[text],
        format=text_format,
        is_list=False,
        source=source,
        target=target,
        terms=_terms(fields, config),
    )


def check_key(fields: Fields, key_digest: bytes | None) -> None:
    """Raise HTTPException unless a request has the key with this digest, if there is one."""
    if key_digest is None:
        return
    given = fields.get("api_key")
    if not isinstance(given, str) or not given:
        raise HTTPException(403, "this server needs a key: send it as api_key")
    if not hmac.compare_digest(digest_of(given), key_digest):
        raise HTTPException(403, "the api_key is wrong")


def digest_of(key: str) -> bytes:
    """Return the digest of a key; comparing digests does not reveal the length of the key."""
    return sha256(key.encode(errors="surrogatepass")).digest()


def text_of(fields: Fields, config: ServeConfig) -> str:
    """Return the only text of a request."""
    texts, is_list = _texts(fields.get("q"), config.max_characters)
    if is_list:
        raise HTTPException(400, "q must be a single text")
    return texts[0]


def _texts(given: Any, max_characters: int) -> tuple[list[str], bool]:
    """Return the texts of `q`, and whether they are a list."""
    if given in (None, "", []):
        raise HTTPException(400, "q is missing: send a text, or a list of texts")
    texts: list[Any] = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in texts):
        raise HTTPException(400, "q must be a text, or a list of texts")
    _check("q", texts, max_characters)
    return texts, isinstance(given, list)


def _text(fields: Fields, name: str, max_characters: int) -> str:
    """Return the text of an optional field."""
    text = fields.get(name) or ""
    if not isinstance(text, str):
        raise HTTPException(400, f"{name} must be a text")
    _check(name, [text], max_characters)
    return text


def _terms(fields: Fields, config: ServeConfig) -> Terms:
    """Return the terms of the field `glossary`, an object, which forms have as JSON."""
    given = fields.get("glossary") or {}
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):
            given = json.loads(given, object_pairs_hook=_once)
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise HTTPException(
            400, 'glossary must be an object of terms with their translations, {"dog": "Hund"}'
        )
    _check("glossary", chain(*given.items()), config.max_characters)
    return tuple(given.items())


def _check(name: str, texts: Iterable[str], max_characters: int) -> None:
    """Raise HTTPException if texts are too long, or cannot be written in UTF-8."""
    texts = list(texts)
    num_characters = sum(max(1, len(text)) for text in texts)
    if num_characters > max_characters:
        raise HTTPException(
            413,
            f"{name} has {num_characters:,} characters, more than the {max_characters:,} allowed",
        )
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise HTTPException(
            400, f"{name} has half of a surrogate pair, which is not a character"
        ) from None


def _as_list(text: Any) -> Any:
    """Return the list of texts that a text is as JSON, or else the text."""
    if not isinstance(text, str) or not text.startswith("["):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_list = isinstance(found, list) and found and all(isinstance(each, str) for each in found)
    return found if is_list else text


def _language(fields: Fields, side: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Return the code of the language of a side, source or target, or "auto"."""
    code = fields.get(side) or ""
    if not isinstance(code, str):
        raise HTTPException(400, f'{side} must be the code of one language, such as "en"')
    code = code.strip()
    code = _OLDER_CODES.get(code.lower(), code)
    if not code:
        sources, targets = zip(*pairs, strict=True)
        codes = ", ".join(dict.fromkeys(["auto", *sources] if side == "source" else targets))
        raise HTTPException(400, f"{side} is missing: send the code of a language: {codes}")
    if len(code) > _MAX_CODE or not code.isascii() or not code.isprintable():
        raise HTTPException(400, f"{side} is not the code of a language, such as en")
    return code


def _number(fields: Fields, name: str) -> int:
    given = fields.get(name) or 0
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 10:
        given = int(given)
    if type(given) is not int or given < 0:
        raise HTTPException(400, f"{name} must be a whole number from 0 on")
    return given
