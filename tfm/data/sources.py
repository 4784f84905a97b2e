"""The text of a recipe: found, fetched, unpacked and read."""

import typing
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfm.data.archives import extract_members, unpack_file
from tfm.data.corpus import Archive, Recipe, Text, TextFiles, is_url
from tfm.data.download import Fetched, fetch
from tfm.data.manifest import SPLITS
from tfm.data.text import read_pairs
from tfm.runtime.files import sha256_of

if typing.TYPE_CHECKING:
    from tfm.data.synthetic import Split


class TextSources:
    """All texts of a recipe.

    Args:
        recipe: Says where they come from.
        raw_dir: Where they are unpacked.
        downloads_dir: Where downloads are kept.
        mirror: A folder or URL that has the downloads by their file names.
        verify: Compare downloads with the checksums that the recipe knows.
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
                if isinstance(text, TextFiles):
                    for language, side in zip(
                        (recipe.source, recipe.target), text.sides, strict=True
                    ):
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
                path = Path(self._mirror) / file.name
                # Once compared with a checksum, a mirror's file is the same as anybody's.
                if not (self._verify and file.has_checksum) and path.is_file():
                    contents[file.name] = sha256_of(path)
        return {
            "downloads": [asdict(file) for file in self._recipe.downloads()],
            "texts": {s: [asdict(text) for text in self._recipe.texts(s)] for s in SPLITS},
            "contents": contents,
            "verify": self._verify,
        }

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
        """Unpack all texts of archives, downloads and compressed files.

        Args:
            fetched: What `fetch` returned.

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
        """Read a text, or generate it.

        Raises:
            DataError: Sides have unequal numbers of lines, or a file is damaged.
        """
        if isinstance(text, TextFiles):
            source_path, target_path = (
                self._unpacked.get((text.archive, side), Path(side)) for side in text.sides
            )
            # A line that is broken may be left out of training, but not of a test.
            return read_pairs(
                source_path, target_path, strict=split != "train", num_lines=text.lines
            )
        from tfm.data.synthetic import generate_pairs  # for no other recipe

        generated = generate_pairs(split, num_pairs=text.num_pairs, seed=text.seed)
        return ((source.encode(), target.encode()) for source, target in generated)


def _sgml_suffix(side: str) -> str:
    name = Archive(url=side).name if is_url(side) else side
    return ".sgm" if name.removesuffix(".gz").endswith((".sgm", ".sgml")) else ""
