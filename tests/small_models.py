"""Small random models and batches for them, and descriptions of models."""

import pytest
import torch
from torch import Tensor, nn

from tfm.config import ModelConfig, RecurrentConfig, TransformerConfig, run_config
from tfm.folders.model_info import ModelInfo
from tfm.model.build import Model, new_model
from tfm.vocabulary.subword import PAD

SHAPE = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8}
NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
# Transformers of all kinds of parts.
TRANSFORMERS = {
    "post-norm": {},
    "pre-norm": {"norm": "pre"},
    "widths": {"d_k": 3, "d_v": 5},
    "window": {"attention_window": 3},
    "additive": {"attention": "additive"},
    "additive window": {"attention": "additive", "attention_window": 2},
    "learned positions": {"learned_positions": 20},
    "bias, no ties": {"output_bias": True, "tied_embeddings": "none"},
    "gelu": {"activation": "gelu"},
    "silu": {"activation": "silu", "norm": "pre"},
}
EVERY_TRANSFORMER = pytest.mark.parametrize("changes", TRANSFORMERS.values(), ids=TRANSFORMERS)


def transformer(vocab_size: int, seed: int = 0, *, sharpness: float = 1.0, **changes) -> Model:
    """Return a Transformer; the greater the sharpness, the less uniform its probabilities."""
    config = TransformerConfig(**{**SHAPE, "d_ff": 16, "num_heads": 2, **changes})
    return _random_model(config, vocab_size, seed, sharpness)


def recurrent(vocab_size: int, seed: int = 0, *, sharpness: float = 1.0, **changes) -> Model:
    """Return a recurrent model."""
    return _random_model(RecurrentConfig(**{**SHAPE, **changes}), vocab_size, seed, sharpness)


def _random_model(config: ModelConfig, vocab_size: int, seed: int, sharpness: float) -> Model:
    torch.manual_seed(seed)
    model = new_model(config, (vocab_size, vocab_size)).eval()
    with torch.no_grad():
        model.output_weight.mul_(sharpness)
    return model


def moved(model: Model, low: float = 0.5, high: float = 1.5) -> Model:
    """Move biases and norms from their initial values, which would hide mistakes."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, low, high)
    return model


def random_batch(
    vocab_size: int, lengths: list[int], target_length: int, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random [B, S] sources, their lengths, and [B, T] targets."""
    torch.manual_seed(seed)
    source = torch.randint(4, vocab_size, (len(lengths), max(lengths)))
    target = torch.randint(4, vocab_size, (len(lengths), target_length))
    return source, torch.tensor(lengths), target


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
