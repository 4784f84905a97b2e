"""The steps around a search: the settings that ask for them, and their order."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from tfm.config import InferenceDevice, SearchConfig, Settings
from tfm.config.schema import Problem, check_facts, setting
from tfm.metrics.tokenizers import bleu_tokenizer
from tfm.reporting import say
from tfm.text.languages import target_language

if TYPE_CHECKING:
    from tfm.features.align.step import Align
    from tfm.features.glossary.finding import Finder
    from tfm.features.glossary.terms import Term
    from tfm.features.protect.step import Protect
    from tfm.folders.model_folder import ModelFolder
    from tfm.folders.model_info import ModelInfo
    from tfm.translation.steps import Step

TextFormat = Literal["lines", "text", "html", "xml", "srt"]
_OF_LINES = ("prefix", "score_target", "json", "align")  # what is about lines, not about a text
_MAX_SYMBOLS = 1_000  # whose spelling is kept
_TRANSLATION = {"task": ("translation",)}  # not "parsing", or "scoring" of given targets


@dataclass(frozen=True, kw_only=True)
class StepsConfig(Settings, section="steps"):
    """Settings of the steps that prepare text before a search, or complete outputs after it."""

    format: TextFormat = setting(
        "lines",
        "Sentences (lines), paragraphs (text) or markup, which is kept.",
        common=True,
        excludes=_OF_LINES,
    )
    document: bool = setting(
        False,
        "The same as --format text.",
        excludes=_OF_LINES,
        only={"format": ("lines", "text")},
    )
    align: bool = setting(
        False,
        "Add the word alignment of each translation, such as 0-0 1-2, in a last column.",
        only={"task": ("translation", "scoring")},
    )
    align_reverse: str | None = setting(
        None,
        "With --align or markup: a model of the reverse direction, to combine both alignments.",
        metavar="MODEL",
    )
    glossary: str | None = setting(
        None,
        "Glossary of source terms, their translations and comments, separated by tabs, to use.",
        metavar="FILE",
        excludes=("num_groups",),
        only={**_TRANSLATION, "search": ("beam",)},
    )
    protect: tuple[str, ...] = setting(
        (),
        "Copy what the regular expression matches, besides placeholders, addresses and the like; "
        "may be repeated.",
        metavar="REGEX",
        excludes=("no_protect",),
        only=_TRANSLATION,
    )
    protect_for: tuple[str, ...] = setting(
        (),
        "Also copy what could be ordinary text, but is a placeholder of this program, such as "
        "laravel or qt; may be repeated.",
        metavar="NAME",
        excludes=("no_protect",),
        only=_TRANSLATION,
    )
    no_protect: bool = setting(
        False, "Translate placeholders, addresses, file names, hashtags and mentions as any text."
    )

    def _contradictions(self) -> Iterator[Problem]:
        yield from _protect_problems(self.protect, self.protect_for)
        if self.align_reverse is not None and not (self.align or self.has_markup):
            text = "align_reverse has no effect without align, or format html, xml or srt"
            text = f"{text}: leave it out, or add one of them"
            yield Problem("align_reverse", text, others=("align", "format"))

    @property
    def has_markup(self) -> bool:
        """Whether a text is a document with markup, which is read as a whole."""
        return self.format not in ("lines", "text")

    @property
    def has_paragraphs(self) -> bool:
        """Whether texts may have several sentences."""
        return self.document or self.format != "lines"


def _protect_problems(patterns: Sequence[str], names: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with regular expressions, and with names of programs."""
    if not patterns and not names:
        return
    import regex  # here, because few commands have one

    from tfm.features.protect.placeholders import programs

    for pattern in patterns:
        try:
            regex.compile(pattern)
        except regex.error as error:
            text = f"protect: {pattern} is no regular expression, {error}: correct it"
            yield Problem("protect", text)
    for name in names:
        if name.lower() not in programs():
            parts = [part for part in re.split(r"[\s,;]+", name) if part]
            several = f"repeat the flag, as in --protect-for {' --protect-for '.join(parts)}"
            advice = several if len(parts) > 1 else f"give one of {', '.join(programs())}"
            text = f"protect_for: {name} is no program with known placeholders: {advice}"
            yield Problem("protect_for", text)


@dataclass(frozen=True, kw_only=True)
class ModelSteps:
    """Makes the steps around the searches of a model.

    Only their modules are imported, because commands declare the settings without torch.

    Attributes:
        info: The description of the model; None for a model that has weights only.
        folder: The folder of the model, or of the first of an ensemble; parsers get the steps of a
            parser.
        device: Where steps compute.
        aligner: Aligns words, and sentences with markup or protected text; None makes one.
        glossary: The terms of the glossary's file, if they are in memory.
        notify: Receives warnings that quote terms.
    """

    info: "ModelInfo | None"
    folder: "ModelFolder | None" = None
    device: InferenceDevice = "auto"
    aligner: "Align | None" = None
    glossary: "Finder[Term] | None" = None
    notify: Callable[[str], None] = say

    def around(
        self,
        search: SearchConfig,
        config: StepsConfig = StepsConfig(),
        *,
        scores_given: bool = False,
        terms: Mapping[str, str] = MappingProxyType({}),
    ) -> "list[Step]":
        """Return the steps around a search, from the outermost to the innermost.

        Args:
            search: Settings of the search.
            config: The steps that users ask for.
            scores_given: Whether given targets are scored, instead of searched.
            terms: Source terms with their translations, which go before those of the glossary.
        """
        info = self.info
        task = "scoring" if scores_given else "translation" if info is None else info.task
        given = replace(config, glossary=config.glossary or ("its terms" if terms else None))
        check_facts([given, search], {"task": task})
        source = "" if info is None else info.source
        target = "" if info is None else target_language(info.target, search.tag)
        tags = () if info is None or config.has_markup else info.tags
        aligner = self._aligner(search, config)
        protect = None
        if task == "translation" and not config.no_protect:
            protect = self._protect(config, tags, aligner)
        steps: list[Step] = []
        if config.has_markup and aligner is not None:
            from tfm.features.formats.step import Formats

            steps.append(Formats(config.format, aligner))
        if config.has_paragraphs:
            from tfm.features.documents.step import Sentences

            unbroken = None if protect is None else protect.spans
            steps.append(Sentences(source, target, tags, unbroken))
        if config.align and aligner is not None:
            steps.append(aligner)
        if scores_given:
            return steps
        if protect is not None:
            steps.append(protect)
        if config.glossary is not None or terms:
            from tfm.features.glossary.step import Glossary

            path = None if config.glossary is None else Path(config.glossary)
            held = self.glossary or path
            steps.append(Glossary.of(held, terms, search, info, self.notify))
        if task == "translation":
            from tfm.features.repetition.step import Repetition

            steps.append(Repetition(search))
        return [*steps, *self._after_search(search, target)]

    def _aligner(self, search: SearchConfig, config: StepsConfig) -> "Align | None":
        """Return the step that aligns words; None without a model that can."""
        if self.folder is None or (self._is_parser and not config.align):
            return None
        from tfm.features.align.step import Align

        aligner = self.aligner or Align.of(self.folder, config.align_reverse, self.device)
        return aligner.with_tag(search.tag)

    def _protect(
        self, config: StepsConfig, tags: Collection[str], aligner: "Align | None"
    ) -> "Protect":
        from tfm.features.protect.step import Protect

        folder = self.folder
        reserved = cache(lambda: tags if folder is None else folder.vocabulary.source.tags())
        lacks: Callable[[str], bool] | None = None
        if folder is not None:
            lacks = lru_cache(_MAX_SYMBOLS)(lambda text: folder.vocabulary.lacks(text))
        programs = config.protect_for
        return Protect(
            config.protect, reserved, aligner, programs=programs, lacks=lacks, notify=self.notify
        )

    @property
    def _is_parser(self) -> bool:
        return self.info is not None and self.info.task == "parsing"

    def _after_search(self, search: SearchConfig, target: str) -> "Iterator[Step]":
        """Yield what the model and the search need, from the outermost to the innermost."""
        if self._is_parser and self.folder is not None:
            from tfm.features.trees.step import Trees

            yield Trees(self.folder.vocabulary)
        # Samples have no confidence.
        calibration = None if self.info is None else self.info.calibration
        if calibration is not None and search.search != "sample":
            from tfm.features.confidence.step import Confidence

            yield Confidence(calibration)
        if search.mbr is not None:
            from tfm.features.mbr.step import MinimumBayesRisk
            from tfm.metrics.command import MetricCommand
            from tfm.metrics.tokenizers import load_tokenizer

            if search.mbr_tokenize != "auto":
                load_tokenizer(search.mbr_tokenize)  # reports what is missing before the search
            command = search.metric_command
            yield MinimumBayesRisk(
                utility=MetricCommand(command or "") if search.mbr == "command" else search.mbr,
                are_samples=search.search == "sample",
                tokenizer=bleu_tokenizer(target, search.mbr_tokenize),
            )


def around_texts(steps: "Sequence[Step]") -> "Sequence[Step]":
    """Return the outer steps, which divide texts into sentences and join them."""
    from tfm.features.documents.step import Sentences

    return steps[: 1 + [type(step) for step in steps].index(Sentences)]
