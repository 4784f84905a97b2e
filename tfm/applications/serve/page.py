"""The page of a server."""

import base64
import hashlib
import re
from html import escape
from importlib import resources

from starlette.responses import HTMLResponse, Response


class Page:
    """The page, which is read once, with a policy that lets only its own script and style run."""

    def __init__(self) -> None:
        folder = resources.files("tfm.applications.serve")
        page = (folder / "page.html").read_text(encoding="utf-8")
        script = (folder / "page.js").read_text(encoding="utf-8")
        self._page = page.replace("PAGE_SCRIPT", script)
        policy = [
            "default-src 'none'",
            f"script-src {_source(self._page, 'script')}",
            f"style-src {_source(self._page, 'style')}",
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
        base = f'<base href="{escape(path)}/">' if path else ""  # of its links, which are relative
        page = self._page.replace("<head>", f"<head>{base}", 1)
        return HTMLResponse(page, headers=self._headers)


def _source(page: str, element: str) -> str:
    """Return the hash of the content of the only such element, as policies name it."""
    [content] = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
