"""CUDA graphs: capture the kernels that a function launches, to launch all of them at once."""

from collections.abc import Callable
from typing import Any

import torch

# Calls before the capture, in which libraries allocate memory and Triton compiles.
_NUM_WARM_UPS = 2


def recorded(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return a function that replays what `function` launches as one CUDA graph.

    `function` is called several times, in inference mode: some versions of torch refuse captures
    in different modes. It must launch the same operations on the same memory each time, and must
    not wait for the device. On a CPU it is returned unchanged.
    """
    if device.type != "cuda":
        return function
    with torch.inference_mode():
        warm_up = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        warm_up.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(warm_up):
            for _ in range(_NUM_WARM_UPS):
                function()
        torch.cuda.current_stream(device).wait_stream(warm_up)
        return captured(function).replay


def captured(
    function: Callable[[], Any], *, shares_memory_of: torch.cuda.CUDAGraph | None = None
) -> torch.cuda.CUDAGraph:
    """Capture what `function` launches on the current GPU, without computing it.

    Everything must have been compiled before. What one of several graphs that share memory has
    computed there is lost when another is replayed.
    """
    graph = torch.cuda.CUDAGraph()
    pool = None if shares_memory_of is None else shares_memory_of.pool()
    # Let other threads use the device during the capture: one that saves, or the watchdog.
    with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
        function()
    return graph
