"""Placing marks in the translation of their sentence, around the words that alignment links."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

from tfm.features.formats.blocks import CLOSING, Mark
from tfm.text.units import Span, units

_UNLINKED = -0.1  # the weight of a unit without links
_TAKEN = -1e9
_WORSE = 1e4  # the difference of scores between attempts
_OPENING = "([{«‹„“‘¿¡"  # no space is added after them


@dataclass(eq=False, slots=True)
class Node:
    """An element of a sentence, or a mark that stands alone and contains none of its text.

    Attributes:
        start: The number of characters of the source before it.
        end: The number of characters before its end.
        before: What is written before its content.
        after: What is written after it.
        anchor: "first" or "last" if it begins before the sentence, or ends after it.
        spaces: Whether white space is before and after it in the source.
        children: The nodes within, in order.
    """

    start: int
    end: int
    before: str
    after: str = ""
    anchor: Literal["", "first", "last"] = ""
    spaces: tuple[bool, bool] = (False, False)
    children: "list[Node]" = field(default_factory=list)


def tree_of(
    marks: Sequence[Mark], start: int, end: int, document: str, copy: Callable[[int, int], str]
) -> Node:
    """Return the tree of the marks of a sentence.

    Args:
        marks: The marks, in order.
        start: The number of characters of the block before the sentence.
        end: The number of characters before its end.
        document: The text of the document.
        copy: Returns a part of the document, with translated attributes.
    """
    own = {id(mark) for mark in marks}
    root = Node(0, end - start, "")
    stack = [root]

    def enter(node: Node) -> None:
        stack[-1].children.append(node)
        stack.append(node)

    for mark in reversed(marks):  # elements that begin before the sentence
        if mark.kind == "close" and mark.partner and id(mark.partner) not in own:
            at = mark.at - start
            enter(Node(0, at, "", copy(mark.start, mark.end), anchor="first"))
    for mark in marks:
        at, text = mark.at - start, copy(mark.start, mark.end)
        spaces = document[mark.start - 1].isspace(), document[mark.end : mark.end + 1].isspace()
        if mark.kind == "open" and mark.partner:
            anchor: Literal["", "last"] = "" if id(mark.partner) in own else "last"
            enter(Node(at, end - start, text, anchor=anchor, spaces=spaces))
        elif mark.kind == "close" and mark.partner:
            node = stack.pop()
            if not node.anchor:
                node.end, node.after, node.spaces = at, text, (node.spaces[0], spaces[1])
            _simplify(node)
        else:
            stack[-1].children.append(Node(at, at, text, spaces=spaces))
    return root


def _simplify(node: Node) -> None:
    """Make a mark of an element without text; merge an element with the child that fills it."""
    if node.start == node.end and not node.anchor:
        node.before += "".join(child.before for child in node.children) + node.after
        node.after, node.children = "", []
    elif len(node.children) == 1:
        [child] = node.children
        if (child.start, child.end, child.anchor) == (node.start, node.end, node.anchor):
            node.before, node.after = node.before + child.before, child.after + node.after
            node.children = child.children


class Placement:
    """Places the nodes of a sentence in its translation.

    An element gets the run of units of the translation that holds most units with links into the
    element, and fewest with links to other text. A mark goes to the place that best separates the
    translations of the text before and after the mark. Text without links keeps its share of
    characters. An element within a word, as in m<sup>2</sup>, stays there if the translation has
    the same word.

    Args:
        source: The sentence.
        target: Its translation.
        links: Spans of both that are linked.
        escape: Returns the text of the translation as it is written.
        kept: Spans of the source that were copied, and the spans of their copies; no mark is put
            within them.
        marks: Where the marks are in the source.
    """

    def __init__(
        self,
        source: str,
        target: str,
        links: Sequence[tuple[Span, Span]],
        escape: Callable[[str], str],
        kept: Sequence[tuple[Span, Span]] = (),
        marks: Collection[int] = (),
    ) -> None:
        self._target, self._escape = target, escape
        divided = [*_divided(links, source, target, marks)]
        spans = units(target)
        inner = {start for _, (start, _) in divided}.difference(start for start, _ in spans)
        parts = [
            part
            for start, end in spans
            for part in pairwise([start, *_within(start, end, inner), end])
        ]
        self._units = _joined(parts, [span for _, span in kept])
        self._gaps = self._gaps_between()
        ends = [end for _, end in self._units]
        linked: list[list[int]] = [[] for _ in self._units]
        copies = {bisect_right(ends, start): span for span, (start, _) in kept}
        for (start, end), (target_start, _) in divided:
            if (index := bisect_right(ends, target_start)) not in copies:
                linked[index].extend(range(start, end))
        for index, span in copies.items():
            linked[index].extend(range(*span))
        scale = len(source) / max(1, len(target))
        self._shares = [
            list(range(int(start * scale), max(int(start * scale) + 1, int(end * scale))))
            for start, end in self._units
        ]
        self._linked = [sorted(each) for each in linked] if any(linked) else self._shares

    def _gaps_between(self) -> list[str]:
        """Return the white space before each unit, and that at the end."""
        starts = [start for start, _ in self._units] + [len(self._target)]
        ends = [0] + [end for _, end in self._units]
        return [self._target[end:start] for end, start in zip(ends, starts, strict=True)]

    def write(self, root: Node) -> str:
        """Return the translation with the marks of a tree."""
        size = len(self._units)
        return self._gaps[0] * (size > 0) + "".join(self._written(root, 0, size)) + self._gaps[-1]

    def _written(self, node: Node, low: int, high: int) -> Iterator[str]:
        """Yield the text of a node that has the units from `low` to `high`."""
        yield node.before
        at = low
        placed = self._placed(node, low, high)
        order = sorted(range(len(placed)), key=lambda index: (*placed[index], index))
        for index in order:
            child, (start, end) = node.children[index], placed[index]
            yield from self._text(at, start, low)
            at = max(at, end)
            if start < end:
                yield self._take_gap(start, low)
                yield from self._written(child, start, end)
            else:
                yield from self._mark(child, start, low < start < high)
        yield from self._text(at, high, low)
        yield node.after

    def _text(self, start: int, end: int, low: int) -> Iterator[str]:
        for index in range(start, end):
            yield self._take_gap(index, low)
            yield self._escape(self._target[slice(*self._units[index])])

    def _take_gap(self, index: int, low: int) -> str:
        """Return the white space before a unit once; the space before the first unit is outside."""
        if index == low:
            return ""
        gap, self._gaps[index] = self._gaps[index], ""
        return gap

    def _mark(self, node: Node, at: int, is_inner: bool) -> Iterator[str]:
        """Yield a mark before a unit, with the white space that it has in the source."""
        text = "".join(self._written(node, at, at))
        gap = self._gaps[at] if is_inner else ""
        before, after = node.spaces
        if gap:
            yield " " * before + text
            if before and not after:
                self._gaps[at] = ""
        else:
            yield (
                " " * (before and self._may_end(at)) + text + " " * (after and self._may_start(at))
            )

    def _may_end(self, at: int) -> bool:
        """Return whether a space may follow the unit before a place."""
        return at > 0 and self._target[self._units[at - 1][1] - 1] not in _OPENING

    def _may_start(self, at: int) -> bool:
        """Return whether a space may be before the unit at a place."""
        return at < len(self._units) and self._target[self._units[at][0]] not in CLOSING

    def _placed(self, node: Node, low: int, high: int) -> list[Span]:
        """Return the units of each child of a node that has the units from `low` to `high`."""
        children = node.children
        placed: dict[int, Span] = {}
        for index, child in enumerate(children):
            if child.anchor == "first":
                placed[index] = (low, low := self._split(child.end, low, high))
            elif child.anchor == "last":
                placed[index] = (self._split(child.start, low, high, latest=True), high)
                high = placed[index][0]
        others = [i for i, each in enumerate(children) if each.start < each.end and i not in placed]
        free = [True] * (high - low)
        # The element with the clearest place chooses first.
        others.sort(key=lambda i: -self._best_run(children[i], low, free)[0])
        inner: set[int] = set()
        for index in others:
            start, end = placed[index] = self._best_run(children[index], low, free)[1]
            free[start - low : end - low] = [False] * (end - start)
            inner.update(range(start + 1, end))
        for index, child in enumerate(children):
            if index not in placed:
                low = self._split(child.start, low, high, inner)
                placed[index] = (low, low)
        return [placed[index] for index in range(len(children))]

    def _best_run(self, node: Node, low: int, free: Sequence[bool]) -> tuple[float, Span]:
        """Return the score and the free units that suit an element best."""
        attempts = ((self._linked, False), (self._linked, True), (self._shares, True))
        for attempt, (linked, partly) in enumerate(attempts):
            weights = [
                _weight(linked[low + n], node, partly=partly) if is_free else _TAKEN
                for n, is_free in enumerate(free)
            ]
            score, (start, end) = _greatest_run(weights)
            if score > 0:
                return score - _WORSE * attempt, (low + start, low + end)
        # None is free where it belongs: it stands alone.
        taken = {low + n for n in range(1, len(free)) if not (free[n - 1] or free[n])}
        at = self._split(node.start, low, low + len(free), taken, shares=True)
        return -_WORSE * len(attempts), (at, at)

    def _split(
        self,
        position: int,
        low: int,
        high: int,
        refused: Container[int] = (),
        *,
        shares: bool = False,
        latest: bool = False,
    ) -> int:
        """Return the place that best separates the source before and after a position.

        Before the place are the units of the translation that are linked to the source before the
        position. It is a place from `low` to `high`; of equal places, the first or the latest.
        """
        linked = (self._shares if shares else self._linked)[low:high]
        sums = accumulate((_balance(each, position) for each in linked), initial=0.0)
        places = [(total, place) for place, total in enumerate(sums, low) if place not in refused]
        return max(places, key=lambda pair: (pair[0], pair[1] if latest else -pair[1]))[1]


def _divided(
    links: Sequence[tuple[Span, Span]], source: str, target: str, marks: Collection[int]
) -> Iterator[tuple[Span, Span]]:
    """Yield links; those of a word with marks within it and an equal word are divided there."""
    for (start, end), (target_start, target_end) in links:
        inner = _within(start, end, marks)
        if not inner or source[start:end] != target[target_start:target_end]:
            yield (start, end), (target_start, target_end)
            continue
        shift = target_start - start
        for first, last in pairwise([start, *inner, end]):
            yield (first, last), (first + shift, last + shift)


def _within(start: int, end: int, positions: Collection[int]) -> list[int]:
    return sorted({position for position in positions if start < position < end})


def _joined(spans: Sequence[Span], whole: Sequence[Span]) -> list[Span]:
    """Return the spans of units, with overlapping spans joined."""
    joined: list[Span] = []
    for start, end in sorted([*spans, *whole]):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _balance(positions: Sequence[int], position: int) -> float:
    """Return 1 if all (sorted) positions of a unit are before a position, -1 if none is."""
    before = bisect_left(positions, position)
    return (2 * before - len(positions)) / len(positions) if positions else 0.0


def _weight(positions: Sequence[int], node: Node, *, partly: bool) -> float:
    """Return from 1 to -1 how much a unit belongs into an element; 1 for any part if `partly`."""
    if not positions:
        return _UNLINKED
    num_inside = bisect_left(positions, node.end) - bisect_left(positions, node.start)
    if partly:
        return 1.0 if num_inside else -1.0
    return (2 * num_inside - len(positions)) / len(positions)


def _greatest_run(weights: Sequence[float]) -> tuple[float, Span]:
    """Return the greatest sum of a run of weights, at least 0, and the run (Bentley 1984)."""
    best, best_run = 0.0, (0, 0)
    total, start = 0.0, 0
    for index, weight in enumerate(weights):
        if total <= 0.0:
            total, start = 0.0, index
        total += weight
        if total > best:
            best, best_run = total, (start, index + 1)
    return best, best_run
