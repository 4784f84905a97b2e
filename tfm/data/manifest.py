"""manifest.json of a dataset folder: the inputs, outputs and results of each step."""

import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfm.config import CleaningConfig, Table
from tfm.errors import DataError, UsageError
from tfm.storage.files import read_json, sha256_of, write_json

FORMAT = 1
SPLITS = ("train", "valid", "test")
GOLD = "gold"  # suffix of the reference trees of a parser
BINARIZE = "binarize"  # the step that turns text into token ids

# Languages are suffixes of file names.
LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

# Settings in manifests of older versions, and their present names.
_OLDER_NAMES = {"jobs": "threads", "num_threads": "threads"}
_TASKS = ("translation", "parsing")
_STEP_KEYS = ("inputs", "outputs", "result")


class Manifest:
    """The steps done in a dataset folder, and whether a step must run again.

    The languages `source` and `target` are suffixes of files. The `task` is "translation", or
    "parsing", whose targets are linearized trees.
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
        """Write the manifest of a dataset; arguments and errors are those of `draft`."""
        manifest = cls.draft(data_dir, name=name, source=source, target=target, settings=settings)
        manifest.save()
        return manifest

    @classmethod
    def draft(
        cls,
        data_dir: Path,
        *,
        name: str,
        source: str,
        target: str,
        settings: Table,
        keep_steps: bool = True,
    ) -> "Manifest":
        """Describe a dataset, without writing its manifest yet.

        `settings` is {section: {name: value}} of the recipe for later steps, and "task". With
        `keep_steps`, the steps of an existing manifest are kept; otherwise, it is not read.

        Raises:
            DataError: The existing manifest is damaged or of another format.
        """
        keep_steps = keep_steps and (data_dir / "manifest.json").exists()
        content = {
            "format": FORMAT,
            "name": name,
            "settings": settings,
            "source": source,
            "steps": _read(data_dir)["steps"] if keep_steps else {},
            "target": target,
        }
        return cls(data_dir, content)

    @classmethod
    def load(cls, data_dir: Path) -> "Manifest":
        """Read the manifest of a dataset folder.

        Raises:
            DataError: The manifest is missing, damaged or of another format.
        """
        return cls(data_dir, _read(data_dir))

    def settings(self, section: str) -> dict[str, Any]:
        """Return the settings of the recipe in a section such as "subword"."""
        settings = self._content["settings"].get(section, {})
        # "jobs" was 0 for one per core, which is now the meaning of no value.
        return {
            _OLDER_NAMES.get(name, name): value
            for name, value in settings.items()
            if (name, value) != ("jobs", 0)
        }

    @property
    def normalizes_space(self) -> bool:
        """Whether the clean step normalized the white space of the training text."""
        cleaning = self._content["steps"].get("clean", {}).get("inputs", {}).get("cleaning", {})
        return bool(cleaning.get("normalize_space", CleaningConfig().normalize_space))

    def text_path(self, split: str, language: str) -> Path:
        """Return the path of the text of a split in one language."""
        return self.data_dir / f"{split}.{language}"

    def reference_path(self, split: str) -> Path:
        """Return the path of the references of a split: targets, or for a parser trees."""
        return self.text_path(split, GOLD if self.task == "parsing" else self.target)

    def splits(self) -> list[str]:
        """Return the splits whose text exists, "train" first."""
        return [split for split in SPLITS if self.text_path(split, self.source).exists()]

    def is_current(self, step: str, inputs: Table) -> bool:
        """Return whether a step was done with these inputs and its outputs still exist."""
        entry = self._content["steps"].get(step)
        if entry is None or entry["inputs"] != inputs:
            return False
        sizes = {self.data_dir / name: size for name, size in entry["outputs"].items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())

    def record(self, step: str, *, inputs: Table, outputs: Iterable[Path], result: Table) -> None:
        """Record a step: JSON values of all inputs that determine it, its files and its counts.

        The record is on disk after the next call of `save`.
        """
        sizes = {str(p.relative_to(self.data_dir)): p.stat().st_size for p in sorted(outputs)}
        self._content["steps"][step] = {"inputs": inputs, "outputs": sizes, "result": result}

    def save(self) -> None:
        """Write the manifest."""
        write_json(self.data_dir / "manifest.json", self._content)

    def inputs(self, step: str) -> dict[str, Any] | None:
        """Return the recorded inputs of a step; None if it was not done."""
        entry = self._content["steps"].get(step)
        return None if entry is None else dict(entry["inputs"])

    def result(self, step: str) -> dict[str, Any]:
        """Return the recorded result of a step; empty if it was not done."""
        return dict(self._content["steps"].get(step, {}).get("result", {}))

    def text_fingerprints(self, splits: Iterable[str]) -> dict[str, str]:
        """Return {name: SHA-256} of the text files of the splits.

        Raises:
            DataError: A file is missing.
        """
        paths = [self.text_path(s, lang) for s in splits for lang in (self.source, self.target)]
        for path in paths:
            if not path.is_file():
                raise DataError(f"{path} does not exist or is not a file: run tfm prepare first")
        return {path.name: sha256_of(path) for path in paths}


def _read(data_dir: Path) -> dict[str, Any]:
    path = data_dir / "manifest.json"
    if not path.is_file():
        raise DataError(
            f"{data_dir} is no dataset (no manifest.json): make one with tfm prepare "
            "(tfm prepare --list names corpora)",
            exit_code=UsageError.exit_code,
        )
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {reprlib.repr(content.get('format'))}, but this tfm reads format "
            f"{FORMAT}: prepare the dataset again"
        )
    if not _is_valid(content):
        raise DataError(f"{path} is damaged: delete it and prepare the dataset again")
    return content


def _is_valid(content: dict[str, Any]) -> bool:
    """Return whether all values of a manifest have the types that they should have."""
    settings, steps = content.get("settings"), content.get("steps")
    if not (isinstance(settings, dict) and isinstance(steps, dict)):
        return False
    sections = [value for name, value in settings.items() if name != "task"]
    languages = [content.get("source"), content.get("target")]
    entries = list(steps.values())
    if not all(isinstance(value, dict) for value in sections + entries):
        return False
    return (
        isinstance(content.get("name"), str)
        and all(isinstance(name, str) and LANGUAGE.fullmatch(name) for name in languages)
        and settings.get("task", _TASKS[0]) in _TASKS
        and all(isinstance(entry.get(key), dict) for entry in entries for key in _STEP_KEYS)
        and all(isinstance(entry["inputs"].get("cleaning", {}), dict) for entry in entries)
    )


def newest_dataset(root: Path) -> Path:
    """Return the most recently changed dataset folder in a folder.

    Raises:
        DataError: There is none.
    """
    # A folder in which tfm prepare failed has a manifest, but no text yet.
    paths = [path for path in root.glob("*/manifest.json") if any(path.parent.glob("train.*"))]
    if not paths:
        raise DataError(
            f"{root}/ holds no dataset: make one with tfm prepare "
            "(tfm prepare --list names corpora)",
            exit_code=UsageError.exit_code,
        )
    return max(paths, key=lambda path: path.stat().st_mtime).parent
