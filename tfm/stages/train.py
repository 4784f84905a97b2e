"""tfm train: a binarized dataset → a run folder with checkpoints, metrics and a report."""

import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from tfm.config import RunConfig, TransformerConfig, run_toml
from tfm.data.dataset import DatasetIndex, ParallelDataset
from tfm.data.manifest import Manifest
from tfm.data.subword import Vocabulary
from tfm.data.text import read_pairs
from tfm.errors import DataError, UsageError
from tfm.model.build import new_model
from tfm.model.cost import model_cost
from tfm.runtime.checkpoint import (
    ModelInfo,
    checkpoint_path,
    checkpoints,
    load_info,
    load_training_state,
    prune_checkpoints,
    save_checkpoint,
)
from tfm.runtime.device import Compute, choose_compute, single_precision_flops
from tfm.runtime.files import write_text
from tfm.runtime.interruption import InterruptedRunError, StopRequests
from tfm.runtime.metrics import MetricsLog
from tfm.runtime.report import write_report
from tfm.runtime.reporting import Progress, say
from tfm.stages.validation import Validator
from tfm.training.trainer import StepReport, Trainer
from tfm.training.window import Window
from tfm.translator import load_model

# A run that is resumed must not change these, or it would be another run.
_FIXED_SECTIONS = ("model", "optimizer", "batching")


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where the run is and how far it has come."""

    run_dir: Path
    step: int
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """A dataset, checked and opened.

    Attributes:
        data_dir: Its folder.
        vocabulary: Its subword models.
        train: Training pairs.
        valid: Validation pairs; None if there are none.
        valid_sources: The plain text of its sources.
        valid_references: What they are scored against: translations, or for a parser trees.
        info: What a model trained on it is.
    """

    data_dir: Path
    vocabulary: Vocabulary
    train: ParallelDataset
    valid: ParallelDataset | None
    valid_sources: list[str]
    valid_references: list[str]
    info: ModelInfo


def open_data(data_dir: Path, run: RunConfig) -> TrainingData:
    """Open a dataset for training.

    Raises:
        DataError: It is not binarized, damaged, or binarized with another subword model.
        UsageError: The model's settings do not suit it.
    """
    manifest = Manifest.load(data_dir)
    vocabulary = Vocabulary.load(data_dir)
    index = DatasetIndex.load(data_dir / "bin")
    if index.fingerprint != vocabulary.fingerprint:
        raise DataError(
            f"{data_dir}/bin was binarized with subword model {index.fingerprint[:8]}, but "
            f'{data_dir} has {vocabulary.fingerprint[:8]}: run "tfm binarize" again'
        )
    if not vocabulary.is_joint and run.model.tied_embeddings == "three-way":
        raise UsageError(
            f"{data_dir} has a vocabulary for each language, but three-way tied embeddings need "
            "a joint one: use --tied-embeddings two-way, or learn a joint vocabulary"
        )
    vocab_sizes = (len(vocabulary.source), len(vocabulary.target))
    train = ParallelDataset(data_dir / "bin", "train", vocab_sizes=vocab_sizes)
    if not len(train):
        raise DataError(f"{data_dir} has no training pairs: see its manifest.json for the reason")
    valid = None
    sources, references = [], []
    if index.num_pairs.get("valid"):
        valid = ParallelDataset(data_dir / "bin", "valid", vocab_sizes=vocab_sizes)
        paths = manifest.text_path("valid", manifest.source), manifest.reference_path("valid")
        for source, reference in read_pairs(*paths, strict=True, num_lines=len(valid)):
            sources.append(source.decode())
            references.append(reference.decode())
    _check_lengths(data_dir, [train, *([valid] if valid is not None else [])], run)
    return TrainingData(
        data_dir=data_dir,
        vocabulary=vocabulary,
        train=train,
        valid=valid,
        valid_sources=sources,
        valid_references=references,
        info=ModelInfo(
            run=run,
            source=manifest.source,
            target=manifest.target,
            vocab_sizes=vocab_sizes,
            fingerprint=vocabulary.fingerprint,
            data_dir=str(data_dir),
            step=0,
            task=manifest.task,
            search=manifest.settings("search"),
        ),
    )


def _check_lengths(data_dir: Path, splits: list[ParallelDataset], run: RunConfig) -> None:
    """Refuse sentences that are longer than the positions that a model would learn."""
    limit = run.model.learned_positions if isinstance(run.model, TransformerConfig) else None
    if limit is None:
        return
    sides = (side for split in splits for side in (split.source, split.target))
    longest = 1 + max(int(side.lengths().max(initial=0)) for side in sides)  # with EOS
    if longest > limit:
        raise UsageError(
            f"{data_dir} has a sentence of {longest:,} tokens, more than the {limit:,} learned "
            f"positions: use --learned-positions {longest} or more, or prepare the data with a "
            "smaller --max-length"
        )


def train(data_dir: Path, run_dir: Path, run: RunConfig) -> TrainResult:
    """Train a model, or go on where the run folder's newest checkpoint stands.

    Args:
        data_dir: The dataset folder.
        run_dir: The run folder.
        run: All settings.

    Raises:
        DataError: The dataset cannot be used.
        UsageError: Settings do not suit dataset or device, or are not those of the run to resume.
        TrainingError: The loss is no longer finite.
        InterruptedRunError: A signal asked to stop; the run is saved.
    """
    data = open_data(data_dir, run)
    compute = choose_compute(run.training.device, run.training.precision)
    session = _Session(run_dir, data, compute)
    session.resume()
    run_dir.mkdir(parents=True, exist_ok=True)
    write_text(run_dir / "config.toml", run_toml(run))
    if session.is_finished():
        say(f"train: {run_dir} is finished at step {session.trainer.position.step:,}")
    else:
        say(f"train: {run_dir} on {data_dir}, {compute}")
        with StopRequests() as stop:
            session.loop(stop)
    return TrainResult(run_dir=run_dir, step=session.trainer.position.step, metrics=session.metrics)


class _Session:
    """One sitting of a run: the trainer, and all that is done between its steps."""

    def __init__(self, run_dir: Path, data: TrainingData, compute: Compute) -> None:
        self._run_dir = run_dir
        self._data = data
        self._run = data.info.run
        self._compute = compute
        torch.manual_seed(self._run.training.seed)
        source_size, target_size = data.info.vocab_sizes
        self._model = new_model(
            self._run.model, source_vocab_size=source_size, target_vocab_size=target_size
        )
        self._cost = model_cost(
            self._run.model,
            source_vocab_size=source_size,
            target_vocab_size=target_size,
            max_tokens=self._run.batching.max_tokens,
        )
        self._validator = None
        if data.valid is not None:
            self._validator = Validator(
                data.valid,
                data.valid_sources,
                data.valid_references,
                vocabulary=data.vocabulary,
                info=data.info,
                compute=compute,
            )
        self.trainer = self._new_trainer()
        self.metrics: dict[str, float] = {}  # of the newest validation
        self._best: float | None = None
        self._validations_since_best = 0
        self._minutes_before = 0.0
        # The paper's estimate of a training's cost (§6.1): its time by what the device can do.
        self._capacity = single_precision_flops(compute.device)
        self._capacity_flops = 0.0
        self._window = Window()
        self._started = self._saved_at = time.monotonic()

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        present = checkpoints(self._run_dir)
        if not present:
            return
        info = load_info(present[-1])
        _check_same_run(info, self._data.info, self._run_dir)
        self._model = load_model(present[-1], info)
        self.trainer = self._new_trainer()
        state = load_training_state(present[-1])
        self.trainer.load_state(state["trainer"])
        self._best = state["best"]
        self._validations_since_best = state["validations_since_best"]
        self._minutes_before = state["minutes"]
        self._capacity_flops = state["capacity_flops"]
        self._window = Window(StepReport(**report) for report in state["window"])
        self.metrics = dict(info.metrics)
        say(f"train: resuming {self._run_dir} at step {info.step:,}")

    def is_finished(self) -> bool:
        """Whether one of the limits of the run is reached."""
        limits = self._run.training
        position = self.trainer.position
        epochs_done = position.epoch - 1 + position.batch // self.trainer.batcher.num_batches()
        return (
            position.step >= limits.max_steps
            or (limits.max_epochs is not None and epochs_done >= limits.max_epochs)
            or (limits.max_minutes is not None and self._minutes() >= limits.max_minutes)
            or (limits.patience is not None and self._validations_since_best >= limits.patience)
        )

    def loop(self, stop: StopRequests) -> None:
        """Train until a limit is reached or a signal asks to stop."""
        log = MetricsLog(self._run_dir, step=self.trainer.position.step)
        with Progress(
            "train", total=self._last_step(), unit="steps", initial=self.trainer.position.step
        ) as bar:
            for report in self.trainer:
                self._window.add(report)
                self._capacity_flops += report.seconds * self._capacity
                bar.update(1, figures=self._window.figures())
                if report.step % self._run.training.log_steps == 0:
                    log.append(self._record())
                finished = self.is_finished()
                if finished or self._is_due(report.step):
                    log.append(self._validate(report))
                    self._save(self.metrics)
                    write_report(self._run_dir)
                elif stop.exit_code is not None:
                    self._save({})
                if finished or self.is_finished():  # patience may have run out just now
                    return
                if stop.exit_code is not None:
                    raise InterruptedRunError(
                        f"stopped and saved at step {report.step:,}; "
                        "the same command goes on from there",
                        exit_code=stop.exit_code,
                    )

    def _new_trainer(self) -> Trainer:
        model = self._model.to(self._compute.device)
        return Trainer(model, self._data.train, self._run, self._compute, cost=self._cost)

    def _last_step(self) -> int:
        limits = self._run.training
        if limits.max_epochs is None:
            return limits.max_steps
        return min(limits.max_steps, limits.max_epochs * self.trainer.batcher.num_batches())

    def _minutes(self) -> float:
        return self._minutes_before + (time.monotonic() - self._started) / 60

    def _is_due(self, step: int) -> bool:
        training = self._run.training
        if training.checkpoint_steps is not None:
            return step % training.checkpoint_steps == 0
        return time.monotonic() - self._saved_at >= 60 * training.checkpoint_minutes

    def _record(self) -> dict[str, Any]:
        """The line for metrics.jsonl on the steps since the last one."""
        position = self.trainer.position
        record = self._window.record() | {
            "tokens": position.tokens,
            "total_flops": position.flops,
            "capacity_flops_per_second": self._capacity,
            "paper_estimate_flops": self._capacity_flops,
            "minutes": self._minutes(),
        }
        self._window = Window()
        return record

    def _validate(self, report: StepReport) -> dict[str, Any]:
        """Measure the model on the validation split; return the line for metrics.jsonl."""
        record: dict[str, Any] = {
            "kind": "validation",
            "step": report.step,
            "epoch": report.epoch,
            "minutes": self._minutes(),
        }
        if self._validator is None:
            return record
        validation = self._validator.validate(self._model)
        self.metrics = validation.metrics
        self._note_best()
        say(f"valid: step {report.step:,} · {self._minutes():.1f} min · {validation}")
        if validation.score is not None:
            record["signature"] = validation.score.signature
        return record | self.metrics

    def _note_best(self) -> None:
        info = replace(self._data.info, metrics=self.metrics)
        quality = info.quality(self._run.training.best_metric)
        if self._best is None or (quality is not None and quality > self._best):
            self._best, self._validations_since_best = quality, 0
        else:
            self._validations_since_best += 1

    def _save(self, metrics: dict[str, float]) -> None:
        step = self.trainer.position.step
        save_checkpoint(
            checkpoint_path(self._run_dir, step),
            replace(self._data.info, step=step, metrics=metrics),
            dict(self._model.named_parameters()),
            subword_files=self._data.vocabulary.files(),
            training_state={
                "trainer": self.trainer.state(),
                "best": self._best,
                "validations_since_best": self._validations_since_best,
                "minutes": self._minutes(),
                "capacity_flops": self._capacity_flops,
                "window": self._window.state(),
            },
        )
        prune_checkpoints(self._run_dir)
        self._saved_at = time.monotonic()


def _check_same_run(saved: ModelInfo, asked: ModelInfo, run_dir: Path) -> None:
    """Refuse to go on with settings or data that would make it another run."""
    changes = [
        f"{section}.{item.name} was {before}, not {after}"
        for section in _FIXED_SECTIONS
        for item in fields(getattr(saved.run, section))
        if (before := getattr(getattr(saved.run, section), item.name))
        != (after := getattr(getattr(asked.run, section), item.name))
    ]
    if saved.run.training.seed != asked.run.training.seed:
        changes.append(f"training.seed was {saved.run.training.seed}")
    if saved.fingerprint != asked.fingerprint:
        changes.append(f"its subword model was {saved.fingerprint[:8]}")
    if changes:
        raise UsageError(
            f"{run_dir} was started with other settings ({'; '.join(changes)}): "
            "use those, or another folder with --run"
        )
