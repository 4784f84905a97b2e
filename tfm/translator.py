"""Translator: text in, text out."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tfm.config import DeviceName, Precision, SearchConfig
from tfm.data.subword import EOS, PAD, Vocabulary
from tfm.errors import CheckpointError
from tfm.model.transformer import Transformer
from tfm.runtime.checkpoint import ModelInfo, find_model, load_info, load_weights
from tfm.runtime.device import Compute, choose_compute
from tfm.runtime.reporting import say
from tfm.search.beam import beam_search
from tfm.search.model import Ensemble


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One translation of a sentence.

    Attributes:
        text: Plain text.
        score: Length-normalised log probability, by which translations are ranked.
        log_prob: Log probability in nats.
    """

    text: str
    score: float
    log_prob: float


class Translator:
    """Translates plain text with one model or an ensemble.

    Args:
        models: At least one model, on the device.
        vocabulary: The vocabulary of all of them.
        compute: Device and arithmetic.
    """

    def __init__(
        self, models: Sequence[Transformer], vocabulary: Vocabulary, compute: Compute
    ) -> None:
        self._models = models
        self._vocabulary = vocabulary
        self._compute = compute

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
        vocabularies = [Vocabulary.load(folder) for folder in folders]
        models = []
        for folder, vocabulary in zip(folders, vocabularies, strict=True):
            info = load_info(folder)
            for other in (vocabulary.fingerprint, vocabularies[0].fingerprint):
                if other != info.fingerprint:
                    raise CheckpointError(
                        f"{folder} was trained with subword model {info.fingerprint[:8]}, not "
                        f"{other[:8]}: models translate only with their own"
                    )
            models.append(load_model(folder, info).to(compute.device))
        return cls(models, vocabularies[0], compute)

    def translate(self, lines: Iterable[str], config: SearchConfig | None = None) -> list[str]:
        """Translate sentences.

        Args:
            lines: Plain text, a sentence each; empty ones stay empty.
            config: Beam, penalty and limits; the paper's if not given.

        Returns:
            The best translation of each.
        """
        return [best[0].text for best in self.search(lines, config)]

    def search(
        self, lines: Iterable[str], config: SearchConfig | None = None
    ) -> list[list[Translation]]:
        """Translate sentences, with scores and alternatives.

        Args:
            lines: Plain text, a sentence each; empty ones stay empty.
            config: Beam, penalty, limits and number of alternatives.

        Returns:
            For each sentence its `n_best` translations, best first.
        """
        config = config or SearchConfig()
        sources = self._encode(list(lines), config)
        # Longest first: what memory the batch needs is known from the start.
        order = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: -len(sources[i]))
        found = [[Translation(text="", score=0.0, log_prob=0.0)] for _ in sources]
        start = 0
        with _evaluation(self._models), torch.inference_mode(), self._compute.autocast():
            while start < len(order):
                size = max(1, config.max_tokens // (len(sources[order[start]]) + 1))
                batch = order[start : start + size]
                translations = self._search_batch([sources[i] for i in batch], config)
                for index, best in zip(batch, translations, strict=True):
                    found[index] = best
                start += size
        return found

    def _encode(self, lines: list[str], config: SearchConfig) -> list[list[int]]:
        sources = self._vocabulary.source.encode(lines)
        limit = config.max_source_length
        for line, ids in zip(lines, sources, strict=True):
            if not line.strip():
                ids.clear()
            if len(ids) > limit:
                say(f'warning: "{line[:40]}…" has {len(ids):,} tokens: cut after {limit:,}')
                del ids[limit:]
        return sources

    def _search_batch(
        self, sources: list[list[int]], config: SearchConfig
    ) -> list[list[Translation]]:
        source, lengths = _padded(sources, self._compute.device)
        if len(self._models) == 1:
            results = beam_search(self._models[0], source, lengths, config)
        else:
            results = beam_search(Ensemble(self._models), source, lengths, config)
        hypotheses = [hypothesis for best in results for hypothesis in best]
        texts = iter(self._vocabulary.target.decode([h.tokens for h in hypotheses]))
        return [
            [Translation(text=next(texts), score=h.score, log_prob=h.log_prob) for h in best]
            for best in results
        ]


def load_model(folder: Path, info: ModelInfo) -> Transformer:
    """Build a model and read its weights.

    Raises:
        CheckpointError: The weights are damaged, or not those of this model.
    """
    source_size, target_size = info.vocab_sizes
    model = Transformer(
        info.run.model, source_vocab_size=source_size, target_vocab_size=target_size
    )
    weights = load_weights(folder)
    parameters = dict(model.named_parameters())
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    if shapes != {name: parameter.shape for name, parameter in parameters.items()}:
        raise CheckpointError(f"{folder}: weights and config.json are not of one model")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return model


def _padded(sources: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Sources with EOS as [B, S] token ids, padded at the end, and their [B] lengths."""
    rows = [torch.tensor([*ids, EOS]) for ids in sources]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return padded.to(device), torch.tensor([len(row) for row in rows], device=device)


@contextlib.contextmanager
def _evaluation(models: Sequence[Transformer]) -> Iterator[None]:
    """Switch dropout off for a while."""
    were_training = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, training in zip(models, were_training, strict=True):
            model.train(training)
