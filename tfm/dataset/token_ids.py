"""The step binarize: text and subword model of a dataset → token ids, and what is learned there."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tfm.config import BinarizeConfig, Values
from tfm.config.normalization import is_combining
from tfm.dataset.encoded_shards import (
    NUM_SPELLED,
    EncodedShard,
    encode_shards,
    encoding_settings,
)
from tfm.dataset.manifest import BINARIZE, SEEN, Manifest
from tfm.dataset.parallel import DatasetIndex
from tfm.dataset.rerun import is_due
from tfm.dataset.shards import Share, TrainingText, sum_of_texts
from tfm.dataset.subword_models import STEP as LEARNING
from tfm.disk.files import sha256_of
from tfm.errors import DataError, tfm_command
from tfm.reporting import say
from tfm.text.corpus.texts import SPLITS
from tfm.text.seen import FILE as SEEN_TEXT
from tfm.text.seen import FORMAT as SEEN_FORMAT
from tfm.text.seen import SeenText
from tfm.vocabulary.subword import SubwordModel, Vocabulary, shown_tags

# The names of token ids, and of the records of shards.
_OWN_NAME = re.compile(r"(train|valid|test)(\.[0-9]+)?(\.json|\.[^.]+\.\w+\.npy)")
_UNKNOWN_WARNING_RATE = 0.001
# Warn of single bytes if they are more than this share of the tokens of a side. A share of many
# times the training text's share is unusual, too, unless it is tiny.
_BYTE_WARNING_RATE = 0.01
_UNUSUAL_TIMES, _UNUSUAL_BYTE_RATE = 10, 0.001
_MIN_BYTE_PIECES = 50  # an emoji of several characters in a small text is no reason to warn


def update(
    manifest: Manifest,
    config: BinarizeConfig,
    origins: Sequence[Values] = (),
    *,
    force: bool = False,
) -> bool:
    """Encode all splits of a dataset; return False if text, models and settings are unchanged.

    Shards that have not changed, or that `encode_share` has encoded, are not encoded
    again. Memory use does not depend on the size of the text; the output not on the number of
    threads. `origins` describe the models that wrote some of the text.
    """
    vocabulary = Vocabulary.load(manifest.data_dir, manifest.normalization)
    is_new = _update_splits(manifest, vocabulary, config, force=force)
    manifest.keep_settings(config)
    manifest.save()
    _update_record(manifest, config, origins, force=force)
    return is_new


def encode_share(
    manifest: Manifest, config: BinarizeConfig, share: Share, *, force: bool = False
) -> None:
    """Encode one share of the shards of the training text, for a later call of `update`.

    Each share may be encoded by another machine at the same time.
    """
    shards = manifest.shards("train")
    share.check(len(shards))
    vocabulary = Vocabulary.load(manifest.data_dir, manifest.normalization)
    _check(manifest, vocabulary, config)
    of_share = shards[share.number - 1 :: share.count]
    done = encode_shards(manifest, "train", of_share, vocabulary, config, force=force)
    say(f"binarize: share {share} with {sum(each.read for each in done):,} pairs")


def _update_splits(
    manifest: Manifest, vocabulary: Vocabulary, config: BinarizeConfig, *, force: bool
) -> bool:
    """Encode all splits; return False if they were up to date."""
    # Those with text that is gone, too, rather than remove their token ids.
    splits: list[str] = [split for split in SPLITS if manifest.shards(split)]
    if not splits:
        raise DataError(f"{manifest.data_dir} has no text: run tfm prepare first")
    bin_dir = manifest.data_dir / "bin"
    texts = manifest.texts("train")
    inputs = {
        "text": manifest.text_fingerprints(splits),
        "texts": [asdict(text) for text in texts],
        "settings": encoding_settings(vocabulary, config),
    }
    needed = ["settings"]
    if not is_due(manifest, BINARIZE, inputs, output=bin_dir, needed=needed, force=force):
        return False
    _check(manifest, vocabulary, config)
    shards, result = {}, {}
    for split in splits:
        of_split = manifest.shards(split)
        done = encode_shards(manifest, split, of_split, vocabulary, config, force=force)
        shards[split] = tuple(each.ids for each in done)
        result[split] = _counts(done)
        if split == "train":
            texts = _encoded_texts(manifest, done)
    index = DatasetIndex(
        source=manifest.source,
        target=manifest.target,
        fingerprint=vocabulary.fingerprint,
        shards=shards,
        texts=tuple(texts),
    )
    index.save(bin_dir)
    outputs = [bin_dir / name for name in ("dataset.json", *index.files())]
    manifest.record(BINARIZE, inputs=inputs, outputs=outputs, result=result)
    manifest.save()
    current = {f"{each.name}.json" for ids in shards.values() for each in ids}
    for path in bin_dir.iterdir():  # files of older data
        if _OWN_NAME.fullmatch(path.name) and path not in outputs and path.name not in current:
            path.unlink()
    _report_all(manifest, result)
    return True


def _update_record(
    manifest: Manifest, config: BinarizeConfig, origins: Sequence[Values], *, force: bool
) -> None:
    """Record the training text, unless that is done or not wanted, or its targets are trees."""
    path = manifest.data_dir / SEEN_TEXT
    texts = manifest.shard_files(["train"])
    inputs = {
        "text": manifest.text_fingerprints(["train"]),
        "megabytes": config.seen_megabytes,
        "format": SEEN_FORMAT,
        "written_by": [*config.written_by],
        "origins": [*origins],
    }
    known = manifest.result(SEEN).get("sha256")
    is_damaged = known is not None and not (path.is_file() and sha256_of(path) == known)
    if not is_due(manifest, SEEN, inputs, force=force or is_damaged):
        return
    path.unlink(missing_ok=True)
    record = None
    if config.seen_megabytes and texts and manifest.task == "translation":
        record = SeenText.of_pairs(texts, max_bytes=config.seen_megabytes << 20, origins=origins)
    if record is not None:
        record.save(path)
        chance = f"{record.false_hits():.2%} of other text matches by chance"
        say(f"binarize: {path} records the training text; {chance}")
    outputs = [path] if record else []
    result = {"sha256": sha256_of(path) if record else None}
    manifest.record(SEEN, inputs=inputs, outputs=outputs, result=result)
    manifest.save()


def _check(manifest: Manifest, vocabulary: Vocabulary, config: BinarizeConfig) -> None:
    """Raise an error if text and settings do not fit the subword model; warn of a replaced one."""
    learned = manifest.result(LEARNING).get("fingerprints")
    models = [vocabulary.source] if vocabulary.is_joint else [vocabulary.source, vocabulary.target]
    origin, learn_again = manifest.data_dir, tfm_command("learn-bpe", manifest.data_dir, "--force")
    if learned is not None and learned != [model.fingerprint for model in models]:
        say(
            f"warning: the subword model in {origin} is not the one that tfm learn-bpe wrote: if "
            f"you did not replace it, it is damaged; run {learn_again}"
        )
    remedy = f"learn it with {learn_again}"
    check_tags(models, tags=manifest.symbols, origin=str(origin), remedy=remedy)


def check_tags(
    models: Sequence[SubwordModel], *, tags: Iterable[str], origin: str, remedy: str
) -> None:
    """Raise DataError unless subword models have a piece for all tags."""
    if missing := [tag for tag in tags if not models[0].has_tag(tag)]:
        raise DataError(
            f"the subword model of {origin} has no piece for the tag {missing[0]}, only for "
            f"{shown_tags(models[0].tags()) or 'other text'}: {remedy}, or bring one that has it "
            "among its user_defined_symbols"
        )


def _encoded_texts(manifest: Manifest, done: Sequence[EncodedShard]) -> list[TrainingText]:
    """Return the training texts with the numbers of pairs that are encoded.

    There are none if the text was edited, so that the texts of its pairs are unknown.
    """
    written = manifest.texts("train")
    if not all(each.too_long for each in done):
        if any(text.weight for text in written):
            raise DataError(
                f"the training text in {manifest.data_dir} has other numbers of pairs than tfm "
                "prepare wrote: prepare it again, so that weights fit the pairs"
            )
        return []
    texts = sum_of_texts(each.encoded() for each in done)
    for text in texts:
        if len(texts) > 1 and not text.kept:
            raise DataError(
                f"all {text.dropped['max_length']:,} pairs of the training text {text.name} are "
                "longer than max_length: raise --max-length, or remove the text from the recipe"
            )
    return texts


def _counts(done: Sequence[EncodedShard]) -> dict[str, Any]:
    """Return the numbers of pairs and tokens of a split, given the records of its shards.

    `kept` is `read` without `too_long`. Lists are [source, target].
    """
    spelled = [sum((Counter(each.spelled[side]) for each in done), Counter()) for side in (0, 1)]
    return {
        "read": sum(each.read for each in done),
        "too_long": sum(each.read - each.ids.pairs for each in done),
        "kept": sum(each.ids.pairs for each in done),
        "tokens": _total(each.ids.tokens for each in done),
        "unknown": _total(each.unknown for each in done),
        "byte_pieces": _total(each.byte_pieces for each in done),
        "spelled": ["".join(dict(side.most_common(NUM_SPELLED))) for side in spelled],
    }


def _total(sides: Iterable[tuple[int, int]]) -> list[int]:
    return [sum(side) for side in zip((0, 0), *sides, strict=True)]


def _report_all(manifest: Manifest, counts: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the counts of all splits, and warn of text that the subword model does not know."""
    for split, of_split in counts.items():
        _report(split, of_split)
        for side, language in enumerate(manifest.languages):
            usual = _byte_rate(counts.get("train", of_split), side)
            _warn_of_bytes(manifest, f"{split}.{language}", of_split, side, usual)


def _report(split: str, counts: Mapping[str, Any]) -> None:
    source, target = counts["tokens"]
    rate = sum(counts["unknown"]) / max(1, source + target)
    dropped = f", {counts['too_long']:,} too long" if counts["too_long"] else ""
    spelled = f", bytes {_byte_rate(counts, 0):.3%} and {_byte_rate(counts, 1):.3%}"
    say(
        f"binarize: {split} {counts['kept']:,} of {counts['read']:,} pairs{dropped}, "
        f"{source:,} source and {target:,} target tokens, <unk> {rate:.3%}{spelled}"
    )
    if rate > _UNKNOWN_WARNING_RATE:
        say(
            f"warning: {split}: {rate:.2%} of the tokens are unknown to the subword model: "
            "learn it with byte_fallback or a higher character_coverage"
        )


def _byte_rate(counts: Mapping[str, Any], side: int) -> float:
    return float(counts["byte_pieces"][side] / max(1, counts["tokens"][side]))


def _warn_of_bytes(
    manifest: Manifest, name: str, counts: Mapping[str, Any], side: int, usual: float
) -> None:
    """Warn of a text with many characters that the subword model has no pieces for."""
    rate, characters = _byte_rate(counts, side), counts["spelled"][side]
    is_high = rate > min(_BYTE_WARNING_RATE, max(_UNUSUAL_BYTE_RATE, _UNUSUAL_TIMES * usual))
    if counts["byte_pieces"][side] < _MIN_BYTE_PIECES or not is_high:
        return
    named = ", ".join(
        f"{'◌' * is_combining(char)}{char} (U+{ord(char):04X})" for char in characters
    )
    remedy = "check its language and encoding, or learn from text that has them, too"
    if not manifest.normalization.unicode and any(map(is_combining, characters)):
        remedy = "prepare the dataset again with --force and --normalize-unicode"
    say(
        f"warning: {manifest.data_dir / name}: {rate:.1%} of the tokens are single bytes "
        f"({usual:.2%} in the training text), because the subword model has no pieces for "
        f"{named}: {remedy}"
    )
