"""The LibreTranslate protocol over HTTP, with a page."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as Endpoint
from starlette.types import Receive, Scope, Send

from tfm.applications.serve.files import TranslatedFiles
from tfm.applications.serve.metrics import MEDIA_TYPE, RequestMetrics, metric
from tfm.applications.serve.page import Page
from tfm.applications.serve.proxies import Proxies
from tfm.applications.serve.queue import TranslationQueue
from tfm.applications.serve.requests import (
    FILE_FORMATS,
    Fields,
    TranslationRequest,
    check_key,
    file_of,
    read_fields,
    text_of,
)
from tfm.applications.serve.served_models import Route
from tfm.applications.serve.settings import ServeConfig
from tfm.errors import DataError, TfmError, UsageError
from tfm.features.formats.tokens import text_between
from tfm.text import languages
from tfm.translation.steps import Output

Answer = TypeVar("Answer")
# A language with its probability in percent.
Detected = dict[str, Any]

_IDENTIFIED_CHARACTERS = 5_000  # more text does not change the result


class Service:
    """Answers requests with the models of a server; an ASGI application.

    Args:
        routes: How to translate each pair of languages; the first is the default of clients.
        config: Limits.
        key_digest: Digest of the key that requests must have; None without.
    """

    def __init__(
        self,
        routes: Mapping[tuple[str, str], Route],
        config: ServeConfig,
        key_digest: bytes | None = None,
    ) -> None:
        self._routes, self._config, self._key_digest = routes, config, key_digest
        self._codes = languages.common_codes(chain(*routes))  # as clients know them
        self._page, self._files, self._proxies = Page(), TranslatedFiles(), Proxies()
        endpoints = [
            Endpoint("/", self._show_page),
            Endpoint("/translate", self._translate, methods=["POST"]),
            Endpoint("/translate_file", self._translate_file, methods=["POST"]),
            Endpoint("/download_file/{key}/{name}", self._download_file),
            Endpoint("/explain", self._explain, methods=["POST"]),
            Endpoint("/detect", self._detect, methods=["POST"]),
            Endpoint("/languages", self._languages, methods=["GET", "POST"]),
            Endpoint("/frontend/settings", self._settings),
            Endpoint("/health", self._health),
            Endpoint("/metrics", self._metrics),
        ]
        errors = (HTTPException, TfmError, ClientDisconnect, Exception)
        app = Starlette(routes=endpoints, exception_handlers=dict.fromkeys(errors, _failed))
        answered = CORSMiddleware(app, config.cors, ["GET", "POST"], ["*"]) if config.cors else app
        self._requests = RequestMetrics(answered, [endpoint.path for endpoint in endpoints])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; clients may repeat slashes, or end a path with one."""
        if scope["type"] == "http":
            scope["path"] = re.sub("//+", "/", scope["path"]).rstrip("/") or "/"
        await self._requests(scope, receive, send)

    async def _show_page(self, request: Request) -> Response:
        return self._page.response(self._proxies.path(request))

    async def _translate(self, request: Request) -> Response:
        fields = await self._read_fields(request)
        asked = TranslationRequest.from_fields(fields, self._config, self._routes)
        routes, detected = await self._find_routes(asked)
        found = await self._answered(request, routes, lambda: _translations(asked, routes))
        best = [each for each, *_ in found]
        is_sure = [self._is_sure(each) for each in best]
        confidences = [_confidence(each) for each in best]
        missing_terms = [_missing_terms(each) for each in best]
        repeated = [_repeated(each) for each in best]
        rows = zip(asked.texts, best, is_sure, strict=True)
        answers: dict[str, Sequence[Any] | None] = {
            "translatedText": [each.text if sure else text for text, each, sure in rows],
            "confidence": None if set(confidences) == {None} else confidences,
            "isTranslated": None if self._config.min_confidence is None else is_sure,
            "alternatives": [[each.text for each in others] for _, *others in found]
            if asked.num_alternatives
            else None,
            "detectedLanguage": detected,
            "missingTerms": missing_terms if asked.terms or any(missing_terms) else None,
            "repeated": repeated if any(repeated) else None,
            "parts": [_parts(each) for each in best] if asked.wants_parts else None,
        }
        return JSONResponse(
            {
                name: values if asked.is_list else values[0]
                for name, values in answers.items()
                if values is not None
            }
        )

    def _is_sure(self, translation: Output) -> bool:
        """Return whether the confidence in a translation, if it has one, is not too low."""
        confidence, least = _confidence(translation), self._config.min_confidence
        return confidence is None or least is None or confidence >= least

    async def _translate_file(self, request: Request) -> Response:
        fields = await self._read_fields(request)
        name, asked = file_of(fields, self._config, self._routes)
        routes, _ = await self._find_routes(asked)
        [[best]] = await self._answered(request, routes, lambda: _translations(asked, routes))
        stem, dot, ending = name.rpartition(".")
        name = f"{stem}_{asked.target}{dot}{ending}"
        key = self._files.add(name, best.text if self._is_sure(best) else asked.texts[0])
        url = f"{self._proxies.url(request)}/download_file/{key}/{quote(name)}"
        return JSONResponse({"translatedFileUrl": url})

    async def _download_file(self, request: Request) -> Response:
        answer = self._files.download(request.path_params["key"])
        if answer is None:
            raise HTTPException(
                404, "there is no such file, or it is no longer kept: send it again"
            )
        return answer

    async def _explain(self, request: Request) -> Response:
        """Answer with the n-best translations of a sentence, and the attention of one of them."""
        fields = await self._read_fields(request)
        asked = TranslationRequest.from_fields(fields, self._config, self._routes)
        [route, *others], _ = await self._find_routes(asked)
        if others:
            raise HTTPException(400, "q must be a single text")
        if route is None:
            raise HTTPException(400, "source and target are the same language")
        sentences = await asyncio.to_thread(route.sentences, asked.texts[0])
        if not sentences:
            raise HTTPException(400, "q has no letters: send a sentence")
        sentence = sentences[0]
        given = asked.translation or asked.prefix or ""
        # What is too long is refused before a search.
        await asyncio.to_thread(route.model.pieces, sentence, given, route.search.tag)
        found, maps = await self._answered(request, [route], lambda: route.explain(sentence, asked))
        return JSONResponse(
            {
                "translations": [
                    {"text": each.text, "score": each.score, "confidence": each.confidence}
                    for each in found
                ],
                "source": maps.keys,
                "target": maps.queries,
                "weights": maps.thousandths(),
            }
        )

    async def _read_fields(self, request: Request) -> Fields:
        """Return the fields of a request, which has the key of the server."""
        fields = await read_fields(request, self._config)
        check_key(fields, self._key_digest)
        return fields

    async def _answered(
        self,
        request: Request,
        routes: Iterable[Route | None],
        work: Callable[[], Awaitable[Answer]],
    ) -> Answer:
        """Return the result of some work, which is dropped if the client leaves or time is up.

        Meanwhile, the request has a place in the queues of the routes.
        """
        seconds = self._config.answer_seconds
        with ExitStack() as stack:
            for queue in {route.model.queue for route in routes if route is not None}:
                stack.enter_context(queue.place())
            task = asyncio.ensure_future(work())
            stack.callback(task.cancel)
            gone = asyncio.ensure_future(_disconnect(request))
            stack.callback(gone.cancel)
            await asyncio.wait((task, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise ClientDisconnect
            raise HTTPException(504, f"not translated within {seconds:g} seconds: send less text")

    async def _find_routes(
        self, asked: TranslationRequest
    ) -> tuple[list[Route | None], list[Detected] | None]:
        """Return the routes of texts between two languages, and their languages if it is "auto".

        There is no route from a language to itself: text stays as it is.
        """
        target, texts = asked.target, asked.texts
        if asked.source.lower() != "auto":
            return [self._route(asked.source, target)] * len(texts), None
        find = languages.closest
        sources = [start for start, end in self._routes if find(target, [end])]
        if not sources:
            raise self._unknown_pair(asked.source, target)
        own = find(target, self._codes)
        among = [self._codes[code] for code in [*sources, *([] if own is None else [own])]]
        detected = await asyncio.to_thread(_detected, asked, among)
        return [self._route(each["language"], target) for each in detected], detected

    async def _detect(self, request: Request) -> Response:
        fields = await self._read_fields(request)
        text = text_of(fields, self._config)
        best, *others = await asyncio.to_thread(_identified, text, self._codes.values())
        return JSONResponse([best, *(each for each in others if each["confidence"] >= 1)])

    def _route(self, source: str, target: str) -> Route | None:
        """Return the route between two languages, by any of their codes; None if they are one."""
        find = languages.closest
        to = find(target, [each for start, each in self._routes if find(source, [start])])
        start = find(source, [start for start, end in self._routes if end == to])
        if to is None or start is None:
            if languages.are_same(source, target) and find(source, self._codes):
                return None
            raise self._unknown_pair(source, target)
        return self._routes[start, to]

    def _unknown_pair(self, source: str, target: str) -> HTTPException:
        pairs = ", ".join(f"{source} to {target}" for source, target in self._routes)
        return HTTPException(
            400, f"this server does not translate from {source} to {target}, only from {pairs}"
        )

    async def _languages(self, _: Request) -> Response:
        targets: dict[str, dict[str, None]] = {}
        for pair in self._routes:
            source, target = (self._codes[code] for code in pair)
            targets.setdefault(source, {})[target] = None
            targets.setdefault(target, {})
        return JSONResponse(
            [
                {"code": code, "name": languages.name_of(code), "targets": [*found]}
                for code, found in targets.items()
            ]
        )

    async def _settings(self, _: Request) -> Response:
        source, target = (self._codes[code] for code in next(iter(self._routes)))
        shown = {
            side: {"code": code, "name": languages.name_of(code)}
            for side, code in (("source", source), ("target", target))
        }
        models = [
            {
                "source": route.source,
                "target": route.target,
                "name": route.model.name,
                "license": route.model.info.license,
            }
            for route in self._routes.values()
        ]
        return JSONResponse(
            {
                "detection": languages.can_identify(),
                "apiKeys": self._key_digest is not None,
                "charLimit": self._config.max_characters,
                "filesTranslation": True,
                "frontendTimeout": 500,  # milliseconds without typing before a page translates
                "keyRequired": self._key_digest is not None,
                "language": shown,
                "models": models,
                "suggestions": False,
                "supportedFilesFormat": [*FILE_FORMATS],
            }
        )

    async def _health(self, _: Request) -> Response:
        engines = [
            {"source": route.source, "target": route.target, "engine": str(route.model.engine)}
            for route in self._routes.values()
        ]
        return JSONResponse({"status": "ok", "engines": engines})

    async def _metrics(self, _: Request) -> Response:
        queues = {
            f'{{source="{model.info.source}",target="{model.info.target}"}}': model.queue
            for model in (route.model for route in self._routes.values())
        }
        metrics: Sequence[tuple[str, str, Callable[[TranslationQueue], int]]] = (
            ("tfm_waiting_requests", "Requests that wait or are translated.", len),
            ("tfm_batches_total", "Translated batches.", attrgetter("num_batches")),
            ("tfm_lines_total", "Translated sentences.", attrgetter("num_lines")),
        )
        lines = [*self._requests.lines()]
        for name, meaning, value in metrics:
            lines += metric(name, meaning, {labels: value(each) for labels, each in queues.items()})
        return PlainTextResponse("\n".join([*lines, ""]), media_type=MEDIA_TYPE)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _translations(
    asked: TranslationRequest, routes: Sequence[Route | None]
) -> list[list[Output]]:
    """Return the translations of each text; without a route, it stays as it is."""
    found = [[_untranslated(text)] for text in asked.texts]
    for route in dict.fromkeys(filter(None, routes)):
        if asked.num_alternatives >= route.search.beam_size:
            raise HTTPException(
                400, f"alternatives must be at most {route.search.beam_size - 1} on this server"
            )
        own = [index for index, each in enumerate(routes) if each is route]
        translated = await route.translate([asked.texts[index] for index in own], asked)
        for index, translations in zip(own, translated, strict=True):
            found[index] = translations
    return found


def _confidence(translation: Output) -> float | None:
    """Return the lowest confidence of the sentences of a translation; None if none has one."""
    found = [part.confidence for _, part in translation.parts if part.confidence is not None]
    return round(min(found), 3) if found else None


def _missing_terms(translation: Output) -> list[tuple[str, str]]:
    """Return the glossary terms whose translations are missing in a text."""
    return [term for _, part in translation.parts for term in part.missing_terms or ()]


def _repeated(translation: Output) -> list[str]:
    """Return what the sentences of a translation repeat again and again."""
    return [part.repeated for _, part in translation.parts if part.repeated is not None]


def _untranslated(text: str) -> Output:
    """Return a text that is already in the target language."""
    kept = Output(text, score=0.0, log_prob=0.0)
    return replace(kept, parts=((text, kept),))


def _parts(translation: Output) -> list[dict[str, Any]]:
    """Return a translation in parts as the page reads it."""
    return [
        {"source": source, "translation": part.text, "is_sentence": bool(part.pieces)}
        for source, part in translation.parts
    ]


def _detected(asked: TranslationRequest, codes: Iterable[str]) -> list[Detected]:
    """Return the language of each text; the language of all texts together breaks ties."""
    texts: Sequence[str] = asked.texts
    if asked.format in ("html", "xml"):
        texts = [text_between(text, is_xml=asked.format == "xml") for text in texts]
    ranked = [each["language"] for each in _identified("\n".join(texts), codes)]
    languages_of = {text: _identified(text, ranked)[0] for text in {*texts}}
    return [languages_of[text] for text in texts]


def _identified(text: str, codes: Iterable[str]) -> list[Detected]:
    """Return languages with the probability in percent that a text is in each, best first."""
    start = languages.with_ascii_digits(text[:_IDENTIFIED_CHARACTERS])
    ranked = languages.language_identifier('source "auto"').rank(start)
    known = {languages.base_language(label): share for label, share in ranked}
    shares = {code: known.get(languages.identified_as(code), 0.0) for code in codes}
    return [
        {"confidence": round(100 * share, 1), "language": code}
        for code, share in sorted(shares.items(), key=lambda each: -each[1])
    ]


async def _failed(_: Request, error: Exception) -> Response:
    """Return the answer of a request that was refused or has failed."""
    headers: Mapping[str, str] | None = None
    match error:
        case ClientDisconnect():
            return Response(status_code=499)  # nobody receives it; servers commonly count it so
        case HTTPException():
            status, message, headers = error.status_code, error.detail, error.headers
        case DataError() | UsageError():
            status, message = 400, str(error)
        case TfmError():
            status, message = 500, str(error)
        case _:
            status, message = 500, "the server has failed; its log says how"
    return JSONResponse({"error": message}, status_code=status, headers=headers)
