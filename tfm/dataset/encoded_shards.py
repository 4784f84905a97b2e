"""Encode the shards of a dataset, for `tfm binarize`."""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tfm.config import BinarizeConfig, Values
from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import FORMAT, MAX_TOKENS, ArrayWriter, Integers, ShardIds, id_dtype
from tfm.dataset.shards import Shard, ShardRecord
from tfm.disk.files import atomic_write
from tfm.errors import DataError, tfm_command
from tfm.machine.cpu import chosen_threads
from tfm.reporting import Progress
from tfm.text.lines import Block, read_blocks
from tfm.vocabulary.bpe_dropout import TokenIds
from tfm.vocabulary.subword import UNK, SubwordModel, Vocabulary

NUM_SPELLED = 5  # characters that the warning about bytes names

T = TypeVar("T")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class EncodedShard(ShardRecord):
    """The record of the token ids of a shard.

    Attributes:
        ids: The record of its token ids.
        read: Number of pairs in its text.
        too_long: For each of its texts, the number of pairs that were dropped; none if the text was
            edited.
        unknown: Numbers of unknown tokens of source and target.
        byte_pieces: Numbers of tokens of source and target that are bytes.
        spelled: {character: number} of the most frequent characters in bytes, for both sides.
    """

    ids: ShardIds
    read: int
    too_long: tuple[int, ...]
    unknown: tuple[int, int]
    byte_pieces: tuple[int, int]
    spelled: tuple[Mapping[str, int], Mapping[str, int]]

    def encoded(self) -> Shard:
        """Return the shard with the pairs that are encoded; it has no texts if it was edited."""
        counts = zip(self.shard.texts, self.too_long, strict=False)
        texts = (
            replace(text, kept=text.kept - num, dropped={**text.dropped, "max_length": num})
            for text, num in counts
        )
        return replace(self.shard, texts=tuple(texts))


def encoding_settings(vocabulary: Vocabulary, config: BinarizeConfig) -> dict[str, Any]:
    """Return JSON values of all that determines the token ids of a text."""
    return {
        "subword": vocabulary.fingerprint,
        "max_length": config.max_length,
        "format": FORMAT,
        "normalization_version": vocabulary.normalization.version,  # of the escapes
    }


def encode_shards(
    manifest: Manifest,
    split: str,
    shards: Sequence[Shard],
    vocabulary: Vocabulary,
    config: BinarizeConfig,
    *,
    force: bool = False,
) -> list[EncodedShard]:
    """Encode the shards of a split that are not up to date."""
    bin_dir, done = manifest.data_dir / "bin", []
    models = (vocabulary.source, vocabulary.target)
    # Other splits keep every sentence as it is, so that scores stay comparable.
    encoder = _Encoder(models=models, max_length=config.max_length if split == "train" else None)
    num_threads = chosen_threads(config.threads)
    # SentencePiece's own threads would idle while Python makes arrays of the ids.
    threads = ThreadPoolExecutor(num_threads, "binarize")
    try:
        with Progress(f"binarize {split}", total=None, unit="pairs") as bar:
            for shard in shards:
                paths = manifest.text_paths(shard.name)
                inputs = {
                    "text": {path.name: manifest.text_fingerprint(path) for path in paths},
                    "pairs": [text.kept for text in shard.texts],
                    "settings": encoding_settings(vocabulary, config),
                }
                advice = f"run {tfm_command('binarize', manifest.data_dir, '--force')}"
                known = EncodedShard.find(bin_dir, shard.name, inputs, advice=advice)
                if force or known is None:
                    blocks = read_blocks(*paths, strict=True)
                    encoded = map_in_order(
                        threads, encoder.encode, blocks, num_ahead=2 * num_threads
                    )
                    known = _write(manifest, shard, inputs, models, encoded, bar)
                elif known.shard != shard:  # such as in weights
                    known = replace(known, shard=shard)
                    known.save(bin_dir)
                done.append(known)
            return done
    finally:  # on an error or Ctrl-C, wait only for the blocks that are being encoded
        threads.shutdown(cancel_futures=True)


def _write(
    manifest: Manifest,
    shard: Shard,
    inputs: Values,
    models: Sequence[SubwordModel],
    blocks: Iterable["_EncodedBlock"],
    bar: Progress,
) -> EncodedShard:
    """Write the token ids of a shard, then its record."""
    bin_dir, languages, read = manifest.data_dir / "bin", manifest.languages, 0
    (bin_dir / "dataset.json").unlink(missing_ok=True)  # until all shards are of these settings
    ends = np.cumsum([text.kept for text in shard.texts], dtype=np.int64)
    too_long = np.zeros(len(ends) + 1, dtype=np.int64)  # of each text, and of pairs after them
    with contextlib.ExitStack() as stack:
        writers = [
            TokenWriter(stack, bin_dir / f"{shard.name}.{language}", model)
            for language, model in zip(languages, models, strict=True)
        ]
        for block in blocks:
            for writer, side in zip(writers, block.sides, strict=True):
                writer.append(side)
            numbers = np.searchsorted(ends, read + block.too_long, side="right")
            too_long += np.bincount(numbers, minlength=len(too_long))
            read += block.read
            bar.update(block.read)
        for writer in writers:
            writer.finish()
    is_edited = sum(text.kept for text in shard.texts) != read
    ids = ShardIds.of_files(bin_dir, shard.name, languages)
    done = EncodedShard(
        inputs=inputs,
        sizes={file: (bin_dir / file).stat().st_size for file in ids.sha256},
        ids=ids,
        read=read,
        shard=shard,
        too_long=() if is_edited else tuple(too_long[:-1].tolist()),
        unknown=(writers[0].num_unknown, writers[1].num_unknown),
        byte_pieces=(writers[0].num_bytes, writers[1].num_bytes),
        spelled=(writers[0].most_spelled(), writers[1].most_spelled()),
    )
    done.save(bin_dir)
    return done


@dataclass(frozen=True, kw_only=True)
class _EncodedBlock:
    """A block of a shard as token ids, and the places of pairs that were too long in it."""

    read: int
    too_long: Integers
    sides: list[TokenIds]


@dataclass(frozen=True, kw_only=True)
class _Encoder:
    """Encodes the blocks of a shard, in any thread."""

    models: tuple[SubwordModel, SubwordModel]
    max_length: int | None

    def encode(self, block: Block) -> _EncodedBlock:
        """Encode a block, without pairs that are too long."""
        pairs = zip(self.models, block, strict=True)
        sides = [model.encode_block(side) for model, side in pairs]
        limit = np.inf if self.max_length is None else self.max_length
        is_kept = np.logical_and(*(lengths <= limit for _, lengths in sides))
        if not is_kept.all():
            sides = [(ids[np.repeat(is_kept, lengths)], lengths[is_kept]) for ids, lengths in sides]
        return _EncodedBlock(read=len(is_kept), too_long=np.flatnonzero(~is_kept), sides=sides)


def map_in_order(
    threads: ThreadPoolExecutor,
    function: Callable[[T], Result],
    items: Iterable[T],
    *,
    num_ahead: int,
) -> Iterator[Result]:
    """Map items in threads and in order, reading at most `num_ahead` items in advance."""
    pending: deque[Future[Result]] = deque()
    for item in items:
        pending.append(threads.submit(function, item))
        if len(pending) > num_ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


class TokenWriter:
    """Writes the tokens and offsets of one side of a shard."""

    def __init__(self, stack: contextlib.ExitStack, stem: Path, model: SubwordModel) -> None:
        self._stem = stem
        self._byte_values = model.byte_values
        tokens = stack.enter_context(atomic_write(stem.with_name(f"{stem.name}.tokens.npy")))
        offsets = stack.enter_context(atomic_write(stem.with_name(f"{stem.name}.offsets.npy")))
        self._tokens = ArrayWriter(tokens, id_dtype(len(model)))
        self._offsets = ArrayWriter(offsets, np.uint32)
        self._offsets.append(np.zeros(1, dtype=np.uint32))
        self.num_unknown = self.num_bytes = 0
        self.spelled: Counter[str] = Counter()  # characters

    def append(self, side: TokenIds) -> None:
        """Append the token ids of sentences."""
        ids, lengths = side
        if self._tokens.length + len(ids) > MAX_TOKENS:
            raise DataError(
                f"{self._stem} has more than {MAX_TOKENS:,} tokens: prepare the text in "
                "smaller shards, with --shard-pairs"
            )
        self._offsets.append(self._tokens.length + np.cumsum(lengths))
        self._tokens.append(ids)
        self.num_unknown += int(np.count_nonzero(ids == UNK))
        values = self._byte_values[ids]
        if len(spelled := values[values >= 0].astype(np.uint8)):
            self.num_bytes += len(spelled)
            self.spelled.update(spelled.tobytes().decode(errors="ignore"))

    def most_spelled(self) -> dict[str, int]:
        """Return the most frequent characters in bytes, and their numbers."""
        return dict(self.spelled.most_common(NUM_SPELLED))

    def finish(self) -> None:
        """Write the final lengths; the files appear when the stack ends."""
        self._tokens.finish()
        self._offsets.finish()
