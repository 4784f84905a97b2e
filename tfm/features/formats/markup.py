"""HTML and XML: which parts are text to translate.

It resolves only entities of characters, and fetches nothing. What it cannot read is copied.
Dialects of XML that have elements for translations are read twice: these elements get the source
first.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

from tfm.features.formats.blocks import Block, BlockBuilder, Mark
from tfm.features.formats.characters import COPIED, HTML, INLINE, RAW
from tfm.features.formats.dialects import ALL, Dialect, dialect_of
from tfm.features.formats.tokens import Token, attributes, inline_elements, tag_of, tokens_of
from tfm.text.units import Span

_LINKED = re.compile(r"((?:[^<]|<(?!/?a[\s/>])[^>]*+>){1,1000}+)</a[\s>]", re.IGNORECASE)
_TAG = re.compile("<[^>]*>")
# The whole text of a link: an address, a hashtag or a mention.
_NAME = re.compile(r"\s*(?:[a-z][a-z\d+.-]*://\S+|www\.\S+|[#@]\S*[^\W\d_]\S*)\s*", re.IGNORECASE)
# Attributes that are translated, with the start of their tags as dialects match them.
_TRANSLATED_ATTRIBUTES = {
    **dict.fromkeys(("alt", "title", "placeholder", "aria-label", "label"), re.compile("")),
    "value": re.compile(r'input (?:.* )?type="(?:button|submit|reset)"', re.IGNORECASE),
    "content": re.compile(
        r'meta (?:.* )?(?:name|property)="(?:og:|twitter:)?(?:description|title)"', re.IGNORECASE
    ),
}
# Pairs of an element without an end tag, and an element whose start tag ends it.
_IMPLIED_END = re.compile("li li|d[td] d[td]|t[dh] t[dh]|tr tr|option option")
# In XML, they end a line.
_BREAK = re.compile(r'(?:br|cb|hr|lb|line-?break|newline|pb|tab) |x [^>]*ctype="lb"', re.IGNORECASE)
_TO_TRANSLATE = re.compile(
    r'(?:target|segment) [^>]*(?<=\s)state="(?:new|needs-translation|needs-l10n|initial)"'
)
# What a person has translated, although it is the source.
_DONE = re.compile(
    r'translation (?!.*type="unfinished")|(?:target|segment|trans-unit) .*(?:approved="yes"|'
    r'state="(?:final|reviewed|signed-off|translated)")'
)
_MARKUP = re.compile(r"<!--.*?-->|<!\[CDATA\[|\]\]>|<[^>]*>", re.DOTALL)
_MAX_DOCTYPE = 500
# A declared encoding that is not UTF-8, in which all text is read and written.
_ENCODING = re.compile(
    r"""(<\?xml\s[^>]*?\sencoding\s*=\s*["']|<meta\s[^>]*?\bcharset\s*=\s*["']?)(?!utf-8\b)[\w.:-]+""",
    re.IGNORECASE,
)
_MAX_BEFORE_ENCODING = 1_024
_HTML_PAGE = Dialect(syntax=HTML)
_State = Literal["yes", "no", "not yet"]


@dataclass(eq=False, slots=True)
class _Element:
    """An element that has begun."""

    name: str
    start: int
    content: int  # where it starts
    tag: str  # its start tag, as dialects match it
    is_inline: bool
    state: _State  # whether its text is translated; not yet, if only elements in it have text
    keeps_lines: bool
    mark: Mark | None = None  # of its start tag
    outer: BlockBuilder | None = None  # of the text around the copied element that it is in

    @property
    def local_name(self) -> str:
        return self.name.rpartition(":")[2]


class _Copy(NamedTuple):
    """A part of a document that is written to another place: a source, as its translation."""

    start: int
    end: int  # of the replaced part of the document
    source: Span
    before: str = ""
    after: str = ""


def html_blocks(text: str) -> tuple[str, list[Block]]:
    """Return a page or a part of one in HTML, which is declared as UTF-8, and its blocks."""
    text = _declared_as_utf8(text)
    return text, _Reader(text, _HTML_PAGE, tokens_of(text, is_xml=False)).blocks()


def xml_blocks(text: str) -> tuple[str, list[Block]]:
    """Return a document in XML, and its blocks.

    It is declared as UTF-8, and has sources in place of missing translations.
    """
    text = _declared_as_utf8(text)
    tokens = list(tokens_of(text, is_xml=True))
    dialect = dialect_of(_head(text, tokens))
    reader = _Reader(text, dialect, tokens)
    blocks = reader.blocks()
    if not dialect.target:
        return text, blocks
    text, places = _copied(text, reader.copies)
    dialect = replace(dialect, text=dialect.target, target="")
    return text, _Reader(text, dialect, list(tokens_of(text, is_xml=True)), places).blocks()


def _declared_as_utf8(text: str) -> str:
    """Return a document whose declared encoding, if any, is replaced by UTF-8."""
    head, rest = text[:_MAX_BEFORE_ENCODING], text[_MAX_BEFORE_ENCODING:]
    return _ENCODING.sub(r"\1UTF-8", head) + rest


def _head(text: str, tokens: Sequence[Token]) -> str:
    """Return the start of a document, as dialects match it."""
    starts = (token for token in tokens if token.kind in ("start", "empty"))
    tags = [tag_of(text, token) for token in islice(starts, 2)]
    others = (text[token.start : token.end] for token in tokens if token.kind == "other")
    doctype = next((each for each in others if each[:9].lower() == "<!doctype"), "")
    return "\n".join([doctype[:_MAX_DOCTYPE], "<" + tags[0] if tags else "", *tags[1:], ""])


def _copied(text: str, copies: Iterable[_Copy]) -> tuple[str, Container[int]]:
    """Return a text with copies of its parts, and where they start."""
    parts, at, size, places = list[str](), 0, 0, set[int]()
    for copy in sorted(copies):
        parts += [text[at : copy.start], copy.before]
        size += copy.start - at + len(copy.before)
        places.add(size)
        parts += [text[slice(*copy.source)], copy.after]
        size += copy.source[1] - copy.source[0] + len(copy.after)
        at = copy.end
    return "".join([*parts, text[at:]]), places


class _Reader:
    """Reads the blocks of a document.

    Args:
        text: The text of the document.
        dialect: Its dialect, if it is in XML.
        tokens: Its tokens.
        places: Where the contents of elements start that have text; None for all of the dialect.
    """

    def __init__(
        self,
        text: str,
        dialect: Dialect,
        tokens: Iterable[Token],
        places: Container[int] | None = None,
    ) -> None:
        self._text, self._dialect, self._tokens, self._places = text, dialect, tokens, places
        self._is_xml = dialect is not _HTML_PAGE
        self._inline = iter(inline_elements(text, tokens) if self._is_xml else ())
        self._builder = BlockBuilder(text, dialect.syntax)
        state: _State = "yes" if dialect.text == ALL else "not yet"
        self._outside = _Element("", 0, 0, "", False, state, dialect.keeps_lines)
        self._open: list[_Element] = []
        self._num_open = Counter[str]()  # by name
        self._key = ""  # of the next element
        self._source: tuple[_Element, _Copy] | None = None  # its parent, and a copy beside it
        self._has_target = False
        self.copies: list[_Copy] = []  # of sources, where translations are missing

    def blocks(self) -> list[Block]:
        """Return the blocks."""
        for token in self._tokens:
            if token.kind in ("start", "empty"):
                self._start(token)
            elif token.kind == "end":
                self._end(token)
            elif self._innermost.state == "yes":
                self._add_content(token)
        while self._open:
            self._leave(len(self._text))
        self._builder.end_block()
        return self._builder.blocks

    @property
    def _innermost(self) -> _Element:
        return self._open[-1] if self._open else self._outside

    def _start(self, token: Token) -> None:
        tag = tag_of(self._text, token) if self._is_xml else ""
        is_inline = self._is_inline(token, tag)
        if self._open and not self._is_xml:
            last = self._open[-1].name
            if _IMPLIED_END.fullmatch(f"{last} {token.name}") or (last == "p" and not is_inline):
                self._leave(token.start)
        parent = self._innermost
        state = self._state(token, tag, parent)
        keeps_lines = parent.keeps_lines or (
            'xml:space="preserve"' in tag and self._dialect.text != ALL
        )
        element = _Element(token.name, token.start, token.end, tag, is_inline, state, keeps_lines)
        if state == "yes":
            self._begin(element, token, parent)
        if token.kind == "start":
            self._open.append(element)
            self._num_open[token.name] += 1
        elif parent.state == "yes" and state == "no":
            self._add_copied(element, token.end)
        elif self._source is not None:
            before = self._text[token.start : token.end - 2].rstrip() + ">"
            self._add_target(element, (token.start, token.end), before, f"</{token.name}>")

    def _is_inline(self, token: Token, tag: str) -> bool:
        if not self._is_xml:
            return bool(INLINE.fullmatch(token.name))
        is_inline = next(self._inline) or bool(re.match(self._dialect.inline, tag))
        return is_inline and not _BREAK.match(tag)

    def _state(self, token: Token, tag: str, parent: _Element) -> _State:
        """Return whether the text of an element is translated."""
        wish = self._wish(token)
        key, self._key = self._key, ""
        if wish == "no" or (parent.state == "no" and wish != "yes"):
            return "no"
        if not self._is_xml:
            is_code = wish != "yes" and (COPIED.fullmatch(token.name) or self._shows_name(token))
            return "no" if is_code or RAW.fullmatch(token.name) else "yes"
        content = self._text[token.end : self._text.find("<", token.end)]
        if re.match(self._dialect.copied, f"{key}{tag}>{content}"):
            return "no"
        if parent.state == "yes":
            return "yes"
        path = f"{parent.local_name}/{token.name.rpartition(':')[2]}"
        is_place = self._places is None or token.end in self._places
        return "yes" if is_place and re.fullmatch(self._dialect.text, path) else "not yet"

    def _wish(self, token: Token) -> Literal["yes", "no", ""]:
        """Return whether the attributes of an element ask to translate it, or not to."""
        for name, span, _ in attributes(self._text, token):
            value = self._text[slice(*span)].lower().split()
            if name.lower().rpartition(":")[2] == "translate" and value in (["no"], ["yes"], []):
                return "no" if value == ["no"] else "yes"
            if not self._is_xml and name.lower() == "class" and "notranslate" in value:
                return "no"
            if not self._is_xml and name.lower() == "class" and "translate" in value:
                return "yes"
        return ""

    def _begin(self, element: _Element, token: Token, parent: _Element) -> None:
        """Begin an element whose text is translated."""
        element.is_inline &= parent.state == "yes"
        if parent.state == "no":
            if token.kind == "start":
                element.outer, depth = self._builder, self._builder.depth + 1
                self._builder = BlockBuilder(self._text, self._dialect.syntax, depth=depth)
        elif not element.is_inline:
            self._builder.end_block()
        else:
            kind: Literal["point", "open"] = "point" if token.kind == "empty" else "open"
            element.mark = self._builder.add_mark(kind, token.start, token.end)
        if not self._is_xml:
            tag = tag_of(self._text, token)
            names = {name for name, start in _TRANSLATED_ATTRIBUTES.items() if start.match(tag)}
            for name, span, quote in attributes(self._text, token):
                if name.lower() in names:
                    self._builder.add_attribute(*span, quote)

    def _shows_name(self, token: Token) -> bool:
        """Return whether a tag starts a link whose text is its address, a hashtag or a mention."""
        found = _LINKED.match(self._text, token.end) if token.name == "a" else None
        return found is not None and _NAME.fullmatch(_TAG.sub("", found[1])) is not None

    def _add_content(self, token: Token) -> None:
        """Add text, or what is copied, such as a comment."""
        start, end, builder = token.start, token.end, self._builder
        is_cdata, is_text = self._text.startswith("<![CDATA[", start), token.kind == "text"
        element = self._innermost
        is_all = element.content == start and self._text.startswith("</", end) and not element.mark
        builder.keeps_lines = element.keeps_lines
        if self._dialect.text != ALL and (is_cdata or (is_text and is_all)):
            if is_cdata:
                start, end = start + len("<![CDATA["), max(start, end - len("]]>"))
                builder.end_block()
            content = self._text[start:end]
            builder.syntax = self._dialect.syntax.of_content(content, is_cdata=is_cdata)
            builder.add_text(start, end)
            builder.end_block()
            builder.syntax = self._dialect.syntax
        elif is_text:
            builder.add_text(start, end)
        else:
            builder.add_mark("point", start, end)

    def _end(self, token: Token) -> None:
        if self._num_open[token.name]:
            while self._open[-1].name != token.name:
                self._leave(token.start)
            self._leave(token.end, token)
        elif self._innermost.state == "yes":  # an end tag without its start
            if self._is_xml or bool(INLINE.fullmatch(token.name)):
                self._builder.add_mark("point", token.start, token.end)
            else:
                self._builder.end_block()

    def _leave(self, end: int, tag: Token | None = None) -> None:
        """Leave the last open element, whose end tag may be missing."""
        element = self._open.pop()
        self._num_open[element.name] -= 1
        parent = self._innermost
        if element.state == "no" and parent.state == "yes":
            self._add_copied(element, end)
        elif element.state == "yes" and not element.is_inline:
            self._builder.end_block()
        elif element.mark is not None and tag is not None:
            mark = self._builder.add_mark("close", tag.start, tag.end)
            mark.partner, element.mark.partner = element.mark, mark
        if element.outer is not None:
            element.outer.blocks += self._builder.blocks
            self._builder = element.outer
        if tag is not None and element.local_name == self._dialect.key:
            self._key = self._text[element.content : tag.start].strip() + ":"
        if tag is not None and self._dialect.target:
            self._leave_unit(element, (element.content, tag.start), end)

    def _add_copied(self, element: _Element, end: int) -> None:
        if element.is_inline:
            self._builder.add_mark("point", element.start, end)
        else:
            self._builder.end_block()

    def _leave_unit(self, element: _Element, content: Span, end: int) -> None:
        """Leave a source, its translation, or the element of both."""
        parent = self._innermost
        if self._source is not None and self._source[0] is element:
            if not self._has_target and self._text[slice(*self._source[1].source)].strip():
                self.copies.append(self._source[1])
            self._source = None
        elif element.state == "yes" and parent.state != "yes":
            start = element.start
            while start and self._text[start - 1].isspace():
                start -= 1
            prefix, name = element.name[: -len(element.local_name)], self._dialect.inserted
            opened, closed = self._form("", parent)
            before = f"{self._text[start : element.start]}<{prefix}{name}>{opened}"
            copy = _Copy(end, end, content, before, f"{closed}</{prefix}{name.split()[0]}>")
            self._source, self._has_target = (parent, copy), False
        elif self._source is not None:
            self._add_target(element, content)

    def _add_target(
        self, element: _Element, content: Span, before: str = "", after: str = ""
    ) -> None:
        """Add a copy of the source in the element for its translation, unless there is one."""
        path = f"{self._innermost.local_name}/{element.local_name}"
        if self._source is None or not re.fullmatch(self._dialect.target, path):
            return
        source, self._has_target = self._source[1].source, True
        old = self._text[slice(*content)].strip()
        new = self._text[slice(*source)].strip()
        tags = (element.tag, self._innermost.tag)
        is_open = not old or bool(before) or (_has_text(new) and not _has_text(old))
        is_open |= old == new and not any(map(_DONE.match, tags))
        is_open |= any(map(_TO_TRANSLATE.match, tags))
        has_forms = bool(self.copies) and self.copies[-1].start >= content[0]
        if element.state != "no" and is_open and not has_forms:
            opened, closed = self._form(element.local_name, self._innermost)
            copy = _Copy(*content, source, before + opened, closed + after)
            self.copies.append(copy)

    def _form(self, name: str, unit: _Element) -> tuple[str, str]:
        """Return the tags of a plural form that a new target in a unit has."""
        pattern, form = self._dialect.plural
        is_plural = name != form and re.match(pattern, unit.tag)
        return (f"<{form}>", f"</{form}>") if is_plural else ("", "")


def _has_text(content: str) -> bool:
    return bool(_MARKUP.sub("", content).strip())
