"""Models of transformers: Marian, such as OPUS-MT, and what tfm export wrote."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tfm.applications.importing.fairseq import load_pickle
from tfm.applications.importing.foreign import (
    ACTIVATIONS,
    ForeignModel,
    Tokens,
    check_supported,
    checked_settings,
    checked_weights,
    chosen_languages,
    language_tags,
    renumber,
    subword_models,
    unscaled,
)
from tfm.config import SearchConfig
from tfm.config.values import from_table, shown
from tfm.disk.files import read_json
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.folders.model_info import PORTABLE, Portable
from tfm.model.attention import sinusoidal_encoding
from tfm.vocabulary.subword import SubwordModel, Vocabulary, model_paths

CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
_SHARD = re.compile(r"[\w.-]+\.safetensors")
_NORMS = {"marian": "post", "pegasus": "pre"}
_MAX_POSITION_ERROR = 1e-3  # tables may be in fp16


def is_of_transformers(folder: Path) -> bool:
    """Return whether a folder has a Marian or Pegasus model."""
    path = folder / CONFIG
    return path.is_file() and str(read_json(path).get("model_type")) in _NORMS


def read_transformers(folder: Path, languages: tuple[str | None, str | None]) -> ForeignModel:
    """Read a folder of transformers; languages that are None are read from its files."""
    config = read_json(folder / CONFIG)
    exported = _described(config, folder)
    path, weights = _load_weights(folder)
    settings = _settings(config, folder)
    embeddings = _take_embeddings(weights, path)
    if not config.get("scale_embedding"):
        embeddings = unscaled(embeddings, settings["d_model"])
    _check_positions(weights, settings["d_model"], path)
    output_bias = weights.pop("final_logits_bias", None)
    model = partial(
        ForeignModel,
        path=path,
        settings=settings,
        weights={name.removeprefix("model."): each for name, each in weights.items()},
        embeddings=embeddings,
        output_bias=None if output_bias is None else output_bias.flatten(),
    )
    if exported is not None:
        tokens, vocabulary = _exported_vocabulary(folder, exported, len(embeddings[0]))
        return model(
            languages=(languages[0] or exported.source, languages[1] or exported.target),
            tokens=(tokens, tokens),
            vocabulary=vocabulary,
            search=exported.search,
        )
    both, segmenters = _read_vocabulary(folder, config, embeddings)
    tags = language_tags(both[0].pieces)
    tokenizer = folder / "tokenizer_config.json"
    named = read_json(tokenizer) if tokenizer.is_file() else {}
    return model(
        languages=chosen_languages(languages, named, folder, tags),
        tokens=both,
        vocabulary=subword_models(both, segmenters, folder, tags),
    )


def _described(config: Mapping[str, Any], folder: Path) -> Portable | None:
    """Return what tfm export wrote about a model; None if another program wrote it."""
    if PORTABLE in config:
        try:
            described = from_table(Portable, config[PORTABLE])
            SearchConfig.for_model(described.search, {})
            return described
        except (ValueError, TypeError, UsageError) as error:
            raise DataError(f"{folder / CONFIG}: {PORTABLE}: {error}: export it again") from error
    if config["model_type"] == "pegasus":
        raise UsageError(
            f"{folder} is a Pegasus model that tfm export did not write: it cannot be imported"
        )
    return None


def _exported_vocabulary(folder: Path, exported: Portable, size: int) -> tuple[Tokens, Vocabulary]:
    """Return the tokens and the subword model of an export, whose ids are those of tfm."""
    [path] = model_paths(folder, separate=False)
    if not path.is_file():
        raise DataError(f"{path} is missing: copy it from the folder that tfm export wrote")
    model = SubwordModel(path.read_bytes(), origin=path)
    if len(model) != size:
        raise DataError(
            f"{path} has {len(model):,} pieces, but the model {size:,}: copy both from one export"
        )
    ids = range(size)
    tokens = Tokens(pieces=model.pieces(ids), original_ids=ids, has_own_start=True)
    return tokens, Vocabulary(model, model, exported.normalization, exported.tags)


def _load_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    path = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise CheckpointError(f"{folder} has no {' or '.join(_WEIGHTS)}: download the whole model")
    if path.suffix == ".bin":
        return path, checked_weights(load_pickle(path), path)
    weights: dict[str, Tensor] = {}
    for shard in _shards(path) if path.suffix == ".json" else [path]:
        try:
            weights |= checked_weights(safetensors.torch.load_file(shard), shard)
        except FileNotFoundError as error:
            raise CheckpointError(f"{shard} is missing: download the whole model") from error
        except SafetensorError as error:
            raise CheckpointError(f"{shard} is damaged: download it again") from error
    return path, weights


def _shards(index: Path) -> list[Path]:
    """Return the files of weights that an index names, all in its folder."""
    by_weight = read_json(index).get("weight_map")
    names = [*by_weight.values()] if isinstance(by_weight, dict) else []
    if not names or not all(isinstance(each, str) and _SHARD.fullmatch(each) for each in names):
        raise CheckpointError(f"{index} names no files of weights: download it again")
    return [index.with_name(each) for each in sorted({*names})]


def _settings(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return the settings of the model; UsageError names unsupported ones."""
    try:
        pairs = {
            name: (config[f"encoder_{name}"], config[f"decoder_{name}"])
            for name in ("ffn_dim", "attention_heads")
        }
        activation = str(config["activation_function"])
        settings = {
            "num_encoder_layers": config["encoder_layers"],
            "num_decoder_layers": config["decoder_layers"],
            "d_model": config["d_model"],
            "dropout": config["dropout"],
            "embedding_dropout": config["dropout"],
            "attention_dropout": config["attention_dropout"],
            "relu_dropout": config["activation_dropout"],
        }
    except KeyError as error:
        raise DataError(f"{folder / CONFIG} has no {error.args[0]}: download it again") from error
    unsupported = [f"{name} that differ" for name, (one, other) in pairs.items() if one != other]
    if activation not in ACTIVATIONS:
        unsupported.append(f"activation_function {shown(activation)}")
    check_supported(unsupported, folder)
    others = {
        "d_ff": pairs["ffn_dim"][0],
        "num_heads": pairs["attention_heads"][0],
        "activation": ACTIVATIONS[activation],
        "norm": _NORMS[config["model_type"]],
    }
    return checked_settings(settings | others, folder)


def _take_embeddings(weights: dict[str, Tensor], path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Remove and return the source, target and output embeddings; tied ones may share a name."""
    names = ("encoder.embed_tokens", "decoder.embed_tokens", "shared")
    found = [weights.pop(f"model.{name}.weight", None) for name in names]
    source, target, shared, output = (*found, weights.pop("lm_head.weight", None))
    anything = next((each for each in (shared, target, output) if each is not None), None)
    source, target = (anything if each is None else each for each in (source, target))
    if source is None or target is None or not source.ndim == target.ndim == 2:
        raise CheckpointError(f"{path} has no embeddings: download it again")
    return source, target, target if output is None else output


def _check_positions(weights: dict[str, Tensor], d_model: int, path: Path) -> None:
    """Remove the stored tables of positions; raise UsageError unless they are sinusoids."""
    for stack in ("encoder", "decoder"):
        table = weights.pop(f"model.{stack}.embed_positions.weight", None)
        if table is None:
            continue
        expected = sinusoidal_encoding(torch.arange(len(table) if table.ndim else 0), d_model)
        expected = torch.cat([expected[:, ::2], expected[:, 1::2]], dim=1)
        if table.shape != expected.shape or not torch.allclose(
            table, expected, rtol=0, atol=_MAX_POSITION_ERROR
        ):
            raise UsageError(f"{path} has positions other than Marian's: it cannot be imported")


def _read_vocabulary(
    folder: Path, config: Mapping[str, Any], embeddings: tuple[Tensor, Tensor, Tensor]
) -> tuple[tuple[Tokens, Tokens], list[Path]]:
    """Return the tokens of source and target, and their SentencePiece models."""
    segmenters = [folder / "source.spm", folder / "target.spm"]
    vocabularies = [folder / "vocab.json", folder / "target_vocab.json"]
    if not vocabularies[1].is_file():
        vocabularies[1] = vocabularies[0]
    for path in (*segmenters, *vocabularies):
        if not path.is_file():
            raise DataError(f"{path} is missing: download the whole model")
    source, target = (
        _tokens(read_json(path), len(embedding), config, folder=folder)
        for path, embedding in zip(vocabularies, embeddings[::2], strict=True)
    )
    return (source, target), segmenters


def _tokens(
    ids: Mapping[str, Any],
    num_rows: int,
    config: Mapping[str, Any],
    *,
    folder: Path,
) -> Tokens:
    pieces = [f"<unnamed {number}>" for number in range(num_rows)]
    try:
        start = config["decoder_start_token_id"]
        if any(type(number) is not int or number < 0 for number in (start, *ids.values())):
            raise TypeError
        if len(set(ids.values())) < len(ids):
            raise IndexError
        "".join(ids).encode()  # JSON can hold halves of characters
        for piece, number in ids.items():
            pieces[number] = piece
        pad, eos, unk = (ids[piece] for piece in ("<pad>", "</s>", "<unk>"))
        if start >= num_rows:
            raise IndexError
    except (KeyError, IndexError, TypeError, UnicodeEncodeError) as error:
        raise DataError(
            f"the vocabulary in {folder} does not fit {CONFIG} and the weights: download them again"
        ) from error
    return renumber(pieces, pad=pad, start=start, eos=eos, unk=unk)
