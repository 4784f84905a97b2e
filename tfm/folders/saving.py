"""Saving checkpoints during training: optionally in the background, and despite a full disk."""

import errno
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfm.errors import CheckpointError
from tfm.folders.model_folder import ModelInfo
from tfm.folders.model_tensors import save_checkpoint
from tfm.folders.run_folder import checkpoint_path, newest_step, prune_checkpoints
from tfm.reporting import say

_RETRY_SECONDS = 60.0


class Saver:
    """Writes the checkpoints of a run and removes old ones.

    If a checkpoint cannot be written, training continues: older checkpoints stay, `problem`
    describes the failure, and `is_retry_due` tells when to save again.

    In the background, `save` copies weights and state into CPU memory that it reuses, and a thread
    writes the copies. A save waits until the one before has ended.

    Attributes:
        saved_step: Step of the newest checkpoint on disk; None if there is none.
    """

    def __init__(self, run_dir: Path, *, background: bool = False) -> None:
        self._run_dir = run_dir
        self._writer = ThreadPoolExecutor(1, "saving") if background else None
        self._copies = _Copies()
        self._writing: Future[None] | None = None
        self.saved_step = newest_step(run_dir)
        self._failed_at = 0.0
        self._reason: str | None = None  # of the last save, if it failed
        self._has_warned_of_pruning = False

    @property
    def problem(self) -> str | None:
        """Since when and why nothing is saved, for the progress bar; None without a failure."""
        if self._reason is None:
            return None
        since = "yet" if self.saved_step is None else f"since step {self.saved_step:,}"
        return f"not saved {since}: {self._reason}"

    def is_retry_due(self) -> bool:
        """Return whether the last save failed long enough ago to try again."""
        if self._writing is not None and not self._writing.done():
            return False
        self.wait()  # raises the error of a bug in the thread
        return self._reason is not None and time.monotonic() - self._failed_at >= _RETRY_SECONDS

    def save(
        self,
        info: ModelInfo,
        weights: Mapping[str, Tensor],
        training_state: Mapping[str, Any],
        subword_files: Mapping[str, bytes],
    ) -> None:
        """Write a checkpoint of the info's step, or start to write it in the background.

        The weights have any shape. See `save_checkpoint` for the arguments.
        """
        if self._writer is None:
            self._write(info, weights, training_state, subword_files)
        else:
            self.wait()
            weights, training_state = self._copies.copy((weights, training_state))
            self._writing = self._writer.submit(
                self._write, info, weights, training_state, subword_files
            )

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            CheckpointError: The last save failed.
        """
        self.wait()
        self.close()
        if self.problem is not None:
            raise CheckpointError(
                f"{self._run_dir} is {self.problem}; free space, then run the same command again "
                "to resume from there"
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
            self._record_failure(info.step, error)
            return
        self.saved_step = info.step
        if self._reason is not None:
            self._reason = None
            say(f"train: {self._run_dir} is saved again, at step {info.step:,}")
        try:
            prune_checkpoints(self._run_dir)
        except (OSError, CheckpointError) as error:
            if not self._has_warned_of_pruning:
                say(f"warning: cannot remove old checkpoints of {self._run_dir}: {error}")
            self._has_warned_of_pruning = True

    def _record_failure(self, step: int, error: OSError) -> None:
        self._failed_at = time.monotonic()
        is_first = self._reason is None
        self._reason = "disk full" if error.errno == errno.ENOSPC else str(error.strerror)
        if is_first:
            say(
                f"warning: cannot save step {step:,} in {self._run_dir} ({self._reason}): training "
                f"continues, and saving is retried every {_RETRY_SECONDS:.0f} seconds"
            )

    def close(self) -> None:
        """Wait for the writing thread, even after an error; `save` cannot be used afterwards."""
        if self._writer is not None:
            self._writer.shutdown()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            self._writing.result()


class _Copies:
    """Copies of nested tensors in CPU memory that is reused for later copies."""

    def __init__(self) -> None:
        self._memory: dict[tuple[object, ...], Tensor] = {}

    def copy(self, value: Any) -> Any:
        """Copy all tensors of a nested value; this overwrites the copies of the last call."""
        copied = self._copy(value, ())
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        return copied

    def _copy(self, value: Any, path: tuple[object, ...]) -> Any:
        match value:
            case Tensor():
                memory = self._memory.get(path)
                if memory is None or memory.shape != value.shape or memory.dtype != value.dtype:
                    memory = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
                    self._memory[path] = memory
                return memory.copy_(value.detach(), non_blocking=True)
            case Mapping():
                return {key: self._copy(item, (*path, key)) for key, item in value.items()}
            case list() | tuple():
                kind = type(value)
                return kind(self._copy(item, (*path, i)) for i, item in enumerate(value))
        return value
