"""Times of work on a device, measured without waiting for it."""

import time
from itertools import pairwise

import torch


class DeviceClock:
    """Times consecutive steps without synchronizing a GPU between them.

    Args:
        device: Where the steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Mark the end of one step and the beginning of the next."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Wait for the last mark on the device, then return the seconds between marks."""
        if not self._events:
            return [end - start for start, end in pairwise(self._times)]
        self._events[-1].synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairwise(self._events)]
