"""The test sets that sacreBLEU knows by name, such as wmt14: their files, languages and text.

sacreBLEU's table has their addresses and checksums, and its classes read their formats, so the text
is the one that its command prints. tfm downloads, verifies and extracts the files.
"""

import copy
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tfm.config.suggestions import did_you_mean
from tfm.dataset.manifest import Manifest, set_split
from tfm.dataset.rerun import is_due
from tfm.disk.files import write_text
from tfm.disk.paths import existing_file
from tfm.errors import DataError, UsageError
from tfm.reporting import say
from tfm.text.archives import extract_found
from tfm.text.corpus.texts import Archive
from tfm.text.download import fetch
from tfm.text.files import suffix_of
from tfm.text.formats import TABLES
from tfm.text.languages import closest
from tfm.text.lines import read_lines
from tfm.text.records import Records
from tfm.text.segments import ALL
from tfm.text.sources import Downloads

if TYPE_CHECKING:
    from sacrebleu.dataset.base import Dataset

_PACKED = (".tgz", ".tar.gz", ".zip")
# What sacreBLEU's classes raise about files that are not as they expect.
_FORMAT_ERRORS = (AssertionError, AttributeError, LookupError, SyntaxError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class SetArchive(Archive):
    """A file of a test set, with sacreBLEU's name for it: wmt14.test-filtered.tgz."""

    checksums_of = "sacreBLEU's table", "update sacreBLEU, which may know a newer file"

    set_name: str

    @property
    def name(self) -> str:
        """The file name, which begins with the name of the set: many archives are test.tgz."""
        return f"{self.set_name.replace('/', '_')}.{super().name}"


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A test set in one direction.

    Attributes:
        name: sacreBLEU's name, such as wmt14.
        pair: Its codes of source and target language, such as en-de; "" if not chosen yet.
    """

    name: str
    pair: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.pair}"

    @classmethod
    def parse(cls, text: str) -> "NamedSet":
        """Return the set that a user calls NAME, or NAME:SRC-TGT."""
        name, colon, pair = text.partition(":")
        if name not in _datasets():
            if (path := Path(name)).suffix or path.is_file():
                existing_file(path)
                raise UsageError(f"{name} is a file, not a test set of sacreBLEU: use another flag")
            usual = re.sub(r"^(newstest|wmt)20(?=\d\d)", "wmt", name)  # newstest2014 is wmt14
            advice = did_you_mean(usual, [*_datasets()], {}, "choose among")
            raise UsageError(f"sacreBLEU has no test set {name!r}: {advice}")
        named = cls(name=name)
        return named.between(*pair.partition("-")[::2]) if colon else named

    def between(self, source: str, target: str) -> "NamedSet":
        """Return the set in the one of its directions that these languages have.

        Several languages of a side are joined by +, and codes may differ from sacreBLEU's.
        """
        sides, known = (source.split("+"), target.split("+")), sorted(self._dataset.langpairs)
        choices = [self.pair] if self.pair else known
        found = [pair for pair in choices if all(map(closest, pair.split("-"), sides))]
        if self.pair and not found:
            raise UsageError(f"{self} is not from {source} to {target}: leave it out")
        if not found:
            raise UsageError(f"{self.name} has no {source}-{target}: it has {', '.join(known)}")
        if len(found) > 1:
            example = f"{self.name}:{found[0]}"
            raise UsageError(f"{self.name} has {' and '.join(found)}: name one, as in {example}")
        return replace(self, pair=found[0])

    @property
    def languages(self) -> tuple[str, str]:
        """The codes of source and target language."""
        source, _, target = self.pair.partition("-")
        return source, target

    @property
    def archives(self) -> list[SetArchive]:
        """The files to download."""
        urls = self._dataset.data or []
        checksums: list[Any] = self._dataset.md5 or [None] * len(urls)
        pairs = zip(urls, checksums, strict=True)
        return [SetArchive(url=url, md5=md5, set_name=self.name) for url, md5 in pairs]

    @property
    def _dataset(self) -> "Dataset":
        return _datasets()[self.name]

    def fetch(self, downloads: Downloads) -> dict[str, Path]:
        """Download and verify the files that are missing; return {name: file}.

        Without a folder for downloads, they are kept in the user's cache, but files of the
        sacrebleu command are used in place.
        """
        from sacrebleu.utils import SACREBLEU_DIR

        theirs = Path(SACREBLEU_DIR, self.name, "raw")
        folder = _folder(downloads)
        found = {}
        for archive in self.archives:
            is_theirs = downloads == Downloads() and (theirs / archive.name).is_file()
            place, verify = theirs if is_theirs else folder, downloads.verify
            file = fetch(archive, place, mirror=downloads.mirror, verify=verify)
            found[archive.name] = file.path
        return found

    def read(self, files: Mapping[str, Path]) -> list[str]:
        """Return the source and all references as sacreBLEU reads them, a line per segment."""
        entry: Any = self._dataset.langpairs[self.pair]
        members = [entry["path"]] if isinstance(entry, dict) else entry
        with TemporaryDirectory() as folder:
            raw = Path(folder, "raw")
            # In TSV files, the number of a column precedes the name.
            _unpack(files, {member.partition(":")[2] or member for member in members}, raw)
            dataset: Any = copy.copy(self._dataset)
            # These have no public names. The files are there, and the folder is temporary.
            vars(dataset).update(_outdir=folder, _rawdir=str(raw), maybe_download=lambda: None)
            try:
                source = dataset.get_source_file(self.pair)
                paths = [source, *dataset.get_reference_files(self.pair)]
                texts = [Path(path).read_bytes().decode() for path in paths]
            except _FORMAT_ERRORS as error:
                raise DataError(f"{self} cannot be read: {error!r}") from error
        if len(texts) < 2 or len({text.count("\n") for text in texts}) > 1:
            raise DataError(f"{self} has texts of different lengths")
        return texts

    def write(self, downloads: Downloads) -> tuple[Path, Path]:
        """Write source and first reference beside the downloads; return the files."""
        texts = self.read(self.fetch(downloads))[:2]
        stem = _folder(downloads) / str(self).replace("/", "_").replace(":", ".")
        source, reference = write_set(texts, stem, self.languages)
        return source, reference


def _folder(downloads: Downloads) -> Path:
    """Return where files of test sets are kept: by default, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    if downloads.folder is None and cache.startswith("~"):
        raise UsageError("this user has no home folder for downloads: set XDG_CACHE_HOME")
    return downloads.folder or Path(cache, "tfm", "test-sets")


def write_set(texts: Sequence[str], stem: Path, languages: Sequence[str]) -> list[Path]:
    """Write a source to STEM.SOURCE, its references to STEM.TARGET, STEM.2.TARGET and so on."""
    paths = _paths_of_set(stem, languages, len(texts))
    for path, text in zip(paths, texts, strict=True):
        write_text(path, text)
    return paths


def _paths_of_set(stem: Path, languages: Sequence[str], num_texts: int) -> list[Path]:
    source, target = languages
    ends = [source, target, *(f"{number}.{target}" for number in range(2, num_texts))]
    return [stem.with_name(f"{stem.name}.{end}") for end in ends]


def write_sets(
    manifest: Manifest,
    sets: Mapping[str, NamedSet],
    files: Mapping[str, Mapping[str, Path]],
    *,
    force: bool,
) -> None:
    """Write test sets into a dataset, from the files of each; both by the names that a user gives.

    A set that is up to date is left as it is.
    """
    for name, named in sets.items():
        split = set_split(name)
        inputs = {"pair": named.pair, "downloads": [asdict(each) for each in named.archives]}
        if not is_due(manifest, split, inputs):
            continue
        texts, stem = named.read(files[name]), manifest.data_dir / split
        if manifest.inputs(split) is None and not force:
            for path in filter(Path.exists, _paths_of_set(stem, manifest.languages, len(texts))):
                raise UsageError(f"{path} was not written by tfm prepare: move it, or use --force")
        paths = write_set(texts, stem, manifest.languages)
        result = {"pairs": texts[0].count("\n"), "references": len(texts) - 1}
        manifest.record(split, inputs=inputs, outputs=paths, result=result)
        manifest.save()
        say(f"test set {name} ({named.pair}): {result['pairs']:,} pairs")


def read_protected(
    names: Sequence[str], languages: tuple[str, str], downloads: Downloads
) -> list[bytes]:
    """Return the lines of files and of test sets by name, of both sides."""
    lines: list[bytes] = []
    for path in map(Path, names):
        if path.exists():
            if suffix_of(existing_file(path).name) in TABLES:
                lines += Records.of(path, (1, 2), languages).texts()
            else:
                lines += read_lines(path, strict=True, part=ALL)
            continue
        named = NamedSet.parse(str(path))
        named = named if named.pair else named.between(*languages)
        lines += "".join(named.read(named.fetch(downloads))).encode().split(b"\n")
    return b"\t".join(lines).split(b"\t") if names else []


def _datasets() -> "Mapping[str, Dataset]":
    from sacrebleu.dataset import DATASETS  # here, because loading it takes time

    return DATASETS


def _unpack(files: Mapping[str, Path], members: Collection[str], folder: Path) -> None:
    """Copy or extract files to a folder, under their names; raise DataError if one is missing."""
    missing = {member: folder / member for member in members}
    for name, path in files.items():
        if name in missing:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(path, missing.pop(name))
        elif missing and name.endswith(_PACKED):
            found = extract_found(path, missing)
            missing = {member: out for member, out in missing.items() if member not in found}
    if missing:
        raise DataError(f"{', '.join(files)} have no {' and no '.join(sorted(missing))}")
