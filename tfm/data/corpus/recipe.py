"""A recipe: where a corpus comes from, and how to prepare it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfm.config import Table
from tfm.data.corpus.texts import Archive, GeneratedText, Task, Text, TextFiles, TreeFile, is_url
from tfm.data.manifest import LANGUAGE, SPLITS

# The name of a recipe may be used as that of a folder.
_NAME = re.compile(r"[^\W_][^/\\\x00-\x1f\x7f\ud800-\udfff]{0,200}")
_SURROGATE = re.compile("[\ud800-\udfff]")  # how Python represents bytes that are not UTF-8
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
class Recipe:
    """Where a corpus comes from, and how to prepare it.

    Attributes:
        name: Name of the dataset.
        source: Source language, the suffix of its files.
        target: Target language, the suffix of its files.
        task: "translation", or "parsing", whose texts are trees.
        description: Description in one or two sentences.
        text_size: Approximate size in bytes of both sides of the unpacked downloads, to estimate
            the disk space.
        archives: Archives, and other downloads with known checksums.
        train: Training texts, in the order in which they are concatenated.
        valid: Validation texts.
        test: Test texts.
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
    cleaning: Table = field(default_factory=dict)
    subword: Table = field(default_factory=dict)
    binarize: Table = field(default_factory=dict)
    search: Table = field(default_factory=dict)

    def texts(self, split: str) -> tuple[Text, ...]:
        """Return the texts of a split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

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
        urls = dict.fromkeys(side for side in self._loose_sides() if is_url(side))
        return [*self.archives, *(Archive(url=url) for url in urls if url not in known)]

    def local_paths(self) -> list[Path]:
        """Return the paths of texts on this machine."""
        return [Path(side) for side in self._loose_sides() if not is_url(side)]

    def problems(self) -> Iterator[str]:
        """Describe each invalid value, and how to correct it."""
        if not _NAME.fullmatch(self.name):
            yield f"name {self.name!r} must start with a letter or digit and hold no slash"
        for language in (self.source, self.target):
            if not LANGUAGE.fullmatch(language):
                yield f"language {language!r} must be letters, digits and dashes, such as en"
        if self.source == self.target:
            yield f"source and target are both {self.source!r}"
        if not self.train:
            yield "there is no [[train]] text"
        if self.task not in _TASK_SETTINGS:
            yield f"there is no task {self.task!r}: choose {' or '.join(_TASK_SETTINGS)}"
        else:
            for split in SPLITS:
                for number, text in enumerate(self.texts(split), 1):
                    if text.task not in (None, self.task):
                        yield f'[[{split}]] {number} needs task = "{text.task}", not "{self.task}"'
        yield from self._file_problems()

    def _loose_sides(self) -> list[str]:
        texts = (text for text in self.text_files() if text.archive is None)
        return [side for text in texts for side in text.sides]

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
            if _SURROGATE.search(str(path)):
                yield f"the name {str(path)!r} is not UTF-8, which manifest.json needs: rename it"
            elif path.is_dir():
                yield f"{path} is a folder, not a text file"
            elif not path.is_file():
                yield f"{path} does not exist"
