"""tfm serve: models → an HTTP server, until it is stopped."""

import ipaddress
import logging
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import python_multipart  # noqa: F401 - starlette reads forms with it, and fails late without
import uvicorn

from tfm.applications.serve.app import Service
from tfm.applications.serve.requests import digest_of
from tfm.applications.serve.served_models import ServedModel, routes_of
from tfm.applications.serve.settings import ServeConfig
from tfm.config import InferenceConfig, Values
from tfm.disk.paths import existing_file
from tfm.errors import TfmError, UsageError
from tfm.reporting import say
from tfm.search.constraints import ban_file
from tfm.steps import StepsConfig
from tfm.text.languages import shown_languages

_BACKLOG = 1024  # connections that wait to be accepted


def serve(
    models: Sequence[Path],
    search: Values,
    *,
    config: ServeConfig,
    inference: InferenceConfig,
    steps: StepsConfig,
) -> None:
    """Serve models until SIGTERM or Ctrl-C; then answer the requests that have arrived.

    `search` replaces settings of the models' searches. Raises the errors of the command.
    """
    key_digest = _read_key(config)
    if steps.glossary is not None and len(models) > 1:
        raise UsageError(
            "glossary is for one direction of translation, but there are several models: serve "
            "each by itself"
        )
    if "ban" in search:
        search = {**search, "ban": ban_file(search["ban"])}
    with _bound_socket(config) as listener:
        loaded = [
            ServedModel(path, search, config=config, inference=inference, steps=steps)
            for path in models
        ]
        routes = routes_of(loaded)
        for model in loaded:
            if config.min_confidence is not None and model.info.calibration is None:
                raise UsageError(
                    f"{model.folder} has no confidence in its translations: calibrate it with tfm "
                    "average --calibrate, or leave out --min-confidence"
                )
            source, target = map(shown_languages, (model.info.source, model.info.target))
            say(f"serve: {model.folder} translates from {source} to {target} with {model.engine}")
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        if key_digest is None and not ipaddress.ip_address(host).is_loopback:
            say(f"warning: everybody who reaches {shown} can use it: set --api-key-file")
        server = new_server(Service(routes, config, key_digest), config)
        # uvicorn handles SIGTERM once it runs, and raises it again when all requests are answered.
        previous = signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        try:
            listener.listen(_BACKLOG)  # before the message, after which clients may connect
            say(f"serve: http://{shown}:{port} (Ctrl-C stops)")
            server.run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, previous)
    say("serve: stopped; all accepted requests were answered")


def new_server(service: Service, config: ServeConfig) -> uvicorn.Server:
    """Return a server for an application, with the limits of a config."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it logs malformed forms
    return uvicorn.Server(
        uvicorn.Config(
            service,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # malformed requests are no errors of the server
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            limit_concurrency=config.max_connections + 1,
            timeout_keep_alive=config.receive_seconds,
            timeout_graceful_shutdown=config.receive_seconds + config.answer_seconds,
        )
    )


def _bound_socket(config: ServeConfig) -> socket.socket:
    """Return a socket with the address of the server, which does not listen yet."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with ExitStack() as stack:
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            stack.pop_all()
    except OSError as error:
        raise TfmError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror}: choose another "
            "--host or --port"
        ) from error
    return listener


def _read_key(config: ServeConfig) -> bytes | None:
    """Return the digest of the key in a file; None without a file."""
    if config.api_key_file is None:
        return None
    path = existing_file(Path(config.api_key_file))
    try:
        key = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: write the key on one line") from error
    if not key:
        raise UsageError(f"{path} is empty: write the key on one line")
    return digest_of(key)
