"""The page of a server: one answer with its script and style, which may load nothing else."""

import base64
import hashlib
import re
from importlib import resources

from starlette.responses import HTMLResponse, Response


def page_response() -> Response:
    """Return the page, with a policy that lets only its own script and style run."""
    folder = resources.files("tfm.stages.serve")
    page = (folder / "page.html").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    page = page.replace("PAGE_SCRIPT", script)
    policy = [
        "default-src 'none'",
        f"script-src {_source(page, 'script')}",
        f"style-src {_source(page, 'style')}",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    headers = {
        "Content-Security-Policy": "; ".join(policy),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(page, headers=headers)


def _source(page: str, element: str) -> str:
    """Return the hash of the content of the only such element, as policies name it."""
    [content] = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
