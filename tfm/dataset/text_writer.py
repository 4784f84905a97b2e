"""The text of a dataset: extracted, cleaned and written in parts, for `tfm prepare`."""

import hashlib
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from rich.filesize import decimal

from tfm.config import CleaningConfig, Normalization, Table, settings_from, settings_to
from tfm.dataset.manifest import GOLD, Manifest
from tfm.dataset.text_parts import (
    SHARE_RECORD,
    JoinedShares,
    PartWriter,
    Share,
    ShareOfText,
    ShareRecord,
    remove_shares,
)
from tfm.disk.files import atomic_write, existing_parent, remove_leftovers, write_text
from tfm.errors import DataError, UsageError
from tfm.reporting import Progress, say
from tfm.text.cleaning import (
    RULES,
    Cleaner,
    HeldOutPairs,
    PairCounts,
    Score,
    clean_lines,
    look_swapped,
    passing,
)
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import SPLITS, Split, Text, TextFiles, TreeFile, text_name
from tfm.text.lines import BytesPair, in_chunks, read_every_line, read_pairs
from tfm.text.looks import FIRST_LINES, look
from tfm.text.pair_checks import are_swapped, deviation_checks, pair_checks, ratio_checks
from tfm.text.sample import check_alignment, length_ratio, sample_windows
from tfm.text.seen import SeenText
from tfm.text.sources import TextSources
from tfm.text.trees import bracketed

DROPPED = "dropped.txt"  # examples of dropped pairs

# Training text comes last: a problem with the other splits shows before the long work.
_SPLITS_TRAINING_LAST: tuple[Split, ...] = ("test", "valid", "train")
# With fewer pairs, most pieces of even a small vocabulary occur too rarely to learn their use: a
# model only repeats its training text. The smallest corpus of the tutorials has twice as many.
_MIN_TRAIN_PAIRS = 1_000
# Rules that drop a higher rate of the pairs of a text, and more than some pairs, are warned of.
_MAX_DROPPED_RATE, _MAX_DROPPED = 0.03, 10
# A higher rate of lines that are not UTF-8 means another encoding, not damage.
_MAX_INVALID_RATE = 0.01
# The disk needs this many times the size of the text: for the clean text, and for that which is
# unpacked or for the token ids.
_BYTES_PER_TEXT_BYTE = 2


def cleaning_of(text: Text, cleaning: CleaningConfig) -> CleaningConfig:
    """Return the settings of a training text, which may change the settings of all texts."""
    return settings_from(CleaningConfig, {**settings_to(cleaning), **text.cleaning})


@dataclass(frozen=True)
class TextWriter:
    """Extracts and cleans the text of a dataset."""

    sources: TextSources
    cleaning: CleaningConfig
    normalization: Normalization
    scorers: Mapping[str, Callable[[str | None], Score]]  # by path; of texts with a tag
    score_models: Mapping[str, str]  # the checksums of these models
    manifest: Manifest
    force: bool = False
    step_prefix: str = ""  # of the steps that fetch the text
    protected: SeenText | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe of the text."""
        return self.sources.recipe

    def update(self) -> bool:
        """Write the text of all splits; return False if it was up to date."""
        inputs = self._unpacked("clean", ["clean"])
        if inputs is not None:
            self._write_text(inputs)
        return inputs is not None

    def changes_training_text(self) -> bool:
        """Return whether the training text of the dataset is other text than `update` writes."""
        before = self.manifest.inputs("clean")
        after = self._clean_inputs()
        return before is not None and _of_training_text(before) != _of_training_text(after)

    def lost_text(self) -> list[str]:
        """Return the names of held-out and monolingual text of which `update` would remove some."""
        inputs = self._clean_inputs()
        before = self.manifest.inputs("clean") or {}
        if before == inputs:
            return []
        found = (*self.manifest.splits(), *(path.name for path in self._mono_paths()))
        older, newer = _num_texts(before), _num_texts(inputs)
        return [name for name in found if newer[name] < max(1, older[name]) and name != "train"]

    def append(self) -> bool:
        """Append training text to the dataset's; return False if it was appended before."""
        appended = self.manifest.appended()
        inputs = self._unpacked("append", appended)
        if inputs is not None:
            self._append_text(f"append-{len(appended) + 1}", inputs)
        return inputs is not None

    def fetch(self) -> None:
        """Download and unpack all text."""
        self._unpacked("clean", ["clean"])

    def write_share(self, share: Share) -> None:
        """Clean a share of the training text, for a later call of `update`."""
        is_unpacked = self.manifest.is_current("extract", self.sources.fingerprint)
        if self.sources.unpacked_paths and not is_unpacked:
            raise UsageError("the downloads are not unpacked: run the same with --fetch-only first")
        if self.scorers:
            raise UsageError("min_score cannot go with --share: scores depend on the whole text")
        clean_inputs = self._clean_inputs()
        folder = share.folder(self.manifest.data_dir)
        if self._is_done("clean", ["clean"], clean_inputs):
            return
        if ShareRecord.find(folder, clean_inputs):
            say(f"clean: {folder} unchanged")
            return
        cleaner = self._cleaner(folder)
        for split in _SPLITS_TRAINING_LAST[:-1]:
            for text in self.recipe.texts(split):
                for block in in_chunks(self._held_out_pairs(text, split, cleaner.held_out)):
                    cleaner.held_out.add(split, block)
        paths = [folder / f"train.{language}" for language in self.manifest.languages]
        (folder / SHARE_RECORD).unlink(missing_ok=True)
        with ExitStack() as stack:
            files = [stack.enter_context(atomic_write(path)) for path in paths]
            bar = stack.enter_context(Progress(f"clean train {share}", total=None, unit="pairs"))
            texts = [
                self._write_share_of(text, share, cleaner, files, bar) for text in self.recipe.train
            ]
        sizes = {path.name: path.stat().st_size for path in paths}
        record = ShareRecord(share=share, inputs=clean_inputs, sizes=sizes, texts=tuple(texts))
        record.save(folder)
        say(f"clean: train {share}: {sum(text.counts['kept'] for text in texts):,} pairs")

    def _write_share_of(
        self, text: Text, share: Share, cleaner: Cleaner, files: Sequence[IO[bytes]], bar: Progress
    ) -> ShareOfText:
        counts, stripes = PairCounts(), []
        clean = self._cleaning_function(text, cleaner, counts)
        for stripe in share.stripes(self.sources.pairs(text, "train")):
            before = counts.kept
            for block in in_chunks(clean(stripe)):
                for side, file in enumerate(files):
                    file.writelines(pair[side] + b"\n" for pair in block)
                bar.update(len(block))
            stripes.append(counts.kept - before)
        examples = {rule: tuple(pairs) for rule, pairs in counts.examples.items()}
        return ShareOfText(counts=counts.record(), examples=examples, stripes=tuple(stripes))

    def _cleaner(self, folder: Path) -> Cleaner:
        rules = self.cleaning, self.normalization
        return Cleaner(*rules, scratch_dir=folder, protected=self.protected)

    def _clean_inputs(self) -> dict[str, Any]:
        """Return JSON values of all that determines the clean text."""
        texts = (text.options() for split in SPLITS for text in self.recipe.texts(split))
        options = [{name: value for name, value in text.items() if value} for text in texts]
        clean_inputs = {
            **self.sources.fingerprint,
            "cleaning": settings_to(self.cleaning),
            "normalization": asdict(self.normalization),
        }
        if any(options):
            clean_inputs["options"] = options
        if any(cleaning_of(text, self.cleaning).max_length_ratio for text in self.recipe.train):
            clean_inputs["length_ratio"] = "of the text"  # not a limit for all texts
        if self.score_models:
            clean_inputs["score_models"] = dict(self.score_models)
        clean_inputs["cleaning"]["protect"] = [*self.cleaning.protect]
        if self.protected is None:
            del clean_inputs["cleaning"]["protect"]
        else:
            clean_inputs["protected"] = hashlib.sha256(self.protected.bits.tobytes()).hexdigest()
        return clean_inputs

    def _unpacked(self, name: str, done: Sequence[str]) -> dict[str, Any] | None:
        """Unpack the text and return its inputs; None if a step that is done had the same."""
        out_dir = self.manifest.data_dir
        for folder in (out_dir, out_dir / "raw", out_dir / "bin", self.sources.downloads_dir):
            remove_leftovers(folder)
        clean_inputs = self._clean_inputs()
        if self._is_done(name, done, clean_inputs):
            return None
        self._check_disk()
        if self.sources.unpacked_paths:
            self._unpack()
        return clean_inputs

    def _is_done(self, name: str, steps: Sequence[str], inputs: Table) -> bool:
        """Return whether one of the steps ran on the same inputs; if so, print that with `name`."""
        if is_done := any(self.manifest.is_current(step, inputs) for step in steps):
            say(f"{name}: {self.manifest.data_dir} unchanged")
        return is_done

    def _check_disk(self) -> None:
        """Raise DataError, before anything is downloaded, if the disk is too small."""
        folder = self.manifest.data_dir
        needed = _BYTES_PER_TEXT_BYTE * self.recipe.num_bytes()
        free = shutil.disk_usage(existing_parent(folder)).free
        if free < needed:
            raise DataError(
                f"{folder} will take about {decimal(needed)}, but only {decimal(free)} are free "
                "there: choose an --out on another disk"
            )

    def _unpack(self) -> None:
        """Download and unpack the text, unless that was done."""
        inputs, outputs = self.sources.fingerprint, self.sources.unpacked_paths
        download, extract = f"{self.step_prefix}download", f"{self.step_prefix}extract"
        raw_dir = self.manifest.data_dir / "raw"
        if self.manifest.is_current(extract, inputs):
            say(f"extract: {raw_dir} unchanged")
            return
        fetched = self.sources.fetch()
        files = {
            name: {"sha256": file.sha256, "size": file.size, "verified": file.verified}
            for name, file in fetched.items()
        }
        # Not recorded as outputs: downloads may be deleted after extraction.
        self.manifest.record(download, inputs=inputs, outputs=[], result=files)
        self._save_progress()
        self.sources.unpack(fetched)
        result = {"files": len(outputs)}
        self.manifest.record(extract, inputs=inputs, outputs=outputs, result=result)
        self._save_progress()
        say(f"extract: {len(outputs)} files in {raw_dir}")

    def _save_progress(self) -> None:
        """Save the steps that are done, unless an older dataset still needs its own manifest."""
        if not self.force or not (self.manifest.data_dir / "manifest.json").exists():
            self.manifest.save()

    def _write_text(self, inputs: Table) -> None:
        """Write the text of all splits, and record how many pairs were kept and dropped.

        Older text is replaced when all of the new text is complete.
        """
        cleaner = self._cleaner(self.manifest.data_dir)
        result: dict[str, Any] = {split: {} for split in SPLITS if self.recipe.texts(split)}
        outputs: list[Path] = []
        data_dir = self.manifest.data_dir
        shares = None if self.force else JoinedShares.find(data_dir, inputs)
        with ExitStack() as stack:
            for split in _SPLITS_TRAINING_LAST:
                if split in result:
                    limit = self.cleaning.part_pairs if split == "train" else None
                    writer = PartWriter(stack, self.manifest, split, max_pairs=limit)
                    written = self._write_split(split, cleaner, writer, shares)
                    result[split], counts_by_text = written
                    if self.recipe.task == "parsing" and split != "train":
                        self._write_gold_trees(split, writer.open(GOLD))
                    writer.flush()  # a full disk shows before any older text is replaced
                    outputs += writer.files
                    if split == "train":
                        result[split]["parts"] = writer.sizes
            outputs += self._write_mono(stack)
            self._save_progress()
        self._remove_older_text(outputs)
        self._write_examples(counts_by_text)  # of the training text, the last split
        if (num_pairs := result["train"]["kept"]) < _MIN_TRAIN_PAIRS:
            say(
                f"warning: a model cannot learn from {num_pairs:,} training pairs: it needs "
                "thousands to generalize to other sentences"
            )
        for held_out, count in self._count_held_out(cleaner).items():
            result[held_out]["in_training"] = count
        self.manifest.record("clean", inputs=inputs, outputs=outputs, result=result)
        if shares is not None:
            self._save_progress()
        if shares is not None or self.force:
            remove_shares(data_dir)
        if appended := self.manifest.appended():
            say("warning: the text that was appended is gone: append it again")
            self.manifest.forget(appended)

    def _count_held_out(self, cleaner: Cleaner) -> dict[str, int]:
        """Return how many pairs of each other split are in the training text; warn of them."""
        counts = cleaner.held_out.counts()
        for held_out, (count, size) in counts.items():
            if count:
                say(
                    f"warning: {count:,} of the {size:,} pairs of the {held_out} text are in the "
                    "training text, too: scores on it will be too high"
                )
        return {held_out: count for held_out, (count, _) in counts.items()}

    def _append_text(self, step: str, inputs: Table) -> None:
        """Write training text to further parts, without pairs that the dataset has."""
        manifest = self.manifest
        cleaner = self._cleaner(manifest.data_dir)
        self._see_text(cleaner)
        with ExitStack() as stack:
            writer = PartWriter(
                stack,
                manifest,
                "train",
                max_pairs=self.cleaning.part_pairs,
                first=len(manifest.part_sizes()) + 1,
            )
            record, counts_by_text = self._write_split("train", cleaner, writer)
            writer.flush()
            self._save_progress()
        self._write_examples(counts_by_text)
        self._count_held_out(cleaner)
        result = {"train": record | {"parts": writer.sizes}}
        manifest.record(step, inputs=inputs, outputs=writer.files, result=result)

    def _see_text(self, cleaner: Cleaner) -> None:
        """Record the pairs of all splits in a cleaner, which then drops their duplicates."""
        for split in self.manifest.splits():
            for tag, pairs in self._untagged(split):
                for block in in_chunks(pairs):
                    if split == "train":
                        cleaner.see(block, tag=tag)
                    else:
                        cleaner.held_out.add(split, block)

    def _untagged(self, split: str) -> Iterator[tuple[str | None, Iterator[BytesPair]]]:
        """Yield the tag of each text of a split, and its pairs without it, to be read in turn."""
        pairs = chain.from_iterable(
            read_pairs(*self.manifest.text_paths(name), strict=True)
            for name in self.manifest.text_parts(split)
        )
        for text in self.manifest.texts(split):
            prefix = f"{text.tag} ".encode() if text.tag else b""
            of_text = islice(pairs, text.kept)
            yield text.tag, ((s.removeprefix(prefix), t) for s, t in of_text)
        yield None, pairs  # of text that was not prepared

    def _remove_older_text(self, current: Sequence[Path]) -> None:
        """Remove the splits and the parts of older text that the current one does not have."""
        for path in set(self._mono_paths()) - set(current):
            path.unlink()
        for suffix in (*self.manifest.languages, GOLD):
            for removed in set(SPLITS) - {path.stem for path in current}:
                self.manifest.text_path(removed, suffix).unlink(missing_ok=True)
            for path in self.manifest.data_dir.glob(f"train.[1-9]*.{suffix}"):
                if path not in current and path.name.split(".")[1].isdecimal():
                    path.unlink()

    def _write_split(
        self, split: Split, cleaner: Cleaner, writer: PartWriter, shares: JoinedShares | None = None
    ) -> tuple[dict[str, Any], dict[str, PairCounts]]:
        """Write both sides of a split; return the record of its pairs, and the counts by text."""
        total = PairCounts()
        entries = []
        counts_by_text: dict[str, PairCounts] = {}
        with Progress(f"clean {split}", total=None, unit="pairs") as bar:
            num_before = len(self.manifest.texts("train")) if self.step_prefix else 0
            for index, text in enumerate(self.recipe.texts(split)):
                counts = PairCounts()
                if split != "train":
                    pairs = self._held_out_pairs(text, split, cleaner.held_out)
                elif shares is not None:
                    pairs = self._joined(shares, index, cleaner, counts)
                else:
                    clean = self._cleaning_function(text, cleaner, counts)
                    pairs = clean(self.sources.pairs(text, split))
                for block in in_chunks(pairs):
                    writer.write([(_tagged(source, text.tag), target) for source, target in block])
                    bar.update(len(block))
                    if split != "train":
                        counts.add(PairCounts(read=len(block), kept=len(block)))
                        cleaner.held_out.add(split, block)
                name = f"{1 + num_before + index} {text_name(text)}"
                if split == "train":
                    self._check_training_text(text, name, counts)
                total.add(counts)
                entries.append(asdict(text) | counts.record() | {"name": name})
                counts_by_text[name] = counts
            if not total.read:
                texts = self.recipe.texts(split)
                sides = (side for text in texts for side in getattr(text, "sides", ()))
                raise DataError(f"the {split} text is empty: {', '.join(dict.fromkeys(sides))}")
            if not total.kept:
                raise DataError(f"no pairs are left of the {split} text: {_summary(total)}")
        say(f"clean: {split} {_summary(total)}")
        return total.record() | {"texts": entries}, counts_by_text

    def _mono_paths(self) -> list[Path]:
        """Return the files of monolingual text in the dataset."""
        return sorted(self.manifest.data_dir.glob("mono.*"))

    def _write_mono(self, stack: ExitStack) -> list[Path]:
        """Write the monolingual text; the files appear when the stack ends."""
        paths = []
        for language in dict.fromkeys(text.language for text in self.recipe.mono):
            counts = PairCounts()
            checks = pair_checks(self.cleaning, language, language)
            lines = self.sources.lines(language)
            rules = self.cleaning, self.normalization, checks, self.protected
            lines = clean_lines(lines, counts, *rules)
            paths.append(self.manifest.text_path("mono", language))
            file = stack.enter_context(atomic_write(paths[-1]))
            file.writelines(line + b"\n" for line in lines)
            _check_encoding(self.sources.mono_paths(language), counts, unit="lines")
            say(f"clean: {paths[-1].name} {_summary(counts, unit='lines')}")
        return paths

    def _cleaning_function(
        self, text: Text, cleaner: Cleaner, counts: PairCounts
    ) -> Callable[[Iterable[BytesPair]], Iterator[BytesPair]]:
        """Return a function that yields the pairs that pass the rules of a training text.

        Their length ratio is measured in a sample of the text, also for a share of it.
        """
        config = cleaning_of(text, self.cleaning)
        checks = pair_checks(config, self.recipe.source, self.recipe.target)
        sample = self._checked_sample(text, "train", cleaner.held_out)
        if config.max_length_ratio:
            clean = passing(sample, PairCounts(), config, self.normalization)
            counts.length_ratio = length_ratio(clean)
            checks = [*ratio_checks(config, counts.length_ratio), *checks]
        pairs = self.sources.pairs(text, "train")
        others = passing(pairs, PairCounts(), config, self.normalization, checks)
        score = None
        if config.score_model is not None:
            score = self.scorers[config.score_model](text.tag)
        return partial(
            cleaner.clean,
            counts=counts,
            config=config,
            tag=text.tag,
            checks=[*checks, *deviation_checks(config, others)],
            score=score,
        )

    def _held_out_pairs(
        self, text: Text, split: Split, held_out: HeldOutPairs
    ) -> Iterator[BytesPair]:
        """Return the pairs of validation or test text, with Unicode composed as in training."""
        self._checked_sample(text, split, held_out)
        compose = replace(self.normalization, space=False).normalize
        pairs = self.sources.pairs(text, split)
        return ((compose(s.decode()).encode(), compose(t.decode()).encode()) for s, t in pairs)

    def _look(self, text: TextFiles, split: Split) -> None:
        """Warn if the first lines do not look like plain sentences."""
        pairs = islice(self.sources.pairs(text, split), FIRST_LINES)
        sides = zip(*pairs, strict=True)
        for lines, path in zip(sides, self.sources.locate_sides(text), strict=False):
            decoded = [line.decode(errors="replace") for line in lines]
            for finding in look(decoded, self.sources.tags.__contains__):
                advice = finding.sign.advice or "remove it, or make it one piece with --symbols"
                say(f"warning: {path}: {finding}: {advice}")

    def _joined(
        self, shares: JoinedShares, number: int, cleaner: Cleaner, counts: PairCounts
    ) -> Iterator[BytesPair]:
        """Yield the pairs of a training text that shares have cleaned, without duplicates."""
        text = self.recipe.train[number]
        shares.add_counts(number, counts)
        counts.kept, in_held_out = 0, counts.in_held_out
        config = cleaning_of(text, self.cleaning)
        yield from cleaner.distinct(shares.pairs(number), counts, config=config, tag=text.tag)
        counts.in_held_out = in_held_out  # which the shares have counted

    def _write_examples(self, counts_by_text: Mapping[str, PairCounts]) -> None:
        """Write examples of what each rule dropped from each training text, if anything."""
        path = self.manifest.data_dir / DROPPED
        text = "\n".join(
            f"# {name}, {rule}: {counts.dropped[rule]:,} of {counts.read:,} pairs, such as\n"
            + "".join(f"{source}\t{target}\n" for source, target in examples)
            for name, counts in counts_by_text.items()
            for rule, examples in counts.examples.items()
        )
        if not text:
            path.unlink(missing_ok=True)
            return
        write_text(path, text)
        say(f"clean: examples of dropped pairs are in {path}")

    def _checked_sample(self, text: Text, split: Split, held_out: HeldOutPairs) -> list[BytesPair]:
        """Return pairs from all over a text; refuse text whose sides are shifted or swapped.

        Their languages are told by those of held-out text and by their scripts. Text that is
        shifted only in a part of it is warned of.
        """
        if isinstance(text, TreeFile):
            return []
        windows = sample_windows(self.sources.all_pairs(text, split))
        sample = list(chain.from_iterable(pairs for _, pairs in windows))
        source, target = self.recipe.source, self.recipe.target
        paths = " and ".join(dict.fromkeys(map(str, self.sources.locate_sides(text))))
        check_alignment(windows, paths, force=self.force)
        self._look(text, split)
        config = cleaning_of(text, self.cleaning)
        if "+" not in source + target and (
            look_swapped(sample, held_out.sample) or are_swapped(sample, config, source, target)
        ):
            one, other = text.columns or (1, 2)
            raise DataError(
                f"{paths}: are the sides swapped, here or in the validation and test text? "
                f"Give {source} and {target} in this order everywhere"
                + (f", as with --columns {other},{one}" if text.source == text.target else "")
            )
        return sample

    def _check_training_text(self, text: Text, name: str, counts: PairCounts) -> None:
        """Report the cleaning of a training text; raise DataError if it cannot be used."""
        if isinstance(text, TextFiles):
            _check_encoding(self.sources.locate_sides(text), counts)
            if 2 * counts.dropped["columns"] > counts.read:
                deque(self.sources.all_pairs(text, "valid"), maxlen=0)  # an error names the first
        _warn_of_rules(name, counts)
        if len(self.recipe.train) > 1:
            if not counts.kept:
                raise DataError(
                    f"no pairs are left of [[train]] {name} ({_summary(counts)}): remove it "
                    "from the recipe, or correct it"
                )
            say(f"clean: train {name}: {_summary(counts)}")

    def _write_gold_trees(self, split: Split, file: IO[bytes]) -> None:
        """Write the trees of a split as brackets with part-of-speech tags, for scoring."""
        for text in self.recipe.texts(split):
            if isinstance(text, TreeFile):
                trees = self.sources.trees(text)
                file.writelines(f"{bracketed(tree)}\n".encode() for tree in trees)


def _num_texts(inputs: Table) -> Counter[str]:
    """Return how many texts each split, and the monolingual text of each language, consists of."""
    splits = {split: len(texts) for split, texts in inputs.get("texts", {}).items()}
    return Counter(splits) + Counter(f"mono.{text['language']}" for text in inputs.get("mono", []))


def _of_training_text(inputs: Table) -> list[Any]:
    """Return those inputs of the step "clean" that determine the training text."""
    texts = inputs.get("texts", {}).get("train", [])
    sides = [str(value) for text in texts for value in text.values()]
    no_options: list[Table] = [{}] * len(texts)
    return [
        texts,
        {side: inputs.get("contents", {}).get(side) for side in sides},
        [file for file in inputs.get("downloads", []) if file["url"].endswith(tuple(sides))],
        (inputs.get("options") or no_options)[: len(texts)],
        inputs.get("cleaning"),
        inputs.get("normalization"),
        inputs.get("score_models"),
        inputs.get("protected"),
    ]


def _tagged(source: bytes, tag: str | None) -> bytes:
    """Return a source sentence after its tag; an empty one stays empty."""
    return source if tag is None or not source.strip() else f"{tag} ".encode() + source


def _summary(counts: PairCounts, unit: str = "pairs") -> str:
    reasons = [f"{n:,} {rule.replace('_', ' ')}" for rule, n in counts.dropped.items() if n]
    dropped = f"; dropped {', '.join(reasons)}" if reasons else ""
    num_decoded = counts.windows_1252
    decoded = f"; U+0080 to U+009F read as Windows-1252 in {num_decoded:,}" if num_decoded else ""
    return f"{counts.kept:,} of {counts.read:,} {unit}{dropped}{decoded}"


def _warn_of_rules(name: str, counts: PairCounts) -> None:
    """Warn of each rule that drops much of a training text."""
    for rule, dropped in counts.dropped.items():
        if dropped > max(_MAX_DROPPED, _MAX_DROPPED_RATE * counts.read):
            flag = RULES.get(rule)
            advice = f", or change the rule with {flag}" if flag else ""
            say(
                f"warning: the rule {rule} drops {dropped / counts.read:.1%} of {name}, "
                f"{dropped:,} of {counts.read:,} pairs: look at examples in {DROPPED}{advice}"
            )


def _check_encoding(paths: Sequence[Path], counts: PairCounts, unit: str = "pairs") -> None:
    """Raise DataError if too many lines of a training text are not UTF-8."""
    num_invalid = counts.dropped["not_utf8"]
    if num_invalid > max(1, _MAX_INVALID_RATE * counts.read):
        for path in paths:
            try:
                deque(read_every_line(path, strict=True), maxlen=0)
            except DataError as error:
                raise DataError(
                    f"{num_invalid:,} of {counts.read:,} {unit} of {' and '.join(map(str, paths))} "
                    f"are not UTF-8: {error}"
                ) from error
