"""Model folders: written atomically, their tensors read and averaged."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tfm.errors import CheckpointError
from tfm.folders.model_folder import (
    STATE,
    WEIGHTS,
    ModelInfo,
    damaged,
    own_files,
    verified_file,
    write_description,
)
from tfm.folders.tensor_file import read_state, write_state, write_tensors
from tfm.model.build import Model, build_model
from tfm.storage.files import atomic_directory

# Errors of files with a correct checksum whose content is not safetensors, or not a state.
_UNREADABLE = (SafetensorError, OSError, RuntimeError, ValueError)
_INVALID = (LookupError, TypeError, RecursionError)


def save_checkpoint(
    path: Path,
    info: ModelInfo,
    weights: Mapping[str, Tensor],
    *,
    subword_files: Mapping[str, bytes],
    training_state: Mapping[str, Any] | None = None,
) -> None:
    """Write a model folder atomically; files that others put into an older one stay.

    It holds the parameters, of any shape, each under one name; the subword models by file name; and
    the tensors and plain values needed to resume training.

    Raises:
        OSError: It cannot be written; an existing folder is unchanged.
    """
    with atomic_directory(path, own=own_files(path)) as folder:
        digests = {WEIGHTS: write_tensors(folder / WEIGHTS, weights)}
        if training_state is not None:
            digests[STATE] = write_state(folder / STATE, training_state)
        for name, content in subword_files.items():
            (folder / name).write_bytes(content)
            digests[name] = hashlib.sha256(content).hexdigest()
        write_description(folder, info, digests)


def load_weights(path: Path) -> dict[str, Tensor]:
    """Return the parameters of a model folder, of any shape, by name.

    The tensors are views of the memory-mapped file: copy them to keep them.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    file = verified_file(path, WEIGHTS)
    try:
        return safetensors.torch.load_file(file)
    except _UNREADABLE as error:
        raise damaged(file, error) from error


def load_model(path: Path, info: ModelInfo) -> Model:
    """Build a model and read its weights.

    Raises:
        CheckpointError: The weights are damaged, or do not fit the configuration.
    """
    weights = {name: weight.clone() for name, weight in load_weights(path).items()}
    source_size, target_size = info.vocab_sizes
    try:
        return build_model(
            info.run.model, weights, source_vocab_size=source_size, target_vocab_size=target_size
        )
    except ValueError as error:
        raise CheckpointError(
            f"{path}: the weights do not fit config.json: copy both files from the same model"
        ) from error


def load_training_state(path: Path) -> dict[str, Any]:
    """Return the training state of a checkpoint, in memory of its own.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    file = verified_file(path, STATE)
    try:
        state = read_state(file)
        if not isinstance(state, dict):
            raise TypeError("not a mapping")
    except (*_INVALID, *_UNREADABLE) as error:
        raise damaged(file, error) from error
    return state


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of several checkpoints' parameters (Vaswani et al. 2017, §6.1), by name.

    Each tensor, of any shape, is summed in float64 and returned in float32.

    Raises:
        CheckpointError: A checkpoint is damaged, or they belong to different models.
    """
    averaged: dict[str, Tensor] = {}
    with contextlib.ExitStack() as stack:
        try:
            # Open files can still be read if a running training removes them.
            files = [stack.enter_context(safe_open(verified_file(p, WEIGHTS), "pt")) for p in paths]
            shapes = [{n: file.get_slice(n).get_shape() for n in file.keys()} for file in files]  # noqa: SIM118
            if any(each != shapes[0] for each in shapes):
                raise ValueError("different models")
            for name in shapes[0]:
                total: Tensor | float = 0.0
                for file in files:
                    total = total + file.get_tensor(name).double()
                averaged[name] = (torch.as_tensor(total) / len(files)).float()
        except _UNREADABLE as error:
            raise CheckpointError(
                f"cannot average {', '.join(map(str, paths))}: they are not checkpoints of one "
                "model; choose others"
            ) from error
    return averaged
