"""Recording what is launched on a GPU, to launch it again all at once."""

from collections.abc import Callable

import torch

# Before it is recorded: libraries take their memory and kernels are compiled when first used.
_NUM_WARM_UPS = 2


def recorded(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Make of a function one that launches the same again as one CUDA graph.

    What it launches must be the same operations on the same memory each time, and it must not wait
    for the device. It is called some times meanwhile.

    Args:
        function: What to record.
        device: Where it launches; a CPU has nothing to record, and gets the function as it is.
    """
    if device.type != "cuda":
        return function
    warm_up = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    warm_up.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(warm_up):
        for _ in range(_NUM_WARM_UPS):
            function()
    torch.cuda.current_stream(device).wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    # Other threads may go on meanwhile: one that saves, or watches the processes.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        function()
    return graph.replay
