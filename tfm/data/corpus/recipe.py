"""A recipe: downloads, text files and generators of a corpus, and how to prepare it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from tfm.config import Table, Task, tag_problem
from tfm.data.languages import closest
from tfm.data.manifest import LANGUAGE, SPLITS

_FILE_NAME = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f\x7f]{1,200}")
_HEX_DIGITS = {"sha256": 64, "md5": 32}
# The name of a recipe may be used as a folder's name.
_NAME = re.compile(r"[^\W_][^/\\\x00-\x1f\x7f\ud800-\udfff]{0,200}")
_MIN_WEIGHT, _MAX_WEIGHT = 1e-6, 1e6
_OF_ALL_TEXTS = {"normalize_space", "normalize_unicode", "part_pairs"}  # settings of [cleaning]
_OPUS_URL = "https://object.pouta.csc.fi"
_OPUS_CORPUS = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_OPUS_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([_-][A-Za-z0-9]+)*")
# Defaults of each task. Treebanks are clean, and the cleaning rules are for text: they would drop
# good trees. Search is as in §6.3.
_TASK_SETTINGS: Mapping[Task, Mapping[str, Table]] = {
    "translation": {},
    "parsing": {
        "cleaning": {
            "normalize_space": False,
            "max_characters": 0,
            "max_length_ratio": 0.0,
            "drop_duplicates": False,
            "drop_copies": False,
        },
        "subword": {"separate": True, "target_words": True},
        "binarize": {"max_length": 500},
        "search": {"beam_size": 21, "length_penalty": 0.3, "max_extra_length": 300},
    },
}


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A file to download.

    Attributes:
        url: URL, whose last part is the file name.
        sha256: Published checksum in hexadecimal.
        md5: Published checksum in hexadecimal.
        size: Published size in bytes.
    """

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


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options that every text may have besides its files.

    Attributes:
        tag: Tag such as <bt> or <2fr> that is put before each source sentence.
        every: Take only each Nth pair, such as for validation on a part of the training text.
        except_every: Leave out each Nth pair, which another text takes with `every`.
        weight: Only in [[train]]: the share of the pairs of an epoch, relative to the weights of
            the other texts. All of them have one, or none: then each pair comes once an epoch.
        cleaning: Only in [[train]]: settings that differ from [cleaning] for this text.
    """

    tag: str | None = None
    every: int | None = None
    except_every: int | None = None
    weight: float | None = None
    cleaning: Table = field(default_factory=dict)

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

    If both are the same file, it has two columns, source and target, separated by a tab. A file
    whose name ends in .sgm or .xml is SGML. Files may be compressed.

    Attributes:
        source: Member of the archive; without an archive, a URL or the path of a file.
        target: The same for the target language.
        archive: File name of the tar or zip archive.
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
        yield from super().problems()
        if self.lines is not None and self.lines < 1:
            yield f"lines is {self.lines}, but must be at least 1"


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
class GeneratedText(TextOptions):
    """One text of a split that tfm generates.

    Attributes:
        generator: "numbers": numbers, dates, times and prices, English-German.
        num_pairs: Number of sentence pairs.
        seed: Random seed.
    """

    generator: Literal["numbers"]
    num_pairs: int
    seed: int = 1

    task: ClassVar[Task] = "translation"

    def problems(self) -> Iterator[str]:
        """Describe each invalid value."""
        yield from super().problems()
        if self.num_pairs < 1:
            yield f"num_pairs is {self.num_pairs}, but must be at least 1"


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


Text = TextFiles | TreeFile | GeneratedText


def text_name(text: Text) -> str:
    """Return a name for a text: the name of its source file or of its generator."""
    return text.generator if isinstance(text, GeneratedText) else PurePosixPath(text.sides[0]).name


def is_url(side: str) -> bool:
    """Return whether a side of a text is a URL to download."""
    return side.startswith(("http://", "https://"))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Where a corpus comes from, and how to prepare it.

    Attributes:
        name: Name of the dataset.
        source: Source language, the suffix of its files.
        target: Target language, the suffix of its files.
        task: "translation", or "parsing", whose texts are trees.
        description: Description in one or two sentences.
        text_size: Approximate size in bytes of both sides of the unpacked downloads, to list it
            and to check the disk space.
        archives: Archives, and other downloads with known checksums.
        train: Training texts, in the order in which they are concatenated.
        valid: Validation texts.
        test: Test texts.
        mono: Texts in one language, to translate them back.
        cleaning: Settings of CleaningConfig that differ from the defaults.
        subword: Settings of SubwordConfig that differ from the defaults.
        binarize: Settings of BinarizeConfig that differ from the defaults.
        search: Settings of SearchConfig that a model of this dataset brings.
    """

    name: str
    source: str
    target: str
    task: Task = "translation"
    description: str = ""
    text_size: int | None = None
    archives: tuple[Archive, ...] = ()
    train: tuple[Text, ...] = ()
    valid: tuple[Text, ...] = ()
    test: tuple[Text, ...] = ()
    mono: tuple[MonoText, ...] = ()
    cleaning: Table = field(default_factory=dict)
    subword: Table = field(default_factory=dict)
    binarize: Table = field(default_factory=dict)
    search: Table = field(default_factory=dict)

    def texts(self, split: str) -> tuple[Text, ...]:
        """Return the texts of a split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    def tags(self) -> list[str]:
        """Return the tags of the texts of all splits, each once."""
        tags = (text.tag for split in SPLITS for text in self.texts(split))
        return list(dict.fromkeys(tag for tag in tags if tag is not None))

    def text_files(self) -> list[TextFiles | TreeFile]:
        """Return the texts of all splits that are read from files."""
        texts = (text for split in SPLITS for text in self.texts(split))
        return [text for text in texts if not isinstance(text, GeneratedText)]

    def settings(self, section: str) -> dict[str, Any]:
        """Return the settings of a section: "cleaning", "subword", "binarize" or "search"."""
        return {**_TASK_SETTINGS[self.task].get(section, {}), **getattr(self, section)}

    def downloads(self) -> list[Archive]:
        """Return all downloads: archives, then texts that are not in archives."""
        known = {archive.url for archive in self.archives}
        loose = {side: Archive(url=side) for side in self._loose_sides() if is_url(side)}
        loose |= {text.side: text.download for text in self.mono if is_url(text.side)}
        return [*self.archives, *(file for url, file in loose.items() if url not in known)]

    def local_paths(self) -> list[Path]:
        """Return the paths of texts on this machine."""
        return [Path(side) for side in self._loose_sides() if not is_url(side)]

    def num_bytes(self) -> int:
        """Return the size of the text in bytes; archives of unknown size count as 0."""
        size = self.text_size or sum(file.size or 0 for file in self.archives)
        return size + sum(path.stat().st_size for path in self.local_paths())

    def problems(self) -> Iterator[str]:
        """Describe each invalid value, and how to correct it."""
        if not _NAME.fullmatch(self.name):
            yield f"name {self.name!r} must start with a letter or digit and hold no slash"
        for language in (self.source, self.target):
            if not LANGUAGE.fullmatch(language):
                yield f"language {language!r} must be letters, digits and dashes, such as en"
        if self.source == self.target:
            yield f"source and target are both {self.source!r}"
        for split in SPLITS:
            for number, text in enumerate(self.texts(split), 1):
                if text.task != self.task:
                    yield f'[[{split}]] {number} needs task = "{text.task}", not "{self.task}"'
                if split != "train" and (text.weight is not None or text.cleaning):
                    yield f"[[{split}]] {number} has a weight or cleaning: only [[train]] texts can"
        yield from self._mono_problems()
        yield from self._mixture_problems()
        yield from self._file_problems()

    def _loose_sides(self) -> list[str]:
        texts = (text for text in self.text_files() if text.archive is None)
        # A .tsv file is both sides.
        sides = [side for text in texts for side in dict.fromkeys(text.sides)]
        return sides + [text.side for text in self.mono]

    def _mono_problems(self) -> Iterator[str]:
        languages = f"{self.source}+{self.target}".split("+")
        for number, text in enumerate(self.mono, 1):
            if self.task == "parsing" or closest(text.language, languages) is None:
                yield f"[[mono]] {number} is in {text.language!r}, no language to translate here"

    def _mixture_problems(self) -> Iterator[str]:
        weights = [text.weight for text in self.train]
        if None in weights and any(weights):
            yield (
                f"[[train]] {weights.index(None) + 1} has no weight, but others have one: give all "
                "of them a weight, or none"
            )
        if self.task == "parsing" and self.tags():
            yield "tags are for translation: leave them out for a parser"
        texts = (text for split in SPLITS for text in self.texts(split))
        if self.task == "parsing" and any(text.every or text.except_every for text in texts):
            yield "every and except_every are for translation: leave them out for a parser"
        if "tag" in self.search:
            yield "tag is no setting of [search] in a recipe: give it to [[valid]] and [[test]]"

    def _file_problems(self) -> Iterator[str]:
        urls: dict[str, str] = {}
        for file in self.downloads():
            if file not in self.archives:
                yield from file.problems()
            if file.name in urls:
                yield f"{urls[file.name]} and {file.url} have the same file name"
            urls[file.name] = file.url
        for text in self.text_files():
            if text.archive is not None and text.archive not in urls:
                yield f"archive {text.archive!r} is not the file name of any [[archives]] entry"
        for path in self.local_paths():
            if path.is_dir():
                yield f"{path} is a folder, not a file: check its name"
            elif not path.is_file():
                yield f"{path} does not exist: check its name"
