"""The description of a model in its folder, and the checksums of all files there.

Reading it does not import torch.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tfm.config import (
    FIRST_NORMALIZATION,
    LATEST_NORMALIZATION,
    BleuTokenizer,
    Normalization,
    RunConfig,
    SearchConfig,
    Task,
    run_config,
    run_table,
)
from tfm.config.schema import Measured, from_table
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.folders.calibration import Calibration
from tfm.storage.files import read_json, sha256_of, write_json

FORMAT = 2
WEIGHTS, STATE, CONFIG = "model.safetensors", "training.safetensors", "config.json"

# Files of a folder whose record is damaged.
_USUAL_FILES = (CONFIG, WEIGHTS, STATE, "bpe.model", "bpe.source.model", "bpe.target.model")

# The metric of each task, by its name in validation.
SCORES: Mapping[Task, str] = {"translation": "bleu", "parsing": "f1"}


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
        normalization: That of its training text, by which text to translate must be read, too.
        tags: The tags before the sources of its training texts; empty if a text has none.
        calibration: The confidence in its translations; None if it was not calibrated.
        ancestors: The models that its training started from, oldest first; empty if from scratch.
        bleu_tokenizer: The tokenizer of BLEU in validation, from when the run was started.
    """

    run: RunConfig
    source: str
    target: str
    vocab_sizes: tuple[int, int]
    fingerprint: str
    data_dir: str
    step: int
    metrics: Mapping[str, Measured] = field(default_factory=dict)
    averaged: tuple[int, ...] = ()
    task: Task = "translation"
    search: Mapping[str, Any] = field(default_factory=dict)
    normalization: Normalization = LATEST_NORMALIZATION
    tags: tuple[str, ...] = ()
    calibration: Calibration | None = None
    ancestors: tuple[Ancestor, ...] = ()
    bleu_tokenizer: BleuTokenizer = "13a"

    @property
    def license(self) -> str | None:
        """The license that the user gave it; None if unknown."""
        return self.run.training.license

    def quality(self, metric: str) -> float | None:
        """Return its validation score or negated loss; None if it was not measured.

        The metric is "loss" or "score", or that of a further validation set: "NAME:loss".
        """
        prefix, colon, kind = metric.rpartition(":")
        name, sign = (SCORES[self.task], 1) if kind == "score" else ("loss", -1)
        figure = self.metrics.get(f"{prefix}{colon}{name}")
        return None if figure is None or math.isnan(figure) else sign * figure


def load_info(path: Path) -> ModelInfo:
    """Read the description of a model, and verify its subword models.

    Raises:
        CheckpointError: The folder holds no model, or one of another format.
        DamagedCheckpointError: A file has changed since it was written.
    """
    record = _read_record(path)
    for name in record.pop("sha256"):
        if name not in (WEIGHTS, STATE):
            verified_file(path, name)
    try:
        return _parse_info(record)
    except (UsageError, ValueError) as error:
        raise damaged(path / CONFIG, UsageError(str(error))) from error


def check_model(path: Path, *, needs_state: bool = False) -> ModelInfo:
    """Verify all files of a model folder; with `needs_state`, one must be the training state.

    Raises:
        CheckpointError: The folder holds no model, or one of another format.
        DamagedCheckpointError: A file is missing or has changed since it was written.
    """
    info = load_info(path)
    verified_file(path, WEIGHTS)
    if needs_state or (path / STATE).exists():
        verified_file(path, STATE)
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


def is_model(folder: Path) -> bool:
    """Return whether a folder holds a model of tfm, intact or damaged."""
    try:
        return "sha256" in read_json(folder / CONFIG)
    except FileNotFoundError:
        return False
    except (DataError, OSError):
        return (folder / WEIGHTS).is_file()


def own_files(folder: Path) -> frozenset[str]:
    """Return the names of the files that tfm wrote to a model folder; others are the user's."""
    try:
        return frozenset([CONFIG, *_read_record(folder)["sha256"]])
    except CheckpointError:
        return frozenset(_USUAL_FILES)


def num_parameters(folder: Path) -> int:
    """Return the number of parameters in a model folder, from the sizes of its tensors.

    Raises:
        CheckpointError: The weights are missing or truncated. Their checksum is not verified.
    """
    try:
        with safe_open(folder / WEIGHTS, "np") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise damaged(folder / WEIGHTS, error) from error


def write_description(folder: Path, info: ModelInfo, digests: Mapping[str, str]) -> None:
    """Write the description of a model beside its files, whose SHA-256 are given by name."""
    record = {"format": FORMAT, **asdict(info), "run": run_table(info.run), "sha256": digests}
    write_json(folder / CONFIG, {**record, "checksum": _checksum(record)})


def verified_file(path: Path, name: str) -> Path:
    """Return the path of a file whose checksum is correct; raise an error otherwise."""
    file = path / name
    if Path(name).name != name:
        raise damaged(path / CONFIG, None)  # the record names a file outside of the folder
    if not file.exists():
        raise damaged(file, FileNotFoundError())
    try:
        # Reading something else than a file, such as a pipe, might never end.
        is_intact = file.is_file() and sha256_of(file) == _read_record(path)["sha256"][name]
    except (OSError, KeyError) as error:
        raise damaged(file, error) from error
    if not is_intact:
        raise damaged(file, None)
    return file


def damaged(file: Path, error: Exception | None) -> CheckpointError:
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


def _read_record(path: Path) -> dict[str, Any]:
    """Return the verified content of config.json, without its format and checksum."""
    file = path / CONFIG
    if path.exists() and not file.is_file():
        raise DamagedCheckpointError(f"{path} holds no model (no {CONFIG})")
    try:
        record = read_json(file)
        expected = record.pop("checksum", None)  # missing if the user edited the record
        if expected is not None and expected != _checksum(record):
            raise UsageError('it is damaged or was edited: if you edited it, remove its "checksum"')
    except (DataError, OSError, RecursionError, UsageError) as error:
        raise damaged(file, error) from error
    written = record.pop("format", None)
    if written is None:
        raise CheckpointError(
            f"{file} is not of a tfm model: make one of a model of transformers or fairseq with "
            "tfm import"
        )
    if written != FORMAT:
        raise CheckpointError(
            f"{file} has format {written}, but this version of tfm reads format {FORMAT}: "
            "load it with the version that wrote it, or train again"
        )
    if not isinstance(record.get("sha256"), dict):
        raise damaged(file, None)
    return record


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _parse_info(record: dict[str, Any]) -> ModelInfo:
    """Return the description in a record.

    Raises:
        UsageError, ValueError: Values are missing, unknown or wrong.
    """
    if isinstance(run := record.get("run"), dict):
        record = {**record, "run": run_config(None, run)}
    if "normalization" not in record:
        space = record.pop("normalizes_space", True)
        record["normalization"] = asdict(replace(FIRST_NORMALIZATION, space=space))
    info = from_table(ModelInfo, record)
    SearchConfig.for_model(info.search, {})  # raises UsageError if a value is out of range
    return info
