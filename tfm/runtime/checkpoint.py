"""Model folders: weights, settings, subword model and, while training, the state to go on from.

    runs/NAME/checkpoints/step-00001000/{model.safetensors, config.json, bpe.model, training.pt}
    runs/NAME/averaged/{model.safetensors, config.json, bpe.model}

A folder appears under its name only when it is complete. Nothing in it is ever unpickled.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tfm.config import RunConfig, run_config, run_table
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.runtime.files import atomic_directory, read_json, sha256_of, write_json

FORMAT = 1
_STATES_KEPT = 2
_LIKE_A_FOLDER = "step-????????"

Metric = Literal["loss", "score"]
# What a task is scored by, as its validation names it.
SCORES: Mapping[str, str] = {"translation": "bleu", "parsing": "f1"}
Weights = Mapping[str, Tensor]


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
        if metric == "score":
            return self.metrics.get(SCORES[self.task])
        loss = self.metrics.get("loss")
        return None if loss is None else -loss


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
        training_state: What is needed to train on; tensors and plain values only.

    Raises:
        CheckpointError: It cannot be written; what was there before stands.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    with atomic_directory(path) as folder:
        try:
            safetensors.torch.save_file(tensors, folder / "model.safetensors")
            if training_state is not None:
                torch.save(dict(training_state), folder / "training.pt")
        except (SafetensorError, RuntimeError) as error:  # what a full disk is to them
            raise CheckpointError(f"cannot write {path}: {error}; is the disk full?") from error
        for name, content in subword_files.items():
            (folder / name).write_bytes(content)
        digests = {file.name: sha256_of(file) for file in sorted(folder.iterdir())}
        record = {"format": FORMAT, **asdict(info), "run": run_table(info.run), "sha256": digests}
        write_json(folder / "config.json", record)


def load_info(path: Path) -> ModelInfo:
    """Read what a model is.

    Raises:
        CheckpointError: The folder holds no model, or one of another format.
    """
    record = _record(path)
    try:
        del record["sha256"]
        record["run"] = run_config(None, record["run"])
        record["vocab_sizes"] = tuple(record["vocab_sizes"])
        record["averaged"] = tuple(record["averaged"])
        return ModelInfo(**record)
    except (KeyError, TypeError, UsageError) as error:
        raise _damaged(path / "config.json", error) from error


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read the parameters of a model folder.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    return safetensors.torch.load_file(_whole(path, "model.safetensors"))


def load_training_state(path: Path) -> dict[str, Any]:
    """Read what is needed to train on.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    file = _whole(path, "training.pt")
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints' parameters (§6.1), summed in float64 one tensor at a time.

    Raises:
        CheckpointError: They are damaged, or not of one model.
    """
    averaged: dict[str, Tensor] = {}
    files = [_whole(path, "model.safetensors") for path in paths]
    try:
        with safe_open(files[0], "pt") as first:
            names = list(first.keys())
        for name in names:
            total: Tensor | float = 0.0
            for file in files:
                with safe_open(file, "pt") as weights:
                    total = total + weights.get_tensor(name).double()
            averaged[name] = (torch.as_tensor(total) / len(files)).float()
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(
            f"cannot average {', '.join(map(str, paths))}, which are not of one model; "
            "choose others"
        ) from error
    return averaged


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return run_dir / "checkpoints" / f"step-{step:08d}"


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((run_dir / "checkpoints").glob(_LIKE_A_FOLDER))


def best_checkpoints(run_dir: Path, metric: Metric) -> list[Path]:
    """The validated checkpoints of a run, best first; the newer of equals first."""
    infos = [(load_info(path), path) for path in checkpoints(run_dir)]
    scored = [
        (quality, info.step, path)
        for info, path in infos
        if (quality := info.quality(metric)) is not None
    ]
    return [path for *_, path in sorted(scored, reverse=True)]


def prune_checkpoints(run_dir: Path) -> None:
    """Keep the newest and the best checkpoints, as many as the run's settings say.

    The state to train on from stays in the two newest only: it is twice the size of the model.
    """
    for leftover in (run_dir / "checkpoints").glob(".*"):  # of a run that was killed
        shutil.rmtree(leftover)
    present = checkpoints(run_dir)
    settings = load_info(present[-1]).run.training
    best = best_checkpoints(run_dir, settings.best_metric)[: settings.keep_best]
    kept = {*present[-settings.keep_last :], *best}
    for path in present:
        if path not in kept:
            _remove_folder(path)
        elif path not in present[-_STATES_KEPT:]:
            (path / "training.pt").unlink(missing_ok=True)


def find_model(path: Path) -> Path:
    """The model folder that a path means.

    Args:
        path: A model folder, or a run's: of that, the average, else the best or newest
            checkpoint.

    Raises:
        CheckpointError: There is none.
    """
    if (path / "config.json").is_file():
        return path
    if (path / "averaged" / "config.json").is_file():
        return path / "averaged"
    present = checkpoints(path)
    if not present:
        raise CheckpointError(f"{path} is no run or model folder: train one with tfm train")
    best = best_checkpoints(path, load_info(present[-1]).run.training.best_metric)
    return best[0] if best else present[-1]


def newest_run(runs_dir: Path) -> Path:
    """The run that was last written to.

    Raises:
        CheckpointError: There is none with a checkpoint.
    """
    newest = {
        run.parent: max(map(_changed, checkpoints(run.parent)), default=0.0)
        for run in runs_dir.glob("*/checkpoints")
    }
    newest = {run: time for run, time in newest.items() if time}
    if not newest:
        raise CheckpointError(f'{runs_dir}/ holds no run with a checkpoint: start with "tfm train"')
    return max(newest, key=newest.__getitem__)


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def _remove_folder(path: Path) -> None:
    """Remove a folder so that no half of it is ever seen under its name."""
    outgoing = path.with_name(f".{path.name}.old")
    os.replace(path, outgoing)
    shutil.rmtree(outgoing)


def _record(path: Path) -> dict[str, Any]:
    """The content of config.json."""
    file = path / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{path} holds no model (no config.json)")
    try:
        record = read_json(file)
    except DataError as error:
        raise _damaged(file, error) from error
    if record.pop("format", None) != FORMAT:
        raise CheckpointError(f"{file} is not of format {FORMAT}: use the tfm that wrote it")
    return record


def _whole(path: Path, name: str) -> Path:
    """A file of a model folder, once it is known to be as it was written."""
    file = path / name
    try:
        is_whole = sha256_of(file) == _record(path)["sha256"][name]
    except (FileNotFoundError, KeyError, TypeError) as error:
        raise _damaged(file, error) from error
    if not is_whole:
        raise _damaged(file, None)
    return file


def _damaged(file: Path, error: Exception | None) -> CheckpointError:
    match error:
        case FileNotFoundError():
            reason = "it is missing"
        case UsageError():
            reason = str(error)
        case _:
            reason = "it is damaged"
    return CheckpointError(f"cannot read {file}: {reason}; choose another checkpoint")
