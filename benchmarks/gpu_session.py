"""Check and time tfm on a machine with one GPU, in three stages of a few minutes each.

    python benchmarks/gpu_session.py prepare --out session    # on a CPU: the losses to compare with
    python benchmarks/gpu_session.py canary --out session     # 90 seconds: does each part run?
    python benchmarks/gpu_session.py right --out session      # losses against those of the CPU
    python benchmarks/gpu_session.py fast --out session       # training, then decoding

Each step is a process with a time limit. It appends a JSON line to OUT/results.jsonl; a table
follows at the end. Code that torch compiles is cached in OUT. "all --dry-run" computes everything
in one process on a CPU with tiny models, and says which steps show nothing without a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
from tfm.backends.training_compiled import CompiledTraining  # noqa: E402
from tfm.config import Precision, RunConfig, SearchConfig, run_config  # noqa: E402
from tfm.data.dataset import ParallelDataset  # noqa: E402
from tfm.device.compute import Compute, choose_compute  # noqa: E402
from tfm.distributed.group import Group  # noqa: E402
from tfm.inference.batches import SentenceBatch  # noqa: E402
from tfm.inference.engine import Engine  # noqa: E402
from tfm.model.build import evaluation_copy, new_model  # noqa: E402
from tfm.model.cost import model_cost  # noqa: E402
from tfm.training import gradients, trainer  # noqa: E402
from tfm.training.loss import BatchLoss  # noqa: E402

DROPOUTS = ("dropout", "embedding_dropout", "attention_dropout", "relu_dropout")
NO_DROPOUT = dict.fromkeys(DROPOUTS, 0.0)
_SHAPE = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 32}
_TINY_MODEL = _SHAPE | {"num_heads": 2} | dict.fromkeys(DROPOUTS, 0.1) | {"norm": "pre"}
TINY = {"model": _TINY_MODEL, "batching": {"batch_tokens": 600, "bucket_tokens": 300}}
NUM_PAIRS, VOCAB_SIZE, NUM_LOSSES = 100_000, 32_000, 50
VOCAB_SIZES = ("source_vocab_size", "target_vocab_size")
MAX_DIFFERENCE: dict[Precision, float] = {"fp32": 1e-4, "bf16": 2e-2}  # relative, of losses


class Session:
    """The output folder, and whether to use a CPU and tiny models."""

    def __init__(self, out: Path, *, is_dry: bool) -> None:
        self.out = out
        self.is_dry = is_dry
        self.vocab_size = 500 if is_dry else VOCAB_SIZE

    def compute(self, precision: Precision) -> Compute:
        """Choose the GPU, or the CPU in a dry run, and the arithmetic."""
        if self.is_dry:
            return choose_compute("cpu", "fp32", trains=True)
        return choose_compute("cuda", precision, trains=True)

    def run(self, arch: str, **sections: Any) -> RunConfig:
        """Return the settings of a run with a fixed seed."""
        tables = [TINY] if self.is_dry else []
        return run_config(arch, *tables, {"training": {"seed": 1}}, sections)

    def trainer(self, run: RunConfig, compute: Compute, *, compiles: bool) -> trainer.Trainer:
        """Make a trainer of a new model on random tokens, which depend on the seed only."""
        sizes: dict[str, Any] = dict.fromkeys(VOCAB_SIZES, self.vocab_size)
        data_dir = Path(tempfile.mkdtemp()) / "data"
        num_pairs = 1_000 if self.is_dry else NUM_PAIRS
        write_token_dataset(data_dir, num_pairs=num_pairs, vocab_size=self.vocab_size)
        data = ParallelDataset(data_dir / "bin", "train", vocab_sizes=(self.vocab_size,) * 2)
        torch.manual_seed(run.training.seed)
        model = new_model(run.model, **sizes).to(compute.device)
        backend = CompiledTraining() if compiles else PLAIN_TRAINING
        with patch.object(trainer, "training_backend", lambda *_, **__: backend):
            cost = model_cost(run.model, **sizes, max_tokens=8_192)
            return trainer.Trainer(model, data, run, compute, cost=cost)


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
    loss = BatchLoss(evaluation_copy(made.model), label_smoothing=0.0)
    batch = made.batcher.batch(made.batcher.epoch(1)[0][:8]).to(session.compute("bf16").device)
    with torch.inference_mode(), session.compute("bf16").autocast():
        validation = float(loss(batch)[1]) / batch.num_tokens
    compiled_later = counters["stats"]["unique_graphs"] - num_graphs
    is_right = bool(np.isfinite([*found, validation]).all()) and not compiled_later
    return {"ok": is_right, "losses": found, "graphs": num_graphs, "validation": validation}


def decode(session: Session, arch: str, *, batch_size: int) -> dict[str, Any]:
    """Time a beam search of random sentences; the second of two batches counts."""
    run, compute = session.run(arch), session.compute("bf16")
    sizes = dict.fromkeys(VOCAB_SIZES, session.vocab_size)
    torch.manual_seed(0)
    model = new_model(run.model, **sizes).to(compute.device)
    engine = Engine([model], compute, backend=inference_backend(compute))
    random = np.random.default_rng(0)
    sources = [random.integers(4, session.vocab_size, 25).tolist() for _ in range(batch_size)]
    batch = SentenceBatch(range(1, batch_size + 1), sources, [[] for _ in sources])
    config = SearchConfig(beam_size=4, max_extra_length=8 if session.is_dry else 30)
    engine.search(batch, config)
    started = time.perf_counter()
    found = engine.search(batch, config)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(best[0].tokens) + 1 for best in found)
    return {"ok": True, "tokens_per_second": num_tokens / seconds, "search_seconds": seconds}


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
        loss = BatchLoss(made.model, label_smoothing=0.1, autocast=compute.autocast)
        batch = next(made.batches()).own[0][1]
        summed = gradients.build_gradients(loss, InGroup(), batch, shard=name == "fsdp")
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


def speed(session: Session, arch: str, *, compiles: bool, **batching: int) -> dict[str, Any]:
    """Time training steps; those before are not counted."""
    untimed, timed = (1, 2) if session.is_dry else (20, 60)
    run, compute = session.run(arch, batching=batching), session.compute("bf16")
    started = time.perf_counter()
    made = session.trainer(run, compute, compiles=compiles)
    batches = made.batches()
    for batch in islice(batches, untimed):
        made.step(batch)
    if compute.device.type == "cuda":
        torch.cuda.synchronize(compute.device)
    untimed_seconds = time.perf_counter() - started
    started, steps = time.perf_counter(), [made.step(each)[0] for each in islice(batches, timed)]
    reports = [step.report() for step in steps if step is not None]  # waits for the device
    seconds = time.perf_counter() - started
    memory = torch.cuda.max_memory_allocated() if compute.device.type == "cuda" else 0
    return {
        "ok": True,
        "ms_per_step": 1000 * seconds / len(reports),
        "target_tokens_per_second": sum(each.num_tokens for each in reports) / seconds,
        "memory_gb": memory / 1e9,
        "untimed_seconds": untimed_seconds,
    }


def can_compile(session: Session) -> dict[str, Any]:
    """Ask for the backend, which is plain if torch cannot compile."""
    backend = training_backend(session.compute("bf16"), "auto")
    return {"ok": session.is_dry or backend.compiles, "backend": type(backend).__name__}


PLAIN: dict[str, Any] = {"compiles": False}
COMPILED: dict[str, Any] = {"compiles": True}
SMALLER = PLAIN | {"max_tokens": 8_192}
# By stage and name: the step and its limit in seconds.
STAGES: dict[str, dict[str, tuple[Callable[[Session], dict[str, Any]], int]]] = {
    "prepare": {"losses of the CPU": (prepared_losses, 580)},
    "canary": {
        "backend": (can_compile, 60),
        "train plain": (partial(train, **PLAIN), 60),
        "train compiled": (partial(train, **COMPILED), 90),
        "search": (partial(decode, arch="tiny", batch_size=4), 60),
        "process group": (process_group, 90),
    },
    "right": {
        f"{precision} {name}": (partial(compare_losses, precision=precision, **how), 180)
        for precision in MAX_DIFFERENCE
        for name, how in (("plain", PLAIN), ("compiled", COMPILED))
    },
    "fast": {
        f"{arch} {name}": (partial(speed, arch=arch, **how), 150)
        for arch in ("base", "big")
        for name, how in (("plain", PLAIN), ("8192 tokens", SMALLER), ("compiled", COMPILED))
    }
    | {f"decode {n}": (partial(decode, arch="base", batch_size=n), 90) for n in (1, 64, 512)},
}


def in_process(stage: str, name: str, out: Path, limit: int) -> dict[str, Any]:
    """Run a step in its own process, and keep what it writes to stderr."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": out / "inductor", "TRITON_CACHE_DIR": out / "triton"}
    environment = os.environ | {variable: str(path) for variable, path in caches.items()}
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


def run_stage(stage: str, out: Path, *, is_dry: bool) -> list[dict[str, Any]]:
    """Run each step of a stage; append a JSON line for each."""
    results = []
    for name, (step, limit) in STAGES[stage].items():
        started = time.monotonic()
        if is_dry:
            result = step(Session(out, is_dry=True))
            if stage == "fast" or name == "backend" or name.startswith("bf16"):
                result["note"] = "shows nothing without a GPU"
        else:
            result = in_process(stage, name, out, limit)
        seconds = round(time.monotonic() - started, 1)
        results.append({"stage": stage, "step": name, "seconds": seconds, **result})
        line = json.dumps(results[-1])
        with (out / "results.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)
    return results


def main() -> int:
    """Run a stage, or all of a dry run, or one step within its process."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("stage", choices=[*STAGES, "all"])
    parser.add_argument("--out", type=Path, default=Path("gpu-session"))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.step is not None:
        step, _ = STAGES[options.stage][options.step]
        print(json.dumps(step(Session(options.out, is_dry=False))))
        return 0
    stages = list(STAGES) if options.stage == "all" else [options.stage]
    results = [r for s in stages for r in run_stage(s, options.out, is_dry=options.dry_run)]
    for each in results:
        figures = {k: v for k, v in each.items() if k not in ("stage", "step", "ok", "seconds")}
        status = "ok" if each["ok"] else "FAILED"
        print(f"{each['stage']:8} {each['step']:26} {status:6} {each['seconds']:6} s  {figures}")
    return 0 if all(each["ok"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
