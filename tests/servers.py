"""Servers in threads for tests, with stand-ins for models."""

import contextlib
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib import error, request

from helpers import wait_until

from tfm.applications.serve.app import Service
from tfm.applications.serve.queue import TranslationQueue
from tfm.applications.serve.requests import digest_of
from tfm.applications.serve.served_models import Route
from tfm.applications.serve.server import new_server
from tfm.applications.serve.settings import ServeConfig
from tfm.config import SearchConfig
from tfm.errors import DataError
from tfm.features.documents.step import Sentences
from tfm.features.formats.step import Formats
from tfm.translation.steps import Output

DEFAULT = ServeConfig()
PAIR = {"source": "en", "target": "de"}


class Address(str):
    """The address of a server, with the ways to use it."""

    def post(self, path, fields):
        """Return status and answer of a request."""
        return self.send(path, json.dumps(fields).encode(), "application/json")

    def send(self, path, body=None, kind="", **headers):
        asked = request.Request(self + path, body, {"Content-Type": kind, **headers})
        try:
            with request.urlopen(asked, timeout=20) as answer:
                content = answer.read().decode()
                is_json = answer.headers["content-type"] == "application/json"
                return answer.status, json.loads(content) if is_json else content
        except error.HTTPError as refused:
            return refused.code, json.load(refused)

    def upload(self, name, content, headers=None, **fields):
        fields = {**PAIR, **fields}
        parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
        parts.append(f'name="file"; filename="{name}"\r\n\r\n'.encode() + content)
        form = b"--x\r\nContent-Disposition: form-data; "
        body = b"".join(form + part + b"\r\n" for part in parts) + b"--x--\r\n"
        kind = "multipart/form-data; boundary=x"
        return self.send("/translate_file", body, kind, **(headers or {}))

    def wait_for_waiting(self, number):
        wait_until(lambda: f'target="de"}} {number}' in self.send("/metrics")[1])

    def connect(self):
        return socket.create_connection(("127.0.0.1", int(self.rpartition(":")[2])), 20)


@contextlib.contextmanager
def serving():
    """Return a function that serves routes until the context ends, and returns the address."""
    servers = []

    def serve(routes, config=DEFAULT, key=None):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        digest = None if key is None else digest_of(key)
        server = new_server(Service(routes, config, digest), config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        servers.append((server, thread, listener))
        wait_until(lambda: server.started)
        address = Address(f"http://127.0.0.1:{listener.getsockname()[1]}")
        address.server = server
        return address

    try:
        yield serve
    finally:
        for server, thread, listener in servers:
            server.should_exit = server.force_exit = True
            thread.join()
            listener.close()


def stand_in(translate, config=DEFAULT):
    """A route whose translations a function computes, in a thread as those of models."""
    queue = TranslationQueue(
        translate,
        ThreadPoolExecutor(1),
        batch_characters=config.batch_characters,
        max_requests=config.max_requests,
    )
    info = SimpleNamespace(source="en", target="de", license="MIT")
    aligner = SimpleNamespace(settings={}, align_units=lambda sources, _: [[] for _ in sources])

    def steps(search, terms, format, source):  # noqa: A002
        formats = [] if format == "text" else [Formats(format, aligner)]
        return [*formats, Sentences(source, "de")]

    def pieces(source, target, tag):
        raise DataError("a stand-in has no attention")

    model = SimpleNamespace(
        engine="torch",
        pieces=pieces,
        has_glossary=False,
        name="stand-in",
        queue=queue,
        info=info,
        thread=ThreadPoolExecutor(1),
        steps=steps,
    )
    route = Route(model, "en", "de", SearchConfig())
    return {("en", "de"): route}


def translation(text):
    return Output(text, score=0.0, log_prob=0.0, pieces=("</s>",))


def upper(lines, config):
    return [[translation(line.upper())] * config.search.n_best for line in lines]
