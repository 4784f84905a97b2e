"""The texts of a recipe: files, corpora of OPUS and trees, and their downloads."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from tfm.config import Task, Values, tag_problem
from tfm.text.files import suffix_of
from tfm.text.formats import JSON_LINES, MEMORIES, TABLES

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

# Languages are suffixes of file names.
# Several languages on one side are joined by +, as in de+fr.
LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\+[A-Za-z][A-Za-z0-9_-]*)*")
Language = Annotated[str, LANGUAGE]

_FILE_NAME = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f\x7f]{1,200}")
_HEX_DIGITS = {"sha256": 64, "md5": 32}
_MIN_WEIGHT, _MAX_WEIGHT = 1e-6, 1e6
# Settings of [cleaning] that hold for all texts.
_OF_ALL_TEXTS = {
    *("normalize_space", "normalize_unicode", "shard_pairs", "protect"),
    *("scores", "unique_sides", "hold_out", "hold_out_seed"),
}
_OPUS_URL = "https://object.pouta.csc.fi"
_OPUS_CORPUS = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_OPUS_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([_-][A-Za-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A file to download.

    Attributes:
        url: URL, whose last part is the file name.
        sha256: Published checksum in hexadecimal.
        md5: Published checksum in hexadecimal.
        size: Published size in bytes.
        checksums_of: The publisher of the checksums, and what to do if the file has another one.
    """

    checksums_of: ClassVar[tuple[str, str]] = "the recipe", "accept it with --no-verify"

    url: str
    sha256: str | None = None
    md5: str | None = None
    size: int | None = None

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


class OpusArchive(Archive):
    """A file of OPUS. Its name has folders, because the files of all corpora have equal names."""

    @property
    def name(self) -> str:
        """The path on OPUS's server, such as OPUS-Europarl/v8/moses/de-en.txt.zip."""
        return urlsplit(self.url).path[1:]

    @staticmethod
    def member(name: str) -> str:
        """Return the languages in the name of a member, before which releases differ."""
        return ".".join(name.split(".")[-2:])  # de-en.de of News-Commentary11.de-en.de


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options that every text may have besides its files.

    Attributes:
        tag: Tag such as <bt> or <2fr> that is put before each source sentence.
        every: Take only each Nth pair, such as for validation on a part of the training text.
        except_every: Leave out each Nth pair, for another text that takes it with `every`.
        weight: Only in [[train]]: the share of the pairs of an epoch, relative to the weights of
            the other texts. All of them have one, or none: then each pair comes once an epoch.
        cleaning: Only in [[train]]: settings that differ from [cleaning] for this text.
        augmentation: Only in [[train]]: settings that differ from [augmentation] of a run for this
            text, such as { typo_share = 0.1 }.
    """

    tag: str | None = None
    every: int | None = None
    except_every: int | None = None
    weight: float | None = None
    cleaning: Values = field(default_factory=dict)
    augmentation: Values = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """Return these options by name."""
        return {item.name: getattr(self, item.name) for item in fields(TextOptions)}

    def problems(self) -> Iterator[str]:
        """Describe each invalid value."""
        if self.tag is not None and (problem := tag_problem(self.tag)) is not None:
            yield f"tag {problem}"
        if self.weight is not None and not _MIN_WEIGHT <= self.weight <= _MAX_WEIGHT:
            yield (
                f"weight is {self.weight:g}, but must be from {_MIN_WEIGHT:f} to {_MAX_WEIGHT:,.0f}"
            )
        for name in ("every", "except_every"):
            step = getattr(self, name)
            if step is not None and step < 2:
                yield f"{name} is {step}, but must be at least 2"
        for name in sorted(_OF_ALL_TEXTS.intersection(self.cleaning)):
            yield f"{name} holds for all texts: set it in [cleaning]"


@dataclass(frozen=True, kw_only=True)
class TextFiles(TextOptions):
    """One text of a split: two files with translations line by line.

    If both are the same file, it has both sides: a table (.tsv, .csv), JSON lines, TMX, or WMT's
    XML. A file whose name ends in .sgm or .xml is SGML. Files may be compressed.

    Attributes:
        source: Member of the archive; without an archive, a URL or the path of a file.
        target: The same for the target language.
        archive: File name of the tar or zip archive.
        lines: Expected number of lines.
        columns: Numbers or titles of the columns of source and target in a table, or their keys in
            JSON lines, such as "translation.en"; by default, they are called after the languages,
            or are the only columns.
        keep_tags: Whether the inline tags of TMX become placeholders such as {1}; otherwise, they
            are dropped.
    """

    source: str
    target: str
    archive: str | None = None
    lines: int | None = None
    columns: tuple[int | str, int | str] | None = None
    keep_tags: bool = False

    task: ClassVar[Task] = "translation"

    @property
    def sides(self) -> tuple[str, str]:
        """The source and the target."""
        return self.source, self.target

    def problems(self) -> Iterator[str]:
        """Describe each invalid value."""
        yield from super().problems()
        if self.lines is not None and self.lines < 1:
            yield f"lines is {self.lines}, but must be at least 1"
        suffix = suffix_of(self.source) if self.source == self.target else ""
        if self.keep_tags and suffix not in MEMORIES:
            yield "keep_tags is for TMX: leave it out"
        if self.columns is not None and suffix not in (*TABLES, *JSON_LINES):
            yield "columns are those of one table or of JSON lines: give it as source and as target"
        if self.columns is not None and (
            self.columns[0] == self.columns[1] or not all(self.columns)
        ):
            names = ", ".join(map(str, self.columns))
            yield f"columns are {names}, but must be two different names, or numbers from 1 on"


@dataclass(frozen=True, kw_only=True)
class OpusText(TextOptions):
    """One text of a split: a corpus of OPUS (opus.nlpl.eu) by its name.

    Attributes:
        opus: Name and version of the corpus, such as "Europarl/v8".
        languages: OPUS's codes of source and target language; by default the recipe's.
        sha256: Checksum of the zip archive in hexadecimal.
        lines: Expected number of lines.
    """

    opus: str
    languages: tuple[str, str] = ("", "")
    sha256: str | None = None
    lines: int | None = None

    def problems(self) -> Iterator[str]:
        """Describe each invalid value."""
        yield from super().problems()
        if not _OPUS_CORPUS.fullmatch(self.opus):
            yield f"opus is {self.opus!r}, but must be a corpus and its version, as in Europarl/v8"
        if not all(map(_OPUS_LANGUAGE.fullmatch, self.languages)):
            yield f"languages are {', '.join(self.languages)}, but must be two codes such as zh_CN"
        yield from self.archive.problems()

    @property
    def archive(self) -> OpusArchive:
        """The zip archive of both languages."""
        corpus, _, version = self.opus.partition("/")
        url = f"{_OPUS_URL}/OPUS-{corpus}/{version}/moses/{self._pair}.txt.zip"
        return OpusArchive(url=url, sha256=self.sha256)

    @property
    def files(self) -> TextFiles:
        """The members of the archive that are the text."""
        corpus, _, _ = self.opus.partition("/")
        source, target = (f"{corpus}.{self._pair}.{language}" for language in self.languages)
        archive = self.archive.name
        return TextFiles(
            source=source, target=target, archive=archive, lines=self.lines, **self.options()
        )

    @property
    def _pair(self) -> str:
        return "-".join(sorted(self.languages))


@dataclass(frozen=True, kw_only=True)
class TreeFile(TextOptions):
    """One text of a split: bracketed trees, whose words are the source.

    Attributes:
        trees: Member of the archive; without an archive, a URL or the path of a file, which may
            be compressed.
        archive: File name of the tar or zip archive.
    """

    trees: str
    archive: str | None = None

    task: ClassVar[Task] = "parsing"

    @property
    def sides(self) -> tuple[str]:
        """The file, as a tuple."""
        return (self.trees,)


@dataclass(frozen=True, kw_only=True)
class MonoText:
    """Text in one language, to translate it back: the dataset holds it in mono.LANGUAGE.

    Attributes:
        language: A language of the recipe, as OPUS calls it if the text is from there.
        opus: Name and version of a corpus of OPUS, such as "News-Commentary/v16".
        text: URL or path of a file instead, which may be compressed.
        sha256: Checksum of the download in hexadecimal.
    """

    language: str
    opus: str | None = None
    text: str | None = None
    sha256: str | None = None

    @property
    def side(self) -> str:
        """The URL or the path."""
        if self.opus is None:
            return self.text or ""
        corpus, _, version = self.opus.partition("/")
        return f"{_OPUS_URL}/OPUS-{corpus}/{version}/mono/{self.language}.txt.gz"

    @property
    def download(self) -> Archive:
        """The file to download, if the side is a URL."""
        kind = Archive if self.opus is None else OpusArchive
        return kind(url=self.side, sha256=self.sha256)

    def problems(self) -> Iterator[str]:
        """Describe each invalid value."""
        if (self.opus is None) == (self.text is None):
            yield "it needs either opus or text"
        if self.opus is not None and not _OPUS_CORPUS.fullmatch(self.opus):
            yield f"opus is {self.opus!r}, but must be a corpus and its version, as in Europarl/v8"
        if not is_url(self.side) and self.sha256 is not None:
            yield "sha256 is for downloads: leave it out"


Text = TextFiles | TreeFile


def text_name(text: Text) -> str:
    """Return a name for a text: the name of its source file."""
    return PurePosixPath(text.sides[0]).name


def is_url(side: str) -> bool:
    """Return whether a side of a text is a URL to download."""
    return side.startswith(("http://", "https://"))
