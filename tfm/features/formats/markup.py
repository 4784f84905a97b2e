"""HTML and XML: which parts are text to translate, by a tokenizer that keeps offsets.

It reads tags as the HTML standard does (§13.2.5), also in XML, resolves no entity but those of
characters, and fetches nothing. What it cannot read is copied.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tfm.data.units import Span
from tfm.features.formats.blocks import Block, BlockBuilder, Mark, Quote
from tfm.reporting import say

_ATTRIBUTE = r"""[^\s/>=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+))?+"""
_TOKENS = r"""
    <!--(?:-?>|.*?--!?>|(?P<endless_comment>.*))
    | <!\[CDATA\[(?:.*?\]\]>|(?P<endless_cdata>.*))
    | <!(?i:doctype)[^\[>]*+(?:>|\[(?:.*?\]\s*+>|(?P<endless_doctype>.*)))
    | <\?(?:{instruction}(?:.*?\?>|(?P<endless_instruction>.*))|[^>]*+>)
    | <![^>]*+>
    | <(?P<slash>/?)(?P<name>{start}[^\s/>]*+)(?P<attributes>(?:[\s/=]++|{attribute})*+)>
    | <(?:[!?]|/?{start})(?P<endless_tag>.*)
"""  # what has no end lasts until that of the document; a search for another would be quadratic
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

# Elements within sentences; others, and br, end one.
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|map|mark|math|meter|"
    "output|progress|q|rb|rp|rt|ruby|s|samp|script|small|span|strike|strong|style|sub|sup|svg|time|"
    "tt|u|var|wbr"
)
_VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr")
_RAW = re.compile("iframe|noembed|noframes|script|style|textarea|xmp")  # without tags
_COPIED = re.compile(f"{_RAW.pattern}|code|kbd|math|pre|svg")
_LINKED = re.compile(r"((?:[^<]|<(?!/?a[\s/>])[^>]*+>){1,1000}+)</a[\s>]", re.IGNORECASE)
_TAG = re.compile("<[^>]*>")
# The whole text of a link: an address, a hashtag or a mention.
_NAME = re.compile(r"\s*(?:[a-z][a-z\d+.-]*://\S+|www\.\S+|[#@]\S*[^\W\d_]\S*)\s*", re.IGNORECASE)
_TRANSLATED_ATTRIBUTES = ("alt", "title", "placeholder", "aria-label")
# An element without an end tag, and the start of another one that ends it.
_IMPLIED_END = re.compile("li li|d[td] d[td]|t[dh] t[dh]|tr tr|option option")


class _Token(NamedTuple):
    kind: Literal["text", "start", "end", "empty", "other"]
    start: int
    end: int
    name: str = ""
    attributes: tuple[int, int] = (0, 0)  # where they are


@dataclass(eq=False, slots=True)
class _Element:
    """An element that has begun."""

    name: str
    start: int
    is_inline: bool
    mark: Mark | None = None  # of its start tag


def html_blocks(text: str) -> list[Block]:
    """Return the blocks of a page or a part of one in HTML."""
    return _Reader(text, is_xml=False).blocks()


def xml_blocks(text: str) -> list[Block]:
    """Return the blocks of a document in XML."""
    return _Reader(text, is_xml=True).blocks()


def _tokens(text: str, *, is_xml: bool) -> Iterator[_Token]:
    """Yield the tokens of a document, which are all of it."""
    pattern, at = _XML_TOKEN if is_xml else _HTML_TOKEN, 0
    while (found := pattern.search(text, at)) is not None:
        if at < found.start():
            yield _Token("text", at, found.start())
        at = found.end()
        token = _tag(found, is_xml=is_xml) if found["name"] else _Token("other", *found.span())
        if (found.lastgroup or "").startswith("endless"):
            line = text.count("\n", 0, found.start()) + 1
            say(f"warning: a tag in line {line:,} has no end: the text from there on is copied")
        yield token
        if not is_xml and token.kind == "start" and _RAW.fullmatch(token.name):
            end = re.compile(rf"</{token.name}(?=[\s/>])|\Z", re.IGNORECASE).search(text, at)
            if end is not None and at < end.start():
                yield _Token("other", at, end.start())
                at = end.start()
    if at < len(text):
        yield _Token("text", at, len(text))


def _tag(found: re.Match[str], *, is_xml: bool) -> _Token:
    name = found["name"] if is_xml else found["name"].lower()
    kind: Literal["start", "end", "empty"] = "end" if found["slash"] else "start"
    is_closed = found["attributes"].endswith("/") and (is_xml or name in ("svg", "math"))
    if kind == "start" and (is_closed or (_VOID.fullmatch(name) and not is_xml)):
        kind = "empty"
    return _Token(kind, found.start(), found.end(), name, found.span("attributes"))


def _inline_elements(text: str) -> list[bool]:
    """Return which elements of XML, by their start tags in order, are within sentences.

    These are the elements beside text and within such elements, but lists among them: those
    with several elements and no text beside them.
    """
    parents: list[int] = []
    has_text, num_children, open_elements = [False], [0], [0]
    for token in _tokens(text, is_xml=True):
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


class _Reader:
    """Reads the blocks of a document."""

    def __init__(self, text: str, *, is_xml: bool) -> None:
        self._text, self._is_xml = text, is_xml
        self._builder = BlockBuilder(text, is_xml=is_xml)
        self._open: list[_Element] = []
        self._num_open = Counter[str]()  # by name
        self._copied: _Element | None = None  # the outermost open element that is copied
        self._inline = iter(_inline_elements(text) if is_xml else ())

    def blocks(self) -> list[Block]:
        """Return the blocks."""
        for token in _tokens(self._text, is_xml=self._is_xml):
            if token.kind in ("start", "empty"):
                self._start(token)
            elif token.kind == "end":
                self._end(token)
            elif self._copied is None and token.kind == "text":
                self._builder.add_text(token.start, token.end)
            elif self._copied is None:
                self._builder.add_mark("point", token.start, token.end)
        while self._open:
            self._leave(len(self._text))
        self._builder.end_block()
        return self._builder.blocks

    def _start(self, token: _Token) -> None:
        is_inline = next(self._inline) if self._is_xml else bool(_INLINE.fullmatch(token.name))
        if self._open and not self._is_xml:
            last = self._open[-1].name
            if _IMPLIED_END.fullmatch(f"{last} {token.name}") or (last == "p" and not is_inline):
                self._leave(token.start)
        element = _Element(token.name, token.start, is_inline)
        is_translated = self._copied is None and self._begin(element, token)
        if token.kind == "start":
            self._open.append(element)
            self._num_open[token.name] += 1
            if self._copied is None and not is_translated:
                self._copied = element
        elif self._copied is None and not is_translated:
            self._add_copied(element, token.end)

    def _begin(self, element: _Element, token: _Token) -> bool:
        """Begin an element, and return whether its text is translated."""
        attributes = list(self._attributes(token))
        if self._is_copied(token.name, attributes) or self._shows_name(token):
            return False
        if not element.is_inline:
            self._builder.end_block()
        else:
            kind: Literal["point", "open"] = "point" if token.kind == "empty" else "open"
            element.mark = self._builder.add_mark(kind, token.start, token.end)
        for name, span, quote in attributes:
            if name in _TRANSLATED_ATTRIBUTES and not self._is_xml:
                self._builder.add_attribute(*span, quote)
        return True

    def _attributes(self, token: _Token) -> Iterator[tuple[str, Span, Quote]]:
        """Yield the name, the span of the value, and the quotes of each attribute with a value."""
        for found in _ONE_ATTRIBUTE.finditer(self._text, *token.attributes):
            quotes: dict[int, Quote] = {2: '"', 3: "'", 4: "unquoted"}
            for group, quote in quotes.items():
                if found[group] is not None:
                    yield found[1] if self._is_xml else found[1].lower(), found.span(group), quote

    def _is_copied(self, name: str, attributes: Sequence[tuple[str, Span, Quote]]) -> bool:
        for attribute, span, _ in attributes:
            value = self._text[slice(*span)].lower()
            if attribute in ("translate", "its:translate") and value == "no":
                return True
            if attribute == "class" and "notranslate" in value.split() and not self._is_xml:
                return True
        return not self._is_xml and _COPIED.fullmatch(name) is not None

    def _shows_name(self, token: _Token) -> bool:
        """Return whether a tag starts a link whose text is its address, a hashtag or a mention."""
        if self._is_xml or token.name != "a":
            return False
        found = _LINKED.match(self._text, token.end)
        return found is not None and _NAME.fullmatch(_TAG.sub("", found[1])) is not None

    def _end(self, token: _Token) -> None:
        if self._num_open[token.name]:
            while self._open[-1].name != token.name:
                self._leave(token.start)
            self._leave(token.end, token)
        elif self._copied is None:  # an end tag without its start
            if self._is_xml or bool(_INLINE.fullmatch(token.name)):
                self._builder.add_mark("point", token.start, token.end)
            else:
                self._builder.end_block()

    def _leave(self, end: int, tag: _Token | None = None) -> None:
        """Leave the last open element, whose end tag may be missing."""
        element = self._open.pop()
        self._num_open[element.name] -= 1
        if element is self._copied:
            self._copied = None
            self._add_copied(element, end)
        elif self._copied is None and not element.is_inline:
            self._builder.end_block()
        elif self._copied is None and tag is not None and element.mark is not None:
            mark = self._builder.add_mark("close", tag.start, tag.end)
            mark.partner, element.mark.partner = element.mark, mark

    def _add_copied(self, element: _Element, end: int) -> None:
        if element.is_inline:
            self._builder.add_mark("point", element.start, end)
        else:
            self._builder.end_block()
