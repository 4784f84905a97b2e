"""One sitting of a run: its trainer, and all that is done between its steps."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tfm.data.dataset import Rows
from tfm.device.compute import Compute, single_precision_flops
from tfm.device.threads import ComputeThreads
from tfm.distributed.group import Group
from tfm.distributed.interruption import InterruptedRunError, StopRequests
from tfm.errors import CheckpointError, TrainingError, UsageError
from tfm.model.build import Model, load_model, new_model
from tfm.model.cost import model_cost
from tfm.reporting import Progress, say
from tfm.stages.training_data import TrainingData
from tfm.stages.validation import Validator
from tfm.storage.checkpoint.model_folder import load_info, load_training_state
from tfm.storage.checkpoint.run_folder import checkpoint_path
from tfm.storage.metrics_log import MetricsLog
from tfm.storage.saving import Saver
from tfm.training.progress import Beat, StepReport, Wishes
from tfm.training.trainer import Trainer
from tfm.training.window import Window

_NUM_PAIRS_NAMED = 10


class Session:
    """A run from its newest checkpoint, or its start, to a limit or a stop.

    All processes of a group go through it in step; the first alone writes and speaks.

    Args:
        run_dir: The run folder.
        data: What to train on, and with what settings.
        compute: Device and arithmetic.
        group: The processes that train together.
        beat: Told where it stands.
        stop: Signals that ask to stop.
        checkpoint: Where to go on; None starts.
    """

    def __init__(
        self,
        run_dir: Path,
        data: TrainingData,
        compute: Compute,
        *,
        group: Group,
        beat: Beat,
        stop: StopRequests,
        checkpoint: Path | None,
    ) -> None:
        self._run_dir = run_dir
        self._data = data
        self._run = data.info.run
        self._compute = compute
        self._group = group
        self._beat = beat
        self._stop_requests = stop
        beat("the model")
        source_size, target_size = data.info.vocab_sizes
        if checkpoint is None:
            self._model = self._new_model()
        else:
            self._model = load_model(checkpoint, data.info).to(compute.device)
        self._validator = None
        if data.valid is not None:
            self._validator = Validator(
                data.valid,
                data.valid_sources,
                data.valid_references,
                vocabulary=data.vocabulary,
                info=data.info,
                compute=compute,
                group=group,
                beat=beat,
                stopped=lambda: stop.received is not None,
            )
        threads = ComputeThreads(self._run.training.threads, num_processes=group.world.local_size)
        beat("the start of the trainers", waits=True)
        self.trainer = Trainer(
            self._model,
            data.train,
            self._run,
            compute,
            cost=model_cost(
                self._run.model,
                source_vocab_size=source_size,
                target_vocab_size=target_size,
                max_tokens=self._run.batching.max_tokens,
            ),
            group=group,
            beat=beat,
            threads=threads if compute.device.type == "cpu" else None,
        )
        self.metrics: dict[str, float] = {}  # of the newest validation
        self._best: float | None = None
        self._validations_since_best = 0
        self._owes_validation = False  # as a signal came before its end
        self._minutes_before = 0.0
        beat("the speed of the device")
        # The paper's estimate of a training's cost (§6.1): its time by what the devices can do.
        self._capacity = group.world.size * single_precision_flops(compute.device)
        self._capacity_flops = 0.0
        self._window = Window()
        self._has_report = True
        self._saver = Saver(run_dir, background=self._run.training.background_saving)
        self._started = self._validated_at = time.monotonic()
        if checkpoint is not None:
            self._go_on_from(checkpoint)
        self._log = None
        if group.world.is_first:
            self._log = MetricsLog(run_dir, step=self.trainer.position.step)

    def _go_on_from(self, checkpoint: Path) -> None:
        state = load_training_state(checkpoint)
        if state["dataset"] != self._data.checksum:
            raise UsageError(
                f"{self._run_dir} was started on other data than {self._data.data_dir}: use that, "
                "or another folder with --run"
            )
        self.trainer.load_state(state["trainer"])
        self._best = state["best"]
        self._validations_since_best = state["validations_since_best"]
        self._owes_validation = state["owes_validation"]
        self._minutes_before = state["minutes"]
        self._capacity_flops = state["capacity_flops"]
        self._window = Window(StepReport(**report) for report in state["window"])
        self.metrics = dict(load_info(checkpoint).metrics)

    def is_finished(self) -> bool:
        """Whether one of the limits of the run is reached, minutes aside."""
        limits, position = self._run.training, self.trainer.position
        epochs_done = position.epoch - (position.examples < len(self._data.train))
        return not self._owes_validation and (
            position.step >= limits.max_steps
            or (limits.max_epochs is not None and epochs_done >= limits.max_epochs)
            or (limits.patience is not None and self._validations_since_best >= limits.patience)
        )

    def loop(self) -> None:
        """Train until a limit is reached.

        Raises:
            InterruptedRunError: A signal asked to stop; the run is saved.
            TrainingError: Too many steps in a row were skipped.
            CheckpointError: The last checkpoint could not be saved.
        """
        try:
            with Progress(
                "train", total=self._last_step(), unit="steps", initial=self.trainer.position.step
            ) as bar:
                self._train(bar)
            self._beat("saving")
            self._saver.finish()
        finally:
            self._saver.close()

    def _train(self, bar: Progress) -> None:
        if self._owes_validation:
            self._validate_and_save()
        self._beat("the start of all", waits=True)
        if self.is_finished() or self._group.largest([self._is_out_of_time()])[0]:
            say(f"train: {self._run_dir} has reached its limits")
            return
        for rows in self.trainer.batches():
            report = self.trainer.step(rows, wishes=self._wishes)
            agreed = self.trainer.gradient.agreed
            if report is None:
                self._stop(agreed.stop)
            else:
                self._note(report, rows, bar)
                if self._is_over_after(report, agreed):
                    return

    def _write_line(self, record: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.append(record)

    def _new_model(self) -> Model:
        torch.manual_seed(self._run.training.seed)
        source_size, target_size = self._data.info.vocab_sizes
        model = new_model(
            self._run.model, source_vocab_size=source_size, target_vocab_size=target_size
        )
        return model.to(self._compute.device)

    def _wishes(self) -> Wishes:
        """What this process would have done besides its step."""
        return Wishes(
            stop=self._stop_requests.received or 0,
            checkpoint=self._run.training.checkpoint_steps is None
            and time.monotonic() - self._validated_at >= 60 * self._run.training.checkpoint_minutes,
            retry=self._saver.is_retry_due(),
            end=self._is_out_of_time(),
        )

    def _is_out_of_time(self) -> bool:
        limit = self._run.training.max_minutes
        return limit is not None and self._minutes() >= limit

    def _note(self, report: StepReport, rows: Rows, bar: Progress) -> None:
        """Take note of a step."""
        self._window.add(report)
        self._capacity_flops += report.seconds * self._capacity
        problem = f" · {self._saver.problem}" if self._saver.problem else ""
        bar.update(1, figures=self._window.figures() + problem)
        if report.skipped:
            self._note_skip(report, rows)
        if report.step % self._run.training.log_steps == 0:
            self._write_line(self._record())

    def _is_over_after(self, report: StepReport, agreed: Wishes) -> bool:
        """Validate and save if that is due; whether the run is over."""
        finished = agreed.end or self.is_finished()
        steps = self._run.training.checkpoint_steps
        if finished or agreed.checkpoint or (steps is not None and report.step % steps == 0):
            self._validate_and_save()
        elif agreed.retry:
            self._save({})
        return finished or self.is_finished()  # patience may have run out just now

    def _validate_and_save(self) -> None:
        """Measure the model and save it.

        Raises:
            InterruptedRunError: A signal came meanwhile; the run is saved, and measures when it
                goes on.
        """
        self._owes_validation = True
        if self._validator is not None and not self._validate(self._validator):
            self._stop(self._group.largest([self._stop_requests.received or 0])[0])
        self._owes_validation = False
        self._save(self.metrics)
        self._validated_at = time.monotonic()
        self._write_report()

    def _stop(self, signal_number: int) -> None:
        """Save, and leave.

        Raises:
            InterruptedRunError: In any case.
            CheckpointError: It could not be saved.
        """
        step = self.trainer.position.step
        self._beat("saving")
        self._saver.wait()
        self._beat("the decision what to save", waits=True)
        is_unsaved = self._group.world.is_first and step not in (0, self._saver.saved_step)
        if self._group.largest([is_unsaved])[0]:  # all save together
            self._save({})
        self._saver.finish()
        done = f"stopped and saved at step {step:,}; the same command goes on from there"
        raise InterruptedRunError(
            done if step else "stopped before the first step; the same command starts again",
            exit_code=StopRequests.EXIT_CODES[signal_number],
        )

    def _last_step(self) -> int:
        limits = self._run.training
        if limits.max_epochs is None:
            return limits.max_steps
        return min(limits.max_steps, limits.max_epochs * self.trainer.batcher.num_batches())

    def _minutes(self) -> float:
        return self._minutes_before + (time.monotonic() - self._started) / 60

    def _record(self) -> dict[str, Any]:
        """The line for metrics.jsonl on the steps since the last one."""
        position, gradient = self.trainer.position, self.trainer.gradient
        record = self._window.record() | {
            "tokens": position.tokens,
            "total_flops": position.flops,
            "capacity_flops_per_second": self._capacity,
            "paper_estimate_flops": self._capacity_flops,
            "processes": self._group.world.size,
            "out_of_memory": gradient.out_of_memory,
            "fp16_overflows": gradient.overflows,
            "minutes": self._minutes(),
        }
        self._window = Window()
        return record

    def _note_skip(self, report: StepReport, rows: Rows) -> None:
        """Tell of a step that was skipped.

        Raises:
            TrainingError: It was one too many.
        """
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
        what = f"loss {report.loss:.4g}, gradient norm {report.gradient_norm:.4g}: not finite"
        limit = self._run.training.max_skipped_steps
        if self.trainer.position.skipped_in_a_row < limit:
            say(f"train: step {report.step:,} changes nothing: {what}")
            return
        unsaved = ""
        self._beat("saving", waits=not self._group.world.is_first)
        try:
            self._saver.finish()
        except CheckpointError as error:
            unsaved = f"; {error}"
        pairs = ", ".join(map(str, sorted(rows.tolist())[:_NUM_PAIRS_NAMED]))
        others = len(rows) - _NUM_PAIRS_NAMED
        more = f" and {others:,} more, as metrics.jsonl says" if others > 0 else ""
        # The first process knows.
        saved, unsaved = self._group.gather([self._saver.saved_step, unsaved])[0]
        last = "none" if saved is None else checkpoint_path(self._run_dir, saved)
        raise TrainingError(
            f"step {report.step:,}: {what}, as in {limit} steps in a row, which changed nothing; "
            f"last good checkpoint: {last}; training pairs of the step, counted from 0: "
            f"{pairs}{more}{unsaved}. Lower the learning rate, set --clip-norm, or look at those "
            "pairs"
        )

    def _validate(self, validator: Validator) -> bool:
        """Measure the model on the validation split; whether no process gave up."""
        validation = validator.validate(self._whole_model())
        if validation is None:
            return False
        position = self.trainer.position
        self.metrics = validation.metrics
        self._note_best()
        say(f"valid: step {position.step:,} · {self._minutes():.1f} min · {validation}")
        record: dict[str, Any] = {
            "kind": "validation",
            "step": position.step,
            "epoch": position.epoch,
            "minutes": self._minutes(),
        }
        if validation.score is not None:
            record["signature"] = validation.score.signature
        self._write_line(record | self.metrics)
        return True

    def _whole_model(self) -> Model:
        """The model with all its weights in this process."""
        if not self._run.training.shard or self._group.is_alone:
            return self._model
        model = self._new_model()
        self._beat("gathering the weights", waits=True)
        weights = self.trainer.weights()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
        return model

    def _note_best(self) -> None:
        info = replace(self._data.info, metrics=self.metrics)
        quality = info.quality(self._run.training.best_metric)
        if self._best is None or (quality is not None and quality > self._best):
            self._best, self._validations_since_best = quality, 0
        else:
            self._validations_since_best += 1

    def _save(self, metrics: dict[str, float]) -> None:
        self._beat("saving", waits=True)
        step = self.trainer.position.step
        writes = self._group.world.is_first
        weights, trainer = self.trainer.weights(keep=writes), self.trainer.state(keep=writes)
        if writes:
            state = {
                "trainer": trainer,
                "dataset": self._data.checksum,
                "best": self._best,
                "validations_since_best": self._validations_since_best,
                "owes_validation": self._owes_validation,
                "minutes": self._minutes(),
                "capacity_flops": self._capacity_flops,
                "window": self._window.state(),
            }
            info = replace(self._data.info, step=step, metrics=metrics)
            self._beat("writing a checkpoint")
            self._saver.save(info, weights, state, self._data.vocabulary.files())

    def _write_report(self) -> None:
        if not self._group.world.is_first:
            return
        self._beat("drawing the report")
        try:
            # It loads matplotlib, for which a run need not wait at its start.
            from tfm.visualization.report import write_report

            write_report(self._run_dir)
        except OSError as error:  # a full disk, say: training is worth more than its picture
            if self._has_report:
                say(f"warning: {error.filename}: {error.strerror}; report.html is not up to date")
            self._has_report = False
        else:
            self._has_report = True
