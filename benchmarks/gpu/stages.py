"""The steps of each stage, those of the greatest value first."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from common import Setup
from runner import Step

_HERE = Path(__file__).parent
_BENCHMARKS = _HERE.parent
_FAST = "--kernels fast"  # with one microbatch per step
_TINY_TRAINING = (
    "--num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 --d-ff 32 --num-heads 2 "
    "--device cpu --precision fp32 --batch-tokens 600 --bucket-tokens 100 "
    "--rounds 1 --steps 2 --untimed-steps 1"
)
_TINY_DECODING = "--device cpu --precision fp32 --repeat 1 --rounds 1"
_NUM_LATENCY_LINES = 100
_WITHOUT_COMPILER = {"TORCHDYNAMO_DISABLE": "1"}


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    return torch.cuda.is_available()


def _right(setup: Setup) -> list[Step]:
    kernels = _BENCHMARKS / "kernels.py"
    return [
        _own(setup, "checks.py", "machine", 40),
        _own(setup, "checks.py", "tests", 200),
        _own(setup, "checks.py", "losses", 120),
        _own(setup, "checks.py", "dropout", 90),
        _own(setup, "checks.py", "graphs", 90),
        _own(setup, "checks.py", "training_graphs", 60),
        _own(setup, "checks.py", "resume", 60),
        _own(setup, "checks.py", "synchronizations", 60),
        _own(setup, "checks.py", "processes", 90),
        Step(name="kernels", command=[kernels], limit_seconds=90, only_on_gpu=True),
    ]


def _training(setup: Setup) -> list[Step]:
    graphs = f"{_FAST} --cuda-graphs"
    share = "--batch-tokens 3125 --rounds 1"  # of one GPU of eight
    return [
        _bench_train(setup, "base, fast, one microbatch", 120, f"--arch base {_FAST}"),
        _bench_train(
            setup, "base, fast, 8,192 tokens", 90, "--arch base --kernels fast --max-tokens 8192"
        ),
        _bench_train(
            setup,
            "base, fast, CUDA graphs",
            90,
            f"--arch base {graphs} --rounds 1",
            only_on_gpu=True,
        ),
        _bench_train(setup, "base, 3,000 tokens", 60, f"--arch base {_FAST} {share}"),
        _bench_train(
            setup,
            "base, 3,000 tokens, CUDA graphs",
            60,
            f"--arch base {graphs} {share}",
            only_on_gpu=True,
        ),
        _bench_train(setup, "base, plain", 90, "--arch base --kernels plain --rounds 1"),
        _own(setup, "profiles.py", "training", 90),
        _bench_train(setup, "big, fast, one microbatch", 120, f"--arch big {_FAST} --steps 50"),
        _bench_train(
            setup, "base, fast, not compiled", 60, f"--arch base {_FAST} --rounds 1", compiles=False
        ),
        _bench_train(setup, "base, loop", 90, f"--arch base {_FAST} --loop --rounds 1"),
        _training_peers(setup),
    ]


def _decoding(setup: Setup) -> list[Step]:
    text, few = _text(setup, "test.txt"), _text(setup, "few.txt", _NUM_LATENCY_LINES)
    one_by_one = "--rounds 1 --latency --beam"
    return [
        _own(setup, "checks.py", "multi30k", 180),
        *(
            _bench_generate(setup, f"{size:,} tokens", text, f"--max-tokens {size} --repeat 16")
            for size in (8_192, 32_768, 2_048)
        ),
        _own(setup, "profiles.py", "decoding", 90),
        _same_search(setup, text),
        _bench_generate(setup, "one by one, beam 4", few, f"{one_by_one} 4"),
        _bench_generate(setup, "one by one, beam 1", few, f"{one_by_one} 1"),
        _decoding_peers(setup),
    ]


STAGES = {"a": _right, "b": _training, "c": _decoding}


def _own(setup: Setup, script: str, name: str, seconds: float) -> Step:
    """Return a step of this folder."""
    folders = ("--prepared", setup.prepared, "--scratch", setup.scratch)
    command = [_HERE / script, name, *folders, *(("--dry-run",) if setup.dry_run else ())]
    return Step(name=name, command=command, limit_seconds=seconds)


def _text(setup: Setup, name: str, num_lines: int | None = None) -> Path:
    """Write the first lines of the test set."""
    path = setup.scratch / name
    lines = setup.lines()[:num_lines]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _bench_train(
    setup: Setup,
    name: str,
    seconds: float,
    flags: str,
    *,
    compiles: bool = True,
    only_on_gpu: bool = False,
) -> Step:
    tiny = _TINY_TRAINING if setup.dry_run else ""
    command = ["-m", "tfm", "bench", "train", setup.tokens, "--json", *f"{flags} {tiny}".split()]
    return Step(
        name=name,
        command=command,
        limit_seconds=seconds,
        summarize=_training_speed,
        environment={} if compiles else _WITHOUT_COMPILER,
        only_on_gpu=only_on_gpu,
    )


def _training_speed(result: dict[str, Any]) -> str:
    peak, loop = result["peak_memory"], result["loop"]
    return (
        f"{result['target_tokens_per_second']:,.0f} target tokens/s, MFU {result['mfu']:.1%}, "
        f"{1e3 * result['step_seconds']['median']:.1f} ms a step, "
        f"{(peak['device'] or peak['process']) / 2**30:.1f} GiB"
        + ("" if loop is None else f", loop {loop['share']:.1%} of it")
    )


def _bench_generate(setup: Setup, name: str, text: Path, flags: str) -> Step:
    tiny = _TINY_DECODING if setup.dry_run else ""
    flags = f"--json --kernels fast --length-penalty 0 {flags} {tiny}"
    model = setup.scratch / "multi30k"
    command = ["-m", "tfm", "bench", "generate", model, "--input", text, *flags.split()]
    return Step(name=name, command=command, limit_seconds=60, summarize=_decoding_speed)


def _decoding_speed(result: dict[str, Any]) -> str:
    latency = result["latency"]
    if latency is None:
        return f"{result['target_tokens_per_second']:,.0f} target tokens/s"
    sentence, token = (latency[unit]["median"] for unit in ("sentence", "token"))
    return f"{sentence:.1f} ms a sentence, {token:.2f} ms a token"


def _same_search(setup: Setup, text: Path) -> Step:
    sizes = "--lines 40 --beams 1 4 --device cuda"
    if setup.dry_run:
        sizes = "--lines 3 --beams 2 --in-slots"
    files = ("--model", setup.scratch / "multi30k", "--text", text)
    command = [_BENCHMARKS / "same_search.py", *files, *sizes.split()]
    return Step(name="same search", command=command, limit_seconds=100)


def _training_peers(setup: Setup) -> Step:
    sizes = (
        "--device cuda --arch base --precisions bf16 --batch-tokens 25000 --steps 30 "
        "--untimed-steps 8 --threads 8"
    )
    environment = {}
    if setup.dry_run:
        sizes = "--arch small --batch-tokens 200 --steps 2 --untimed-steps 1 --threads 1"
        # A compilation on a CPU takes longer than the rest of a dry run.
        environment |= _WITHOUT_COMPILER
    peers = ("torch", *_marian(setup), "torch_compiled")  # the slowest to start comes last
    return Step(
        name=f"peers: {', '.join(peers)}",
        command=[
            *(_BENCHMARKS / "training" / "compare.py", "--data", setup.tokens, "--rounds", "1"),
            *("--out", setup.scratch / "peers", *sizes.split(), "--only", *peers),
        ],
        limit_seconds=240,
        environment=environment,
    )


def _decoding_peers(setup: Setup) -> Step:
    sizes = (
        "--device cuda --precisions bf16 --threads 8 --repeat 8 --batch-sizes 128 512 "
        "--max-seconds 15"
    )
    if setup.dry_run:
        sizes = "--precisions fp32 --threads 1 --repeat 1 --batch-sizes 8 --sample 4"
    peers = _marian(setup)
    model = setup.scratch / "multi30k"
    return Step(
        name=f"peers: {', '.join(peers) or 'none'}",
        command=[
            *(_BENCHMARKS / "decoding" / "compare.py", "--model", model, "--rounds", "1"),
            *("--out", setup.scratch / "decoding", *sizes.split(), "--only", *peers),
        ],
        limit_seconds=150,
    )


def _marian(setup: Setup) -> tuple[str, ...]:
    """Return Hugging Face's Marian, which a dry run leaves out if it is not installed."""
    return ("marian",) if not setup.dry_run or find_spec("transformers") else ()
