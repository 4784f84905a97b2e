"""The models of a server: each with its thread, its queue of requests and its languages."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tfm.applications.serve.queue import LineConfig, Terms, TranslationQueue
from tfm.applications.serve.requests import TranslationRequest
from tfm.applications.serve.settings import ServeConfig
from tfm.config import InferenceConfig, SearchConfig, Values
from tfm.disk.paths import existing_file
from tfm.errors import DataError, UsageError
from tfm.features.align.step import Align
from tfm.features.glossary.terms import read_terms
from tfm.folders.model_folder import ModelFolder
from tfm.reporting import say
from tfm.steps import ModelSteps, StepsConfig, TextFormat, around_texts
from tfm.text.tags import tagged_language, untagged
from tfm.translation.chain import Chain, Part
from tfm.translation.engines import start_engine
from tfm.translation.steps import Output, Segment, Step
from tfm.vocabulary.subword import shown_tags

if TYPE_CHECKING:
    from tfm.features.attention.maps import AttentionMaps
    from tfm.model.build import Model

_MAX_PIECES = 200  # of a sentence whose attention is shown
_EXPLAINED = 5  # translations of a sentence that the page shows
_MAX_STEPS = 32  # of searches, glossaries and formats, that are kept


def _ignore(_: str) -> None:
    """Drop a warning that quotes a user's text, which must not be in the log."""


class ServedModel:
    """A loaded model, and the thread that computes with it.

    All that is needed of its folder and of the glossary's file is read here: they may be removed or
    replaced afterwards.

    Attributes:
        engine: What computes, and why; torch also computes what CTranslate2 does not support.
    """

    def __init__(
        self,
        path: Path,
        search: Values,
        *,
        config: ServeConfig,
        inference: InferenceConfig,
        steps: StepsConfig,
    ) -> None:
        self.folder = ModelFolder.open(path)
        self.info = self.folder.info
        self.name = path.resolve().name
        if self.info.task == "parsing":
            raise UsageError(f"{self.folder} is a parser: tfm serve needs a model that translates")
        self.search = SearchConfig.for_model(self.info.search, search)
        if self.search.search != "beam" or self.search.mbr is not None:
            raise UsageError(
                f"the search of {self.folder} is not beam search, which tfm serve needs: change "
                "the recipe of its dataset"
            )
        self.vocabulary = self.folder.vocabulary
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"tfm {self.folder}")
        # OpenMP's number of threads belongs to the thread that sets it.
        engine, self.engine = self.thread.submit(
            start_engine, [self.folder], self.search, inference, serves=True
        ).result()
        self._inference, self._steps_config = inference, steps
        self.has_glossary = steps.glossary is not None
        glossary = None
        if steps.glossary is not None:
            path = existing_file(Path(steps.glossary))
            glossary = read_terms(path, self.info.source, self.info.target)
        self._model_steps = ModelSteps(
            info=self.info,
            folder=self.folder,
            aligner=Align.of(self.folder, None, inference.device, records=False).hold(),
            glossary=glossary,
            notify=_ignore,
        )
        self.steps = lru_cache(_MAX_STEPS)(self._new_steps)
        self.max_pieces = min(_MAX_PIECES, engine.limits.max_positions or _MAX_PIECES)
        self._chain = Chain(engine=engine, vocabulary=self.vocabulary, notify=_ignore)
        self.queue = TranslationQueue(
            self._translate,
            self.thread,
            batch_characters=config.batch_characters,
            max_requests=config.max_requests,
        )
        # The first of each takes longer; the batch shows whether the model supports the settings.
        for source in self.info.source.split("+"):
            Part.of([Segment(1, "A. B.")], self.steps(self.search, (), "text", source))
        *_, config_of_pair = next(self.pairs())
        if config_of_pair.tag is None:
            self.vocabulary.check_tag(".", f"text for {self.folder}", say)
        self.thread.submit(self._translate, ["."], LineConfig(config_of_pair)).result()

    def _translate(self, lines: Sequence[str], config: LineConfig) -> list[list[Output]]:
        """Return the `n_best` translations of each line, best first; in the model's thread."""
        segments = [Segment(number, line, config.prefix) for number, line in enumerate(lines, 1)]
        found = self._chain.run([segments], config.search, self.steps(config.search, config.terms))
        return [n_best for _, outputs in found for n_best in outputs]

    def _new_steps(
        self,
        search: SearchConfig,
        terms: Terms = (),
        format: TextFormat = "lines",  # noqa: A002
        source: str | None = None,
    ) -> list[Step]:
        """Return the steps around a search, with the terms of a request before the server's."""
        info = replace(self.info, source=source or self.info.source)
        config = replace(self._steps_config, format=format)
        return replace(self._model_steps, info=info).around(search, config, terms=dict(terms))

    def pieces(self, source: str, target: str, tag: str | None) -> tuple[list[int], list[int]]:
        """Return the pieces of a sentence and its translation, to show their attention."""
        source, target = self.vocabulary.clean([source, target])
        if tag is not None:
            is_tag = self.vocabulary.source.has_tag
            source = f"{tag} {untagged(source, tag, is_tag, place='the sentence')}"
        [source_ids] = self.vocabulary.source.encode([source])
        [target_ids] = self.vocabulary.target.encode([target])
        for side, ids in (("sentence", source_ids), ("translation", target_ids)):
            if len(ids) >= self.max_pieces:
                raise DataError(
                    f"the {side} has {len(ids):,} pieces, but attention is shown for less than "
                    f"{self.max_pieces} pieces: shorten it"
                )
        return source_ids, target_ids

    def attention(self, source: list[int], target: list[int]) -> "AttentionMaps":
        """Return the cross-attention between the words of two sentences; in the model's thread."""
        from tfm.features.attention.maps import attention_maps

        return attention_maps(self._model, self.vocabulary, source, target)["cross"].by_words()

    @cached_property
    def _model(self) -> "Model":
        """The model with plain attention, whose weights can be recorded."""
        from tfm.machine.compute import choose_compute

        compute = choose_compute(self._inference.device, self._inference.precision)
        return self.folder.model().to(compute.device).eval()

    def pairs(self) -> Iterator[tuple[str, str, SearchConfig]]:
        """Yield each source and target language with the settings of the search."""
        targets = self.info.target.split("+")
        for target in targets:
            tags = (tag for tag in self.vocabulary.tags if tagged_language(tag) == target)
            own = next(tags, f"<2{target}>")
            tag = own if len(targets) > 1 or own in self.vocabulary.tags else None
            if tag is not None and not self.vocabulary.source.has_tag(tag):
                known = self.vocabulary.tags or self.vocabulary.source.tags()
                raise UsageError(
                    f"{self.folder} translates to {self.info.target}, but has no tag {tag} that "
                    "chooses the language: tfm serve needs one tag for each; the model has "
                    f"{shown_tags(known) or 'none'}"
                )
            for source in self.info.source.split("+"):
                yield source, target, replace(self.search, tag=tag)


@dataclass(frozen=True, eq=False)
class Route:
    """A direction of translation, with the model and the settings of its search."""

    model: ServedModel
    source: str
    target: str
    search: SearchConfig

    async def translate(
        self, texts: Sequence[str], asked: TranslationRequest
    ) -> list[list[Output]]:
        """Return the translations of some texts of a request, the best first, with their parts.

        Documents of other formats than text have one translation.
        """
        # Not in the event loop, which other requests wait for.
        parts = await asyncio.to_thread(lambda: [self._part(text, asked.format) for text in texts])
        lines = [segment.source for part in parts for segment in part.segments]
        if asked.prefix and len(lines) != 1:
            raise UsageError(f"prefix is for a single sentence, but q has {len(lines):,}")
        config = self._line_config(asked, n_best=asked.num_alternatives + 1)
        outputs = iter(await self.model.queue.translate(lines, config))
        found = [(part, list(islice(outputs, len(part.segments)))) for part in parts]

        def finished() -> list[list[Output]]:
            return [translations for part, each in found for translations in part.finish(each)]

        if asked.format == "text":
            return finished()
        loop = asyncio.get_running_loop()  # marks are placed by an alignment, which is computed
        return await loop.run_in_executor(self.model.thread, finished)

    def _line_config(self, asked: TranslationRequest, *, n_best: int) -> LineConfig:
        return LineConfig(replace(self.search, n_best=n_best), asked.terms, asked.prefix or None)

    async def explain(
        self, line: str, asked: TranslationRequest
    ) -> "tuple[list[Output], AttentionMaps]":
        """Return the best translations of a sentence, and the attention between words of one.

        With a prefix, even an empty one, all but the first differ in the token after it, unless a
        glossary needs another search.
        """
        config = self._line_config(asked, n_best=min(_EXPLAINED, self.search.beam_size))
        [found] = await self.model.queue.translate([line], config)
        if asked.prefix is not None and not asked.terms and not self.model.has_glossary:
            search = replace(
                self.search,
                beam_size=_EXPLAINED,
                num_groups=_EXPLAINED,
                n_best=_EXPLAINED,
                diversity_strength=1000.0,
                diversity_steps=1,
            )
            [others] = await self.model.queue.translate([line], replace(config, search=search))
            found = [found[0], *(each for each in others if each.text != found[0].text)]
        pieces = self.model.pieces(line, asked.translation or found[0].text, self.search.tag)
        loop = asyncio.get_running_loop()
        maps = await loop.run_in_executor(self.model.thread, self.model.attention, *pieces)
        return found, maps

    def sentences(self, text: str) -> list[str]:
        """Return the sentences of a text."""
        return [segment.source for segment in self._part(text).segments]

    def _part(self, text: str, format: TextFormat = "text") -> Part:  # noqa: A002
        steps = self.model.steps(self.search, (), format, self.source)
        return Part.of([Segment(1, text)], around_texts(steps))


def routes_of(models: Sequence[ServedModel]) -> Mapping[tuple[str, str], Route]:
    """Return the route of each pair of languages."""
    routes: dict[tuple[str, str], Route] = {}
    for model in models:
        for source, target, search in model.pairs():
            route = Route(model, source, target, search)
            other = routes.setdefault((source, target), route)
            if other.model is not model:
                raise UsageError(
                    f"{other.model.folder} and {model.folder} both translate from {source} to "
                    f"{target}: tfm serve needs one model for each pair of languages"
                )
    return routes
