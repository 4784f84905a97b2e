"""The public address of a server, from the headers of trusted proxies."""

import os
import re
from collections import defaultdict
from collections.abc import Mapping

from starlette.requests import Request
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_PORTS = {"http": "80", "https": "443"}  # that addresses leave out
_PORT = r"[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]"
_HOST = re.compile(rf"([\w.-]{{1,253}}|\[[\da-f:.]{{2,45}}\])(?::({_PORT}))?", re.A | re.I)
# Segments other than . and .., without escapes of control characters.
_PATH = re.compile(r"(?:/(?!\.\.?(?:/|$))(?:[\w.~-]|%[2-9a-f][\da-f])+)+", re.A | re.I)
_HEADERS = {name: f"x-forwarded-{name}" for name in ("proto", "host", "port", "prefix")}
_PAIR = re.compile(r'(?:^|;)\s*(proto|host)="?([^";\s]+)"?\s*(?=;|$)', re.I)


class Proxies:
    """The trusted proxies: the addresses in FORWARDED_ALLOW_IPS, as uvicorn reads them.

    The headers are X-Forwarded-Proto, -Host, -Port and -Prefix, or else Forwarded (RFC 7239). Of
    several values, the first counts: the outermost proxy wrote it. Prefixes are joined. Malformed
    values count as missing.
    """

    def __init__(self) -> None:
        addresses = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1")
        self._trusted = ProxyHeadersMiddleware(self, addresses).trusted_hosts  # type: ignore[arg-type]

    def url(self, request: Request) -> str:
        """Return the address of the page for the client of a request, without its last slash."""
        told, scope = self._told(request), request.scope
        scheme = told["proto"] if told["proto"] in _PORTS else scope["scheme"]
        server, number = scope["server"]
        own = f"[{server}]:{number}" if ":" in server else f"{server}:{number}"
        told_host = _HOST.fullmatch(told["host"])
        others = map(_HOST.fullmatch, (request.headers.get("host", ""), own))
        host, port = (told_host or next(filter(None, others))).groups()
        # Proxies that do not know the scheme tell the usual port of the other one.
        is_wrong = (scheme, told["port"]) in (("http", "443"), ("https", "80"))
        if re.fullmatch(_PORT, told["port"]) and not is_wrong and not (told_host and port):
            port = told["port"]
        address = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
        return f"{scheme}://{address}{self.path(request)}"

    def path(self, request: Request) -> str:
        """Return the path of the page, without its last slash; proxies have taken it off."""
        path = self._told(request)["prefix"]
        return (path if _PATH.fullmatch(path) else "") + str(request.scope.get("root_path", ""))

    def _told(self, request: Request) -> Mapping[str, str]:
        """Return the values that trusted proxies sent; a missing value is empty."""
        headers, client = request.headers, request.client
        if client is None or client.host not in self._trusted:
            return defaultdict(str)
        told = {
            name: [each.strip() for each in ",".join(headers.getlist(header)).split(",")]
            for name, header in _HEADERS.items()
        }
        found = _PAIR.findall(headers.get("forwarded", "").partition(",")[0])
        pairs = {name.lower(): value for name, value in found}
        first = {name: values[0] or pairs.get(name, "") for name, values in told.items()}
        prefix = "".join(each.removesuffix("/") for each in told["prefix"])
        return {**first, "proto": first["proto"].lower(), "prefix": prefix}
