"""Download, unpack and read the text of a recipe."""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from tfm.disk.files import read_json, sha256_of, write_json
from tfm.errors import DataError
from tfm.reporting import say
from tfm.text.archives import extract_members, unpack_file
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import (
    SPLITS,
    Archive,
    OpusArchive,
    Split,
    Text,
    TextFiles,
    TreeFile,
    is_url,
    text_name,
)
from tfm.text.download import CHECKSUMS, FetchedFile, fetch, located
from tfm.text.files import suffix_of
from tfm.text.formats import MEMORIES, SEGMENTS, columns_in, format_of
from tfm.text.lines import BytesPair, UnusableLine, read_lines, read_pairs
from tfm.text.records import Records
from tfm.text.segments import ALL, REFERENCE, SOURCE
from tfm.text.tags import untagged
from tfm.text.tmx import read_tmx
from tfm.text.trees import Tree, linearize, normalize, read_trees, words_of


@dataclass(frozen=True, kw_only=True)
class Downloads:
    """Options for downloads.

    Attributes:
        mirror: A folder or URL that holds the files by their names.
        folder: The folder to keep the files in; downloads in the dataset folder if None.
        verify: Compare files with the checksums in the recipe, or else with the checksums of their
            first download, which checksums.json in the dataset folder records.
    """

    mirror: str | None = None
    folder: Path | None = None
    verify: bool = True


class TextSources:
    """All texts of a recipe, downloaded and then unpacked in `raw_dir`.

    By default, this is raw in `data_dir`. `tags` are the vocabulary's.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        data_dir: Path,
        downloads: Downloads,
        raw_dir: Path | None = None,
        tags: Collection[str] = (),
    ) -> None:
        raw_dir = raw_dir or data_dir / "raw"
        self.recipe = recipe
        self.downloads_dir = downloads.folder or data_dir / "downloads"
        self._mirror = downloads.mirror
        self._verify = downloads.verify
        self.tags = tags
        self._described: set[Path] = set()  # how their records are read
        self._checksums_path = data_dir / CHECKSUMS
        # {(archive or None, member or URL or path): where the text is unpacked}. Local files are
        # read in place. Names in an archive never become paths.
        self._unpacked: dict[tuple[str | None, str], Path] = {}
        for split in SPLITS:
            for number, text in enumerate(recipe.texts(split), 1):
                languages = (recipe.source, recipe.target)[-len(text.sides) :]
                for language, side in zip(languages, text.sides, strict=True):
                    if text.archive is not None or is_url(side):
                        name = f"{split}-{number}.{language}{_format_suffix(side)}"
                        self._unpacked.setdefault((text.archive, side), raw_dir / name)

        for number, mono in enumerate(recipe.mono, 1):
            if is_url(mono.side):
                path = raw_dir / f"mono-{number}.{mono.language}{_format_suffix(mono.side)}"
                self._unpacked.setdefault((None, mono.side), path)

    @property
    def unpacked_paths(self) -> list[Path]:
        """The paths that `unpack` writes."""
        return list(self._unpacked.values())

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """JSON values that change whenever the text may change, for each split and `mono`."""
        contents = {str(path): sha256_of(path) for path in self.recipe.local_paths()}
        downloads = self.recipe.downloads()
        if self._mirror is not None and not is_url(self._mirror):
            for file in downloads:
                path = located(file, self.downloads_dir, self._mirror)
                # A verified file is the same in every mirror.
                if not (self._verify and file.has_checksum) and path.is_file():
                    contents[file.name] = sha256_of(path)

        def origin(location: dict[str, Any]) -> dict[str, Any]:
            names = [str(value) for value in location.values()]
            files = [file for file in downloads if file.name in names or file.url in names]
            names += [file.name for file in files]
            return {
                **location,
                "contents": {name: contents[name] for name in names if name in contents},
                "downloads": [asdict(file) for file in files],
            }

        origins: dict[str, Any] = {
            split: [origin(_location(text)) for text in self.recipe.texts(split)]
            for split in SPLITS
        }
        mono = [origin(asdict(text)) for text in self.recipe.mono]
        return {**origins, "mono": mono, "verify": self._verify}

    def fetch(self) -> dict[str, FetchedFile]:
        """Download all files that are missing; return {file name: file}."""
        recorded = self._recorded()
        return {
            file.name: fetch(
                file,
                self.downloads_dir,
                mirror=self._mirror,
                verify=self._verify,
                recorded=recorded.get(file.url),
            )
            for file in self.recipe.downloads()
        }

    def unpack(self, fetched: dict[str, FetchedFile]) -> None:
        """Unpack all texts from the files that `fetch` returned.

        The checksums of files that the recipe has none of are recorded once they prove intact.
        """
        for each in self.recipe.downloads():
            named = OpusArchive.member if isinstance(each, OpusArchive) else str
            members = {
                named(side): path
                for (archive, side), path in self._unpacked.items()
                if archive == each.name
            }
            if members:
                extract_members(fetched[each.name].path, members, named)
        names = {file.url: file.name for file in self.recipe.downloads()}
        for (archive, side), path in self._unpacked.items():
            if archive is None:
                unpack_file(fetched[names[side]].path, path)
        unverified = [file for file in self.recipe.downloads() if not file.has_checksum]
        if unverified and self._verify:
            checksums = {file.url: fetched[file.name].sha256 for file in unverified}
            write_json(self._checksums_path, self._recorded() | checksums)

    def _recorded(self) -> dict[str, Any]:
        """Return {URL: SHA-256} of first downloads."""
        return read_json(self._checksums_path) if self._checksums_path.exists() else {}

    def pairs(self, text: Text, split: Split) -> Iterator[BytesPair]:
        """Read the (source, target) pairs of a text, without its tag, if it has one.

        Trees are linearized.
        """
        pairs = self.all_pairs(text, split)
        if text.tag is not None:
            pairs = self._untagged(pairs, text, text.tag)
        if text.every is not None:
            pairs = islice(pairs, text.every - 1, None, text.every)
        if (step := text.except_every) is not None:
            pairs = (pair for number, pair in enumerate(pairs, 1) if number % step)
        return pairs

    def _untagged(self, pairs: Iterator[BytesPair], text: Text, tag: str) -> Iterator[BytesPair]:
        """Yield pairs whose sources do not begin with the tag that they will get."""
        file = self.locate_sides(text)[0] if isinstance(text, TextFiles) else text_name(text)
        for number, (source, target) in enumerate(pairs, start=1):
            if isinstance(source, UnusableLine):
                yield source, target
                continue
            line, place = source.decode(errors="surrogateescape"), f"{file}, line {number:,}"
            line = untagged(line, tag, self.tags.__contains__, place=place)
            yield line.encode(errors="surrogateescape"), target

    def all_pairs(self, text: Text, split: Split) -> Iterator[BytesPair]:
        """Read the pairs of a text as its files have them.

        They may have its tag, and `every` does not count.
        """
        if isinstance(text, TextFiles):
            # Invalid lines may be dropped from training text, but not from test text.
            return self._pairs_of_files(text, strict=split != "train")
        return (
            (" ".join(words_of(tree)).encode(), " ".join(linearize(tree)).encode())
            for tree in self.trees(text)
        )

    def _pairs_of_files(self, text: TextFiles, *, strict: bool) -> Iterator[BytesPair]:
        """Read the pairs of two files, or of one that has both sides."""
        source_path, target_path = self.locate_sides(text)
        suffix = suffix_of(source_path.name)
        languages = self.recipe.source, self.recipe.target
        if text.source == text.target and suffix in MEMORIES:
            return read_tmx(source_path, languages, num_units=text.lines, keep_tags=text.keep_tags)
        if text.source == text.target and suffix not in SEGMENTS:
            records = Records.of(source_path, text.columns, languages)
            if source_path not in self._described:
                self._described.add(source_path)
                say(f"{source_path.name}: {records.description}")
            return records.pairs(strict=strict, num_lines=text.lines)
        if text.source == text.target and SOURCE not in columns_in(source_path):
            raise DataError(
                f"{source_path} has no <src> beside its <ref>: give two files; if it is TMX, "
                "rename it to .tmx"
            )
        parts: tuple[str, str] = (SOURCE, REFERENCE)
        return read_pairs(
            source_path, target_path, strict=strict, num_lines=text.lines, parts=parts
        )

    def lines(self, language: str) -> Iterator[bytes]:
        """Read the lines of the monolingual texts in a language, some perhaps not UTF-8."""
        for path in self.mono_paths(language):
            yield from read_lines(path, strict=False, part=ALL)

    def mono_paths(self, language: str) -> list[Path]:
        """Return the files of the monolingual texts in a language."""
        return [
            self._locate(None, text.side) for text in self.recipe.mono if text.language == language
        ]

    def trees(self, text: TreeFile) -> Iterator[Tree]:
        """Read the normalized trees of a text."""
        trees = map(normalize, read_trees(self._locate(text.archive, text.trees)))
        return (tree for tree in trees if tree is not None)

    def locate_sides(self, text: TextFiles) -> tuple[Path, Path]:
        """Return the plain or SGML files from which the two sides of a text are read."""
        return self._locate(text.archive, text.source), self._locate(text.archive, text.target)

    def _locate(self, archive: str | None, side: str) -> Path:
        """Return the path from which a side of a text is read."""
        return self._unpacked.get((archive, side), Path(side))


def _location(text: Text) -> dict[str, Any]:
    """Return where a text comes from, without the options that only later steps read."""
    location = {k: value for k, value in asdict(text).items() if k not in text.options()}
    columns = location.pop("columns", None)
    return location if columns is None else location | {"columns": list(columns)}


def _format_suffix(side: str) -> str:
    """Return the suffix that tells a reader of text the format of a side."""
    name = Archive(url=side).name if is_url(side) else PurePosixPath(side).name
    text_format = format_of(name)
    return "" if text_format is None else text_format.suffixes[0]
