"""Write a Transformer as two ONNX files: the encoder, and one step of the decoder."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tfm.config import SearchConfig
from tfm.errors import UsageError
from tfm.model.attention import MultiHeadAttention, sinusoidal_encoding
from tfm.model.build import Model
from tfm.model.cache import DecoderCache, keys_values, split_joint
from tfm.model.packing import Padded
from tfm.model.transformer import Transformer
from tfm.vocabulary.subword import Vocabulary

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"

# Sizes of the example that is traced. They differ, so that none is taken for another one.
_SENTENCES, _SOURCE_TOKENS, _PAST_TOKENS = 3, 5, 4
_MAX_FILE_BYTES = 1 << 31  # of protobuf


def write_onnx(folder: Path, model: Model, search: SearchConfig, vocabulary: Vocabulary) -> None:
    """Write the encoder, the decoder step and the subword models into a folder."""
    model = _supported(model)
    if model.max_positions is None:  # the table must not grow in a traced model
        num_positions = search.max_source_length + search.max_extra_length + 2
        table = sinusoidal_encoding(torch.arange(num_positions), model.output_weight.size(1))
        model.source_embedding.positions = model.target_embedding.positions = table
    model.eval()
    source = torch.full((_SENTENCES, _SOURCE_TOKENS), 3)
    lengths = torch.tensor([_SOURCE_TOKENS, *range(1, _SENTENCES)])
    encoder = _Encoder(model)
    keys, values = encoder(source, lengths)
    _write(
        folder / ENCODER,
        encoder,
        {"source": source, "lengths": lengths},
        ["source_keys", "source_values"],
        {"source": (0, 1), "lengths": (0,)},
    )
    _write(
        folder / DECODER,
        _DecoderStep(model),
        {
            "tokens": torch.full((_SENTENCES,), 3),
            "lengths": lengths,
            "source_keys": keys,
            "source_values": values,
            "past_keys": keys[:, :, :, :_PAST_TOKENS],
            "past_values": values[:, :, :, :_PAST_TOKENS],
        },
        ["logits", "next_keys", "next_values"],
        {
            "tokens": (0,),
            "lengths": (0,),
            **dict.fromkeys(("source_keys", "source_values", "past_keys", "past_values"), (1, 3)),
        },
    )
    for name, content in vocabulary.files().items():
        (folder / name).write_bytes(content)


def _supported(model: Model) -> Transformer:
    num_bytes = sum(tensor.nbytes for tensor in model.parameters())
    if not isinstance(model, Transformer):
        problem = "arch rnn, whose decoder has another state"
    elif next(model.decoder.layers()).self_attention.additive_weight is not None:
        problem = "attention additive, whose sizes depend on the batch"
    elif next(model.decoder.layers()).self_attention.heads.window is not None:
        problem = "attention_window, which shortens the keys at each step"
    elif num_bytes >= _MAX_FILE_BYTES:
        problem = f"weights of {num_bytes:,} bytes: a file holds at most 2 GiB"
    else:
        return model
    raise UsageError(f"the ONNX files cannot express {problem}: translate with tfm generate")


def _write(
    path: Path,
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: list[str],
    varying: Mapping[str, tuple[int, ...]],
) -> None:
    """Trace a module on example inputs with the given dynamic dimensions, and write it."""
    dim = torch.export.Dim
    shapes = {
        name: [dim.DYNAMIC if i in varying[name] else dim.STATIC for i in range(tensor.dim())]
        for name, tensor in inputs.items()
    }
    with _without_notes():
        # Not strict, the number of sentences would become a constant.
        program = torch.export.export(
            module, tuple(inputs.values()), dynamic_shapes=shapes, strict=True
        )
        torch.onnx.export(
            program,
            f=path,
            input_names=list(inputs),
            output_names=outputs,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextlib.contextmanager
def _without_notes() -> Iterator[None]:
    """Hide what the exporter logs about optional packages and optimizations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


class _Encoder(nn.Module):
    """Encodes sources [B, S] of [B] lengths to the keys and values of all decoder layers."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode ids [B, S] to N layers' keys [N, B, h, S, d_k] and values [N, B, h, S, d_v]."""
        encoded = self.model.encode(source, Padded(source.size(1), lengths))
        memory = [
            keys_values(layer.cross_attention, encoded) for layer in self.model.decoder.layers()
        ]
        return torch.stack([keys for keys, _ in memory]), torch.stack([v for _, v in memory])


class _DecoderStep(nn.Module):
    """Decodes the position after T tokens of each of B sentences."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor,
        source_keys: Tensor,
        source_values: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [B, V], and keys and values [N, B, h, T + 1, …] with the new position.

        Args:
            tokens: [B] the newest tokens, at first BOS.
            lengths: [B] numbers of source tokens.
            source_keys: [N, B, h, S, d_k] of the encoder.
            source_values: [N, B, h, S, d_v] of the encoder.
            past_keys: [N, B, h, T, d_k], at first without positions (T = 0).
            past_values: [N, B, h, T, d_v].
        """
        model = self.model
        position = Padded(1, first_position=past_keys.size(3))
        x = model.target_embedding(tokens, position)
        padding = torch.arange(source_keys.size(3)) >= lengths[:, None]
        bias = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)[:, None]
        cache = _Cache(source_keys, source_values, bias, past_keys, past_values)
        for index, layer in enumerate(model.decoder.layers()):
            x = layer.step(x, cache, index)
        logits = model.logits(model.decoder_norm(x))
        return logits, torch.stack(cache.keys), torch.stack(cache.values)


class _Cache:
    """The `LayerCache` of a traced step, which is given its past and returns it."""

    def __init__(
        self,
        source_keys: Tensor,
        source_values: Tensor,
        source_bias: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
    ) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._source = source_keys, source_values, source_bias
        self._past = past_keys, past_values

    def attend_to_past(self, index: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Add a position [B, d_model] to a layer, and attend to all up to it."""
        query, key, value = split_joint(attention.heads, attention.input(x), len(x))
        self.keys.append(torch.cat([self._past[0][index], key], dim=2))
        self.values.append(torch.cat([self._past[1][index], value], dim=2))
        attended = DecoderCache.attend(
            query, self.keys[-1].mT, self.values[-1], None, attention.additive_weight
        )
        out: Tensor = attention.output(attended)
        return out

    def attend_to_source(self, index: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Attend from a position [B, d_model] of a layer to the source."""
        keys, values, bias = self._source
        query = attention.heads.to_heads(attention.input.queries(x), len(x))
        attended = DecoderCache.attend(
            query, keys[index].mT, values[index], bias, attention.additive_weight
        )
        out: Tensor = attention.output(attended)
        return out
