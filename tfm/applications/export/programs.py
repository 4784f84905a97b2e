"""The programs that run exported models, to compare them with tfm."""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tfm.applications.export import Format
from tfm.config import SearchConfig
from tfm.vocabulary.subword import BOS, EOS, PAD, UNK, Vocabulary

Array = npt.NDArray[np.float32]

_BATCH_TOKENS = 4_096


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A translation."""

    token_ids: list[int]  # without BOS and EOS
    log_prob: float  # in nats
    is_cut: bool = False  # it has the maximum length, and no EOS


class Program(Protocol):
    """Runs an exported model on the CPU, without length penalty."""

    name: str

    def translate(self, lines: Sequence[str], limit: int) -> list[Translation]:
        """Translate lines that are not empty to at most `limit` tokens, EOS not counted."""

    def log_probs(self, lines: Sequence[str], targets: Sequence[list[int]]) -> list[list[float]]:
        """Return the log probabilities of the tokens and the EOS of each target, in nats."""


class CTranslate2:
    """CTranslate2, given subword pieces."""

    name = "CTranslate2"

    def __init__(self, folder: Path, vocabulary: Vocabulary, config: SearchConfig) -> None:
        import ctranslate2

        self._translator = ctranslate2.Translator(
            str(folder), device="cpu", intra_threads=torch.get_num_threads()
        )
        self._vocabulary = vocabulary
        target = vocabulary.target
        self._token_ids = {p: number for number, p in enumerate(target.pieces(range(len(target))))}
        self._config = config

    def translate(self, lines: Sequence[str], limit: int) -> list[Translation]:
        """Translate as `Program.translate` does."""
        results = self._translator.translate_batch(
            self._pieces(lines),
            beam_size=self._config.beam_size,
            length_penalty=0.0,
            min_decoding_length=self._config.min_length,
            max_input_length=0,
            max_decoding_length=limit,
            return_scores=True,
            max_batch_size=_BATCH_TOKENS,
            batch_type="tokens",
        )
        return [
            Translation(
                token_ids=[self._token_ids[piece] for piece in result.hypotheses[0]],
                log_prob=result.scores[0],
                is_cut=len(result.hypotheses[0]) == limit,
            )
            for result in results
        ]

    def log_probs(self, lines: Sequence[str], targets: Sequence[list[int]]) -> list[list[float]]:
        """Score as `Program.log_probs` does."""
        results = self._translator.score_batch(
            self._pieces(lines),
            [self._vocabulary.target.pieces(token_ids) for token_ids in targets],
            max_input_length=0,
            max_batch_size=_BATCH_TOKENS,
            batch_type="tokens",
        )
        return [[float(log_prob) for log_prob in result.log_probs] for result in results]

    def _pieces(self, lines: Sequence[str]) -> list[list[str]]:
        source, limit = self._vocabulary.source, self._config.max_source_length
        return [source.pieces(token_ids[:limit]) for token_ids in source.encode(lines)]


class Transformers:
    """Hugging Face's transformers, given plain text."""

    name = "transformers"

    def __init__(self, folder: Path, vocabulary: Vocabulary, config: SearchConfig) -> None:
        transformers: Any = importlib.import_module("transformers")
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._config = config

    def translate(self, lines: Sequence[str], limit: int) -> list[Translation]:
        """Translate as `Program.translate` does."""
        size = max(1, _BATCH_TOKENS // limit)
        batches = [lines[start : start + size] for start in range(0, len(lines), size)]

        def end_at_limit(token_ids: Tensor, log_probs: Tensor) -> Tensor:
            if token_ids.size(1) <= limit:  # with BOS
                return log_probs
            others = torch.arange(log_probs.size(1)) != EOS
            return log_probs.masked_fill(others, -math.inf)

        outputs = [
            ids.tolist()
            for batch in batches
            for ids in self._model.generate(
                **self._encode(batch),
                num_beams=self._config.beam_size,
                length_penalty=0.0,
                max_new_tokens=limit + 1,
                logits_processor=[end_at_limit],
            )
        ]
        targets = [output[1 : output.index(EOS)] for output in outputs]
        return [
            Translation(token_ids=token_ids, log_prob=sum(log_probs))
            for token_ids, log_probs in zip(targets, self.log_probs(lines, targets), strict=True)
        ]

    def log_probs(self, lines: Sequence[str], targets: Sequence[list[int]]) -> list[list[float]]:
        """Score as `Program.log_probs` does."""
        return [
            self._log_probs(line, token_ids) for line, token_ids in zip(lines, targets, strict=True)
        ]

    @torch.inference_mode()
    def _log_probs(self, line: str, token_ids: list[int]) -> list[float]:
        inputs = torch.tensor([[BOS, *token_ids]])
        logits = self._model(**self._encode([line]), decoder_input_ids=inputs).logits[0]
        labels = torch.tensor([[*token_ids, EOS]])
        log_probs: list[float] = logits.log_softmax(-1).gather(1, labels.mT).flatten().tolist()
        return log_probs

    def _encode(self, lines: Sequence[str]) -> Any:
        return self._tokenizer(list(lines), return_tensors="pt", padding=True, truncation=True)


class OnnxRuntime:
    """ONNX Runtime with greedy search, given token ids."""

    name = "ONNX Runtime"

    def __init__(self, folder: Path, vocabulary: Vocabulary, config: SearchConfig) -> None:
        import onnxruntime

        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])
            for name in ("encoder.onnx", "decoder.onnx")
        )
        self._source = vocabulary.source
        self._config = config

    def translate(self, lines: Sequence[str], limit: int) -> list[Translation]:
        """Translate as `Program.translate` does."""
        return [self._translate(self._start(line), limit) for line in lines]

    def log_probs(self, lines: Sequence[str], targets: Sequence[list[int]]) -> list[list[float]]:
        """Score as `Program.log_probs` does."""
        found = []
        for line, token_ids in zip(lines, targets, strict=True):
            step = self._start(line)
            pairs = zip([BOS, *token_ids], [*token_ids, EOS], strict=True)
            found.append([float(step(token)[following]) for token, following in pairs])
        return found

    def _translate(self, step: Callable[[int], Array], limit: int) -> Translation:
        tokens, log_prob = [BOS], 0.0
        while tokens[-1] != EOS:
            log_probs = step(tokens[-1])
            allowed = log_probs.copy()
            allowed[[PAD, BOS, UNK]] = -np.inf
            if len(tokens) <= self._config.min_length:
                allowed[EOS] = -np.inf
            tokens.append(int(allowed.argmax()) if len(tokens) <= limit else EOS)
            log_prob += float(log_probs[tokens[-1]])
        return Translation(token_ids=tokens[1:-1], log_prob=log_prob)

    def _start(self, line: str) -> Callable[[int], Array]:
        """Encode a line; return the step from a token to the log probabilities [V] of the next."""
        [token_ids] = self._source.encode([line])
        source = np.array([[*token_ids[: self._config.max_source_length], EOS]])
        lengths = np.array([source.shape[1]])
        keys, values = self._encoder.run(None, {"source": source, "lengths": lengths})
        past = [keys[:, :, :, :0], values[:, :, :, :0]]

        def step(token: int) -> Array:
            inputs = {
                "tokens": np.array([token]),
                "lengths": lengths,
                "source_keys": keys,
                "source_values": values,
                "past_keys": past[0],
                "past_values": past[1],
            }
            [logits], *past[:] = self._decoder.run(None, inputs)
            shifted = logits - logits.max()
            log_probs: Array = shifted - np.log(np.exp(shifted).sum())
            return log_probs

        return step


# By the formats that can be run: a package of Argos Translate holds a model for CTranslate2.
PROGRAMS: Mapping[Format, type[CTranslate2 | Transformers | OnnxRuntime]] = {
    "ctranslate2": CTranslate2,
    "huggingface": Transformers,
    "onnx": OnnxRuntime,
}
