"""tfm binarize: text and subword model of a dataset → token ids on disk."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tfm.config import BinarizeConfig, Table
from tfm.config.schema import from_table
from tfm.data.bpe_dropout import TokenIds
from tfm.data.copies import Copier
from tfm.data.dataset import (
    FORMAT,
    MAX_PART_TOKENS,
    ArrayWriter,
    DatasetIndex,
    ParallelDataset,
    Part,
    Rows,
    id_dtype,
)
from tfm.data.manifest import BINARIZE, Manifest, TrainingText
from tfm.data.shortlist import FILE as SHORTLIST
from tfm.data.shortlist import FORMAT as SHORTLIST_FORMAT
from tfm.data.shortlist import learn_shortlist
from tfm.data.subword import UNK, SubwordModel, Vocabulary
from tfm.data.text import Block, read_blocks
from tfm.data.text_parts import Share, lock_dataset
from tfm.device.cpu import chosen_threads
from tfm.errors import DataError, UsageError, tfm_command
from tfm.reporting import Progress, say
from tfm.stages.learn_bpe import STEP as LEARNING
from tfm.storage.files import atomic_write, read_json, write_json
from tfm.storage.lock import lock_folder

_UNKNOWN_WARNING_RATE = 0.001

T = TypeVar("T")
Result = TypeVar("Result")

Encode = Callable[["_Encoder", Iterable[tuple[int, Block]], int], Iterator["_EncodedBlock"]]


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Numbers of pairs and tokens of one split.

    `kept` is `read` and `copies` without `too_long`. Lists are [source, target]; `tokens` and
    `unknown` are of the segmentation without dropout, and `variant_tokens` of all variants.
    """

    read: int
    copies: int
    too_long: int
    kept: int
    tokens: list[int]
    unknown: list[int]
    variants: int = 0
    variant_tokens: list[int] = field(default_factory=lambda: [0, 0])


@dataclass(frozen=True, kw_only=True)
class _BinarizedPart:
    """What was written of a part of the text.

    Attributes:
        inputs: JSON values of all that determines it.
        files: {file name: size in bytes} of its files.
        read: Number of pairs in the text.
        copied: For each training text, the number of pairs of which a copy was added.
        too_long: The same for pairs, or copies, that were dropped.
        unknown: Numbers of unknown tokens of source and target.
        parts: The segmentation without dropout, then its variants.
    """

    inputs: Table
    files: Mapping[str, int]
    read: int
    copied: tuple[int, ...]
    too_long: tuple[int, ...]
    unknown: tuple[int, int]
    parts: tuple[Part, ...]

    def has_files(self, bin_dir: Path) -> bool:
        """Return whether the files are there, in their sizes."""
        sizes = {bin_dir / file: size for file, size in self.files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


def binarize(data_dir: Path, config: BinarizeConfig, *, force: bool = False) -> bool:
    """Encode all splits of a dataset, unless text, subword model and settings are unchanged.

    Parts of the text that have not changed, or that `binarize_share` has encoded, are not encoded
    again. Memory use does not depend on the size of the text; the output not on the number of
    threads.

    Returns:
        Whether they were encoded; False if they were up to date.

    Raises:
        DataError: Text or subword model are missing, a line is not UTF-8, the sides differ in
            their numbers of lines, or a tag of the text is not in the vocabulary.
        UsageError: The settings do not fit the subword model or the task.
        LockedFolderError: Another process writes to the dataset.
    """
    with lock_dataset(data_dir):
        return update_token_ids(data_dir, config, force=force)


def binarize_share(
    data_dir: Path, config: BinarizeConfig, share: Share, *, force: bool = False
) -> None:
    """Encode one share of the parts of the training text, for a later call of `binarize`.

    Each share may be encoded by another machine at the same time.

    Raises:
        DataError: As `binarize` does.
        UsageError: The same, or the share has no part.
        LockedFolderError: Another process encodes the same share.
    """
    manifest = Manifest.load(data_dir)
    names = manifest.text_parts("train")
    if len(names) < share.number:
        raise UsageError(
            f"--part {share}: the training text in {data_dir} has {len(names)} parts: use fewer "
            "shares, or prepare the text with a smaller --part-pairs"
        )
    with lock_folder(share.folder(data_dir)):
        vocabulary = Vocabulary.load(data_dir)
        _check(manifest, vocabulary, config)
        share_names = names[share.number - 1 :: share.count]
        done = _binarize_split(manifest, "train", share_names, vocabulary, config, force=force)
    say(f"binarize: part {share} with {sum(each.read for each in done):,} pairs")


def update_token_ids(data_dir: Path, config: BinarizeConfig, *, force: bool) -> bool:
    """Do the work of `binarize` for a caller that holds the lock of the folder."""
    manifest = Manifest.load(data_dir)
    vocabulary = Vocabulary.load(data_dir)
    is_new = _update_splits(manifest, vocabulary, config, force=force)
    if config.shortlist:
        return _update_shortlist(manifest, vocabulary, config, force=force) or is_new
    if is_new and (shortlist := data_dir / SHORTLIST).exists():
        shortlist.unlink()
        say(f"binarize: removed {shortlist}, which is for older data: --shortlist learns it again")
    return is_new


def _update_splits(
    manifest: Manifest, vocabulary: Vocabulary, config: BinarizeConfig, *, force: bool
) -> bool:
    """Encode all splits; return False if they were up to date."""
    splits = manifest.splits()
    if not splits:
        raise DataError(f"{manifest.data_dir} has no text: run tfm prepare first")
    bin_dir = manifest.data_dir / "bin"
    texts = manifest.training_texts()
    inputs = {
        "text": manifest.text_fingerprints(splits),
        "texts": [asdict(text) for text in texts],
        **_settings(vocabulary, config),
    }
    if not force and manifest.is_current(BINARIZE, inputs):
        say(f"binarize: {bin_dir} unchanged")
        return False
    _check(manifest, vocabulary, config)
    (bin_dir / "dataset.json").unlink(missing_ok=True)
    counts, parts, result = {}, {}, {}
    for split in splits:
        names = manifest.text_parts(split)
        done = _binarize_split(manifest, split, names, vocabulary, config, force=force)
        # The rows of each variant follow those of all parts without dropout.
        parts[split] = tuple(chain(*zip(*(each.parts for each in done), strict=True)))
        counts[split] = _counts(done)
        result[split] = asdict(counts[split]) | {"parts": [asdict(each) for each in done]}
        if split == "train" and texts:
            texts = _changed(texts, done, manifest)
    index = DatasetIndex(
        source=manifest.source,
        target=manifest.target,
        fingerprint=vocabulary.fingerprint,
        parts=parts,
        texts=tuple(texts),
        num_variants=config.num_variants,
    )
    index.save(bin_dir)
    outputs = [bin_dir / name for name in ("dataset.json", *index.files())]
    manifest.record(BINARIZE, inputs=inputs, outputs=outputs, result=result)
    manifest.save()
    for path in bin_dir.iterdir():  # files of older data, and records that are in the manifest
        if path.suffix in (".npy", ".json") and path not in outputs:
            path.unlink()
    for split, count in counts.items():
        _report(split, count)
    return True


def _update_shortlist(
    manifest: Manifest, vocabulary: Vocabulary, config: BinarizeConfig, *, force: bool
) -> bool:
    """Learn the shortlist from the training pairs; return False if it was up to date."""
    data_dir = manifest.data_dir
    inputs = {
        "binarize": manifest.inputs(BINARIZE),
        "size": config.shortlist_size,
        "frequent": config.shortlist_frequent,
        "pairs": config.shortlist_pairs,
        "format": SHORTLIST_FORMAT,
    }
    if not force and manifest.is_current("shortlist", inputs):
        say(f"binarize: {data_dir / SHORTLIST} unchanged")
        return False
    sizes = (len(vocabulary.source), len(vocabulary.target))
    dataset = ParallelDataset(data_dir / "bin", "train", vocab_sizes=sizes)
    dataset.verify()
    if not len(dataset):
        raise DataError(f"{data_dir} has no training pairs to learn a shortlist from")
    num_pairs = min(len(dataset), config.shortlist_pairs)
    learn_shortlist(
        dataset,
        vocabulary,
        size=config.shortlist_size,
        num_frequent=config.shortlist_frequent,
        max_pairs=num_pairs,
    ).save(data_dir)
    result = {"pairs": num_pairs}
    manifest.record("shortlist", inputs=inputs, outputs=[data_dir / SHORTLIST], result=result)
    manifest.save()
    say(f"binarize: {data_dir / SHORTLIST} learned from {num_pairs:,} pairs")
    return True


def _settings(vocabulary: Vocabulary, config: BinarizeConfig) -> dict[str, Any]:
    """Return JSON values of all that determines the token ids of a text."""
    settings: dict[str, Any] = {
        "subword": vocabulary.fingerprint,
        "max_length": config.max_length,
        "format": FORMAT,
    }
    if config.num_variants:
        settings["variants"] = [config.bpe_dropout, config.num_variants, config.seed]
    if any(config.copies.values()):
        settings |= {"copies": config.copies, "seed": config.seed}
    return settings


def _check(manifest: Manifest, vocabulary: Vocabulary, config: BinarizeConfig) -> None:
    _warn_of_replaced_model(manifest, vocabulary)
    _check_tags(manifest, vocabulary)
    _check_settings(manifest, vocabulary, config)


def _warn_of_replaced_model(manifest: Manifest, vocabulary: Vocabulary) -> None:
    """Warn if the subword model is not the one that was learned: it may be damaged."""
    learned = manifest.result(LEARNING).get("fingerprints")
    models = [vocabulary.source] if vocabulary.is_joint else [vocabulary.source, vocabulary.target]
    if learned is not None and learned != [model.fingerprint for model in models]:
        say(
            f"warning: the subword model in {manifest.data_dir} is not the one that tfm learn-bpe "
            "wrote: if you did not replace it, it is damaged; run "
            + tfm_command("learn-bpe", manifest.data_dir, "--force")
        )


def _check_tags(manifest: Manifest, vocabulary: Vocabulary) -> None:
    """Raise DataError if a tag of the text is not a piece of the vocabulary."""
    for tag in (manifest.settings("subword").get("symbols") or "").split():
        if not vocabulary.source.has_tag(tag):
            raise DataError(
                f"the subword model in {manifest.data_dir} has no piece for the tag {tag}: learn "
                f"it with {tfm_command('learn-bpe', manifest.data_dir, '--force')}, or bring one "
                "that has it among its user_defined_symbols"
            )


def _check_settings(manifest: Manifest, vocabulary: Vocabulary, config: BinarizeConfig) -> None:
    """Raise UsageError if the data has no merges to leave out, or targets that are not text."""
    if config.bpe_dropout and not (vocabulary.source.is_bpe and vocabulary.target.is_bpe):
        raise UsageError(
            f"bpe_dropout needs subword models that merge pieces, but {manifest.data_dir} has "
            "others: learn them with --model-type bpe and without --target-words, or leave it out"
        )
    if manifest.task == "parsing" and any(config.copies.values()):
        raise UsageError(f"copies need text on both sides, but {manifest.data_dir} has trees")


def _changed(
    texts: list[TrainingText], done: Sequence[_BinarizedPart], manifest: Manifest
) -> list[TrainingText]:
    """Return the training texts with the numbers of pairs that are kept of them.

    There are none if the text was edited, so that the texts of its pairs are unknown.
    """
    written, num_pairs = sum(text.kept for text in texts), sum(each.read for each in done)
    if written != num_pairs:
        if any(text.weight for text in texts):
            raise DataError(
                f"the training text in {manifest.data_dir} has {num_pairs:,} pairs, but tfm "
                f"prepare wrote {written:,}: prepare it again, so that weights fit the pairs"
            )
        return []
    # A part may have been encoded before further texts were appended.
    copied, too_long = (
        [sum(counts) for counts in zip_longest(*lists, fillvalue=0)]
        for lists in ([each.copied for each in done], [each.too_long for each in done])
    )
    result = []
    for text, num_copied, num_long in zip(texts, copied, too_long, strict=True):
        kept = text.kept + num_copied - num_long
        if len(texts) > 1 and not kept:
            raise DataError(
                f"all {num_long:,} pairs of the training text {text.name} are longer than "
                "max_length: raise --max-length, or remove the text from the recipe"
            )
        result.append(replace(text, kept=kept, dropped={**text.dropped, "max_length": num_long}))
    return result


@dataclass(frozen=True, kw_only=True)
class _EncodedBlock:
    """A block of a split as token ids; `copied` and `too_long` are as in `_BinarizedPart`."""

    read: int
    copied: Rows
    too_long: Rows
    sides: list[TokenIds]


@dataclass(frozen=True, kw_only=True)
class _Encoder:
    """Encodes the blocks of a split, in any thread."""

    models: tuple[SubwordModel, SubwordModel]
    copier: Copier
    max_length: int | None
    text_ends: Rows  # [number of training texts] where their pairs end
    dropout: float  # of the merges of variants
    seed: int

    def encode(self, start_and_block: tuple[int, Block], *, variant: int) -> _EncodedBlock:
        """Encode a block and its copies, after a number of pairs, without pairs that are too long.

        Variants, from 1, have the same pairs as the segmentation without dropout, which is 0. What
        a variant draws depends on seed and place, not on other blocks.
        """
        start, block = start_and_block
        size = len(block[0])
        block, numbers = self.copier.copy(block, start=start)
        copied = numbers[1:][np.diff(numbers) == 0]
        pairs = [*zip(self.models, block, strict=True)]
        sides = [model.encode_block(side) for model, side in pairs]
        limit = np.inf if self.max_length is None else self.max_length
        is_kept = np.logical_and(*(lengths <= limit for _, lengths in sides))
        if variant:
            random = np.random.default_rng([self.seed, variant, start])
            drawn = [
                model.encode_block_with_dropout(side, self.dropout, random) for model, side in pairs
            ]
            sides = [_shorter(*both, limit) for both in zip(drawn, sides, strict=True)]
        if not is_kept.all():
            sides = [(ids[np.repeat(is_kept, lengths)], lengths[is_kept]) for ids, lengths in sides]
        return _EncodedBlock(
            read=size,
            copied=self._count_by_text(copied),
            too_long=self._count_by_text(numbers[~is_kept]),
            sides=sides,
        )

    def _count_by_text(self, pairs: Rows) -> Rows:
        num_texts = max(1, len(self.text_ends))  # pairs of no known text count for the last one
        texts = np.searchsorted(self.text_ends, pairs, side="right").clip(max=num_texts - 1)
        return np.bincount(texts, minlength=num_texts)


def _shorter(side: TokenIds, plain: TokenIds, limit: float) -> TokenIds:
    """Return a side with the plain segmentation of the sentences that would be too long."""
    (ids, lengths), (plain_ids, plain_lengths) = side, plain
    is_long = lengths > limit
    if not is_long.any():
        return side
    drawn, others = np.split(ids, np.cumsum(lengths)), np.split(plain_ids, np.cumsum(plain_lengths))
    chosen = [others[i] if long else drawn[i] for i, long in enumerate(is_long.tolist())]
    return np.concatenate(chosen), np.where(is_long, plain_lengths, lengths)


def _binarize_split(
    manifest: Manifest,
    split: str,
    names: Sequence[str],
    vocabulary: Vocabulary,
    config: BinarizeConfig,
    *,
    force: bool = False,
) -> list[_BinarizedPart]:
    """Encode parts of the text of a split, except for those that are up to date."""
    known = [] if force else _known_parts(manifest, split, names)
    num_threads = chosen_threads(config.threads)
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(Progress(f"binarize {split}", total=None, unit="pairs"))
        # SentencePiece's own threads would idle while Python makes arrays of the ids.
        threads = ThreadPoolExecutor(num_threads, "binarize")
        # On an error or Ctrl-C, wait only for the blocks that are being encoded.
        stack.callback(threads.shutdown, cancel_futures=True)

        def encode(
            encoder: _Encoder, blocks: Iterable[tuple[int, Block]], variant: int
        ) -> Iterator[_EncodedBlock]:
            work = partial(encoder.encode, variant=variant)
            for block in map_in_order(threads, work, blocks, num_ahead=2 * num_threads):
                yield block
                bar.update(block.read)

        parts = [_PartOfText(manifest, split, name, vocabulary, config) for name in names]
        return [part.current(known) or part.binarize(encode) for part in parts]


def _known_parts(manifest: Manifest, split: str, names: Sequence[str]) -> list[_BinarizedPart]:
    """Return the records of parts that are in the manifest, or in files of their own."""
    files = [manifest.data_dir / "bin" / f"{name}.json" for name in names]
    try:
        tables = list(manifest.result(BINARIZE).get(split, {}).get("parts", []))
        tables += [read_json(path) for path in files if path.is_file()]
        return [from_table(_BinarizedPart, table) for table in tables]
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(
            f"the record of a part of {split} in {manifest.data_dir} is damaged ({error}): run "
            + tfm_command("binarize", manifest.data_dir, "--force")
        ) from error


class _PartOfText:
    """A part of the text of a split, to encode."""

    def __init__(
        self,
        manifest: Manifest,
        split: str,
        name: str,
        vocabulary: Vocabulary,
        config: BinarizeConfig,
    ) -> None:
        self._name = name
        self._bin_dir = manifest.data_dir / "bin"
        self._languages = (manifest.source, manifest.target)
        self._paths = [manifest.text_path(name, language) for language in self._languages]
        self._models = (vocabulary.source, vocabulary.target)
        self._config = config
        # Other splits keep every sentence as it is, so that scores stay comparable.
        self._is_train = split == "train"
        self._start, self._text_ends = manifest.place(name) if self._is_train else (0, [])
        self._tags = (manifest.settings("subword").get("symbols") or "").split()
        self._inputs = {
            "text": {path.name: manifest.text_fingerprint(path) for path in self._paths},
            "start": self._start,
            "text_ends": self._text_ends,
            **_settings(vocabulary, config),
        }

    def current(self, known: Iterable[_BinarizedPart]) -> _BinarizedPart | None:
        """Return the record that is of this text and these settings, if its files are there."""
        current = (part for part in known if part.inputs == self._inputs)
        return next((part for part in current if part.has_files(self._bin_dir)), None)

    def binarize(self, encode: Encode) -> _BinarizedPart:
        """Write the token ids and the record of this part."""
        config = self._config
        encoder = _Encoder(
            models=self._models,
            copier=Copier(
                config.copies if self._is_train else {}, tags=self._tags, seed=config.seed
            ),
            max_length=config.max_length if self._is_train else None,
            text_ends=np.array(self._text_ends, dtype=np.int64),
            dropout=config.bpe_dropout,
            seed=config.seed,
        )

        def blocks() -> Iterator[tuple[int, Block]]:
            return _numbered(read_blocks(*self._paths, strict=True), self._start)

        counts, part = self._write(self._name, encode(encoder, blocks(), 0))
        parts = [part]
        for variant in range(1, 1 + config.num_variants if self._is_train else 1):
            encoded = encode(encoder, blocks(), variant)
            parts.append(self._write(f"{self._name}.v{variant}", encoded)[1])
        files = [file for part in parts for file in part.sha256]
        sizes = {file: (self._bin_dir / file).stat().st_size for file in files}
        done = _BinarizedPart(inputs=self._inputs, files=sizes, parts=tuple(parts), **counts)
        write_json(self._bin_dir / f"{self._name}.json", asdict(done))
        return done

    def _write(self, name: str, blocks: Iterator[_EncodedBlock]) -> tuple[dict[str, Any], Part]:
        """Write the files of one segmentation; return the counts of `_BinarizedPart`, too."""
        read = 0
        copied, too_long = np.zeros((2, max(1, len(self._text_ends))), dtype=np.int64)
        with contextlib.ExitStack() as stack:
            writers = [
                _TokenWriter(stack, self._bin_dir / f"{name}.{language}", len(model))
                for language, model in zip(self._languages, self._models, strict=True)
            ]
            for block in blocks:
                for writer, side in zip(writers, block.sides, strict=True):
                    writer.append(side)
                read += block.read
                copied += block.copied
                too_long += block.too_long
            for writer in writers:
                writer.finish()
        counts = {
            "read": read,
            "copied": tuple(copied.tolist()),
            "too_long": tuple(too_long.tolist()),
            "unknown": (writers[0].num_unknown, writers[1].num_unknown),
        }
        return counts, Part.of_files(self._bin_dir, name, self._languages)


def _counts(done: Sequence[_BinarizedPart]) -> SplitCounts:
    """Return the counts of a split from those of its parts."""
    variants = [part for each in done for part in each.parts[1:]]
    return SplitCounts(
        read=sum(each.read for each in done),
        copies=sum(sum(each.copied) for each in done),
        too_long=sum(sum(each.too_long) for each in done),
        kept=sum(each.parts[0].pairs for each in done),
        tokens=_sums(each.parts[0].tokens for each in done),
        unknown=_sums(each.unknown for each in done),
        variants=len(done[0].parts) - 1,
        variant_tokens=_sums(part.tokens for part in variants),
    )


def _sums(values: Iterable[tuple[int, int]]) -> list[int]:
    return np.sum([(0, 0), *values], axis=0).tolist()  # type: ignore[no-any-return]


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

    def __init__(self, stack: contextlib.ExitStack, stem: Path, vocab_size: int) -> None:
        self._stem = stem
        tokens = stack.enter_context(atomic_write(stem.with_name(f"{stem.name}.tokens.npy")))
        offsets = stack.enter_context(atomic_write(stem.with_name(f"{stem.name}.offsets.npy")))
        self._tokens = ArrayWriter(tokens, id_dtype(vocab_size))
        self._offsets = ArrayWriter(offsets, np.uint32)
        self._offsets.append(np.zeros(1, dtype=np.uint32))
        self.num_unknown = 0

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

    def finish(self) -> None:
        self._tokens.finish()
        self._offsets.finish()


def _report(split: str, counts: SplitCounts) -> None:
    rate = sum(counts.unknown) / max(1, sum(counts.tokens))
    copies = f" and {counts.copies:,} copies" if counts.copies else ""
    dropped = f", {counts.too_long:,} too long" if counts.too_long else ""
    say(
        f"binarize: {split} {counts.kept:,} of {counts.read:,} pairs{copies}{dropped}, "
        f"{counts.tokens[0]:,} source and {counts.tokens[1]:,} target tokens, "
        f"<unk> {rate:.3%}"
    )
    if counts.variants:
        source, target = (count / counts.variants for count in counts.variant_tokens)
        say(
            f"binarize: {split} in {counts.variants:,} variants with BPE-dropout, each with about "
            f"{source:,.0f} source and {target:,.0f} target tokens"
        )
    if rate > _UNKNOWN_WARNING_RATE:
        say(
            f"warning: {split}: {rate:.2%} of the tokens are unknown to the subword model: "
            "learn it with byte_fallback or a higher character_coverage"
        )
