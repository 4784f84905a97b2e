"""The checks of tfm doctor that need torch; each run of this module prints findings as JSON."""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from textwrap import shorten

import torch
from torch.distributed.elastic.utils.distributed import get_free_port

from tfm.applications.doctor.checks import Finding
from tfm.backends.selection import verified_compute
from tfm.errors import LostPeersError
from tfm.machine.group import joined
from tfm.machine.world import World

_MEETING = timedelta(seconds=60)
_MESSAGE_CHARACTERS = 160
_PRODUCT_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def compute() -> Iterator[Finding]:
    """Name torch and its devices, what `auto` chooses, and verify the arithmetic of devices."""
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs"
    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("torch", f"{torch.__version__} {build}, {capability} on the CPU")
    yield check_gpu()
    yield from check_choices()
    yield from check_products(torch.device("cpu"), [torch.float32])
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


def check_products(device: torch.device, dtypes: list[torch.dtype]) -> Iterator[Finding]:
    """Compare matrix products of each dtype on a device with fp64 on the CPU."""
    left, right = torch.randn(2, 512, 512, generator=torch.Generator().manual_seed(0)).double()
    exact = left @ right
    for dtype in dtypes:
        product = (left.to(device, dtype) @ right.to(device, dtype)).double().cpu()
        error, limit = float((product - exact).norm() / exact.norm()), _PRODUCT_ERRORS[dtype]
        is_well = error <= limit  # NaN is wrong, too
        name = f"{device.type} {_NAMES[dtype]}"
        message = f"relative error {error:.1g}, {'at most' if is_well else 'more than'} {limit:g}"
        remedy = "do not use this device before its memory and torch are checked"
        yield Finding.of(name, message, is_well=is_well, remedy=remedy, level="problem")


def meet() -> Iterator[Finding]:
    """Join another process, by NCCL too if there are two GPUs, and sum numbers with it."""
    library = "gloo and NCCL" if torch.cuda.device_count() > 1 else "gloo"
    port = str(get_free_port())  # type: ignore[no-untyped-call]
    other = multiprocessing.get_context("spawn").Process(target=_sum, args=(1, port))
    other.start()
    try:
        _sum(0, port)
        yield Finding("processes", f"two met over {library}")
    except (LostPeersError, RuntimeError) as error:
        message = f"two cannot meet over {library}: {shorten(str(error), _MESSAGE_CHARACTERS)}"
        remedy = "several processes need a loopback interface: see ip link show lo"
        yield Finding("processes", message, "problem", remedy)
    finally:
        other.kill()


def _sum(rank: int, port: str) -> None:
    """Sum a number with another process, on each device that runs would use."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # of a launcher around this command
    world = World(rank=rank, size=2, local_rank=rank, local_size=2)
    has_gpus = torch.cuda.device_count() >= world.size
    device = torch.device("cuda", rank) if has_gpus else torch.device("cpu")
    with joined(world, device, timeout=_MEETING) as group:
        for each in {torch.device("cpu"), device}:
            group.sum(torch.ones(1, device=each))


if __name__ == "__main__":
    for finding in {"torch": compute, "processes": meet}[sys.argv[1]]():
        print(json.dumps(asdict(finding)), flush=True)  # noqa: T201 - each as soon as it is there
