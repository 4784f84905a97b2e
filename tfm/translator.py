"""Translator: text in, text out."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tfm.config import DeviceName, Precision, SearchConfig
from tfm.data.subword import EOS, PAD, SubwordModel, Vocabulary
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.model.build import Model, evaluation_mode, new_model
from tfm.runtime.checkpoint import ModelInfo, find_model, load_info, load_weights
from tfm.runtime.device import Compute, choose_compute
from tfm.runtime.reporting import say
from tfm.search import search
from tfm.search.forced import ForcedOutput, forced_decoding
from tfm.search.hypothesis import Hypothesis
from tfm.search.model import Ensemble, SearchableModel


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One translation of a sentence.

    Attributes:
        text: Plain text.
        score: Length-normalised log probability, by which translations are ranked.
        log_prob: Log probability in nats.
        proven: Whether exact search proved that no text has a better score; None of other searches.
    """

    text: str
    score: float
    log_prob: float
    proven: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ScoredTarget:
    """A translation that was given, as the model sees it.

    Attributes:
        text: Plain text.
        score: Length-normalised log probability.
        log_prob: Log probability in nats, that of the end included.
        pieces: The pieces that it is made of, and the end.
        piece_log_probs: Log probability in nats of each, given those before.
    """

    text: str
    score: float
    log_prob: float
    pieces: tuple[str, ...]
    piece_log_probs: tuple[float, ...]


class Translator:
    """Translates plain text with one model or an ensemble.

    Args:
        models: At least one model, on the device.
        vocabulary: The vocabulary of all of them.
        compute: Device and arithmetic.
        default_search: How to search where nobody says otherwise.
    """

    def __init__(
        self,
        models: Sequence[Model],
        vocabulary: Vocabulary,
        compute: Compute,
        *,
        default_search: SearchConfig | None = None,
    ) -> None:
        self._models = models
        self._model: SearchableModel = models[0] if len(models) == 1 else Ensemble(models)
        self._vocabulary = vocabulary
        self._compute = compute
        self._default_search = default_search or SearchConfig()

    @classmethod
    def load(
        cls,
        path: Path | str,
        *more_paths: Path | str,
        device: DeviceName = "auto",
        precision: Precision = "auto",
    ) -> "Translator":
        """Read models from disk.

        Args:
            path: A model or run folder.
            *more_paths: Others, which make an ensemble with it.
            device: Where to compute.
            precision: Arithmetic of matrix products.

        Raises:
            CheckpointError: A folder holds no sound model, or models differ in vocabulary.
        """
        compute = choose_compute(device, precision)
        folders = [find_model(Path(folder)) for folder in (path, *more_paths)]
        infos = [load_info(folder) for folder in folders]
        vocabularies = [Vocabulary.load(folder) for folder in folders]
        models = []
        for folder, info, vocabulary in zip(folders, infos, vocabularies, strict=True):
            for other in (vocabulary.fingerprint, vocabularies[0].fingerprint):
                if other != info.fingerprint:
                    raise CheckpointError(
                        f"{folder} was trained with subword model {info.fingerprint[:8]}, not "
                        f"{other[:8]}: models translate only with their own"
                    )
            models.append(load_model(folder, info).to(compute.device))
        default_search = SearchConfig.for_model(infos[0].search, {})
        return cls(models, vocabularies[0], compute, default_search=default_search)

    def translate(self, lines: Iterable[str], config: SearchConfig | None = None) -> list[str]:
        """Translate sentences.

        Args:
            lines: Plain text, a sentence each; empty ones stay empty.
            config: How to search; as suits the model if not given.

        Returns:
            The best translation of each.
        """
        return [best[0].text for best in self.search(lines, config)]

    def search(
        self,
        lines: Iterable[str],
        config: SearchConfig | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
    ) -> list[list[Translation]]:
        """Translate sentences, with scores and alternatives.

        A prefix is cut into pieces by itself, and the translation goes on after its last piece,
        which may be within a word: after "Haus" may come "tür". Pieces carry the space before their
        word, so a prefix should not end in one.

        Args:
            lines: Plain text, a sentence each; empty ones stay empty, unless they have a prefix.
            config: How to search; as suits the model if not given.
            prefixes: For each sentence the text that its translations must start with; empty where
                they are free.
            first_line: Number of the first line, for messages and for what is drawn at random.

        Returns:
            For each sentence its `n_best` translations, best first.

        Raises:
            UsageError: The settings contradict each other.
            DataError: A line or prefix has more tokens than the model has positions, or there are
                more prefixes than lines, or fewer.
        """
        config = self._checked(config)
        sources = self._encode_sources(list(lines), config, first_line)
        given = [""] * len(sources) if prefixes is None else prefixes
        forced = self._encode_targets(
            [text if text.strip() else "" for text in given], "prefix", first_line
        )
        _check_same_number(len(sources), len(forced), "prefixes")
        found = [[Translation(text="", score=0.0, log_prob=0.0)] for _ in sources]
        wanted = [i for i, ids in enumerate(sources) if ids or forced[i]]
        with self._inference():
            for batch in _batches(wanted, map(len, sources), max_tokens=config.max_tokens):
                results = search(
                    self._model,
                    *self._padded([sources[i] for i in batch]),
                    config,
                    line_numbers=[first_line + i for i in batch],
                    prefixes=[forced[i] for i in batch],
                )
                for index, hypotheses in zip(batch, results, strict=True):
                    found[index] = self._translations(hypotheses)
        return found

    def score_targets(
        self,
        lines: Iterable[str],
        targets: Sequence[str],
        config: SearchConfig | None = None,
        *,
        first_line: int = 1,
    ) -> list[ScoredTarget]:
        """Compute how probable given translations are.

        They are cut into pieces as any text is. A translation that a search found has here the
        search's log probability and score, unless it was spelled with other pieces.

        Args:
            lines: Plain text, a sentence each.
            targets: A translation of each.
            config: Length penalty, longest source and size of batches; as suits the model if not
                given.
            first_line: Number of the first line, for messages.

        Raises:
            DataError: A line or target has more tokens than the model has positions, or there are
                more targets than lines, or fewer.
        """
        config = self._checked(config)
        sources = self._encode_sources(list(lines), config, first_line)
        forced = self._encode_targets(targets, "target", first_line)
        _check_same_number(len(sources), len(forced), "targets")
        sizes = [max(len(ids), len(target)) for ids, target in zip(sources, forced, strict=True)]
        found: dict[int, ForcedOutput] = {}
        with self._inference():
            for batch in _batches(range(len(sizes)), sizes, max_tokens=config.max_tokens):
                source, lengths = self._padded([sources[i] for i in batch])
                outputs = forced_decoding(
                    self._models, source, lengths, [forced[i] for i in batch], config
                )
                found.update(zip(batch, outputs, strict=True))
        return [
            _scored(text, found[index], self._vocabulary.target)
            for index, text in enumerate(targets)
        ]

    @contextlib.contextmanager
    def _inference(self) -> Iterator[None]:
        """Compute without dropout and gradients, in the chosen arithmetic."""
        with evaluation_mode(self._models), torch.inference_mode(), self._compute.autocast():
            yield

    def _checked(self, config: SearchConfig | None) -> SearchConfig:
        config = config or self._default_search
        if problems := list(config.problems()):
            raise UsageError("; ".join(problems))
        return config

    def _encode_sources(
        self, lines: list[str], config: SearchConfig, first_line: int
    ) -> list[list[int]]:
        sources = self._vocabulary.source.encode(lines)
        limit = config.max_source_length
        for number, (line, ids) in enumerate(zip(lines, sources, strict=True), first_line):
            if not line.strip():
                ids.clear()
            if len(ids) > limit:
                say(
                    f'warning: line {number:,} ("{line[:40]}…") has {len(ids):,} tokens: '
                    f"cut after {limit:,}"
                )
                del ids[limit:]
            self._check_positions(
                ids, f"line {number:,}", "shorten it, or let max_source_length cut it"
            )
        return sources

    def _encode_targets(self, texts: Sequence[str], name: str, first_line: int) -> list[list[int]]:
        targets = self._vocabulary.target.encode(texts)
        for number, ids in enumerate(targets, first_line):
            self._check_positions(ids, f"{name} {number:,}", "shorten it")
        return targets

    def _check_positions(self, ids: list[int], name: str, remedy: str) -> None:
        limit = self._model.max_positions
        if limit is not None and len(ids) + 1 > limit:
            raise DataError(
                f"{name} has {len(ids):,} tokens, but the model learned positions for at most "
                f"{limit - 1:,} and the end: {remedy}"
            )

    def _padded(self, sources: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Sources with EOS as [B, S] token ids, padded at the end, and their [B] lengths."""
        rows = [torch.tensor([*ids, EOS]) for ids in sources]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        lengths = torch.tensor([len(row) for row in rows])
        return padded.to(self._compute.device), lengths.to(self._compute.device)

    def _translations(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        texts = self._vocabulary.target.decode([found.tokens for found in hypotheses])
        return [
            Translation(text=text, score=found.score, log_prob=found.log_prob, proven=found.proven)
            for text, found in zip(texts, hypotheses, strict=True)
        ]


def load_model(folder: Path, info: ModelInfo) -> Model:
    """Build a model and read its weights.

    Raises:
        CheckpointError: The weights are damaged, or not those of this model.
    """
    source_size, target_size = info.vocab_sizes
    model = new_model(info.run.model, source_vocab_size=source_size, target_vocab_size=target_size)
    weights = load_weights(folder)
    parameters = dict(model.named_parameters())
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    if shapes != {name: parameter.shape for name, parameter in parameters.items()}:
        raise CheckpointError(f"{folder}: weights and config.json are not of one model")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return model


def _batches(
    indices: Sequence[int], sizes: Iterable[int], *, max_tokens: int
) -> Iterator[list[int]]:
    """Put indices into batches of at most so many tokens, padding and ends included.

    The longest come first: what memory is needed is known from the start.

    Args:
        indices: What to put into batches.
        sizes: The tokens of every index there is.
        max_tokens: Size of a batch, if it has more than one index.
    """
    tokens = [size + 1 for size in sizes]
    order = sorted(indices, key=lambda index: -tokens[index])
    start = 0
    while start < len(order):
        end = start + max(1, max_tokens // tokens[order[start]])
        yield order[start:end]
        start = end


def _scored(text: str, output: ForcedOutput, subword_model: SubwordModel) -> ScoredTarget:
    hypothesis = output.hypothesis
    return ScoredTarget(
        text=text,
        score=hypothesis.score,
        log_prob=hypothesis.log_prob,
        pieces=tuple(subword_model.pieces([*hypothesis.tokens, EOS])),
        piece_log_probs=output.token_log_probs,
    )


def _check_same_number(num_lines: int, num_others: int, name: str) -> None:
    if num_lines != num_others:
        raise DataError(f"there are {num_lines:,} lines, but {num_others:,} {name}: give as many")
