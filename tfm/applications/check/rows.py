"""The rows of a check: how each changes the lines of a test set."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import regex

from tfm.text.changes import CHANGES, Change, lowered

_SEED = 1  # of typos
_WORD = regex.compile(r"[\p{L}\p{M}]{3,}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is translated: lines in a template, then changed; or `sources` instead of lines."""

    name: str
    about: str
    templates: Sequence[str] = ("{}",)  # of cases, in turn; references have the same
    copied: Sequence[str] = ("",)  # what the translation must contain, for each template
    group: int = 1  # lines of a case
    change: Change | None = None
    sources: Sequence[str] = ()
    has_references: bool = True
    limits: Mapping[str, float] = field(default_factory=dict)  # where they differ from other rows


@dataclass(frozen=True, kw_only=True)
class Case:
    """A source to translate, made of the lines with some numbers."""

    source: str = ""
    lines: Sequence[int] = ()
    template: str = ""
    copied: str = ""

    def of(self, texts: Sequence[str]) -> str:
        """Return the references or translations of the lines, in the form of the source."""
        return self.template.format(*(texts[line] for line in self.lines))


def _with(name: str, texts: str, copied: str = "", limits: Mapping[str, float] = {}) -> Row:
    """Return a row that adds one of the texts, which ¦ separates, to each line."""
    escaped = texts.replace("{", "{{").replace("}", "}}").split("¦")
    return Row(
        name=name,
        about=f"with {texts.replace('¦', ' or ')}",
        templates=[f"{{}} {each}" for each in escaped],
        copied=copied.split("¦"),
        limits=limits,
    )


_EMOJI, _ADDRESSES = "🙂¦🎉¦👍🏽", "https://example.org/a/7?b=c¦www.example.com¦user@example.org"
_PLACEHOLDERS = "{name}¦%s¦{0}¦${total}¦%1$d¦{{city}}"
_SCRIPTS = (
    "The weather is fine.",
    "Погода хорошая.",
    "今天天气很好。",
    "الطقس جميل.",
    "मौसम अच्छा है।",
)

_typos = CHANGES["typo"]

ROWS = (
    Row(name="plain", about="unchanged"),
    Row(name="upper", about="in capitals", change=CHANGES["upper"]),
    Row(name="title", about="in title case", change=CHANGES["title"]),
    Row(name="lower", about="in lower case", change=lowered),
    Row(name="unpunctuated", about="without final stop", change=CHANGES["unpunctuated"]),
    # Where no spaces separate words, people make other typos.
    Row(name="typos", about="with typos", change=lambda t, *x: _typos(t, *x) if " " in t else t),
    Row(name="spaces", about="with double spaces", change=lambda t, *_: t.replace(" ", "  ")),
    _with("emoji", _EMOJI, _EMOJI, {"copied": 0}),
    _with("numbers", "(7)¦(42)¦(318)¦(60274)"),
    # A month may become a word, and a unit a word of another script.
    _with("dates", "(2024-11-17)¦(9:45)", limits={"numbers": 75}),
    _with("units", "(12 kg)¦(85 %)¦(30 °C)", "¦%¦°C"),
    _with("addresses", _ADDRESSES, _ADDRESSES),
    _with("placeholders", _PLACEHOLDERS, _PLACEHOLDERS),
    Row(
        name="word",
        about="their longest word",
        change=lambda t, *_: max(_WORD.findall(t), key=len, default=t) if " " in t else t,
        has_references=False,
    ),
    Row(name="list", about="three as a list", templates=["1. {} 2. {} 3. {}"], group=3),
    Row(name="long", about="eight joined", templates=[" ".join(["{}"] * 8)], group=8),
    Row(name="repeated", about="twice", templates=["{0} {0}"]),
    Row(name="empty", about="no text", sources=[""], has_references=False),
    Row(name="script", about="text of other scripts", sources=_SCRIPTS, has_references=False),
)


def cases(row: Row, lines: Sequence[str], language: str) -> list[Case]:
    """Return the cases of a row: lines in a language, without lines that it does not change."""
    if row.sources:
        known = {_script(letter) for line in lines for letter in line if letter.isalpha()}
        return [Case(source=text) for text in row.sources if _script(text[:1]) not in known]
    found: dict[str | int, Case] = {}  # by source, or by number with references
    for number, start in enumerate(range(0, len(lines) - row.group + 1, row.group)):
        template, copied = (each[number % len(each)] for each in (row.templates, row.copied))
        case = Case(lines=range(start, start + row.group), template=template, copied=copied)
        text = source = case.of(lines)
        if row.change is not None:
            source = row.change(text, language, np.random.default_rng([_SEED, number]))
        if row.change is None or source != text:
            key = number if row.has_references else source
            kept = case.lines if row.has_references else ()
            found.setdefault(key, replace(case, source=source, lines=kept))
    return [*found.values()]


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0] if letter else ""
