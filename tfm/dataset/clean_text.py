"""The texts of a recipe as they are read for a dataset: checked, and training text cleaned."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

from tfm.config import CleaningConfig, Normalization, settings_from, settings_to
from tfm.dataset.draft import FinishedShard, Piece
from tfm.dataset.manifest import Manifest
from tfm.dataset.shards import by_text
from tfm.dataset.test_sets import read_protected
from tfm.disk.files import write_text
from tfm.errors import DataError
from tfm.reporting import say
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
from tfm.text.lines import BytesPair, in_chunks, read_every_line
from tfm.text.looks import FIRST_LINES, look
from tfm.text.pair_checks import Check, are_swapped, deviation_checks, pair_checks, ratio_checks
from tfm.text.sample import check_alignment, length_ratio, sample_windows
from tfm.text.sources import Downloads, TextSources

DROPPED = "dropped.txt"  # examples of dropped pairs

NumberedPair = tuple[int, BytesPair]  # after the number of its text, from 0 on

# Rules that drop a higher rate of the pairs of a text, and more than some pairs, are warned of.
_MAX_DROPPED_RATE, _MAX_DROPPED = 0.03, 10
# A higher rate of lines that are not UTF-8 means another encoding, not damage.
_MAX_INVALID_RATE = 0.01


def cleaning_of(text: Text, cleaning: CleaningConfig) -> CleaningConfig:
    """Return the settings of a training text, which may change the settings of all texts."""
    return settings_from(CleaningConfig, {**settings_to(cleaning), **text.cleaning})


@dataclass(frozen=True)
class _Rules:
    """The rules of a training text."""

    config: CleaningConfig
    checks: Sequence[Check]
    score: Score | None
    length_ratio: float | None


class CleanText:
    """The texts of a recipe, with the rules by which they are read for a dataset.

    Args:
        recipe: The texts.
        manifest: The dataset.
        cleaning: The rules for training text; each text may change them.
        downloads: Where the texts and test sets come from; by default, the dataset keeps them.
        normalization: How training text is normalized; by default as `cleaning` says.
        scorers: {path of a model: (its checksum, a function from a tag to a scorer)}.
        step: The folder to unpack texts in, below the folder of the dataset's own text.
        first: The number of the first training text among those of the dataset.
        force: Whether to replace other text, and to take text whose sides are shifted.
    """

    def __init__(
        self,
        recipe: Recipe,
        manifest: Manifest,
        cleaning: CleaningConfig,
        downloads: Downloads | None = None,
        *,
        normalization: Normalization | None = None,
        scorers: Mapping[str, tuple[str, Callable[[str | None], Score]]] = {},
        step: str = "",
        first: int = 1,
        force: bool = False,
    ) -> None:
        self.recipe, self.cleaning, self.scorers, self.force = recipe, cleaning, scorers, force
        self.normalization = normalization or cleaning.normalization
        downloads = downloads or Downloads()
        folder = downloads.folder or manifest.data_dir / "downloads"
        self.downloads = replace(downloads, folder=folder)
        self.sources = TextSources(
            recipe,
            data_dir=manifest.data_dir,
            raw_dir=manifest.data_dir / "raw" / step,
            downloads=self.downloads,
            tags=manifest.symbols,
        )
        self._known_rules: dict[int, _Rules] = {}
        self.names = [
            f"{number} {text_name(text)}" for number, text in enumerate(recipe.train, first)
        ]
        self.protected = read_protected(cleaning.protect, manifest.languages, self.downloads)

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """JSON values of all that determines the clean text."""
        texts = (text.options() for split in SPLITS for text in self.recipe.texts(split))
        options = [{name: value for name, value in text.items() if value} for text in texts]
        inputs = {
            **self.sources.fingerprint,
            "cleaning": settings_to(self.cleaning) | {"protect": [*self.cleaning.protect]},
            "normalization": asdict(self.normalization),
        }
        if any(options):
            inputs["options"] = options
        if any(cleaning_of(text, self.cleaning).max_length_ratio for text in self.recipe.train):
            inputs["length_ratio"] = "of the text"  # not a limit for all texts
        if self.scorers:
            inputs["score_models"] = {
                path: checksum for path, (checksum, _) in self.scorers.items()
            }
        if self.protected is None:
            del inputs["cleaning"]["protect"]
        else:
            inputs["protected"] = hashlib.sha256(self.protected.bits.tobytes()).hexdigest()
        return inputs

    def cleaner(self, folder: Path) -> Cleaner:
        """Return a cleaner of the training text that finds duplicates, with files in a folder."""
        rules = self.cleaning, self.normalization
        return Cleaner(*rules, scratch_dir=folder, protected=self.protected)

    def held_out(self, split: Split, pairs: HeldOutPairs) -> Iterator[Piece]:
        """Yield the validation or test texts, whose pairs are added to the held-out pairs.

        Unicode is composed as in training.
        """
        for number, text in enumerate(self.recipe.texts(split), 1):
            counts, name = PairCounts(), f"{number} {text_name(text)}"
            composed = self._composed(split, text, counts, pairs)
            yield Piece(name=name, text=text, counts=counts, pairs=composed)

    def _composed(
        self, split: Split, text: Text, counts: PairCounts, pairs: HeldOutPairs
    ) -> Iterator[BytesPair]:
        self._checked_sample(text, split, pairs)
        compose = replace(self.normalization, space=False).normalize
        composed = (
            (compose(source.decode()).encode(), compose(target.decode()).encode())
            for source, target in self.sources.pairs(text, split)
        )
        for block in in_chunks(composed):
            yield from block
            pairs.add(split, block)
            counts.add(PairCounts(read=len(block), kept=len(block)))

    def stretches(self) -> Iterator[Iterator[NumberedPair]]:
        """Cut the training texts, one after the other, into the stretches that shards come from.

        Each stretch must be read to its end; its pairs follow the numbers of their texts.
        """
        numbered = chain.from_iterable(
            zip(repeat(number), self.sources.pairs(text, "train"), strict=False)
            for number, text in enumerate(self.recipe.train)
        )
        for first in numbered:
            yield chain([first], islice(numbered, self.cleaning.shard_pairs - 1))

    def pieces(self, stretch: Iterator[NumberedPair], cleaner: Cleaner) -> Iterator[Piece]:
        """Yield the texts of a stretch, to be cleaned as they are read."""
        for number, pairs in groupby(stretch, key=itemgetter(0)):
            text, rules = self.recipe.train[number], self._rules(number, cleaner.held_out)
            counts = PairCounts(length_ratio=rules.length_ratio)
            clean = cleaner.clean(
                map(itemgetter(1), pairs),
                counts,
                config=rules.config,
                tag=text.tag,
                checks=rules.checks,
                score=rules.score,
            )
            yield Piece(name=self.names[number], text=text, counts=counts, pairs=clean)

    def pieces_again(
        self, shard: FinishedShard, pairs: Iterator[BytesPair], cleaner: Cleaner
    ) -> Iterator[Piece]:
        """Yield the texts of a finished shard, without pairs that occurred before it."""
        of_texts = by_text(pairs, shard.shard.texts)
        for (known, of_text), counts in zip(of_texts, shard.counts(), strict=True):
            text = self.recipe.train[self.names.index(known.name)]
            distinct = self._distinct(text, of_text, counts, cleaner)
            yield Piece(name=known.name, text=text, counts=counts, pairs=distinct)

    def _distinct(
        self, text: Text, pairs: Iterator[BytesPair], counts: PairCounts, cleaner: Cleaner
    ) -> Iterator[BytesPair]:
        counts.kept, in_held_out = 0, counts.in_held_out
        config = cleaning_of(text, self.cleaning)
        yield from cleaner.distinct(pairs, counts, config=config, tag=text.tag)
        counts.in_held_out = in_held_out  # which were counted with the duplicates

    def _rules(self, number: int, held_out: HeldOutPairs) -> "_Rules":
        """Return the rules of a training text, some of which are measured in all of it."""
        if number not in self._known_rules:
            text = self.recipe.train[number]
            config = cleaning_of(text, self.cleaning)
            checks, ratio = pair_checks(config, self.recipe.source, self.recipe.target), None
            sample = self._checked_sample(text, "train", held_out)
            if config.max_length_ratio:
                ratio = length_ratio(passing(sample, PairCounts(), config, self.normalization))
                checks = [*ratio_checks(config, ratio), *checks]
            pairs = self.sources.pairs(text, "train")
            others = passing(pairs, PairCounts(), config, self.normalization, checks)
            checks = [*checks, *deviation_checks(config, others)]
            _, scorer = self.scorers.get(config.score_model or "", (None, None))
            score = scorer(text.tag) if scorer else None
            self._known_rules[number] = _Rules(config, checks, score, ratio)
        return self._known_rules[number]

    def lines(self, language: str, counts: PairCounts) -> Iterator[bytes]:
        """Yield the clean lines of the monolingual texts in a language."""
        checks = pair_checks(self.cleaning, language, language)
        rules = self.cleaning, self.normalization, checks, self.protected
        return clean_lines(self.sources.lines(language), counts, *rules)

    def _checked_sample(self, text: Text, split: Split, held_out: HeldOutPairs) -> list[BytesPair]:
        """Return pairs from all over a text; refuse text whose sides are shifted or swapped.

        The languages of the sides are found by held-out text and by scripts. If only a part of a
        text is shifted, a warning is printed.
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

    def _look(self, text: TextFiles, split: Split) -> None:
        """Warn if the first lines do not look like plain sentences."""
        pairs = islice(self.sources.pairs(text, split), FIRST_LINES)
        sides = zip(*pairs, strict=True)
        for lines, path in zip(sides, self.sources.locate_sides(text), strict=False):
            decoded = [line.decode(errors="replace") for line in lines]
            for finding in look(decoded, self.sources.tags.__contains__):
                advice = finding.sign.advice or "remove it, or make it one piece with --symbols"
                say(f"warning: {path}: {finding}: {advice}")


def summary(counts: PairCounts, unit: str = "pairs") -> str:
    """Return how many pairs were kept, and why others were dropped."""
    reasons = [f"{n:,} {rule.replace('_', ' ')}" for rule, n in counts.dropped.items() if n]
    dropped = f"; dropped {', '.join(reasons)}" if reasons else ""
    num_decoded = counts.windows_1252
    decoded = f"; U+0080 to U+009F read as Windows-1252 in {num_decoded:,}" if num_decoded else ""
    entities = f"; entities decoded in {counts.entities:,}" if counts.entities else ""
    return f"{counts.kept:,} of {counts.read:,} {unit}{dropped}{decoded}{entities}"


def report_training_text(sources: TextSources, text: Text, name: str, counts: PairCounts) -> None:
    """Report the cleaning of a training text; raise DataError if it cannot be used."""
    if isinstance(text, TextFiles):
        check_encoding(sources.locate_sides(text), counts)
        if 2 * counts.dropped["columns"] > counts.read:
            deque(sources.all_pairs(text, "valid"), maxlen=0)  # an error names the first
    for rule, dropped in counts.dropped.items():
        if dropped > max(_MAX_DROPPED, _MAX_DROPPED_RATE * counts.read):
            flag = RULES.get(rule)
            advice = f", or change the rule with {flag}" if flag else ""
            say(
                f"warning: the rule {rule} drops {dropped / counts.read:.1%} of {name}, "
                f"{dropped:,} of {counts.read:,} pairs: look at examples in {DROPPED}{advice}"
            )
    if len(sources.recipe.train) > 1:
        if not counts.kept:
            raise DataError(
                f"no pairs are left of [[train]] {name} ({summary(counts)}): remove it "
                "from the recipe, or correct it"
            )
        say(f"clean: train {name}: {summary(counts)}")


def check_encoding(paths: Sequence[Path], counts: PairCounts, unit: str = "pairs") -> None:
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


def count_held_out(held_out: HeldOutPairs) -> dict[str, int]:
    """Return how many pairs of each other split are in the training text; warn of them."""
    counts = held_out.counts()
    for split, (count, size) in counts.items():
        if count:
            say(
                f"warning: {count:,} of the {size:,} pairs of the {split} text are in the "
                "training text, too: scores on it will be too high"
            )
    return {split: count for split, (count, _) in counts.items()}


def write_examples(data_dir: Path, counts_by_text: Mapping[str, PairCounts]) -> None:
    """Write examples of what each rule dropped from each training text, if anything."""
    path = data_dir / DROPPED
    text = "\n".join(
        f"# {name}, {rule}: {counts.dropped[rule]:,} of {counts.read:,} pairs, such as\n"
        + "".join(f"{source}\t{target}\n" for source, target in examples.values())
        for name, counts in counts_by_text.items()
        for rule, examples in counts.examples.items()
    )
    if not text:
        path.unlink(missing_ok=True)
        return
    write_text(path, text)
    say(f"clean: examples of dropped pairs are in {path}")
