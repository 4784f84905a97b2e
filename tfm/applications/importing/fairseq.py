"""Transformers of fairseq: a checkpoint, dictionaries, and perhaps SentencePiece models."""

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfm.applications.importing.foreign import (
    ACTIVATIONS,
    ForeignModel,
    Tokens,
    check_supported,
    checked_settings,
    checked_weights,
    chosen_languages,
    renumber,
    sinusoids,
    subword_models,
    unscaled,
)
from tfm.config.values import shown
from tfm.disk.paths import kind_of
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.text.files import check_expansion
from tfm.text.lines import read_lines
from tfm.vocabulary.foreign import other_file


class Record:
    """Stands for an object of settings or statistics; only its attributes are kept."""

    def __init__(self, *_arguments: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)


# What files of fairseq hold besides tensors and plain values. None of it is run.
_RECORDS = (
    "argparse.Namespace",
    "fairseq.meters.AverageMeter",
    "fairseq.meters.StopwatchMeter",
    "fairseq.meters.TimeMeter",
    "fairseq.logging.meters.AverageMeter",
    "fairseq.logging.meters.MetersDict",
    "fairseq.logging.meters.StopwatchMeter",
    "fairseq.logging.meters.TimeMeter",
)
_NAMED = re.compile(r"GLOBAL ([\w.]+)")  # in torch's message, which also says how to run the code


def load_pickle(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a file of torch.save: tensors, plain values and `Record`s."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                num_bytes = sum(each.file_size for each in archive.infolist())
            check_expansion(path, path.stat().st_size, num_bytes)
        with (
            torch.serialization.safe_globals([(Record, name) for name in _RECORDS]),
            warnings.catch_warnings(action="ignore"),  # about protocols of pickles
        ):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # which of them torch raises depends on where a byte is wrong
        named = _NAMED.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if named:
            raise CheckpointError(
                f"{path} is not loaded: it names code to run ({named[1]}), which tfm refuses"
            ) from error
        if other := other_file(path):
            raise UsageError(
                f"{path} is {other}, not a model: name the model that was trained with it, such as "
                "a checkpoint of fairseq (.pt), or train one with tfm prepare, then tfm train"
            ) from error
        raise CheckpointError(
            f"{path} is damaged, or is no checkpoint: download it again, or name a model"
        ) from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds no weights by name: name another file")
    return content


# The first ids of each dictionary. Translations start with </s>; positions count from _PAD + 1.
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_PAD, _EOS, _UNK = 1, 2, 3
_OVERWRITES = " #fairseq:overwrite"  # after a token of the dictionary with the name of one of these
_FIRST_POSITION = _PAD + 1
_MAX_POSITIONS = 1024  # fairseq's default
_UNSUPPORTED = (
    "no_token_positional_embeddings",
    "no_cross_attention",
    "cross_self_attention",
    "adaptive_softmax_cutoff",
    "adaptive_input",
    "alibi",
    "simul_type",
)
_SIZES = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
# Names that versions before 0.9 gave to norms.
_OLDER_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
_OLDER_NORM = re.compile(r"((encoder|decoder)\.layers\.[0-9]+)\.layer_norms\.([0-2])\.")
_NO_WEIGHT = re.compile(r".*(version|embed_positions\.(_float_tensor|weights))")
# Version 0.12 registers copies of an encoder layer's weights for a fused kernel, and fills them
# whenever it loads a checkpoint. In a file they are zeros, or weights of an earlier start.
_COPY = re.compile(r"(encoder\.layers\.[0-9]+\.)(in_proj|out_proj|fc1|fc2)_(weight|bias)")
_COPIED = {
    "in_proj": [f"self_attn.{each}_proj" for each in "qkv"],
    "out_proj": ["self_attn.out_proj"],
    "fc1": ["fc1"],
    "fc2": ["fc2"],
}


def find_checkpoint(path: Path) -> Path:
    """Return the file of weights at a path or in this folder; UsageError unless there is one."""
    if path.is_file():
        return path
    found = sorted(path.glob("*.pt"))
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise UsageError(f"{path} has several models ({names}): name the file of one")
    if not found:
        if kind_of(path) == "run":
            raise UsageError(f"{path} is a run of tfm, which needs no import: use it as it is")
        raise UsageError(
            f"{path} has neither a Marian model of transformers (config.json with model_type "
            "marian) nor one of fairseq (checkpoint.pt): check its name"
        )
    return found[0]


def read_fairseq(path: Path, languages: tuple[str | None, str | None]) -> ForeignModel:
    """Read a checkpoint, and the dictionaries beside it.

    Languages that are None are read from the checkpoint.
    """
    state = load_pickle(path)
    arguments = _arguments(state, path)
    settings = _settings(arguments, path)
    weights = {_current_name(str(name)): each for name, each in state["model"].items()}
    weights = {name: each for name, each in weights.items() if not _NO_WEIGHT.fullmatch(name)}
    weights = checked_weights(weights, path)
    weights = {name: each for name, each in weights.items() if not _is_copy(name, weights)}
    embeddings = _take_embeddings(weights, path)
    if arguments.get("no_scale_embedding"):
        embeddings = unscaled(embeddings, settings["d_model"])
    positions = {
        f"{side}_embedding": _positions(weights, arguments, stack, side, path)
        for stack, side in (("encoder", "source"), ("decoder", "target"))
    }
    source, target = chosen_languages(languages, arguments, path)
    segmenters = _segmenters(path.parent, (source, target))
    tokens = _read_tokens(path.parent, (source, target), embeddings)
    return ForeignModel(
        path=path,
        languages=(source, target),
        settings=settings,
        weights=weights,
        embeddings=embeddings,
        positions=positions,
        tokens=tokens,
        vocabulary=subword_models(tokens, segmenters, path.parent),
        takes_tokens=not segmenters,
    )


def _arguments(state: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return fairseq's settings of task and model by name."""
    if not isinstance(state.get("model"), Mapping):
        raise CheckpointError(f"{path} is no checkpoint of fairseq: name another file")
    config = state.get("cfg")
    sections: list[Any] = [state.get("args")]
    if not isinstance(sections[0], Record):
        sections = (
            [config.get(name) for name in ("task", "model")] if isinstance(config, Mapping) else []
        )
    found: dict[str, Any] = {}
    for values in sections:
        named = vars(values) if isinstance(values, Record) else values
        if isinstance(named, Mapping):
            found |= {
                key: each for key, each in named.items() if each is not None or key not in found
            }
    for side in ("encoder", "decoder"):
        if isinstance(found.get(side), Mapping):
            found |= {f"{side}_{name}": value for name, value in found.pop(side).items()}
    if odd := [name for name, value in found.items() if isinstance(value, Tensor)]:
        raise CheckpointError(
            f"{path} is damaged (its setting {odd[0]} is a tensor): import another"
        )
    return found


def _settings(arguments: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the settings of the model; UsageError names unsupported ones."""
    unsupported = [name for name in _UNSUPPORTED if arguments.get(name)]
    for name in _SIZES:
        encoder, decoder = (arguments.get(f"{side}_{name}") for side in ("encoder", "decoder"))
        if encoder != decoder:
            unsupported.append(
                f"encoder_{name} {shown(encoder)} with decoder_{name} {shown(decoder)}"
            )
    activation = str(arguments.get("activation_fn", "relu"))
    if activation not in ACTIVATIONS:
        unsupported.append(f"activation_fn {shown(activation)}")
    check_supported(unsupported, path)
    try:
        settings = {
            "num_encoder_layers": arguments["encoder_layers"],
            "num_decoder_layers": arguments["decoder_layers"],
            "d_model": arguments["encoder_embed_dim"],
            "d_ff": arguments["encoder_ffn_embed_dim"],
            "num_heads": arguments["encoder_attention_heads"],
            "norm": "pre" if arguments.get("encoder_normalize_before") else "post",
            "activation": ACTIVATIONS[activation],
            "dropout": arguments.get("dropout", 0.1),
            "embedding_dropout": arguments.get("dropout", 0.1),
            "attention_dropout": arguments.get("attention_dropout", 0.0),
            "relu_dropout": arguments.get("activation_dropout")
            or arguments.get("relu_dropout")
            or 0.0,
        }
    except KeyError as error:
        raise UsageError(
            f"{path} is no Transformer of fairseq (no {error.args[0]}): name another file"
        ) from error
    return checked_settings(settings, path)


def _current_name(name: str) -> str:
    """Return the name that versions from 0.9 on give to a weight."""
    return _OLDER_NORM.sub(
        lambda match: f"{match[1]}.{_OLDER_NORMS[match[2]][int(match[3])]}.", name
    )


def _is_copy(name: str, weights: Mapping[str, Tensor]) -> bool:
    """Return whether fairseq replaces a weight by others that are there, when it loads them."""
    if (match := _COPY.fullmatch(name)) is None:
        return False
    layer, copied, part = match.groups()
    return all(f"{layer}{each}.{part}" in weights for each in _COPIED[copied])


def _take_embeddings(weights: dict[str, Tensor], path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Remove and return the source, target and output embeddings; tied ones may share a name."""
    names = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    source, target, output = (weights.pop(f"{name}.weight", None) for name in names)
    output = weights.pop("decoder.embed_out", output)  # the name of older versions
    if source is None or target is None or not source.ndim == target.ndim == 2:
        raise CheckpointError(f"{path} has no embeddings: name another file")
    return source, target, target if output is None else output


def _positions(
    weights: dict[str, Tensor], arguments: Mapping[str, Any], stack: str, side: str, path: Path
) -> Tensor:
    """Return the encoder's or decoder's positions [N, d_model]; learned ones are removed."""
    learned = weights.pop(f"{stack}.embed_positions.weight", None)
    if learned is not None:
        return learned[_FIRST_POSITION:]
    num_positions = arguments.get(f"max_{side}_positions") or arguments.get("max_positions")
    num_positions = num_positions or _MAX_POSITIONS
    checked_settings({"learned_positions": num_positions}, path)
    numbers = torch.arange(_FIRST_POSITION, _FIRST_POSITION + num_positions)
    return sinusoids(numbers, arguments[f"{stack}_embed_dim"])


def _segmenters(folder: Path, languages: tuple[str, str]) -> list[Path]:
    """Return the SentencePiece models of source and target; empty without any."""
    found = sorted(folder.glob("*.model"))
    if len(found) < 2:
        return found * 2
    chosen = [[path for path in found if lang in path.name.split(".")] for lang in languages]
    if any(len(each) != 1 for each in chosen):
        raise UsageError(
            f"{folder} has several SentencePiece models: keep one, or name them "
            f"{languages[0]}.model and {languages[1]}.model"
        )
    return [path for [path] in chosen]


def _read_tokens(
    folder: Path, languages: tuple[str, str], embeddings: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tokens, Tokens]:
    """Return the tokens of source and target."""
    dictionaries = [_dictionary(folder / f"dict.{language}.txt") for language in languages]
    for pieces, embedding, language in zip(dictionaries, embeddings[:2], languages, strict=True):
        if len(pieces) != len(embedding):
            raise DataError(
                f"{folder}/dict.{language}.txt has {len(pieces):,} tokens, but the model "
                f"{len(embedding):,}: copy both from the same model"
            )
    source, target = (
        renumber(pieces, pad=_PAD, start=_EOS, eos=_EOS, unk=_UNK) for pieces in dictionaries
    )
    return source, target


def _dictionary(path: Path) -> list[str]:
    """Return the tokens of a dictionary by id."""
    if not path.is_file():
        raise DataError(f"{path} is missing: copy it from the folder of fairseq's binarized data")
    tokens = []
    for number, line in enumerate(read_lines(path, strict=True), 1):
        token, _, count = line.decode().rstrip().removesuffix(_OVERWRITES).rpartition(" ")
        if not count.isdecimal():
            raise DataError(f"{path}, line {number:,} has no count after its token: copy it again")
        tokens.append(token)
    if len(set(tokens)) < len(tokens):
        raise DataError(f"{path} has a token twice, which tfm does not support")
    return [*_SPECIAL, *tokens]
