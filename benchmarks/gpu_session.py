"""Check and time tfm on a machine with GPUs, in stages of a few minutes each.

    python benchmarks/gpu_session.py prepare --out session    # on a CPU: the losses to compare with
    python benchmarks/gpu_session.py right --out session      # does each part run, and correctly?
    python benchmarks/gpu_session.py fast --out session       # training, then decoding
    python benchmarks/gpu_session.py several --out session    # all GPUs of the machine together

Each step is a process with a time limit; those of "right" run side by side. A step appends a JSON
line to OUT/results.jsonl; a table follows at the end. Profiles are in OUT. Code that torch compiles
is cached in OUT/caches. "all --dry-run" computes everything in one process on a CPU with tiny
models, and says which steps show nothing without a GPU.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from token_dataset import write_token_dataset  # noqa: E402

from tfm.backends.plain import PLAIN_TRAINING  # noqa: E402
from tfm.backends.selection import inference_backend, training_backend  # noqa: E402
from tfm.backends.training_compiled import (  # noqa: E402
    AttentionKernel,
    CompiledTraining,
    kernel_problem,
)
from tfm.config import Precision, RunConfig, SearchConfig, run_config, run_toml  # noqa: E402
from tfm.dataset.parallel import ParallelDataset  # noqa: E402
from tfm.machine.compute import Compute, choose_compute  # noqa: E402
from tfm.machine.group import Group  # noqa: E402
from tfm.model.build import evaluation_copy, new_model  # noqa: E402
from tfm.model.cost import model_cost  # noqa: E402
from tfm.training import gradients, loss, trainer  # noqa: E402
from tfm.translation.batches import SentenceBatch  # noqa: E402
from tfm.translation.engine import Engine  # noqa: E402

DROPOUTS = ("dropout", "embedding_dropout", "attention_dropout", "relu_dropout")
NO_DROPOUT = dict.fromkeys(DROPOUTS, 0.0)
_SHAPE = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 32}
_TINY_MODEL = _SHAPE | {"num_heads": 2} | dict.fromkeys(DROPOUTS, 0.1) | {"norm": "pre"}
TINY = {"model": _TINY_MODEL, "batching": {"batch_tokens": 600, "bucket_tokens": 300}}
NUM_PAIRS, NUM_LOSSES = 100_000, 50
MAX_DIFFERENCE: dict[Precision, float] = {"fp32": 1e-4, "bf16": 2e-2}  # relative, of losses
# Of dense products in bf16, by the datasheets of H100 SXM and H200: for the model FLOP utilization.
PEAK_FLOPS = 989e12
# Milliseconds of a step by a roofline of its launches, bytes and products on an H100, by preset and
# tokens of a process: what a measurement is compared with.
PREDICTED_MS = {
    ("base", 25_000): 34.4,
    ("big", 25_000): 85.7,
    ("base", 3_125): 7.6,
    ("big", 3_125): 16.3,
}
NUM_PROFILED = 5


class Session:
    """The output folder, and whether to use a CPU and tiny models."""

    def __init__(self, out: Path, *, is_dry: bool) -> None:
        self.out = out
        self.is_dry = is_dry
        self.vocab_size = 500 if is_dry else 37_000

    def compute(self, precision: Precision) -> Compute:
        """Choose the GPU, or the CPU in a dry run, and the arithmetic."""
        if self.is_dry:
            return choose_compute("cpu", "fp32", trains=True)
        return choose_compute("cuda", precision, trains=True)

    def run(self, arch: str, **sections: Any) -> RunConfig:
        """Return the settings of a run with a fixed seed."""
        tables = [TINY] if self.is_dry else []
        return run_config(arch, *tables, {"training": {"seed": 1}}, sections)

    def data(self) -> ParallelDataset:
        """Write a dataset of random tokens once, and open it."""
        folder = self.out / "data"
        if not folder.exists():
            num_pairs = 1_000 if self.is_dry else NUM_PAIRS
            write_token_dataset(folder, num_pairs=num_pairs, vocab_size=self.vocab_size)
        return ParallelDataset(folder / "bin", "train", vocab_sizes=(self.vocab_size,) * 2)

    def trainer(
        self,
        run: RunConfig,
        compute: Compute,
        *,
        compiles: bool,
        kernel: AttentionKernel | None = None,
    ) -> trainer.Trainer:
        """Make a trainer of a new model on the dataset."""
        sizes = self.vocab_size, self.vocab_size
        torch.manual_seed(run.training.seed)
        model = new_model(run.model, sizes).to(compute.device)
        if kernel is None:
            kernel = "efficient" if compute.dtype == torch.float32 else "flash"
        backend = CompiledTraining(None if self.is_dry else kernel) if compiles else PLAIN_TRAINING
        with patch.object(trainer, "training_backend", lambda *_, **__: backend):
            cost = model_cost(run.model, sizes)
            return trainer.Trainer(model, self.data(), run, compute, cost=cost)


def losses(made: trainer.Trainer, num_steps: int) -> list[float]:
    """Train for some steps."""
    steps = [made.step(batch)[0] for batch in islice(made.batches(), num_steps)]
    return [step.report().loss for step in steps if step is not None]


def train(session: Session, *, compiles: bool) -> dict[str, Any]:
    """Train three steps, and compute a validation loss, which must compile nothing."""
    from torch._dynamo.utils import counters

    made = session.trainer(session.run("tiny"), session.compute("bf16"), compiles=compiles)
    found = losses(made, 3)
    num_graphs = counters["stats"]["unique_graphs"]
    compute_loss = loss.BatchLoss(evaluation_copy(made.model), label_smoothing=0.0)
    batch = made.batcher.batch(made.batcher.epoch(1)[0][:8]).to(session.compute("bf16").device)
    with torch.inference_mode(), session.compute("bf16").autocast():
        validation = float(compute_loss(batch)[1]) / batch.num_tokens
    compiled_later = counters["stats"]["unique_graphs"] - num_graphs
    is_right = bool(np.isfinite([*found, validation]).all()) and not compiled_later
    return {"ok": is_right, "losses": found, "graphs": num_graphs, "validation": validation}


def reproduce(session: Session, *, num_steps: int = 8) -> dict[str, Any]:
    """Train twice, the second time with a stop in the middle: are all weights the same?"""
    compute = session.compute("bf16")

    def begin() -> trainer.Trainer:
        return session.trainer(session.run("small"), compute, compiles=True)

    whole, stopped, resumed = begin(), begin(), begin()
    expected = losses(whole, num_steps)
    found = losses(stopped, num_steps // 2)
    resumed.model.load_state_dict(stopped.model.state_dict())
    resumed.load_state(stopped.state())
    found += losses(resumed, num_steps - num_steps // 2)
    pairs = list(zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    differences = [float((x - y).detach().abs().max()) for x, y in pairs]
    return {
        "ok": bool(np.allclose(expected, found, rtol=1e-3)),
        "losses": [expected[-1], found[-1]],
        "weights_equal": f"{sum(not each for each in differences)} of {len(differences)}",
        "largest_difference": max(differences),
    }


def sentences(session: Session, number: int) -> SentenceBatch:
    """Draw sources of 25 tokens."""
    random = np.random.default_rng(0)
    sources = [random.integers(4, session.vocab_size, 25).tolist() for _ in range(number)]
    return SentenceBatch(range(1, number + 1), sources, [[] for _ in sources])


def engine(session: Session, arch: str, compute: Compute) -> Engine:
    """Load a new model, drawn by a seed."""
    torch.manual_seed(0)
    sizes = session.vocab_size, session.vocab_size
    model = new_model(session.run(arch).model, sizes).to(compute.device)
    return Engine([model], compute, backend=inference_backend(compute))


def search(session: Session) -> dict[str, Any]:
    """Compare translations in fp32 with those of the CPU, in all kinds of search."""
    on_cpu = engine(session, "small", choose_compute("cpu", "fp32"))
    on_gpu = engine(session, "small", session.compute("fp32"))
    settings: list[dict[str, Any]] = [
        {"beam_size": 1},
        {"beam_size": 4},
        {"beam_size": 4, "n_best": 4, "num_groups": 2},
        {"beam_size": 12},
        {"search": "sample", "n_best": 2, "top_k": 20},
    ]
    equal = {}
    for each in settings:
        config = SearchConfig(max_extra_length=8, **each)
        batch = sentences(session, 24)
        pairs = zip(on_gpu.run(batch, config), on_cpu.run(batch, config), strict=True)
        equal[str(each)] = sum(x[0].tokens == y[0].tokens for x, y in pairs)
    return {"ok": min(equal.values()) >= 22, "equal of 24": equal}


def decode(session: Session, *, arch: str, batch_sizes: Sequence[int]) -> dict[str, Any]:
    """Time beam searches of random sentences; the best of three after one that is not counted."""
    compute = session.compute("bf16")
    model = engine(session, arch, compute)
    config = SearchConfig(beam_size=4, max_extra_length=8 if session.is_dry else 10)
    found: dict[str, Any] = {"ok": True}
    for size in batch_sizes:
        batch, seconds, num_tokens = sentences(session, size), [], 0
        model.run(batch, config)
        for _ in range(3):
            started = time.perf_counter()
            results = model.run(batch, config)
            seconds.append(time.perf_counter() - started)
            num_tokens = sum(len(best[0].tokens) + 1 for best in results)
        found[f"seconds_{size}"] = min(seconds)
        found[f"tokens_per_second_{size}"] = num_tokens / min(seconds)
        if not session.is_dry:
            search_once = partial(model.run, batch, config)
            name = f"profile decode {arch} {size}.txt"
            found[f"profile_{size}"] = profile(search_once, session.out / name, number=1)
    return found


def profile(work: Callable[[], Any], path: Path, *, number: int) -> dict[str, Any]:
    """Profile work, which is done N times, and write a table of its kernels."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        started = time.perf_counter()
        for _ in range(number):
            work()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    averages = profiler.key_averages()
    path.write_text(averages.table(sort_by="self_device_time_total", row_limit=60))
    kernels = [each for each in averages if each.device_type == DeviceType.CUDA]
    launches = sum(each.count for each in kernels)
    busy = sum(each.self_device_time_total for each in kernels) / 1e6
    waits = {each.key: each.count / number for each in averages if "Synchronize" in each.key}
    return {
        "milliseconds": 1e3 * seconds / number,
        "kernel_milliseconds": 1e3 * busy / number,
        "kernels": launches / number,
        "waits": waits,
    }


class InGroup(Group):
    """The process group of one process, which takes part in collectives all the same."""

    is_alone = False


def process_group(session: Session) -> dict[str, Any]:
    """Train a step with DDP and with FSDP in a process group of one process."""
    import torch.distributed as dist

    compute = session.compute("bf16")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    dist.init_process_group("gloo" if session.is_dry else "nccl", rank=0, world_size=1)
    found = {}
    for name in ("ddp", "fsdp"):
        run = session.run("tiny", model=NO_DROPOUT)
        made = session.trainer(run, compute, compiles=not session.is_dry)
        loss_of = loss.BatchLoss(made.model, label_smoothing=0.1, autocast=compute.autocast)
        batch = next(made.batches()).own[0][1]
        summed = gradients.build_gradients(loss_of, InGroup(), batch, shard=name == "fsdp")
        with summed.accumulate(is_last=True):
            total, _ = summed.loss(batch)
            total.backward()  # type: ignore[no-untyped-call]
        found[name] = float(total.detach()) / batch.num_tokens
    dist.destroy_process_group()
    return {"ok": bool(np.isclose(found["ddp"], found["fsdp"], rtol=2e-2)), **found}


def small_losses(session: Session, compute: Compute, num: int, *, compiles: bool) -> list[float]:
    """Train `small` without dropout."""
    run = session.run("small", model=NO_DROPOUT)
    return losses(session.trainer(run, compute, compiles=compiles), num)


def prepared_losses(session: Session) -> dict[str, Any]:
    """Write the losses of a CPU in fp32."""
    compute = choose_compute("cpu", "fp32", trains=True)
    num_steps = 5 if session.is_dry else NUM_LOSSES
    found = small_losses(session, compute, num_steps, compiles=False)
    (session.out / "losses.json").write_text(json.dumps(found))
    return {"ok": True, "first": found[0], "last": found[-1]}


def compare_losses(session: Session, *, precision: Precision, compiles: bool) -> dict[str, Any]:
    """Compare losses with those of a CPU."""
    expected = json.loads((session.out / "losses.json").read_text())
    compute = session.compute(precision)
    found = small_losses(session, compute, len(expected), compiles=compiles)
    difference = float(np.max(np.abs(np.array(found) / expected - 1)))
    return {"ok": difference <= MAX_DIFFERENCE[precision], "largest_difference": difference}


def speed(
    session: Session,
    arch: str,
    *,
    compiles: bool,
    kernel: AttentionKernel = "flash",
    num_steps: tuple[int, int] = (20, 40),
) -> dict[str, Any]:
    """Time training steps, after some that do not count, and profile others."""
    untimed, timed = (1, 2) if session.is_dry else num_steps
    run, compute = session.run(arch), session.compute("bf16")
    started = time.perf_counter()
    made = session.trainer(run, compute, compiles=compiles, kernel=kernel)
    batches = made.batches()
    losses_of = [made.step(batch)[0] for batch in islice(batches, untimed)]
    first = [step.report() for step in losses_of if step is not None]  # waits for the device
    untimed_seconds = time.perf_counter() - started
    started, steps = time.perf_counter(), [made.step(each)[0] for each in islice(batches, timed)]
    reports = [step.report() for step in steps if step is not None]
    seconds = time.perf_counter() - started
    median = statistics.median(each.seconds for each in reports)
    num_tokens = sum(each.num_tokens for each in reports) / len(reports)
    flops = sum(each.flops for each in reports) / len(reports)
    found = {
        "ok": True,
        "median_ms": 1e3 * median,
        "mean_ms": 1e3 * seconds / len(reports),
        "predicted_ms": PREDICTED_MS.get((arch, run.batching.batch_tokens), math.nan),
        "target_tokens_per_second": num_tokens / median,
        "flop_utilization": flops / median / PEAK_FLOPS,
        "waiting_share": sum(each.waiting_seconds for each in reports) / seconds,
        "losses": [first[0].loss, first[-1].loss, reports[-1].loss],
        "untimed_seconds": untimed_seconds,
    }
    if compute.device.type == "cuda":
        found["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        step = partial(_step, made, batches)
        name = f"profile {arch}" + " compiled" * compiles + f" {kernel}" * compiles
        found["profile"] = profile(step, session.out / f"{name}.txt", number=NUM_PROFILED)
    return found


def _step(made: trainer.Trainer, batches: Any) -> None:
    made.step(next(batches))


def several(
    session: Session, name: str, *, arch: str = "base", factor: int = 1, **training: Any
) -> dict[str, Any]:
    """Train with all GPUs of this machine, and compare the losses with those of one GPU."""
    num_gpus = 2 if session.is_dry else torch.cuda.device_count()
    if num_gpus == 1:
        return {"ok": True, "note": "needs several GPUs"}
    common = {"max_steps": 6 if session.is_dry else 60, "log_steps": 3 if session.is_dry else 20}
    run = session.run(arch, training=common | {"checkpoint_steps": 1_000_000} | training)
    batching = replace(
        run.batching,
        batch_tokens=factor * run.batching.batch_tokens,
        num_dropout_shards=num_gpus,  # the dropout of one GPU is that of all
    )
    run = replace(run, batching=batching)
    one = _trained(session, replace(run, training=replace(run.training, shard=False)), 1, "one")
    all_gpus = _trained(session, run, num_gpus, name)
    expected, found = ([each["loss"] for each in lines] for lines in (one, all_gpus))
    rates = [lines[-1]["target_tokens_per_second"] for lines in (one, all_gpus)]
    bound = 1e-5 if session.is_dry else MAX_DIFFERENCE["bf16"]
    num_tokens = run.batching.batch_tokens
    return {
        "ok": bool(np.allclose(found, expected, rtol=bound)),
        "losses": [expected, found],
        "milliseconds": [1e3 * num_tokens / rate for rate in rates],
        "predicted_ms": PREDICTED_MS.get((arch, num_tokens // num_gpus)),
        "target_tokens_per_second": rates,
        "share of the speed of one GPU, times their number": rates[1] / rates[0] / num_gpus,
    }


def _trained(session: Session, run: RunConfig, num: int, name: str) -> list[dict[str, Any]]:
    """Train a run on N GPUs, in a dry run N processes; return its lines of metrics."""
    session.data()
    run_dir, settings = session.out / f"several-{name}", session.out / f"several-{name}.toml"
    shutil.rmtree(run_dir, ignore_errors=True)
    settings.write_text(run_toml(run))
    where = ["--processes" if session.is_dry else "--gpus", str(num)]
    flags = ["--run", run_dir, "--config", settings, *where]
    command = [sys.executable, "-m", "tfm", "train", str(session.out / "data"), *map(str, flags)]
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=ROOT)
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "train"]


def ceilings(session: Session) -> dict[str, Any]:
    """Measure the bandwidth of copies and the speed of products in bf16."""
    if session.is_dry:
        return {"ok": True}
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(large)

    def milliseconds(work: Callable[[], Any]) -> float:
        for _ in range(3):
            work()
        events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        events[0].record()
        for _ in range(10):
            work()
        events[1].record()
        torch.cuda.synchronize()
        return float(events[0].elapsed_time(events[1])) / 10

    return {
        "ok": True,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "tflops": 2 * 8192**3 / milliseconds(lambda: x @ x) / 1e9,
        "gigabytes_per_second": 2 * large.numel() / milliseconds(lambda: other.copy_(large)) / 1e6,
    }


def can_compile(session: Session) -> dict[str, Any]:
    """Ask for the backend, which is verified in bf16, and verify flash attention in fp16."""
    compute = session.compute("bf16")
    problems: list[str] = []
    backend = training_backend(compute, "auto", notify=problems.append)
    kernels: list[tuple[AttentionKernel, torch.dtype]] = [("efficient", torch.float32)]
    kernels += [(kernel, torch.float16) for kernel in ("flash", "efficient")]
    kernels.append(("efficient", torch.bfloat16))
    if not session.is_dry:
        found = [kernel_problem(kernel, compute.device, dtype) for kernel, dtype in kernels]
        problems += filter(None, found)
    is_ok = session.is_dry or (backend.compiles and not problems)
    return {"ok": is_ok, "backend": type(backend).__name__, "problems": problems}


PLAIN: dict[str, Any] = {"compiles": False}
COMPILED: dict[str, Any] = {"compiles": True}
EFFICIENT = COMPILED | {"kernel": "efficient"}
# By name: a step, and its limit in seconds.
Steps = dict[str, tuple[Callable[[Session], dict[str, Any]], int]]
CHECKS: Steps = {
    "backend": (can_compile, 60),
    "train plain": (partial(train, **PLAIN), 60),
    "train compiled": (partial(train, **COMPILED), 90),
    "search": (search, 90),
    "process group": (process_group, 90),
    "reproduce": (reproduce, 120),
    # The timings find the compiled code of these in the cache.
    "compile base": (partial(speed, arch="base", num_steps=(15, 2), **COMPILED), 150),
    "compile big": (partial(speed, arch="big", num_steps=(15, 2), **COMPILED), 150),
}
COMPARISONS: Steps = {
    f"{precision} {name}": (partial(compare_losses, precision=precision, **how), 120)
    for precision in MAX_DIFFERENCE
    for name, how in (("plain", PLAIN), ("compiled", COMPILED))
}
TIMINGS: Steps = {
    "ceilings": (ceilings, 60),
    "base compiled": (partial(speed, arch="base", **COMPILED), 90),
    "big compiled": (partial(speed, arch="big", **COMPILED), 90),
    "decode base": (partial(decode, arch="base", batch_sizes=(1, 64, 512)), 90),
    "base efficient": (partial(speed, arch="base", **EFFICIENT), 90),
    "big efficient": (partial(speed, arch="big", **EFFICIENT), 90),
    "base plain": (partial(speed, arch="base", **PLAIN), 60),
}
SEVERAL: Steps = {
    "replicated": (partial(several, name="replicated"), 300),
    "big replicated": (partial(several, name="big", arch="big"), 300),
    "sharded": (partial(several, name="sharded", shard=True), 300),
    "batches of 8 times the tokens": (partial(several, name="large", factor=8), 300),
}
STAGES: dict[str, Steps] = {
    "prepare": {"losses of the CPU": (prepared_losses, 580)},
    "right": CHECKS | COMPARISONS,
    "fast": TIMINGS,
    "several": SEVERAL,
}


def in_process(stage: str, name: str, out: Path, limit: int) -> dict[str, Any]:
    """Run a step in its own process, and keep what it writes to stderr."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    folders = {variable: str(out / "caches" / name) for variable, name in caches.items()}
    environment = os.environ | folders | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, __file__, stage, "--out", str(out), "--step", name]
    log = out / f"{stage} {name}.log"
    try:
        done = subprocess.run(
            command, env=environment, timeout=limit, check=False, stdout=subprocess.PIPE,
            stderr=log.open("w"), text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"more than {limit} s"}
    if done.returncode:
        return {"ok": False, "error": log.read_text().strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_this_process(stage: str, name: str, out: Path) -> dict[str, Any]:
    """Run a step on a CPU with tiny models."""
    result = STAGES[stage][name][0](Session(out, is_dry=True))
    if stage == "fast" or name == "backend" or name.startswith("bf16"):
        result["note"] = "shows nothing without a GPU"
    return result


def run_step(stage: str, name: str, out: Path, *, is_dry: bool) -> dict[str, Any]:
    """Run a step; append a JSON line."""
    started = time.monotonic()
    if is_dry:
        result = in_this_process(stage, name, out)
    else:
        result = in_process(stage, name, out, STAGES[stage][name][1])
    seconds = round(time.monotonic() - started, 1)
    result = {"stage": stage, "step": name, "seconds": seconds, **result}
    line = json.dumps(result)
    with (out / "results.jsonl").open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)
    return result


def run_stage(
    stage: str, out: Path, *, only: Sequence[str] | None, is_dry: bool
) -> list[dict[str, Any]]:
    """Run each step of a stage: side by side where their times do not count."""
    names = [name for name in STAGES[stage] if only is None or name in only]
    step = partial(run_step, stage, out=out, is_dry=is_dry)
    num_processes = 12 if stage == "right" and not is_dry else 1
    with ThreadPoolExecutor(num_processes) as executor:
        return list(executor.map(step, names))


def main() -> int:
    """Run a stage, or all of a dry run, or one step within its process."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("stage", choices=[*STAGES, "all"])
    parser.add_argument("--out", type=Path, default=Path("gpu-session"))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--only", nargs="+", help="names of steps")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.step is not None:
        step, _ = STAGES[options.stage][options.step]
        print(json.dumps(step(Session(options.out, is_dry=False))))
        return 0
    stages = list(STAGES) if options.stage == "all" else [options.stage]
    run = partial(run_stage, out=options.out, only=options.only, is_dry=options.dry_run)
    results = [result for stage in stages for result in run(stage)]
    for each in results:
        figures = {k: v for k, v in each.items() if k not in ("stage", "step", "ok", "seconds")}
        status = "ok" if each["ok"] else "FAILED"
        print(f"{each['stage']:8} {each['step']:26} {status:6} {each['seconds']:6} s  {figures}")
    return 0 if all(each["ok"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
