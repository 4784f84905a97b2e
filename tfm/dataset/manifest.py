"""manifest.json of a dataset folder: its shards, and the inputs and outputs of each step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

from tfm.config import Normalization, Settings, Task, Values
from tfm.config.values import convert
from tfm.dataset.shards import Shard, TrainingText, sum_of_texts
from tfm.disk.files import have_sizes, read_record, sha256_of, write_record
from tfm.disk.paths import DATA_ROOT, kind_of, where_instead
from tfm.errors import DataError, UsageError
from tfm.reporting import say
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import SPLITS, Language

FORMAT = 1
GOLD = "gold"  # suffix of the reference trees of a parser
BINARIZE = "binarize"  # the step that turns text into token ids
SETS = "sets"  # the folder of the test sets that have names
SEEN = "seen"  # the step that records the training text, to find other text in it

_MAKE_ONE = "make one with tfm prepare (tfm prepare --list names corpora)"


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Settings of the recipe for later steps."""

    task: Task = "translation"
    subword: Values = field(default_factory=dict)
    binarize: Values = field(default_factory=dict)
    search: Values = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A step that was done: all inputs that determine it, the sizes of its files, its counts."""

    inputs: Values
    outputs: Mapping[str, int]
    result: Values


@dataclass(frozen=True, kw_only=True)
class _TextFile:
    """The checksum of a text file when it had this size and this time of modification in ns."""

    size: int
    modified: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class _Content:
    """The content of manifest.json."""

    name: str
    source: Language
    target: Language
    settings: _Settings
    steps: dict[str, _Step]
    shards: dict[str, tuple[Shard, ...]] = field(default_factory=dict)
    text_files: dict[str, _TextFile] = field(default_factory=dict)


class Manifest:
    """The steps done in a dataset folder, and whether a step must run again.

    The languages `source` and `target` are suffixes of files. The `task` is "translation", or
    "parsing", whose targets are linearized trees.
    """

    def __init__(self, data_dir: Path, content: _Content, *, keeps_steps: bool = True) -> None:
        self.data_dir = data_dir
        self.name = content.name
        self.source = content.source
        self.target = content.target
        self.task = content.settings.task
        self._content = content
        self._keeps_steps = keeps_steps

    @classmethod
    def draft(
        cls,
        data_dir: Path,
        recipe: Recipe,
        settings: Mapping[str, Values] = {},
        *,
        keep_steps: bool = True,
    ) -> "Manifest":
        """Describe the dataset of a recipe, without writing its manifest yet.

        `settings` of the steps "subword" and "binarize" are kept for later calls. With
        `keep_steps`, the steps of an existing manifest are kept; otherwise, it is not read.
        """
        content = _Content(
            name=recipe.name,
            source=recipe.source,
            target=recipe.target,
            settings=_Settings(
                task=recipe.task,
                subword=settings.get("subword", {}),
                binarize=settings.get("binarize", {}),
                search=recipe.settings("search"),
            ),
            steps={},
        )
        if keep_steps and (data_dir / "manifest.json").exists():
            older = _read(data_dir)
            kept = ("steps", "shards", "text_files")
            content = replace(content, **{name: getattr(older, name) for name in kept})
        return cls(data_dir, content, keeps_steps=keep_steps)

    @classmethod
    def load(cls, data_dir: Path) -> "Manifest":
        """Read the manifest of a dataset folder."""
        return cls(data_dir, _read(data_dir))

    def settings(self, section: str) -> dict[str, Any]:
        """Return the settings of the recipe in a section such as "subword"."""
        return dict(getattr(self._content.settings, section))

    def keep_settings(self, settings: Settings) -> None:
        """Record the settings of a step, apart from `threads`, so that later calls repeat it."""
        older = self.settings(settings.section)
        table = {name: value for name, value in older.items() if name == "threads"}
        for item in fields(settings):
            value = getattr(settings, item.name)
            if value != item.default and item.name != "threads":
                table[item.name] = list(value) if isinstance(value, tuple) else value
        sections: dict[str, Any] = {settings.section: table}
        self._content = replace(self._content, settings=replace(self._content.settings, **sections))

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source, self.target

    @property
    def symbols(self) -> list[str]:
        """The tags that are single pieces of the vocabulary."""
        return str(self.settings("subword").get("symbols") or "").split()

    def text_tags(self) -> list[str]:
        """Return the tags of the texts of all splits."""
        return [text.tag for split in SPLITS for text in self.texts(split) if text.tag]

    @property
    def normalization(self) -> Normalization:
        """The rules by which the clean step normalized the text."""
        table = (self.inputs("clean") or {}).get("normalization", {})
        try:
            rules: Normalization = convert(table, Normalization, "normalization")
        except ValueError as error:
            raise DataError(
                f"{self.data_dir / 'manifest.json'} has a normalization that this tfm does not "
                f"know ({error}): prepare the dataset again"
            ) from error
        return rules

    def text_path(self, split: str, language: str) -> Path:
        """Return the path of the text of a split in one language."""
        return self.data_dir / f"{split}.{language}"

    def text_paths(self, name: str) -> list[Path]:
        """Return the paths of both sides of a split or a shard."""
        return [self.text_path(name, language) for language in self.languages]

    def reference_path(self, split: str) -> Path:
        """Return the path of the references of a split: targets, or for a parser trees."""
        return self.text_path(split, GOLD if self.task == "parsing" else self.target)

    def reference_paths(self, split: str) -> list[Path]:
        """Return the paths of all references of a split; a test set with a name may have several.

        Its split is sets/NAME, and its further references are NAME.2.LANGUAGE and so on.
        """
        more = (self.text_path(f"{split}.{number}", self.target) for number in count(2))
        are_several = split.startswith(f"{SETS}/")
        others = takewhile(Path.exists, more) if are_several else ()
        return [self.reference_path(split), *others]

    def sets(self) -> list[str]:
        """Return the names of the test sets that have names."""
        steps = (step.partition("/") for step in self._content.steps)
        return [name for folder, _, name in steps if folder == SETS]

    def splits(self) -> list[str]:
        """Return the splits whose text exists, "train" first."""
        return [split for split in SPLITS if self.text_path(split, self.source).exists()]

    def shards(self, split: str) -> list[Shard]:
        """Return the shards of a split; text that `tfm prepare` did not write is one."""
        recorded = self._content.shards.get(split)
        if recorded is None and self.text_path(split, self.source).exists():
            return [Shard(name=split)]
        return [*(recorded or ())]

    def record_shards(self, shards: Mapping[str, Sequence[Shard]], *, append: bool) -> None:
        """Record the shards of splits; they replace all older ones, unless they are appended."""
        older = self._content.shards if append else {}
        found = {split: (*older.get(split, ()), *new) for split, new in shards.items()}
        self._content = replace(self._content, shards={**older, **found})

    def appended(self) -> list[str]:
        """Return the names of the steps that appended training text, in order."""
        names = (f"append-{number}" for number in count(1))
        return list(takewhile(lambda name: name in self._content.steps, names))

    def clean_files(self) -> list[str]:
        """Return the names of all text files that `tfm prepare` wrote."""
        steps = ["clean", *self.appended()]
        return [name for step in steps for name in self._content.steps[step].outputs]

    def forget(self, steps: Iterable[str]) -> None:
        """Remove the records of steps."""
        for step in steps:
            self._content.steps.pop(step, None)

    def is_current(self, step: str, inputs: Values) -> bool:
        """Return whether a step was done with these inputs and its outputs still exist."""
        done = self._content.steps.get(step)
        if done is None or done.inputs != inputs:
            return False
        return have_sizes(self.data_dir, done.outputs)

    def record(
        self,
        step: str,
        *,
        inputs: Values,
        outputs: Iterable[Path],
        result: Values,
        folder: Path | None = None,
    ) -> None:
        """Record a step: JSON values of all inputs that determine it, its files and its counts.

        The record is on disk after the next call of `save`. The files are in a `folder` whose
        content will be in the dataset; by default, they are there.
        """
        folder = folder or self.data_dir
        sizes = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(outputs)}
        self._content.steps[step] = _Step(inputs=inputs, outputs=sizes, result=result)

    def save(self, folder: Path | None = None) -> None:
        """Write the manifest into the dataset, or a folder whose content will be there."""
        path = (folder or self.data_dir) / "manifest.json"
        write_record(path, self._content, format_=FORMAT)

    def save_progress(self) -> None:
        """Write the manifest, unless an older dataset still needs its own."""
        if self._keeps_steps or not (self.data_dir / "manifest.json").exists():
            self.save()

    def inputs(self, step: str) -> dict[str, Any] | None:
        """Return the recorded inputs of a step; None if it was not done."""
        done = self._content.steps.get(step)
        return None if done is None else dict(done.inputs)

    def result(self, step: str) -> dict[str, Any]:
        """Return the recorded result of a step; empty if it was not done."""
        done = self._content.steps.get(step)
        return {} if done is None else dict(done.result)

    def texts(self, split: str) -> list[TrainingText]:
        """Return the texts that the pairs of a split come from; empty if no recipe prepared it."""
        return sum_of_texts(self._content.shards.get(split, ()))

    def tags(self) -> tuple[str, ...]:
        """Return the tags of the training texts, each once; none if there is a text without."""
        tags = dict.fromkeys(text.tag for text in self.texts("train") if text.kept)
        return () if None in tags else tuple(tag for tag in tags if tag is not None)

    def shard_files(self, splits: Iterable[str], *, appended: bool = True) -> list[list[Path]]:
        """Return the source and the target file of each shard of splits; check that they exist.

        Shards that were appended are left out if not `appended`.
        """
        shards = [shard for split in splits for shard in self.shards(split)]
        files = [self.text_paths(each.name) for each in shards if appended or not each.appended]
        for path in chain.from_iterable(files):
            if not path.is_file():
                raise DataError(f"{path} does not exist or is not a file: run tfm prepare first")
        return files

    def text_fingerprints(self, splits: Iterable[str]) -> dict[str, str]:
        """Return {name: SHA-256} of the text files of the splits."""
        paths = chain.from_iterable(self.shard_files(splits))
        return {path.name: self.text_fingerprint(path) for path in paths}

    def text_fingerprint(self, path: Path) -> str:
        """Return the SHA-256 of a text file of the dataset.

        A file is read only if its size or its time of modification has changed since the last
        `save` after it was read.
        """
        status, known = path.stat(), self._content.text_files.get(path.name)
        size, modified = status.st_size, status.st_mtime_ns
        if known is None or (known.size, known.modified) != (size, modified):
            known = _TextFile(size=size, modified=modified, sha256=sha256_of(path))
            self._content.text_files[path.name] = known
        return known.sha256


def set_split(name: str) -> str:
    """Return the split that holds a test set, such as sets/wmt20_tworefs for wmt20/tworefs."""
    return f"{SETS}/{name.replace('/', '_').replace(':', '.')}"


def _read(data_dir: Path) -> _Content:
    path = data_dir / "manifest.json"
    if not path.is_file():
        problem = f"{data_dir} is no dataset (no manifest.json)"
        advice = where_instead(data_dir, "dataset") or _MAKE_ONE
        if kind_of(data_dir) == "run":
            advice += "; tfm train resumes it with --run, and starts from its model with --from"
        raise DataError(f"{problem}: {advice}", exit_code=UsageError.exit_code)
    advice = "prepare the dataset again with --force"
    return read_record(path, _Content, format_=FORMAT, advice=advice)


def newest_dataset(root: Path) -> Path:
    """Return the most recently changed dataset folder in a folder."""
    # A folder in which tfm prepare failed has a manifest, but no text yet.
    paths = [path for path in root.glob("*/manifest.json") if any(path.parent.glob("train.*"))]
    if not paths:
        problem = f"{root}/ holds no dataset: {_MAKE_ONE}"
        raise DataError(problem, exit_code=UsageError.exit_code)
    return max(paths, key=lambda path: path.stat().st_mtime).parent


def chosen_dataset(path: Path | None) -> Path:
    """Return the given dataset folder, or find the newest one and print its path."""
    if path is None:
        path = newest_dataset(DATA_ROOT)
        say(f"dataset: {path}")
    return path
