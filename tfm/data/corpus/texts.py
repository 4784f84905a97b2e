"""The texts of a corpus: where each comes from."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

Task = Literal["translation", "parsing"]

GENERATORS: Mapping[str, Task] = {"numbers": "translation", "treebank": "parsing"}

_FILE_NAME = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f\x7f]{1,200}")
_HEX_DIGITS = {"sha256": 64, "md5": 32}


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A file to download and what is known of it.

    Attributes:
        url: Its public home; the last part of it is the name of the file.
        sha256: Checksum in hexadecimal, where one was published.
        md5: Checksum in hexadecimal, where one was published.
        size: Size in bytes, where it was published.
        approximate_size: Size in bytes, about, where it was not; foretells the disk it takes.
    """

    url: str
    sha256: str | None = None
    md5: str | None = None
    size: int | None = None
    approximate_size: int | None = None

    @property
    def name(self) -> str:
        """Name of the file; empty if the address has none that a file could have."""
        try:
            name = PurePosixPath(unquote(urlsplit(self.url).path)).name
        except ValueError:  # such as brackets that are not closed
            return ""
        return name if _FILE_NAME.fullmatch(name) else ""

    @property
    def has_checksum(self) -> bool:
        """Whether its content is known for certain."""
        return self.sha256 is not None or self.md5 is not None

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be."""
        if not is_url(self.url) or not self.name:
            yield f"{self.url!r} is not the http or https address of a file"
        for kind, num_digits in _HEX_DIGITS.items():
            value = getattr(self, kind)
            if value is not None and not re.fullmatch(f"[0-9a-f]{{{num_digits}}}", value):
                yield f"{kind} of {self.name} must be {num_digits} hexadecimal digits in lower case"


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """One text of a split: two files, line by line translations of each other.

    If both are the same file, it has two columns, source and target, that a tab separates.

    A name ending in .gz is compressed, one in .sgm is SGML, after .gz if it has both.

    Attributes:
        source: A member of the archive, or if there is none a URL or the path of a file.
        target: The same for the other language.
        archive: File name of the tar archive.
        lines: How many lines each side must have, where that is known.
    """

    source: str
    target: str
    archive: str | None = None
    lines: int | None = None

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be."""
        if self.lines is not None and self.lines < 1:
            yield f"lines is {self.lines}, but must be at least 1"

    @property
    def sides(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target


@dataclass(frozen=True, kw_only=True)
class TreeFile:
    """One text of a split: bracketed trees, from which sentences and symbols are made.

    A name ending in .gz is compressed.

    Attributes:
        trees: A member of the archive, or if there is none a URL or the path of a file.
        archive: File name of the tar archive.
    """

    trees: str
    archive: str | None = None

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be."""
        yield from ()

    @property
    def sides(self) -> tuple[str]:
        """The one file."""
        return (self.trees,)


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """One text of a split that tfm generates: "numbers" to translate, or a "treebank" to parse."""

    generator: str
    num_pairs: int
    seed: int = 1

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be."""
        if self.generator not in GENERATORS:
            yield f"there is no generator {self.generator!r}: choose {', '.join(GENERATORS)}"
        if self.num_pairs < 1:
            yield f"num_pairs is {self.num_pairs}, but must be at least 1"


Text = TextFiles | TreeFile | GeneratedText


def task_of(text: Text) -> Task | None:
    """What a text can be used for; None if nobody knows what makes it."""
    match text:
        case TextFiles():
            return "translation"
        case TreeFile():
            return "parsing"
        case GeneratedText(generator=generator):
            return GENERATORS.get(generator)


def is_url(side: str) -> bool:
    """Whether a side of a text is to be downloaded."""
    return side.startswith(("http://", "https://"))
