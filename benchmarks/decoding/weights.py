"""Read tfm's weights into models of other libraries, in the format of `compare.py`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Maximum difference of log probabilities in fp32, for rounding in different kernels.
_TOLERANCE = 1e-3


class Shape(NamedTuple):
    """The sizes of a model."""

    vocab_size: int
    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    d_ff: int
    num_heads: int


class Example(NamedTuple):
    """A sentence pair with tfm's log probabilities."""

    source: Tensor  # [1, S] token ids, ending in EOS
    target_input: Tensor  # [1, T] token ids, starting with BOS
    log_probs: Tensor  # [T, V] of the next token


class StoredModel(NamedTuple):
    """A model of tfm."""

    shape: Shape
    norm: str  # "pre" or "post"
    tied_embeddings: str  # "three-way", "two-way" or "none"
    weights: dict[str, Tensor]  # by tfm's names; tied weights are stored under each name
    positions: Tensor  # [num_positions, d_model] positional encoding
    examples: list[Example]


def write_model(path: Path, model: StoredModel) -> None:
    """Write a model in a format that can be read without tfm."""
    torch.save({name: _plain(value) for name, value in model._asdict().items()}, path)


def read_model(setup: Path, *, norm: str) -> StoredModel:
    """Read the model, which must have three-way tied embeddings.

    Args:
        setup: Folder with the files of `compare.py`.
        norm: The position of layer normalization that the library supports.
    """
    stored: dict[str, Any] = torch.load(setup / "model.pt", weights_only=True)
    stored["shape"] = Shape(**stored["shape"])
    stored["examples"] = [Example(**each) for each in stored["examples"]]
    if stored["norm"] != norm:
        raise SystemExit(f"the model is {stored['norm']}-norm, but this library is {norm}-norm")
    if stored["tied_embeddings"] != "three-way":
        raise SystemExit(f"the embeddings are tied {stored['tied_embeddings']}, not three-way")
    return StoredModel(**stored)


def projections(weights: dict[str, Tensor], name: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the "query", "key", "value" and "output" projections of the attention `name`.

    Args:
        weights: All weights.
        name: The name of the attention.

    Yields:
        Name, [d, d_model] weight and [d] bias.
    """
    slices = (weights[f"{name}.input.{kind}"].chunk(3) for kind in ("weight", "bias"))
    yield from zip(("query", "key", "value"), *slices, strict=True)
    yield "output", weights[f"{name}.output.weight"], weights[f"{name}.output.bias"]


def check_against_tfm(model: StoredModel, log_probs: Callable[[Example], Tensor]) -> None:
    """Exit unless another model computes tfm's log probabilities.

    Args:
        model: The model of tfm.
        log_probs: Returns the other model's [T, V] log probabilities of an example.
    """
    with torch.inference_mode():
        differences = [
            (log_probs(each).float() - each.log_probs).abs().max().item() for each in model.examples
        ]
    print(f"maximum difference of log probabilities to tfm: {max(differences):.2g}")
    if not max(differences) < _TOLERANCE:
        raise SystemExit(f"the log probabilities differ from tfm's by {max(differences):.2g}")


def _plain(value: Any) -> Any:
    """Convert named tuples to dicts, because torch.load rejects classes."""
    if isinstance(value, Shape | Example):
        return value._asdict()
    return [_plain(each) for each in value] if isinstance(value, list) else value
