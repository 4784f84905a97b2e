"""The next text of a dataset: complete in a folder of its own before it takes its place.

Processes with different shares of the text write shards to the same folder. A shard that is
finished has a record there, so that a later call need not clean it again.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tfm.config import Values
from tfm.dataset.manifest import GOLD, Manifest
from tfm.dataset.shards import Shard, ShardRecord, Share, TrainingText, shard_name
from tfm.disk.files import (
    atomic_write,
    output_target,
    sync_directory,
)
from tfm.disk.lock import lock_folder
from tfm.reporting import Progress
from tfm.text.cleaning import PairCounts
from tfm.text.corpus.texts import Text
from tfm.text.lines import BytesPair, in_chunks

_DRAFT, _READY = "draft", "ready"
_MAX_WAIT_SECONDS = 10  # for other shares that start


@contextmanager
def lock_dataset(data_dir: Path) -> Iterator[None]:
    """Hold the locks of a dataset and of all its shares during the block."""
    with ExitStack() as stack:
        for folder in (data_dir, *sorted(data_dir.glob("shares/*/"))):
            stack.enter_context(lock_folder(folder))
        _put_in_place(data_dir)
        yield


@contextmanager
def lock_share(data_dir: Path, share: Share) -> Iterator[None]:
    """Hold the lock of a share of a dataset during the block."""
    with ExitStack() as stack:
        # Held only until the share is locked, so that other shares start at the same time.
        with lock_folder(data_dir, max_wait_seconds=_MAX_WAIT_SECONDS):
            folder = data_dir / "shares" / f"{share.number}-of-{share.count}"
            stack.enter_context(lock_folder(folder))
            _put_in_place(data_dir)
        yield


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The pairs of a text in a shard; its counts are complete when the pairs have been read."""

    name: str
    text: Text
    counts: PairCounts
    pairs: Iterator[BytesPair]

    def blocks(self) -> Iterator[list[BytesPair]]:
        """Yield the pairs with the tag of the text before each source that is not empty."""
        tag = f"{self.text.tag} ".encode() if self.text.tag else b""
        for block in in_chunks(self.pairs):
            yield [(tag + source if source.strip() else source, t) for source, t in block]

    def record(self) -> TrainingText:
        """Return the record of the text in the shard."""
        counts, text = self.counts.record(), self.text
        options = {name: text.options()[name] for name in ("weight", "tag", "augmentation")}
        return TrainingText(name=self.name, **options, **counts)


@dataclass(frozen=True, kw_only=True)
class FinishedShard(ShardRecord):
    """The record of the text of a shard of the draft.

    Its inputs are without the text before it.

    Attributes:
        examples: For each text, {rule: examples of the pairs that it dropped}, by their hashes.
    """

    examples: tuple[Mapping[str, Mapping[str, tuple[str, str]]], ...]

    def counts(self) -> Iterator[PairCounts]:
        """Yield the counts of each text."""
        for text, examples in zip(self.shard.texts, self.examples, strict=True):
            of_text: dict[str, Any] = {name: getattr(text, name) for name in PairCounts().record()}
            of_text["dropped"] = dict(text.dropped)
            of_text["examples"] = {rule: dict(pairs) for rule, pairs in examples.items()}
            yield PairCounts(**of_text, length_ratio=text.length_ratio)


class Draft:
    """The folder of the next text of a dataset.

    Args:
        manifest: The dataset.
        inputs: JSON values of all that determines the text.
        first: The number of the first training shard; others follow the dataset's.
        reuse: Whether to take finished shards of earlier calls.
    """

    def __init__(
        self, manifest: Manifest, inputs: Values, *, first: int = 1, reuse: bool = True
    ) -> None:
        self._manifest, self._inputs = manifest, inputs
        self._first, self._reuse = first, reuse
        self.folder = manifest.data_dir / _DRAFT

    def shard_name(self, number: int) -> str:
        """Return the name of a training shard of the draft, by its number from 0 on."""
        return shard_name("train", self._first + number)

    def write(self, name: str, pieces: Iterable[Piece], bar: Progress) -> FinishedShard:
        """Write the text of a shard, and its record."""
        names, written = [path.name for path in self._manifest.text_paths(name)], []
        with ExitStack() as stack:
            for path in self._manifest.text_paths(name):
                output_target(path)  # shows, before the long work, whether it can be replaced
            files = [stack.enter_context(atomic_write(self.folder / each)) for each in names]
            for piece in pieces:
                for block in piece.blocks():
                    for side, file in enumerate(files):
                        file.writelines(pair[side] + b"\n" for pair in block)
                    bar.update(len(block))
                written.append(piece)
        texts = tuple(piece.record() for piece in written)
        finished = FinishedShard(
            inputs=self._inputs,
            sizes={each: (self.folder / each).stat().st_size for each in names},
            shard=Shard(name=name, appended=self._first > 1, texts=texts),
            examples=tuple(piece.counts.examples for piece in written),
        )
        finished.save(self.folder)
        return finished

    def find(self, name: str) -> FinishedShard | None:
        """Return a shard that an earlier call has finished; None if its text has to be cleaned."""
        if not self._reuse:
            return None
        advice = f"remove {self.folder}"
        return FinishedShard.find(self.folder, name, self._inputs, advice=advice)

    def pairs(self, shard: FinishedShard) -> Iterator[BytesPair]:
        """Read the pairs of a finished shard, exactly as they were written."""
        source_path, target_path = (self.folder / name for name in shard.sizes)
        with source_path.open("rb") as sources, target_path.open("rb") as targets:
            for source, target in zip(sources, targets, strict=True):
                yield source[:-1], target[:-1]

    def publish(
        self,
        step: str,
        inputs: Values,
        shards: Mapping[str, Sequence[Shard]],
        others: Iterable[Path],
        result: Values,
    ) -> None:
        """Put the shards of a step and other files in their place; save the manifest."""
        outputs = [
            self.folder / f"{shard.name}.{language}"
            for shard in chain.from_iterable(shards.values())
            for language in self._manifest.languages
        ]
        self._manifest.record_shards(shards, append=self._first > 1)
        outputs += others
        self._manifest.record(
            step, inputs=inputs, outputs=outputs, result=result, folder=self.folder
        )
        self._manifest.save(self.folder)
        data_dir = self._manifest.data_dir
        os.replace(self.folder, data_dir / _READY)
        sync_directory(data_dir)
        _put_in_place(data_dir)


def _put_in_place(data_dir: Path) -> None:
    """Move text that is ready into a dataset, even if a process was killed while it did so."""
    ready = data_dir / _READY
    if not ready.is_dir():
        return
    if (ready / "manifest.json").is_file():
        manifest = Manifest.load(ready)
        current = manifest.clean_files()
        for name in current:
            if (ready / name).is_file():
                os.replace(ready / name, data_dir / name)
        if not manifest.appended():
            suffixes = "|".join(map(re.escape, (*manifest.languages, GOLD)))
            own = re.compile(rf"(train(\.[1-9][0-9]*)?|valid|test)\.({suffixes})|mono\..+")
            for path in data_dir.iterdir():
                if own.fullmatch(path.name) and path.name not in current:
                    path.unlink()
        os.replace(ready / "manifest.json", data_dir / "manifest.json")
        sync_directory(data_dir)
    shutil.rmtree(ready)
