"""The checkpoints of a run, which rank 0 saves after all ranks have agreed on the weights."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfm.errors import CheckpointError, UnequalRanksError
from tfm.folders.saving import Saver, last_good_checkpoint
from tfm.machine.group import Group
from tfm.machine.interruption import RESUME
from tfm.training.data import TrainingData
from tfm.training.trainer import Trainer


class Checkpoints(Saver):
    """Saves the checkpoints of a run; all processes call these methods together."""

    def __init__(self, run_dir: Path, data: TrainingData, trainer: Trainer, group: Group) -> None:
        super().__init__(run_dir, background=data.info.run.training.background_saving)
        self._data, self._trainer, self._group = data, trainer, group

    def save_run(self, metrics: dict[str, float], state: Mapping[str, Any]) -> None:
        """Save the weights, the metrics, and the state of the trainer beside that of the run."""
        self._group.heartbeat("saving", waits=True)
        is_first = self._group.world.is_first
        weights = self._trainer.weights(keep=is_first)
        trainer = self._trainer.state(keep=is_first)
        if not is_first:
            return
        info = replace(self._data.info, step=self._trainer.position.step, metrics=metrics)
        self._group.heartbeat("writing a checkpoint")
        state = {"trainer": trainer, "dataset": self._data.checksum, **state}
        self.save(info, weights, state, self._data.model_files)

    def check_ranks(self) -> None:
        """Raise UnequalRanksError if the weights of some ranks differ from those of the others."""
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
