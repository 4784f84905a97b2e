"""Translating plain text with trained models: the library's interface."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, overload

import torch

from tfm.backends.plain import InferenceBackend
from tfm.config import InferenceConfig, SearchConfig, Table, by_section, settings_from, settings_to
from tfm.config.arguments import Line, argument
from tfm.config.schema import shown
from tfm.data.background import joined_at_exit
from tfm.data.languages import bleu_tokenizer, target_language
from tfm.data.shortlist import Shortlist
from tfm.data.subword import EOS, SubwordModel, Vocabulary
from tfm.device.compute import Compute, set_num_threads
from tfm.errors import UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import Calibration
from tfm.inference.batches import (
    Chunk,
    ChunkT,
    LineError,
    Output,
    SentenceBatch,
    SentenceEncoder,
    by_line,
)
from tfm.inference.engine import Engine
from tfm.inference.lines import LineEngine, ScoredTarget, Translation
from tfm.inference.workers import compute_ahead
from tfm.model.build import Model
from tfm.reporting import say
from tfm.search.active import Hypothesis
from tfm.search.forced import ForcedOutput
from tfm.storage.paths import existing_file


class Translator:
    """Translates plain text with one model or an ensemble.

    The methods take settings of [search] by name, as `tfm generate` takes them as flags:
    `translate(lines, beam_size=8)`, or `beam=8` as in `--beam 8`. They replace the model's own
    defaults. A `SearchConfig` replaces all of them, and excludes settings by name.

    Args:
        models: At least one model, on the device; or the engine or processes that have loaded them.
        vocabulary: The models' shared vocabulary.
        compute: Device and arithmetic of the models; fp32 on their device if None.
        default_search: Search settings of calls without their own.
        backend: Optimizes copies of the models; by default the device's inference backend.
        calibration: That of the only model, for the confidence in its translations.
        shortlist: The target pieces that source pieces can become, for searches with `shortlist`.
        target: The target language, for searches with `mbr` by BLEU.
        notify: Receives warnings that quote lines.
    """

    def __init__(
        self,
        models: Sequence[Model] | LineEngine,
        vocabulary: Vocabulary,
        compute: Compute | None = None,
        *,
        default_search: SearchConfig | None = None,
        backend: InferenceBackend | None = None,
        calibration: Calibration | None = None,
        shortlist: Shortlist | None = None,
        target: str = "",
        notify: Callable[[str], None] = say,
    ) -> None:
        if isinstance(models, Sequence):
            models = Engine(
                models,
                compute or Compute(models[0].output_weight.device, torch.float32),
                backend=backend,
                vocabulary=lambda: vocabulary,
                shortlist=shortlist,
            )
        self.engine: LineEngine = models
        self.vocabulary = vocabulary
        self._calibration = calibration
        self._target = target
        self._default_search = default_search or SearchConfig()
        self._notify = notify

    @classmethod
    def load(cls, path: Path | str, *more_paths: Path | str, **settings: Any) -> "Translator":
        """Load one model, or an ensemble of several.

        Args:
            path: A model or run folder.
            *more_paths: Further members of the ensemble.
            **settings: Settings of [inference]: device, precision, kernels, threads. The number of
                threads is that of torch in this process, and stays as it is if unset.

        Raises:
            CheckpointError: A folder has no valid model, or models differ in task, languages or
                vocabulary.
            UsageError: A folder does not exist, a setting is wrong, or this machine does not
                support it.
        """
        given = by_section([InferenceConfig], settings)
        inference = settings_from(InferenceConfig, given.get("inference", {}))
        paths = [argument("path", each, Path) for each in (path, *more_paths)]
        folders = [ModelFolder.open(each) for each in paths]
        if inference.threads is not None:
            set_num_threads(inference.threads)
        return cls.of(folders, Engine.load(folders, inference))

    @classmethod
    def of(
        cls,
        folders: Sequence[ModelFolder],
        engine: LineEngine,
        *,
        notify: Callable[[str], None] = say,
    ) -> "Translator":
        """Return a translator with the vocabulary and settings of folders, and their engine."""
        first = folders[0]
        return cls(
            engine,
            first.vocabulary,
            default_search=SearchConfig.for_model(first.info.search, {}),
            calibration=first.info.calibration if len(folders) == 1 else None,
            target=first.info.target,
            notify=notify,
        )

    @overload
    def translate(self, lines: str, config: SearchConfig | None = None, **settings: Any) -> str: ...

    @overload
    def translate(
        self, lines: Iterable[str], config: SearchConfig | None = None, **settings: Any
    ) -> list[str]: ...

    def translate(
        self, lines: str | Iterable[str], config: SearchConfig | None = None, **settings: Any
    ) -> str | list[str]:
        """Translate sentences, whose white space is normalized as that of the training text was.

        Args:
            lines: Plain text, one sentence per line, or a single sentence; empty lines stay empty.
            config: Search settings; the model's defaults if None.
            **settings: Settings of [search] by name, instead of `config`.

        Returns:
            The best translation of each line, with line ends replaced by spaces; a single string
            if one was given.

        Raises:
            UsageError: A setting is unknown, wrong or without effect.
        """
        if isinstance(lines, str):
            return self.translate([lines], config, **settings)[0]
        return [best[0].text for best in self.search(lines, config, **settings)]

    def search(
        self,
        lines: Iterable[str],
        config: SearchConfig | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
        **settings: Any,
    ) -> list[list[Translation]]:
        """Translate sentences, with scores and alternatives.

        Translations begin with the text of their prefix. Its last word may be continued: "Hun" and
        "Hund" become "Hunde", and "Haus" may become "Haustür", unless white space follows it.

        Args:
            lines: Plain text, one sentence per line; empty lines without prefix stay empty.
            config: Search settings; the model's defaults if None.
            prefixes: A forced beginning of each line's translations; empty ones force nothing.
            first_line: Number of the first line, for messages and the random seeds of sampling.
            **settings: Settings of [search] by name, instead of `config`.

        Returns:
            The `n_best` translations of each line, best first.

        Raises:
            UsageError: A setting is unknown, wrong or without effect.
            DataError: A line or prefix has more tokens than the model accepts, or the numbers of
                lines and prefixes differ.
        """
        chunk = _chunk(lines, first_line, prefixes=prefixes)
        config = self._merge(config, settings, SearchConfig.for_model)
        [(_, found)] = self.translate_chunks([chunk], config)
        return found

    def score_targets(
        self,
        lines: Iterable[str],
        targets: Sequence[str],
        config: SearchConfig | None = None,
        *,
        first_line: int = 1,
        **settings: Any,
    ) -> list[ScoredTarget]:
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
        chunk = _chunk(lines, first_line, targets=targets)
        config = self._merge(config, settings, SearchConfig.for_targets)
        [(_, scored)] = self.score_chunks([chunk], config)
        return scored

    def translate_chunks(
        self, chunks: Iterable[ChunkT], config: SearchConfig, *, valid_first: bool = False
    ) -> Iterator[tuple[ChunkT, list[list[Translation]]]]:
        """Translate chunks of lines.

        Samples have no confidence, nor do searches with a shortlist, whose probabilities are those
        of fewer pieces.

        Yields:
            Each chunk, in order, and for each of its lines the `n_best` translations, best first,
            or the one that `mbr` chooses among them.
        """
        is_sampled = config.search == "sample"
        calibration = None if is_sampled or config.shortlist else self._calibration
        nothing = [Translation("", score=0.0, log_prob=0.0)]
        for chunk, hypotheses in self.search_chunks(chunks, config, valid_first=valid_first):
            found = [
                _translations(hypotheses[number], self.vocabulary, calibration)
                if number in hypotheses
                else nothing
                for number in chunk.line_numbers
            ]
            if config.mbr is not None:
                from tfm.inference.mbr import most_useful  # here, because it loads sacreBLEU

                tokenizer = bleu_tokenizer(target_language(self._target, config.tag))
                choose = partial(most_useful, are_samples=is_sampled, tokenizer=tokenizer)
                found = [[choose(each, config.mbr)] for each in found]
            yield chunk, found

    def search_chunks(
        self, chunks: Iterable[ChunkT], config: SearchConfig, *, valid_first: bool = False
    ) -> Iterator[tuple[ChunkT, dict[int, list[Hypothesis]]]]:
        """Translate chunks of lines to token ids.

        With `valid_first`, the lines before one that cannot be translated are translated before its
        error.

        Yields:
            Each chunk, in order, and the `n_best` hypotheses of its lines by their numbers, best
            first; lines without text have none.
        """
        encoder = SentenceEncoder(self.vocabulary, self.engine.limits, config, self._notify)
        batched = self._batched(encoder.to_search, chunks, valid_first=valid_first)
        return self._compute(partial(self.engine.search, config=config), batched)

    def score_chunks(
        self, chunks: Iterable[ChunkT], config: SearchConfig, *, valid_first: bool = False
    ) -> Iterator[tuple[ChunkT, list[ScoredTarget]]]:
        """Compute the probability of each line's target; `valid_first` as in `search_chunks`.

        Yields:
            Each chunk, in order, and the scored target of each of its lines.
        """
        encoder = SentenceEncoder(self.vocabulary, self.engine.limits, config, self._notify)
        batched = self._batched(encoder.to_score, chunks, valid_first=valid_first)
        score = partial(self.engine.score, config=config)
        for chunk, found in self._compute(score, batched):
            lines = map(self.vocabulary.normalization.output, chunk.paired_lines or [])
            texts = zip(chunk.line_numbers, lines, strict=True)
            target = self.vocabulary.target
            yield chunk, [_scored(text, found[number], target) for number, text in texts]

    def _batched(
        self,
        encode: Callable[[ChunkT], list[SentenceBatch]],
        chunks: Iterable[ChunkT],
        *,
        valid_first: bool,
    ) -> Iterator[tuple[ChunkT, list[SentenceBatch]]]:
        """Yield chunks with their batches; if `valid_first`, the lines before an error first."""
        if self.engine.limits.num_workers > 1:  # a daemon thread reads ahead, and SentencePiece
            encode = joined_at_exit(encode)  # is in C++
        for chunk in chunks:
            try:
                batches = encode(chunk)
            except LineError as error:
                before = chunk.before(error.number)
                if valid_first and before.columns[0]:
                    yield from self._batched(encode, [before], valid_first=True)
                raise
            yield chunk, batches

    def _compute(
        self,
        compute: Callable[[SentenceBatch], list[Output]],
        batched: Iterable[tuple[ChunkT, list[SentenceBatch]]],
    ) -> Iterator[tuple[ChunkT, dict[int, Output]]]:
        """Yield each chunk, in order, with the outputs of its lines by their numbers."""
        num_workers = self.engine.limits.num_workers
        if num_workers > 1:
            computed = compute_ahead(compute, batched, num_workers=num_workers)
        else:
            computed = ((chunk, each, list(map(compute, each))) for chunk, each in batched)
        for chunk, batches, outputs in computed:
            yield chunk, by_line(batches, outputs)

    def _merge(
        self,
        config: SearchConfig | None,
        settings: Table,
        merged: Callable[[Table, Table], SearchConfig],
    ) -> SearchConfig:
        """Return the config, or the settings merged over the model's defaults; check both."""
        if not isinstance(config, SearchConfig | None):
            raise UsageError(f"config is {shown(config)}, but must be a SearchConfig")
        given = by_section([SearchConfig], settings, {"prefixes": "prefixes"})
        if config is not None and given:
            raise UsageError("a SearchConfig and settings by name exclude each other: give one")
        if config is None:
            config = merged(settings_to(self._default_search), given.get("search", {}))
        if config.ban is not None:
            existing_file(argument("ban", config.ban, Path))
        return settings_from(SearchConfig, settings_to(config))


def _chunk(lines: Iterable[str], first_line: int, **paired: Iterable[str] | None) -> Chunk:
    """Return the lines as a chunk, with those of the only other argument by name, if given."""
    first_line = argument("first_line", first_line, int)
    [(name, other)] = paired.items()
    texts = argument("lines", lines, tuple[Line, ...])
    paired_lines = argument(name, other, tuple[Line, ...] | None)
    line_numbers = range(first_line, first_line + len(texts))
    return Chunk(line_numbers=line_numbers, lines=texts, paired_lines=paired_lines)


def by_length(lines: Sequence[str], indices: Iterable[int], *, size: int) -> Iterator[Chunk]:
    """Yield chunks of lines, the longest first, so that those of a chunk have similar lengths.

    They are numbered from 1 on in the order of all lines, of which `indices` selects some.
    """
    order = sorted(indices, key=lambda index: -len(lines[index]))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield Chunk(line_numbers=[i + 1 for i in chosen], lines=[lines[i] for i in chosen])


def _translations(
    hypotheses: list[Hypothesis], vocabulary: Vocabulary, calibration: Calibration | None
) -> list[Translation]:
    texts = vocabulary.outputs([found.tokens for found in hypotheses])
    return [
        Translation(
            text,
            found.score,
            found.log_prob,
            found.proven,
            None
            if calibration is None
            else calibration.confidence(found.log_prob, len(found.tokens) + 1),
            vocabulary=found.vocabulary,
        )
        for text, found in zip(texts, hypotheses, strict=True)
    ]


def _scored(text: str, output: ForcedOutput, subword_model: SubwordModel) -> ScoredTarget:
    hypothesis = output.hypothesis
    pieces = tuple(subword_model.pieces([*hypothesis.tokens, EOS]))
    return ScoredTarget(text, hypothesis.score, hypothesis.log_prob, pieces, output.token_log_probs)
