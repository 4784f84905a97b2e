"""tfm's weights, as `compare.py` wrote them, for the models of other libraries."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Of log probabilities in fp32: kernels differ, and so the last bits of their sums.
_TOLERANCE = 1e-3


class Shape(NamedTuple):
    """What a model looks like."""

    vocab_size: int
    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    d_ff: int
    num_heads: int


class Example(NamedTuple):
    """A sentence pair, and what tfm makes of it.

    Attributes:
        source: [1, S] token ids, closed by EOS.
        target_input: [1, T] token ids, opened by BOS.
        log_probs: [T, V] of the next token.
    """

    source: Tensor
    target_input: Tensor
    log_probs: Tensor


class StoredModel(NamedTuple):
    """A model of tfm.

    Attributes:
        shape: What it looks like.
        norm: "pre" or "post".
        tied_embeddings: Which embeddings are one: "three-way", "two-way" or "none".
        weights: All of them, by tfm's names; those that are tied are there under each.
        positions: [num_positions, d_model] what is added to embeddings.
        examples: What it computes.
    """

    shape: Shape
    norm: str
    tied_embeddings: str
    weights: dict[str, Tensor]
    positions: Tensor
    examples: list[Example]


def write_model(path: Path, model: StoredModel) -> None:
    """Store a model, readable without tfm."""
    torch.save({name: _plain(value) for name, value in model._asdict().items()}, path)


def read_model(setup: Path, *, norm: str) -> StoredModel:
    """Read the model that is to be translated with, whose embeddings must all be one.

    Args:
        setup: Folder of what `compare.py` wrote.
        norm: The only place of layer normalization that the library knows.
    """
    stored: dict[str, Any] = torch.load(setup / "model.pt", weights_only=True)
    stored["shape"] = Shape(**stored["shape"])
    stored["examples"] = [Example(**each) for each in stored["examples"]]
    if stored["norm"] != norm:
        raise SystemExit(f"the model is {stored['norm']}-norm, and this library has {norm}-norm")
    if stored["tied_embeddings"] != "three-way":
        raise SystemExit(f"the model's embeddings are not all one: {stored['tied_embeddings']}")
    return StoredModel(**stored)


def projections(weights: dict[str, Tensor], name: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The weight and bias of each projection of an attention, by "query", "key", "value", "output".

    Args:
        weights: All weights.
        name: Of the attention.
    """
    parts = (weights[f"{name}.input.{kind}"].chunk(3) for kind in ("weight", "bias"))
    yield from zip(("query", "key", "value"), *parts, strict=True)
    yield "output", weights[f"{name}.output.weight"], weights[f"{name}.output.bias"]


def check_against_tfm(model: StoredModel, log_probs: Callable[[Example], Tensor]) -> None:
    """See whether another model computes what tfm does.

    Args:
        model: Of tfm.
        log_probs: The other's [T, V] log probabilities of an example.
    """
    with torch.inference_mode():
        differences = [
            (log_probs(each).float() - each.log_probs).abs().max().item() for each in model.examples
        ]
    print(f"largest difference of a log probability to tfm's: {max(differences):.2g}")
    if not max(differences) < _TOLERANCE:
        raise SystemExit(f"its log probabilities are not those of tfm: {max(differences):.2g} off")


def _plain(value: Any) -> Any:
    """Named tuples as dicts, as torch.load lets no classes through."""
    if isinstance(value, Shape | Example):
        return value._asdict()
    return [_plain(each) for each in value] if isinstance(value, list) else value
