"""A Transformer as the files that CTranslate2 reads, made with numpy and without torch."""

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from packaging.version import Version

from tfm.config import ModelConfig, TransformerConfig
from tfm.errors import install_command
from tfm.folders.model_folder import ModelFolder
from tfm.vocabulary.subword import BOS, EOS, UNK, Vocabulary

Array = npt.NDArray[Any]
Variables = Iterable[tuple[str, Array]]

NUM_POSITIONS = 2_048  # of sinusoids: twice the default maximum length of a source
_MIN_VERSION = "4.8.5"  # older ones import torch
_FORMAT, _SPECIFICATION, _REVISION = 6, "TransformerSpec", 7
# The numbers of types and activations are CTranslate2's. Arrays of uint16 hold bfloat16.
_TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "uint16": 5}
_ACTIVATIONS = {"relu": 0, "silu": 2, "gelu": 3}
_LAYER_NORM_EPSILON = 1e-5  # torch's default


def obstacles_of(config: ModelConfig) -> list[str]:
    """Return the settings of a model that CTranslate2 does not support."""
    obstacles = [] if isinstance(config, TransformerConfig) else ["arch rnn"]
    if config.attention != "dot-product":
        obstacles.append(f"attention {config.attention}")
    if (window := getattr(config, "attention_window", None)) is not None:
        obstacles.append(f"attention_window {window}")
    return obstacles


def package_problem(*, is_fp32: bool = True) -> str | None:
    """Load CTranslate2; return why it cannot be used, and the remedy, or None if it can be used.

    In fp32, it uses oneDNN on every CPU, unless CT2_USE_MKL is set: with MKL, which it takes on
    Intel's, two threads wait for each other, and take ten times as long. MKL's int8 is faster.
    """
    if is_fp32:
        os.environ.setdefault("CT2_USE_MKL", "0")  # read once, when the library is loaded
    try:
        import ctranslate2
    except ImportError as error:
        problem = f"ctranslate2 is not installed ({error})"
    else:
        version = ctranslate2.__version__
        if Version(version) >= Version(_MIN_VERSION):
            return None
        problem = f"CTranslate2 {version} is not {_MIN_VERSION} or newer"
    return f"{problem}: run {install_command('export')}"


def ctranslate2_files(vocabulary: Vocabulary, variables: Variables) -> dict[str, bytes]:
    """Return the content of the files of a model for CTranslate2, by name.

    Args:
        vocabulary: The vocabulary of the model.
        variables: Its `variables_of`, perhaps in other types.
    """
    source, target = vocabulary.source, vocabulary.target
    bos, eos, unk = target.pieces([BOS, EOS, UNK])
    config = {
        "add_source_bos": False,
        "add_source_eos": True,
        "bos_token": bos,
        "decoder_start_token": bos,
        "eos_token": eos,
        "layer_norm_epsilon": _LAYER_NORM_EPSILON,
        "unk_token": unk,
    }
    pieces = {"source": source.pieces(range(len(source)))}
    pieces["target"] = target.pieces(range(len(target)))
    if pieces["source"] == pieces["target"]:
        pieces = {"shared": pieces["source"]}
    tables = {"config": config} | {f"{name}_vocabulary": each for name, each in pieces.items()}
    files = {f"{name}.json": json.dumps(each, indent=2).encode() for name, each in tables.items()}
    return {"model.bin": _binary(variables), **files}


def _binary(variables: Variables) -> bytes:
    """Return the content of model.bin; an array with several names is stored once."""
    content = bytearray()
    names: dict[int, str] = {}
    aliases = []
    arrays = dict(sorted(variables))
    for name, array in arrays.items():
        first = names.setdefault(id(array), name)
        if first != name:
            aliases.append(_string(name) + _string(first))
            continue
        content += _string(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        content += struct.pack("<BI", _TYPES[str(array.dtype)], array.nbytes)
        content += array.tobytes()
    head = struct.pack("<I", _FORMAT) + _string(_SPECIFICATION)
    head += struct.pack("<II", _REVISION, len(names))
    return b"".join([head, content, struct.pack("<I", len(aliases)), *aliases])


def _string(text: str) -> bytes:
    content = text.encode() + b"\0"
    return struct.pack("<H", len(content)) + content


def variables_of(folder: ModelFolder) -> Variables:
    """Return the weights and settings of a model without obstacles by CTranslate2's names."""
    config = folder.info.run.model
    if not isinstance(config, TransformerConfig):
        raise TypeError("CTranslate2 runs Transformers")
    return _Variables(config, folder.arrays()).all()


class _Variables:
    """Names the weights of a Transformer as CTranslate2 does.

    In CTranslate2, queries, keys and values have the same width: narrower heads are padded with
    zeros, which change no dot product.
    """

    def __init__(self, config: TransformerConfig, weights: Mapping[str, Array]) -> None:
        self._config, self._weights = config, weights
        self._head_width = max(config.key_width, config.value_width)
        self._positions = None if config.learned_positions else _sinusoids(config.d_model)

    def all(self) -> Variables:
        config, output = self._config, self._weights["output_weight"]
        yield "decoder/projection/weight", output
        if config.output_bias:
            yield "decoder/projection/bias", self._weights["output_bias"]
        for name, side, num_layers in (
            ("encoder", "source", config.num_encoder_layers),
            ("decoder", "target", config.num_decoder_layers),
        ):
            embeddings = "embeddings_0" if name == "encoder" else "embeddings"
            weight = self._weights.get(f"{side}_embedding.weight", output)
            yield f"{name}/{embeddings}/weight", weight
            positions = self._positions
            if positions is None:
                positions = self._weights[f"{side}_embedding.positions"]
            yield f"{name}/position_encodings/encodings", positions
            yield f"{name}/num_heads", np.array(config.num_heads, np.int16)
            yield f"{name}/pre_norm", np.array(config.norm == "pre", np.int8)
            yield f"{name}/activation", np.array(_ACTIVATIONS[config.activation], np.int8)
            yield f"{name}/scale_embeddings", np.array(1, np.int8)
            if config.norm == "pre":
                yield from self._norm(f"{name}/layer_norm", f"{name}_norm")
            for index in range(num_layers):
                yield from self._layer(f"{name}/layer_{index}", f"{name}.{index}")

    def _layer(self, to: str, name: str) -> Variables:
        yield from self._attention(f"{to}/self_attention", f"{name}.self_attention")
        if name.startswith("decoder"):
            yield from self._attention(f"{to}/attention", f"{name}.cross_attention")
        yield from self._norm(f"{to}/ffn/layer_norm", f"{name}.feed_forward_residual.norm")
        for number, linear in enumerate(("inner", "outer")):
            for part in ("weight", "bias"):
                weight = self._weights[f"{name}.feed_forward.{linear}.{part}"]
                yield f"{to}/ffn/linear_{number}/{part}", weight

    def _attention(self, to: str, name: str) -> Variables:
        config, is_joint = self._config, to.endswith("self_attention")
        ends = config.num_heads * config.key_width * np.array([1, 2])
        for part in ("weight", "bias"):
            queries, keys, values = map(
                self._padded, np.split(self._weights[f"{name}.input.{part}"], ends)
            )
            # Self-attention has one matrix for all, cross-attention one for each input.
            joined = [[queries, keys, values]] if is_joint else [[queries], [keys, values]]
            for number, matrices in enumerate(joined):
                yield f"{to}/linear_{number}/{part}", np.concatenate(matrices)
        output = f"{to}/linear_{1 if is_joint else 2}"
        yield f"{output}/weight", self._padded(self._weights[f"{name}.output.weight"].T).T
        yield f"{output}/bias", self._weights[f"{name}.output.bias"]
        yield f"{to}/queries_scale", np.array(1 / math.sqrt(config.key_width), np.float32)
        yield f"{to}/head_dim", np.array(self._head_width, np.int32)
        yield from self._norm(f"{to}/layer_norm", f"{name}_residual.norm")

    def _padded(self, rows: Array) -> Array:
        """Pad [h · d, …] with zeros to [h · head_width, …]."""
        heads = rows.reshape(self._config.num_heads, -1, *rows.shape[1:])
        spare = [(0, 0), (0, self._head_width - heads.shape[1]), *[(0, 0)] * (rows.ndim - 1)]
        return np.pad(heads, spare).reshape(-1, *rows.shape[1:])

    def _norm(self, to: str, name: str) -> Variables:
        yield f"{to}/gamma", self._weights[f"{name}.weight"]
        yield f"{to}/beta", self._weights[f"{name}.bias"]


def _sinusoids(width: int) -> Array:
    """Return the positions [T, d_model] of §3.5; CTranslate2's own have another order."""
    angles = np.arange(NUM_POSITIONS)[:, None] / 10_000.0 ** (np.arange(0, width, 2) / width)
    waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return waves.reshape(NUM_POSITIONS, -1).astype(np.float32)
