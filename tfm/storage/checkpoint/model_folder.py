"""One model folder: written in one piece, checked when it is read."""

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tfm.config import RunConfig, run_config, run_table
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.storage.checkpoint.tensor_file import read_state, write_state, write_tensors
from tfm.storage.files import atomic_directory, read_json, sha256_of, write_json

FORMAT = 2
WEIGHTS, STATE, CONFIG = "model.safetensors", "training.safetensors", "config.json"

Metric = Literal["loss", "score"]
# What a task is scored by, as its validation names it.
SCORES: Mapping[str, str] = {"translation": "bleu", "parsing": "f1"}
Weights = Mapping[str, Tensor]

# What comes of reading a safetensors file that is none, and of values that are not what they should
# be, though their checksum is right: nobody but an enemy writes such files.
_UNREADABLE = (SafetensorError, OSError, RuntimeError, ValueError)
_NONSENSE = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, UsageError)


class DamagedCheckpointError(CheckpointError):
    """A model folder that is not as it was written."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What a model is, besides its weights.

    Attributes:
        run: The settings it was trained with.
        source: Source language.
        target: Target language.
        vocab_sizes: Number of source and target pieces.
        fingerprint: Of the vocabulary.
        data_dir: Dataset it was trained on, as it was given.
        step: Training steps.
        metrics: Validation loss (nats a token), perplexity, score; empty if not validated.
        averaged: Steps of the checkpoints that it is the average of; empty if it is none.
        task: What it was trained to do: "translation" or "parsing".
        search: Settings of SearchConfig that suit its dataset better than the defaults.
    """

    run: RunConfig
    source: str
    target: str
    vocab_sizes: tuple[int, int]
    fingerprint: str
    data_dir: str
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    averaged: tuple[int, ...] = ()
    task: str = "translation"
    search: Mapping[str, Any] = field(default_factory=dict)

    def quality(self, metric: Metric) -> float | None:
        """How good it was in validation, more being better; None if that was not measured."""
        name, sign = (SCORES[self.task], 1) if metric == "score" else ("loss", -1)
        figure = self.metrics.get(name)
        return None if figure is None or math.isnan(figure) else sign * figure


def save_checkpoint(
    path: Path,
    info: ModelInfo,
    weights: Weights,
    *,
    subword_files: Mapping[str, bytes],
    training_state: Mapping[str, Any] | None = None,
) -> None:
    """Write a model folder in one piece.

    Args:
        path: The folder.
        info: What the model is.
        weights: Parameters by name, each once.
        subword_files: Contents of the subword models by file name.
        training_state: Tensors and plain values needed to resume training.

    Raises:
        OSError: It cannot be written; what was there before stands.
    """
    with atomic_directory(path) as folder:
        digests = {WEIGHTS: write_tensors(folder / WEIGHTS, weights)}
        if training_state is not None:
            digests[STATE] = write_state(folder / STATE, training_state)
        for name, content in subword_files.items():
            (folder / name).write_bytes(content)
            digests[name] = hashlib.sha256(content).hexdigest()
        record = {"format": FORMAT, **asdict(info), "run": run_table(info.run), "sha256": digests}
        write_json(folder / CONFIG, {**record, "checksum": _checksum(record)})


def load_info(path: Path) -> ModelInfo:
    """Read what a model is, and see that its subword models are as they were written.

    Raises:
        CheckpointError: The folder holds no model, or one of another format.
        DamagedCheckpointError: It is not as it was written.
    """
    record = _record(path)
    for name in record.pop("sha256"):
        if name not in (WEIGHTS, STATE):
            _whole(path, name)
    try:
        return _info(record)
    except _NONSENSE as error:
        raise _damaged(path / CONFIG, error) from error


def check_model(path: Path, *, needs_state: bool = False) -> ModelInfo:
    """Check that a whole model folder, if `needs_state` with training state, is as it was written.

    Raises:
        CheckpointError: The folder holds no model, or one of another format.
        DamagedCheckpointError: It is not as it was written.
    """
    info = load_info(path)
    _whole(path, WEIGHTS)
    if needs_state or (path / STATE).exists():
        _whole(path, STATE)
    return info


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read the parameters of a model folder.

    They are the file itself, read as they are used: to keep them, copy them.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    file = _whole(path, WEIGHTS)
    try:
        return safetensors.torch.load_file(file)
    except _UNREADABLE as error:
        raise _damaged(file, error) from error


def load_training_state(path: Path) -> dict[str, Any]:
    """Read what is needed to train on, into memory of its own.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    file = _whole(path, STATE)
    try:
        state = read_state(file)
        if not isinstance(state, dict):
            raise TypeError("no table")
    except (*_NONSENSE, *_UNREADABLE) as error:
        raise _damaged(file, error) from error
    return state


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints' parameters (§6.1), summed in float64 one tensor at a time.

    Raises:
        CheckpointError: They are damaged, or not of one model.
    """
    averaged: dict[str, Tensor] = {}
    with contextlib.ExitStack() as stack:
        try:
            # All are open from here on: what a training removes meanwhile can still be read.
            files = [stack.enter_context(safe_open(_whole(p, WEIGHTS), "pt")) for p in paths]
            names = set(files[0].keys())
            if any(set(file.keys()) != names for file in files):
                raise ValueError("other names")
            for name in files[0].keys():  # noqa: SIM118
                total: Tensor | float = 0.0
                for file in files:
                    total = total + file.get_tensor(name).double()
                averaged[name] = (torch.as_tensor(total) / len(files)).float()
        except _UNREADABLE as error:
            raise CheckpointError(
                f"cannot average {', '.join(map(str, paths))}, which are not of one model; "
                "choose others"
            ) from error
    return averaged


def _record(path: Path) -> dict[str, Any]:
    """The content of config.json, less its format and checksum."""
    file = path / CONFIG
    if path.exists() and not file.is_file():
        raise DamagedCheckpointError(f"{path} holds no model (no {CONFIG})")
    try:
        record = read_json(file)
        expected = record.pop("checksum", None)  # models of before it was written have none
        if expected is not None and expected != _checksum(record):
            raise UsageError('it is damaged, or was edited: if so, take its "checksum" out')
    except (DataError, OSError, RecursionError, UsageError) as error:
        raise _damaged(file, error) from error
    written = record.pop("format", None)
    if written != FORMAT:
        raise CheckpointError(
            f"{file} has format {written}, but this version of tfm reads format {FORMAT}: "
            "load it with the version that wrote it, or train again"
        )
    if not isinstance(record.get("sha256"), dict):
        raise _damaged(file, None)
    return record


def _checksum(record: Mapping[str, Any]) -> str:
    """The SHA-256 of what config.json says."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _info(record: dict[str, Any]) -> ModelInfo:
    """What a record says, once it is known to be of the right types.

    Raises:
        Exception: One of _NONSENSE: it is not.
    """
    if any(not isinstance(record.get(name, {}), dict) for name in ("run", "metrics", "search")):
        raise TypeError("no table")
    source_size, target_size = record["vocab_sizes"]
    run = run_config(None, record["run"])
    tuples = {"vocab_sizes": (source_size, target_size), "averaged": tuple(record["averaged"])}
    info = ModelInfo(**{**record, **tuples, "run": run})
    counts = (*info.vocab_sizes, info.step, *info.averaged)
    texts = (info.source, info.target, info.fingerprint, info.data_dir, info.task, *info.metrics)
    sound = (
        all(type(count) is int and count >= 0 for count in counts)
        and all(type(text) is str for text in texts)
        and info.task in SCORES
        and all(type(figure) in (int, float) for figure in info.metrics.values())
    )
    if not sound:
        raise TypeError("values of other types")
    return info


def _whole(path: Path, name: str) -> Path:
    """A file of a model folder, once it is known to be as it was written."""
    file = path / name
    if Path(name).name != name:
        raise _damaged(path / CONFIG, None)  # it points elsewhere
    if not file.exists():
        raise _damaged(file, FileNotFoundError())
    try:
        # What is no file, such as a pipe, might never end.
        is_whole = file.is_file() and sha256_of(file) == _record(path)["sha256"][name]
    except (OSError, KeyError) as error:
        raise _damaged(file, error) from error
    if not is_whole:
        raise _damaged(file, None)
    return file


def _damaged(file: Path, error: Exception | None) -> CheckpointError:
    """What to raise about a file that cannot be used, whatever it is that keeps it from it."""
    if not file.parent.exists():
        return CheckpointError(
            f"{file.parent} was removed while it was read: if it is of a run that trains on, "
            "do the same again"
        )
    kind: type[CheckpointError] = DamagedCheckpointError
    match error:
        case FileNotFoundError():
            reason = "it is missing"
        case OSError():
            kind, reason = CheckpointError, str(error.strerror or error)
        case UsageError():
            reason = str(error)
        case _:
            reason = "it is damaged"
    return kind(f"cannot read {file}: {reason}; choose another checkpoint")
