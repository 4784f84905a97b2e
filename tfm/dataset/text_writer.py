"""The step clean: the texts of a recipe → the shards of a dataset."""

import shutil
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from tfm.config import Values
from tfm.dataset.clean_text import HELD_OUT, CleanText
from tfm.dataset.draft import Draft
from tfm.dataset.manifest import GOLD, Manifest
from tfm.dataset.rerun import check_runs, is_due
from tfm.dataset.shards import Shard, Share, by_text, sum_of_texts
from tfm.dataset.text_report import (
    check_encoding,
    count_held_out,
    report_training_text,
    summary,
    write_examples,
)
from tfm.disk.files import atomic_write, existing_parent, remove_leftovers
from tfm.errors import DataError, UsageError
from tfm.reporting import Progress, say
from tfm.text.cleaning import Cleaner
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import SPLITS, Split, TreeFile
from tfm.text.counts import PairCounts
from tfm.text.lines import in_chunks, read_pairs
from tfm.text.trees import bracketed

# Inputs that runs need as they are.
_NEEDED = ("train", "cleaning", "normalization", "protected", "held_out", "score_models", "scores")
# With fewer pairs, most pieces of even a small vocabulary occur too rarely to learn their use: a
# model only repeats its training text. The smallest corpus of the tutorials has twice as many.
_MIN_TRAIN_PAIRS = 1_000
# The disk needs this many times the size of the text: for the clean text, and for the unpacked text
# or the token ids.
_BYTES_PER_TEXT_BYTE = 2


def update_text(manifest: Manifest, text: CleanText) -> bool:
    """Write the text of all splits, or append to the training text; return False if it was done."""
    if not text.is_added:
        _check_replaced(manifest, text)
    if is_new := fetch_text(manifest, text):
        _write_text(manifest, text)
    return is_new


def _check_replaced(manifest: Manifest, text: CleanText) -> None:
    """Raise UsageError rather than remove text, or change what runs need; `force` only warns."""
    before, folder = manifest.inputs(text.step), manifest.data_dir
    if lost := " and ".join(_lost_text(manifest, before or {}, text.inputs)):
        if not text.force:
            raise UsageError(
                f"{folder} has {lost} text that this call does not name and would remove: "
                "name it again, choose another folder with --out, or remove it with --force"
            )
        say(f"warning: {folder} loses {lost} text that this call does not name")
    loses = bool(manifest.appended()) and not manifest.is_current(text.step, text.inputs)
    if text.force or loses:
        check_runs(folder, ["the text that was appended would be gone"] * loses, force=text.force)


def _lost_text(manifest: Manifest, before: Values, after: Values) -> list[str]:
    """Return the names of held-out and monolingual text that has fewer inputs than before."""
    mono = sorted(path.name for path in manifest.data_dir.glob("mono.*") if path.is_file())
    older, newer = _num_texts(before), _num_texts(after)
    found = (*manifest.splits(), *mono) if before != after else ()
    return [name for name in found if newer[name] < max(1, older[name]) and name != "train"]


def _num_texts(inputs: Values) -> Counter[str]:
    """Return how many texts each split, and the monolingual text of each language, consists of."""
    mono = Counter(f"mono.{text['language']}" for text in inputs.get("mono", []))
    splits = {split: len(inputs.get(split, [])) for split in SPLITS}
    if inputs.get("cleaning", {}).get("hold_out"):
        splits |= {split: splits[split] or 1 for split in HELD_OUT}
    return mono + Counter(splits)


def fetch_text(manifest: Manifest, text: CleanText) -> bool:
    """Download and unpack the text; return False if it is up to date."""
    data_dir, sources, step = manifest.data_dir, text.sources, text.step
    for folder in (data_dir, data_dir / "raw", data_dir / "bin", sources.downloads_dir):
        remove_leftovers(folder)
    if text.is_added:
        same = (name for name in manifest.appended() if manifest.inputs(name) == text.inputs)
        step = next(same, step)
    needed = () if text.is_added else _NEEDED
    if not is_due(manifest, step, text.inputs, output=data_dir, needed=needed):
        return False
    _check_disk(data_dir, sources.recipe)
    paths = sources.unpacked_paths
    extract, raw_dir, inputs = f"{text.step}.extract", data_dir / "raw", sources.fingerprint
    if not paths or not is_due(manifest, extract, inputs, output=raw_dir, command="extract"):
        return True
    fetched = sources.fetch()
    sources.unpack(fetched)
    files = {
        name: {"sha256": file.sha256, "size": file.size, "verified": file.verified}
        for name, file in fetched.items()
    }
    # Downloads are no outputs: they may be deleted now.
    manifest.record(extract, inputs=inputs, outputs=paths, result=files)
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
    """Write the text, which replaces older text, or is appended to it, when it is complete."""
    cleaner, inputs, first = text.cleaner(manifest.data_dir), text.inputs, 1
    if text.is_added:
        inputs = {**inputs, "after": manifest.text_fingerprints(manifest.splits())}
        first = 1 + len(manifest.shards("train"))
        _see_text(manifest, cleaner)
    reuse = not (text.force or text.compares_all)
    draft = Draft(manifest, inputs, first=first, reuse=reuse)
    result: dict[str, dict[str, Any]] = {}
    shards: dict[str, list[Shard]] = {}
    outputs: list[Path] = []
    # Training text comes last: a problem with the other splits shows before the long work.
    for split in () if text.is_added else HELD_OUT:
        if text.recipe.texts(split) or text.taken.get(split):
            with Progress(f"clean {split}", total=None, unit="pairs") as bar:
                done = draft.write(split, text.held_out(split, cleaner.held_out), bar)
            result[split], shards[split] = _summarize(text, split, [done]), [done]
            if text.recipe.task == "parsing":
                outputs.append(_write_gold_trees(draft.folder / f"{split}.{GOLD}", text, split))
    result["train"], shards["train"] = _write_training_text(draft, text, cleaner)
    outputs += _write_mono(draft.folder, text)
    if not text.is_added and (num_pairs := result["train"]["kept"]) < _MIN_TRAIN_PAIRS:
        say(
            f"warning: a model cannot learn from {num_pairs:,} training pairs: it needs "
            "thousands to generalize to other sentences"
        )
    for held_out, count in count_held_out(cleaner.held_out).items():
        result.setdefault(held_out, {})["in_training"] = count
    if not text.is_added and (appended := manifest.appended()):
        say("warning: the text that was appended is gone: append it again")
        manifest.forget(appended)
    draft.publish(text.step, text.inputs, shards, outputs, result)


def write_share(manifest: Manifest, text: CleanText, share: Share) -> None:
    """Clean a share of the training text, for a later call of `update_text`."""
    _check_replaced(manifest, text)
    is_unpacked = manifest.is_current(f"{text.step}.extract", text.sources.fingerprint)
    if text.sources.unpacked_paths and not is_unpacked:
        raise UsageError("the downloads are not unpacked: run the same with --fetch-only first")
    if text.compares_all:
        raise UsageError(
            "--share excludes --min-score and --unique-sides, which need the whole text"
        )
    if not is_due(manifest, text.step, text.inputs, output=manifest.data_dir, needed=_NEEDED):
        return
    draft = Draft(manifest, text.inputs)
    cleaner = text.cleaner(manifest.data_dir)
    for split in HELD_OUT:
        for piece in text.held_out(split, cleaner.held_out):
            deque(piece.pairs, maxlen=0)
    counts = PairCounts()
    for done in _write_shards(draft, text, cleaner, share):
        for of_text in done.texts:
            counts.add(of_text)
    say(f"clean: train {share}: {summary(counts)}")


def _see_text(manifest: Manifest, cleaner: Cleaner) -> None:
    """Record the pairs of all splits in a cleaner, which then drops their duplicates."""
    for split in manifest.splits():
        for shard in manifest.shards(split):
            pairs = read_pairs(*manifest.text_paths(shard.name), strict=True)
            of_texts = ((text.tag, own) for text, own in by_text(pairs, shard.texts))
            for tag, own in chain(of_texts, [(None, pairs)]):  # what was added by hand comes last
                for block in in_chunks(own):
                    if split == "train":
                        cleaner.see(block, tag=tag)
                    else:
                        cleaner.held_out.add(split, block)


def _write_training_text(
    draft: Draft, text: CleanText, cleaner: Cleaner
) -> tuple[dict[str, Any], list[Shard]]:
    """Write the training text; return its counts, and the records of its shards."""
    text.choose_by_sides(cleaner, draft.folder.parent)
    done: list[Shard] = []
    of_texts = {name: PairCounts() for name in text.names}
    waiting = deque(zip(text.names, text.recipe.train, strict=True))  # to be reported at their end
    for shard in _write_shards(draft, text, cleaner):
        done.append(shard)
        of_texts |= {of_text.name: of_text for of_text in sum_of_texts(done)}
        while waiting[0][0] != shard.texts[-1].name:
            name, part = waiting.popleft()
            report_training_text(text.sources, part, name, of_texts[name])
    for name, part in waiting:
        report_training_text(text.sources, part, name, of_texts[name])
    result = _summarize(text, "train", done)
    if text.file_scores is not None:
        text.file_scores.check(result["read"])
    write_examples(draft.folder.parent, of_texts)
    return result, done


def _write_shards(
    draft: Draft, text: CleanText, cleaner: Cleaner, share: Share | None = None
) -> Iterator[Shard]:
    """Write the shards of the training text that are of a share; yield each when it is finished.

    A shard that is finished already only loses the pairs that occurred before it.
    """
    number, label = -1, f"clean train {share}" if share else "clean train"
    with Progress(label, total=None, unit="pairs") as bar:
        for number, stretch in enumerate(text.stretches()):
            name = draft.shard_name(number)
            if share is None or share.has(number):
                if known := draft.find(name):
                    pieces = text.pieces_again(known, draft.pairs(known), cleaner)
                else:
                    pieces = text.pieces(number, stretch, cleaner)
                yield draft.write(name, pieces, bar)
            deque(stretch, maxlen=0)
    if share is not None:
        share.check(number + 1)


def _summarize(text: CleanText, split: Split, shards: Sequence[Shard]) -> dict[str, Any]:
    """Return and print the counts of a split; raise DataError if it has no pairs."""
    total = PairCounts()
    for counts in chain.from_iterable(shard.texts for shard in shards):
        total.add(counts)
    if not total.read:
        sides = chain.from_iterable(part.sides for part in text.recipe.texts(split))
        raise DataError(f"the {split} text is empty: {', '.join(dict.fromkeys(sides))}")
    if not total.kept:
        raise DataError(f"no pairs are left of the {split} text: {summary(total)}")
    say(f"clean: {split} {summary(total)}")
    return total.record()


def _write_mono(folder: Path, text: CleanText) -> list[Path]:
    """Write the monolingual text; return its files."""
    paths = []
    for language in dict.fromkeys(mono.language for mono in text.recipe.mono):
        counts = PairCounts()
        paths.append(folder / f"mono.{language}")
        with atomic_write(paths[-1]) as file:
            file.writelines(line + b"\n" for line in text.lines(language, counts))
        check_encoding(text.sources.mono_paths(language), counts, unit="lines")
        say(f"clean: {paths[-1].name} {summary(counts, unit='lines')}")
    return paths


def _write_gold_trees(path: Path, text: CleanText, split: Split) -> Path:
    """Write the trees of a split as brackets with part-of-speech tags, for scoring."""
    with atomic_write(path) as file:
        for part in text.recipe.texts(split):
            if isinstance(part, TreeFile):
                trees = text.sources.trees(part)
                file.writelines(f"{bracketed(tree)}\n".encode() for tree in trees)
    return path
