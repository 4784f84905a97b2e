"""The step clean: the texts of a recipe → the text of a dataset, in parts, with its record."""

import shutil
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from rich.filesize import decimal

from tfm.config import Values
from tfm.dataset.clean_text import (
    CleanText,
    check_encoding,
    count_held_out,
    report_training_text,
    summary,
    write_examples,
)
from tfm.dataset.manifest import GOLD, Manifest
from tfm.dataset.rerun import check_runs, is_due
from tfm.dataset.text_parts import (
    SHARE_RECORD,
    JoinedShares,
    PartWriter,
    Share,
    ShareOfText,
    ShareRecord,
    remove_shares,
)
from tfm.disk.files import atomic_write, existing_parent, remove_leftovers
from tfm.errors import DataError, UsageError
from tfm.reporting import Progress, say
from tfm.text.cleaning import Cleaner, PairCounts
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import SPLITS, Split, Text, TreeFile, text_name
from tfm.text.lines import in_chunks, read_pairs
from tfm.text.trees import bracketed

STEP = "clean"
_HELD_OUT: tuple[Split, ...] = ("test", "valid")
# With fewer pairs, most pieces of even a small vocabulary occur too rarely to learn their use: a
# model only repeats its training text. The smallest corpus of the tutorials has twice as many.
_MIN_TRAIN_PAIRS = 1_000
# The disk needs this many times the size of the text: for the clean text, and for the unpacked text
# or the token ids.
_BYTES_PER_TEXT_BYTE = 2


def update_text(manifest: Manifest, text: CleanText) -> bool:
    """Write the text of all splits; return False if it was up to date."""
    _check_replaced(manifest, text)
    is_new = fetch_text(manifest, text)
    if is_new:
        _write_text(manifest, text)
    return is_new


def append_text(manifest: Manifest, text: CleanText) -> bool:
    """Append training text to the dataset's; return False if it was appended before."""
    appended = manifest.appended()
    same = [name for name in appended if manifest.inputs(name) == text.inputs]
    step = f"append-{len(appended) + 1}"
    is_new = fetch_text(manifest, text, step=next(iter(same), step), prefix=f"{step}.")
    if is_new:
        _append_text(manifest, text, step)
    return is_new


def _check_replaced(manifest: Manifest, text: CleanText) -> None:
    """Raise UsageError rather than remove text, or change what runs need; `force` only warns."""
    before, folder = manifest.inputs(STEP), manifest.data_dir
    if lost := " and ".join(_lost_text(manifest, before or {}, text.inputs)):
        if not text.force:
            raise UsageError(
                f"{folder} has {lost} text that this call does not name and would remove: "
                "name it again, choose another folder with --out, or remove it with --force"
            )
        say(f"warning: {folder} loses {lost} text that this call does not name")
    is_other = before is not None and _of_training_text(before) != _of_training_text(text.inputs)
    if text.force or is_other:
        check_runs(folder, ["its training text would be other text"], force=text.force)


def _of_training_text(inputs: Values) -> list[Any]:
    """Return the inputs of this step that determine the training text."""
    texts = inputs.get("texts", {}).get("train", [])
    sides = [str(value) for text in texts for value in text.values()]
    no_options: list[Values] = [{}] * len(texts)
    return [
        texts,
        {side: inputs.get("contents", {}).get(side) for side in sides},
        [file for file in inputs.get("downloads", []) if file["url"].endswith(tuple(sides))],
        (inputs.get("options") or no_options)[: len(texts)],
        *map(inputs.get, ("cleaning", "normalization", "score_models", "protected")),
    ]


def _lost_text(manifest: Manifest, before: Values, after: Values) -> list[str]:
    """Return the names of held-out and monolingual text that has fewer inputs than before."""
    mono = sorted(path.name for path in manifest.data_dir.glob("mono.*"))
    older, newer = _num_texts(before), _num_texts(after)
    found = (*manifest.splits(), *mono) if before != after else ()
    return [name for name in found if newer[name] < max(1, older[name]) and name != "train"]


def _num_texts(inputs: Values) -> Counter[str]:
    """Return how many texts each split, and the monolingual text of each language, consists of."""
    splits = {split: len(texts) for split, texts in inputs.get("texts", {}).items()}
    return Counter(splits) + Counter(f"mono.{text['language']}" for text in inputs.get("mono", []))


def fetch_text(manifest: Manifest, text: CleanText, *, step: str = STEP, prefix: str = "") -> bool:
    """Download and unpack the text for a step; return False if the step is up to date.

    The prefix is for the names of the steps that fetch the text.
    """
    data_dir, sources = manifest.data_dir, text.sources
    for folder in (data_dir, data_dir / "raw", data_dir / "bin", sources.downloads_dir):
        remove_leftovers(folder)
    command = "append" if prefix else STEP
    if not is_due(manifest, step, text.inputs, output=data_dir, command=command):
        return False
    _check_disk(data_dir, sources.recipe)
    paths = sources.unpacked_paths
    download, extract = f"{prefix}download", f"{prefix}extract"
    raw_dir, inputs = data_dir / "raw", sources.fingerprint
    if not paths or not is_due(manifest, extract, inputs, output=raw_dir, command="extract"):
        return True
    fetched = sources.fetch()
    files = {
        name: {"sha256": file.sha256, "size": file.size, "verified": file.verified}
        for name, file in fetched.items()
    }
    # Not recorded as outputs: downloads may be deleted after extraction.
    manifest.record(download, inputs=inputs, outputs=[], result=files)
    manifest.save_progress()
    sources.unpack(fetched)
    manifest.record(extract, inputs=inputs, outputs=paths, result={"files": len(paths)})
    manifest.save_progress()
    say(f"extract: {len(paths)} files in {raw_dir}")
    return True


def _check_disk(data_dir: Path, recipe: Recipe) -> None:
    """Raise DataError, before anything is downloaded, if the disk is too small."""
    needed = _BYTES_PER_TEXT_BYTE * recipe.num_bytes()
    free = shutil.disk_usage(existing_parent(data_dir)).free
    if free < needed:
        raise DataError(
            f"{data_dir} will take about {decimal(needed)}, but only {decimal(free)} are free "
            "there: choose an --out on another disk"
        )


def _write_text(manifest: Manifest, text: CleanText) -> None:
    """Write the text of all splits, and record how many pairs were kept and dropped.

    Older text is replaced when all of the new text is complete.
    """
    data_dir, recipe = manifest.data_dir, text.recipe
    cleaner = text.cleaner(data_dir)
    result: dict[str, Any] = {split: {} for split in SPLITS if recipe.texts(split)}
    outputs: list[Path] = []
    shares = None if text.force else JoinedShares.find(data_dir, text.inputs)
    with ExitStack() as stack:
        # Training text comes last: a problem with the other splits shows before the long work.
        for split in filter(result.__contains__, (*_HELD_OUT, "train")):
            limit = text.cleaning.part_pairs if split == "train" else None
            writer = PartWriter(stack, manifest, split, max_pairs=limit)
            result[split], counts_by_text = _write_split(text, split, cleaner, writer, shares)
            if recipe.task == "parsing" and split != "train":
                _write_gold_trees(text, split, writer.open(GOLD))
            writer.flush()  # a full disk shows before any older text is replaced
            outputs += writer.files
        outputs += _write_mono(stack, manifest, text)
        manifest.save_progress()
    _remove_older_text(manifest, outputs)
    write_examples(data_dir, counts_by_text)  # of the training text, the last split
    if (num_pairs := result["train"]["kept"]) < _MIN_TRAIN_PAIRS:
        say(
            f"warning: a model cannot learn from {num_pairs:,} training pairs: it needs "
            "thousands to generalize to other sentences"
        )
    for held_out, count in count_held_out(cleaner.held_out).items():
        result[held_out]["in_training"] = count
    manifest.record(STEP, inputs=text.inputs, outputs=outputs, result=result)
    if shares is not None:
        manifest.save_progress()
    if shares is not None or text.force:
        remove_shares(data_dir)
    if appended := manifest.appended():
        say("warning: the text that was appended is gone: append it again")
        manifest.forget(appended)


def _append_text(manifest: Manifest, text: CleanText, step: str) -> None:
    """Write training text to further parts, without pairs that the dataset has."""
    cleaner = text.cleaner(manifest.data_dir)
    _see_text(manifest, cleaner)
    first, num_before = len(manifest.part_sizes()) + 1, len(manifest.texts("train"))
    with ExitStack() as stack:
        limit = text.cleaning.part_pairs
        writer = PartWriter(stack, manifest, "train", max_pairs=limit, first=first)
        record, counts = _write_split(text, "train", cleaner, writer, num_before=num_before)
        writer.flush()
        manifest.save_progress()
    write_examples(manifest.data_dir, counts)
    count_held_out(cleaner.held_out)
    result = {"train": record}
    manifest.record(step, inputs=text.inputs, outputs=writer.files, result=result)


def _see_text(manifest: Manifest, cleaner: Cleaner) -> None:
    """Record the pairs of all splits in a cleaner, which then drops their duplicates."""
    for split in manifest.splits():
        names = manifest.text_parts(split)
        pairs = chain(*(read_pairs(*manifest.text_paths(name), strict=True) for name in names))
        for text in (*manifest.texts(split), None):  # None: text that was not prepared
            tag = text.tag if text else None
            prefix = f"{tag} ".encode() if tag else b""
            of_text = islice(pairs, text.kept if text else None)
            for block in in_chunks((s.removeprefix(prefix), t) for s, t in of_text):
                if split == "train":
                    cleaner.see(block, tag=tag)
                else:
                    cleaner.held_out.add(split, block)


def _write_split(
    text: CleanText,
    split: Split,
    cleaner: Cleaner,
    writer: PartWriter,
    shares: JoinedShares | None = None,
    *,
    num_before: int = 0,
) -> tuple[dict[str, Any], dict[str, PairCounts]]:
    """Write both sides of a split; return the record of its pairs, and the counts by text.

    The texts are numbered from `num_before` on.
    """
    total, entries = PairCounts(), []
    counts_by_text: dict[str, PairCounts] = {}
    texts = text.recipe.texts(split)
    with Progress(f"clean {split}", total=None, unit="pairs") as bar:
        for index, part in enumerate(texts):
            counts = PairCounts()
            if split == "train":
                blocks = in_chunks(text.training(index, cleaner, counts, shares))
            else:
                blocks = text.held_out(split, part, cleaner.held_out)
            for block in blocks:
                writer.write([(_tagged(source, part.tag), target) for source, target in block])
                bar.update(len(block))
                if split != "train":
                    counts.add(PairCounts(read=len(block), kept=len(block)))
            name = f"{1 + num_before + index} {text_name(part)}"
            if split == "train":
                report_training_text(text.sources, part, name, counts)
            total.add(counts)
            entries.append(asdict(part) | counts.record() | {"name": name})
            counts_by_text[name] = counts
        if not total.read:
            sides = chain.from_iterable(part.sides for part in texts)
            raise DataError(f"the {split} text is empty: {', '.join(dict.fromkeys(sides))}")
        if not total.kept:
            raise DataError(f"no pairs are left of the {split} text: {summary(total)}")
    say(f"clean: {split} {summary(total)}")
    record = total.record() | {"texts": entries}
    return record | ({"parts": writer.sizes} if split == "train" else {}), counts_by_text


def _tagged(source: bytes, tag: str | None) -> bytes:
    """Return a source sentence after its tag; an empty one stays empty."""
    return source if tag is None or not source.strip() else f"{tag} ".encode() + source


def _write_mono(stack: ExitStack, manifest: Manifest, text: CleanText) -> list[Path]:
    """Write the monolingual text; the files appear when the stack ends."""
    paths = []
    for language in dict.fromkeys(mono.language for mono in text.recipe.mono):
        counts = PairCounts()
        paths.append(manifest.text_path("mono", language))
        file = stack.enter_context(atomic_write(paths[-1]))
        file.writelines(line + b"\n" for line in text.lines(language, counts))
        check_encoding(text.sources.mono_paths(language), counts, unit="lines")
        say(f"clean: {paths[-1].name} {summary(counts, unit='lines')}")
    return paths


def _write_gold_trees(text: CleanText, split: Split, file: IO[bytes]) -> None:
    """Write the trees of a split as brackets with part-of-speech tags, for scoring."""
    for part in text.recipe.texts(split):
        if isinstance(part, TreeFile):
            file.writelines(f"{bracketed(tree)}\n".encode() for tree in text.sources.trees(part))


def _remove_older_text(manifest: Manifest, current: Sequence[Path]) -> None:
    """Remove the splits and the parts of older text that the current one does not have."""
    for path in set(manifest.data_dir.glob("mono.*")) - set(current):
        path.unlink()
    for suffix in (*manifest.languages, GOLD):
        for removed in set(SPLITS) - {path.stem for path in current}:
            manifest.text_path(removed, suffix).unlink(missing_ok=True)
        for path in manifest.data_dir.glob(f"train.[1-9]*.{suffix}"):
            if path not in current and path.name.split(".")[1].isdecimal():
                path.unlink()


def write_share(manifest: Manifest, text: CleanText, share: Share) -> None:
    """Clean a share of the training text, for a later call of `update_text`."""
    _check_replaced(manifest, text)
    is_unpacked = manifest.is_current("extract", text.sources.fingerprint)
    if text.sources.unpacked_paths and not is_unpacked:
        raise UsageError("the downloads are not unpacked: run the same with --fetch-only first")
    if text.scorers:
        raise UsageError("min_score cannot go with --share: scores depend on the whole text")
    folder = share.folder(manifest.data_dir)
    if not is_due(manifest, STEP, text.inputs, output=manifest.data_dir):
        return
    if ShareRecord.find(folder, text.inputs):
        say(f"clean: {folder} unchanged")
        return
    cleaner = text.cleaner(folder)
    for split in _HELD_OUT:
        for part in text.recipe.texts(split):
            deque(text.held_out(split, part, cleaner.held_out), maxlen=0)
    paths = [folder / f"train.{language}" for language in manifest.languages]
    (folder / SHARE_RECORD).unlink(missing_ok=True)
    with ExitStack() as stack:
        files = [stack.enter_context(atomic_write(path)) for path in paths]
        bar = stack.enter_context(Progress(f"clean train {share}", total=None, unit="pairs"))
        texts = [
            _write_share_of(text, part, share, cleaner, files, bar) for part in text.recipe.train
        ]
    sizes = {path.name: path.stat().st_size for path in paths}
    ShareRecord(share=share, inputs=text.inputs, sizes=sizes, texts=tuple(texts)).save(folder)
    say(f"clean: train {share}: {sum(of_text.counts['kept'] for of_text in texts):,} pairs")


def _write_share_of(
    text: CleanText,
    part: Text,
    share: Share,
    cleaner: Cleaner,
    files: Sequence[IO[bytes]],
    bar: Progress,
) -> ShareOfText:
    """Write the stripes of a training text that are of a share."""
    counts, stripes = PairCounts(), []
    clean = text.cleaning_function(part, cleaner, counts)
    for stripe in share.stripes(text.sources.pairs(part, "train")):
        before = counts.kept
        for block in in_chunks(clean(stripe)):
            for side, file in enumerate(files):
                file.writelines(pair[side] + b"\n" for pair in block)
            bar.update(len(block))
        stripes.append(counts.kept - before)
    examples = {rule: tuple(pairs) for rule, pairs in counts.examples.items()}
    return ShareOfText(counts=counts.record(), examples=examples, stripes=tuple(stripes))
