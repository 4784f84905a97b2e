"""Reading the requests of the LibreTranslate protocol: JSON objects and forms, within limits."""

import asyncio
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from tfm.applications.serve.settings import ServeConfig

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MAX_FIELDS = 100
_MAX_CODE = 20  # characters of a language code

Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TranslationRequest:
    """A checked request for translations.

    Attributes:
        texts: The texts to translate.
        is_list: Whether the answer is a list, even of one text.
        source: Source language, or "auto".
        target: Target language.
        num_alternatives: Number of further translations of each text.
        wants_parts: Whether the answer has the sentences of the texts, as the page needs them.
        translation: A translation whose attention the page shows; None for the best one.
    """

    texts: list[str]
    is_list: bool
    source: str
    target: str
    num_alternatives: int
    wants_parts: bool
    translation: str | None

    @classmethod
    def from_fields(
        cls, fields: Fields, config: ServeConfig, pairs: Iterable[tuple[str, str]]
    ) -> "TranslationRequest":
        """Check the fields of a request to a server for pairs of languages.

        Raises:
            HTTPException: A field is missing, wrong or too long.
        """
        sources, targets = zip(*pairs, strict=True)
        limit, translation = config.max_characters, fields.get("translation")
        texts, is_list = _texts(fields.get("q"), limit)
        if fields.get("format") not in (None, "", "text"):
            raise HTTPException(400, 'format must be "text": this server does not read markup')
        return cls(
            texts=texts,
            is_list=is_list,
            source=_code(fields, "source", ["auto", *sources]),
            target=_code(fields, "target", targets),
            num_alternatives=_number(fields, "alternatives"),
            wants_parts=fields.get("parts") is True,
            translation=None if translation is None else _texts(translation, limit)[0][0],
        )


async def read_fields(request: Request, config: ServeConfig) -> Fields:
    """Return the fields of a JSON object or a form.

    Raises:
        HTTPException: The body is too large, arrives too slowly, or is neither JSON nor a form.
        ClientDisconnect: The client has closed the connection.
    """
    body = await _read_body(request, config)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        return await _read_form(request, body)
    if kind != "application/json":
        raise HTTPException(
            415, f"send application/json or {_FORMS[0]}: Content-Type says which it is"
        )
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return fields


async def _read_body(request: Request, config: ServeConfig) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(config.receive_seconds):
            async for part in request.stream():
                body += part
                if len(body) > config.max_body_bytes:
                    raise HTTPException(
                        413, f"the body has more than {config.max_body_bytes:,} bytes: send less"
                    )
    except TimeoutError:
        raise HTTPException(
            408, f"the request did not arrive within {config.receive_seconds:g} seconds"
        ) from None
    return bytes(body)


async def _read_form(request: Request, body: bytes) -> Fields:
    """Return the fields of a form, in which a list of texts is written as JSON."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    whole = Request(request.scope, receive)
    form = await whole.form(max_files=0, max_fields=_MAX_FIELDS, max_part_size=len(body) + 1)
    fields: dict[str, Any] = dict(form)
    if isinstance(text := fields.get("q"), str) and text.startswith("["):
        fields["q"] = _as_list(text)
    return fields


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
    """Return the only text of a request.

    Raises:
        HTTPException: The field `q` is missing, is not one text, or is too long.
    """
    texts, is_list = _texts(fields.get("q"), config.max_characters)
    if is_list:
        raise HTTPException(400, "q must be a single text")
    return texts[0]


def _texts(given: Any, max_characters: int) -> tuple[list[str], bool]:
    """Return the texts of `q`, and whether they are a list."""
    texts: list[Any] = given if isinstance(given, list) else [given]
    if not given or not all(isinstance(text, str) for text in texts):
        raise HTTPException(400, "q is missing: send a text, or a list of texts")
    num_characters = sum(max(1, len(text)) for text in texts)
    if num_characters > max_characters:
        raise HTTPException(
            413, f"q has {num_characters:,} characters, more than the {max_characters:,} allowed"
        )
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise HTTPException(
            400, "q has half of a surrogate pair, which is not a character"
        ) from None
    return texts, isinstance(given, list)


def _as_list(text: str) -> Any:
    """Return the list of texts that a text is as JSON, or else the text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_list = isinstance(found, list) and found and all(isinstance(each, str) for each in found)
    return found if is_list else text


def _code(fields: Fields, name: str, supported: Iterable[str]) -> str:
    code = fields.get(name)
    if not isinstance(code, str) or not code:
        codes = ", ".join(dict.fromkeys(supported))
        raise HTTPException(400, f"{name} is missing: send the code of a language: {codes}")
    if len(code) > _MAX_CODE or not code.isascii() or not code.isprintable():
        raise HTTPException(400, f"{name} is not the code of a language, such as en")
    return code


def _number(fields: Fields, name: str) -> int:
    given = fields.get(name) or 0
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 10:
        given = int(given)
    if type(given) is not int or given < 0:
        raise HTTPException(400, f"{name} must be a whole number from 0 on")
    return given
