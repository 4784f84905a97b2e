"""Checks of what a GPU computes; each function is a step of a session.

Run one by itself:

    python benchmarks/gpu/checks.py losses --prepared build/gpu-prepared --scratch /tmp/scratch
"""

import os
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree as ET

import torch
import torch.distributed as dist
from common import (
    NO_DROPOUT,
    WHOLE_BATCH,
    Check,
    Setup,
    logged_losses,
    new_training,
    reference_losses,
    result_of,
    run_step,
    slot_engine,
    train_losses,
    without_graphs,
    without_reports,
)
from session import unmet_requirements
from torch.multiprocessing.spawn import spawn
from typing_extensions import override

from tfm.config import InferencePrecision, SearchConfig
from tfm.data.batching import Batch
from tfm.device.cpu import this_cpu
from tfm.distributed.group import Group
from tfm.search.scoring import Hypothesis
from tfm.stages.bench import measurement
from tfm.stages.train import train
from tfm.storage.files import read_json
from tfm.training.loss import BatchLoss
from tfm.world import World

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "tfm"
_GPU_TESTS = (
    "test_kernels_*.py",
    "test_gpu_*.py",
    "test_selection.py",
    "test_cuda_graphs.py",
)
_MAX_RELATIVE, _MAX_NATS, _MAX_DROPOUT_NATS = 1e-4, 1e-2, 0.02
# With this memory, a step of this batch must be split.
_LARGE_BATCH = {"batch_tokens": 25_000, "bucket_tokens": 3_125, **WHOLE_BATCH}
_SMALL_MEMORY = 1 << 30
_FEW_SENTENCES = 8  # in a dry run
_NUM_STEPS = 4
_NUM_COPIES = 20


def machine(setup: Setup) -> dict[str, Any]:
    """Return versions, and the rates of copies and of matrix products."""
    device = torch.device(setup.device)
    dtype = torch.float32 if setup.dry_run else torch.bfloat16
    rates = measurement.MatrixRate.of(device, measurement.matrix_rates(device, dtype))
    source = torch.randn(1 << (20 if setup.dry_run else 30), device=device)
    copy = torch.empty_like(source)
    copy.copy_(source)  # the first touch of memory is slower
    measurement.synchronize(device)
    started = time.perf_counter()
    for _ in range(_NUM_COPIES):
        copy.copy_(source)
    measurement.synchronize(device)
    # Each byte is read and written.
    bandwidth = 2 * _NUM_COPIES * source.nbytes / (time.perf_counter() - started)
    unmet = unmet_requirements()
    name = "a CPU" if setup.dry_run else torch.cuda.get_device_name()
    checks = [Check(f"unmet requirements {' '.join(unmet)}".rstrip(), len(unmet), 0)]
    result = result_of(
        checks,
        device=name,
        python=sys.version,
        cuda=torch.version.cuda,
        versions={each.name: each.version for each in distributions()},
        product_flops_per_second=rates.best,
        copy_bytes_per_second=bandwidth,
    )
    rate = f"products {rates.best / 1e12:,.1f} TFLOP/s, copies {bandwidth / 1e12:.2f} TB/s"
    result["summary"] = f"{name}, torch {torch.__version__}, {rate}; {result['summary']}"
    return result


def tests(setup: Setup) -> dict[str, Any]:
    """Run the tests of kernels and GPU code; on a GPU, a skipped test counts as failed."""
    report = setup.scratch / "tests.xml"
    patterns = ("test_cuda_graphs.py",) if setup.dry_run else _GPU_TESTS
    files = [path for pattern in patterns for path in sorted((_ROOT / "tests").glob(pattern))]
    parallel = [] if setup.dry_run else ["-p", "xdist.plugin", "--numprocesses", "8"]
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *parallel]
    # Warnings are errors, also those of plugins that have nothing to do with these tests.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command += [f"--junitxml={report}", *map(str, files)]
    subprocess.run(command, cwd=_ROOT, env=environment, stdout=sys.stderr, check=False)
    if not report.exists():
        raise SystemExit("pytest wrote no report: its message is in the log")
    passed, failed, skipped = read_tests(report)
    checks = [Check("failed", len(failed), 0), Check("skipped", len(skipped), 0)]
    if setup.dry_run:
        checks.pop()
    result = result_of(checks, failed=failed, skipped=skipped, needs_gpu=bool(skipped))
    result["summary"] = f"{passed} passed; {result['summary']}"
    return result


def read_tests(report: Path) -> tuple[int, list[str], list[str]]:
    """Return the number of passed tests, and the names of failed and of skipped ones."""
    passed, failed, skipped = 0, list[str](), list[str]()
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        outcomes = {each.tag: each for each in case}
        if "failure" in outcomes or "error" in outcomes:
            failed.append(name)
        elif "skipped" in outcomes:
            skipped.append(f"{name}: {outcomes['skipped'].get('message')}")
        else:
            passed += 1
    return passed, failed, skipped


def losses(setup: Setup) -> dict[str, Any]:
    """Compare the losses of kernels and precisions with those of plain fp32 on a CPU."""
    stored = setup.prepared / "losses.json"
    prepared = reference_losses(setup, steps=3) if setup.dry_run else read_json(stored)
    reference = prepared["losses"]
    has_bf16 = setup.device == "cuda" or this_cpu().has_bf16
    checks, figures = [], {"reference": reference}
    for precision in ("fp32", "bf16") if has_bf16 else ("fp32",):
        for kernels in ("plain", "fast"):
            name = f"{kernels} {precision}"
            found = train_losses(
                setup, f"losses {name}", steps=len(reference), kernels=kernels, precision=precision
            )
            figures[name] = found
            if precision == "fp32":
                checks.append(Check(name, _relative_difference(found, reference), _MAX_RELATIVE))
            else:
                worst = max(abs(one - other) for one, other in zip(found, reference, strict=True))
                checks.append(Check(f"{name}, nats", worst, _MAX_NATS))
    return result_of(checks, losses=figures)


def dropout(setup: Setup) -> dict[str, Any]:
    """Compare the last losses of plain and fast kernels, which draw dropout differently."""
    steps = 4 if setup.dry_run else 300
    means = {}
    for kernels in ("plain", "fast"):
        found = train_losses(
            setup, f"dropout {kernels}", steps=steps, kernels=kernels, dropout=True
        )
        last = found[-50:]
        means[kernels] = sum(last) / len(last)
    limit = 1.0 if setup.dry_run else _MAX_DROPOUT_NATS
    check = Check("difference in nats", abs(means["plain"] - means["fast"]), limit)
    return result_of([check], losses=means)


def resume(setup: Setup) -> dict[str, Any]:
    """Compare an uninterrupted run with one that was stopped at half of its steps."""
    half = 2 if setup.dry_run else 20
    whole = train_losses(setup, "whole", steps=2 * half, dropout=True)
    train_losses(setup, "resumed", steps=half, dropout=True)
    resumed = train_losses(setup, "resumed", steps=2 * half, dropout=True)
    result = result_of([Check("difference", _relative_difference(resumed, whole), _MAX_RELATIVE)])
    result["summary"] += ", equal bits" if whole == resumed else ", other bits"
    return result


def training_graphs(setup: Setup) -> dict[str, Any]:
    """Compare steps of which each pass is a CUDA graph with single launches, with dropout."""
    steps = 4 if setup.dry_run else 300
    eager, replayed = (
        train_losses(setup, f"graphs {graphs}", steps=steps, dropout=True, cuda_graphs=graphs)
        for graphs in (False, True)
    )
    check = Check("difference", _relative_difference(replayed, eager), _MAX_DROPOUT_NATS)
    result = result_of([check], losses=[eager, replayed], needs_gpu=setup.dry_run)
    result["summary"] += ", equal bits" if eager == replayed else ", other bits"
    return result


def graphs(setup: Setup) -> dict[str, Any]:
    """Compare CUDA graphs with single launches, and with graphs between which long lines came."""
    run_dir = setup.scratch / "dropout fast"
    lines = setup.lines()
    short = lines[: 8 if setup.dry_run else 400]
    # 128, 256 and 512 tokens and more; positions are computed for the longest one seen.
    long = [" ".join(lines[:count]) for count in ((1, 2, 4) if setup.dry_run else (10, 20, 40))]
    config = SearchConfig(beam_size=4)
    checks = []
    precisions: tuple[InferencePrecision, ...] = ("fp32",) if setup.dry_run else ("fp32", "bf16")
    for precision in precisions:
        engine = slot_engine(setup, run_dir, precision)
        found = [engine.best(text, config) for text in (short, long, short)]
        with without_graphs():
            eager = slot_engine(setup, run_dir, precision)
            expected = [eager.best(text, config) for text in (short, long)]
        for name, one, other in (
            ("eager", found[0], expected[0]),
            ("eager, long lines", found[1], expected[1]),
            ("after long lines", found[0], found[2]),
        ):
            checks.append(Check(f"{precision}, {name}: differ", _num_different(one, other), 0))
    return result_of(checks)


def synchronizations(setup: Setup) -> dict[str, Any]:
    """Count the synchronizations of training steps and of decoding by file and line."""
    num_steps = 3
    figures = {}
    for kernels in ("plain", "fast"):
        run = setup.run_config("base", batching=WHOLE_BATCH, training={"kernels": kernels})
        trainer = new_training(setup, run, f"synchronizations {kernels}").trainer
        batches = trainer.batches()
        for _ in range(num_steps):
            trainer.step(next(batches))
        with counted_synchronizations(setup.device) as counts:
            for _ in range(num_steps):
                trainer.step(next(batches))
        figures[f"training, {kernels}"] = counts
    lines = setup.lines()[: 8 if setup.dry_run else 400]
    engine = slot_engine(setup, setup.scratch / "dropout fast", "fp32")
    engine.best(lines, SearchConfig())
    with counted_synchronizations(setup.device) as counts:
        engine.best(lines, SearchConfig())
    figures["decoding"] = counts
    checks = [
        Check(f"{name}: synchronizations", counts.total(), 0)
        for name, counts in figures.items()
        if name != "decoding"  # which asks every few steps which sentences are finished
    ]
    result = result_of(checks, synchronizations=figures, steps=num_steps, needs_gpu=setup.dry_run)
    result["summary"] = f"in {num_steps} steps: " + "; ".join(
        f"{name} {counts.total()}" for name, counts in figures.items()
    )
    return result


@contextmanager
def counted_synchronizations(device: str) -> Iterator[Counter[str]]:
    """Count torch's warnings of synchronizations by the innermost file and line of tfm."""
    counts: Counter[str] = Counter()

    def count(message: Warning | str, *_: Any, **__: Any) -> None:
        if "called a synchronizing" not in str(message):
            return
        frames = reversed(traceback.extract_stack())
        for path, line in ((Path(frame.filename), frame.lineno) for frame in frames):
            if path.is_relative_to(_PACKAGE):
                counts[f"{path.relative_to(_ROOT)}:{line}"] += 1
                return
        counts["elsewhere"] += 1

    with warnings.catch_warnings(), mock.patch("warnings.showwarning", count):
        warnings.simplefilter("always")
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield counts
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def processes(setup: Setup) -> dict[str, Any]:
    """Compare DDP and FSDP of one NCCL process, and two gloo processes, with a plain process."""
    expected = train_losses(
        setup, "alone", steps=_NUM_STEPS, precision="fp32", batching=_LARGE_BATCH
    )
    checks = []
    nccl = "gloo" if setup.dry_run else "cpu:gloo,cuda:nccl"
    for size, backend, names in ((1, nccl, ("DDP", "FSDP")), (2, "gloo", ("out of memory",))):
        spawn(_join, (setup, size, backend, names), nprocs=size)  # type: ignore[no-untyped-call]
        for name in names:
            difference = _relative_difference(logged_losses(setup.scratch / name), expected)
            checks.append(Check(f"{name}, {size} × {backend}", difference, _MAX_RELATIVE))
    return result_of(checks)


class CollectiveGroup(Group):
    """A process group that uses its collectives even with a single process."""

    @property
    @override
    def is_alone(self) -> bool:
        return False


def _join(rank: int, setup: Setup, size: int, backend: str, names: Sequence[str]) -> None:
    """Train as one of some processes; the last of several has too little memory at first."""
    store = f"file://{setup.scratch / f'store-{size}'}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=size)
    group = CollectiveGroup(World(rank=rank, size=size, local_rank=rank, local_size=size))
    limits = {"max_steps": _NUM_STEPS, "checkpoint_steps": _NUM_STEPS, "log_steps": 1}
    for name in names:
        training = {"precision": "fp32", "kernels": "fast", "shard": name == "FSDP", **limits}
        run = setup.run_config("small", model=NO_DROPOUT, batching=_LARGE_BATCH, training=training)
        new = new_training(setup, run, name, data=setup.data, group=group)
        with without_reports(), _little_memory(setup.device) if rank else nullcontext():
            new.loop()
        if size > 1 and not new.trainer.out_of_memory:
            raise RuntimeError("no process ran out of memory")
    dist.destroy_process_group()


@contextmanager
def _little_memory(device: str) -> Iterator[None]:
    """Let this process run out of memory with large microbatches."""
    if device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(_SMALL_MEMORY / total)
        yield
        return
    original = BatchLoss.forward

    def forward(loss: BatchLoss, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        if len(batch.sources.lengths) > _FEW_SENTENCES:
            raise torch.OutOfMemoryError("simulated")
        return original(loss, batch)

    with mock.patch.object(BatchLoss, "forward", forward):
        yield


def multi30k(setup: Setup) -> dict[str, Any]:
    """Train base on the text for 90 seconds, for the steps that decode."""
    minutes = 0.05 if setup.dry_run else 1.5
    run = setup.run_config(
        "base",
        model={"dropout": 0.3},
        optimizer={"learning_rate": 7e-4, "warmup_steps": 1000},
        batching={"batch_tokens": 16_384, "bucket_tokens": 4_096, **WHOLE_BATCH},
        training={"kernels": "fast", "max_minutes": minutes, "average": False},
    )
    done = train(setup.data, setup.scratch / "multi30k", run)
    result = result_of([], metrics=done.metrics, steps=done.step)
    result["summary"] = f"{done.step:,} steps, " + ", ".join(
        f"{name} {value:.4g}" for name, value in done.metrics.items()
    )
    return result


def _relative_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(one - other) / other for one, other in zip(found, expected, strict=True))


def _num_different(found: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> int:
    return sum(one.tokens != other.tokens for one, other in zip(found, expected, strict=True))


if __name__ == "__main__":
    run_step(
        *(machine, tests, losses, dropout, training_graphs, graphs, resume, synchronizations),
        *(processes, multi30k),
    )
