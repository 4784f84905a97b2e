"""How formats write text: references such as &amp;, backslashes, and HTML hidden in XML."""

import html
import re
import unicodedata
from dataclasses import dataclass, replace
from functools import cached_property
from html.entities import html5
from typing import Literal

# Names of elements of HTML within sentences; other elements, and br, end a sentence.
INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|map|mark|math|meter|"
    "output|progress|q|rb|rp|rt|ruby|s|samp|script|small|span|strike|strong|style|sub|sup|svg|time|"
    "tt|u|var|wbr"
)
_BLOCK = re.compile(
    "article|body|blockquote|br|caption|center|d[dlt]|div|fig(caption|ure)|footer|h[1-6r]|head(er)?|"
    "html|li|main|nav|[ou]l|p|pre|section|t(able|body|[dhr]|head)"
)
# As in HTML, the semicolon may be missing.
_REFERENCE = r"&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[^\s<&#;]{1,32});?"
_NUMBER = re.compile(r"&#(?:0*([0-9]{1,7})|[xX]0*([0-9a-fA-F]{1,6}));?")
_C1_CONTROLS = range(0x80, 0xA0)  # in HTML, these numbers are other characters
_NOTHING = "(?!)"
# Tags of HTML, comments and references, by how their characters are written.
_HIDDEN = (
    r"{lt}(script|style)\b.*?(?:{lt}/\1\s*{gt}|\Z)|{lt}!--.*?(?:--{gt}|\Z)|"
    r"{lt}/?[a-zA-Z][\w-]*(?:\s(?:=\s*+(?:{quoted})|(?!{lt}|{gt})[^<])*+)?/?{gt}|"
    r"{amp}(?:#\w+|[a-zA-Z]\w*);"
)
_LT, _AMP = r"&(?:lt|#0*60|#[xX]0*3[cC]);", r"&(?:amp|#0*38|#[xX]0*26);"
_QUOTED = "\"[^\"<]*+\"|'[^'<]*+'"
_TAGS = {
    "": _NOTHING,
    "cdata": _HIDDEN.format(lt="<", gt=">", quoted=_QUOTED, amp="&"),
    "escaped": _HIDDEN.format(
        lt=_LT,
        gt="(?:>|&(?:gt|#0*62|#[xX]0*3[eE]);)",
        quoted=rf"{_QUOTED}|&quot;(?:(?!&quot;)[^<])*+&quot;|&apos;(?:(?!&apos;)[^<])*+&apos;",
        amp=_AMP,
    ),
}
_NAME, _COMMENT = (re.compile(f"(?:<|{_LT}){rest}") for rest in (r"(/?)([\w-]+)", "!"))
_ESCAPED_REFERENCE = re.compile(f"{_AMP}(?=[#a-zA-Z])")
VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr")
RAW = re.compile("iframe|noembed|noframes|script|style|textarea|xmp")  # without tags
COPIED = re.compile(f"{RAW.pattern}|code|kbd|math|pre|rp|rt|svg")
_WISH = re.compile(
    r"""\s(?:translate\s*=\s*["']?(yes|no)\b|class\s*=[^=]*\bnotranslate\b)""", re.IGNORECASE
)


@dataclass(frozen=True)
class Syntax:
    """How text is written in a format."""

    references: Literal["", "html", "xml"] = ""  # to characters
    tags: Literal["", "cdata", "escaped"] = ""  # how XML holds tags of HTML
    has_backslashes: bool = False  # the escapes of Android

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches tags, escapes and character references, which do not stand for themselves."""
        reference = _REFERENCE if self.references else _NOTHING
        backslash = (
            rf'\\(?:u[0-9a-fA-F]{{4}}|{reference}|.)|"' if self.has_backslashes else _NOTHING
        )
        return re.compile(f"{_TAGS[self.tags]}|{backslash}|{reference}", re.DOTALL)

    def of_content(self, text: str, *, is_cdata: bool) -> "Syntax":
        """Return how the whole text of an element is written, which may be HTML."""
        tags: Literal["cdata", "escaped"] = "cdata" if is_cdata else "escaped"
        hidden = (_NAME.match(found[0]) for found in re.finditer(_TAGS[tags], text, re.DOTALL))
        if any(not name or _is_html(name[2]) for name in hidden):
            return replace(self, references="html" if is_cdata else "xml", tags=tags)
        return replace(self, references="", tags=tags) if is_cdata else self

    def decode(self, raw: str) -> str | None:
        """Return the text of what `pattern` matched: a line break if it ends a sentence.

        None if it is copied, such as a tag, a control character or an invalid code point.
        """
        if raw == '"' or _COMMENT.match(raw):
            return None
        if raw.startswith("\\"):
            escape = {"n": "\n", "t": " "}.get(raw[1:], raw[1:])
            escape = f"&#x{escape[1:]};" if len(escape) == 5 and escape[0] == "u" else escape
            return _referenced(escape, is_xml=True) if escape.startswith("&") else escape
        if name := _NAME.match(raw):
            return "\n" if _BLOCK.fullmatch(name[2].lower()) else None
        if self.tags == "escaped" and _ESCAPED_REFERENCE.match(raw):
            return _referenced(_ESCAPED_REFERENCE.sub("&", raw), is_xml=False)
        return _referenced(raw, is_xml=self.references == "xml")

    def end_of(self, text: str, found: re.Match[str], end: int) -> int:
        """Return where something that `pattern` matched ends, with all of a copied element.

        Args:
            text: The document.
            found: The match.
            end: Where the text to read ends.
        """
        tag = _NAME.match(found[0]) if self.tags else None
        if not tag or tag[1] or found[1]:
            return found.end()
        name, wish = tag[2].lower(), _WISH.search(html.unescape(found[0]))
        is_copied = (wish[1] or "no").lower() == "no" if wish else COPIED.fullmatch(name)
        if not is_copied or VOID.fullmatch(name):
            return found.end()
        depth = 1
        for inner in self.pattern.finditer(text, found.end(), end):
            other = _NAME.match(inner[0])
            if other and other[2].lower() == name:
                depth += -1 if other[1] else 1
            if not depth:
                return inner.end()
        return end

    def encode(self, text: str) -> str:
        """Return a translation as it is written."""
        if self.has_backslashes:
            text = re.sub(r"""[\\'"]|^@|^\?(?=.)""", r"\\\g<0>", text)
        for _ in range(bool(self.references) + (self.tags == "escaped")):
            text = html.escape(text, quote=False)
        return text.replace("]]>", "]]]]><![CDATA[>") if self.tags == "cdata" else text


def _referenced(raw: str, *, is_xml: bool) -> str | None:
    """Return the text of a reference, or itself if it is none; None if it is copied."""
    if raw.startswith("&#"):
        number = _NUMBER.fullmatch(raw)
        code = int(number[1] or number[2], 10 if number[1] else 16) if number else -1
        if code < 0 or (is_xml and code in _C1_CONTROLS):
            return None
    elif is_xml and raw[1:] not in html5:
        return None
    text = html.unescape(raw)
    if text.isspace():
        return text if is_xml else " "
    is_control = unicodedata.category(text[:1] or "\0") == "Cc"
    return None if is_control or text == "\ufffd" else text


def _is_html(name: str) -> bool:
    return any(names.fullmatch(name.lower()) for names in (INLINE, _BLOCK))


PLAIN = Syntax()
HTML = Syntax("html")
XML = Syntax("xml")
