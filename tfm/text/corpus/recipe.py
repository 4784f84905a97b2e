"""A recipe: the texts of a corpus, and how to prepare it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfm.config import Task, Values
from tfm.text.corpus.texts import (
    LANGUAGE,
    SPLITS,
    Archive,
    MonoText,
    Text,
    TextFiles,
    TreeFile,
    is_url,
)
from tfm.text.files import PIPE
from tfm.text.languages import closest, shown_languages

# The name of a recipe may be used as a folder's name.
_NAME = re.compile(r"[^\W_][^/\\\x00-\x1f\x7f\ud800-\udfff]{0,200}")
_MAX_LANGUAGES = 200  # characters of a side, whose files are called after it
# Defaults of each task. Treebanks are clean, and the cleaning rules are for text: they would drop
# good trees. Search is as in §6.3.
_TASK_SETTINGS: Mapping[Task, Mapping[str, Values]] = {
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
    cleaning: Values = field(default_factory=dict)
    subword: Values = field(default_factory=dict)
    binarize: Values = field(default_factory=dict)
    search: Values = field(default_factory=dict)

    def texts(self, split: str) -> tuple[Text, ...]:
        """Return the texts of a split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    def tags(self) -> list[str]:
        """Return the tags of the texts of all splits, each once."""
        tags = (text.tag for split in SPLITS for text in self.texts(split))
        return list(dict.fromkeys(tag for tag in tags if tag is not None))

    def text_files(self) -> list[TextFiles | TreeFile]:
        """Return the texts of all splits."""
        return [text for split in SPLITS for text in self.texts(split)]

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
        yield from self._language_problems()
        for split in SPLITS:
            for number, text in enumerate(self.texts(split), 1):
                if text.task != self.task:
                    yield f'[[{split}]] {number} needs task = "{text.task}", not "{self.task}"'
                for option in () if split == "train" else ("weight", "cleaning", "augmentation"):
                    if getattr(text, option):
                        yield f"[[{split}]] {number} has {option}: only [[train]] texts can"
        yield from self._mono_problems()
        yield from self._mixture_problems()
        yield from self._file_problems()

    def _language_problems(self) -> Iterator[str]:
        for language in (self.source, self.target):
            if not LANGUAGE.fullmatch(language):
                yield f"language {language!r} must be letters, digits and dashes, such as en"
            if len(language) > _MAX_LANGUAGES:
                yield (
                    f"the codes of {shown_languages(language)} are too long for names of files: "
                    f"use shorter ones, as de for deu_Latn, of {_MAX_LANGUAGES} characters together"
                )
        if self.source == self.target:
            yield f"source and target are both {self.source!r}: give two languages"

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
            elif path.exists() and not path.is_file():
                yield f"{path} {PIPE}"
            elif not path.is_file():
                yield f"{path} does not exist: check its name"
