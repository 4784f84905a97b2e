"""The text of a recipe: found, fetched, unpacked and read."""

import typing
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tfm.data.archives import extract_members, unpack_file
from tfm.data.corpus.recipe import Recipe
from tfm.data.corpus.texts import Archive, GeneratedText, Text, TextFiles, TreeFile, is_url
from tfm.data.download import Fetched, fetch, part_path
from tfm.data.manifest import SPLITS
from tfm.data.text import read_columns, read_pairs
from tfm.data.trees.brackets import read_trees
from tfm.data.trees.symbols import linearize
from tfm.data.trees.tree import Tree, normalize, words_of
from tfm.storage.files import sha256_of, size_of

if typing.TYPE_CHECKING:
    from tfm.data.synthetic.corpus import Split


# Text packs to a third or a fourth of its size.
_UNPACKED_BYTES_PER_PACKED_BYTE = 4
_BYTES_PER_GENERATED_PAIR = {"numbers": 104, "treebank": 205}


@dataclass(frozen=True, kw_only=True)
class TextSize:
    """The approximate size of a recipe's text in bytes.

    Attributes:
        missing: What is still to be downloaded.
        unpacked: What is to be unpacked.
        text: All text.
        is_least: Whether it is a lower bound: the size of a download is not known.
    """

    missing: int
    unpacked: int
    text: int
    is_least: bool


class TextSources:
    """All texts of a recipe.

    Args:
        recipe: Says where they come from.
        raw_dir: Where they are unpacked.
        downloads_dir: Where downloads are kept.
        mirror: A folder or URL that has the downloads by their file names.
        verify: Whether to compare downloads with the recipe's checksums.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        raw_dir: Path,
        downloads_dir: Path,
        mirror: str | None = None,
        verify: bool = True,
    ) -> None:
        self._recipe = recipe
        self._downloads_dir = downloads_dir
        self._mirror = mirror
        self._verify = verify
        # {(archive or None, member, URL or path): where its text is unpacked}; plain files on this
        # machine are read where they lie. Names in an archive never become paths.
        self._unpacked: dict[tuple[str | None, str], Path] = {}
        for split in SPLITS:
            for number, text in enumerate(recipe.texts(split), 1):
                if isinstance(text, GeneratedText):
                    continue
                languages = (recipe.source, recipe.target)[-len(text.sides) :]
                for language, side in zip(languages, text.sides, strict=True):
                    if text.archive is not None or is_url(side) or side.endswith(".gz"):
                        path = raw_dir / f"{split}-{number}.{language}{_sgml_suffix(side)}"
                        self._unpacked.setdefault((text.archive, side), path)

    @property
    def unpacked_paths(self) -> list[Path]:
        """The files that `unpack` writes."""
        return list(self._unpacked.values())

    def fingerprint(self) -> dict[str, Any]:
        """All that decides which text it is, as JSON values."""
        contents = {str(path): sha256_of(path) for path in self._recipe.local_paths()}
        if self._mirror is not None and not is_url(self._mirror):
            for file in self._recipe.downloads():
                path = self._path(file)
                # Once compared with a checksum, a mirror's file is the same as anybody's.
                if not (self._verify and file.has_checksum) and path.is_file():
                    contents[file.name] = sha256_of(path)
        return {
            "downloads": [
                asdict(replace(file, approximate_size=None)) for file in self._recipe.downloads()
            ],
            "texts": {s: [asdict(text) for text in self._recipe.texts(s)] for s in SPLITS},
            "contents": contents,
            "verify": self._verify,
        }

    def size(self) -> TextSize:
        """How large the text is, as far as it can be told before anything is downloaded."""
        recipe = self._recipe
        missing = packed = 0
        is_least = False
        for file in recipe.downloads():
            path = self._path(file)
            if path.is_file():
                packed += path.stat().st_size
            elif path.parent == self._downloads_dir:
                size = file.size or file.approximate_size
                is_least |= size is None
                packed += size or 0
                missing += max(0, (size or 0) - size_of(part_path(path)))
        unpacked = _UNPACKED_BYTES_PER_PACKED_BYTE * packed
        if recipe.text_size is not None:
            # The archives of a mirror may be other ones, and smaller.
            unpacked = recipe.text_size if is_least else min(unpacked, recipe.text_size)
        for path in recipe.local_paths():
            if path.suffix == ".gz":
                unpacked += _UNPACKED_BYTES_PER_PACKED_BYTE * path.stat().st_size
        return TextSize(
            missing=missing,
            unpacked=max(0, unpacked - sum(map(size_of, self.unpacked_paths))),
            text=unpacked + self._size_in_place(),
            is_least=is_least,
        )

    def _path(self, file: Archive) -> Path:
        """Where a download is, or will be."""
        if self._mirror is None or is_url(self._mirror):
            return self._downloads_dir / file.name
        return Path(self._mirror) / file.name

    def _size_in_place(self) -> int:
        """Bytes of the text that needs no unpacking: plain files, and what tfm makes up."""
        plain = sum(p.stat().st_size for p in self._recipe.local_paths() if p.suffix != ".gz")
        texts = (text for split in SPLITS for text in self._recipe.texts(split))
        generated = (text for text in texts if isinstance(text, GeneratedText))
        return plain + sum(
            text.num_pairs * _BYTES_PER_GENERATED_PAIR[text.generator] for text in generated
        )

    def fetch(self) -> dict[str, Fetched]:
        """Have all downloads on this machine, by file name.

        Raises:
            DownloadError: One cannot be fetched, or is not what the recipe means.
        """
        return {
            file.name: fetch(file, self._downloads_dir, mirror=self._mirror, verify=self._verify)
            for file in self._recipe.downloads()
        }

    def unpack(self, fetched: dict[str, Fetched]) -> None:
        """Unpack all texts of archives, downloads (which `fetch` returned) and compressed files.

        Raises:
            DataError: A member is missing, or an archive damaged.
        """
        for name, file in fetched.items():
            members = {
                side: path for (archive, side), path in self._unpacked.items() if archive == name
            }
            if members:
                extract_members(file.path, members)
        for (archive, side), path in self._unpacked.items():
            if archive is None:
                is_fetched = is_url(side)
                unpack_file(
                    fetched[Archive(url=side).name].path if is_fetched else Path(side), path
                )

    def pairs(self, text: Text, split: "Split") -> Iterator[tuple[bytes, bytes]]:
        """Read a text, or generate it; of trees, the sentences and symbols.

        Raises:
            DataError: Sides have unequal numbers of lines, or a file is damaged.
        """
        if isinstance(text, TextFiles):
            source_path, target_path = self.located(text)
            # A line that is broken may be left out of training, but not of a test.
            strict = split != "train"
            if text.source == text.target:
                return read_columns(source_path, strict=strict, num_lines=text.lines)
            return read_pairs(source_path, target_path, strict=strict, num_lines=text.lines)
        if isinstance(text, TreeFile) or self._recipe.task == "parsing":
            return (
                (" ".join(words_of(tree)).encode(), " ".join(linearize(tree)).encode())
                for tree in self.trees(text, split)
            )
        from tfm.data.synthetic.corpus import generate_pairs  # for no other recipe

        generated = generate_pairs(split, num_pairs=text.num_pairs, seed=text.seed)
        return ((source.encode(), target.encode()) for source, target in generated)

    def trees(self, text: TreeFile | GeneratedText, split: "Split") -> Iterator[Tree]:
        """Read the trees of a text, or generate them, normalized.

        Raises:
            DataError: A file is damaged.
        """
        if isinstance(text, TreeFile):
            found = read_trees(self._located(text.archive, text.trees))
        else:
            from tfm.data.synthetic.treebank import generate_trees  # for no other recipe

            found = generate_trees(split, num_trees=text.num_pairs, seed=text.seed)
        return (tree for tree in map(normalize, found) if tree is not None)

    def located(self, text: TextFiles) -> tuple[Path, Path]:
        """Return the plain or SGML files from which the two sides of a text are read."""
        source, target = text.sides
        return self._located(text.archive, source), self._located(text.archive, target)

    def _located(self, archive: str | None, side: str) -> Path:
        """Where a side of a text is read."""
        return self._unpacked.get((archive, side), Path(side))


def _sgml_suffix(side: str) -> str:
    name = Archive(url=side).name if is_url(side) else side
    return ".sgm" if name.removesuffix(".gz").endswith((".sgm", ".sgml")) else ""
