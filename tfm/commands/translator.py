"""Translating plain text with trained models: the library's interface."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, repeat
from pathlib import Path
from typing import Any, overload

from tfm.commands.declaration import argument
from tfm.config import (
    InferenceConfig,
    InferenceDevice,
    SearchConfig,
    Values,
    by_section,
    settings_from,
    settings_to,
)
from tfm.config.values import Line, shown
from tfm.errors import DataError, UsageError
from tfm.features.align.step import Align
from tfm.folders.model_folder import ModelFolder, ensemble_info
from tfm.folders.model_info import ModelInfo
from tfm.search.constraints import ban_file
from tfm.steps import ModelSteps, StepsConfig, TextFormat
from tfm.translation.chain import BatchEngine, Chain
from tfm.translation.engines import refusal, search_obstacles, start_engine
from tfm.translation.steps import Output, Segment, Step
from tfm.vocabulary.subword import Vocabulary

_ELSEWHERE = {"prefixes": "prefixes"}  # arguments that a misspelled setting may mean
# Steps for whole texts, and those that need the folder of a model.
_OF_DOCUMENTS = ("document", "format")
_OF_TEXTS = (*_OF_DOCUMENTS, "align", "align_reverse")


class Translator:
    """Translates plain text with one model or an ensemble.

    The methods take settings of [search] by name, as `tfm generate` takes them as flags:
    `translate(lines, beam_size=8)`, or `beam=8` as in `--beam 8`. They replace the model's own
    defaults. A `SearchConfig` replaces all of them, and excludes settings by name.

    Args:
        path: A model or run folder.
        *more_paths: Further members of an ensemble.
        **settings: Settings of [inference]: device, precision, kernels, threads, engine. The
            number of threads holds for all of torch in this process; if unset, it is not changed.

    Raises:
        CheckpointError: A folder has no valid model, or models differ in task, languages or
            vocabulary.
        UsageError: A folder does not exist, a setting is wrong, or this machine does not support
            it.
    """

    def __init__(self, path: Path | str, *more_paths: Path | str, **settings: Any) -> None:
        given = by_section([InferenceConfig], settings)
        inference = settings_from(InferenceConfig, given.get("inference", {}))
        paths = [argument("path", each, Path) for each in (path, *more_paths)]
        folders = [ModelFolder.open(each) for each in paths]
        info = ensemble_info(folders)
        search = SearchConfig.for_model(info.search, {})
        engine, choice = start_engine(folders, search, inference)
        self._start(
            engine,
            folders[0].vocabulary,
            default_search=search,
            info=info,
            folders=folders,
            device=inference.device,
            is_plain=choice.engine == "ctranslate2",
        )

    @classmethod
    def load(cls, path: Path | str, *more_paths: Path | str, **settings: Any) -> "Translator":
        """Load one model, or an ensemble of several, as `Translator(path)` does."""
        return cls(path, *more_paths, **settings)

    @classmethod
    def of(cls, engine: BatchEngine, vocabulary: Vocabulary) -> "Translator":
        """Return a translator with models in this process or others, and their vocabulary."""
        translator = cls.__new__(cls)
        cls._start(translator, engine, vocabulary)
        return translator

    def _start(
        self,
        engine: BatchEngine,
        vocabulary: Vocabulary,
        *,
        default_search: SearchConfig | None = None,
        info: ModelInfo | None = None,
        folders: Sequence[ModelFolder] = (),
        device: InferenceDevice = "auto",
        is_plain: bool = False,
    ) -> None:
        self.engine, self.vocabulary = engine, vocabulary
        self._info, self._folders, self._device = info, folders, device
        self._default_search, self._is_plain = default_search or SearchConfig(), is_plain
        self._chain = Chain(engine=engine, vocabulary=vocabulary)
        # By their models of the reverse direction; the first one is read before it may be gone.
        self._aligners: dict[str | None, Align] = {}
        if folders and folders[0].info.task != "parsing":
            self._aligners[None] = Align.of(folders[0], None, device).hold()

    @overload
    def translate(self, lines: str, config: SearchConfig | None = None, **settings: Any) -> str: ...

    @overload
    def translate(
        self, lines: Iterable[str], config: SearchConfig | None = None, **settings: Any
    ) -> list[str]: ...

    def translate(
        self, lines: str | Iterable[str], config: SearchConfig | None = None, **settings: Any
    ) -> str | list[str]:
        """Translate sentences; white space is normalized as in the training text.

        Args:
            lines: Plain text, one sentence per line, or a single sentence; empty lines stay empty.
            config: Search settings; the model's defaults if None.
            **settings: Settings of [search] by name, instead of `config`, and `protect`,
                `protect_for`, `no_protect` or `glossary`, which is a file or source terms with
                their translations.

        Returns:
            The best translation of each line, with line ends replaced by spaces; a single string
            if one was given.

        Raises:
            UsageError: A setting is unknown, wrong or without effect.
        """
        if isinstance(lines, str):
            return self.translate([lines], config, **settings)[0]
        return [best[0].text for best in self.search(lines, config, **settings)]

    def translate_text(
        self,
        text: str,
        config: SearchConfig | None = None,
        *,
        format: TextFormat = "text",  # noqa: A002 - named as its flag
        align_reverse: Path | str | None = None,
        **settings: Any,
    ) -> str:
        """Translate a text of several sentences, and keep its white space and markup.

        Args:
            text: Paragraphs, or a document.
            config: Search settings; the model's defaults if None.
            format: What the text is: "text", "html", "xml" or "srt", as in `tfm generate --format`.
            align_reverse: A model of the reverse direction, which helps to place markup.
            **settings: Settings of [search] by name, instead of `config`, and `protect`,
                `protect_for`, `no_protect` or `glossary`, which is a file or source terms with
                their translations.

        Raises:
            UsageError: A setting is unknown, wrong or without effect; or the model is a parser, or
                not loaded from a folder.
            DataError: The text is not of the format.
        """
        terms = _taken_terms(settings)
        given = by_section([SearchConfig, StepsConfig], settings, _ELSEWHERE, without=_OF_TEXTS)
        config = self._merge(config, given.get("search", {}), SearchConfig.for_model)
        chosen = {"format": format, "align_reverse": align_reverse and str(align_reverse)}
        steps_config = settings_from(StepsConfig, {**given.get("steps", {}), **chosen})
        if not self._folders or self._folders[0].info.task == "parsing":
            raise UsageError("translate_text needs a translator of Translator.load, and no parser")
        steps = self._steps(config, steps_config, terms)
        unit = Segment(1, argument("text", text, Line), unit="text")
        [(_, [[best, *_]])] = self._chain.run([[unit]], config, steps)
        return best.text

    def search(
        self,
        lines: Iterable[str],
        config: SearchConfig | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
        **settings: Any,
    ) -> list[list[Output]]:
        """Translate sentences, with scores and alternatives.

        Translations begin with the text of their prefix. Its last word may be continued: "Hun" and
        "Hund" become "Hunde", and "Haus" may become "Haustür", unless white space follows it.

        Args:
            lines: Plain text, one sentence per line; empty lines without prefix stay empty.
            config: Search settings; the model's defaults if None.
            prefixes: A forced beginning of each line's translations; empty ones force nothing.
            first_line: Number of the first line, for messages and the random seeds of sampling.
            **settings: Settings of [search] by name, instead of `config`, and `protect`,
                `protect_for`, `no_protect`, `align` for word alignments, or `glossary`, which is a
                file or source terms with their translations.

        Returns:
            The `n_best` translations of each line, best first.

        Raises:
            UsageError: A setting is unknown, wrong or without effect.
            DataError: A line or prefix has more tokens than the model accepts, or the numbers of
                lines and prefixes differ.
        """
        segments = _segments(lines, first_line, prefixes=prefixes)
        terms = _taken_terms(settings)
        given = by_section([SearchConfig, StepsConfig], settings, _ELSEWHERE, without=_OF_DOCUMENTS)
        config = self._merge(config, given.get("search", {}), SearchConfig.for_model)
        chosen = settings_from(StepsConfig, given.get("steps", {}))
        steps = self._steps(config, chosen, terms)
        [(_, found)] = self._chain.run([segments], config, steps)
        return found

    def score_targets(
        self,
        lines: Iterable[str],
        targets: Sequence[str],
        config: SearchConfig | None = None,
        *,
        first_line: int = 1,
        **settings: Any,
    ) -> list[Output]:
        """Compute the probabilities of given translations.

        A translation that a search found gets the same log probability and score here, unless the
        search spelled it with other subword pieces than the subword model does, or with white space
        that is normalized here.

        Args:
            lines: Plain text, one sentence per line.
            targets: A translation of each line.
            config: Length penalty, maximum source length and batch size; the model's defaults if
                None.
            first_line: Number of the first line, for messages.
            **settings: The same settings by name, instead of `config`.

        Returns:
            The score, log probability and pieces of each target.

        Raises:
            UsageError: A setting is unknown, wrong or without effect on the scores.
            DataError: A line or target has more tokens than the model accepts, or the numbers of
                lines and targets differ.
        """
        segments = _segments(lines, first_line, targets=targets)
        given = by_section([SearchConfig], settings, _ELSEWHERE)
        config = self._merge(config, given.get("search", {}), SearchConfig.for_targets)
        [(_, scored)] = self._chain.run([segments], config, scores_given=True)
        return [target for [target] in scored]

    def _steps(
        self, config: SearchConfig, chosen: StepsConfig, terms: Mapping[str, str]
    ) -> list[Step]:
        """Return the steps around a search; an aligner is loaded only once."""
        folder = self._folders[0] if self._aligners else None
        if chosen.align and folder is None:
            raise UsageError("align needs a translator of Translator.load, and no parser")
        reverse = chosen.align_reverse
        if folder is not None and reverse not in self._aligners:
            self._aligners[reverse] = Align.of(folder, reverse, self._device).hold()
        aligner = self._aligners.get(reverse)
        model = ModelSteps(info=self._info, folder=folder, aligner=aligner)
        return model.around(config, chosen, terms=terms)

    def _merge(
        self,
        config: SearchConfig | None,
        given: Values,
        merged: Callable[[Values, Values], SearchConfig],
    ) -> SearchConfig:
        """Return the config, or the settings merged over the model's defaults; check both."""
        if not isinstance(config, SearchConfig | None):
            raise UsageError(f"config is {shown(config)}, but must be a SearchConfig")
        if config is not None and given:
            raise UsageError("a SearchConfig and settings by name exclude each other: give one")
        if isinstance(tag := given.get("tag"), str):
            self.vocabulary.require_tag(tag)
        if config is None:
            config = merged(settings_to(self._default_search), given)
        else:
            config = settings_from(SearchConfig, settings_to(config))
        if self._is_plain and (obstacles := search_obstacles(config)):
            raise refusal(obstacles)
        if config.ban is None:
            return config
        return replace(config, ban=ban_file(str(argument("ban", config.ban, Path))))


def _taken_terms(settings: dict[str, Any]) -> Mapping[str, str]:
    """Take a glossary out of settings if it is given as terms; return them, or an empty table."""
    if not isinstance(settings.get("glossary"), Mapping):
        return {}
    pairs = list(settings.pop("glossary").items())
    return dict(argument("glossary", pairs, tuple[tuple[str, str], ...]))


def _segments(
    lines: Iterable[str], first_line: int, **paired: Iterable[str] | None
) -> list[Segment]:
    """Return the lines as segments, with a prefix or target each if `paired` is given."""
    first_line = argument("first_line", first_line, int)
    if first_line < 0:
        raise UsageError(f"first_line is {first_line}, but must be at least 0")
    [(name, other)] = paired.items()
    texts = argument("lines", lines, tuple[Line, ...])
    given = argument(name, other, tuple[Line, ...] | None)
    if given is not None and len(given) != len(texts):
        raise DataError(f"there are {len(texts):,} lines, but {len(given):,} {name}: give one each")
    return list(map(Segment, count(first_line), texts, given or repeat(None)))
