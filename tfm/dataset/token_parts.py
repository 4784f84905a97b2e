"""Encode the text of a dataset in parts, for `tfm binarize`."""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tfm.config import BinarizeConfig, Values
from tfm.config.values import differences, from_table
from tfm.dataset.manifest import BINARIZE, Manifest
from tfm.dataset.parallel import FORMAT, MAX_PART_TOKENS, ArrayWriter, Integers, Part, id_dtype
from tfm.dataset.shards import Shard
from tfm.disk.files import atomic_write, have_sizes, read_json, write_json
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
class BinarizedPart:
    """The token ids of a part of the text, as written.

    Attributes:
        inputs: JSON values of all that determines it.
        files: {file name: size in bytes} of its files.
        read: Number of pairs in the text.
        too_long: For each training text, the number of pairs that were dropped.
        unknown: Numbers of unknown tokens of source and target.
        part: The record of its token ids.
        byte_pieces: Numbers of tokens of source and target that are bytes.
        spelled: {character: number} of the most frequent characters in bytes, for both sides.
    """

    inputs: Values
    files: Mapping[str, int]
    read: int
    too_long: tuple[int, ...]
    unknown: tuple[int, int]
    part: Part
    byte_pieces: tuple[int, int]
    spelled: tuple[Mapping[str, int], Mapping[str, int]]


def encoding_settings(vocabulary: Vocabulary, config: BinarizeConfig) -> dict[str, Any]:
    """Return JSON values of all that determines the token ids of a text."""
    return {
        "subword": vocabulary.fingerprint,
        "max_length": config.max_length,
        "format": FORMAT,
        "normalization_version": vocabulary.normalization.version,  # of the escapes
    }


def encoding_changes(
    manifest: Manifest, vocabulary: Vocabulary, config: BinarizeConfig
) -> list[str]:
    """Describe how an encoding differs from the encoding of a dataset's token ids, if any."""
    before = dict(manifest.inputs(BINARIZE) or {})
    after = encoding_settings(vocabulary, config)
    for name in ("text", "texts"):
        before.pop(name, None)
    return differences(*map(_in_words, (before, after))) if before else []


def _in_words(encoding: Values) -> Values:
    """Return the result of `encoding_settings` for messages."""
    return {**encoding, "subword": str(encoding.get("subword"))[:8]}


def binarize_split(
    manifest: Manifest,
    split: str,
    shards: Sequence[Shard],
    vocabulary: Vocabulary,
    config: BinarizeConfig,
    *,
    force: bool = False,
) -> list[BinarizedPart]:
    """Encode the shards of a split that are not up to date."""
    previous = [] if force else _previous_parts(manifest, split, shards)
    # SentencePiece's own threads would idle while Python makes arrays of the ids.
    threads = ThreadPoolExecutor(chosen_threads(config.threads), "binarize")
    try:
        with Progress(f"binarize {split}", total=None, unit="pairs") as bar:
            return [
                _binarize_part(manifest, split, shard, vocabulary, config, previous, threads, bar)
                for shard in shards
            ]
    finally:  # on an error or Ctrl-C, wait only for the blocks that are being encoded
        threads.shutdown(cancel_futures=True)


def _previous_parts(manifest: Manifest, split: str, shards: Sequence[Shard]) -> list[BinarizedPart]:
    """Return the records of finished parts, from the manifest or from one file a part."""
    files = [manifest.data_dir / "bin" / f"{shard.name}.json" for shard in shards]
    try:
        tables = list(manifest.result(BINARIZE).get(split, {}).get("parts", []))
        tables += [read_json(path) for path in files if path.is_file()]
        return [from_table(BinarizedPart, table) for table in tables]
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(
            f"the record of a part of {split} in {manifest.data_dir} is damaged ({error}): run "
            + tfm_command("binarize", manifest.data_dir, "--force")
        ) from error


def _binarize_part(
    manifest: Manifest,
    split: str,
    shard: Shard,
    vocabulary: Vocabulary,
    config: BinarizeConfig,
    previous: Iterable[BinarizedPart],
    threads: ThreadPoolExecutor,
    bar: Progress,
) -> BinarizedPart:
    """Write the token ids and the record of a part, unless a previous record is up to date."""
    # Other splits keep every sentence as it is, so that scores stay comparable.
    bin_dir, is_train = manifest.data_dir / "bin", split == "train"
    inputs = {
        "text": {path.name: manifest.text_fingerprint(path) for path in shard.text},
        "start": shard.start,
        "text_ends": [*shard.text_ends],
        **encoding_settings(vocabulary, config),
    }
    for record in previous:
        if record.inputs == inputs and have_sizes(bin_dir, record.files):
            return record
    (bin_dir / "dataset.json").unlink(missing_ok=True)  # until all parts are of these settings
    encoder = _Encoder(
        models=(vocabulary.source, vocabulary.target),
        max_length=config.max_length if is_train else None,
        text_ends=np.array(shard.text_ends, dtype=np.int64),
    )
    blocks = _numbered(read_blocks(*shard.text, strict=True), shard.start)
    num_ahead = 2 * chosen_threads(config.threads)
    encoded = map_in_order(threads, encoder.encode, blocks, num_ahead=num_ahead)
    counts = _write(bin_dir, shard.name, manifest.languages, encoder, encoded, bar)
    part = Part.of_files(bin_dir, shard.name, manifest.languages)
    sizes = {file: (bin_dir / file).stat().st_size for file in part.sha256}
    done = BinarizedPart(inputs=inputs, files=sizes, part=part, **counts)
    write_json(bin_dir / f"{shard.name}.json", asdict(done))
    return done


def _write(
    bin_dir: Path,
    name: str,
    languages: Sequence[str],
    encoder: "_Encoder",
    blocks: Iterable["_EncodedBlock"],
    bar: Progress,
) -> dict[str, Any]:
    """Write the files of a part; return the counts of `BinarizedPart`."""
    read = 0
    too_long = np.zeros(max(1, len(encoder.text_ends)), dtype=np.int64)
    with contextlib.ExitStack() as stack:
        writers = [
            _TokenWriter(stack, bin_dir / f"{name}.{language}", model)
            for language, model in zip(languages, encoder.models, strict=True)
        ]
        for block in blocks:
            for writer, side in zip(writers, block.sides, strict=True):
                writer.append(side)
            read += block.read
            too_long += block.too_long
            bar.update(block.read)
        for writer in writers:
            writer.finish()
    return {
        "read": read,
        "too_long": tuple(too_long.tolist()),
        "unknown": tuple(writer.num_unknown for writer in writers),
        "byte_pieces": tuple(writer.num_bytes for writer in writers),
        "spelled": tuple(dict(writer.spelled.most_common(NUM_SPELLED)) for writer in writers),
    }


@dataclass(frozen=True, kw_only=True)
class _EncodedBlock:
    """A block of a split as token ids; `too_long` is as in `BinarizedPart`."""

    read: int
    too_long: Integers
    sides: list[TokenIds]


@dataclass(frozen=True, kw_only=True)
class _Encoder:
    """Encodes the blocks of a split, in any thread."""

    models: tuple[SubwordModel, SubwordModel]
    max_length: int | None
    text_ends: Integers  # [number of training texts] where their pairs end

    def encode(self, start_and_block: tuple[int, Block]) -> _EncodedBlock:
        """Encode a block after a number of pairs, without pairs that are too long."""
        start, block = start_and_block
        pairs = zip(self.models, block, strict=True)
        sides = [model.encode_block(side) for model, side in pairs]
        limit = np.inf if self.max_length is None else self.max_length
        is_kept = np.logical_and(*(lengths <= limit for _, lengths in sides))
        if not is_kept.all():
            sides = [(ids[np.repeat(is_kept, lengths)], lengths[is_kept]) for ids, lengths in sides]
        too_long = self._count_by_text(start + np.flatnonzero(~is_kept))
        return _EncodedBlock(read=len(is_kept), too_long=too_long, sides=sides)

    def _count_by_text(self, pairs: Integers) -> Integers:
        num_texts = max(1, len(self.text_ends))  # pairs of no known text count for the last one
        texts = np.searchsorted(self.text_ends, pairs, side="right").clip(max=num_texts - 1)
        return np.bincount(texts, minlength=num_texts)


def _numbered(blocks: Iterable[Block], start: int) -> Iterator[tuple[int, Block]]:
    """Yield each block after the number of pairs in the text before it."""
    for block in blocks:
        yield start, block
        start += len(block[0])


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


class _TokenWriter:
    """Writes the tokens and offsets of one side of a part of a split."""

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
        ids, lengths = side
        if self._tokens.length + len(ids) > MAX_PART_TOKENS:
            raise DataError(
                f"{self._stem} has more than {MAX_PART_TOKENS:,} tokens: prepare the text in "
                "smaller parts"
            )
        self._offsets.append(self._tokens.length + np.cumsum(lengths))
        self._tokens.append(ids)
        self.num_unknown += int(np.count_nonzero(ids == UNK))
        values = self._byte_values[ids]
        if len(spelled := values[values >= 0].astype(np.uint8)):
            self.num_bytes += len(spelled)
            self.spelled.update(spelled.tobytes().decode(errors="ignore"))

    def finish(self) -> None:
        self._tokens.finish()
        self._offsets.finish()
