"""What a run writes: checkpoints, metrics.jsonl, messages on stderr, report.html, event files."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tfm.dataset.shards import TrainingText
from tfm.errors import DETAIL, CheckpointError, UnequalRanksError
from tfm.folders.model_info import MAX_NOISE, ranking_metric
from tfm.folders.saving import Saver, last_good_checkpoint
from tfm.machine.group import Group
from tfm.machine.interruption import RESUME
from tfm.reporting import format_duration, say
from tfm.training.data import TrainingData
from tfm.training.metrics_log import EndState, EventFile, MetricsLog
from tfm.training.progress import PendingStep, StepReport, metrics_record
from tfm.training.trainer import Trainer
from tfm.training.validation import Validation

_MAX_PAIRS_IN_MESSAGE = 10


class Checkpoints(Saver):
    """Saves the checkpoints of a run; all processes call these methods together."""

    def __init__(self, run_dir: Path, data: TrainingData, trainer: Trainer, group: Group) -> None:
        background = data.info.run.training.background_saving
        super().__init__(run_dir, data.model_files, background=background)
        self._data, self._trainer, self._group = data, trainer, group

    def save_run(self, metrics: dict[str, float], state: Mapping[str, Any]) -> None:
        """Save the weights, the metrics, and the states of the trainer and of the run."""
        self._group.heartbeat("saving", waits=True)
        is_first = self._group.world.is_first
        weights = self._trainer.weights(keep=is_first)
        trainer = self._trainer.state(keep=is_first)
        if not is_first:
            return
        info = replace(self._data.info, step=self._trainer.position.step, metrics=metrics)
        self._group.heartbeat("writing a checkpoint")
        state = {"trainer": trainer, "dataset": self._data.checksum, **state}
        self.save(info, weights, state)

    def check_ranks(self) -> None:
        """Raise UnequalRanksError if the weights of the ranks differ."""
        difference = self._trainer.difference_between_ranks()
        if difference is None:
            return
        step = self._trainer.position.step
        raise UnequalRanksError(
            f"step {step:,}: {difference}, so this step was not saved; last good checkpoint: "
            f"{self.last_good(before=step)}; {RESUME}. If this recurs, a device computes wrong "
            "results, or this version of torch does not sum gradients"
        )

    def last_good(self, *, before: int) -> str:
        """Return the path of the newest good checkpoint, after what is underway is saved."""
        is_first = self._group.world.is_first
        self._group.heartbeat("saving", waits=not is_first)
        good, unsaved = None, ""
        try:
            self.finish()
        except CheckpointError as error:
            unsaved = f"; {error}"
        if is_first:
            good = last_good_checkpoint(self._run_dir, before=before)
        return str(self._group.gather(f"{good or 'none'}{unsaved}")[0])


class RunRecord:
    """Writes and prints what happens in a run; ranks other than the first write nothing.

    Args:
        run_dir: The run folder.
        is_first: Whether this process is rank 0.
        tensorboard: Whether to write event files, too.

    Attributes:
        window: The reports of the steps since the last line of training.
    """

    def __init__(self, run_dir: Path, *, is_first: bool, tensorboard: bool = False) -> None:
        self.window: list[StepReport] = []
        self._run_dir = run_dir
        self._is_first = is_first
        self._tensorboard = tensorboard
        self._log: MetricsLog | None = None
        self._events: EventFile | None = None
        self._has_report = True
        self._has_printed_signature = False
        self._has_explained_ranking = False

    def open(self, step: int) -> None:
        """Open metrics.jsonl, without the lines after this step."""
        if self._is_first:
            step = step or -1  # a run that starts again validates again before its first step
            logged_step = self.window[0].step - 1 if self.window else step
            self._log = MetricsLog(self._run_dir, step=step, logged_step=logged_step)
            if self._tensorboard:
                self._events = EventFile(self._run_dir)

    def close(self) -> None:
        """Close the event file, if there is one."""
        if self._events is not None:
            self._events.close()

    def write_texts(self, texts: Sequence[TrainingText]) -> None:
        """Write which texts the training pairs come from, in the order of other lines."""
        self._write({"kind": "texts", "step": 0, "texts": [asdict(text) for text in texts]})

    def write_window(self, totals: Mapping[str, Any]) -> None:
        """Write a line about the steps since the last line, if any, beside totals of the run."""
        if self.window:
            self._write({**metrics_record(self.window), **totals})

    def skipped(self, report: StepReport, step: PendingStep) -> None:
        """Write and print that a step was skipped, and why."""
        record = {"kind": "skipped", "step": report.step, "epoch": report.epoch}
        values = {"smoothed_loss": str(report.loss), "gradient_norm": str(report.gradient_norm)}
        self._write(record | values | {"pairs": step.pairs.tolist()})
        overflow = "fp16 overflow, halving the loss scale"
        reason = overflow if report.overflowed else describe_skip(report)
        say(f"train: step {report.step:,} was skipped: {reason}")

    def validated(
        self,
        validations: Mapping[str, Validation],
        *,
        metric: str,
        best: float | None,
        step: int,
        epoch: int,
        minutes: float,
    ) -> None:
        """Write and print the metrics of a validation on sets by name.

        `metric` is the run's best_metric, and `best` the best quality so far.
        """
        ranked_by = ranking_metric(metric, best)
        record = {"kind": "validation", "step": step, "epoch": epoch, "minutes": minutes}
        record["ranked_by"] = ranked_by
        main = validations[""]
        signature = {"signature": main.score.signature} if main.score else {}
        text_losses = {"text_losses": main.text_losses} if main.text_losses else {}
        samples = {"samples": [asdict(each) for each in main.samples]} if main.samples else {}
        self._write(record | signature | all_metrics(validations) | text_losses | samples)
        if main.score and not self._has_printed_signature:
            # The signature has a separate line: terminals break longer lines within words.
            say(f"valid: {main.score.label} has the signature{DETAIL}{main.score.signature}")
            self._has_printed_signature = True
            if samples:
                say(f"valid: sample translations are in {self._run_dir / 'report.html'}")
        if ranked_by != metric and not self._has_explained_ranking:
            until = f"until the {metric} exceeds {MAX_NOISE:g}"
            say(f"valid: {until}, the {ranked_by} decides on the best checkpoint and --patience")
            self._has_explained_ranking = True
        for name, validation in validations.items():
            label = f"valid {name}" if name else "valid"
            shown = f"{label}: step {step:,} · {format_duration(60 * minutes)} · {validation}"
            say(shown if name or ranked_by == metric else f"{shown} · {ranked_by} decides")

    def write_end(self, state: EndState, *, step: int, limit: str | None = None) -> None:
        """Write how, and by which limit, this process ends; resuming removes the line."""
        self._write({"kind": "end", "step": step, "state": state, "limit": limit})

    def write_report(self) -> None:
        """Draw report.html; a full disk, or a failure of matplotlib, costs only the report."""
        if not self._is_first:
            return
        try:
            # Imported late: matplotlib would delay the start of the run.
            from tfm.training.report import write_report

            write_report(self._run_dir)
        except Exception as error:  # no picture ends a run
            if self._has_report:
                reason = str(error) or type(error).__name__
                say(f"warning: report.html is not up to date: {reason}")
            self._has_report = False
        else:
            self._has_report = True

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.append(record)
        if self._events is not None:
            self._events.append(dict(record))


def all_metrics(validations: Mapping[str, Validation]) -> dict[str, float]:
    """Return the metrics of all validation sets; for a set with a name as "NAME:loss"."""
    return {
        f"{name}:{metric}" if name else metric: value
        for name, validation in validations.items()
        for metric, value in validation.metrics.items()
    }


def describe_skip(report: StepReport) -> str:
    """Return why a step was skipped, in words."""
    return f"loss {report.loss:.4g}, gradient norm {report.gradient_norm:.4g}: not finite"


def describe_pairs(step: PendingStep) -> str:
    """Return the first training pairs of a step, counted from 0, in words."""
    pairs: list[int] = step.pairs.tolist()
    shown = ", ".join(map(str, sorted(pairs)[:_MAX_PAIRS_IN_MESSAGE]))
    num_hidden = len(pairs) - _MAX_PAIRS_IN_MESSAGE
    return f"{shown} and {num_hidden:,} more (see metrics.jsonl)" if num_hidden > 0 else shown
