"""Map a Transformer's weights to a CTranslate2 specification."""

import math
from typing import Any

import torch
from ctranslate2.specs import (
    TransformerDecoderSpec,
    TransformerEncoderSpec,
    TransformerSpec,
    common_spec,
)
from torch import Tensor, nn

from tfm.config import ModelConfig, TransformerConfig
from tfm.errors import UsageError
from tfm.model.attention import sinusoidal_encoding
from tfm.vocabulary.subword import BOS, EOS, UNK, Vocabulary

# The number of exported sinusoidal positions: twice tfm's default maximum source length.
_NUM_POSITIONS = 2_048
_ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "silu": common_spec.Activation.SWISH,
}


def check_supported(config: ModelConfig) -> TransformerConfig:
    """Return the settings of a model; UsageError names all that CTranslate2 does not support."""
    unsupported = [] if isinstance(config, TransformerConfig) else ["arch rnn"]
    if config.attention != "dot-product":
        unsupported.append(f"attention {config.attention}")
    if isinstance(config, TransformerConfig):
        if config.attention_window is not None:
            unsupported.append(f"attention_window {config.attention_window}")
        if not unsupported:
            return config
    raise UsageError(
        f"CTranslate2 does not support {', '.join(unsupported)}: translate with tfm generate"
    )


def transformer_spec(
    model: nn.Module, config: TransformerConfig, vocabulary: Vocabulary
) -> TransformerSpec:
    """Build CTranslate2's specification of a float32 model on the CPU, with the same logits.

    The settings must have passed `check_supported`.
    """
    weights = _Weights(model, config)
    shape = {
        "num_heads": config.num_heads,
        "head_dim": weights.head_width,
        "pre_norm": config.norm == "pre",
        "activation": _ACTIVATIONS[config.activation],
    }
    spec = TransformerSpec(
        TransformerEncoderSpec(config.num_encoder_layers, **shape),
        TransformerDecoderSpec(config.num_decoder_layers, **shape),
    )
    weights.fill_stack(spec.encoder, "encoder", spec.encoder.embeddings[0], "source_embedding")
    weights.fill_stack(spec.decoder, "decoder", spec.decoder.embeddings, "target_embedding")
    spec.decoder.projection.weight = weights["output_weight"]
    if config.output_bias:
        spec.decoder.projection.bias = weights["output_bias"]
    source, target = vocabulary.source, vocabulary.target
    spec.register_source_vocabulary(source.pieces(range(len(source))))
    spec.register_target_vocabulary(target.pieces(range(len(target))))
    bos, eos, unk = target.pieces([BOS, EOS, UNK])
    spec.config.bos_token = spec.config.decoder_start_token = bos
    spec.config.eos_token, spec.config.unk_token = eos, unk
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = weights.layer_norm_epsilon
    return spec


class _Weights:
    """Copies the weights of a model into a specification.

    In CTranslate2, queries, keys and values have the same width: narrower heads are padded with
    zeros, which change no dot product.
    """

    def __init__(self, model: nn.Module, config: TransformerConfig) -> None:
        self._by_name = dict(model.named_parameters(remove_duplicate=False))
        self._config = config
        self.head_width = max(config.key_width, config.value_width)
        [self.layer_norm_epsilon] = {
            module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._by_name[name].detach()

    def fill_stack(self, spec: Any, stack: str, embedding_spec: Any, embedding: str) -> None:
        """Copy the encoder or decoder and its embedding, which CTranslate2 scales by √d_model."""
        embedding_spec.weight = self[f"{embedding}.weight"]
        if self._config.learned_positions is not None:
            positions = self[f"{embedding}.positions"]
        else:  # CTranslate2's own sinusoids count from 1 and have another order
            positions = sinusoidal_encoding(torch.arange(_NUM_POSITIONS), self._config.d_model)
        spec.position_encodings.encodings = positions
        if self._config.norm == "pre":
            self._fill_norm(spec.layer_norm, f"{stack}_norm")
        for index, layer in enumerate(spec.layer):
            self._fill_layer(layer, f"{stack}.{index}")

    def _fill_layer(self, spec: Any, layer: str) -> None:
        attentions = {"self_attention": spec.self_attention}
        if hasattr(spec, "attention"):
            attentions["cross_attention"] = spec.attention
        for name, attention in attentions.items():
            self._fill_attention(attention, f"{layer}.{name}")
            self._fill_norm(attention.layer_norm, f"{layer}.{name}_residual.norm")
        self._fill_norm(spec.ffn.layer_norm, f"{layer}.feed_forward_residual.norm")
        self._fill_linear(spec.ffn.linear_0, f"{layer}.feed_forward.inner")
        self._fill_linear(spec.ffn.linear_1, f"{layer}.feed_forward.outer")

    def _fill_attention(self, spec: Any, name: str) -> None:
        config = self._config
        widths = (config.key_width, config.key_width, config.value_width)
        rows = [config.num_heads * width for width in widths]
        *inputs, output = spec.linear
        for parameter in ("weight", "bias"):
            queries, keys, values = map(
                self._pad_heads, torch.split(self[f"{name}.input.{parameter}"], rows)
            )
            # Self-attention has one matrix for all, cross-attention one for each input.
            joined = [[queries, keys, values]] if len(inputs) == 1 else [[queries], [keys, values]]
            for linear, matrices in zip(inputs, joined, strict=True):
                setattr(linear, parameter, torch.cat(matrices))
        output.weight = self._pad_heads(self[f"{name}.output.weight"].mT).mT
        output.bias = self[f"{name}.output.bias"]
        spec.queries_scale = 1 / math.sqrt(config.key_width)

    def _pad_heads(self, rows: Tensor) -> Tensor:
        """Pad [h · d, …] with zeros to [h · head_width, …]."""
        heads = rows.reshape(self._config.num_heads, -1, *rows.shape[1:])
        padded = rows.new_zeros(self._config.num_heads, self.head_width, *rows.shape[1:])
        padded[:, : heads.size(1)] = heads
        return padded.flatten(0, 1)

    def _fill_linear(self, spec: Any, name: str) -> None:
        spec.weight, spec.bias = self[f"{name}.weight"], self[f"{name}.bias"]

    def _fill_norm(self, spec: Any, name: str) -> None:
        spec.gamma, spec.beta = self[f"{name}.weight"], self[f"{name}.bias"]
