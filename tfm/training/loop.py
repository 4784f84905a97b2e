"""The training loop: steps, validation and checkpoints."""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import KW_ONLY, InitVar, asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NoReturn

from tfm.errors import InterruptedRunError, TrainingError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import SCORES
from tfm.machine.compute import Compute, ComputeThreads, measure_fp32_flops
from tfm.machine.group import Group
from tfm.machine.interruption import StopRequests
from tfm.metrics.command import MetricCommand, MetricCommandError
from tfm.model.build import Model
from tfm.reporting import Progress, format_number, say
from tfm.training.accumulation import StepBatch
from tfm.training.data import (
    TrainingData,
    ValidationSplit,
    cost_of,
    first_model,
    resume,
    shortage,
    verify_data,
)
from tfm.training.progress import (
    ControlFlags,
    PendingStep,
    Position,
    RunState,
    StepReport,
    mean_nll,
    progress_statistics,
)
from tfm.training.record import Checkpoints, RunRecord, all_metrics, describe_pairs, describe_skip
from tfm.training.trainer import Trainer
from tfm.training.validation import Validation, ValidationStoppedError, Validator
from tfm.translation.steps import Step


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
    stop: StopRequests = field(default_factory=StopRequests)
    validation_steps: Sequence[Step] = ()  # around the search in validation
    checkpoint: InitVar[ModelFolder | None] = None  # where to resume; None starts a new run
    start: InitVar[ModelFolder | None] = None  # of a new run; None draws a model at random

    def __post_init__(self, checkpoint: ModelFolder | None, start: ModelFolder | None) -> None:
        self._run = self.data.info.run
        self.cost = cost_of(self.data)
        world, device = self.group.world, self.compute.device
        problem = shortage(self.data, self.cost, device, world, gathers=world.is_first)
        if problems := [each for each in self.group.gather(problem) if each is not None]:
            raise UsageError(problems[0])
        self._verification = verify_data(self.data, self.group)
        self.group.heartbeat("building the model")
        model = first_model(self.data, checkpoint or start).to(device)
        threads = ComputeThreads(self._run.training.threads, num_processes=world.local_size)
        self.group.heartbeat("starting the trainers", waits=True)
        self.trainer = Trainer(
            model,
            self.data.train,
            self._run,
            self.compute,
            cost=self.cost,
            group=self.group,
            threads=threads if device.type == "cpu" else None,
            augmentation=self.data.augmentation,
        )
        self.group.heartbeat("measuring the speed of the device")
        self._capacity = world.size * measure_fp32_flops(device)
        self._checkpoints = Checkpoints(self.run_dir, self.data, self.trainer, self.group)
        self._started = self._validated_at = time.monotonic()
        self._state = RunState()
        self._unread: deque[PendingStep] = deque()
        tensorboard = self._run.training.tensorboard
        self._record = RunRecord(self.run_dir, is_first=world.is_first, tensorboard=tensorboard)
        self.metrics: dict[str, float] = {}
        command = self._run.training.metric_command
        self._metric_command = (
            None if command is None else MetricCommand(command, waiting=self._await_command)
        )
        if checkpoint is not None:
            self._state, self._record.window = resume(
                self.trainer, self.data, checkpoint, self.run_dir
            )
            self.metrics = dict(checkpoint.info.metrics)

    def _await_command(self, num_scored: int) -> None:
        """Report that the metric command works; end it after a signal."""
        self.group.heartbeat(f"scoring by the metric command, {num_scored:,} lines so far")
        if self.stop.received is not None:
            raise MetricCommandError("the metric command was interrupted")

    def loop(self) -> None:
        """Train until a limit is reached."""
        interval = self._run.training.checkpoint_steps
        with self._opened():
            is_over = self._is_over_before_its_first_step()
            batches = self._batches()
            while not is_over:
                step, flags = self.trainer.step(next(batches), poll=self._poll)
                if step is None:
                    self._save_and_stop(flags.stop)
                self._unread.append(step)
                self._read_reports(leave=self._max_unread)
                is_over = flags.end or self.limit_reached() is not None
                is_at_step = interval is not None and self.trainer.position.step % interval == 0
                is_due = (flags.checkpoint or is_at_step) and not self._may_have_diverged
                if is_over or is_due:
                    self._validate_and_save()
                    if not is_over and self.limit_reached() is not None:  # --patience
                        is_over = True
                        self._say_which_limit()
                    elif not is_over:
                        self._write_report()
                elif flags.retry:
                    self._save({})

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Open files and programs of the run while it trains; finish it when a limit is reached."""
        command = self._metric_command or nullcontext()
        with closing(self._checkpoints), closing(self._record), command, self._new_bar() as bar:
            self._bar = bar
            self._record.open(self.trainer.position.step)
            yield
            self._write_window(self.trainer.position)
            self._write_report()
            self.group.heartbeat("saving")
            self._checkpoints.finish()
            limit = self._limit().partition(",")[0]
            self._record.write_end("finished", step=self.trainer.position.step, limit=limit)

    def _is_over_before_its_first_step(self) -> bool:
        """Write and validate what is due first; return whether a limit is reached already."""
        if self.trainer.position.step == 0 and len(self.data.train.texts) > 1:
            self._record.write_texts(self.data.train.texts)
        if self._state.is_validation_due:
            self._validate_and_save()
        elif self._run.from_model and self.data.valid and not self.trainer.position.step:
            self._validate(self.data.valid)  # what adapting changes
        self.group.heartbeat("waiting for all processes to start", waits=True)
        is_over = self.limit_reached() is not None
        is_over = is_over or bool(self.group.largest([self._is_out_of_time()])[0])
        if is_over:
            self._say_which_limit()
        return is_over

    def limit_reached(self) -> str | None:
        """Return the steps, epochs or patience that the run has reached, as a flag, or None."""
        limits, num_pairs = self._run.training, len(self.data.train)
        return self._state.limit_reached(limits, self.trainer.position, num_pairs)

    def _limit(self) -> str:
        """Return the limit that ends the run, as a flag."""
        minutes = self._run.training.max_minutes
        return self.limit_reached() or f"--max-minutes {minutes:g}, counted over the whole run"

    def _say_which_limit(self) -> None:
        when = "" if self.trainer.position.step else " before its first step"
        say(f"train: {self.run_dir} has reached {self._limit()}{when}: set more to continue")

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
        window, (_, vocab_size) = self._record.window, self.data.info.vocab_sizes
        loss = self.metrics.get("loss", mean_nll(window) if window else self._state.nll)
        if loss is None or loss < math.log(vocab_size):
            score = f"{self.metrics.get(SCORES[self.data.info.task], 1):.2f}"
            return "its score on the validation text is 0.00" if score == "0.00" else None
        return (
            f"its loss of {format_number(loss, decimals=2)} nats per token is not below "
            f"{math.log(vocab_size):.2f}, the loss of a guess among all {vocab_size:,} pieces"
        )

    def _new_bar(self) -> Progress:
        limits, deadline = self._run.training, None
        if limits.max_minutes is not None:
            deadline = self._started + 60 * (limits.max_minutes - self._state.minutes)
        step, last = self.trainer.position.step, self.trainer.last_step
        return Progress("train", total=last, unit="steps", initial=step, deadline=deadline)

    def _poll(self) -> ControlFlags:
        """Return the control flags of this process."""
        training = self._run.training
        return ControlFlags(
            stop=self.stop.received or 0,
            checkpoint=training.checkpoint_steps is None
            and time.monotonic() - self._validated_at >= 60 * training.checkpoint_minutes,
            retry=self._checkpoints.is_retry_due(),
            end=self._is_out_of_time(),
        )

    def _minutes(self) -> float:
        return self._state.minutes + (time.monotonic() - self._started) / 60

    def _batches(self) -> Iterator[StepBatch]:
        """Yield the batches of steps, without end; raise DataError once a shard is damaged.

        The first decides the size of microbatches.
        """
        batches = self.trainer.batches()
        first = next(batches)
        self.trainer.fit_memory(first)
        for batch in chain([replace(first, clock=None)], batches):
            if self._verification.done():
                self._verification.result()
            yield batch

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
        self.group.heartbeat(f"step {number:,}, its results", waits=not self.group.is_alone)
        report, window = step.report(), self._record.window
        window.append(report)
        self._state.capacity_flops += report.seconds * self._capacity
        problem = [self._checkpoints.problem] if self._checkpoints.problem else []
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
        """Write a line of metrics.jsonl about the steps since the last line, if there are any."""
        self._record.write_window(
            {
                "tokens": position.tokens,
                "total_flops": position.flops,
                "capacity_flops_per_second": self._capacity,
                "paper_estimate_flops": self._state.capacity_flops,
                "processes": self.group.world.size,
                "out_of_memory": self.trainer.accumulation.out_of_memory,
                "minutes": self._minutes(),
                "last_step": self.trainer.last_step,
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
        good = self._checkpoints.last_good(before=position.step - self._state.skipped_in_a_row)
        raise TrainingError(
            f"step {position.step:,}: {problem}; last good checkpoint: {good}. Train in "
            f"another --run with a lower --learning-rate or with --clip-norm{more_advice}"
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
        model, position = self.trainer.full_model(self.data.info.vocab_sizes), self.trainer.position
        splits = {"": split, **self.data.also_valid}
        validations = {name: self._validate_on(each, model) for name, each in splits.items()}
        loss = validations[""].metrics["loss"]
        if not math.isfinite(loss):
            self._fail(position, f"the validation loss is {loss}")
        self.metrics = all_metrics(validations)
        metric = self._run.training.best_metric
        self._state.count_validation(replace(self.data.info, metrics=self.metrics).quality(metric))
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
            should_stop=lambda: self.stop.received is not None,
            steps=self.validation_steps,
            command=self._metric_command,
        )
        try:
            return validator.validate(model)
        except ValidationStoppedError:
            self._save_and_stop(self.group.largest([self.stop.received or 0])[0])

    def _save(self, metrics: dict[str, float]) -> None:
        self._read_reports()
        self.group.heartbeat("checking the weights", waits=True)
        self._checkpoints.check_ranks()
        if not self.trainer.has_finite_weights():
            self._fail(self.trainer.position, "the weights are not finite")
        window = [asdict(report) for report in self._record.window]
        state = {"window": window, **asdict(self._state), "minutes": self._minutes()}
        self._checkpoints.save_run(metrics, state)

    def _save_and_stop(self, signal_number: int) -> NoReturn:
        """Save unless this step is saved already, then raise InterruptedRunError."""
        step = self.trainer.position.step
        self.group.heartbeat("saving")
        self._checkpoints.wait()
        self.group.heartbeat("agreeing on whether to save", waits=True)
        is_unsaved = self.group.world.is_first and step not in (0, self._checkpoints.saved_step)
        if self.group.largest([is_unsaved])[0]:  # saving needs all processes
            self._save({})
        self._checkpoints.finish()
        self._write_window(self.trainer.position)
        self._record.write_end("stopped", step=step)
        saved = f"stopped and saved at step {step:,}; run the same command to resume"
        raise InterruptedRunError(
            saved if step else "stopped before the first step; run the same command to start again",
            exit_code=StopRequests.EXIT_CODES[signal_number],
        )

    def _write_report(self) -> None:
        self.group.heartbeat("drawing the report")
        self._record.write_report()
