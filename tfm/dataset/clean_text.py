"""The texts of a recipe as they are read for a dataset: checked, and training text cleaned."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

from tfm.config import CleaningConfig, Normalization, settings_from, settings_to
from tfm.dataset.draft import Piece
from tfm.dataset.manifest import Manifest
from tfm.dataset.shards import Shard, TrainingText, by_text
from tfm.dataset.test_sets import read_protected
from tfm.dataset.text_report import check_format
from tfm.errors import DataError, UsageError
from tfm.reporting import Progress, say
from tfm.text.cleaning import Cleaner, HeldOutPairs, Score, clean_lines, look_swapped, passing
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import SPLITS, Split, Text, TextFiles, TreeFile, text_name
from tfm.text.counts import PairCounts
from tfm.text.files import suffix_of
from tfm.text.formats import TABLES
from tfm.text.lines import BytesPair, in_chunks, read_pairs
from tfm.text.looks import FIRST_LINES, look
from tfm.text.pair_checks import Check, are_swapped, deviation_checks, pair_checks, ratio_checks
from tfm.text.sample import check_alignment, length_ratio, sample_windows
from tfm.text.seen import SeenText
from tfm.text.sources import Downloads, TextSources
from tfm.text.unique import FileScores, UniqueSides, choose_held_out

STEP = "clean"  # the step that writes the text of a dataset, apart from what is appended
HELD_OUT: tuple[Split, ...] = ("test", "valid")

NumberedPair = tuple[int, BytesPair]  # after the number of its text, from 0 on


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
        step: The step that writes the text: "clean", or the name of a step that appends.
        first: The number of the first training text; others follow those of the dataset.
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
        step: str = STEP,
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
            raw_dir=manifest.data_dir / "raw" / ("" if step == STEP else step),
            downloads=self.downloads,
            tags=manifest.symbols,
        )
        self._known_rules: dict[int, _Rules] = {}
        self.names = [
            f"{number} {text_name(text)}" for number, text in enumerate(recipe.train, first)
        ]
        self._protect = read_protected(cleaning.protect, manifest.languages, self.downloads)
        self.file_scores = None if cleaning.scores is None else FileScores(Path(cleaning.scores))
        self._manifest, self.step, self.is_added = manifest, step, step != STEP
        self._to_hold_out: list[Split] = [x for x in HELD_OUT if not recipe.texts(x)]
        if not cleaning.hold_out or self.is_added:
            return
        if recipe.task == "parsing" or recipe.tags():
            raise UsageError("--hold-out is for text without trees and tags: leave it out")
        if not self._to_hold_out:
            raise UsageError(
                "--hold-out has no effect beside validation and test text: leave it out"
            )

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """JSON values of all that determines the clean text."""
        inputs = {
            **self.sources.fingerprint,
            "cleaning": settings_to(self.cleaning) | {"protect": [*self.cleaning.protect]},
            "normalization": asdict(self.normalization),
        }
        for split in SPLITS:
            options = (text.options() for text in self.recipe.texts(split))
            inputs[split] = [
                {**text, **each} for text, each in zip(inputs[split], options, strict=True)
            ]
        if any(cleaning_of(text, self.cleaning).max_length_ratio for text in self.recipe.train):
            inputs["length_ratio"] = "of the text"  # not a limit for all texts
        if self.cleaning.hold_out:
            inputs["held_out"] = self._to_hold_out
        if self.scorers:
            inputs["score_models"] = {
                path: checksum for path, (checksum, _) in self.scorers.items()
            }
        if self._protect:
            inputs["protected"] = hashlib.sha256(b"\n".join(self._protect)).hexdigest()
        else:
            del inputs["cleaning"]["protect"]
        if self.file_scores is not None:
            inputs["scores"] = self.file_scores.checksum
        return inputs

    @property
    def compares_all(self) -> bool:
        """Whether what is kept of the training text depends on all of it."""
        return bool(self.scorers or self.cleaning.scores or self.cleaning.unique_sides)

    @cached_property
    def taken(self) -> dict[Split, list[BytesPair]]:
        """The pairs of the training text that are validation or test text, by their split.

        If text is added to a dataset, these are the pairs that the dataset has.
        """
        if not self.cleaning.hold_out:
            return {}
        if self.is_added:
            given = [split for split in HELD_OUT if split in self._manifest.splits()]
            paths = {split: self._manifest.text_paths(split) for split in given}
            return {split: [*read_pairs(*paths[split], strict=True)] for split in given}
        splits = self._to_hold_out
        pairs = chain.from_iterable(map(self._plain_pairs, self.recipe.train))
        number = len(splits) * self.cleaning.hold_out
        chosen = choose_held_out(pairs, number, self.cleaning.hold_out_seed)
        return {split: chosen[place :: len(splits)] for place, split in enumerate(splits)}

    def _plain_pairs(self, text: Text) -> Iterator[BytesPair]:
        """Yield the pairs of a training text that break no rule about single pairs."""
        config = cleaning_of(text, self.cleaning)
        checks = pair_checks(config, self.recipe.source, self.recipe.target)
        pairs = self.sources.pairs(text, "train")
        checks, counts = [*ratio_checks(config, None), *checks], PairCounts()
        yield from passing(pairs, counts, config, self.normalization, checks)
        check_format(self.sources, text, counts)

    @cached_property
    def protected(self) -> SeenText | None:
        """The record of lines that training text must not have."""
        taken = chain.from_iterable(chain.from_iterable(self.taken.values()))
        lines = [*self._protect, *taken]
        return SeenText.of_lines(lines) if lines else None

    def cleaner(self, folder: Path) -> Cleaner:
        """Return a cleaner of the training text that finds duplicates, with files in a folder."""
        sides = self.cleaning.unique_sides
        return Cleaner(
            self.cleaning,
            self.normalization,
            scratch_dir=folder,
            protected=self.protected,
            unique=UniqueSides(sides) if sides else None,
        )

    def held_out(self, split: Split, pairs: HeldOutPairs) -> Iterator[Piece]:
        """Yield the validation or test texts, whose pairs are added to the held-out pairs.

        Unicode is composed as in training.
        """
        for number, text in enumerate(self.recipe.texts(split), 1):
            counted = TrainingText.of(text, f"{number} {text_name(text)}")
            yield Piece(text=counted, pairs=self._composed(split, text, counted, pairs))
        if taken := self.taken.get(split):
            pairs.add(split, taken)
            counted = TrainingText(name="1 held out", read=len(taken), kept=len(taken))
            yield Piece(text=counted, pairs=iter(taken))

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

    def pieces(
        self, place: int, stretch: Iterator[NumberedPair], cleaner: Cleaner
    ) -> Iterator[Piece]:
        """Yield the texts of a stretch, by its place from 0 on, to be cleaned as they are read."""
        start = place * self.cleaning.shard_pairs
        for number, pairs in groupby(stretch, key=itemgetter(0)):
            text, rules = self.recipe.train[number], self._rules(number, cleaner.held_out)
            counted = TrainingText.of(text, self.names[number], rules.length_ratio)
            file = self.file_scores
            clean = cleaner.clean(
                map(itemgetter(1), pairs),
                counted,
                config=rules.config,
                tag=text.tag,
                checks=rules.checks,
                score=rules.score if file is None else partial(file.scores, start),
            )
            yield Piece(text=counted, pairs=clean)
            start += counted.read

    def choose_by_sides(self, cleaner: Cleaner, folder: Path) -> None:
        """Choose which of the training pairs that share a side a cleaner keeps, if only one."""
        if cleaner.unique is None:
            return
        for number in range(len(self.recipe.train)):
            self._rules(number, cleaner.held_out)  # which tell whether sides are swapped
        first = self.cleaner(folder)
        first.unique = cleaner.unique
        with Progress("compare sides", total=None, unit="pairs") as bar:
            for number, stretch in enumerate(self.stretches()):
                for piece in self.pieces(number, stretch, first):
                    for block in in_chunks(piece.pairs):
                        bar.update(len(block))
        cleaner.unique.choose()

    def pieces_again(
        self, shard: Shard, pairs: Iterator[BytesPair], cleaner: Cleaner
    ) -> Iterator[Piece]:
        """Yield the texts of a finished shard, without pairs that occurred before it."""
        for text, of_text in by_text(pairs, shard.texts):
            config = cleaning_of(self.recipe.train[self.names.index(text.name)], self.cleaning)
            yield Piece(text=text, pairs=_distinct(text, of_text, config, cleaner))

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
        folder = self._manifest.data_dir
        return clean_lines(self.sources.lines(language), counts, *rules, scratch_dir=folder)

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
                + (f", as with --columns {other},{one}" if suffix_of(text.source) in TABLES else "")
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


def _distinct(
    text: TrainingText, pairs: Iterator[BytesPair], config: CleaningConfig, cleaner: Cleaner
) -> Iterator[BytesPair]:
    """Yield the pairs of a text that did not occur before; count them again."""
    text.kept, in_held_out = 0, text.in_held_out
    yield from cleaner.distinct(pairs, text, config=config, tag=text.tag)
    text.in_held_out = in_held_out  # which were counted with the duplicates
