"""The sources of a corpus: downloads, text files, tree files and generators."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import ClassVar, Literal
from urllib.parse import unquote, urlsplit

Task = Literal["translation", "parsing"]

GENERATORS: Mapping[str, Task] = {"numbers": "translation", "treebank": "parsing"}

_FILE_NAME = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f\x7f]{1,200}")
_HEX_DIGITS = {"sha256": 64, "md5": 32}


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A file to download.

    Attributes:
        url: URL, whose last part is the file name.
        sha256: Published checksum in hexadecimal.
        md5: Published checksum in hexadecimal.
        size: Published size in bytes.
        approximate_size: Approximate size in bytes if none was published, to estimate disk space.
    """

    url: str
    sha256: str | None = None
    md5: str | None = None
    size: int | None = None
    approximate_size: int | None = None

    @property
    def name(self) -> str:
        """The file name; empty if the URL has no valid one."""
        try:
            name = PurePosixPath(unquote(urlsplit(self.url).path)).name
        except ValueError:  # such as for an unclosed bracket
            return ""
        return name if _FILE_NAME.fullmatch(name) else ""

    @property
    def has_checksum(self) -> bool:
        """Whether the content can be verified."""
        return self.sha256 is not None or self.md5 is not None

    def problems(self) -> Iterator[str]:
        """Describe each invalid value."""
        if not is_url(self.url) or not self.name:
            yield f"{self.url!r} is not an http or https URL of a file"
        for kind, num_digits in _HEX_DIGITS.items():
            value = getattr(self, kind)
            if value is not None and not re.fullmatch(f"[0-9a-f]{{{num_digits}}}", value):
                yield f"{kind} of {self.name} must be {num_digits} hexadecimal digits in lower case"


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """One text of a split: two files with translations line by line.

    If both are the same file, it has two columns, source and target, separated by a tab. Names may
    end in .gz (compressed), .sgm (SGML) or .sgm.gz.

    Attributes:
        source: Member of the archive; without an archive, a URL or the path of a file.
        target: The same for the target language.
        archive: File name of the tar archive.
        lines: Expected number of lines.
    """

    source: str
    target: str
    archive: str | None = None
    lines: int | None = None

    task: ClassVar[Task] = "translation"

    @property
    def sides(self) -> tuple[str, str]:
        """The source and the target."""
        return self.source, self.target

    def problems(self) -> Iterator[str]:
        """Describe each invalid value."""
        if self.lines is not None and self.lines < 1:
            yield f"lines is {self.lines}, but must be at least 1"


@dataclass(frozen=True, kw_only=True)
class TreeFile:
    """One text of a split: bracketed trees, whose words are the source.

    Attributes:
        trees: Member of the archive; without an archive, a URL or the path of a file. A file whose
            name ends in .gz is decompressed.
        archive: File name of the tar archive.
    """

    trees: str
    archive: str | None = None

    task: ClassVar[Task] = "parsing"

    @property
    def sides(self) -> tuple[str]:
        """The file, as a tuple."""
        return (self.trees,)

    def problems(self) -> Iterator[str]:
        """Describe each invalid value; there are none."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """One text of a split that tfm generates.

    Attributes:
        generator: "numbers" to translate, or a "treebank" to parse.
        num_pairs: Number of sentence pairs.
        seed: Random seed.
    """

    generator: str
    num_pairs: int
    seed: int = 1

    @property
    def task(self) -> Task | None:
        """The task of the generator; None if the generator is unknown."""
        return GENERATORS.get(self.generator)

    def problems(self) -> Iterator[str]:
        """Describe each invalid value."""
        if self.generator not in GENERATORS:
            yield f"there is no generator {self.generator!r}: choose {', '.join(GENERATORS)}"
        if self.num_pairs < 1:
            yield f"num_pairs is {self.num_pairs}, but must be at least 1"


Text = TextFiles | TreeFile | GeneratedText


def is_url(side: str) -> bool:
    """Return whether a side of a text is a URL to download."""
    return side.startswith(("http://", "https://"))
