"""How far a run has come, what a step came to, and what is wished for besides."""

from dataclasses import dataclass
from typing import Protocol


@dataclass
class Position:
    """How far a run has come.

    Attributes:
        step: Steps done, with those that were skipped.
        epoch: The epoch it is in, counted from 1.
        examples: Sentence pairs done in that epoch.
        pairs: Sentence pairs seen.
        tokens: Target tokens seen.
        flops: Operations done on them.
        skipped: Steps that changed nothing, as loss or gradient was not finite.
        skipped_in_a_row: Those at the end.
    """

    step: int = 0
    epoch: int = 1
    examples: int = 0
    pairs: int = 0
    tokens: int = 0
    flops: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The figures of one step.

    Attributes:
        step: Its number, counted from 1.
        epoch: Its epoch, counted from 1.
        loss: Smoothed cross-entropy in nats a target token.
        nll: Plain negative log-likelihood in nats a target token.
        num_tokens: Target tokens.
        flops: Operations of the model, forward and backward, on tokens that are not padding.
        gradient_norm: Before clipping.
        learning_rate: Of this step.
        seconds: Wall time it took.
        skipped: Whether it changed nothing, as loss or gradient was not finite.
    """

    step: int
    epoch: int
    loss: float
    nll: float
    num_tokens: int
    flops: int
    gradient_norm: float
    learning_rate: float
    seconds: float
    skipped: bool = False


@dataclass(frozen=True)
class Wishes:
    """What is to be done besides training; what one process wishes, all do.

    Attributes:
        stop: Number of the signal that asks to stop at once; 0 if none does.
        checkpoint: Whether a checkpoint is due after this step.
        retry: Whether one that could not be saved is to be tried again.
        end: Whether this step is the last.
    """

    stop: int = 0
    checkpoint: bool = False
    retry: bool = False
    end: bool = False


def no_wishes() -> Wishes:
    """Just train."""
    return Wishes()


class Beat(Protocol):
    """Told where the main thread stands, so that a process which stalls is noticed."""

    def __call__(self, phase: str, *, waits: bool = False) -> None:
        """Note that it has come on.

        Args:
            phase: What it is at now.
            waits: Whether that waits for other processes.
        """


def unwatched(phase: str, *, waits: bool = False) -> None:
    """Nobody is told."""
