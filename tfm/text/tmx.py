"""TMX (Translation Memory eXchange): pairs of units, streamed from a file of any size."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html.entities import html5
from pathlib import Path
from xml.parsers import expat

from tfm.errors import DataError
from tfm.text.files import TextFile
from tfm.text.formats import encoding_of
from tfm.text.languages import closest
from tfm.text.lines import BytesPair
from tfm.text.segments import join_lines

_BLOCK_BYTES = 1 << 19
_MAX_UNIT = 1 << 24  # characters of a unit, and bytes of a tag
_CODE = ("bpt", "ept", "ph", "it", "ut")  # elements with tags of the document, not with its text
_PLACEHOLDERS = {"bpt": "{%s>", "ept": "<%s}"}  # as memoQ writes them; others are {1}
_MAX_CODES = 8  # in a message


def read_tmx(
    path: Path, languages: tuple[str, str], *, num_units: int | None = None, keep_tags: bool = False
) -> Iterator[BytesPair]:
    """Yield source and target of the units of a TMX file, which may be compressed.

    A language stands for all of its variants, such as en for en-US, unless the unit has the code
    itself. Of several variants of a side, each is in a pair. Units without both languages are left
    out. Inline tags are dropped, or placeholders such as {1} if `keep_tags`.

    Raises:
        DataError: The file is no XML, declares entities, has none of the languages, or has another
            number of pairs than `num_units`.
    """
    units = _Units(path, languages, keep_tags=keep_tags)
    count = 0
    with path.open("rb") as file:
        text = TextFile(file, path, decodes=True)
        data = b" "
        while data:
            data = text.read(_BLOCK_BYTES)
            pairs = units.feed(data)
            count += len(pairs)
            yield from pairs
    if not count:
        codes = ", ".join(f"{code} ({n:,})" for code, n in units.codes.most_common(_MAX_CODES))
        raise DataError(
            f"{path} has no units in {' and '.join(languages)}, only in {codes or 'no language'}: "
            "name two of these with --languages"
        )
    if num_units not in (None, count):
        raise DataError(f"{path} has {count:,} pairs, but should have {num_units:,}")


class _Units:
    """Reads a TMX file in blocks of bytes."""

    def __init__(self, path: Path, languages: tuple[str, str], *, keep_tags: bool) -> None:
        self.codes: Counter[str] = Counter()  # of the variants in all units
        self._path, self._languages, self._keep_tags = path, languages, keep_tags
        self._pairs: list[BytesPair] = []
        self._num_bytes = self._size = 0
        self._code = ""
        self._variants: list[tuple[str, bytes]] = []  # code and text
        self._text: list[str] | None = None  # of the open segment
        self._depth = self._num_tags = 0  # elements with tags of the document
        self._is_open = False  # the root
        # The declaration still says UTF-16 when the text has been decoded.
        is_decoded = encoding_of(path) != "UTF-8"
        self._parser = expat.ParserCreate("utf-8" if is_decoded else None)
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add
        self._parser.EntityDeclHandler = self._refuse_entity
        self._parser.SkippedEntityHandler = self._skipped

    def feed(self, data: bytes) -> list[BytesPair]:
        """Parse the next bytes, which are none at the end; return the pairs that they complete."""
        self._num_bytes += len(data)
        try:
            self._parser.Parse(data, not data)
        except expat.ExpatError as error:
            raise self._mistake(expat.ErrorString(error.code)) from error
        except (LookupError, ValueError) as error:
            raise self._mistake("its encoding is not known; save it in UTF-8") from error
        if self._num_bytes - self._parser.CurrentByteIndex > _MAX_UNIT:
            raise self._mistake("a tag does not end")
        pairs, self._pairs = self._pairs, []
        return pairs

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        if not self._is_open and name != "tmx":
            raise DataError(f"{self._path} is no TMX: its first tag is <{name}>")
        self._is_open = True
        if name == "tu":
            self._variants, self._size = [], 0
        elif name == "tuv":
            self._code = attributes.get("xml:lang") or attributes.get("lang") or ""
            self.codes[self._code] += 1
        elif name == "seg":
            self._text, self._depth, self._num_tags = [], 0, 0
        elif self._text is not None and (self._depth or name in _CODE):
            if self._keep_tags and not self._depth:
                self._num_tags += 1
                number = attributes.get("i" if name in _PLACEHOLDERS else "x", "")
                number = number if number.isdecimal() else str(self._num_tags)
                self._text.append(_PLACEHOLDERS.get(name, "{%s}") % number)
            self._depth += 1

    def _end(self, name: str) -> None:
        if self._depth:
            self._depth -= 1
        elif name == "seg" and self._text is not None:
            self._variants.append((self._code, join_lines("".join(self._text).encode())))
            self._text = None
        elif name == "tu":
            self._pairs += _pairs_of(self._variants, self._languages)
            self._variants = []

    def _add(self, text: str) -> None:
        self._size += len(text)
        if self._size > _MAX_UNIT:
            raise self._mistake(f"a unit has more than {_MAX_UNIT:,} characters")
        if self._text is not None and not self._depth:
            self._text.append(text)

    def _skipped(self, name: str, is_parameter: bool) -> None:
        """Read an entity that only the DTD declares as that of HTML."""
        if not is_parameter:
            self._add(html5.get(f"{name};", f"&{name};"))

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise self._mistake(f"it declares the entity {name}, which TMX does not need")

    def _mistake(self, problem: str) -> DataError:
        line, column = self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1
        return DataError(f"{self._path}, line {line:,}, column {column:,}: {problem}: correct it")


def _pairs_of(
    variants: Sequence[tuple[str, bytes]], languages: tuple[str, str]
) -> Iterator[BytesPair]:
    """Yield the first source with each target, and each further source with the first target."""
    both = [[_fit(side, code) for code, _ in variants] for side in languages]
    sources, targets = (
        # en-US is no variant of en-GB where both are asked for.
        [text for (_, text), f, o in zip(variants, fits, others, strict=True) if f == best >= o]
        for fits, others in (both, both[::-1])
        if (best := max(1, *fits, 1))
    )
    for target in targets if sources else ():
        yield sources[0], target
    for source in sources[1:] if targets else ():
        yield source, targets[0]


@cache
def _fit(side: str, code: str) -> int:
    """Return 2 if a code is that of a side, 1 if it is of the same language, and 0 otherwise."""
    sides = side.lower().replace("_", "-").split("+")
    if code.lower().replace("_", "-") in sides:
        return 2
    return int(any(closest(each, [code]) is not None for each in side.split("+")))
