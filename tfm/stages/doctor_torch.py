"""The checks of tfm doctor that need torch; each run of this module prints findings as JSON."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from textwrap import shorten

import torch

from tfm.backends import inference_cpu
from tfm.backends.selection import verified_compute
from tfm.backends.verification import MAX_ERRORS, inference_error, training_error
from tfm.device.cpu import num_cores, this_cpu
from tfm.device.threads import set_num_threads
from tfm.distributed.group import joined
from tfm.errors import LostPeersError
from tfm.stages.doctor import Finding, Level
from tfm.world import World

_MEETING = timedelta(seconds=20)
_MESSAGE_CHARACTERS = 160
_FALLBACK = "tfm computes in another way, more slowly: try another version of torch"
_PRODUCT_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int8: "int8"}


def compute() -> Iterator[Finding]:
    """Name torch and its devices, what `auto` chooses, and verify every arithmetic."""
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs"
    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("torch", f"{torch.__version__} {build}, {capability} on the CPU")
    yield _gpu()
    set_num_threads(None)
    yield _threads()
    yield from _chosen()
    yield from _cpu_arithmetic()
    if torch.cuda.is_available():
        yield from _products(torch.device("cuda"), list(_PRODUCT_ERRORS))


def _gpu() -> Finding:
    if torch.cuda.is_available():
        names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
        return Finding("gpu", ", ".join(names))
    if not Path("/dev/nvidia0").exists():
        return Finding("gpu", "none")
    remedy = "check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES"
    if torch.version.cuda is None:
        remedy = "install torch for CUDA: see https://pytorch.org/get-started"
    what = "there is an NVIDIA GPU, but torch does not see it"
    return Finding("gpu", what, "warning", remedy)


def _threads() -> Finding:
    threads, cores = torch.get_num_threads(), num_cores()
    variable = os.environ.get("OMP_NUM_THREADS")
    source = "" if variable is None else f", with OMP_NUM_THREADS={variable}"
    what = f"{threads} for {cores} cores{source}"
    if threads > cores:
        remedy = f"threads wait for each other: set OMP_NUM_THREADS={cores}"
        return Finding("threads", what, "warning", remedy)
    return Finding("threads", what)


def _chosen() -> Iterator[Finding]:
    """Yield what `auto` chooses, and the warnings of that."""
    warnings: list[str] = []
    chosen = [
        f"{command} on {verified_compute('auto', 'auto', trains=trains, notify=warnings.append)}"
        for command, trains in (("train", True), ("generate", False))
    ]
    yield Finding("auto", "; ".join(chosen))
    for warning in dict.fromkeys(warnings):
        what = warning.removeprefix("warning: ")
        yield Finding("auto", what, "warning", "try another torch")


def _cpu_arithmetic() -> Iterator[Finding]:
    """Compare products, and the fast linear layers of each precision, with fp64."""
    yield from _products(torch.device("cpu"), [torch.float32])
    for dtype, limit in MAX_ERRORS.items():
        name = f"fast {_NAMES[dtype]}"
        if dtype == torch.bfloat16 and not this_cpu().has_bf16:
            yield Finding(name, "no units in this CPU: not used")
        elif dtype == torch.int8 and not inference_cpu.HAS_INT8:
            yield Finding(name, "not in this build of torch: not used")
        else:
            error = inference_error(dtype)
            if dtype != torch.int8:
                error = max(error, training_error(dtype))
            yield _arithmetic(name, error, limit, level="warning", remedy=_FALLBACK)


def _products(device: torch.device, dtypes: list[torch.dtype]) -> Iterator[Finding]:
    """Compare plain products on a device with fp64."""
    left, right = torch.randn(2, 512, 512, generator=torch.Generator().manual_seed(0)).double()
    exact = left @ right
    for dtype in dtypes:
        product = (left.to(device, dtype) @ right.to(device, dtype)).double().cpu()
        error = float((product - exact).norm() / exact.norm())
        name = f"{device.type} {_NAMES[dtype]}"
        remedy = "do not use this device before its memory and torch are checked"
        yield _arithmetic(name, error, _PRODUCT_ERRORS[dtype], level="problem", remedy=remedy)


def _arithmetic(name: str, error: float, limit: float, *, level: Level, remedy: str) -> Finding:
    if error <= limit:
        return Finding(name, f"relative error {error:.1g}, at most {limit:g}")
    what = f"wrong: relative error {error:.1g}, more than {limit:g}"
    return Finding(name, what, level, remedy)


def meet(rank: int, port: str) -> Iterator[Finding]:
    """Join another process, by NCCL too if there are two GPUs, and sum numbers with it."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # of a launcher around this command
    world = World(rank=rank, size=2, local_rank=rank, local_size=2)
    has_gpus = torch.cuda.device_count() >= world.size
    device = torch.device("cuda", rank) if has_gpus else torch.device("cpu")
    library = "gloo and NCCL" if has_gpus else "gloo"
    started = time.monotonic()
    try:
        with joined(world, device, timeout=_MEETING) as group:
            for each in {torch.device("cpu"), device}:
                group.sum(torch.ones(1, device=each))
    except (LostPeersError, RuntimeError) as error:
        what = f"two cannot meet over {library}: {shorten(str(error), _MESSAGE_CHARACTERS)}"
        remedy = "several processes need a loopback interface: see ip link show lo"
        yield Finding("processes", what, "problem", remedy)
        return
    seconds = time.monotonic() - started
    yield Finding("processes", f"two met over {library} in {seconds:.1f} s")


def main(command: str, *arguments: str) -> None:
    """Print the findings of a group of checks, each as soon as it is there."""
    found = compute() if command == "compute" else meet(int(arguments[0]), arguments[1])
    for finding in found:
        print(json.dumps(asdict(finding)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
