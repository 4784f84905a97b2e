"""The step that translates a text of a format, and copies the rest of it."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, Self

from typing_extensions import override

from tfm.features.formats.blocks import Block, Mark, marks_to_place
from tfm.features.formats.markup import html_blocks, xml_blocks
from tfm.features.formats.placement import Placement, tree_of
from tfm.features.formats.subtitles import Cut, cut_lines, cuts_of, subtitle_blocks, with_repeats
from tfm.reporting import say
from tfm.text.units import Span, blanked
from tfm.translation.steps import Output, Segment, Step, UnitAligner

# What reads a document: it returns its text, perhaps with places for translations, and its blocks.
_READERS: Mapping[str, Callable[[str], tuple[str, list[Block]]]] = {
    "html": html_blocks,
    "xml": xml_blocks,
    "srt": lambda text: (text, subtitle_blocks(text)),
}
_MAX_MARKS = 300  # of a sentence


class _Edit(NamedTuple):
    """A part of a document, and its replacement."""

    start: int
    end: int
    text: str


class _Sentence(NamedTuple):
    """A sentence: some characters of a block, with their translation."""

    block: Block
    start: int
    end: int
    translation: str
    kept: Sequence[tuple[Span, Span]]  # copied spans of the sentence, and their places


class Formats(Step):
    """Translates the blocks of a document, which is one unit, and copies the rest of it.

    It is outside of the step that divides blocks into sentences. Sentences are translated without
    the marks in them, and an aligner tells where these belong in the translation.

    Args:
        format: The format of documents: html, xml or srt.
        aligner: Aligns sentences that have marks.
    """

    def __init__(self, format: str, aligner: UnitAligner) -> None:  # noqa: A002 - as its flag
        self._format, self._aligner = format, aligner

    @override
    def load(self) -> Self:
        self._aligner.hold()
        return self

    @override
    def before(self, unit: Segment) -> tuple[Sequence[Segment], tuple[str, list[Block]]]:
        text, blocks = _READERS[self._format](unit.source)
        return [Segment(unit.number, block.text) for block in blocks], (text, blocks)

    @override
    def after(
        self, states: Sequence[tuple[str, list[Block]]], outputs: list[list[Output]]
    ) -> list[list[Output]]:
        remaining = iter(outputs)
        return [
            [self._document(text, blocks, [best for best, *_ in islice(remaining, len(blocks))])]
            for text, blocks in states
        ]

    def _document(self, text: str, blocks: Sequence[Block], found: Sequence[Output]) -> Output:
        """Return a document with the translations of its blocks."""
        by_place = defaultdict[tuple[bool, int], list[tuple[Block, Output]]](list)
        for block, output in zip(blocks, found, strict=True):
            by_place[block.quote != "", block.depth].append((block, output))
        edits: list[_Edit] = []
        for place in sorted(by_place, reverse=True):  # what tags and copied elements have is first
            pairs = by_place[place]
            sentences = [sentence for pair in pairs for sentence in _sentences(*pair)]
            spaces = chain(*(_changed_spaces(*pair, text) for pair in pairs))
            edits = _added(edits, sorted([*spaces, *self._edits(text, edits, sentences)]))
        translated = _copy(text, edits, 0, len(text))
        return Output(
            with_repeats(text, translated) if self._format == "srt" else translated,
            score=sum(each.score for each in found),
            log_prob=sum(each.log_prob for each in found),
            pieces=tuple(chain(*(each.pieces for each in found))),
            parts=tuple(chain(*(each.parts for each in found))),
        )

    def _edits(
        self, text: str, inner: Sequence[_Edit], sentences: Sequence[_Sentence]
    ) -> Iterator[_Edit]:
        """Yield the translations of sentences, with their marks and the edits within these."""
        marked: list[tuple[_Sentence, list[Mark], list[Cut]]] = []
        num_copied = 0
        for sentence in sentences:
            marks = marks_to_place(*sentence[:3])
            cuts = cuts_of(marks, sentence.start, sentence.end, text)
            marks = [mark for mark in marks if mark.kind != "cut"]
            if len(marks) > _MAX_MARKS:
                num_copied += 1
            elif marks:
                marked.append((sentence, marks, cuts))
            else:
                edit = _edit(sentence)
                yield edit._replace(text=cut_lines(edit.text, cuts))
        if num_copied:
            say(f"warning: {num_copied:,} sentences with more than {_MAX_MARKS} tags are copied")
        if not marked:
            return
        texts = [_texts(each) for each, *_ in marked]
        linked = self._aligner.align_units(*zip(*texts, strict=True))
        for (source, _), links, (sentence, marks, cuts) in zip(texts, linked, marked, strict=True):
            block, start, end, translation, kept = sentence
            places = [mark.at - start for mark in marks]
            tree = tree_of(marks, start, end, text, partial(_copy, text, inner))
            placement = Placement(source, translation, links, block.escape, kept, places)
            written = cut_lines(placement.write(tree), cuts)
            first = min(block.starts[start], marks[0].start)
            yield _Edit(first, max(block.ends[end - 1], marks[-1].end), written)


def _sentences(block: Block, output: Output) -> Iterator[_Sentence]:
    """Yield the translated parts of a block; an attribute without quotes is a single part."""
    if block.quote == "unquoted" and output.text.strip():
        yield _Sentence(block, 0, len(block.text), output.text, ())
        return
    at = 0
    for source, part in output.parts:
        start, at = at, at + len(source)
        if part.pieces and part.text.strip():
            yield _Sentence(block, start, at, part.text, part.kept)


def _texts(sentence: _Sentence) -> tuple[str, str]:
    """Return a sentence and its translation, with invisible characters for copied text."""
    source = sentence.block.text[sentence.start : sentence.end]
    return (
        blanked(source, [span for span, _ in sentence.kept]),
        blanked(sentence.translation, [span for _, span in sentence.kept]),
    )


def _changed_spaces(block: Block, output: Output, text: str) -> Iterator[_Edit]:
    """Yield the spaces between sentences that the target language has more or fewer of."""
    at = 0
    for source, part in output.parts:
        at += len(source)
        if part.pieces or part.text == source or block.quote:
            continue
        if not source.isspace():
            yield _Edit(block.ends[at - 1], block.ends[at - 1], part.text.removeprefix(source))
        elif text[block.starts[at - 1] : block.ends[at - 1]] == source:
            yield _Edit(block.starts[at - 1], block.ends[at - 1], part.text)


def _edit(sentence: _Sentence) -> _Edit:
    block, start, end, translation, _ = sentence
    return _Edit(block.starts[start], block.ends[end - 1], block.escape(translation))


def _added(inner: Sequence[_Edit], edits: Sequence[_Edit]) -> list[_Edit]:
    """Return sorted edits, and the inner ones that none of them includes."""
    ends = [0, *(edit.end for edit in edits)]
    starts = [edit.start for edit in edits]
    apart = (each for each in inner if ends[bisect_right(starts, each.start)] <= each.start)
    return sorted([*edits, *apart])


def _copy(text: str, edits: Sequence[_Edit], start: int, end: int) -> str:
    """Return a part of a text with sorted edits applied."""
    copied = []
    first = bisect_left(edits, start, key=lambda edit: edit.start)
    for edit in edits[first : bisect_right(edits, end, key=lambda edit: edit.end)]:
        copied += [text[start : edit.start], edit.text]
        start = edit.end
    return "".join([*copied, text[start:end]])
