"""The scale of the loss in fp16, whose small gradients would vanish without one."""

from dataclasses import dataclass

_INITIAL_SCALE = 2.0**16
_MAX_SCALE = 2.0**24
_STEPS_TO_GROW = 2_000


@dataclass
class LossScale:
    """What the loss is multiplied by, and its gradient divided by.

    It is halved when a gradient overflows and doubled when none did for a long time.

    Attributes:
        value: The scale, a power of two.
        good_steps: Steps since it last changed.
    """

    value: float = _INITIAL_SCALE
    good_steps: int = 0

    def halve(self) -> bool:
        """Make it smaller after an overflow; returns whether that was possible."""
        if self.value <= 1.0:
            return False
        self.value /= 2
        self.good_steps = 0
        return True

    def note_good_step(self) -> None:
        """Count a step without overflow."""
        self.good_steps += 1
        if self.good_steps == _STEPS_TO_GROW and self.value < _MAX_SCALE:
            self.value *= 2
            self.good_steps = 0
