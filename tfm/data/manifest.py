"""manifest.json of a dataset folder: what each step read, did and wrote."""

import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfm.config import Table
from tfm.errors import DataError
from tfm.storage.files import read_json, sha256_of, write_json

FORMAT = 1
SPLITS = ("train", "valid", "test")
GOLD = "gold"  # suffix of the trees that the output of a parser is scored against

# A language ends the names of files.
LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_TASKS = ("translation", "parsing")


class Manifest:
    """The record of a dataset folder: what was done to it, and whether a step must run again.

    Attributes:
        data_dir: The folder.
        name: Name of the dataset.
        source: Source language, the suffix of its files.
        target: Target language, the suffix of its files.
        task: What the targets are: "translation" or "parsing".
    """

    def __init__(self, data_dir: Path, content: dict[str, Any]) -> None:
        self.data_dir = data_dir
        self.name: str = content["name"]
        self.source: str = content["source"]
        self.target: str = content["target"]
        self.task: str = content["settings"].get("task", "translation")
        self._content = content

    @classmethod
    def create(
        cls, data_dir: Path, *, name: str, source: str, target: str, settings: Table
    ) -> "Manifest":
        """Start a record, or continue the existing one.

        Args:
            data_dir: The dataset folder.
            name: Name of the dataset.
            source: Source language.
            target: Target language.
            settings: {section: {name: value}} that the recipe sets for later steps, and "task".

        Raises:
            DataError: The existing record is damaged or of another format.
        """
        exists = (data_dir / "manifest.json").exists()
        content = {
            "format": FORMAT,
            "name": name,
            "settings": settings,
            "source": source,
            "steps": _read(data_dir)["steps"] if exists else {},
            "target": target,
        }
        manifest = cls(data_dir, content)
        manifest._save()
        return manifest

    @classmethod
    def load(cls, data_dir: Path) -> "Manifest":
        """Read the record of a dataset folder.

        Raises:
            DataError: The folder is no dataset, or one that is damaged or of another format.
        """
        return cls(data_dir, _read(data_dir))

    def damage(self) -> DataError:
        """The error to raise where the record does not say what it should."""
        return _damage(self.data_dir / "manifest.json")

    def settings(self, section: str) -> dict[str, Any]:
        """What the recipe sets for a later step, such as "subword"."""
        return dict(self._content["settings"].get(section, {}))

    def text_path(self, split: str, language: str) -> Path:
        """The text of a split in one language."""
        return self.data_dir / f"{split}.{language}"

    def reference_path(self, split: str) -> Path:
        """What outputs for a split are scored against: its targets, or for a parser its trees."""
        return self.text_path(split, GOLD if self.task == "parsing" else self.target)

    def splits(self) -> list[str]:
        """The splits whose text is there, training first."""
        return [split for split in SPLITS if self.text_path(split, self.source).exists()]

    def is_current(self, step: str, inputs: Table) -> bool:
        """Whether a step was done with these inputs and all it wrote is still there."""
        entry = self._content["steps"].get(step)
        if entry is None or entry["inputs"] != inputs:
            return False
        sizes = {self.data_dir / name: size for name, size in entry["outputs"].items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())

    def record(self, step: str, *, inputs: Table, outputs: Iterable[Path], result: Table) -> None:
        """Record a step: all that decides its result, its files and its counts, as JSON values."""
        sizes = {str(p.relative_to(self.data_dir)): p.stat().st_size for p in sorted(outputs)}
        self._content["steps"][step] = {"inputs": inputs, "outputs": sizes, "result": result}
        self._save()

    def result(self, step: str) -> dict[str, Any]:
        """What a step recorded; empty if it was not done."""
        return dict(self._content["steps"].get(step, {}).get("result", {}))

    def text_fingerprints(self, splits: Iterable[str]) -> dict[str, str]:
        """SHA-256 of each text file of the splits.

        Raises:
            DataError: A file is missing.
        """
        paths = [self.text_path(s, lang) for s in splits for lang in (self.source, self.target)]
        for path in paths:
            if not path.is_file():
                raise DataError(f"{path} does not exist or is no file: run tfm prepare first")
        return {path.name: sha256_of(path) for path in paths}

    def _save(self) -> None:
        write_json(self.data_dir / "manifest.json", self._content)


def _read(data_dir: Path) -> dict[str, Any]:
    path = data_dir / "manifest.json"
    if not path.is_file():
        raise DataError(f"{data_dir} is no dataset (no manifest.json): make one with tfm prepare")
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {reprlib.repr(content.get('format'))}, but this tfm reads format "
            f"{FORMAT}: prepare the dataset again"
        )
    if not _is_sound(content):
        raise _damage(path)
    return content


def _damage(path: Path) -> DataError:
    return DataError(f"{path} is damaged: delete it and prepare the dataset again")


def _is_sound(content: dict[str, Any]) -> bool:
    """Whether everything in a record is of the kind that it should be."""
    settings, steps = content.get("settings"), content.get("steps")
    if not (isinstance(settings, dict) and isinstance(steps, dict)):
        return False
    sections = [value for name, value in settings.items() if name != "task"]
    languages = [content.get("source"), content.get("target")]
    return (
        isinstance(content.get("name"), str)
        and all(isinstance(name, str) and LANGUAGE.fullmatch(name) for name in languages)
        and settings.get("task", _TASKS[0]) in _TASKS
        and all(isinstance(section, dict) for section in sections)
        and all(map(_is_step, steps.values()))
    )


def _is_step(entry: Any) -> bool:
    parts = ("inputs", "outputs", "result")
    return isinstance(entry, dict) and all(isinstance(entry.get(part), dict) for part in parts)


def newest_dataset(root: Path) -> Path:
    """The dataset folder below a folder that was last worked on.

    Raises:
        DataError: There is none.
    """
    # A folder in which tfm prepare failed has a manifest, but no text yet.
    found = [path for path in root.glob("*/manifest.json") if any(path.parent.glob("train.*"))]
    if not found:
        raise DataError(f'{root}/ holds no dataset: make one with "tfm prepare"')
    return max(found, key=lambda path: path.stat().st_mtime).parent
