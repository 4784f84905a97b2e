"""Compare an exported model with its original on the same lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path

import torch

from tfm.config import SearchConfig
from tfm.data.manifest import Manifest
from tfm.data.subword import Vocabulary
from tfm.data.text import read_lines
from tfm.errors import CheckpointError, DataError
from tfm.inference.engine import load_vocabulary
from tfm.inference.translator import Translator
from tfm.storage.checkpoint.model_folder import ModelInfo, load_info

_BATCH_TOKENS = 4_096
# Far above the rounding differences of float32 sums, far below the difference of two models.
_MAX_NATS_PER_TOKEN = 1e-2


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A line that tfm (`ours`) and CTranslate2 (`theirs`) translate differently.

    At the maximum length, CTranslate2 omits EOS, but tfm appends it and counts its probability.
    """

    line_number: int  # counted from 1
    ours: str
    theirs: str
    gain: float  # log probability of theirs minus that of ours, in nats
    is_cut: bool  # theirs has the maximum length


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The comparison of both models on the same lines."""

    num_lines: int  # that are not empty
    differences: Sequence[Difference]
    max_error: float  # of the log probability of a token of tfm's translations, in nats
    beam_size: int

    def require_close(self, out_dir: Path) -> None:
        """Raise CheckpointError if probabilities differ by more than rounding."""
        if not self.max_error <= _MAX_NATS_PER_TOKEN:  # NaN is not close either
            raise CheckpointError(
                f"{out_dir} is not written: log probabilities of CTranslate2 differ from tfm's by "
                f"up to {self.max_error:.3g} nats per token: try another version of CTranslate2"
            )


def lines_to_check(info: ModelInfo, number: int) -> list[str]:
    """Return the first lines of the test set of a model; DataError if there is no test set."""
    data_dir = Path(info.data_dir)
    lines: list[str] = []
    if data_dir.is_dir():
        manifest = Manifest.load(data_dir)
        path = manifest.text_path("test", info.source)
        if path.is_file() and manifest.source == info.source:
            lines = [line.decode() for line in islice(read_lines(path, strict=True), number)]
    if not any(line.strip() for line in lines):
        raise DataError(
            f"there is no test set from {info.source} in {data_dir}, the model's dataset: leave "
            "--check out"
        )
    return lines


def compare(model_dir: Path, export_dir: Path, lines: Sequence[str]) -> Agreement:
    """Translate lines with tfm in fp32 and with CTranslate2, with equivalent settings.

    Empty lines are ignored. Without length penalty, which the two define differently, both stop
    once no better hypothesis is possible. PAD, BOS and UNK are not forbidden to CTranslate2, which
    would renormalize the other probabilities; a trained model does not produce them.
    """
    info = load_info(model_dir)
    cleaned = load_vocabulary(model_dir, info).clean(lines)
    numbered = {number: line for number, line in enumerate(cleaned, start=1) if line}
    lines = list(numbered.values())
    equivalent = {"search": "beam", "length_penalty": 0.0, "num_groups": 1, "n_best": 1}
    config = SearchConfig.for_model(info.search, equivalent)
    learned_positions = getattr(info.run.model, "learned_positions", None)
    translator = Translator.load(model_dir, device="cpu", precision="fp32")
    ours = [best for [best] in translator.search(lines, config)]
    exported = _ExportedModel(export_dir, config, max_positions=learned_positions)
    return Agreement(
        num_lines=len(lines),
        differences=[
            Difference(
                line_number=number,
                ours=our.text,
                theirs=their,
                gain=log_prob - our.log_prob,
                is_cut=is_cut,
            )
            for number, our, (their, log_prob, is_cut) in zip(
                numbered, ours, exported.translate(lines), strict=True
            )
            if our.text != their
        ],
        max_error=exported.max_error(lines, [our.text for our in ours], translator),
        beam_size=config.beam_size,
    )


class _ExportedModel:
    """Runs an exported model with CTranslate2 on the CPU."""

    def __init__(self, folder: Path, config: SearchConfig, *, max_positions: int | None) -> None:
        import ctranslate2

        self._translator = ctranslate2.Translator(
            str(folder), device="cpu", intra_threads=torch.get_num_threads()
        )
        self._vocabulary = Vocabulary.load(folder)
        target_pieces = self._vocabulary.target.pieces(range(len(self._vocabulary.target)))
        self._token_ids = {piece: token_id for token_id, piece in enumerate(target_pieces)}
        self._config = config
        self._max_positions = max_positions

    def translate(self, lines: Sequence[str]) -> list[tuple[str, float, bool]]:
        """Return the text and log probability of each translation, and whether it was cut off."""
        sources = self._pieces(lines)
        found: dict[int, tuple[str, float, bool]] = {}
        # CTranslate2 has one maximum length per call, tfm one per sentence.
        for length in {len(source) for source in sources}:
            indices = [index for index, source in enumerate(sources) if len(source) == length]
            limit = length + self._config.max_extra_length
            if self._max_positions is not None:
                limit = min(limit, self._max_positions - 1)
            results = self._translator.translate_batch(
                [sources[index] for index in indices],
                beam_size=self._config.beam_size,
                length_penalty=0.0,
                min_decoding_length=self._config.min_length,
                max_input_length=0,
                max_decoding_length=limit,
                return_scores=True,
                max_batch_size=_BATCH_TOKENS,
                batch_type="tokens",
            )
            for index, result in zip(indices, results, strict=True):
                pieces = result.hypotheses[0]
                [text] = self._vocabulary.target.decode([[self._token_ids[p] for p in pieces]])
                found[index] = text.replace("\n", " "), result.scores[0], len(pieces) == limit
        return [found[index] for index in range(len(lines))]

    def max_error(
        self, lines: Sequence[str], texts: Sequence[str], translator: Translator
    ) -> float:
        """Return the maximum difference to tfm in the log probability of a token of texts."""
        limit = self._max_positions
        num_pieces = map(len, self._vocabulary.target.encode(texts))
        # Encoding a translation may give more pieces than the search, and too many to score.
        fits = [limit is None or number < limit for number in num_pieces]
        lines, texts = list(compress(lines, fits)), list(compress(texts, fits))
        ours = translator.score_targets(lines, texts, self._config)
        theirs = self._translator.score_batch(
            self._pieces(lines),
            [list(our.pieces[:-1]) for our in ours],
            max_input_length=0,
            max_batch_size=_BATCH_TOKENS,
            batch_type="tokens",
        )
        errors = [
            abs(our_log_prob - float(their_log_prob))
            for our, their in zip(ours, theirs, strict=True)
            for our_log_prob, their_log_prob in zip(
                our.piece_log_probs, their.log_probs, strict=True
            )
        ]
        return float(torch.tensor([0.0, *errors]).max())  # unlike Python's max, propagates NaN

    def _pieces(self, lines: Sequence[str]) -> list[list[str]]:
        source, limit = self._vocabulary.source, self._config.max_source_length
        return [source.pieces(token_ids[:limit]) for token_ids in source.encode(lines)]
