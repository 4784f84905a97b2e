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

from tfm.applications.doctor.checks import Finding, Level
from tfm.backends import products_cpu
from tfm.backends.selection import MAX_ERRORS, inference_error, training_error, verified_compute
from tfm.errors import LostPeersError
from tfm.machine.compute import set_num_threads
from tfm.machine.cpu import num_cores, this_cpu
from tfm.machine.group import joined
from tfm.machine.world import World

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
    yield check_gpu()
    set_num_threads(None)
    yield check_threads()
    yield from check_choices()
    yield from check_products(torch.device("cpu"), [torch.float32])
    yield from check_fast_layers()
    if torch.cuda.is_available():
        yield from check_products(torch.device("cuda"), list(_PRODUCT_ERRORS))


def check_gpu() -> Finding:
    """Report the GPUs that torch sees."""
    if torch.cuda.is_available():
        names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
        return Finding("gpu", ", ".join(names))
    if not Path("/dev/nvidia0").exists():
        return Finding("gpu", "none")
    remedy = "check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES"
    if torch.version.cuda is None:
        remedy = "install torch for CUDA: see https://pytorch.org/get-started"
    return Finding("gpu", "there is an NVIDIA GPU, but torch does not see it", "warning", remedy)


def check_threads() -> Finding:
    """Warn if torch has more threads than this process has cores."""
    threads, cores = torch.get_num_threads(), num_cores()
    variable = os.environ.get("OMP_NUM_THREADS")
    message = f"{threads} for {cores} cores" + (
        f", with OMP_NUM_THREADS={variable}" if variable else ""
    )
    remedy = f"threads wait for each other: set OMP_NUM_THREADS={cores}"
    return Finding.of("threads", message, is_well=threads <= cores, remedy=remedy)


def check_choices() -> Iterator[Finding]:
    """Report the device and precision that `auto` chooses, and the warnings of that choice."""
    warnings: list[str] = []
    chosen = [
        f"{command} on {verified_compute('auto', 'auto', trains=trains, notify=warnings.append)}"
        for command, trains in (("train", True), ("generate", False))
    ]
    yield Finding("auto", "; ".join(chosen))
    for warning in dict.fromkeys(warnings):
        yield Finding("auto", warning.removeprefix("warning: "), "warning", "try another torch")


def check_fast_layers() -> Iterator[Finding]:
    """Compare the fast linear layers of each precision with fp64."""
    for dtype, limit in MAX_ERRORS.items():
        name = f"fast {_NAMES[dtype]}"
        if dtype == torch.bfloat16 and not this_cpu().has_bf16:
            yield Finding(name, "no units in this CPU: not used")
        elif dtype == torch.int8 and not products_cpu.HAS_INT8:
            yield Finding(name, "not in this build of torch: not used")
        else:
            training = 0.0 if dtype == torch.int8 else training_error(dtype)
            error = max(inference_error(dtype), training)
            yield _arithmetic(name, error, limit, level="warning", remedy=_FALLBACK)


def check_products(device: torch.device, dtypes: list[torch.dtype]) -> Iterator[Finding]:
    """Compare matrix products of each dtype on a device with fp64 on the CPU."""
    left, right = torch.randn(2, 512, 512, generator=torch.Generator().manual_seed(0)).double()
    exact = left @ right
    for dtype in dtypes:
        product = (left.to(device, dtype) @ right.to(device, dtype)).double().cpu()
        error = float((product - exact).norm() / exact.norm())
        name = f"{device.type} {_NAMES[dtype]}"
        remedy = "do not use this device before its memory and torch are checked"
        yield _arithmetic(name, error, _PRODUCT_ERRORS[dtype], level="problem", remedy=remedy)


def _arithmetic(name: str, error: float, limit: float, *, level: Level, remedy: str) -> Finding:
    is_well = error <= limit  # NaN is wrong, too
    message = f"relative error {error:.1g}, {'at most' if is_well else 'more than'} {limit:g}"
    return Finding.of(name, message, is_well=is_well, remedy=remedy, level=level)


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
        message = f"two met over {library} in {time.monotonic() - started:.1f} s"
        yield Finding("processes", message)
    except (LostPeersError, RuntimeError) as error:
        message = f"two cannot meet over {library}: {shorten(str(error), _MESSAGE_CHARACTERS)}"
        remedy = "several processes need a loopback interface: see ip link show lo"
        yield Finding("processes", message, "problem", remedy)


def main(command: str, *arguments: str) -> None:
    """Print the findings of a group of checks, each as soon as it is there."""
    found = compute() if command == "compute" else meet(int(arguments[0]), arguments[1])
    for finding in found:
        print(json.dumps(asdict(finding)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
