"""Compare the training speed of tfm and other libraries on the same batches.

    python benchmarks/training/compare.py --data data/multi30k --envs /tmp/envs --out /tmp/speed
    python benchmarks/training/compare.py --data … --out … --device cuda --only torch marian

Each library gets its own environment below --envs, installed from the package index at its first
use, with tfm's version of torch; without --envs, it must be installed beside tfm. On a GPU, tfm
can be compared with torch, torch_compiled and marian. All train the same network on the batches of
tfm: this compares the training step, not data loading. Each run is a process of its own, one after
another, round after round. The table goes to stdout as Markdown; --out keeps one JSON file per run,
with its losses, and the output of the run.

To compare what they learn, train for longer: --rounds 1 --steps 1000.
"""

import argparse
import sys
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from environments import environment
from runs import markdown, median, run
from timing import add_settings

from tfm.config import BatchingConfig
from tfm.dataset.batching import Batcher
from tfm.dataset.parallel import ParallelDataset
from tfm.vocabulary.subword import BOS, EOS, Vocabulary

_HERE = Path(__file__).parent
_TFM = "tfm"
_PEERS = ("fairseq", "opennmt", "marian", "torch", "torch_compiled")
_CPU_ONLY = ("fairseq", "opennmt")

# The results of all successful rounds by library and precision.
Results = dict[tuple[str, str], list[dict[str, Any]]]


def main() -> None:
    """Compare the libraries."""
    options = _options()
    if options.device == "cuda" and (runs_on_cpu := {*options.only} & {*_CPU_ONLY}):
        raise SystemExit(f"{', '.join(sorted(runs_on_cpu))}: compared on a CPU only, see --only")
    options.out.mkdir(parents=True, exist_ok=True)
    pythons = {_TFM: Path(sys.executable)}
    pythons |= {name: environment(name, options.envs) for name in options.only}
    batches = options.out / "batches.npz"
    _write_batches(batches, options)
    results: Results = {}
    has_failed = False
    for number in range(1, options.rounds + 1):
        for precision in options.precisions:
            for name, python in pythons.items():
                stem = options.out / f"{name}-{options.arch}-{precision}-{number}"
                result = _run(name, python, precision, batches, stem, options)
                if result is not None:
                    results.setdefault((name, precision), []).append(result)
                has_failed |= result is None
    print(_table(results))
    if has_failed:
        raise SystemExit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_settings(parser)
    parser.add_argument("--envs", type=Path, help="folder of the environments")
    parser.add_argument("--out", type=Path, required=True, help="folder of batches and results")
    parser.add_argument("--only", nargs="*", choices=_PEERS, default=list(_PEERS))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parser.add_argument("--batch-tokens", type=int, default=4096, help="target tokens per step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def _write_batches(path: Path, options: argparse.Namespace) -> None:
    """Store batches for runners that do not have tfm.

    `source` and `target` hold the concatenated sentences of all batches, with EOS at the end and,
    for targets, BOS at the start; `…_lengths` their lengths, `rows` their indices in the dataset,
    and `sizes` the number of pairs of each batch.
    """
    vocabulary = Vocabulary.load(options.data)
    vocab_sizes = (len(vocabulary.source), len(vocabulary.target))
    dataset = ParallelDataset(options.data / "bin", "train", vocab_sizes=vocab_sizes)
    config = BatchingConfig(batch_tokens=options.batch_tokens, bucket_tokens=options.batch_tokens)
    batcher = Batcher(dataset, config, seed=options.seed)
    epochs = (batcher.epoch(number) for number in count(1))
    batches = list(islice(chain.from_iterable(epochs), options.untimed_steps + options.steps))
    rows = np.concatenate(batches)
    stored = {
        "vocab_size": np.array(vocab_sizes[1]),
        "rows": rows,
        "sizes": np.array([len(batch) for batch in batches]),
    }
    for name, start in (("source", []), ("target", [BOS])):
        sentences = [[*start, *ids, EOS] for ids in getattr(dataset, name)]
        stored[name] = np.array([*chain.from_iterable(sentences[row] for row in rows)], np.int32)
        stored[f"{name}_lengths"] = np.array([len(sentences[row]) for row in rows])
    np.savez(path, **stored)


def _run(
    name: str,
    python: Path,
    precision: str,
    batches: Path,
    stem: Path,
    options: argparse.Namespace,
) -> dict[str, Any] | None:
    """Train with a library in its own process; report a failure and return None."""
    settings = {
        "data": options.data,
        "device": options.device,
        "arch": options.arch,
        "steps": options.steps,
        "untimed-steps": options.untimed_steps,
        "learning-rate": options.learning_rate,
        "warmup-steps": options.warmup_steps,
        "seed": options.seed,
        "batches": batches,
        "precision": precision,
    }
    result = run(python, _HERE / f"with_{name}.py", settings, stem, threads=options.threads)
    if result is not None:
        print(f"{stem.name}: {result['tokens_per_second']:,.0f} target tokens/s", file=sys.stderr)
    return result


def _table(results: Results) -> str:
    """Return the results as a Markdown table, the fastest first."""
    tfm_speeds = {
        precision: median(rounds, "tokens_per_second")
        for (name, precision), rounds in results.items()
        if name == _TFM
    }
    titles = ["library", "precision", "target tokens/s", "rounds"]
    titles += [f"{_TFM} {precision} to it" for precision in tfm_speeds]
    titles += ["tokens per CPU second", "peak MB", "loss", "NLL"]
    rows = []
    by_speed = sorted(results, key=lambda key: -median(results[key], "tokens_per_second"))
    for name, precision in by_speed:
        rounds = results[name, precision]
        speed = median(rounds, "tokens_per_second")
        last = rounds[-1]
        rows.append(
            [
                last["version"],
                precision,
                f"{speed:,.0f}",
                " ".join(f"{each['tokens_per_second']:,.0f}" for each in rounds),
                *(f"{tfm_speed / speed:.2f}" for tfm_speed in tfm_speeds.values()),
                f"{median(rounds, 'tokens_per_cpu_second'):,.0f}",
                f"{median(rounds, 'peak_memory_mb'):,.0f}",
                f"{last['loss'][-1]:.3f}",
                f"{last['nll'][-1]:.3f}" if last["nll"] else "",
            ]
        )
    return markdown(titles, rows)


if __name__ == "__main__":
    main()
