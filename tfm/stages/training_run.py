"""The training loop: steps, metrics, validation and checkpoints."""

import math
import time
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from dataclasses import KW_ONLY, InitVar, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from tfm.data.dataset import Rows
from tfm.device.compute import Compute, measure_fp32_flops
from tfm.device.threads import ComputeThreads
from tfm.distributed.group import Group
from tfm.distributed.interruption import StopRequests
from tfm.errors import CheckpointError, InterruptedRunError, TrainingError, UsageError
from tfm.model.build import Model, load_model, new_model
from tfm.model.cost import Cost, memory_problem, model_cost
from tfm.reporting import Progress, say
from tfm.stages.training_data import TrainingData
from tfm.stages.validation import Validator
from tfm.storage.checkpoint.model_folder import STATE, load_info, load_training_state
from tfm.storage.checkpoint.run_folder import checkpoint_path
from tfm.storage.checkpoint.tensor_file import record_from
from tfm.storage.metrics_log import MetricsLog
from tfm.storage.saving import Saver
from tfm.training.progress import (
    ControlFlags,
    Heartbeat,
    PendingStep,
    StepReport,
    metrics_record,
    no_heartbeat,
    shown_figures,
)
from tfm.training.trainer import Trainer

_MAX_PAIRS_IN_MESSAGE = 10
_MAX_REASON = 100  # characters


@dataclass
class RunState:
    """The state of a run besides its trainer's, saved in every checkpoint."""

    best: float | None = None  # quality at the best validation so far
    validations_since_best: int = 0
    skipped_in_a_row: int = 0  # steps, without overflows of fp16
    owes_validation: bool = False  # a signal interrupted the last validation
    minutes: float = 0.0  # wall time before the run was last resumed
    capacity_flops: float = 0.0  # time × peak FLOP/s of the devices (the paper's estimate, §6.1)


@dataclass
class TrainingRun:
    """A training run, new or resumed, until a limit is reached or a signal stops it.

    All processes of a group call the same methods in the same order; only rank 0 writes files and
    prints.

    Attributes:
        trainer: Makes the steps.
        cost: The model's floating-point operations.
        metrics: The metrics of the newest validation.
    """

    run_dir: Path
    data: TrainingData  # with the settings of the run
    compute: Compute
    _: KW_ONLY
    group: Group = field(default_factory=Group)  # the processes that train together
    heartbeat: Heartbeat = no_heartbeat  # called with the name of each phase of the work
    stop: StopRequests = field(default_factory=StopRequests)
    checkpoint: InitVar[Path | None] = None  # where to resume; None starts a new run

    def __post_init__(self, checkpoint: Path | None) -> None:
        self._run = self.data.info.run
        self.cost = self._check_memory()
        self.heartbeat("building the model")
        model = self._new_model() if checkpoint is None else load_model(checkpoint, self.data.info)
        self._model = model.to(self.compute.device)
        self.trainer = self._new_trainer()
        self.heartbeat("measuring the speed of the device")
        self._capacity = self.group.world.size * measure_fp32_flops(self.compute.device)
        self._saver = Saver(self.run_dir, background=self._run.training.background_saving)
        self._started = self._validated_at = time.monotonic()
        self._state = RunState()
        self._unread: deque[PendingStep] = deque()
        self._window: list[StepReport] = []  # since the last line of metrics.jsonl
        self.metrics: dict[str, float] = {}
        if checkpoint is not None:
            self._resume(checkpoint)
        self._log = None
        if self.group.world.is_first:
            self._log = MetricsLog(self.run_dir, step=self.trainer.position.step)
        self._has_report = True
        self._has_printed_signature = False

    def loop(self) -> None:
        """Train until a limit is reached, with the errors of `tfm.stages.train.train`."""
        interval = self._run.training.checkpoint_steps
        with closing(self._saver), self._new_bar() as self._bar:
            if self._state.owes_validation:
                self._validate_and_save()
            self.heartbeat("waiting for all processes to start", waits=True)
            is_over = self.is_finished() or bool(self.group.largest([self._is_out_of_time()])[0])
            if is_over:
                say(f"train: {self.run_dir} has reached its limits")
            batches = self.trainer.batches()
            while not is_over:
                step, flags = self.trainer.step(next(batches), poll=self._poll)
                if step is None:
                    self._save_and_stop(flags.stop)
                self._unread.append(step)
                self._read_reports(leave=self._max_unread)
                is_over = flags.end or self.is_finished()
                is_due = interval is not None and self.trainer.position.step % interval == 0
                if is_over or flags.checkpoint or is_due:
                    self._validate_and_save()
                    is_over = is_over or self.is_finished()  # validation may exhaust the patience
                elif flags.retry:
                    self._save({})
            self.heartbeat("saving")
            self._saver.finish()

    def is_finished(self) -> bool:
        """Return whether the run has reached its steps, epochs or patience."""
        limits, position = self._run.training, self.trainer.position
        epochs_done = position.epoch - (position.examples < len(self.data.train))
        since_best = self._state.validations_since_best
        return not self._state.owes_validation and (
            position.step >= limits.max_steps
            or epochs_done >= (limits.max_epochs or math.inf)
            or since_best >= (limits.patience or math.inf)
        )

    def _is_out_of_time(self) -> bool:
        limit = self._run.training.max_minutes
        return limit is not None and self._minutes() >= limit

    def _new_bar(self) -> Progress:
        limits, steps_per_epoch = self._run.training, self.trainer.batcher.num_batches()
        deadline = None
        if limits.max_minutes is not None:
            deadline = self._started + 60 * (limits.max_minutes - self._state.minutes)
        return Progress(
            "train",
            total=int(min(limits.max_steps, (limits.max_epochs or math.inf) * steps_per_epoch)),
            unit="steps",
            initial=self.trainer.position.step,
            deadline=deadline,
        )

    def _poll(self) -> ControlFlags:
        """Return the control flags of this process."""
        training = self._run.training
        return ControlFlags(
            stop=self.stop.received or 0,
            checkpoint=training.checkpoint_steps is None
            and time.monotonic() - self._validated_at >= 60 * training.checkpoint_minutes,
            retry=self._saver.is_retry_due(),
            end=self._is_out_of_time(),
        )

    def _minutes(self) -> float:
        return self._state.minutes + (time.monotonic() - self._started) / 60

    def _new_model(self) -> Model:
        torch.manual_seed(self._run.training.seed)
        source, target = self.data.info.vocab_sizes
        return new_model(self._run.model, source_vocab_size=source, target_vocab_size=target)

    def _check_memory(self) -> Cost:
        """Return the model's cost; raise UsageError if the device has too little memory for it."""
        source, target = self.data.info.vocab_sizes
        cost = model_cost(
            self._run.model,
            source_vocab_size=source,
            target_vocab_size=target,
            max_tokens=self._run.batching.batch_tokens,
        )
        world, device = self.group.world, self.compute.device
        num_copies = world.local_size if device.type == "cpu" else 1.0
        if self._run.training.shard:
            num_copies /= world.size
        if (problem := memory_problem(cost, device, num_copies=num_copies)) is not None:
            raise UsageError(problem)
        return cost

    def _new_trainer(self) -> Trainer:
        num_processes = self.group.world.local_size
        threads = ComputeThreads(self._run.training.threads, num_processes=num_processes)
        self.heartbeat("starting the trainers", waits=True)
        return Trainer(
            self._model,
            self.data.train,
            self._run,
            self.compute,
            cost=self.cost,
            group=self.group,
            heartbeat=self.heartbeat,
            threads=threads if self.compute.device.type == "cpu" else None,
        )

    def _resume(self, checkpoint: Path) -> None:
        saved = load_training_state(checkpoint)
        if saved.get("dataset") != self.data.checksum:
            raise UsageError(
                f"{self.run_dir} was started on other data than {self.data.data_dir}: train on "
                "the same data, or choose another folder with --run"
            )
        info = load_info(checkpoint)
        try:
            self.trainer.load_state(saved["trainer"])
            self._state = record_from(RunState, saved)
            self._window = [record_from(StepReport, report) for report in saved["window"]]
            if self.trainer.position.step != info.step:
                raise ValueError(f"it is of step {self.trainer.position.step}, not {info.step}")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{checkpoint / STATE} is not the state of this run ({type(error).__name__}: "
                f"{str(error)[:_MAX_REASON]}): remove {checkpoint} to resume from an older "
                "checkpoint"
            ) from error
        self.metrics = dict(info.metrics)

    def _write_line(self, record: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.append(record)

    @property
    def _max_unread(self) -> int:
        """The number of steps that the device may still be computing while the next one starts."""
        return 0 if self.compute.device.type == "cpu" else 1

    def _read_reports(self, *, leave: int = 0) -> None:
        """Wait for the reports of steps, and log them; do not wait for the newest few."""
        while len(self._unread) > leave:
            self._log_step(self._unread.popleft())

    def _log_step(self, step: PendingStep) -> None:
        number = step.position.step
        self.heartbeat(f"step {number:,}, its figures", waits=not self.group.is_alone)
        report = step.report()
        self._window.append(report)
        self._state.capacity_flops += report.seconds * self._capacity
        problem = [self._saver.problem] if self._saver.problem else []
        self._bar.update(1, figures=problem + shown_figures(self._window))
        if report.skipped:
            self._log_skip(report, step.rows)
        else:
            self._state.skipped_in_a_row = 0
        if report.step % self._run.training.log_steps == 0:
            totals = {
                "tokens": step.position.tokens,
                "total_flops": step.position.flops,
                "capacity_flops_per_second": self._capacity,
                "paper_estimate_flops": self._state.capacity_flops,
                "processes": self.group.world.size,
                "out_of_memory": self.trainer.out_of_memory,
                "minutes": self._minutes(),
            }
            self._write_line(metrics_record(self._window) | totals)
            self._window = []

    def _log_skip(self, report: StepReport, rows: Rows) -> None:
        """Report a skipped step; raise TrainingError after too many in a row."""
        self._write_line(
            {
                "kind": "skipped",
                "step": report.step,
                "epoch": report.epoch,
                "loss": str(report.loss),
                "gradient_norm": str(report.gradient_norm),
                "pairs": rows.tolist(),
            }
        )
        if report.overflowed:
            say(f"train: step {report.step:,} was skipped: fp16 overflow, halving the loss scale")
            return
        self._state.skipped_in_a_row += 1
        problem = f"loss {report.loss:.4g}, gradient norm {report.gradient_norm:.4g}: not finite"
        limit = self._run.training.max_skipped_steps
        if self._state.skipped_in_a_row < limit:
            say(f"train: step {report.step:,} was skipped: {problem}")
            return
        unsaved = ""
        self.heartbeat("saving", waits=not self.group.world.is_first)
        try:
            self._saver.finish()
        except CheckpointError as error:
            unsaved = f"; {error}"
        pairs = ", ".join(map(str, sorted(rows.tolist())[:_MAX_PAIRS_IN_MESSAGE]))
        num_hidden = len(rows) - _MAX_PAIRS_IN_MESSAGE
        more = f" and {num_hidden:,} more (see metrics.jsonl)" if num_hidden > 0 else ""
        # Only rank 0 saves, and knows the last saved step.
        saved, unsaved = self.group.gather([self._saver.saved_step, unsaved])[0]
        last = "none" if saved is None else checkpoint_path(self.run_dir, saved)
        raise TrainingError(
            f"step {report.step:,}: {problem}; {limit} steps in a row were skipped; "
            f"last good checkpoint: {last}; training pairs of the step, counted from 0: "
            f"{pairs}{more}{unsaved}. Lower the learning rate, set --clip-norm, or look at those "
            "pairs"
        )

    def _validate_and_save(self) -> None:
        """Validate and save; after a signal, save at once and validate when the run is resumed."""
        self._read_reports()
        self._state.owes_validation = True
        if not self._validate():
            self._save_and_stop(self.group.largest([self.stop.received or 0])[0])
        self._state.owes_validation = False
        self._save(self.metrics)
        self._validated_at = time.monotonic()
        self._write_report()

    def _validate(self) -> bool:
        """Validate if there is a validation split; return False if a signal interrupted it."""
        if self.data.valid is None:
            return True
        validator = Validator(
            split=self.data.valid,
            vocabulary=self.data.vocabulary,
            info=self.data.info,
            compute=self.compute,
            group=self.group,
            heartbeat=self.heartbeat,
            should_stop=lambda: self.stop.received is not None,
        )
        validation = validator.validate(self._full_model())
        if validation is None:
            return False
        self.metrics = validation.metrics
        info = replace(self.data.info, metrics=self.metrics)
        quality, best = info.quality(self._run.training.best_metric), self._state.best
        self._state.validations_since_best += 1
        if best is None or (quality is not None and quality > best):
            self._state.best, self._state.validations_since_best = quality, 0
        position, minutes = self.trainer.position, self._minutes()
        if validation.score and not self._has_printed_signature:
            say(f"valid: {validation.score.label} has the signature {validation.score.signature}")
            self._has_printed_signature = True
        say(f"valid: step {position.step:,} · {minutes:.1f} min · {validation}")
        record = {"kind": "validation", "step": position.step, "epoch": position.epoch}
        signature = {"signature": validation.score.signature} if validation.score else {}
        self._write_line(record | {"minutes": minutes} | signature | self.metrics)
        return True

    def _full_model(self) -> Model:
        """Return the model with full, not sharded, weights in this process."""
        if not self._run.training.shard or self.group.is_alone:
            return self._model
        model = self._new_model().to(self.compute.device)
        self.heartbeat("gathering the weights", waits=True)
        weights = self.trainer.weights()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
        return model

    def _save(self, metrics: dict[str, float]) -> None:
        self._read_reports()
        self.heartbeat("saving", waits=True)
        is_first = self.group.world.is_first
        weights, trainer = self.trainer.weights(keep=is_first), self.trainer.state(keep=is_first)
        if not is_first:
            return
        state = {
            "trainer": trainer,
            "dataset": self.data.checksum,
            "window": [asdict(report) for report in self._window],
            **asdict(self._state),
            "minutes": self._minutes(),
        }
        info = replace(self.data.info, step=self.trainer.position.step, metrics=metrics)
        self.heartbeat("writing a checkpoint")
        self._saver.save(info, weights, state, self.data.vocabulary.files())

    def _save_and_stop(self, signal_number: int) -> NoReturn:
        """Save unless this step is saved already, then raise InterruptedRunError."""
        step = self.trainer.position.step
        self.heartbeat("saving")
        self._saver.wait()
        self.heartbeat("agreeing on whether to save", waits=True)
        is_unsaved = self.group.world.is_first and step not in (0, self._saver.saved_step)
        if self.group.largest([is_unsaved])[0]:  # saving needs all processes
            self._save({})
        self._saver.finish()
        saved = f"stopped and saved at step {step:,}; run the same command to resume"
        raise InterruptedRunError(
            saved if step else "stopped before the first step; run the same command to start again",
            exit_code=StopRequests.EXIT_CODES[signal_number],
        )

    def _write_report(self) -> None:
        if not self.group.world.is_first:
            return
        self.heartbeat("drawing the report")
        try:
            # Imported late: matplotlib would delay the start of the run.
            from tfm.visualization.report import write_report

            write_report(self.run_dir)
        except OSError as error:  # such as a full disk, which must not end the training
            if self._has_report:
                say(f"warning: {error.filename}: {error.strerror}; report.html is not up to date")
            self._has_report = False
        else:
            self._has_report = True
