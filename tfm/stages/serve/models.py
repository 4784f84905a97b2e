"""The models of a server: each with its thread, its queue and its languages."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tfm.config import InferenceConfig, SearchConfig, ServeConfig, Table
from tfm.data.tags import untagged
from tfm.errors import DataError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.inference.attention import attention_maps
from tfm.inference.batches import Chunk
from tfm.inference.documents import Piece, split, translated_pieces
from tfm.inference.engine import Engine
from tfm.inference.lines import Translation
from tfm.inference.translator import Translator
from tfm.model.build import Model
from tfm.reporting import say
from tfm.stages.serve.queue import TranslationQueue
from tfm.visualization.attention_maps import AttentionMaps

_MAX_PIECES = 200  # of a sentence whose attention is shown


class ServedModel:
    """A loaded model, and the thread that computes with it.

    Raises:
        CheckpointError: The folder has no valid model.
        UsageError: It is a parser, or does not support the settings.
    """

    def __init__(
        self, path: Path, search: Table, *, config: ServeConfig, inference: InferenceConfig
    ) -> None:
        self.folder = ModelFolder.open(path)
        self.info = self.folder.info
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
        engine = self.thread.submit(Engine.start, [self.folder], inference).result()
        self._device = engine.compute.device
        # The log is no place for the texts of users.
        self._translator = Translator.of([self.folder], engine, notify=lambda _: None)
        self.queue = TranslationQueue(
            self.translate,
            self.thread,
            batch_characters=config.batch_characters,
            max_requests=config.max_requests,
        )
        # The first of each takes longer; the batch shows whether the model supports the settings.
        for source in self.info.source.split("+"):
            split("A. B.", source)
        *_, config_of_pair = next(self.pairs())
        if config_of_pair.tag is None:
            self.vocabulary.check_tag(".", f"text for {self.folder}", say)
        self.thread.submit(self.translate, ["."], config_of_pair).result()

    def translate(self, lines: Sequence[str], config: SearchConfig) -> list[list[Translation]]:
        """Return the `n_best` translations of each line; only in the model's thread."""
        chunk = Chunk(line_numbers=range(1, len(lines) + 1), lines=lines)
        [(_, found)] = self._translator.translate_chunks([chunk], config)
        return found

    def attention(self, source: str, target: str) -> AttentionMaps:
        """Return the cross-attention between the words of two sentences; in the model's thread.

        Raises:
            DataError: One of them is too long.
        """
        sides = ((self.vocabulary.source, source), (self.vocabulary.target, target))
        source_ids, target_ids = (
            model.encode(self.vocabulary.clean([text]))[0] for model, text in sides
        )
        limit = min(_MAX_PIECES, self._model.max_positions or _MAX_PIECES)
        if max(len(source_ids), len(target_ids)) >= limit:
            raise DataError(f"attention is shown for sentences of less than {limit} pieces")
        return attention_maps(self._model, self.vocabulary, source_ids, target_ids)[
            "cross"
        ].by_words()

    @cached_property
    def _model(self) -> Model:
        """The model with plain attention, whose weights can be recorded; loaded when needed."""
        return self.folder.model().to(self._device).eval()

    def pairs(self) -> Iterator[tuple[str, str, SearchConfig]]:
        """Yield each source and target language with the settings of the search.

        Raises:
            UsageError: There are several target languages, but the vocabulary has no tag for one.
        """
        targets = self.info.target.split("+")
        for target in targets:
            own = f"<2{target}>"
            tag = own if len(targets) > 1 or own in self.vocabulary.tags else None
            if tag is not None and not self.vocabulary.source.has_tag(tag):
                raise UsageError(
                    f"{self.folder} translates to {self.info.target}, but has no tag {tag} that "
                    "chooses the language: tfm serve needs one tag for each"
                )
            for source in self.info.source.split("+"):
                yield source, target, replace(self.search, tag=tag)


@dataclass(frozen=True, kw_only=True)
class TranslatedText:
    """A text with the translations of its sentences."""

    source: str  # language code
    target: str
    pieces: list[Piece]
    found: list[list[Translation]]  # of each sentence, the best first

    def texts(self, n_best: int) -> list[str]:
        """Return whole translations, the best first, without repetitions."""
        return list(dict.fromkeys("".join(self._translated(rank)) for rank in range(n_best)))

    def parts(self) -> list[dict[str, Any]]:
        """Return the best translation as the page reads it."""
        return [
            {"source": piece.text, "translation": text, "is_sentence": piece.is_sentence}
            for piece, text in zip(self.pieces, self._translated(0), strict=True)
        ]

    def sentences(self) -> list[str]:
        """Return the sentences that were translated."""
        return [piece.text for piece in self.pieces if piece.is_sentence]

    def _translated(self, rank: int) -> list[str]:
        """Return each piece translated, with the last translation where there are fewer."""
        texts = [each[min(rank, len(each) - 1)].text for each in self.found]
        return translated_pieces(self.pieces, texts, source=self.source, target=self.target)


@dataclass(frozen=True)
class Route:
    """How a text is translated from one language to another."""

    model: ServedModel
    source: str
    target: str
    search: SearchConfig

    async def translate(self, texts: Sequence[str], *, n_best: int) -> list[TranslatedText]:
        """Return the texts with the `n_best` translations of each sentence.

        Raises as `TranslationQueue.translate` does.
        """
        pieces = [split(text, self.source) for text in texts]
        sentences = [[piece.text for piece in each if piece.is_sentence] for each in pieces]
        config = replace(self.search, n_best=n_best)
        found = iter(await self.model.queue.translate(list(chain(*sentences)), config))
        return [
            TranslatedText(
                source=self.source,
                target=self.target,
                pieces=each,
                found=list(islice(found, len(lines))),
            )
            for each, lines in zip(pieces, sentences, strict=True)
        ]

    async def attention(self, source: str, target: str) -> AttentionMaps:
        """Return the cross-attention between the words of a sentence and a translation.

        Raises:
            DataError: One of them is too long.
        """
        if (tag := self.search.tag) is not None:
            is_tag = self.model.vocabulary.source.has_tag
            source = f"{tag} {untagged(source, tag, is_tag, place='the sentence')}"
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.model.thread, self.model.attention, source, target)


def routes_of(models: Sequence[ServedModel]) -> Mapping[tuple[str, str], Route]:
    """Return the route of each pair of languages.

    Raises:
        UsageError: Two models are for the same languages.
    """
    routes: dict[tuple[str, str], Route] = {}
    for model in models:
        for source, target, search in model.pairs():
            other = routes.setdefault((source, target), Route(model, source, target, search))
            if other.model is not model:
                raise UsageError(
                    f"{other.model.folder} and {model.folder} both translate from {source} to "
                    f"{target}: tfm serve needs one model for each pair of languages"
                )
    return routes
