"""Subtitles, SubRip or WebVTT: the text between times, whose sentences may run over several cues.

A sentence is translated as a whole. It is cut again where its lines and cues were, so that each has
about the same share of its characters.
"""

import re
from collections.abc import Iterator

from tfm.data.languages import SENTENCE_MARKS
from tfm.data.units import Span
from tfm.errors import DataError
from tfm.features.formats.blocks import Block, BlockBuilder, Mark
from tfm.reporting import say

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_TIMES = re.compile(r"\s*(?:\d+:)?\d+:\d+[.,]\d+\s*-->")
# Tags, the times of words, and the positions of SubRip.
_TAG = re.compile(r"<(/?)([a-zA-Z]++)[^<>\n]*+>|<[\d:.]++>|\{\\[^{}\n]*+\}")
_CLOSING = "\"'”’»)]"
_NEW_SENTENCE = re.compile(r"\s*[-–—♪♫#\[(>]")
_MAX_CHARACTERS = 200  # of text without the end of a sentence


def subtitle_blocks(text: str) -> list[Block]:
    """Return the blocks of subtitles, each of a cue, or of several that share sentences.

    Raises:
        DataError: There are no times.
    """
    is_webvtt = text.startswith(("WEBVTT", "\ufeffWEBVTT"))
    lines = list(_lines(text))
    if not lines and not is_webvtt and text.strip("\ufeff \r\n"):
        raise DataError(
            "the text has no subtitles, which follow times such as 00:00:01,000 --> 00:00:02,000: "
            "give another --format"
        )
    builder = BlockBuilder(text, is_escaped=is_webvtt)
    tags: list[tuple[str, Mark]] = []  # that are open
    last, last_cue = (0, 0), 0
    for cue, line in lines:
        before, after = (_TAG.sub("", text[slice(*each)]) for each in (last, line))
        is_end = cue != last_cue and _ends_sentence(before)
        if is_end or _NEW_SENTENCE.match(after) or len(builder) > _MAX_CHARACTERS:
            builder.end_block()
            tags.clear()
        elif len(builder):
            builder.add_mark("cut", last[1], line[0])
            builder.add_space(last[1], line[0])
        _add_line(text, line, builder, tags)
        last, last_cue = line, cue
    builder.end_block()
    return builder.blocks


def _ends_sentence(line: str) -> bool:
    line = line.rstrip()
    inner = line.rstrip(_CLOSING)
    return bool({")", "]"} & set(line[len(inner) :])) or inner[-1:] in (*SENTENCE_MARKS, "♪", "♫")


def _lines(text: str) -> Iterator[tuple[int, Span]]:
    """Yield each line of text with the number of its cue, which ends before a blank line."""
    spans = [found.span() for found in _LINE.finditer(text)]
    is_times = [_TIMES.match(text, *span) is not None for span in spans]
    num_cues, is_text, damaged = 0, False, list[int]()
    for (start, end), has_times, is_next in zip(
        spans, is_times, [*is_times[1:], False], strict=True
    ):
        line = text[start:end].rstrip()
        if has_times:
            num_cues, is_text = num_cues + 1, True
        elif not line or (is_next and line.isdigit()):
            is_text = False
        elif "-->" in line:
            is_text = False
            damaged.append(start)
        elif is_text:
            yield num_cues, (start, start + len(line))
    if damaged:
        line_number = text.count("\n", 0, damaged[0]) + 1
        say(
            f"warning: the text of {len(damaged):,} damaged times is copied: line {line_number:,} …"
        )


def _add_line(text: str, line: Span, builder: BlockBuilder, tags: list[tuple[str, Mark]]) -> None:
    at, end = line
    for found in _TAG.finditer(text, at, end):
        builder.add_text(at, found.start())
        at = found.end()
        if found[1] and tags and tags[-1][0] == found[2]:
            _, mark = tags.pop()
            mark.partner = builder.add_mark("close", *found.span())
            mark.partner.partner = mark
        elif found[2] and not found[1]:
            tags.append((found[2], builder.add_mark("open", *found.span())))
        else:
            builder.add_mark("point", *found.span())
    builder.add_text(at, end)
