"""The page of a server, which without JavaScript is a form."""

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from importlib import resources

from starlette.responses import HTMLResponse, Response

from tfm.data import languages


@dataclass(frozen=True)
class Page:
    """The page for pairs of languages.

    Attributes:
        pairs: Source and target of each direction of translation.
        needs_key: Whether requests need a key.
        chosen: The direction that the form has chosen.
        text: The text in the form.
        answer: Its translation, or what is wrong with it.
    """

    pairs: Iterable[tuple[str, str]]
    needs_key: bool
    chosen: str = ""
    text: str = ""
    answer: str = ""

    def answered(self, *, chosen: str, text: str, answer: str) -> "Page":
        """Return the page that answers its form."""
        return replace(self, chosen=chosen, text=text, answer=answer)

    def response(self, status: int = 200) -> Response:
        """Return the page, with a policy that lets only its own script and style run."""
        page = self._template.replace("PLAIN_FORM", self._form())
        policy = [
            "default-src 'none'",
            f"script-src {_source(self._template, 'script')}",
            f"style-src {_source(self._template, 'style')}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
        headers = {
            "Content-Security-Policy": "; ".join(policy),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        return HTMLResponse(page, status, headers)

    @cached_property
    def _template(self) -> str:
        folder = resources.files("tfm.applications.serve")
        page = (folder / "page.html").read_text(encoding="utf-8")
        return page.replace("PAGE_SCRIPT", (folder / "page.js").read_text(encoding="utf-8"))

    def _form(self) -> str:
        """Return the form for browsers without JavaScript, with the answer."""
        options = []
        for source, target in self.pairs:
            value = escape(f"{source} {target}")
            names = escape(f"{languages.name_of(source)} to {languages.name_of(target)}")
            selected = " selected" if value == escape(self.chosen) else ""
            options.append(f'<option value="{value}"{selected}>{names}</option>')
        key = '<p><label>API key <input name="api_key" type="password"></label></p>'
        return f"""<form method="post" action="plain">
<h1>Translate</h1>
<p><label>Languages <select name="pair">{"".join(options)}</select></label></p>
<p><label>Text<br><textarea name="q" rows="8" dir="auto">
{escape(self.text)}</textarea></label></p>
{key if self.needs_key else ""}<p><button>Translate</button></p>
<p id="answer" dir="auto" role="status">{escape(self.answer)}</p>
</form>"""


def _source(page: str, element: str) -> str:
    """Return the hash of the content of the only such element, as policies name it."""
    [content] = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
