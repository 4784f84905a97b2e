"""Spend fifteen minutes of a machine with one GPU: is tfm right there, how good, and how fast?

    python benchmarks/gpu_session.py prepare --text KYOTO   # before, on a CPU
    python benchmarks/gpu_session.py first                  # there: checks, and half of a training
    python benchmarks/gpu_session.py second                 # resumes it, to a BLEU; measurements
    python benchmarks/gpu_session.py all --dry-run          # everything on a CPU, tiny

KYOTO has the text of KFTT, Japanese without spaces: kyoto-train.ja.xz and .en.xz, kyoto-dev and
kyoto-test, and 582 pairs linked by hand in alignment/jaen.src-tgt and jaen.gold.

Carry the checkout and SESSION/carried, which "prepare" writes and measures: together at most 64
MiB. The machine needs Python 3.11, torch 2.11 with CUDA, triton, a C compiler and tfm's other
requirements, but no network; wheels of those that it lacks (langcodes and sacremoses, so far)
belong into SESSION/carried, too. Both calls take less than ten minutes, and SESSION/work must stay
between them: its checkpoints have 0.5 GB each. SESSION/work/results comes back.

Each step is a process with a time limit, and a JSON line in results.jsonl. Nothing starts after 780
seconds since the first call and --spent before it, and nothing runs after 840. Measurements end in
a verdict on a change of tfm that has not been made.
"""

import argparse
import json
import lzma
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "results")]

import alignment_error  # noqa: E402

import tfm  # noqa: E402
from tfm.backends.plain import PLAIN_TRAINING  # noqa: E402
from tfm.backends.selection import inference_backend  # noqa: E402
from tfm.backends.training_compiled import (  # noqa: E402
    AttentionKernel,
    CompiledTraining,
    compile_for_sizes,
    kernel_problem,
)
from tfm.config import Precision, RunConfig, SearchConfig, run_config  # noqa: E402
from tfm.machine.compute import Compute, choose_compute  # noqa: E402
from tfm.model.build import new_model  # noqa: E402
from tfm.training import trainer  # noqa: E402
from tfm.training.data import cost_of, open_data  # noqa: E402
from tfm.translation.batches import SentenceBatch  # noqa: E402
from tfm.translation.engine import Engine  # noqa: E402

Result = dict[str, Any]
LAST_START, LAST_END, MAX_MIB = 780, 840, 64
NEEDED_SPEED, NEEDED_MS = 1.3, 1.0  # what a change must gain: times the speed, or ms of a step
NUM_EPOCHS, NUM_LOSSES = 18, 8
MAX_MINUTES_OF_HALF, MAX_MINUTES = 7.0, 9.6  # of the training, and over both calls
MAX_DIFFERENCE: dict[Precision, float] = {"fp32": 1e-4, "bf16": 1e-3, "fp16": 1e-3}  # relative
DROPOUTS = ("dropout", "embedding_dropout", "attention_dropout", "relu_dropout")
NO_DROPOUT = dict.fromkeys(DROPOUTS, 0.0)
_SHAPE = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 32}
TINY = {"model": _SHAPE | {"num_heads": 2}, "batching": {"batch_tokens": 600, "bucket_tokens": 300}}
# Validation computes the loss only, and an average of the last checkpoints is translated.
TRAINING: Result = {"checkpoint_steps": 500, "validation_beam": 0, "best_metric": "loss"}
TINY_TRAINING = {"device": "cpu", "checkpoint_steps": 10, "log_steps": 2, "warmup_steps": 20}
DIGITS = {"一": "one", "二": "two", "三": "three", "四": "four", "五": "five", "六": "six"}
FILES = {"train": "kyoto-train.{}.xz", "valid": "kyoto-dev.{}", "test": "kyoto-test.{}"}


@dataclass(frozen=True)
class Session:
    """The folder of a session, that of the text, and whether to use a CPU and tiny models."""

    folder: Path
    text: Path
    is_dry: bool = False

    @property
    def carried(self) -> Path:
        """What travels to the GPU."""
        return self.folder / "carried"

    @property
    def data(self) -> Path:
        """The dataset."""
        return self.carried / "kyoto"

    @property
    def run(self) -> Path:
        """The training."""
        return self.folder / "work" / "run"

    @property
    def results(self) -> Path:
        """What comes back."""
        return self.folder / "work" / "results"

    def settings(self, arch: str, **sections: Any) -> RunConfig:
        """Return the settings of a run, by a preset."""
        return run_config(arch, *([TINY] if self.is_dry else []), sections)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device of commands."""
        return "cpu" if self.is_dry else "cuda"

    def compute(self, precision: Precision) -> Compute:
        """Choose the GPU, or the CPU in a dry run, and the arithmetic."""
        return choose_compute(self.device, "fp32" if self.is_dry else precision, trains=True)

    def trainer(
        self, run: RunConfig, compute: Compute, kernel: AttentionKernel | None
    ) -> trainer.Trainer:
        """Make a trainer of a new model, compiled around a kernel of attention if there is one."""
        data = open_data(self.data, run)
        torch.manual_seed(run.training.seed)
        model = new_model(run.model, data.info.vocab_sizes).to(compute.device)
        compiles = kernel is not None and not self.is_dry
        backend = CompiledTraining(kernel) if compiles else PLAIN_TRAINING
        with patch.object(trainer, "training_backend", lambda *_, **__: backend):
            return trainer.Trainer(model, data.train, run, compute, cost=cost_of(data))

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a function, but not in a dry run."""
        return function if self.is_dry else compile_for_sizes(function)


def write_made_up_text(folder: Path) -> None:
    """Write numbers in Japanese and English in place of KFTT."""
    drawn = random.Random(1)
    (folder / "alignment").mkdir(parents=True, exist_ok=True)
    for split, name in FILES.items():
        num_lines = 400 if split == "train" else 20
        numbers = [drawn.choices(list(DIGITS), k=drawn.randint(3, 12)) for _ in range(num_lines)]
        targets = [" ".join(map(DIGITS.__getitem__, each)) for each in numbers]
        for language, lines in (("ja", map("".join, numbers)), ("en", targets)):
            content = "".join(f"{line}\n" for line in lines).encode()
            packed = lzma.compress(content) if name.endswith(".xz") else content
            (folder / name.format(language)).write_bytes(packed)
    pairs = [f"{' '.join(x)} ||| {y}\n" for x, y in zip(numbers, targets, strict=True)]
    gold = [" ".join(f"{n}-{n}" for n in range(1, len(x) + 1)) + "\n" for x in numbers]
    for name, written in (("src-tgt", pairs), ("gold", gold)):
        (folder / "alignment" / f"jaen.{name}").write_text("".join(written), "utf-8")


def prepare(session: Session) -> Result:
    """Prepare the dataset; keep what training and translating read."""
    if session.is_dry:
        write_made_up_text(session.text)
    whole = session.folder / "kyoto"
    pairs: Any = {
        split: [session.text / name.format(language) for language in ("ja", "en")]
        for split, name in FILES.items()
    }
    size: Result = {"vocab_size": 60, "byte_fallback": False} if session.is_dry else {}
    tfm.prepare(**pairs, languages=("ja", "en"), out=whole, **size)
    shutil.rmtree(session.data, ignore_errors=True)
    unread = shutil.ignore_patterns("train.ja", "train.en", "seen.*", "dropped.*", "runs.json")
    shutil.copytree(whole, session.data, ignore=unread)
    shutil.copytree(session.text / "alignment", session.carried / "alignment", dirs_exist_ok=True)
    return {"ok": True}


def few_losses(session: Session, compute: Compute, kernel: AttentionKernel | None) -> list[float]:
    """Train on one batch again and again without dropout; return the loss of each update."""
    sections = {"model": NO_DROPOUT, "optimizer": {"warmup_steps": 40}}
    made = session.trainer(session.settings("tiny", **sections), compute, kernel)
    indices = made.batcher.epoch(1)[0]
    steps = [made.step(made.build(indices))[0] for _ in range(NUM_LOSSES)]
    reports = [step.report() for step in steps if step is not None]
    return [report.loss for report in reports if not report.skipped]


def losses_of_cpu(session: Session) -> Result:
    """Write the losses that a GPU must find."""
    found = few_losses(session, choose_compute("cpu", "fp32", trains=True), None)
    (session.carried / "losses.json").write_text(json.dumps(found))
    return {"ok": found[-1] < found[0], "losses": found}


def measure_carried(session: Session) -> Result:
    """Add up what travels: `carried`, and the files of the checkout that git does not ignore."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    sizes = {
        path.resolve(): path.stat().st_size
        for path in (*map(ROOT.joinpath, listed.stdout.splitlines()), *session.carried.rglob("*"))
        if path.is_file()
    }
    folder = session.carried.resolve()
    carried = {str(p.relative_to(folder)): n for p, n in sizes.items() if p.is_relative_to(folder)}
    mib = sum(sizes.values()) / (1 << 20)
    rest = sum(sizes.values()) - sum(carried.values())
    return {"ok": mib <= MAX_MIB, "MiB": mib, "bytes": carried | {"other files": rest}}


def smoke(session: Session, *, kernel: AttentionKernel, precision: Precision) -> Result:
    """Compare a kernel with padded attention, and losses with those of the CPU in fp32."""
    compute = session.compute(precision)
    problem = None
    if not session.is_dry:
        problem = kernel_problem(kernel, compute.device, compute.dtype)
    expected = json.loads((session.carried / "losses.json").read_text())
    found = few_losses(session, compute, kernel)
    difference = float(np.max(np.abs(np.array(found) / expected[: len(found)] - 1)))
    is_right = problem is None and difference <= MAX_DIFFERENCE[precision]
    return {"ok": is_right, "problem": problem, "difference": difference, "updates": len(found)}


def train(session: Session, *, half: bool) -> Result:
    """Train `base` from its last checkpoint, if there is one: half of the epochs, or all."""
    epochs = (4 if session.is_dry else NUM_EPOCHS) // (2 if half else 1)
    settings = TRAINING | {"max_epochs": epochs, "average": not half, "background_saving": True}
    settings["max_minutes"] = MAX_MINUTES_OF_HALF if half else MAX_MINUTES
    if session.is_dry:
        settings |= TINY["model"] | TINY["batching"] | TINY_TRAINING
    made = tfm.train(session.data, run=session.run, arch="base", **settings)
    text = Path(shutil.copy(session.run / "metrics.jsonl", session.results)).read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if line["kind"] == "train"]
    median = statistics.median(line["target_tokens_per_second"] for line in lines)
    return {
        "ok": lines[-1]["epoch"] >= epochs,
        "steps": made.step,
        **{name: lines[-1][name] for name in ("epoch", "minutes", "tokens")},
        "median_tokens_per_second": median,
        "validation": made.metrics,
    }


def translate(session: Session) -> Result:
    """Translate and score the test set."""
    made = session.results / "test.en"
    lines = tfm.generate(session.run, split="test", device=session.device)
    made.write_text("".join(lines), "utf-8")
    score = partial(tfm.score, made, session.data / "test.en")
    both = [score(lowercase=lowercase).scores[0] for lowercase in (True, False)]
    return {"ok": True, "bleu": {each.signature: each.value for each in both}}


def align(session: Session) -> Result:
    """Compare the links of the model's attention with those made by hand."""
    text = (session.carried / "alignment" / "jaen.src-tgt").read_text("utf-8")
    gold = alignment_error.read_links(session.carried / "alignment" / "jaen.gold")
    pairs = [line.split(" ||| ") for line in text.splitlines()]
    links = alignment_error.aligned(session.run, pairs, "")
    error, precision, recall = alignment_error.rates(zip(links, gold, strict=True))
    return {"ok": True, "alignment_error": error, "precision": precision, "recall": recall}


def profile(work: Callable[[], Any], *, number: int) -> Result:
    """Do work N times; return its wall time, that of its kernels, and their number."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity

    has_gpu = torch.cuda.is_available()
    wait: Callable[[], None] = torch.cuda.synchronize if has_gpu else lambda: None
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * has_gpu
    work()
    wait()
    with torch.profiler.profile(activities=activities) as profiler:
        started = time.perf_counter()
        for _ in range(number):
            work()
        wait()
        milliseconds = 1e3 * (time.perf_counter() - started) / number
    kernels = [e for e in profiler.key_averages() if e.device_type == DeviceType.CUDA]
    busy = sum(each.self_device_time_total for each in kernels) / 1e3 / number
    launches = sum(each.count for each in kernels) / number
    return {"ms": milliseconds, "kernel_ms": busy if has_gpu else milliseconds, "kernels": launches}


def by_speed(change: str, factor: float, needed: float = NEEDED_SPEED) -> str:
    """Accept or reject a change that would make something faster, at most or as measured."""
    verdict = "accept" if factor >= needed else "reject"
    return f"{verdict} {change}: {factor:.2f} times the speed, and {needed} are needed"


def by_time(change: str, before: Result, after: Result, times: int) -> str:
    """Accept or reject a change of a part that a training step computes some times."""
    saved = times * (before["kernel_ms"] - after["kernel_ms"])
    verdict = "accept" if saved >= NEEDED_MS else "reject"
    return f"{verdict} {change}: saves {saved:.2f} ms of a step, and {NEEDED_MS} are needed"


def time_steps(session: Session) -> Result:
    """Time training steps of `base` with both kernels of attention, in turn."""
    untimed, timed, rounds = (1, 1, 1) if session.is_dry else (12, 15, 3)
    compute, run = session.compute("bf16"), session.settings("base")
    kernels: list[AttentionKernel] = ["flash", "efficient"]
    made = {kernel: session.trainer(run, compute, kernel) for kernel in kernels}
    batches = {kernel: made[kernel].batches() for kernel in kernels}
    seconds: dict[str, list[float]] = {kernel: [] for kernel in kernels}

    def step(kernel: AttentionKernel) -> Any:
        return made[kernel].step(next(batches[kernel]))[0]

    for number in range(rounds + 1):
        for kernel in kernels:
            steps = [step(kernel) for _ in range(timed if number else untimed)]
            reports = [each.report() for each in steps]  # waits for the device
            seconds[kernel] += [each.seconds for each in reports if number]
    found: Result = {"ok": True}
    for kernel in kernels:
        host = []
        for batch in islice(batches[kernel], 2 if session.is_dry else 6):
            started = time.perf_counter()
            pending, _ = made[kernel].step(batch)
            host.append(1e3 * (time.perf_counter() - started))
            if pending is not None:
                pending.report()
        busy = profile(partial(step, kernel), number=1 if session.is_dry else 5)
        ms = 1e3 * statistics.median(seconds[kernel])
        found[kernel] = busy | {"ms": ms, "host_ms": statistics.median(host)}
    flash, efficient = found["flash"], found["efficient"]
    best = min(flash, efficient, key=lambda each: float(each["ms"]))
    found["verdicts"] = [
        by_speed("memory-efficient attention first", flash["ms"] / efficient["ms"], 1.05),
        by_speed("a step as a CUDA graph (at most)", best["ms"] / best["kernel_ms"]),
    ]
    return found


def time_parts(session: Session) -> Result:
    """Time parts of a step of `base`, forward and backward, as they are and as they could be."""
    rows, number = (64, 2) if session.is_dry else (25_088, 10)
    compute, run = session.compute("bf16"), session.settings("base")
    made = session.trainer(run, compute, None)
    made.model.train()
    batch = made.batcher.batch(made.batcher.epoch(1)[0]).to(compute.device)
    decoder: Any = made.model.decoder
    width, num_layers = run.model.d_model, len(decoder)
    draw = partial(torch.randn, device=compute.device, requires_grad=True)
    narrow, wide = draw(rows, width, dtype=compute.dtype), draw(rows, width)
    matrices = [draw(2 * width, width, dtype=compute.dtype) for _ in range(num_layers)]
    residual, embedding = decoder[0].feed_forward_residual, made.model.target_embedding

    def cost(function: Callable[..., list[Tensor]], *inputs: Tensor) -> Result:
        gradients = [torch.ones_like(each) for each in function(*inputs)]

        def work() -> None:
            torch.autograd.grad(function(*inputs), inputs, gradients)

        return profile(work, number=number)

    def apart(x: Tensor, *matrices: Tensor) -> list[Tensor]:
        return [F.linear(x, each) for each in matrices]

    def together(x: Tensor, *matrices: Tensor) -> list[Tensor]:
        return [F.linear(x, torch.cat(matrices))]

    def add(x: Tensor) -> list[Tensor]:
        return [residual.after(x, narrow.detach()).to(x.dtype)]

    def embed(_: Tensor) -> list[Tensor]:
        return [embedding(batch.target_input, batch.targets)]

    with compute.autocast():
        found = {
            "apart": cost(apart, narrow, *matrices),
            "together": cost(together, narrow, *matrices),
            "wide": cost(session.compiled(add), wide),
            "narrow": cost(session.compiled(add), narrow),
            "eager": cost(embed, embedding.weight),
            "compiled": cost(session.compiled(embed), embedding.weight),
        }
    verdicts = [
        by_time(change, found[before], found[after], times)
        for change, before, after, times in (
            ("keys and values of all decoder layers in one product", "apart", "together", 1),
            ("a residual stream in bf16", "wide", "narrow", 5 * num_layers),
            ("compiled embeddings", "eager", "compiled", 2),
        )
    ]
    return {"ok": True, **found, "verdicts": verdicts}


def time_decoding(session: Session) -> Result:
    """Time beam searches of a new `base` for sources of 25 tokens; the best of three."""
    compute, run = session.compute("bf16"), session.settings("base")
    torch.manual_seed(0)
    vocab_sizes = open_data(session.data, run).info.vocab_sizes
    model = new_model(run.model, vocab_sizes).to(compute.device)
    engine = Engine([model], compute, backend=inference_backend(compute))
    config = SearchConfig(beam_size=4, max_extra_length=10)
    drawn = np.random.default_rng(0)
    found: Result = {"ok": True, "verdicts": []}
    for size in (2,) if session.is_dry else (1, 64, 512):
        sources = [drawn.integers(4, vocab_sizes[0], 25).tolist() for _ in range(size)]
        batch = SentenceBatch(range(1, size + 1), sources, [[] for _ in sources])
        search = partial(engine.run, batch, config)
        num_tokens = sum(len(best[0].tokens) + 1 for best in search())
        seconds = []
        for _ in range(1 if session.is_dry else 3):
            started = time.perf_counter()
            search()
            seconds.append(time.perf_counter() - started)
        timed = {"ms": 1e3 * min(seconds), "tokens_per_second": num_tokens / min(seconds)}
        found[str(size)] = profile(search, number=1) | timed
        factor = timed["ms"] / found[str(size)]["kernel_ms"]
        change = f"steps of the search as CUDA graphs, {size} sentences (at most)"
        found["verdicts"].append(by_speed(change, factor))
    return found


def time_processes(session: Session) -> Result:
    """Time `generate` with one process and with several on the GPU, their start included."""
    source = session.folder / "work" / "many.ja"
    copies, number = (1, 2) if session.is_dry else (8, 4)
    source.write_text((session.data / "test.ja").read_text("utf-8") * copies, "utf-8")
    seconds: dict[int, float] = {}
    for processes in (1, number):
        started = time.perf_counter()
        made = tfm.generate(
            session.run, input=source, processes=processes, device=session.device, max_tokens=1_600
        )
        num_lines = sum(1 for _ in made)
        seconds[processes] = time.perf_counter() - started
    factor = seconds[1] / seconds[number]
    verdict = by_speed(f"{number} processes on a GPU for batches of 1,600 tokens", factor)
    return {"ok": True, "lines": num_lines, "seconds": seconds, "verdicts": [verdict]}


Step = tuple[Callable[[Session], Result], int]  # with its limit in seconds
KERNELS: list[tuple[AttentionKernel, Precision]] = [
    ("flash", "bf16"), ("flash", "fp16"), ("efficient", "bf16"), ("efficient", "fp32")
]  # fmt: skip
# The steps of a call by name, in groups: those of a group run side by side.
CALLS: dict[str, list[dict[str, Step]]] = {
    "prepare": [
        {"dataset": (prepare, 3_600)},
        {"losses of the CPU": (losses_of_cpu, 600)},
        {"carried": (measure_carried, 60)},
    ],
    "first": [
        {f"smoke {k} {p}": (partial(smoke, kernel=k, precision=p), 60) for k, p in KERNELS},
        {"half of the training": (partial(train, half=True), 450)},
    ],
    "second": [
        {"rest of the training": (partial(train, half=False), 450)},
        {"translate": (translate, 60)},
        {"align": (align, 60)},
        {"steps": (time_steps, 90)},
        {"parts": (time_parts, 40)},
        {"decoding": (time_decoding, 40)},
        {"processes": (time_processes, 90)},
    ],
}


def in_process(session: Session, name: str, limit: float) -> Result:
    """Run a step in its own process, and keep what it writes to stderr."""
    folder = session.folder / "work" / "caches"
    caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    environment = os.environ | {variable: str(folder / each) for variable, each in caches.items()}
    command = [sys.executable, *sys.argv, "--step", name]
    with (session.results / "log.txt").open("a") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
            process.communicate()
            return {"ok": False, "error": f"more than {limit:.0f} s"}
    if process.returncode:
        lines = Path(log.name).read_text().strip().splitlines()
        return {"ok": False, "error": lines[-1:] or process.returncode}
    found: Result = json.loads(printed.splitlines()[-1])
    return found


def run_step(session: Session, named: tuple[str, Step], *, left: float) -> bool:
    """Run a step within the seconds left, unless it is too late; append a JSON line."""
    name, (work, limit) = named
    started = time.monotonic()
    if left <= LAST_END - LAST_START:
        result: Result = {"ok": False, "error": "not started: it is too late"}
    elif session.is_dry:
        result = work(session)
    else:
        result = in_process(session, name, min(limit, left))
    line = json.dumps({"step": name, "took": round(time.monotonic() - started, 1)} | result)
    with (session.results / "results.jsonl").open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)
    return bool(result["ok"])


def run_call(session: Session, call: str, spent: float) -> bool:
    """Run the steps of a call; return whether all of them are right."""
    session.results.mkdir(parents=True, exist_ok=True)
    clock = session.folder / "work" / "started"
    if call == "first" or not clock.exists():
        clock.write_text(str(time.time() - spent))
    are_right = True
    for group in CALLS[call]:
        left = float(clock.read_text()) + LAST_END - time.time()
        run = partial(run_step, session, left=math.inf if call == "prepare" else left)
        if session.is_dry:
            are_right &= all([*map(run, group.items())])
        else:
            with ThreadPoolExecutor(len(group)) as executor:
                are_right &= all([*executor.map(run, group.items())])
    return are_right


def main() -> int:
    """Run a call, or all of them, or a step within its process."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("call", choices=[*CALLS, "all"])
    parser.add_argument("--session", type=Path, default=Path("runs/gpu-session"))
    parser.add_argument("--text", type=Path, default=Path("kyoto"), help="the text of KFTT")
    parser.add_argument("--spent", type=float, default=100, help="seconds before the first call")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    text = options.session / "text" if options.dry_run else options.text
    session = Session(options.session, text, is_dry=options.dry_run)
    if options.step is not None:
        steps = {name: step for group in CALLS[options.call] for name, step in group.items()}
        print(json.dumps(steps[options.step][0](session)))
        return 0
    calls = list(CALLS) if options.call == "all" else [options.call]
    are_right = [run_call(session, call, options.spent) for call in calls]
    return 0 if all(are_right) else 1


if __name__ == "__main__":
    sys.exit(main())
