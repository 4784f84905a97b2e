"""The steps of each stage, those of the greatest value first."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from common import Setup
from runner import Step

_HERE = Path(__file__).parent
_BENCHMARKS = _HERE.parent
# What makes tfm's own commands tiny.
_TINY_MODEL = (
    *("--num-encoder-layers", "1", "--num-decoder-layers", "1"),
    *("--d-model", "16", "--d-ff", "32", "--num-heads", "2"),
)
_TINY_TRAINING = (
    *_TINY_MODEL,
    *("--device", "cpu", "--precision", "fp32"),
    *("--batch-tokens", "600", "--bucket-tokens", "100"),
)
_TINY_PLAN = ("--rounds", "1", "--steps", "2", "--untimed-steps", "1")
_WHOLE_BATCH = ("--max-tokens", "65536")
_NUM_LATENCY_LINES = 100


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    return torch.cuda.is_available()


def _right(setup: Setup) -> list[Step]:
    limits: dict[str, float] = {
        "machine": 40,
        "tests": 200,
        "losses": 120,
        "dropout": 90,
        "graphs": 90,
        "resume": 60,
        "synchronizations": 60,
        "processes": 90,
    }
    kernels = Step(
        name="kernels", command=[_BENCHMARKS / "kernels.py"], limit_seconds=90, only_on_gpu=True
    )
    return [*(_own(setup, name, seconds) for name, seconds in limits.items()), kernels]


def _training(setup: Setup) -> list[Step]:
    fast = ("--kernels", "fast", *_WHOLE_BATCH)
    return [
        _bench_train(setup, "base, fast, one microbatch", 120, "--arch", "base", *fast),
        _bench_train(setup, "base, default", 90, "--arch", "base"),
        _bench_train(setup, "base, plain", 90, "--arch", "base", "--kernels", "plain", rounds=1),
        _own(setup, "training", 90),
        _bench_train(setup, "big, fast, one microbatch", 120, "--arch", "big", *fast, steps=50),
        _bench_train(setup, "base, loop", 90, "--arch", "base", *fast, "--loop", rounds=1),
        _training_peers(setup),
    ]


def _decoding(setup: Setup) -> list[Step]:
    latency = setup.scratch / "latency.txt"
    latency.write_text(
        "".join(f"{line}\n" for line in setup.lines()[:_NUM_LATENCY_LINES]), encoding="utf-8"
    )
    one_by_one = ("--input", str(latency), "--rounds", "1", "--latency")
    return [
        _own(setup, "multi30k", 180),
        *(
            _bench_generate(setup, f"{size:,} tokens", "--max-tokens", str(size), "--repeat", "8")
            for size in (8_192, 32_768, 2_048)
        ),
        _own(setup, "decoding", 90),
        _same_search(setup),
        _bench_generate(setup, "one by one, beam 4", *one_by_one),
        _bench_generate(setup, "one by one, beam 1", *one_by_one, "--beam", "1"),
        _decoding_peers(setup),
    ]


STAGES = {"a": _right, "b": _training, "c": _decoding}


def _own(setup: Setup, name: str, seconds: float) -> Step:
    """Return a step of this folder."""
    script = "profiles.py" if name in ("training", "decoding") else "checks.py"
    folders = ("--prepared", setup.prepared, "--scratch", setup.scratch)
    command = [_HERE / script, name, *folders, *(("--dry-run",) if setup.dry_run else ())]
    return Step(name=name, command=command, limit_seconds=seconds)


def _bench_train(
    setup: Setup, name: str, seconds: float, *flags: str, steps: int = 200, rounds: int = 3
) -> Step:
    plan = ("--steps", str(steps), "--rounds", str(rounds))
    tiny = (*_TINY_TRAINING, *_TINY_PLAN) if setup.dry_run else ()
    command = ["-m", "tfm", "bench", "train", setup.tokens, "--json", *plan, *flags, *tiny]
    return Step(name=name, command=command, limit_seconds=seconds, summarize=_training_speed)


def _training_speed(result: dict[str, Any]) -> str:
    seconds, peak = result["step_seconds"], result["peak_memory"]
    loop = result["loop"]
    parts = [
        f"{result['target_tokens_per_second']:,.0f} target tokens/s",
        f"MFU {result['mfu']:.1%}",
        f"{1e3 * seconds['median']:.1f} ms a step",
        f"{(peak['device'] or peak['process']) / 2**30:.1f} GiB",
        *([] if loop is None else [f"loop {loop['share']:.1%} of it"]),
    ]
    return ", ".join(parts)


def _bench_generate(setup: Setup, name: str, *flags: str) -> Step:
    tiny = ("--device", "cpu", "--precision", "fp32", "--repeat", "1", "--rounds", "1")
    command = [
        *("-m", "tfm", "bench", "generate", setup.scratch / "multi30k", "--json"),
        *("--kernels", "fast", "--length-penalty", "0", *flags),
        *(tiny if setup.dry_run else ()),
    ]
    return Step(name=name, command=command, limit_seconds=60, summarize=_decoding_speed)


def _decoding_speed(result: dict[str, Any]) -> str:
    speed = f"{result['target_tokens_per_second']:,.0f} target tokens/s"
    latency = result["latency"]
    if latency is None:
        return speed
    sentence, token = (latency[unit]["median"] for unit in ("sentence", "token"))
    return f"{sentence:.1f} ms a sentence, {token:.2f} ms a token"


def _same_search(setup: Setup) -> Step:
    text = setup.scratch / "test.txt"
    text.write_text("".join(f"{line}\n" for line in setup.lines()), encoding="utf-8")
    sizes = (
        ("--lines", "3", "--beams", "2", "--in-slots")
        if setup.dry_run
        else ("--lines", "40", "--beams", "1", "4", "--device", "cuda")
    )
    command = ["--model", setup.scratch / "multi30k", "--text", text, *sizes]
    return Step(
        name="same search", command=[_BENCHMARKS / "same_search.py", *command], limit_seconds=100
    )


def _training_peers(setup: Setup) -> Step:
    peers = ("torch", "torch_compiled", *_marian(setup))
    sizes = (
        (
            *("--arch", "small", "--batch-tokens", "200", "--steps", "2", "--untimed-steps", "1"),
            *("--threads", "1"),
        )
        if setup.dry_run
        else (
            *("--arch", "base", "--batch-tokens", "25000", "--steps", "30", "--untimed-steps", "8"),
            *("--device", "cuda", "--precisions", "bf16", "--threads", "8"),
        )
    )
    command = [
        *(_BENCHMARKS / "training" / "compare.py", "--data", setup.tokens, "--rounds", "1"),
        *("--out", setup.scratch / "peers", *sizes, "--only", *peers),
    ]
    # A compilation on a CPU takes longer than the rest of a dry run.
    environment = {"TORCHDYNAMO_DISABLE": "1"} if setup.dry_run else {}
    return Step(
        name=f"peers: {', '.join(peers)}",
        command=command,
        limit_seconds=240,
        environment=environment,
    )


def _decoding_peers(setup: Setup) -> Step:
    peers = _marian(setup)
    sizes = (
        ("--precisions", "fp32", "--repeat", "1", "--sample", "4", "--threads", "1")
        if setup.dry_run
        else (
            *("--device", "cuda", "--precisions", "bf16", "--threads", "8", "--repeat", "8"),
            *("--batch-sizes", "128", "512", "--max-seconds", "15"),
        )
    )
    command = [
        *(_BENCHMARKS / "decoding" / "compare.py", "--model", setup.scratch / "multi30k"),
        *("--out", setup.scratch / "decoding", "--rounds", "1", *sizes, "--only", *peers),
    ]
    return Step(name=f"peers: {', '.join(peers) or 'none'}", command=command, limit_seconds=150)


def _marian(setup: Setup) -> tuple[str, ...]:
    """Return Hugging Face's Marian, which a dry run leaves out if it is not installed."""
    return ("marian",) if not setup.dry_run or find_spec("transformers") else ()
