"""tfm prepare: a recipe, or text files → the text, subword model and token ids of a dataset."""

import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tfm.config import (
    BinarizeConfig,
    CleaningConfig,
    SubwordConfig,
    Table,
    settings_from,
    settings_to,
)
from tfm.data.cleaning import Cleaner, PairCounts
from tfm.data.corpus.recipe import Recipe
from tfm.data.corpus.texts import Text, TextFiles
from tfm.data.disk import DiskNeed, check_disks
from tfm.data.encoding import iconv_command, likely_encoding
from tfm.data.manifest import GOLD, SPLITS, Manifest
from tfm.data.sources import TextSources
from tfm.data.text import in_chunks
from tfm.data.trees.brackets import bracketed
from tfm.errors import DataError, UsageError
from tfm.reporting import Progress, say
from tfm.stages.binarize import BinarizeResult, binarize
from tfm.stages.learn_bpe import LearnBpeResult, learn_bpe
from tfm.storage.files import atomic_write, remove_leftovers

if typing.TYPE_CHECKING:
    from tfm.data.synthetic.corpus import Split

_SPLITS_SHORT_FIRST: tuple["Split", ...] = ("test", "valid", "train")
# More lines than this that are not UTF-8 are another encoding, not damage.
_MAX_BROKEN_RATE = 0.01
# Two bytes a piece of some four characters, and eight a sentence; measured on WMT text.
_TOKEN_ID_BYTES_PER_TEXT_BYTE = 0.6


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """A prepared dataset, and what each step did; steps that were not asked for are None.

    Attributes:
        counts: What became of the pairs of each split when its text was written.
        is_new: False if the text was there already.
    """

    data_dir: Path
    counts: dict[str, PairCounts]
    is_new: bool
    subword: LearnBpeResult | None
    binarized: BinarizeResult | None


def prepare(
    recipe: Recipe,
    out_dir: Path,
    *,
    mirror: str | None = None,
    verify: bool = True,
    downloads_dir: Path | None = None,
    overrides: Mapping[str, Table] | None = None,
    text_only: bool = False,
    force: bool = False,
) -> PrepareResult:
    """Make a dataset: download, extract, clean, learn the subword model, binarize.

    Only training text is cleaned; validation and test text keep every line as it is. A step whose
    inputs have not changed is not done again, and what only it needs may be deleted. It may be
    killed at any moment: the next call goes on with the last step that was not done.

    Args:
        recipe: Where the text comes from.
        out_dir: The dataset folder.
        mirror: A folder or URL that has the downloads by their file names.
        verify: Compare downloads with the checksums that the recipe knows.
        downloads_dir: Where downloads are kept; in the dataset folder if None.
        overrides: {"cleaning" | "subword" | "binarize": {name: value}}, laid over the recipe's.
        text_only: Stop when the text is written.
        force: Do all steps again, and replace another dataset in the folder.

    Raises:
        DataError: Text or archives are missing, damaged or do not fit together, or a disk is too
            small, which is said before anything is downloaded.
        UsageError: A setting cannot be, or the folder holds something else.
    """
    settings = {
        section: {**recipe.settings(section), **(overrides or {}).get(section, {})}
        for section in ("cleaning", "subword", "binarize")
    }
    cleaning = settings_from(CleaningConfig, settings["cleaning"])
    subword = settings_from(SubwordConfig, settings["subword"])
    binarization = settings_from(BinarizeConfig, settings["binarize"])
    _check_folder(recipe, out_dir, force=force)
    manifest = Manifest.create(
        out_dir,
        name=recipe.name,
        source=recipe.source,
        target=recipe.target,
        settings={
            "task": recipe.task,
            "subword": settings["subword"],
            "binarize": settings["binarize"],
            "search": recipe.settings("search"),
        },
    )
    raw_dir, downloads_dir = out_dir / "raw", downloads_dir or out_dir / "downloads"
    sources = TextSources(
        recipe, raw_dir=raw_dir, downloads_dir=downloads_dir, mirror=mirror, verify=verify
    )
    inputs = sources.fingerprint()
    clean_inputs = inputs | {"cleaning": settings_to(cleaning)}
    is_new = not manifest.is_current("clean", clean_inputs)
    for folder in (out_dir, raw_dir, out_dir / "bin", downloads_dir):
        remove_leftovers(folder)
    if is_new:
        is_unpacked = manifest.is_current("extract", inputs)
        needs = _disk_needs(
            sources, out_dir, downloads_dir, unpack=not is_unpacked, text_only=text_only
        )
        check_disks(list(needs))
        if is_unpacked and sources.unpacked_paths:
            say(f"extract: {raw_dir} unchanged")
        elif sources.unpacked_paths:
            _unpack(sources, manifest, inputs)
        _write_text(recipe, sources, cleaning, manifest, clean_inputs)
    else:
        say(f"clean: {out_dir} unchanged")
    if not recipe.valid:
        say("warning: there is no validation text, so training will not see when to stop")
    learned = None if text_only else learn_bpe(out_dir, subword, force=force)
    binarized = None if text_only else binarize(out_dir, binarization, force=force)
    if is_new and sources.unpacked_paths:
        say(f"{raw_dir} and the downloads serve no more but to clean by other rules")
    names = [item.name for item in fields(PairCounts)]
    try:
        counts = {
            split: PairCounts(**{name: entry[name] for name in names})
            for split, entry in manifest.result("clean").items()
        }
    except (KeyError, TypeError) as error:
        raise manifest.damage() from error
    return PrepareResult(
        data_dir=out_dir,
        counts=counts,
        is_new=is_new,
        subword=learned,
        binarized=binarized,
    )


def _check_folder(recipe: Recipe, out_dir: Path, *, force: bool) -> None:
    """Refuse to overwrite what is no earlier version of this dataset."""
    languages = (recipe.source, recipe.target)
    suffixes = (*languages, GOLD) if recipe.task == "parsing" else languages
    outputs = [out_dir / f"{split}.{suffix}" for split in SPLITS for suffix in suffixes]
    # Path.resolve would fail on a link that leads to itself.
    read = {os.path.realpath(path) for path in recipe.local_paths()}
    for path in outputs:
        if os.path.realpath(path) in read:
            raise UsageError(f"{path} would be read and overwritten: choose another --out")
    manifest_path = out_dir / "manifest.json"
    if force:
        manifest_path.unlink(missing_ok=True)
    elif manifest_path.exists():
        manifest = Manifest.load(out_dir)
        if (manifest.name, manifest.source, manifest.target) != (recipe.name, *languages):
            raise UsageError(
                f"{out_dir} holds {manifest.name} ({manifest.source}-{manifest.target}), not "
                f"{recipe.name} ({'-'.join(languages)}): choose another --out, or --force"
            )
    else:
        for path in outputs:
            if path.exists():
                raise UsageError(
                    f"{path} was not written by tfm prepare: choose another --out, or --force"
                )


def _disk_needs(
    sources: TextSources, out_dir: Path, downloads_dir: Path, *, unpack: bool, text_only: bool
) -> Iterator[DiskNeed]:
    """What the steps that are still to be done will write."""
    size = sources.size()
    elsewhere = "choose an --out on another disk"

    def need(folder: Path, content: str, num_bytes: int) -> DiskNeed:
        return DiskNeed(folder=folder, content=content, num_bytes=num_bytes, remedy=elsewhere)

    if unpack:
        yield DiskNeed(
            folder=downloads_dir,
            content="downloads",
            num_bytes=size.missing,
            is_least=size.is_least,
            remedy="keep the downloads on another disk with --downloads",
        )
        yield need(out_dir / "raw", "unpacked text", size.unpacked)
    yield need(out_dir, "text", size.text)
    if not text_only:
        yield need(out_dir, "token ids", round(_TOKEN_ID_BYTES_PER_TEXT_BYTE * size.text))


def _unpack(sources: TextSources, manifest: Manifest, inputs: Table) -> None:
    """Download and extract."""
    outputs = sources.unpacked_paths
    fetched = sources.fetch()
    facts = {
        name: {"sha256": file.sha256, "size": file.size, "verified": file.verified}
        for name, file in fetched.items()
    }
    # Downloads may be deleted once they are extracted, so they are not outputs to look for.
    manifest.record("download", inputs=inputs, outputs=[], result=facts)
    sources.unpack(fetched)
    manifest.record("extract", inputs=inputs, outputs=outputs, result={"files": len(outputs)})
    say(f"extract: {len(outputs)} files in {manifest.data_dir / 'raw'}")


def _write_text(
    recipe: Recipe,
    sources: TextSources,
    cleaning: CleaningConfig,
    manifest: Manifest,
    inputs: Table,
) -> None:
    """Write the text of all splits, and record what became of each line."""
    cleaner = Cleaner(cleaning)
    result: dict[str, Any] = {split: {} for split in SPLITS if recipe.texts(split)}
    outputs: list[Path] = []
    # Training text comes last: what is wrong with the others shows before the long work.
    for split in _SPLITS_SHORT_FIRST:
        paths = [manifest.text_path(split, lang) for lang in (recipe.source, recipe.target)]
        gold_path = manifest.text_path(split, GOLD)
        if split in result:
            result[split] = _write_split(recipe, split, sources, cleaner, paths)
            outputs += paths
            if recipe.task == "parsing" and split != "train":
                _write_gold(recipe.texts(split), split, sources, gold_path)
                outputs.append(gold_path)
        else:
            for stale in (*paths, gold_path):
                stale.unlink(missing_ok=True)
    for held_out, count in cleaner.held_out.counts().items():
        result[held_out]["in_training"] = count
        if count:
            say(
                f"warning: {count:,} of the {result[held_out]['kept']:,} pairs of the {held_out} "
                "text are in the training text, too: scores on it will be too high"
            )
    manifest.record("clean", inputs=inputs, outputs=outputs, result=result)


def _write_split(
    recipe: Recipe,
    split: "Split",
    sources: TextSources,
    cleaner: Cleaner,
    outputs: Sequence[Path],
) -> dict[str, Any]:
    """Write both sides of a split, and count its pairs: in all, and of each text."""
    total = PairCounts()
    entries = []
    with (
        atomic_write(outputs[0]) as source_file,
        atomic_write(outputs[1]) as target_file,
        Progress(f"clean {split}", total=None, unit="pairs") as bar,
    ):
        for text in recipe.texts(split):
            counts = PairCounts()
            pairs = sources.pairs(text, split)
            if split == "train":
                pairs = cleaner.clean(pairs, counts)
            num_written = 0
            for block in in_chunks(pairs):
                source_file.writelines(source + b"\n" for source, _ in block)
                target_file.writelines(target + b"\n" for _, target in block)
                num_written += len(block)
                bar.update(len(block))
                if split != "train":
                    cleaner.held_out.add(split, block)
            if split != "train":
                counts = PairCounts(read=num_written, kept=num_written)
            elif isinstance(text, TextFiles):
                _check_encoding(text, counts, sources, (recipe.source, recipe.target))
            total.add(counts)
            entries.append(asdict(text) | asdict(counts))
        if not total.read:
            sides = (side for text in recipe.texts(split) for side in getattr(text, "sides", ()))
            raise DataError(f"the {split} text is empty: {', '.join(dict.fromkeys(sides))}")
        if not total.kept:
            raise DataError(f"nothing is left to write to {outputs[0]}: {_summary(total)}")
    say(f"clean: {split} {_summary(total)}")
    return asdict(total) | {"texts": entries}


def _check_encoding(
    text: TextFiles, counts: PairCounts, sources: TextSources, languages: tuple[str, str]
) -> None:
    """Refuse training text of which too many lines are not UTF-8.

    Raises:
        DataError: The text has another encoding, which is named with the way to convert it.
    """
    num_broken = counts.dropped["not_utf8"]
    if num_broken <= _MAX_BROKEN_RATE * counts.read:
        return
    sides = dict(zip(sources.locate_sides(text), languages, strict=True))
    guesses = {path: likely_encoding(path, language) for path, language in sides.items()}
    remedies = [
        f"{path} looks like {encoding}, convert it with {iconv_command(path, encoding)}"
        for path, encoding in guesses.items()
        if encoding is not None
    ]
    raise DataError(f"{num_broken:,} of {counts.read:,} pairs are not UTF-8: {'; '.join(remedies)}")


def _write_gold(texts: Sequence[Text], split: "Split", sources: TextSources, path: Path) -> None:
    """Write the trees of a split in brackets, with parts of speech, as scoring needs them."""
    with atomic_write(path) as file:
        for text in texts:
            if not isinstance(text, TextFiles):
                file.writelines(f"{bracketed(t)}\n".encode() for t in sources.trees(text, split))


def _summary(counts: PairCounts) -> str:
    reasons = [f"{n:,} {rule.replace('_', ' ')}" for rule, n in counts.dropped.items() if n]
    dropped = f"; dropped {', '.join(reasons)}" if reasons else ""
    return f"{counts.kept:,} of {counts.read:,} pairs{dropped}"
