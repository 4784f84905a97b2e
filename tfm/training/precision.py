"""Loss scaling for fp16, in which small gradients would underflow."""

from dataclasses import dataclass

_INITIAL_SCALE = 2.0**16
_MAX_SCALE = 2.0**24
_STEPS_TO_GROW = 2_000


@dataclass
class LossScale:
    """A factor for the loss, by which its gradient is divided again before the update.

    It is halved when a gradient overflows, and doubled after many steps without overflow.

    Attributes:
        value: The factor, a power of two.
        good_steps: Number of steps without overflow since its last change.
    """

    value: float = _INITIAL_SCALE
    good_steps: int = 0

    def halve(self) -> bool:
        """Halve the scale after an overflow; return whether it was above its minimum, 1."""
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
