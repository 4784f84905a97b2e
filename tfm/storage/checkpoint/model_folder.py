"""Model folders: written atomically, verified when they are read."""

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tfm.config import RunConfig, SearchConfig, Task, run_config, run_table
from tfm.config.schema import from_table
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.storage.checkpoint.calibration import Calibration
from tfm.storage.checkpoint.tensor_file import read_state, write_state, write_tensors
from tfm.storage.files import atomic_directory, read_json, sha256_of, write_json

FORMAT = 2
WEIGHTS, STATE, CONFIG = "model.safetensors", "training.safetensors", "config.json"

# The metric of each task, by its name in validation.
SCORES: Mapping[Task, str] = {"translation": "bleu", "parsing": "f1"}

# Errors of files with a correct checksum whose content is not safetensors, or not a state.
_UNREADABLE = (SafetensorError, OSError, RuntimeError, ValueError)
_INVALID = (LookupError, TypeError, RecursionError)


class DamagedCheckpointError(CheckpointError):
    """A model folder whose files have changed since they were written."""


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """A model that the training of another one started from.

    Attributes:
        path: Its folder, as the user gave it.
        data_dir: Its training dataset.
        step: Number of its training steps.
        sha256: Checksum of its weights.
    """

    path: str
    data_dir: str
    step: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Description of a model, besides its weights.

    Attributes:
        run: Settings of its training.
        source: Source language.
        target: Target language.
        vocab_sizes: Number of source and target pieces.
        fingerprint: The vocabulary's fingerprint.
        data_dir: Training dataset, as the user gave it.
        step: Number of training steps.
        metrics: Validation loss (nats per token), perplexity, score; empty without validation.
        averaged: Steps of the checkpoints that it averages; empty if it is not an average.
        task: "translation" or "parsing".
        search: Values of SearchConfig that suit its dataset better than the defaults.
        normalizes_space: Whether the white space of its training text was normalized, so that text
            to translate must be, too. Folders of older versions lack it and get prepare's default.
        calibration: The confidence in its translations; None if it was not calibrated.
        ancestors: The models that its training started from, oldest first; empty if from scratch.
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
    task: Task = "translation"
    search: Mapping[str, Any] = field(default_factory=dict)
    normalizes_space: bool = True
    calibration: Calibration | None = None
    ancestors: tuple[Ancestor, ...] = ()

    def quality(self, metric: str) -> float | None:
        """Return its validation score or negated loss; None if it was not measured.

        The metric is "loss" or "score", or that of a further validation set: "NAME:loss".
        """
        prefix, colon, kind = metric.rpartition(":")
        name, sign = (SCORES[self.task], 1) if kind == "score" else ("loss", -1)
        figure = self.metrics.get(f"{prefix}{colon}{name}")
        return None if figure is None or math.isnan(figure) else sign * figure


def save_checkpoint(
    path: Path,
    info: ModelInfo,
    weights: Mapping[str, Tensor],
    *,
    subword_files: Mapping[str, bytes],
    training_state: Mapping[str, Any] | None = None,
) -> None:
    """Write a model folder atomically.

    It holds the parameters, of any shape, each under one name; the subword models by file name; and
    the tensors and plain values needed to resume training.

    Raises:
        OSError: It cannot be written; an existing folder is unchanged.
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
    """Read the description of a model, and verify its subword models.

    Raises:
        CheckpointError: The folder holds no model, or one of another format.
        DamagedCheckpointError: A file has changed since it was written.
    """
    record = _read_record(path)
    for name in record.pop("sha256"):
        if name not in (WEIGHTS, STATE):
            _verify(path, name)
    try:
        return _parse_info(record)
    except (UsageError, ValueError) as error:
        raise _damaged(path / CONFIG, UsageError(str(error))) from error


def check_model(path: Path, *, needs_state: bool = False) -> ModelInfo:
    """Verify all files of a model folder; with `needs_state`, one must be the training state.

    Raises:
        CheckpointError: The folder holds no model, or one of another format.
        DamagedCheckpointError: A file is missing or has changed since it was written.
    """
    info = load_info(path)
    _verify(path, WEIGHTS)
    if needs_state or (path / STATE).exists():
        _verify(path, STATE)
    return info


def as_ancestor(path: Path) -> Ancestor:
    """Describe the model of a folder for the models that start from it.

    Raises:
        CheckpointError: The folder holds no model, or a damaged one.
    """
    info, record = load_info(path), _read_record(path)
    return Ancestor(
        path=str(path),
        data_dir=info.data_dir,
        step=info.step,
        sha256=str(record["sha256"].get(WEIGHTS)),
    )


def load_weights(path: Path) -> dict[str, Tensor]:
    """Return the parameters of a model folder, of any shape, by name.

    The tensors are views of the memory-mapped file: copy them to keep them.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    file = _verify(path, WEIGHTS)
    try:
        return safetensors.torch.load_file(file)
    except _UNREADABLE as error:
        raise _damaged(file, error) from error


def load_training_state(path: Path) -> dict[str, Any]:
    """Return the training state of a checkpoint, in memory of its own.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    file = _verify(path, STATE)
    try:
        state = read_state(file)
        if not isinstance(state, dict):
            raise TypeError("not a mapping")
    except (*_INVALID, *_UNREADABLE) as error:
        raise _damaged(file, error) from error
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
            files = [stack.enter_context(safe_open(_verify(p, WEIGHTS), "pt")) for p in paths]
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


def _read_record(path: Path) -> dict[str, Any]:
    """Return the verified content of config.json, without its format and checksum."""
    file = path / CONFIG
    if path.exists() and not file.is_file():
        raise DamagedCheckpointError(f"{path} holds no model (no {CONFIG})")
    try:
        record = read_json(file)
        expected = record.pop("checksum", None)  # missing in models of older versions
        if expected is not None and expected != _checksum(record):
            raise UsageError('it is damaged or was edited: if you edited it, remove its "checksum"')
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
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _parse_info(record: dict[str, Any]) -> ModelInfo:
    """Return the description in a record.

    Raises:
        UsageError, ValueError: Values are missing, unknown or wrong.
    """
    if isinstance(run := record.get("run"), dict):
        _remove_older_settings(run.get("training"))
        record = {**record, "run": run_config(None, run)}
    info = from_table(ModelInfo, record)
    SearchConfig.for_model(info.search, {})  # raises UsageError if a value is out of range
    return info


def _remove_older_settings(training: Any) -> None:
    """Remove the settings of older versions that have no effect any more."""
    if isinstance(training, dict):
        if "checkpoint_steps" in training:
            training.pop("checkpoint_minutes", None)
        training.pop("cuda_graphs", None)
        if training.get("kernels") == "fast":
            training["kernels"] = "auto"


def _verify(path: Path, name: str) -> Path:
    """Return the path of a file whose checksum is correct; raise an error otherwise."""
    file = path / name
    if Path(name).name != name:
        raise _damaged(path / CONFIG, None)  # the record names a file outside of the folder
    if not file.exists():
        raise _damaged(file, FileNotFoundError())
    try:
        # Reading something else than a file, such as a pipe, might never end.
        is_intact = file.is_file() and sha256_of(file) == _read_record(path)["sha256"][name]
    except (OSError, KeyError) as error:
        raise _damaged(file, error) from error
    if not is_intact:
        raise _damaged(file, None)
    return file


def _damaged(file: Path, error: Exception | None) -> CheckpointError:
    """Return the error that describes why a file cannot be used."""
    if not file.parent.exists():
        return CheckpointError(
            f"{file.parent} was removed while it was read: if its run is still training, try again"
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
