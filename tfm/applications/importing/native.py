"""Transformers in Marian's own files: weights with settings (.npz), and vocabularies."""

import errno
import re
import struct
import tokenize
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tfm.applications.importing.foreign import (
    COPY_BIAS,
    ForeignModel,
    Tokens,
    check_supported,
    checked_settings,
    checked_weights,
    chosen_languages,
    language_tags,
    renumber,
    sinusoids,
    subword_models,
)
from tfm.applications.importing.yaml_mapping import read_mapping
from tfm.disk.files import read_json
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.text.files import ALWAYS_ALLOWED_BYTES, MAX_EXPANSION, damage_errors
from tfm.text.lines import read_lines
from tfm.vocabulary.foreign import pieces_by_id

_SETTINGS = "special:model.yml"  # an array of bytes beside the weights
_STATES = (".optimizer.npz", ".orig.npz")  # of training
_MAX_POSITIONS = 1024
_MAX_PREFIX_BYTES = 12  # before a header, with its length
_MAX_HEADER_BYTES = 256  # a matrix has 118; longer headers could nest too deeply for the parser
# Of damaged archives and headers; a header is a Python literal.
_ERRORS: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, struct.error, RuntimeError, MemoryError),
    *(ValueError, LookupError, TypeError, ArithmeticError, SyntaxError, tokenize.TokenError),
)
_FLAGS = (
    "right-left",
    "transformer-disable-position-embeddings",
    "transformer-no-affine",
    "transformer-no-bias",
    "transformer-no-projection",
    "transformer-pool",
    "transformer-train-position-embeddings",
    "ulr",
)
# The values that tfm has. Older versions lack some of the settings.
_SUPPORTED: Mapping[str, Sequence[str | Sequence[str]]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),  # SSRU is rnn
    "transformer-ffn-activation": ("relu", "swish"),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-attention-mask": ("default",),
    "transformer-tied-layers": ([],),
    "input-types": ([], ["sequence", "sequence"]),
    "lemma-dim-emb": ("0",),
    **dict.fromkeys(_FLAGS, ("false",)),
}
# Operations before and after a sub-layer, and after a stack, without dropout.
_NORMS = {"/an/": "post", "n/a/n": "pre"}
_ACTIVATIONS = {"relu": "relu", "swish": "silu"}
_DROPOUT = 0.1  # of OPUS-MT; weights do not say how they were trained
_WEIGHT = re.compile(
    r"(encoder|decoder)_(?:top|l([0-9]{1,4})_(self|context|ffn))"
    r"_(?:([Wb])([qkvo12])|(?:(?:Wo|ffn)_)?ln_(scale|bias)(?:_pre)?)"
)
_BLOCKS = {"self": "self_attn", "context": "encoder_attn", "ffn": "final"}
_KINDS = {"W": "weight", "b": "bias", "scale": "weight", "bias": "bias"}
_LANGUAGES = re.compile(r"\W*(source|target)[ -]languages?(?:\(s\))?\W+(\w.*)")


def find_weights(path: Path) -> Path | None:
    """Return Marian's file of weights at a path or in this folder; None without any."""
    if path.is_file():
        return path if path.suffix == ".npz" else None
    found = [each for each in sorted(path.glob("*.npz")) if not each.name.endswith(_STATES)]
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise UsageError(f"{path} has several models ({names}): name the file of one")
    return found[0] if found else None


def read_native(path: Path, languages: tuple[str | None, str | None]) -> ForeignModel:
    """Read a file of weights, and the vocabularies beside it.

    Languages that are None are read from the README.md beside it.
    """
    arrays = _read_arrays(path)
    settings = _settings(arrays, path)
    tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}
    weights = _renamed(checked_weights(tensors, path), path)
    embeddings, output_bias = _take_embeddings(weights, path)
    tokens, segmenters = _read_vocabulary(path, embeddings)
    tags = language_tags(tokens[0].pieces) if segmenters else []
    return ForeignModel(
        path=path,
        languages=chosen_languages(languages, _named_languages(path.parent), path.parent, tags),
        settings=settings,
        weights=weights,
        embeddings=embeddings,
        output_bias=output_bias,
        positions={
            f"{side}_embedding": sinusoids(torch.arange(_MAX_POSITIONS), settings["d_model"])
            for side in ("source", "target")
        },
        tokens=tokens,
        vocabulary=subword_models(tokens, segmenters, path.parent, tags),
        takes_tokens=not segmenters,
    )


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of numbers in a file, of any shape, in the byte order of this machine."""
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            path.open("rb") as file,
            np.load(file, allow_pickle=False, max_header_size=_MAX_HEADER_BYTES) as arrays,
        ):
            members = arrays.zip.infolist()
            limit = max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * path.stat().st_size)
            if sum(each.file_size for each in members) > limit:
                raise ValueError("it expands to more than weights can")
            # NumPy compares the checksum of a member only if its header asks for all bytes.
            if arrays.zip.testzip() is not None:
                raise ValueError("the checksum of a member differs")
            sizes = (each.file_size for each in members)
            found = zip(arrays.items(), sizes, strict=True)
            return {name: _numbers(each, num_bytes) for (name, each), num_bytes in found}
    except _ERRORS + damage_errors() as error:
        # Decompressors give no number, and a seek to an impossible place EINVAL.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        raise CheckpointError(
            f"{path} is damaged, or no file of NumPy with arrays of numbers: download it again"
        ) from error


def _numbers(array: npt.NDArray[Any], num_bytes: int) -> npt.NDArray[Any]:
    """Return the array in a member of this size; the size in its header is not trusted."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.itemsize > 8:
        raise ValueError("it has something else than arrays of numbers")
    if num_bytes - array.nbytes > _MAX_PREFIX_BYTES + _MAX_HEADER_BYTES:
        raise ValueError("an array is shorter than its member")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _settings(arrays: dict[str, npt.NDArray[Any]], path: Path) -> Mapping[str, Any]:
    """Take the settings out of the arrays; UsageError names unsupported ones."""
    if _SETTINGS not in arrays:
        raise CheckpointError(f"{path} has no {_SETTINGS}: it is no model of Marian")
    text = arrays.pop(_SETTINGS).tobytes().decode(errors="replace").rstrip("\0")
    try:
        given = read_mapping(text)
        _check_supported(given, path)
        settings = {
            "num_encoder_layers": given["enc-depth"],
            "num_decoder_layers": given["dec-depth"],
            "d_model": given["dim-emb"],
            "d_ff": given["transformer-dim-ffn"],
            "num_heads": given["transformer-heads"],
        }
        activation = _ACTIVATIONS[str(given["transformer-ffn-activation"])]
        norm = _NORMS[_operations(given)]
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} has damaged settings ({error}): download it again"
        ) from error
    numbers = {name: _number(value) for name, value in settings.items()}
    dropout = {"dropout": _DROPOUT, "embedding_dropout": _DROPOUT}
    return checked_settings(numbers | dropout | {"activation": activation, "norm": norm}, path)


def _check_supported(given: Mapping[str, Any], path: Path) -> None:
    """Raise UsageError if a setting has a value that tfm does not support."""
    unsupported = [
        f"{name} {', '.join(value) if isinstance(value, list) else value or '(empty)'}"
        for name, supported in _SUPPORTED.items()
        if (value := given.get(name, supported[0])) not in supported
    ]
    if given.get("transformer-decoder-autoreg") == "rnn":
        unsupported.append(f"dec-cell {given.get('dec-cell')}")
    if given.get("transformer-decoder-dim-ffn", "0") not in ("0", given["transformer-dim-ffn"]):
        unsupported.append("transformer-decoder-dim-ffn other than transformer-dim-ffn")
    if (operations := _operations(given)) not in _NORMS:
        unsupported.append(f"transformer-preprocess/postprocess/postprocess-top {operations}")
    check_supported(unsupported, path)


def _operations(given: Mapping[str, Any]) -> str:
    names = ("preprocess", "postprocess", "postprocess-top")
    return "/".join(str(given.get(f"transformer-{each}", "")).replace("d", "") for each in names)


def _number(value: Any) -> Any:
    """Return the integer in a text, or any other value unchanged: the settings refuse it."""
    return int(value) if re.fullmatch("[0-9]{1,9}", str(value)) else value


def _beside(path: Path, name: str) -> Mapping[str, Any] | None:
    """Return the content of a YAML file beside the weights; None if there is none."""
    file = path.with_name(name)
    if not file.is_file():
        return None
    try:
        return read_mapping(b"\n".join(read_lines(file, strict=True)).decode())
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}): download it again") from error


def _renamed(weights: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the weights, of any shape, by the names of fairseq, where it has such a weight.

    Marian's map from rows to columns, and its vectors have one row.
    """
    found = {}
    for name, each in weights.items():
        if each.ndim != 2:
            raise CheckpointError(f"{path} is damaged ({name} is no matrix): download it again")
        if (match := _WEIGHT.fullmatch(name)) is None:
            found[name] = each
        elif match[4] == "W":
            found[_new_name(match)] = each.T
        else:
            found[_new_name(match)] = each.flatten()
    return found


def _new_name(match: re.Match[str]) -> str:
    stack, number, block, kind, part, norm_kind = match.groups()
    if number is None:
        return f"{stack}.layer_norm.{_KINDS[norm_kind or kind]}"
    prefix = f"{stack}.layers.{int(number) - 1}"
    if norm_kind:
        return f"{prefix}.{_BLOCKS[block]}_layer_norm.{_KINDS[norm_kind]}"
    if block == "ffn":
        return f"{prefix}.fc{part}.{_KINDS[kind]}"
    return f"{prefix}.{_BLOCKS[block]}.{'out' if part == 'o' else part}_proj.{_KINDS[kind]}"


def _take_embeddings(
    weights: dict[str, Tensor], path: Path
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Remove the embeddings and the output bias; return them with a row for the start.

    A translation starts with a vector of zeros, which is never output.
    """
    shared = weights.pop("Wemb", None)
    source, target = (weights.pop(f"{side}_Wemb", shared) for side in ("encoder", "decoder"))
    output = weights.pop("decoder_ff_logit_out_Wt", target)
    if (older := weights.pop("decoder_ff_logit_out_W", None)) is not None:
        output = older.T
    if source is None or target is None or output is None:
        raise CheckpointError(f"{path} has no embeddings: download it again")
    source, target, output = (
        torch.cat([each, torch.zeros(1, each.size(1))]) for each in (source, target, output)
    )
    bias = weights.pop("decoder_ff_logit_out_b", torch.zeros(1, len(output) - 1))
    return (source, target, output), torch.cat([bias.flatten(), torch.tensor([COPY_BIAS])])


def _read_vocabulary(
    path: Path, embeddings: tuple[Tensor, Tensor, Tensor]
) -> tuple[tuple[Tokens, Tokens], list[Path]]:
    """Return the tokens of source and target, and their SentencePiece models, if there are any."""
    paths = _find_vocabularies(path)
    segmenters = [
        each if each.suffix == ".spm" else path.with_name(f"{side}.spm")
        for each, side in zip(paths, ("source", "target"), strict=True)
    ]
    missing = [each.name for each in segmenters if not each.is_file()]
    if len(missing) == 1:
        raise DataError(f"{path.with_name(missing[0])} is missing: copy source.spm and target.spm")
    source, target = (
        _tokens(vocabulary, len(embedding) - 1)
        for vocabulary, embedding in zip(paths, embeddings[::2], strict=True)
    )
    return (source, target), [] if missing else segmenters


def _tokens(path: Path, size: int) -> Tokens:
    """Read a vocabulary; the token with the id `size` is padding and the start."""
    if path.suffix == ".spm":
        pieces, eos, unk = pieces_by_id(path.read_bytes(), origin=path)
    else:
        pieces, eos, unk = _words(path, size)
    if len(pieces) != size:
        raise DataError(
            f"{path} has {len(pieces):,} pieces, but the model {size:,}: copy both from the same "
            "model"
        )
    return renumber([*pieces, f"<unnamed {size}>"], pad=size, start=size, eos=eos, unk=unk)


def _find_vocabularies(path: Path) -> list[Path]:
    """Return the files of source and target, which decoder.yml or settings of training name."""
    for name in (f"{path.name}.decoder.yml", "decoder.yml", f"{path.name}.yml"):
        named = (_beside(path, name) or {}).get("vocabs")
        if isinstance(named, list) and len(named) == 2:
            # Of paths on another machine or elsewhere, only the names count.
            found = [path.with_name(PurePath(each).name or "?") for each in named]
            break
    else:
        found = sorted(path.parent.glob("*vocab*")) or sorted(path.parent.glob("*.spm"))
        found = found * 2 if len(found) == 1 else found
        if len(found) != 2 or (found[0] != found[1] and not re.search("src|source", found[0].name)):
            raise DataError(
                f"{path.parent} has no decoder.yml, which names the vocabularies: copy it there"
            )
    if missing := [each for each in found if not each.is_file()]:
        raise DataError(f"{missing[0]} is missing: copy the vocabulary of the model there")
    return found


def _words(path: Path, size: int) -> tuple[list[str], int, int]:
    """Return the pieces of a vocabulary by id, and the ids of the end and the unknown."""
    pieces = [f"<unnamed {number}>" for number in range(size)]
    try:
        if path.suffix == ".json":
            ids: Mapping[str, Any] = read_json(path)
        else:
            text = b"\n".join(read_lines(path, strict=True)).decode()
            is_yaml = path.suffix in (".yml", ".yaml")
            words = enumerate(text.split("\n"))
            ids = read_mapping(text) if is_yaml else {word: i for i, word in words}
        "".join(ids).encode()  # JSON and YAML can hold halves of characters
        taken = set()
        for piece, value in ids.items():
            number = _number(str(value))
            if type(number) is not int or number in taken:
                raise ValueError(f"the id of {piece!r:.80} is {value!r:.80}")
            taken.add(number)
            if number < size:  # Marian does not use the others
                pieces[number] = piece
        if (known := len(taken.intersection(range(size)))) < size:
            raise ValueError(f"it names {known:,} of {size:,} pieces")
        return pieces, pieces.index("</s>"), pieces.index("<unk>")
    except ValueError as error:
        raise DataError(
            f"{path} is no vocabulary of the model ({error}): download it again"
        ) from error


def _named_languages(folder: Path) -> dict[str, str]:
    """Return the languages that the README.md of OPUS-MT names."""
    path = folder / "README.md"
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [match for line in lines if (match := _LANGUAGES.match(line))]
    return {f"{match[1]}_lang": "+".join(re.findall(r"[\w-]+", match[2])) for match in found[::-1]}
