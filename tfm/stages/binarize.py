"""tfm binarize: the text of a dataset + its subword model → token ids on disk."""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from tfm.config import BinarizeConfig
from tfm.data.dataset import FORMAT, ArrayWriter, DatasetIndex, id_dtype
from tfm.data.manifest import Manifest
from tfm.data.subword import UNK, Vocabulary
from tfm.data.text import BytesPair, in_chunks, read_pairs
from tfm.errors import DataError
from tfm.runtime.files import atomic_write
from tfm.runtime.reporting import Progress, say
from tfm.stages.learn_bpe import STEP as LEARNING

STEP = "binarize"
_UNKNOWN_WARNING_RATE = 0.001


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


def binarize(data_dir: Path, config: BinarizeConfig, *, force: bool = False) -> BinarizeResult:
    """Turn all splits of a dataset into token ids, unless text, model and settings are unchanged.

    Memory stays bounded whatever the size of the text.

    Args:
        data_dir: The dataset folder.
        config: How.
        force: Do it again in any case.

    Raises:
        DataError: Text or subword model are missing, a line is not UTF-8, or the sides have unequal
            line counts.
    """
    manifest = Manifest.load(data_dir)
    vocabulary = Vocabulary.load(data_dir)
    splits = manifest.splits()
    if not splits:
        raise DataError(f"{data_dir} has no text: run tfm prepare first")
    bin_dir = data_dir / "bin"
    inputs = {
        "text": manifest.text_fingerprints(splits),
        "subword": vocabulary.fingerprint,
        "max_length": config.max_length,
        "format": FORMAT,
    }
    if not force and manifest.is_current(STEP, inputs):
        say(f"binarize: {bin_dir} unchanged")
        return BinarizeResult(bin_dir=bin_dir, counts=_recorded(manifest), is_new=False)
    _warn_of_another_model(manifest, vocabulary)
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


def _recorded(manifest: Manifest) -> dict[str, SplitCounts]:
    try:
        return {name: SplitCounts(**counts) for name, counts in manifest.result(STEP).items()}
    except TypeError as error:
        raise manifest.damage() from error


def _warn_of_another_model(manifest: Manifest, vocabulary: Vocabulary) -> None:
    """Say so if the subword model is not the one that was learnt, as if it is damaged."""
    learnt = manifest.result(LEARNING).get("fingerprints")
    models = [vocabulary.source] if vocabulary.is_joint else [vocabulary.source, vocabulary.target]
    if learnt is not None and learnt != [model.fingerprint for model in models]:
        say(
            f"warning: {manifest.data_dir} has another subword model than tfm learn-bpe made: "
            'unless you put it there, it is damaged; run "tfm learn-bpe --force" then'
        )


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
        bar = stack.enter_context(Progress(f"binarize {split}", total=None, unit="pairs"))
        for block in in_chunks(read_pairs(*texts, strict=True)):
            sides = _encode(block, vocabulary, max_length=max_length, jobs=config.jobs)
            for writer, sentences in zip(writers, sides, strict=True):
                writer.append(sentences)
            counts.read += len(block)
            counts.kept += len(sides[0])
            bar.update(len(block))
        for writer in writers:
            writer.finish()
    counts.too_long = counts.read - counts.kept
    counts.tokens = [writer.num_tokens for writer in writers]
    counts.unknown = [writer.num_unknown for writer in writers]
    return counts


class _TokenWriter:
    """Tokens and offsets of one language of one split."""

    def __init__(self, stack: contextlib.ExitStack, stem: Path, vocab_size: int) -> None:
        tokens = stack.enter_context(atomic_write(stem.with_name(f"{stem.name}.tokens.npy")))
        offsets = stack.enter_context(atomic_write(stem.with_name(f"{stem.name}.offsets.npy")))
        self._tokens = ArrayWriter(tokens, id_dtype(vocab_size))
        self._offsets = ArrayWriter(offsets, np.int64)
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self.num_unknown = 0

    @property
    def num_tokens(self) -> int:
        return self._tokens.length

    def append(self, sentences: Sequence[Sequence[int]]) -> None:
        ids = np.fromiter(itertools.chain.from_iterable(sentences), dtype=np.int64)
        ends = self.num_tokens + np.cumsum([len(each) for each in sentences], dtype=np.int64)
        self._offsets.append(ends)
        self._tokens.append(ids)
        self.num_unknown += int((ids == UNK).sum())

    def finish(self) -> None:
        self._tokens.finish()
        self._offsets.finish()


def _encode(
    block: Sequence[BytesPair],
    vocabulary: Vocabulary,
    *,
    max_length: int | None,
    jobs: int,
) -> list[list[list[int]]]:
    """Token ids of the source and of the target sentences of the pairs that are not too long."""
    models = (vocabulary.source, vocabulary.target)
    sides = [
        model.encode([pair[side].decode() for pair in block], num_threads=jobs)
        for side, model in enumerate(models)
    ]
    if max_length is None:
        return sides
    kept = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= max_length]
    return [[pair[side] for pair in kept] for side in (0, 1)]


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
