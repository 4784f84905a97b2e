"""Checkpoints during training: written, also in the background, set aside and removed."""

import errno
import hashlib
import math
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tfm.disk.files import atomic_directory, finish_replacement, remove_path
from tfm.disk.tensor_file import write_state, write_tensors
from tfm.errors import CheckpointError
from tfm.folders.model_folder import ModelFolder, check_any_intact, ranked
from tfm.folders.model_info import (
    STATE,
    WEIGHTS,
    DamagedCheckpointError,
    KnownPair,
    ModelInfo,
    own_files,
    write_description,
)
from tfm.folders.run_folder import DAMAGED, PREFIX, checkpoint_path, checkpoints, newest_step
from tfm.model.build import build_model
from tfm.reporting import say
from tfm.vocabulary.subword import BOS, EOS, UNK

NUM_STATES_KEPT = 2
_RETRY_SECONDS = 60.0
_KNOWN_TOKENS = 8  # of each side of the pair that verifies other engines


def save_checkpoint(
    path: Path,
    info: ModelInfo,
    weights: Mapping[str, Tensor],
    *,
    subword_files: Mapping[str, bytes],
    training_state: Mapping[str, Any] | None = None,
) -> None:
    """Write a model folder atomically; files that others put into an older one stay.

    It holds the parameters, of any shape, each under one name; the subword models by file name; and
    the tensors and plain values needed to resume training.
    """
    with atomic_directory(path, own=own_files(path)) as folder:
        digests = {WEIGHTS: write_tensors(folder / WEIGHTS, weights)}
        if training_state is not None:
            digests[STATE] = write_state(folder / STATE, training_state)
        for name, content in subword_files.items():
            (folder / name).write_bytes(content)
            digests[name] = hashlib.sha256(content).hexdigest()
        write_description(folder, replace(info, known=_known_pair(info, weights)), digests)


def _known_pair(info: ModelInfo, weights: Mapping[str, Tensor]) -> KnownPair | None:
    """Return a pair of tokens from all parts of the vocabularies, with its log probability.

    None if it is not finite, or the weights are not those of such a model.
    """
    on_cpu = {name: weight.detach().cpu() for name, weight in weights.items()}
    try:
        model = build_model(info.run.model, on_cpu, info.vocab_sizes).eval()
    except ValueError:  # told when it is read
        return None
    limit = model.max_positions or _KNOWN_TOKENS + 1  # with EOS
    source, target = (
        [*range(UNK + 1, size, -(-size // _KNOWN_TOKENS))][: limit - 1] for size in info.vocab_sizes
    )
    with torch.inference_mode():
        lengths, expected = torch.tensor([len(source) + 1]), torch.tensor([[*target, EOS]])
        hidden = model(torch.tensor([[*source, EOS]]), lengths, torch.tensor([[BOS, *target]]))
        log_probs = model.logits(hidden)[0].log_softmax(dim=-1).gather(1, expected.mT)
        log_prob = float(log_probs.double().sum())
    if not math.isfinite(log_prob):
        return None
    return KnownPair(tuple(source), tuple(target), log_prob)


class Saver:
    """Writes the checkpoints of a run and removes old ones.

    If a checkpoint cannot be written, training continues: older checkpoints stay, `problem`
    describes the failure, and `is_retry_due` tells when to save again.

    In the background, `save` copies weights and state into CPU memory that it reuses, and a thread
    writes the copies. A save waits for the end of the save before.

    Args:
        run_dir: The run folder.
        subword_files: The subword models of all checkpoints, by file name.
        background: Whether to write in the background.

    Attributes:
        saved_step: Step of the newest checkpoint on disk; None if there is none.
    """

    def __init__(
        self, run_dir: Path, subword_files: Mapping[str, bytes], *, background: bool = False
    ) -> None:
        self._run_dir, self._subword_files = run_dir, subword_files
        self._writer = ThreadPoolExecutor(1, "saving") if background else None
        self._copies = _Copies()
        self._writing: Future[None] | None = None
        self.saved_step = newest_step(run_dir)
        self._infos: Mapping[Path, ModelInfo] = {}  # of checkpoints that need not be read
        self._failed_at = 0.0
        self._reason: str | None = None  # of the last save, if it failed
        self._has_warned_of_pruning = False

    @property
    def problem(self) -> str | None:
        """Since which step nothing is saved, and why; None if the last save succeeded."""
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
        self, info: ModelInfo, weights: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint of the info's step, or start to write it in the background.

        The weights have any shape. See `save_checkpoint` for the arguments.
        """
        if self._writer is None:
            self._write(info, weights, state)
        else:
            self.wait()
            self._writing = self._writer.submit(
                self._write, info, *self._copies.copy((weights, state))
            )

    def finish(self) -> None:
        """Wait until everything is written."""
        self.wait()
        self.close()
        if self.problem is not None:
            raise CheckpointError(
                f"{self._run_dir} is {self.problem}; free space, then run the same command again "
                "to resume from there"
            )

    def _write(
        self, info: ModelInfo, weights: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        path = checkpoint_path(self._run_dir, info.step)
        try:
            save_checkpoint(
                path, info, weights, subword_files=self._subword_files, training_state=state
            )
        except OSError as error:
            self._record_failure(info.step, error)
            return
        self.saved_step = info.step
        if self._reason is not None:
            self._reason = None
            say(f"train: {self._run_dir} is saved again, at step {info.step:,}")
        try:
            self._infos = prune_checkpoints(self._run_dir, {**self._infos, path: info})
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


def newest_intact_checkpoint(run_dir: Path) -> Path | None:
    """Return the checkpoint to resume from; None if the run has none yet.

    Damaged checkpoints are reported and renamed to "damaged-step-…"; they are never removed.
    """
    _remove_leftovers(run_dir / "checkpoints")
    present = checkpoints(run_dir)
    while present:
        path = present.pop()
        # Pruning removes the oldest states first: if an older checkpoint has one, this was lost.
        needs_state = (path / STATE).exists() or any((each / STATE).exists() for each in present)
        if _open_intact(path, WEIGHTS, *([STATE] if needs_state else [])) is None:
            continue
        if not needs_state:
            raise CheckpointError(
                f"cannot resume {run_dir}: its newest intact checkpoint, {path}, has no {STATE}; "
                "use it to translate or average, and start another run with --run"
            )
        return path
    check_any_intact(run_dir)
    return None


def last_good_checkpoint(run_dir: Path, *, before: int) -> Path | None:
    """Return the newest intact checkpoint that was validated or is older than a step.

    None if there is none. A validation without a finite loss does not count.
    """
    for path in reversed(checkpoints(run_dir)):
        with suppress(DamagedCheckpointError):
            info = ModelFolder(path).info
            quality = info.quality("loss")
            if info.step < before or (quality is not None and math.isfinite(quality)):
                return path
    return None


def prune_checkpoints(
    run_dir: Path, infos: Mapping[Path, ModelInfo] = MappingProxyType({})
) -> dict[Path, ModelInfo]:
    """Remove all checkpoints but the newest and the best, by the run's settings.

    The newest of a run with validation are those that were validated, since only these are
    averaged; and the very newest, to resume. Only the two newest keep their training state, since
    it is twice the size of the model. Only the process that writes to the run may call this.

    Args:
        run_dir: The run.
        infos: The descriptions of some of its checkpoints; other descriptions are read.

    Returns:
        The descriptions of the checkpoints that are left.
    """
    _remove_leftovers(run_dir / "checkpoints")
    present: dict[Path, ModelInfo] = {}
    for path in checkpoints(run_dir):
        if (info := infos.get(path)) is not None:
            present[path] = info
        elif (folder := _open_intact(path)) is not None:
            present[path] = folder.info
    if not present:
        return {}
    newest = list(present)
    settings = present[newest[-1]].run.training
    best = ranked(present, settings.best_metric)[: settings.keep_best]
    validated = [path for path in newest if present[path].metrics] or newest
    kept = {newest[-1], *validated[-settings.keep_last :], *best}
    with_state = [path for path in newest if path in kept][-NUM_STATES_KEPT:]
    for path in newest:
        if path not in kept:
            outgoing = path.with_name(f".{path.name}.removed")
            os.replace(path, outgoing)  # atomic, unlike the removal of the files
            remove_path(outgoing)
        elif path not in with_state:
            (path / STATE).unlink(missing_ok=True)
    return {path: info for path, info in present.items() if path in kept}


def _open_intact(path: Path, *files: str) -> ModelFolder | None:
    """Open a checkpoint and verify some of its files; if it is damaged, set it aside."""
    try:
        folder = ModelFolder(path)
        for name in files:
            folder.file(name)
    except DamagedCheckpointError as error:
        number, aside = 1, path.with_name(DAMAGED + path.name)
        while aside.exists():
            number += 1
            aside = path.with_name(f"{DAMAGED}{path.name}-{number}")
        os.replace(path, aside)
        problem, *_advice = str(error).split("; ")
        say(f"warning: {problem}; it is set aside as {aside.name}")
        return None
    return folder


def _remove_leftovers(folder: Path) -> None:
    """Remove or finish the incomplete checkpoints of a killed run, on any machine."""
    for pattern in ("partial", "removed"):
        for leftover in folder.glob(f".{PREFIX}*.{pattern}"):
            remove_path(leftover)
    for leftover in folder.glob(f".{PREFIX}*.old"):
        finish_replacement(leftover.with_name(leftover.name[1:].removesuffix(".old")))
