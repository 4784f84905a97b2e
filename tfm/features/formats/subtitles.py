"""Subtitles, SubRip or WebVTT: the text between times, whose sentences may run over several cues.

A sentence is translated as a whole. It is cut again where its lines and cues were, so that each has
about the same share of its characters. Rolling captions repeat the last lines of the cue before:
these lines are no part of a sentence, and get the translation of the lines that they repeat.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from tfm.errors import DataError
from tfm.features.formats.blocks import CLOSING, Block, BlockBuilder, Mark
from tfm.features.formats.characters import HTML, PLAIN
from tfm.reporting import say
from tfm.text.languages import SENTENCE_MARKS
from tfm.text.units import is_unspaced, units

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_TIMES = re.compile(r"\s*(?:\d+:)?\d+:\d+[.,]\d+\s*-->")
_NOTE = re.compile(r"(?:NOTE|STYLE|REGION)(?:\s|$)")  # of WebVTT
# Styles and line breaks that other formats have, SubStation Alpha and MicroDVD.
_STYLE = r"\{(?:\\|[cCfFoOpPsSyY]:)[^{}\n]*+\}"
_STYLES = re.compile(rf"\s*+(?:{_STYLE}\s*+)*+")
_BREAK = re.compile(r"\s*+(?:\\[Nn]|<[bB][rR]\s*/?>)")
# Tags, the times of words, and styles.
_TAG = re.compile(rf"<(/?)([a-zA-Z]++)[^<>\n]*+>|<[\d:.]++>|{_STYLE}")
_DIRECTIONS = "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # of writing; they are invisible
_END = re.compile(rf"[\s{_DIRECTIONS}]+$")
_HIDDEN, _SPACE = "\u200b", re.compile(r"\s+")
_CLOSING = "\"'”’»)]"
_NEW_SENTENCE = re.compile(rf"[\s{_DIRECTIONS}]*[-–—♪♫#\[(>]")
_VOICE = re.compile(r"\s*<v(?:\.[^\s<>]*)?\s+([^<>]*)>")
_MAX_CHARACTERS = 200  # of text without the end of a sentence
_OTHER_ELEMENT, _OTHER_TAGS = 1e9, 1e6  # how bad a line is that ends there, in characters


class _Line(NamedTuple):
    """A line of text, without its end."""

    cue: int
    start: int
    end: int
    plain: str  # without tags


class Cut(NamedTuple):
    """A line break within a sentence, with the text copied there, or the time of a word."""

    share: float  # of the source before it
    written: str
    depth: int = 0  # the number of elements of the sentence around it
    num_tags: int = -1  # before it; -1 if no tags are beside it


class _Gap(NamedTuple):
    """A place in a translation where a line may end."""

    size: int  # the number of shown characters before it
    start: int  # of its white space
    end: int
    depth: int
    num_tags: int
    open_tags: tuple[re.Match[str], ...]


def subtitle_blocks(text: str) -> list[Block]:
    """Return the blocks of subtitles, each of a cue, or of several that share sentences."""
    is_webvtt = _is_webvtt(text)
    lines, damaged = _lines(text)
    if not (is_webvtt or re.search(r"\d\s*-->", text)) and text.strip("\ufeff \r\n"):
        raise DataError(
            "the text has no subtitles, which follow times such as 00:00:01,000 --> 00:00:02,000: "
            "give another --format"
        )
    if damaged:
        number = text.count("\n", 0, damaged[0]) + 1
        say(f"warning: the text of {len(damaged):,} damaged times is copied: line {number:,} …")
    builder = BlockBuilder(text, HTML if is_webvtt else PLAIN)
    tags: list[tuple[str, Mark]] = []  # that are open
    last, voice = _Line(0, 0, 0, ""), ""
    for line in _shown(text, lines):
        spoken = _VOICE.match(text, line.start, line.end)
        is_other, voice = spoken and spoken[1] != voice, spoken[1] if spoken else voice
        is_end = line.cue != last.cue and _ends_sentence(last.plain)
        is_start = _NEW_SENTENCE.match(line.plain) or len(builder) > _MAX_CHARACTERS
        if is_end or is_start or is_other or not line.plain:
            builder.end_block()
            tags.clear()
        elif len(builder):
            builder.add_mark("cut", last.end, line.start)
            if not (is_unspaced(last.plain[-1]) and is_unspaced(line.plain[0])):
                builder.add_space(last.end, line.start)
        if line.plain:
            _add_line(text, line, builder, tags)
        last = line
    builder.end_block()
    return builder.blocks


def with_repeats(source: str, text: str) -> str:
    """Return translated subtitles with each repeated line copied from the cue before.

    Args:
        source: The subtitles.
        text: Their translation, in which these lines are not translated.
    """
    repeats = {cue: size for cue, _, size in _cues(_lines(source)[0]) if size}
    parts, at, last = list[str](), 0, list[str]()
    for cue, lines, _ in _cues(_lines(text)[0]) if repeats else ():
        written = [text[line.start : line.end] for line in lines]
        if size := min(repeats.get(cue, 0), len(lines)):
            has_tags = any(map(_TAG.search, written[:size]))
            repeated = [each if has_tags else _TAG.sub("", each) for each in last[-size:]]
            line_end = text[lines[0].end : lines[1].start] if size > 1 else ""
            parts += [text[at : lines[0].start], line_end.join(repeated)]
            at, written[:size] = lines[size - 1].end, repeated
        last = written
    return "".join([*parts, text[at:]])


def cuts_of(marks: Sequence[Mark], start: int, end: int, text: str) -> list[Cut]:
    """Return the cuts of a sentence, from its marks.

    Args:
        marks: The marks, in order.
        start: The number of characters of the block before the sentence.
        end: The number of characters before its end.
        text: The subtitles.
    """
    cuts, depth, num_tags = list[Cut](), 0, 0
    for index, mark in enumerate(marks):
        tag = _TAG.fullmatch(text, mark.start, mark.end)
        if mark.kind == "cut":
            near = (each for each in marks[max(0, index - 1) : index + 2] if each.kind != "cut")
            is_beside = any(abs(each.at - mark.at) <= 1 for each in near)
            share, written = (mark.at - start) / (end - start), text[mark.start : mark.end]
            cuts.append(Cut(share, written, depth, num_tags if is_beside else -1))
        elif tag:
            depth, num_tags = depth + _depth(tag), num_tags + 1
    return cuts


def cut_lines(text: str, cuts: Sequence[Cut]) -> str:
    """Return a translated sentence with its line breaks, so that no line is empty.

    A line ends within the same elements as in the source, and between the same tags if there are
    tags at its end. Elements that continue on the next line are closed and opened again. If the
    translation has too few words, lines of a cue are joined; if there are still too few, the last
    word is repeated. Times of words stay in their line.

    Args:
        text: The sentence, with tags.
        cuts: The line breaks and times of the source, in order.
    """
    if not cuts:
        return text
    gaps, size = _gaps(text)
    breaks, times = list[Cut](), list[tuple[int, float, str]]()
    num_joined = sum(not cut.written.startswith("<") for cut in cuts) - len(gaps)
    for cut in cuts:
        if cut.written.startswith("<"):
            times.append((len(breaks), cut.share * size, cut.written))
        elif num_joined > 0 and "-->" not in cut.written:
            num_joined -= 1
            written = "".join(tag[0] for tag in _TAG.finditer(cut.written))
            times.append((len(breaks), cut.share * size, written))
        else:
            breaks.append(cut)
    while len(gaps) < len(breaks):
        word = _TAG.sub("", text[gaps[-1].end if gaps else 0 :])
        gaps.append(_Gap(size, len(text), len(text), breaks[-1].depth, -1, ()))
        text += word
    edits, ends = list[tuple[int, int, str]](), [-1, *_line_ends(gaps, breaks, size)]
    for cut, gap in zip(breaks, (gaps[end] for end in ends[1:]), strict=True):
        tags = gap.open_tags[::-1][: max(0, gap.depth - cut.depth)]
        closed = "".join(f"</{tag[2]}>" for tag in tags)
        opened = "".join(tag[0] for tag in tags[::-1])
        edits.append((gap.start, gap.end, closed + cut.written + opened))
    for line, place, written in times:
        inner = range(ends[line] + 1, [*ends, len(gaps)][line + 1])
        index = min(inner, key=lambda n: abs(gaps[n].size - place), default=ends[line])
        at = gaps[index].end if index >= 0 else 0
        edits.append((at, at, written))
    parts, at = list[str](), 0
    for start, end, written in sorted(edits, key=lambda edit: edit[:2]):
        parts += [text[at:start], written]
        at = end
    return "".join([*parts, text[at:]])


def _line_ends(gaps: Sequence[_Gap], breaks: Sequence[Cut], size: int) -> list[int]:
    """Return the gaps, in order, that suit the line breaks best; there are enough gaps."""
    totals, least = list[list[float]](), [0.0] * len(gaps)  # of the breaks before, by the next gap
    for cut in breaks:
        totals.append(
            [
                total
                + abs(gap.size - cut.share * size)
                + _OTHER_ELEMENT * (gap.depth != cut.depth)
                + _OTHER_TAGS * (cut.num_tags not in (-1, gap.num_tags))
                for gap, total in zip(gaps, least, strict=True)
            ]
        )
        least = list(accumulate(totals[-1][:-1], min, initial=math.inf))
    ends = [len(gaps)]
    for costs in reversed(totals):
        ends.append(min(range(ends[-1]), key=costs.__getitem__))
    return ends[:0:-1]


def _gaps(text: str) -> tuple[list[_Gap], int]:
    """Return where a line may end, and the number of characters that are shown."""
    hidden = _TAG.sub(lambda tag: _HIDDEN * len(tag[0]), text)
    shown = [span for span in units(hidden) if hidden[span[0]] != _HIDDEN]
    sizes = accumulate(len(hidden[slice(*span)].replace(_HIDDEN, "")) for span in shown)
    tags = list(_TAG.finditer(text))
    gaps, open_tags, depth, num_tags = list[_Gap](), list[re.Match[str]](), 0, 0
    for ((_, end), (following, _)), size in zip(pairwise(shown), sizes, strict=False):
        space = _SPACE.search(hidden, end, following)
        is_joint = end == following and is_unspaced(hidden[end - 1]) and is_unspaced(hidden[end])
        if hidden[following] in CLOSING or not (space or is_joint):
            continue
        start, end = space.span() if space else (end, end)
        while num_tags < len(tags) and tags[num_tags].start() < start:
            tag = tags[num_tags]
            num_tags, depth = num_tags + 1, depth + _depth(tag)
            open_tags[len(open_tags) - bool(tag[1]) :] = [tag] if _depth(tag) > 0 else []
        gaps.append(_Gap(size, start, end, depth, num_tags, tuple(open_tags)))
    return gaps, next(sizes, 0)


def _depth(tag: re.Match[str]) -> int:
    """Return how many elements a tag opens, or closes if negative; styles and times do neither."""
    return -1 if tag[1] else int(bool(tag[2]))


def _is_webvtt(text: str) -> bool:
    return text.startswith(("WEBVTT", "\ufeffWEBVTT"))


def _ends_sentence(line: str) -> bool:
    line = _END.sub("", line)
    inner = line.rstrip(_CLOSING)
    return bool({")", "]"} & set(line[len(inner) :])) or inner[-1:] in (*SENTENCE_MARKS, "♪", "♫")


def _plain(line: str) -> str:
    return " ".join(_TAG.sub("", line).split())


def _lines(text: str) -> tuple[list[_Line], list[int]]:
    """Return the lines of text, and where each damaged line of times is.

    Text after a blank line belongs to the cue before it, unless it looks like a number or a note.
    """
    spans = [found.span() for found in _LINE.finditer(text)]
    raw = [text[slice(*span)].rstrip() for span in spans]
    lines, damaged = list[_Line](), list[int]()
    cue, is_text, has_blank, is_webvtt = 0, False, True, _is_webvtt(text)
    for number, ((start, end), line) in enumerate(zip(spans, raw, strict=True)):
        is_note = is_webvtt and has_blank and _NOTE.match(line)
        if _TIMES.match(text, start, end):
            cue, is_text, has_blank = cue + 1, True, False
        elif is_note or "-->" in line:
            is_text = False
            damaged += [start] * (not is_note)
        elif is_text and line and not _is_number(raw, number, has_blank=has_blank):
            lines.append(_Line(cue, start, start + len(line), _plain(line)))
        has_blank |= not line
    return lines, damaged


def _is_number(lines: Sequence[str], number: int, *, has_blank: bool) -> bool:
    """Return whether a line below a cue is the number or name of the next one."""
    line, is_last = lines[number], "-->" in "".join(lines[number + 1 : number + 2])
    if has_blank and not any(map(str.isalpha, line)):
        return True
    return is_last and (line.isdigit() or not lines[number - 1])


def _cues(lines: Sequence[_Line]) -> Iterator[tuple[int, list[_Line], int]]:
    """Yield each cue with text: its lines, and how many of them repeat the last ones before."""
    last = list[str]()
    for cue, group in groupby(lines, key=lambda line: line.cue):
        shown = list(group)
        plain = [line.plain for line in shown]
        sizes = range(min(len(last), len(plain)), 0, -1)
        size = next((n for n in sizes if last[-n:] == plain[:n] and any(plain[:n])), 0)
        yield cue, shown, size
        last = plain


def _shown(text: str, lines: Sequence[_Line]) -> Iterator[_Line]:
    """Yield the lines that are translated as they are shown, without styles at their start."""
    for line in (line for _, shown, size in _cues(lines) for line in shown[size:]):
        start, breaks = line.start, _BREAK.finditer(text, line.start, line.end)
        for end, following in [*(found.span() for found in breaks), (line.end, line.end)]:
            styles = _STYLES.match(text, start, end)
            start = start if styles is None else styles.end()
            plain = _plain(text[start:end])
            if plain or "<" in text[start:end]:
                yield _Line(line.cue, start, end, plain)
            start = following


def _add_line(text: str, line: _Line, builder: BlockBuilder, tags: list[tuple[str, Mark]]) -> None:
    at, end = line.start, line.end
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
            is_time = found[0][1].isdigit()
            builder.add_mark("cut" if is_time else "point", *found.span())
    builder.add_text(at, end)
