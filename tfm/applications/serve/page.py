"""The page of a server."""

import base64
import hashlib
import re

from starlette.responses import HTMLResponse, Response

from tfm.pages import render


class Page:
    """The page, with a policy that lets only its own script and style run."""

    def __init__(self) -> None:
        page = _page()
        policy = [
            "default-src 'none'",
            f"script-src {_source(page, 'script')}",
            f"style-src {_source(page, 'style')}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'self'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
        self._headers = {
            "Content-Security-Policy": "; ".join(policy),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    def response(self, path: str) -> Response:
        """Return the page; the path by which clients reach it need not end with a slash."""
        return HTMLResponse(_page(path), headers=self._headers)


def _page(path: str = "") -> str:
    return render("applications/serve/page.html", title="Translate", path=path)


def _source(page: str, element: str) -> str:
    """Return the hash of the content of the only such element, as policies name it."""
    [content] = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
