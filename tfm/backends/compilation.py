"""Functions under torch.compile, compiled for each of a few sizes."""

from collections.abc import Callable
from typing import Any

import torch

# Numbers of rows for which a function is compiled; torch stops after eight by default.
_MAX_SIZES = 64


def compile_for_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for each size of its arguments."""
    config = torch._dynamo.config  # noqa: SLF001
    config.recompile_limit = _MAX_SIZES
    # In DDP, torch would split functions so that gradients are sent earlier: these are short.
    config.optimize_ddp = False
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    return compiled


def compilation_problem(device: torch.device) -> str | None:
    """Return why a device cannot run compiled code, in one line; None if it can."""
    try:
        compile_for_sizes(torch.relu)(torch.ones(8, device=device))
    except (RuntimeError, ImportError, OSError) as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None
