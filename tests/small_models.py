"""Small random models and padded batches for the tests of searches, and descriptions of models."""

import torch
from torch import Tensor

from tfm.config import ModelConfig, RecurrentConfig, TransformerConfig, run_config
from tfm.data.subword import PAD
from tfm.folders.model_info import ModelInfo
from tfm.model.build import Model, new_model

SHAPE = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8}


def transformer(vocab_size: int, seed: int = 0, *, sharpness: float = 1.0, **changes) -> Model:
    """Return a Transformer; the greater the sharpness, the less uniform its probabilities."""
    config = TransformerConfig(**{**SHAPE, "d_ff": 16, "num_heads": 2, **changes})
    return _random_model(config, vocab_size, seed, sharpness)


def recurrent(vocab_size: int, seed: int = 0, *, sharpness: float = 1.0, **changes) -> Model:
    """Return a recurrent model."""
    return _random_model(RecurrentConfig(**{**SHAPE, **changes}), vocab_size, seed, sharpness)


def _random_model(config: ModelConfig, vocab_size: int, seed: int, sharpness: float) -> Model:
    torch.manual_seed(seed)
    model = new_model(config, source_vocab_size=vocab_size, target_vocab_size=vocab_size).eval()
    with torch.no_grad():
        model.output_weight.mul_(sharpness)
    return model


def batch_of(sources: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return [B, S] padded token ids, and [B] lengths."""
    rows = [torch.tensor(source) for source in sources]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return padded, torch.tensor([len(source) for source in sources])


def new_info(step: int = 1, metrics: dict[str, float] | None = None, **training) -> ModelInfo:
    """Return the description of a checkpoint."""
    return ModelInfo(
        run=run_config("base", {"training": training}),
        source="en",
        target="de",
        vocab_sizes=(9, 9),
        fingerprint="f" * 64,
        data_dir="data/x",
        step=step,
        metrics=metrics or {},
    )
