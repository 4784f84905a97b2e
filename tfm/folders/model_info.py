"""The description of a model in its folder, config.json, which verifies the other files.

Reading it does not import torch.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tfm.config import (
    LATEST_NORMALIZATION,
    BleuTokenizer,
    Normalization,
    RunConfig,
    SearchConfig,
    Task,
    run_config,
    run_table,
)
from tfm.config.values import Measured, from_table
from tfm.disk.files import is_utf8, read_json, write_json
from tfm.errors import CheckpointError, DataError, UsageError

FORMAT = 1
PORTABLE = "tfm"  # the section for `Portable` in the config.json of an export to transformers
WEIGHTS, STATE, CONFIG = "model.safetensors", "training.safetensors", "config.json"
ALIGNMENT = "alignment.json"  # which heads align words, once they are chosen
# Files of a folder whose record is damaged.
_USUAL_FILES = (WEIGHTS, STATE, "bpe.model", "bpe.source.model", "bpe.target.model")


class DamagedCheckpointError(CheckpointError):
    """A model folder whose files have changed since they were written."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The expected quality of translations, by their probability.

    Attributes:
        num_lines: Number of translations that it was measured on.
        log_probs: Knots: log probabilities per token, EOS included, in nats; ascending.
        qualities: Mean sentence chrF at each knot, from 0 to 1; ascending.
    """

    num_lines: int
    log_probs: tuple[float, ...]
    qualities: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.log_probs) == len(self.qualities):
            raise ValueError("log_probs and qualities must be as many numbers")
        is_ascending = sorted(self.log_probs) == [*self.log_probs]
        if not is_ascending or not 0 <= min(self.qualities) <= max(self.qualities) <= 1:
            raise ValueError("log_probs must be ascending, and qualities from 0 to 1")


@dataclass(frozen=True)
class KnownPair:
    """A pair of token ids and its log probability by torch, which verifies other engines.

    Attributes:
        source: Token ids, without EOS.
        target: Token ids, without EOS.
        log_prob: In nats, EOS included.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    log_prob: float


# The metric of each task, by its name in validation.
SCORES: Mapping[Task, str] = {"translation": "bleu", "parsing": "f1"}
MAX_NOISE = 1.0  # scores up to here depend on chance: the model has hardly learned


def ranking_metric(metric: str, best: float | None) -> str:
    """Return the metric that ranks models if their best `ModelInfo.quality` is this.

    It is the metric itself, but the loss in place of a score that is noise so far.
    """
    prefix, colon, kind = metric.rpartition(":")
    is_noise = kind == "score" and (best is None or best <= MAX_NOISE)
    return f"{prefix}{colon}loss" if is_noise else metric


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """A model from which the training of another model started.

    Attributes:
        path: Its folder, as the user gave it.
        data_dir: Its training dataset.
        step: Number of its training steps.
        sha256: Checksum of its weights.
        license: The license that its card names, of a model of another program; None if unknown.
        origin: Address or name that the model was made from or fetched by; None if unknown.
        seen: Checksum of the record of its training text; None if there is none.
    """

    path: str
    data_dir: str
    step: int
    sha256: str
    license: str | None = None
    origin: str | None = None
    seen: str | None = None


@dataclass(frozen=True, kw_only=True)
class Portable:
    """The part of the description of a model that goes with it to another program and back.

    Attributes:
        source: Source language.
        target: Target language.
        search: Values of SearchConfig that suit its dataset better than the defaults.
        normalization: The rules of its training text, which text to translate must follow, too.
        tags: The tags before the sources of its training texts; empty if a text has none.
    """

    source: str
    target: str
    search: Mapping[str, Any] = field(default_factory=dict)
    normalization: Normalization = LATEST_NORMALIZATION
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelInfo(Portable):
    """Description of a model, besides its weights.

    Attributes:
        run: Settings of its training.
        vocab_sizes: Number of source and target pieces.
        fingerprint: The vocabulary's fingerprint.
        data_dir: Training dataset, as the user gave it.
        step: Number of training steps.
        metrics: Validation loss (nats per token), perplexity, score; empty without validation.
        averaged: Steps of the checkpoints that it averages; empty if it is not an average.
        task: "translation" or "parsing".
        calibration: The confidence in its translations; None if it was not calibrated.
        ancestors: The models that its training started from, oldest first; empty if from scratch.
        bleu_tokenizer: The tokenizer of BLEU in validation, from when the run was started.
        seen: Checksum of the record of its training text; None if there is none.
        known: A pair that verifies other engines; None if torch gives it no finite probability.
    """

    run: RunConfig
    vocab_sizes: tuple[int, int]
    fingerprint: str
    data_dir: str
    step: int
    metrics: Mapping[str, Measured] = field(default_factory=dict)
    averaged: tuple[int, ...] = ()
    task: Task = "translation"
    calibration: Calibration | None = None
    ancestors: tuple[Ancestor, ...] = ()
    bleu_tokenizer: BleuTokenizer = "13a"
    seen: str | None = None
    known: KnownPair | None = None

    @property
    def purpose(self) -> str:
        """The purpose of the model in words, such as its languages."""
        return f"{self.task} from {self.source} to {self.target}"

    @property
    def portable(self) -> Portable:
        """The part that another program keeps."""
        return Portable(**{each.name: getattr(self, each.name) for each in fields(Portable)})

    @property
    def license(self) -> str | None:
        """The license that the user gave it, or else the license of the last ancestor with one."""
        return self.run.training.license or self._of_ancestors("license")

    @property
    def origin(self) -> str | None:
        """The address or name of the imported model that it comes from; None if unknown."""
        return self._of_ancestors("origin")

    def without_seed(self) -> tuple[str, int] | None:
        """Return all that its training depends on but the seed, and the seed; None if imported."""
        if not self.step:
            return None
        run = replace(self.run, training=replace(self.run.training, seed=0))
        ancestors = [each.sha256 for each in self.ancestors]
        text = (self.fingerprint, self.seen or self.data_dir, ancestors)
        return repr((run, *text, len(self.averaged))), self.run.training.seed

    def _of_ancestors(self, name: str) -> str | None:
        found = (getattr(each, name) for each in reversed(self.ancestors))
        return next((value for value in found if value is not None), None)

    def quality(self, metric: str) -> float | None:
        """Return its validation score or negated loss; None if it was not measured.

        The metric is "loss", "score" or "command", or belongs to a further validation set:
        "NAME:loss". The negated loss replaces a score that is noise; it is below all scores.
        """
        prefix, colon, kind = metric.rpartition(":")
        name, sign = (SCORES[self.task] if kind == "score" else kind), (-1 if kind == "loss" else 1)
        figure = self.metrics.get(f"{prefix}{colon}{name}")
        if figure is None or math.isnan(figure):
            return None
        by = ranking_metric(metric, figure)
        return sign * figure if by == metric else self.quality(by)

    def record(self) -> dict[str, Any]:
        """Return JSON values from which `of_record` makes the same description."""
        return {**asdict(self), "run": run_table(self.run)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "ModelInfo":
        """Return the description in a record."""
        if isinstance(run := record.get("run"), dict):
            record = {**record, "run": run_config(None, run)}
        info = from_table(cls, record)
        SearchConfig.for_model(info.search, {})  # raises UsageError if a value is out of range
        return info


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
        return frozenset([CONFIG, ALIGNMENT, *read_description(folder)["sha256"]])
    except CheckpointError:
        return frozenset([CONFIG, ALIGNMENT, *_USUAL_FILES])


def write_description(folder: Path, info: ModelInfo, digests: Mapping[str, str]) -> None:
    """Write the description of a model beside its files, whose SHA-256 are given by name."""
    record = {"format": FORMAT, **info.record(), "sha256": digests}
    write_json(folder / CONFIG, {**record, "checksum": checksum_of(record)})


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
            reason = " ".join(str(error).split())  # several problems have a line each
        case _:
            renamed = "its path is not UTF-8: rename the folder"
            reason = "it is damaged" if is_utf8(file) else renamed
    return kind(f"cannot read {file}: {reason}; choose another checkpoint")


def read_description(path: Path) -> dict[str, Any]:
    """Return the verified content of config.json, without its format and checksum."""
    file = path / CONFIG
    if path.exists() and not file.is_file():
        raise DamagedCheckpointError(f"{path} holds no model (no {CONFIG})")
    try:
        record = read_json(file)
        expected = record.pop("checksum", None)  # missing if the user edited the record
        if expected is not None and expected != checksum_of(record):
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


def checksum_of(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a description without it."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
