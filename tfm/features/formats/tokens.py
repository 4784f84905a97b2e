"""The tokens of HTML and XML: tags, text, and what is copied, by a tokenizer that keeps offsets.

It reads tags as the HTML standard does (§13.2.5), also in XML.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from tfm.features.formats.blocks import Quote
from tfm.features.formats.characters import RAW, VOID
from tfm.reporting import say
from tfm.text.units import Span

_ATTRIBUTE = r"""[^\s/>=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+))?+"""
_TOKENS = r"""
    <!--(?:-?>|.*?--!?>|(?P<endless_comment>.*))
    | <!\[CDATA\[(?:.*?\]\]>|(?P<endless_cdata>.*))
    | <!(?i:doctype)[^\[>]*+(?:>|\[(?:.*?\]\s*+>|(?P<endless_doctype>.*)))
    | <\?(?:{instruction}(?:.*?\?>|(?P<endless_instruction>.*))|[^>]*+>)
    | <![^>]*+>
    | <(?P<slash>/?)(?P<name>{start}[^\s/>]*+)(?P<attributes>(?:[\s/=]++|{attribute})*+)>
    | <(?:[!?]|/?{start})(?P<endless_tag>.*)
"""  # an unclosed tag extends to the end of the document; searching on would be quadratic
_FLAGS = re.DOTALL | re.VERBOSE | re.ASCII
_HTML_TOKEN = re.compile(
    _TOKENS.format(instruction="(?:php|=)", start="[A-Za-z]", attribute=_ATTRIBUTE), _FLAGS
)
_XML_TOKEN = re.compile(
    _TOKENS.format(instruction="", start=r"[A-Za-z_:\x80-\U0010ffff]", attribute=_ATTRIBUTE), _FLAGS
)
_ONE_ATTRIBUTE = re.compile(
    r"""([^\s/>=]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"'][^\s>]*+)))?+""", re.ASCII
)


class Token(NamedTuple):
    """A part of a document."""

    kind: Literal["text", "start", "end", "empty", "other"]
    start: int
    end: int
    name: str = ""
    attributes: tuple[int, int] = (0, 0)  # where they are


def attributes(text: str, token: Token) -> Iterator[tuple[str, Span, Quote]]:
    """Yield the name, the span of the value, and the quotes of each attribute with a value."""
    quotes: dict[int, Quote] = {2: '"', 3: "'", 4: "unquoted"}
    for found in _ONE_ATTRIBUTE.finditer(text, *token.attributes):
        for group, quote in quotes.items():
            if found[group] is not None:
                yield found[1], found.span(group), quote


def tag_of(text: str, token: Token) -> str:
    """Return a start tag as dialects match it."""
    values = ((name, text[slice(*span)].split()) for name, span, _ in attributes(text, token))
    written = "".join(f'{name}="{" ".join(value)}" ' for name, value in values)
    return f"{token.name.rpartition(':')[2]} {written}"


def tokens_of(text: str, *, is_xml: bool) -> Iterator[Token]:
    """Yield the tokens of a document; joined, they are the document."""
    pattern, at = _XML_TOKEN if is_xml else _HTML_TOKEN, 0
    while (found := pattern.search(text, at)) is not None:
        if at < found.start():
            yield Token("text", at, found.start())
        at = found.end()
        token = _tag(found, is_xml=is_xml) if found["name"] else Token("other", *found.span())
        if (found.lastgroup or "").startswith("endless"):
            line = text.count("\n", 0, found.start()) + 1
            say(f"warning: a tag in line {line:,} has no end: the text from there on is copied")
        yield token
        if not is_xml and token.kind == "start" and RAW.fullmatch(token.name):
            end = re.compile(rf"</{token.name}(?=[\s/>])|\Z", re.IGNORECASE).search(text, at)
            if end is not None and at < end.start():
                yield Token("other", at, end.start())
                at = end.start()
    if at < len(text):
        yield Token("text", at, len(text))


def text_between(text: str, *, is_xml: bool) -> str:
    """Return the text of a document without tags, comments, scripts and styles."""
    tokens = tokens_of(text, is_xml=is_xml)
    return " ".join(text[each.start : each.end] for each in tokens if each.kind == "text")


def _tag(found: re.Match[str], *, is_xml: bool) -> Token:
    name = found["name"] if is_xml else found["name"].lower()
    kind: Literal["start", "end", "empty"] = "end" if found["slash"] else "start"
    is_closed = found["attributes"].endswith("/") and (is_xml or name in ("svg", "math"))
    if kind == "start" and (is_closed or (VOID.fullmatch(name) and not is_xml)):
        kind = "empty"
    return Token(kind, found.start(), found.end(), name, found.span("attributes"))


def inline_elements(text: str, tokens: Iterable[Token]) -> list[bool]:
    """Return which elements of XML, by their start tags in order, are within sentences.

    These are the elements beside text and within such elements, without lists: elements that have
    several elements and no text.
    """
    parents: list[int] = []
    has_text, num_children, open_elements = [False], [0], [0]
    for token in tokens:
        if token.kind in ("start", "empty"):
            parents.append(open_elements[-1])
            num_children[open_elements[-1]] += 1
            has_text.append(False)
            num_children.append(0)
            if token.kind == "start":
                open_elements.append(len(parents))
        elif token.kind == "end" and len(open_elements) > 1:
            open_elements.pop()
        elif token.kind == "text" and not text[token.start : token.end].isspace():
            has_text[open_elements[-1]] = True
    inline = [False]
    for number, parent in enumerate(parents, start=1):
        is_list = not has_text[number] and num_children[number] > 1
        inline.append((inline[parent] or has_text[parent]) and not is_list)
    return inline[1:]
