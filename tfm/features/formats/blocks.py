"""Blocks: the texts of a document, each with the marks within it, by their offsets."""

import re
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Literal

from tfm.features.formats.characters import PLAIN, Syntax

Quote = Literal["", '"', "'", "unquoted"]

_WORD = re.compile(r"\S+|\s+")
# No space is before them.
CLOSING = ".,;:!?…)]}»”’。，、；：！？"


@dataclass(eq=False, slots=True)
class Mark:
    """Markup within a text: a tag, or an element that is copied as a whole, such as a comment.

    Attributes:
        at: The number of characters of the text before it.
        start: Where it starts in the document.
        end: Where it ends.
        kind: "open" and "close" of an element; "point" stands alone; "cut" is a line break of
            subtitles, with what is copied between lines, or the time of a word.
        partner: The mark that closes or opens the same element; None if it is missing.
    """

    at: int
    start: int
    end: int
    kind: Literal["open", "close", "point", "cut"]
    partner: "Mark | None" = None


@dataclass(eq=False)
class Block:
    """A text that is translated by itself: a paragraph, an attribute, or lines of subtitles.

    Attributes:
        text: The text without marks and references, with single spaces.
        starts: Where each character of the text starts in the document.
        ends: Where it ends.
        marks: The marks, in order.
        syntax: How text is written in the document.
        quote: Around an attribute; empty for other text.
        depth: The number of translated elements around it that are within copied ones.
    """

    text: str
    starts: "array[int]"
    ends: "array[int]"
    marks: list[Mark] = field(default_factory=list)
    syntax: Syntax = PLAIN
    quote: Quote = ""
    depth: int = 0

    def escape(self, text: str) -> str:
        """Return a translation as it is written into the document."""
        text = self.syntax.encode(text)
        text = text.replace('"', "&quot;") if self.quote in ('"', "unquoted") else text
        text = text.replace("'", "&#39;") if self.quote == "'" else text
        return f'"{text}"' if self.quote == "unquoted" else text


class BlockBuilder:
    """Collects the blocks of a document from its text and marks, which are added in order.

    Args:
        document: The text of the document.
        syntax: How text is written in it.
        depth: The depth of the blocks.
    """

    keeps_lines = False  # whether a line break ends a block

    def __init__(self, document: str, syntax: Syntax = PLAIN, *, depth: int = 0) -> None:
        self._document, self.syntax, self.depth = document, syntax, depth
        self.blocks: list[Block] = []
        self._start_block()

    def _start_block(self) -> None:
        self._parts: list[str] = []
        self._starts, self._ends = array("q"), array("q")
        self._marks: list[Mark] = []
        self._has_space = True  # before the next character, or at the start

    def __len__(self) -> int:
        """Return the number of characters of the current block."""
        return len(self._starts)

    def add_text(self, start: int, end: int) -> None:
        """Add text of the document; white space becomes single spaces."""
        at = start
        for found in self.syntax.pattern.finditer(self._document, start, end):
            if found.start() < at:  # within a copied element
                continue
            self._add_plain(at, found.start())
            at = self.syntax.end_of(self._document, found, end)
            self._add_encoded(found.start(), at)
        self._add_plain(at, end)

    def _add_encoded(self, start: int, end: int) -> None:
        raw = self._document[start:end]
        text = self.syntax.decode(raw)
        if text is None:
            self.add_mark("point", start, end)
        elif text == raw:  # no reference, but text
            self._add_plain(start, end)
        elif text == "\n":
            self.end_block()
        elif not text.isspace():
            self._add(text, [start] * len(text), [end] * len(text))
        else:
            self.add_space(start, end)

    def _add_plain(self, start: int, end: int) -> None:
        for word in _WORD.finditer(self._document, start, end):
            first, last = word.span()
            if not word[0].isspace():
                self._add(word[0], range(first, last), range(first + 1, last + 1))
            elif self.keeps_lines and "\n" in word[0]:
                self.end_block()
            else:
                self.add_space(first, last)

    def add_space(self, start: int, end: int) -> None:
        """Add white space, unless the text ends with some."""
        if not self._has_space:
            self._add(" ", [start], [end])
            self._has_space = True

    def _add(self, text: str, starts: list[int] | range, ends: list[int] | range) -> None:
        if text[0] in CLOSING and self._parts[-1:] == [" "]:
            self._drop_space()
        self._parts.append(text)
        self._starts.extend(starts)
        self._ends.extend(ends)
        self._has_space = False

    def _drop_space(self) -> None:
        """Drop the space before a punctuation mark that copied text separates from its word."""
        size = len(self._starts)
        if not self._marks or (self._marks[-1].kind, self._marks[-1].at) != ("point", size):
            return
        for column in (self._parts, self._starts, self._ends):
            column.pop()
        for mark in reversed(self._marks):
            if mark.at < size:
                break
            mark.at -= 1

    def add_mark(
        self, kind: Literal["open", "close", "point", "cut"], start: int, end: int
    ) -> Mark:
        """Add a mark after the text that has been added, and return it."""
        mark = Mark(len(self._starts), start, end, kind)
        self._marks.append(mark)
        return mark

    def end_block(self) -> None:
        """End the current block; a block without letters is dropped, and so copied."""
        text = "".join(self._parts)
        if any(map(str.isalpha, text)):
            block = Block(
                text, self._starts, self._ends, self._marks, self.syntax, depth=self.depth
            )
            self.blocks.append(block)
        self._start_block()

    def add_attribute(self, start: int, end: int, quote: Quote) -> None:
        """Add the value of an attribute as a separate block, beside the current one."""
        builder = BlockBuilder(self._document, self.syntax)
        builder.add_text(start, end)
        builder.end_block()
        for block in builder.blocks:
            block.quote, block.marks = quote, []  # without references to control characters
            self.blocks.append(block)


def marks_to_place(block: Block, start: int, end: int) -> list[Mark]:
    """Return the marks that the translation of the characters from `start` to `end` has.

    These are the marks within, and at both ends the marks of elements that begin or end within.
    """
    first = bisect_left(block.marks, start, key=lambda mark: mark.at)
    marks = block.marks[first : bisect_right(block.marks, end, key=lambda mark: mark.at)]
    inner = {id(mark) for mark in marks if start < mark.at < end}
    kept = [
        index
        for index, mark in enumerate(marks)
        if id(mark) in inner
        or (mark.kind == ("open" if mark.at == start else "close") and id(mark.partner) in inner)
    ]
    return marks[kept[0] : kept[-1] + 1] if kept else []
