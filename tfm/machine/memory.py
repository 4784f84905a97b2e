"""The memory of a GPU: the most that work has taken, and whether enough was left."""

import torch

USABLE_SHARE = 0.9  # the rest is for longer sentences, fragments and libraries


class PeakMemory:
    """Measures the memory of a GPU from now on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)

    def is_short(self, *, later_bytes: int) -> bool:
        """Return whether the peak and the memory of other programs leave less than `later_bytes`.

        Only `USABLE_SHARE` of all memory counts.
        """
        free, total = torch.cuda.mem_get_info(self._device)
        others = total - free - torch.cuda.memory_reserved(self._device)
        peak = torch.cuda.max_memory_allocated(self._device)
        return others + peak + later_bytes > USABLE_SHARE * total
