"""Saving while training goes on: beside it if asked to, and in spite of a full disk."""

import errno
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfm.errors import CheckpointError
from tfm.reporting import say
from tfm.storage.checkpoint.model_folder import ModelInfo, save_checkpoint
from tfm.storage.checkpoint.run_folder import checkpoint_path, newest_step, prune_checkpoints

_RETRY_SECONDS = 60.0


class Saver:
    """Writes the checkpoints of a run, and removes those that are not to be kept.

    A checkpoint that cannot be written does not end a run: the older ones stay, `problem` says so,
    and the run tries again once `is_retry_due`.

    In the background, `save` copies weights and state into memory of the CPU, which is kept for the
    next time, and returns; one thread writes. A save waits for the one before.

    Args:
        run_dir: The run.
        background: Whether to write while training goes on.
        clock: Seconds since some moment.

    Attributes:
        saved_step: The step of the newest checkpoint that is on the disk; None if there is none.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        background: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, "saving") if background else None
        self._copies = _Copies()
        self._writing: Future[None] | None = None
        self.saved_step = newest_step(run_dir)
        self._failed_at = 0.0
        self._reason: str | None = None  # why the last save failed
        self._warned_of_pruning = False

    @property
    def problem(self) -> str | None:
        """What the bar should say: since when, and why, nothing is saved; None if all is well."""
        if self._reason is None:
            return None
        since = "yet" if self.saved_step is None else f"since step {self.saved_step:,}"
        return f"not saved {since}: {self._reason}"

    def is_retry_due(self) -> bool:
        """Whether the last save failed long enough ago to try again."""
        if self._writing is not None and not self._writing.done():
            return False
        self.wait()  # so that a bug in the thread is one here
        if self._reason is None:
            return False
        return self._clock() - self._failed_at >= _RETRY_SECONDS

    def save(
        self,
        info: ModelInfo,
        weights: Mapping[str, Tensor],
        training_state: Mapping[str, Any],
        subword_files: Mapping[str, bytes],
    ) -> None:
        """Write a checkpoint, or begin to.

        Args:
            info: What the model is; its step names the checkpoint.
            weights: Parameters by name, each once.
            training_state: What is needed to train on; tensors and plain values only.
            subword_files: Contents of the subword models by file name.
        """
        if self._writer is None:
            self._write(info, weights, training_state, subword_files)
            return
        self.wait()
        weights, training_state = self._copies.of((weights, training_state))
        self._writing = self._writer.submit(
            self._write, info, weights, training_state, subword_files
        )

    def finish(self) -> None:
        """Wait until all is written.

        Raises:
            CheckpointError: The last save failed.
        """
        self.wait()
        self.close()
        if self.problem is not None:
            raise CheckpointError(
                f"{self._run_dir} is {self.problem}; make room, then the same command goes on "
                "from there"
            )

    def _write(
        self,
        info: ModelInfo,
        weights: Mapping[str, Tensor],
        training_state: Mapping[str, Any],
        subword_files: Mapping[str, bytes],
    ) -> None:
        try:
            save_checkpoint(
                checkpoint_path(self._run_dir, info.step),
                info,
                weights,
                subword_files=subword_files,
                training_state=training_state,
            )
        except OSError as error:
            self._note_failure(info.step, error)
        else:
            self._note_success(info.step)
            self._prune()

    def _note_failure(self, step: int, error: OSError) -> None:
        self._failed_at = self._clock()
        is_first = self._reason is None
        self._reason = "disk full" if error.errno == errno.ENOSPC else str(error.strerror)
        if is_first:
            say(
                f"warning: cannot save step {step:,} in {self._run_dir} ({self._reason}): training "
                f"goes on, and tries again every {_RETRY_SECONDS:.0f} seconds"
            )

    def _note_success(self, step: int) -> None:
        self.saved_step = step
        if self._reason is not None:
            self._reason = None
            say(f"train: {self._run_dir} is saved again, at step {step:,}")

    def _prune(self) -> None:
        try:
            prune_checkpoints(self._run_dir)
        except (OSError, CheckpointError) as error:
            if not self._warned_of_pruning:
                say(f"warning: cannot remove old checkpoints of {self._run_dir}: {error}")
            self._warned_of_pruning = True

    def close(self) -> None:
        """Wait for what is being written, whatever has happened; nothing is saved after it."""
        if self._writer is not None:
            self._writer.shutdown()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            self._writing.result()


class _Copies:
    """Copies of nested tensors in memory of the CPU, which is used again for the next ones."""

    def __init__(self) -> None:
        self._memory: dict[tuple[object, ...], Tensor] = {}

    def of(self, value: Any) -> Any:
        """A value whose tensors, however deep, are copies; the copies before are overwritten."""
        copied = self._copied(value, ())
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        return copied

    def _copied(self, value: Any, path: tuple[object, ...]) -> Any:
        match value:
            case Tensor():
                memory = self._memory.get(path)
                if memory is None or memory.shape != value.shape or memory.dtype != value.dtype:
                    memory = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
                    self._memory[path] = memory
                return memory.copy_(value.detach(), non_blocking=True)
            case Mapping():
                return {key: self._copied(each, (*path, key)) for key, each in value.items()}
            case list() | tuple():
                kind = type(value)
                return kind(self._copied(each, (*path, i)) for i, each in enumerate(value))
        return value
