"""tfm binarize: the text of a dataset + its subword model → token ids on disk."""

import contextlib
import itertools
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfm.config import BinarizeConfig
from tfm.data.dataset import FORMAT, ArrayWriter, DatasetIndex, id_dtype
from tfm.data.manifest import Manifest
from tfm.data.subword import UNK, Vocabulary
from tfm.errors import DataError
from tfm.runtime.files import atomic_write
from tfm.runtime.reporting import Progress, say

STEP = "binarize"
_BLOCK_PAIRS = 10_000
_UNKNOWN_WARNING_RATE = 0.001

Block = tuple[list[bytes], list[bytes]]


@dataclass(kw_only=True)
class SplitCounts:
    """What became of the pairs of one split; tokens and unknowns are [source, target]."""

    read: int = 0
    too_long: int = 0
    kept: int = 0
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    unknown: list[int] = field(default_factory=lambda: [0, 0])


@dataclass(frozen=True, kw_only=True)
class BinarizeResult:
    """The binarized dataset and what became of each split."""

    bin_dir: Path
    counts: dict[str, SplitCounts]
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class _EncodedBlock:
    """Token ids and lengths of the pairs of a block that are kept, for source and target."""

    ids: list[npt.NDArray[Any]]
    lengths: list[npt.NDArray[np.int64]]
    num_read: int


def binarize(data_dir: Path, config: BinarizeConfig, *, force: bool = False) -> BinarizeResult:
    """Turn all splits of a dataset into token ids, unless text, model and settings are unchanged.

    Memory stays bounded whatever the size of the text.

    Args:
        data_dir: The dataset folder.
        config: How.
        force: Do it again in any case.

    Raises:
        DataError: Text or subword model are missing, or the sides have unequal line counts.
    """
    manifest = Manifest.load(data_dir)
    vocabulary = Vocabulary.load(data_dir)
    splits = manifest.splits()
    bin_dir = data_dir / "bin"
    inputs = {
        "text": manifest.text_fingerprints(splits),
        "subword": vocabulary.fingerprint,
        "max_length": config.max_length,
        "format": FORMAT,
    }
    if not force and manifest.is_current(STEP, inputs):
        say(f"binarize: {bin_dir} unchanged")
        recorded = {name: SplitCounts(**c) for name, c in manifest.result(STEP).items()}
        return BinarizeResult(bin_dir=bin_dir, counts=recorded, is_new=False)
    (bin_dir / "dataset.json").unlink(missing_ok=True)
    counts = {split: _binarize_split(manifest, split, vocabulary, config) for split in splits}
    index = DatasetIndex(
        source=manifest.source,
        target=manifest.target,
        fingerprint=vocabulary.fingerprint,
        num_pairs={split: count.kept for split, count in counts.items()},
    )
    index.save(bin_dir)
    outputs = [path for path in bin_dir.iterdir() if path.suffix in (".npy", ".json")]
    result = {split: asdict(count) for split, count in counts.items()}
    manifest.record(STEP, inputs=inputs, outputs=outputs, result=result)
    for split, count in counts.items():
        _report(split, count)
    return BinarizeResult(bin_dir=bin_dir, counts=counts, is_new=True)


def _binarize_split(
    manifest: Manifest, split: str, vocabulary: Vocabulary, config: BinarizeConfig
) -> SplitCounts:
    languages = (manifest.source, manifest.target)
    texts = [manifest.text_path(split, language) for language in languages]
    # Only training may lose a sentence: the others are what a score is compared on.
    max_length = config.max_length if split == "train" else None
    counts = SplitCounts()
    with contextlib.ExitStack() as stack:
        writers = [
            _TokenWriter(stack, manifest.data_dir / "bin" / f"{split}.{language}", len(model))
            for language, model in zip(
                languages, (vocabulary.source, vocabulary.target), strict=True
            )
        ]
        size = sum(path.stat().st_size for path in texts)
        bar = stack.enter_context(Progress(f"binarize {split}", total=None, unit="pairs"))
        jobs = min(config.jobs or os.cpu_count() or 1, size // (8 << 20) + 1)
        encode = stack.enter_context(_encoder(manifest.data_dir, max_length, jobs))
        for block in encode(_blocks(texts)):
            counts.read += block.num_read
            counts.kept += len(block.lengths[0])
            for side, writer in enumerate(writers):
                writer.append(block.ids[side], block.lengths[side])
                counts.tokens[side] += len(block.ids[side])
                counts.unknown[side] += int((block.ids[side] == UNK).sum())
            bar.update(block.num_read)
        for writer in writers:
            writer.finish()
    counts.too_long = counts.read - counts.kept
    return counts


class _TokenWriter:
    """Tokens and offsets of one language of one split."""

    def __init__(self, stack: contextlib.ExitStack, stem: Path, vocab_size: int) -> None:
        tokens = stack.enter_context(atomic_write(stem.with_name(f"{stem.name}.tokens.npy")))
        offsets = stack.enter_context(atomic_write(stem.with_name(f"{stem.name}.offsets.npy")))
        self._tokens = ArrayWriter(tokens, id_dtype(vocab_size))
        self._offsets = ArrayWriter(offsets, np.int64)
        self._offsets.append(np.zeros(1, dtype=np.int64))

    def append(self, ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> None:
        self._offsets.append(self._tokens.length + np.cumsum(lengths))
        self._tokens.append(ids)

    def finish(self) -> None:
        self._tokens.finish()
        self._offsets.finish()


def _blocks(texts: list[Path]) -> Iterator[Block]:
    """The lines of both sides, a bounded number at a time."""
    with texts[0].open("rb") as source, texts[1].open("rb") as target:
        while True:
            block = [list(itertools.islice(side, _BLOCK_PAIRS)) for side in (source, target)]
            if len(block[0]) != len(block[1]):
                raise DataError(
                    f"{texts[0]} and {texts[1]} have different numbers of lines: "
                    "run tfm prepare again"
                )
            if not block[0]:
                return
            yield block[0], block[1]


@contextlib.contextmanager
def _encoder(
    data_dir: Path, max_length: int | None, jobs: int
) -> Iterator[Callable[[Iterator[Block]], Iterator[_EncodedBlock]]]:
    """A function that encodes blocks in order, in this process or in several."""
    if jobs == 1:
        vocabulary = Vocabulary.load(data_dir)
        yield lambda blocks: (_encode(vocabulary, block, max_length) for block in blocks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _start_worker, (data_dir,)) as pool:

        def encode(blocks: Iterator[Block]) -> Iterator[_EncodedBlock]:
            waiting: deque[Future[_EncodedBlock]] = deque()
            for block in blocks:
                waiting.append(pool.submit(_encode_in_worker, block, max_length))
                if len(waiting) > 2 * jobs:  # bounds the blocks in memory
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        yield encode


_worker_vocabulary: Vocabulary


def _start_worker(data_dir: Path) -> None:
    global _worker_vocabulary  # one model for the life of a worker process
    _worker_vocabulary = Vocabulary.load(data_dir)


def _encode_in_worker(block: Block, max_length: int | None) -> _EncodedBlock:
    return _encode(_worker_vocabulary, block, max_length)


def _encode(vocabulary: Vocabulary, block: Block, max_length: int | None) -> _EncodedBlock:
    models = (vocabulary.source, vocabulary.target)
    dtype = id_dtype(max(len(model) for model in models))
    sides = [
        model.encode([line.decode().removesuffix("\n") for line in lines])
        for model, lines in zip(models, block, strict=True)
    ]
    if max_length is not None:
        pairs = zip(*sides, strict=True)
        kept = [pair for pair in pairs if max(map(len, pair)) <= max_length]
        sides = [[pair[side] for pair in kept] for side in (0, 1)]
    return _EncodedBlock(
        ids=[np.array(list(itertools.chain.from_iterable(side)), dtype=dtype) for side in sides],
        lengths=[np.array([len(ids) for ids in side], dtype=np.int64) for side in sides],
        num_read=len(block[0]),
    )


def _report(split: str, counts: SplitCounts) -> None:
    rate = sum(counts.unknown) / max(1, sum(counts.tokens))
    dropped = f", {counts.too_long:,} too long" if counts.too_long else ""
    say(
        f"binarize: {split} {counts.kept:,} of {counts.read:,} pairs{dropped}, "
        f"{counts.tokens[0]:,} source and {counts.tokens[1]:,} target tokens, "
        f"<unk> {rate:.3%}"
    )
    if rate > _UNKNOWN_WARNING_RATE:
        say(
            f"warning: {split}: {rate:.2%} of the tokens are unknown to the subword model; "
            "learn it with byte_fallback or a higher character_coverage"
        )
