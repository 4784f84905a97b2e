"""The next text of a dataset, written to a separate folder until it is complete.

Processes with different shares of the text write shards to the same folder. A shard that is
finished has a record there, so that a later call need not clean it again.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from tfm.config import Values
from tfm.dataset.manifest import GOLD, Manifest
from tfm.dataset.shards import Shard, ShardRecord, Share, TrainingText, shard_name
from tfm.disk.files import atomic_write, output_target, remove_path, sync_directory
from tfm.disk.lock import lock_folder
from tfm.reporting import Progress
from tfm.text.lines import BytesPair, in_chunks

DRAFT, _READY = ".draft", ".ready"  # hidden, so that they are not folders of the user
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

    text: TrainingText
    pairs: Iterator[BytesPair]

    def blocks(self) -> Iterator[list[BytesPair]]:
        """Yield the pairs with the tag of the text before each source that is not empty."""
        tag = f"{self.text.tag} ".encode() if self.text.tag else b""
        for block in in_chunks(self.pairs):
            yield [(tag + source if source.strip() else source, t) for source, t in block]


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
        self.folder = manifest.data_dir / DRAFT

    def shard_name(self, number: int) -> str:
        """Return the name of a training shard of the draft, by its number from 0 on."""
        return shard_name("train", self._first + number)

    def write(self, name: str, pieces: Iterable[Piece], bar: Progress) -> Shard:
        """Write the text of a shard, and its record."""
        names, texts = [path.name for path in self._manifest.text_paths(name)], []
        with ExitStack() as stack:
            for path in self._manifest.text_paths(name):
                output_target(path)  # shows, before the long work, whether it can be replaced
            files = [stack.enter_context(atomic_write(self.folder / each)) for each in names]
            for piece in pieces:
                for block in piece.blocks():
                    for side, file in enumerate(files):
                        file.writelines(pair[side] + b"\n" for pair in block)
                    bar.update(len(block))
                texts.append(piece.text)
        shard = Shard(name=name, appended=self._first > 1, texts=tuple(texts))
        sizes = {each: (self.folder / each).stat().st_size for each in names}
        ShardRecord(inputs=self._inputs, sizes=sizes, shard=shard).save(self.folder)
        return shard

    def find(self, name: str) -> Shard | None:
        """Return a shard that an earlier call has finished; None if its text has to be cleaned."""
        if not self._reuse:
            return None
        advice = f"remove {self.folder}"
        record = ShardRecord.find(self.folder, name, self._inputs, advice=advice)
        return record.shard if record else None

    def pairs(self, shard: Shard) -> Iterator[BytesPair]:
        """Read the pairs of a finished shard, exactly as they were written."""
        paths = (self.folder / f"{shard.name}.{lang}" for lang in self._manifest.languages)
        with ExitStack() as stack:
            sides = [stack.enter_context(path.open("rb")) for path in paths]
            for source, target in zip(*sides, strict=True):
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
        plain = {split: [*map(_without_examples, found)] for split, found in shards.items()}
        self._manifest.record_shards(plain, append=self._first > 1)
        outputs += others
        for path in outputs:
            output_target(self._manifest.data_dir / path.name)
        self._manifest.record(
            step, inputs=inputs, outputs=outputs, result=result, folder=self.folder
        )
        self._manifest.save(self.folder)
        data_dir = self._manifest.data_dir
        os.replace(self.folder, data_dir / _READY)
        sync_directory(data_dir)
        _put_in_place(data_dir)


def _without_examples(shard: Shard) -> Shard:
    return replace(shard, texts=tuple(replace(text, examples={}) for text in shard.texts))


def _put_in_place(data_dir: Path) -> None:
    """Move text that is ready into a dataset, even if a process was killed while it did so."""
    ready = data_dir / _READY
    if (ready / "manifest.json").is_file():
        manifest = Manifest.load(ready)
        current = manifest.clean_files()
        for name in current:
            if (ready / name).is_file():
                os.replace(ready / name, data_dir / name)
        if not manifest.appended():
            gold = [GOLD] if manifest.task == "parsing" else []
            suffixes = "|".join(map(re.escape, [*manifest.languages, *gold]))
            own = re.compile(rf"(train(\.[1-9][0-9]*)?|valid|test)\.({suffixes})|mono\..+")
            for path in filter(Path.is_file, data_dir.iterdir()):
                if own.fullmatch(path.name) and path.name not in current:
                    path.unlink()
        os.replace(ready / "manifest.json", data_dir / "manifest.json")
        sync_directory(data_dir)
    elif not (data_dir / "manifest.json").is_file():
        return
    remove_path(ready)
