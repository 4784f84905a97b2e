"""What a model looks like: the Transformer's settings and the recurrent baseline's."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from tfm.config.schema import Settings, setting


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings):
    """What every encoder-decoder model has."""

    section: ClassVar[str] = "model"

    num_encoder_layers: int = setting(6, "Layers of the encoder.", at_least=1)
    num_decoder_layers: int = setting(6, "Layers of the decoder.", at_least=1)
    d_model: int = setting(512, "Width of embeddings and layer outputs.", at_least=2)
    dropout: float = setting(0.1, "Dropout on each sub-layer's output.", at_least=0, at_most=0.9)
    embedding_dropout: float = setting(
        0.1, "Dropout on embeddings, positions added.", at_least=0, at_most=0.9
    )
    attention_dropout: float = setting(
        0.1, "Dropout on attention weights.", at_least=0, at_most=0.9
    )
    tied_embeddings: Literal["three-way", "two-way", "none"] = setting(
        "three-way",
        "Embeddings that are one: source, target and output; target and output; or none.",
    )
    attention: Literal["dot-product", "additive"] = setting(
        "dot-product",
        "How a query and a key are compared: qk / √d_k (§3.2.1), or vᵀ tanh(q + k) "
        "(Bahdanau et al. 2015).",
    )


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The Transformer (§3); the defaults are the paper's base model."""

    d_ff: int = setting(2048, "Inner width of the feed-forward sub-layers.", at_least=1)
    num_heads: int = setting(8, "Attention heads.", at_least=1)
    d_k: int | None = setting(
        None, "Width of a head's queries and keys; d_model / num_heads if unset.", at_least=1
    )
    d_v: int | None = setting(
        None, "Width of a head's values; d_model / num_heads if unset.", at_least=1
    )
    relu_dropout: float = setting(0.0, "Dropout after the ReLU.", at_least=0, at_most=0.9)
    norm: Literal["post", "pre"] = setting(
        "post", "Layer normalization after the residual sum (post, the paper's) or before."
    )
    attention_window: int | None = setting(
        None,
        "Self-attention sees so many neighbors, itself among them (table 1, r); all if unset.",
        at_least=1,
    )
    learned_positions: int | None = setting(
        None,
        "Learn so many positions (table 3, row E): no sentence may be longer; sinusoids if unset.",
        at_least=2,
    )

    def _conflicts(self) -> Iterator[str]:
        if self.d_model % 2 and self.learned_positions is None:
            yield f"d_model is {self.d_model}, but sinusoids need an even width"
        shares_width = self.d_k is None or self.d_v is None
        if shares_width and self.num_heads > 0 and self.d_model % self.num_heads:
            yield (
                f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}: "
                "set d_k and d_v, or another number of heads"
            )

    @property
    def key_width(self) -> int:
        """d_k: width of one head's queries and keys."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v: width of one head's values."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """The recurrent baseline: encoder and decoder with attention between them."""

    cell: Literal["lstm", "gru"] = setting("lstm", "Of --arch rnn: the recurrent cell.")
    input_feeding: bool = setting(
        True,
        "Of --arch rnn: feed what was attended to into the next step (Luong et al. 2015, §3.3).",
    )

    def _conflicts(self) -> Iterator[str]:
        if self.d_model % 2:
            yield f"d_model is {self.d_model}, but each direction of the encoder needs half of it"
