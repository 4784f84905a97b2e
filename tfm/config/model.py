"""Model settings: the Transformer and the recurrent baseline."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tfm.config.schema import Problem, Settings, count, setting

# Far beyond any model of sentences: a mistyped number is refused before memory is reserved for it.
_MAX_LAYERS, _MAX_WIDTH, _MAX_POSITIONS = 1000, 65_536, 100_000


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings, section="model"):
    """Settings that all encoder-decoder models share."""

    num_encoder_layers: int = count(6, "Number of encoder layers.", most=_MAX_LAYERS)
    num_decoder_layers: int = count(6, "Number of decoder layers.", most=_MAX_LAYERS)
    d_model: int = setting(512, "Width of embeddings and layer outputs.", limits=(2, _MAX_WIDTH))
    dropout: float = setting(0.1, "Dropout on each sub-layer's output.", limits=(0, 0.9))
    embedding_dropout: float = setting(
        0.1, "Dropout on the sum of embeddings and positions.", limits=(0, 0.9)
    )
    attention_dropout: float = setting(0.1, "Dropout on attention weights.", limits=(0, 0.9))
    tied_embeddings: Literal["three-way", "two-way", "none"] = setting(
        "three-way",
        "Which embeddings share a matrix: source, target and output, or only target and output.",
    )
    attention: Literal["dot-product", "additive"] = setting(
        "dot-product",
        "Score of query and key: q·k / √d_k (§3.2.1), or vᵀ tanh(q + k) (Bahdanau et al. 2015).",
    )


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The Transformer (§3); the defaults are the paper's base model."""

    d_ff: int = count(2048, "Inner width of feed-forward sub-layers.", most=16 * _MAX_WIDTH)
    num_heads: int = count(8, "Number of attention heads.", most=_MAX_WIDTH)
    d_k: int | None = count(
        None, "Width of queries and keys per head; d_model / num_heads if unset.", most=_MAX_WIDTH
    )
    d_v: int | None = count(
        None, "Width of values per head; d_model / num_heads if unset.", most=_MAX_WIDTH
    )
    activation: Literal["relu", "gelu", "silu"] = setting(
        "relu", "Activation function of feed-forward sub-layers; ReLU in the paper."
    )
    relu_dropout: float = setting(
        0.0, "Dropout after the activation of feed-forward sub-layers.", limits=(0, 0.9)
    )
    norm: Literal["post", "pre"] = setting(
        "post",
        "Layer norm after each residual sum (post, as in the paper) or before sub-layers (pre).",
    )
    attention_window: int | None = count(
        None,
        "Restrict self-attention to the N nearest positions (table 1, r); all if unset.",
        most=_MAX_POSITIONS,
    )
    learned_positions: int | None = setting(
        None,
        "Learn embeddings of N positions, the longest sentence; sinusoids if unset (table 3, E).",
        limits=(2, _MAX_POSITIONS),
    )
    output_bias: bool = setting(
        False, "Add a learned bias to the logits, as imported models have; none in the paper."
    )

    def _contradictions(self) -> Iterator[Problem]:
        if self.d_model % 2 and self.learned_positions is None:
            text = f"d_model is {self.d_model}, but must be even: sinusoids come in pairs"
            yield Problem("d_model", text)
        splits_d_model = self.d_k is None or self.d_v is None
        if splits_d_model and self.num_heads > 0 and self.d_model % self.num_heads:
            yield Problem(
                "d_model",
                f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}: "
                "change num_heads, or set d_k and d_v",
            )

    @property
    def key_width(self) -> int:
        """Width of the queries and keys of one head: d_k."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """Width of the values of one head: d_v."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """The recurrent baseline: an encoder-decoder with attention."""

    cell: Literal["lstm", "gru"] = setting("lstm", "For --arch rnn: type of recurrent cell.")
    input_feeding: bool = setting(
        True,
        "For --arch rnn: feed the attention output into the next step (Luong et al. 2015, §3.3).",
    )

    source_attention: Literal["soft", "hard", "local-m", "local-p"] = setting(
        "soft",
        "For --arch rnn: attend to all source tokens (soft), one (hard), or those near a position.",
    )
    local_window: int = count(
        10,
        "For --arch rnn: local attention to N tokens on each side (Luong et al. 2015, §3.2, D).",
        most=_MAX_POSITIONS,
        only={"source_attention": ["local-m", "local-p"]},
    )
    encoder_width: int | None = setting(
        None,
        "For --arch rnn: width of the encoder's outputs; d_model if unset.",
        limits=(2, _MAX_WIDTH),
        only={"attention": ["additive"]},
    )

    def _contradictions(self) -> Iterator[Problem]:
        if self.encoded_width % 2:
            name = "d_model" if self.encoder_width is None else "encoder_width"
            text = f"{name} is {self.encoded_width}, but must be even: encoder directions halve it"
            yield Problem(name, text)

    @property
    def encoded_width(self) -> int:
        """Width of the encoder's outputs."""
        return self.d_model if self.encoder_width is None else self.encoder_width
