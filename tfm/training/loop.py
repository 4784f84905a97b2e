"""The training loop: steps, validation and checkpoints."""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import KW_ONLY, InitVar, asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NoReturn

import torch

from tfm.config.values import Measured
from tfm.disk.tensor_file import record_from
from tfm.errors import (
    CheckpointError,
    InterruptedRunError,
    TrainingError,
    UnequalRanksError,
    UsageError,
)
from tfm.folders.model_folder import STATE, ModelFolder
from tfm.folders.model_info import ranking_metric
from tfm.folders.saving import Saver, last_good_checkpoint
from tfm.machine.background import run_in_thread
from tfm.machine.compute import Compute, ComputeThreads, measure_fp32_flops
from tfm.machine.group import Group
from tfm.machine.interruption import RESUME, StopRequests
from tfm.metrics.command import MetricCommand, MetricCommandError
from tfm.model.build import Model, build_model, new_model
from tfm.model.cost import Cost, gathering_problem, memory_problem, model_cost
from tfm.reporting import Progress, format_number, say
from tfm.training.accumulation import StepBatch
from tfm.training.data import TrainingData, ValidationSplit, num_first_parts
from tfm.training.progress import (
    ControlFlags,
    Heartbeat,
    PendingStep,
    Position,
    StepReport,
    mean_nll,
    no_heartbeat,
    progress_statistics,
)
from tfm.training.record import RunRecord, all_metrics, describe_pairs, describe_skip
from tfm.training.trainer import Trainer
from tfm.training.validation import Validation, Validator
from tfm.translation.steps import Step

_MAX_REASON = 100  # characters


@dataclass
class RunState:
    """The progress of a run, besides the state of its trainer; saved in every checkpoint."""

    best: Measured | None = None  # quality at the best validation so far
    validations_since_best: int = 0
    skipped_in_a_row: int = 0  # steps, without overflows of fp16
    skipped_steps: int = 0  # in total
    nll: Measured | None = None  # in the newest full line of training, in nats per target token
    is_validation_due: bool = False  # a signal interrupted the last validation
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
    validation_steps: Sequence[Step] = ()  # around the search in validation
    checkpoint: InitVar[ModelFolder | None] = None  # where to resume; None starts a new run
    start: InitVar[ModelFolder | None] = None  # of a new run; None draws a model at random

    def __post_init__(self, checkpoint: ModelFolder | None, start: ModelFolder | None) -> None:
        self._run = self.data.info.run
        self.cost = self._check_memory()
        self._verification = self._verify_data()
        self.heartbeat("building the model")
        self._model = self._first_model(checkpoint or start).to(self.compute.device)
        self.trainer = self._new_trainer()
        self.heartbeat("measuring the speed of the device")
        self._capacity = self.group.world.size * measure_fp32_flops(self.compute.device)
        self._saver = Saver(self.run_dir, background=self._run.training.background_saving)
        self._started = self._validated_at = time.monotonic()
        self._state = RunState()
        self._unread: deque[PendingStep] = deque()
        self._record = RunRecord(
            self.run_dir,
            is_first=self.group.world.is_first,
            tensorboard=self._run.training.tensorboard,
        )
        self.metrics: dict[str, float] = {}
        command = self._run.training.metric_command
        self._metric_command = (
            None if command is None else MetricCommand(command, waiting=self._await_command)
        )
        if checkpoint is not None:
            self._resume(checkpoint)

    def _await_command(self, num_scored: int) -> None:
        """Report that the metric command works; end it after a signal."""
        self.heartbeat(f"scoring by the metric command, {num_scored:,} lines so far")
        if self.stop.received is not None:
            raise MetricCommandError("the metric command was interrupted")

    def loop(self) -> None:
        """Train until a limit is reached."""
        interval = self._run.training.checkpoint_steps
        command = self._metric_command or nullcontext()
        with closing(self._saver), closing(self._record), command, self._new_bar() as self._bar:
            self._record.open(self.trainer.position.step)
            if self.trainer.position.step == 0 and len(self.data.train.texts) > 1:
                self._record.write_texts(self.data.train.texts)
            if self._state.is_validation_due:
                self._validate_and_save()
            elif self._run.from_model and self.data.valid and not self.trainer.position.step:
                self._validate(self.data.valid)  # what adapting changes
            self.heartbeat("waiting for all processes to start", waits=True)
            is_over = self.is_finished() or bool(self.group.largest([self._is_out_of_time()])[0])
            if is_over:
                self._say_which_limit()
            batches = self._batches()
            while not is_over:
                step, flags = self.trainer.step(next(batches), poll=self._poll)
                if step is None:
                    self._save_and_stop(flags.stop)
                self._unread.append(step)
                self._read_reports(leave=self._max_unread)
                is_over = flags.end or self.is_finished()
                is_at_step = interval is not None and self.trainer.position.step % interval == 0
                is_due = (flags.checkpoint or is_at_step) and not self._may_have_diverged
                if is_over or is_due:
                    self._validate_and_save()
                    is_over = is_over or self._has_lost_patience()
                    if not is_over:
                        self._write_report()
                elif flags.retry:
                    self._save({})
            self._write_window(self.trainer.position)
            self._write_report()
            self.heartbeat("saving")
            self._saver.finish()
            self._record.write_end("finished", step=self.trainer.position.step)

    def is_finished(self) -> bool:
        """Return whether the run has reached its steps, epochs or patience."""
        return self.limit_reached() is not None

    def limit_reached(self) -> str | None:
        """Return the steps, epochs or patience that the run has reached, as a flag, or None."""
        limits, position, state = self._run.training, self.trainer.position, self._state
        epochs_done = position.epoch - (position.examples < len(self.data.train))
        if state.is_validation_due:
            return None
        if position.step >= limits.max_steps:
            return f"--max-steps {limits.max_steps}"
        if epochs_done >= (limits.max_epochs or math.inf):
            return f"--max-epochs {limits.max_epochs}"
        if state.validations_since_best >= (limits.patience or math.inf):
            metric = ranking_metric(limits.best_metric, state.best)
            number = limits.patience
            return f"--patience {number}, {number} validations without a better {metric}"
        return None

    def _has_lost_patience(self) -> bool:
        """Return whether a validation before the other limits has ended the run, and say it."""
        if is_over := self.is_finished():
            self._say_which_limit()
        return is_over

    def _say_which_limit(self) -> None:
        when = "" if self.trainer.position.step else " before its first step"
        limit = self.limit_reached()
        if limit is None:
            limit = f"--max-minutes {self._run.training.max_minutes:g}, counted over the whole run"
        say(f"train: {self.run_dir} has reached {limit}{when}: set more to continue")

    def _is_out_of_time(self) -> bool:
        limit = self._run.training.max_minutes
        return limit is not None and self._minutes() >= limit

    @property
    def _may_have_diverged(self) -> bool:
        """Whether the newest steps were skipped, and no validation tells if the weights are good.

        A checkpoint would have the same weights as before these steps.
        """
        return self.data.valid is None and self._state.skipped_in_a_row > 0

    def failure_to_learn(self) -> str | None:
        """Return why the model has not learned; None if it has, or if it was not measured."""
        step, skipped = self.trainer.position.step, self._state.skipped_steps
        if 2 * skipped > step:
            return f"{skipped:,} of {step:,} steps were skipped"
        window = self._record.window
        loss = self.metrics.get("loss", mean_nll(window) if window else self._state.nll)
        _, vocab_size = self.data.info.vocab_sizes
        if loss is None or loss < math.log(vocab_size):
            return None
        return (
            f"its loss of {format_number(loss, decimals=2)} nats per token is not below "
            f"{math.log(vocab_size):.2f}, the loss of a guess among all {vocab_size:,} pieces"
        )

    def _new_bar(self) -> Progress:
        limits, deadline = self._run.training, None
        num_steps = limits.max_steps
        if limits.max_epochs is not None:
            num_steps = min(num_steps, limits.max_epochs * self.trainer.batcher.num_batches())
        if limits.max_minutes is not None:
            deadline = self._started + 60 * (limits.max_minutes - self._state.minutes)
        return Progress(
            "train",
            total=num_steps,
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

    def _first_model(self, start: ModelFolder | None) -> Model:
        """Return the model of a folder with the settings of this run, or a new one without."""
        if start is not None:
            return start.model(self._run.model)
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
            averages_weights=self._run.optimizer.ema is not None,
        )
        world, device = self.group.world, self.compute.device
        num_copies = world.local_size if device.type == "cpu" else 1.0
        if self._run.training.shard:
            num_copies /= world.size
        problem = memory_problem(cost, device, num_copies=num_copies)
        if problem is None and self._run.training.shard and world.is_first:
            problem = gathering_problem(cost, device, num_copies=num_copies)
        if problems := [each for each in self.group.gather(problem) if each is not None]:
            raise UsageError(problems[0])
        return cost

    def _verify_data(self) -> Future[None]:
        """Verify parts of the dataset once per machine; later ones in the background.

        Processes wait for each other at each part: verifying all parts on a slow disk could take
        longer than a collective may.
        """
        dataset, is_local_first = self.data.train, self.group.world.local_rank == 0
        num_parts = len(dataset.parts)
        num_first = num_parts if self._run.training.verify_data else num_first_parts(dataset)
        for number in range(num_first):
            self.heartbeat(f"verifying part {number + 1} of {num_parts} of the data")
            if is_local_first:
                dataset.verify([number])
            self.heartbeat(f"waiting for part {number + 1} of {num_parts} of the data", waits=True)
            self.group.largest([0])
        others = range(num_first, num_parts) if is_local_first else []
        return run_in_thread(partial(dataset.verify, others))

    def _batches(self) -> Iterator[StepBatch]:
        """Yield the batches of steps, without end; raise DataError once a part is damaged.

        The first decides the size of microbatches.
        """
        batches = self.trainer.batches()
        first = next(batches)
        self.trainer.fit_memory(first)
        for batch in chain([replace(first, clock=None)], batches):
            if self._verification.done():
                self._verification.result()
            yield batch

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

    def _resume(self, checkpoint: ModelFolder) -> None:
        saved, info = checkpoint.training_state(), checkpoint.info
        if saved.get("dataset") != self.data.checksum:
            raise UsageError(
                f"{self.run_dir} was started on other data than {self.data.data_dir}: train on "
                "the same data, or choose another folder with --run"
            )
        try:
            self.trainer.load_state(saved["trainer"])
            self._state = record_from(RunState, saved)
            self._record.window = [record_from(StepReport, report) for report in saved["window"]]
            if self.trainer.position.step != info.step:
                raise ValueError(f"it is of step {self.trainer.position.step}, not {info.step}")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{checkpoint.path / STATE} is not the state of this run ({type(error).__name__}: "
                f"{str(error)[:_MAX_REASON]}): remove {checkpoint.path} to resume from an older "
                "checkpoint"
            ) from error
        if self._run.training.best_metric != info.run.training.best_metric:
            self._state.best, self._state.validations_since_best = None, 0
        self.metrics = dict(info.metrics)

    @property
    def _max_unread(self) -> int:
        """The number of steps that the device may still be computing while the next one starts."""
        return 0 if self.compute.device.type == "cpu" else 1

    def _read_reports(self, *, leave: int = 0) -> None:
        """Wait for the reports of steps, and record them; do not wait for the newest few."""
        while len(self._unread) > leave:
            self._read_report(self._unread.popleft())

    def _read_report(self, step: PendingStep) -> None:
        number = step.position.step
        self.heartbeat(f"step {number:,}, its results", waits=not self.group.is_alone)
        report, window = step.report(), self._record.window
        window.append(report)
        self._state.capacity_flops += report.seconds * self._capacity
        problem = [self._saver.problem] if self._saver.problem else []
        self._bar.update(1, statistics=problem + progress_statistics(window))
        if report.skipped:
            self._count_skip(report, step)
        else:
            self._state.skipped_in_a_row = 0
        if report.step % self._run.training.log_steps == 0:
            self._write_window(step.position)
            self._state.nll = mean_nll(window)
            window.clear()

    def _write_window(self, position: Position) -> None:
        """Write a line of metrics.jsonl about the steps since the last one, if there are any."""
        self._record.write_window(
            {
                "tokens": position.tokens,
                "total_flops": position.flops,
                "capacity_flops_per_second": self._capacity,
                "paper_estimate_flops": self._state.capacity_flops,
                "processes": self.group.world.size,
                "out_of_memory": self.trainer.accumulation.out_of_memory,
                "minutes": self._minutes(),
            }
        )

    def _count_skip(self, report: StepReport, step: PendingStep) -> None:
        """Count and report a skipped step; raise TrainingError after too many in a row."""
        self._state.skipped_steps += 1
        self._record.skipped(report, step)
        if not report.overflowed:
            self._state.skipped_in_a_row += 1
        limit = self._run.training.max_skipped_steps
        if not report.overflowed and self._state.skipped_in_a_row >= limit:
            self._fail(
                step.position,
                f"{describe_skip(report)}; {limit} steps in a row were skipped",
                ", or look at the training pairs of the step, counted from 0: "
                + describe_pairs(step),
            )

    def _fail(self, position: Position, problem: str, more_advice: str = "") -> NoReturn:
        """Raise TrainingError because training has diverged, after what is underway is saved."""
        self._write_window(position)
        self._record.write_end("diverged", step=position.step)
        good = self._last_good_checkpoint(before=position.step - self._state.skipped_in_a_row)
        raise TrainingError(
            f"step {position.step:,}: {problem}; last good checkpoint: {good}. Train in "
            f"another --run with a lower --learning-rate or with --clip-norm{more_advice}"
        )

    def _last_good_checkpoint(self, *, before: int) -> str:
        """Return the path of the newest good checkpoint, after what is underway is saved.

        Only rank 0 saves, and knows what is saved; all ranks must call this together.
        """
        is_first = self.group.world.is_first
        self.heartbeat("saving", waits=not is_first)
        good, unsaved = None, ""
        try:
            self._saver.finish()
        except CheckpointError as error:
            unsaved = f"; {error}"
        if is_first:
            good = last_good_checkpoint(self.run_dir, before=before)
        return str(self.group.gather(f"{good or 'none'}{unsaved}")[0])

    def _check_ranks(self) -> None:
        """Raise UnequalRanksError if the weights of some ranks differ from those of the others."""
        difference = self.trainer.difference_between_ranks()
        if difference is None:
            return
        step = self.trainer.position.step
        good = self._last_good_checkpoint(before=step)
        raise UnequalRanksError(
            f"step {step:,}: {difference}, so this step was not saved; last good checkpoint: "
            f"{good}; {RESUME}. If this recurs, a device computes wrong results, or this version "
            "of torch does not sum gradients"
        )

    def _validate_and_save(self) -> None:
        """Validate and save; after a signal, save at once and validate when the run is resumed."""
        self._read_reports()
        self._state.is_validation_due = True
        if self.data.valid is not None:
            self._validate(self.data.valid)
        self._state.is_validation_due = False
        self._save(self.metrics)
        self._validated_at = time.monotonic()

    def _validate(self, split: ValidationSplit) -> None:
        """Validate on all sets and log the metrics; the set of the dataset has the name "".

        After a signal, or without a finite loss, this ends the run.
        """
        model, position = self._full_model(), self.trainer.position
        splits = {"": split, **self.data.also_valid}
        validations = {name: self._validate_on(each, model) for name, each in splits.items()}
        loss = validations[""].metrics["loss"]
        if not math.isfinite(loss):
            self._fail(position, f"the validation loss is {loss}")
        self.metrics = all_metrics(validations)
        metric, best = self._run.training.best_metric, self._state.best
        quality = replace(self.data.info, metrics=self.metrics).quality(metric)
        if quality is not None and (best is None or quality > best):
            self._state.best, self._state.validations_since_best = quality, 0
        elif quality is not None:  # it is None if the metric command has failed
            self._state.validations_since_best += 1
        # Before the checkpoint: if the process is killed in between, the line is written again.
        self._record.validated(
            validations,
            metric=metric,
            best=self._state.best,
            step=position.step,
            epoch=position.epoch,
            minutes=self._minutes(),
        )

    def _validate_on(self, split: ValidationSplit, model: Model) -> Validation:
        """Validate a model with full weights on one set; after a signal, end the run."""
        validator = Validator(
            split=split,
            train=self.trainer.batcher if split is self.data.valid else None,
            vocabulary=self.data.vocabulary,
            info=self.data.info,
            compute=self.compute,
            group=self.group,
            heartbeat=self.heartbeat,
            should_stop=lambda: self.stop.received is not None,
            steps=self.validation_steps,
            command=self._metric_command,
        )
        validation = validator.validate(model)
        if validation is None:
            self._save_and_stop(self.group.largest([self.stop.received or 0])[0])
        return validation

    def _full_model(self) -> Model:
        """Return the model to validate in this process, with full, not sharded, weights."""
        is_sharded = self._run.training.shard and not self.group.is_alone
        if not is_sharded and self._run.optimizer.ema is None:
            return self._model
        self.heartbeat("gathering the weights", waits=True)
        weights = self.trainer.weights()
        source, target = self.data.info.vocab_sizes
        model = build_model(
            self._run.model, weights, source_vocab_size=source, target_vocab_size=target
        )
        return model.to(self.compute.device)

    def _save(self, metrics: dict[str, float]) -> None:
        self._read_reports()
        self.heartbeat("checking the weights", waits=True)
        self._check_ranks()
        if not self.trainer.has_finite_weights():
            self._fail(self.trainer.position, "the weights are not finite")
        self.heartbeat("saving", waits=True)
        is_first = self.group.world.is_first
        weights, trainer = self.trainer.weights(keep=is_first), self.trainer.state(keep=is_first)
        if not is_first:
            return
        state = {
            "trainer": trainer,
            "dataset": self.data.checksum,
            "window": [asdict(report) for report in self._record.window],
            **asdict(self._state),
            "minutes": self._minutes(),
        }
        info = replace(self.data.info, step=self.trainer.position.step, metrics=metrics)
        self.heartbeat("writing a checkpoint")
        self._saver.save(info, weights, state, self.data.model_files)

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
        self._write_window(self.trainer.position)
        self._record.write_end("stopped", step=step)
        saved = f"stopped and saved at step {step:,}; run the same command to resume"
        raise InterruptedRunError(
            saved if step else "stopped before the first step; run the same command to start again",
            exit_code=StopRequests.EXIT_CODES[signal_number],
        )

    def _write_report(self) -> None:
        self.heartbeat("drawing the report")
        self._record.write_report()
