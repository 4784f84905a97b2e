"""Compare the translation speed of tfm and other libraries with the same weights.

    pip install '.[export]'
    python benchmarks/decoding/compare.py --model runs/small --envs /tmp/envs --out /tmp/speed
    python benchmarks/decoding/compare.py --model runs/small --envs … --out … --latency --beam 4 1

Marian (of Hugging Face transformers) supports post-norm models only, OpenNMT-py pre-norm ones: the
other is left out, with a message and exit status 1. Without --envs, libraries must be installed
beside tfm. CTranslate2 reads the output of `tfm export`, the two others a
converted state dict; both must reproduce tfm's log probabilities first.

tfm keeps its defaults: on Linux, a process for each thread of a CPU. The others first find their
best settings: the number of parallel batches that share the threads, and the batch size. All are
tried on a sample, and the fastest again on the text of a round. With --latency, each library, tfm
included, finds its best number of threads. Then all libraries translate the text in turn, each run
in its own process, for some rounds. Only translation is timed, with a loaded model that has warmed
up. The time of tfm includes tokenization; the others read and write pieces or token ids. Target
tokens include EOS. At --length-penalty 0, all libraries search for the same; other values have a
different meaning: Wu et al.'s formula in tfm and OpenNMT-py, a power of the length in the other
two. In tfm, a translation has at most 50 tokens more than its source; the others have one limit for
all, which follows from the longest source and is reached by a model that repeats itself.

The table goes to stdout as Markdown; --out keeps one JSON file and one log per run.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
import sacrebleu
from environments import environment
from preparation import Text, export_to_ctranslate2, read_text, write_setup
from runs import markdown, median, run

from tfm.folders.model_folder import ModelFolder
from tfm.vocabulary.subword import Vocabulary

_HERE = Path(__file__).parent
_OURS = "tfm"
# Settings that reach this fraction of the best speed are tried again, on the text of a round.
_CLOSE = 0.8
# The precisions that each library supports.
_PRECISIONS = {
    _OURS: ("fp32", "bf16", "fp16", "int8"),
    "ctranslate2": ("fp32", "bf16", "fp16", "int8"),
    "marian": ("fp32", "bf16", "fp16"),
    "opennmt": ("fp32", "int8"),
}
_PEERS = tuple(name for name in _PRECISIONS if name != _OURS)


class Contestant(NamedTuple):
    """A library with a precision and a beam size."""

    name: str
    precision: str
    beam_size: int

    def __str__(self) -> str:
        return f"{self.name}-{self.precision}-beam{self.beam_size}"


class Setting(NamedTuple):
    """The settings that each library chooses for itself."""

    processes: int
    threads: int
    batch_size: int
    batch_type: str

    def __str__(self) -> str:
        batches = f", {self.batch_size:,} {self.batch_type}" if self.batch_size > 1 else ""
        return f"{self.processes} × {self.threads}{batches}"


# The setting and the results of all successful rounds of each contestant.
Results = dict[Contestant, tuple[Setting, list[dict[str, Any]]]]


def main() -> None:
    """Run the benchmark."""
    started = time.monotonic()
    options = _options()
    options.model = ModelFolder.open(options.model).path
    text = read_text(options.model, options.input, options.reference)
    setup = options.out / "setup"
    write_setup(setup, options.model, text)
    if "ctranslate2" in options.only:
        export_to_ctranslate2(options.model, setup / "ctranslate2")
    bench = _Bench(options, text)
    tuned = {contestant: bench.tune(contestant) for contestant in _contestants(options)}
    results: Results = {}
    for number in range(1, options.rounds + 1):
        for contestant, choice in tuned.items():
            if choice is None:
                continue
            result = bench.time(contestant, *choice, name=_name(contestant, number))
            if result is not None:
                results.setdefault(contestant, (choice[0], []))[1].append(result)
    vocabulary = Vocabulary.load(options.model)
    print(_latency_table(results) if options.latency else _table(results, text, vocabulary))
    print(f"{(time.monotonic() - started) / 60:.1f} minutes", file=sys.stderr)
    if set(tuned) - set(results):
        raise SystemExit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="a model or run folder of tfm")
    parser.add_argument("--input", type=Path, help="the text (default: the dataset's test split)")
    parser.add_argument("--reference", type=Path, help="its translation")
    parser.add_argument("--envs", type=Path, help="folder of the environments")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", nargs="*", choices=_PEERS, default=list(_PEERS))
    parser.add_argument(
        "--precisions",
        nargs="+",
        choices=["fp32", "bf16", "fp16", "int8"],
        default=["fp32", "bf16", "int8"],
    )
    parser.add_argument("--beam", type=int, nargs="+", default=[4], help="beam sizes")
    parser.add_argument("--length-penalty", type=float, default=0.0, help="each library's own α")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--repeat", type=int, default=5, help="times that a round translates the text"
    )
    parser.add_argument(
        "--max-seconds",
        type=float,
        default=20.0,
        help="time limit of a run; slow libraries translate the text fewer times, at least once",
    )
    parser.add_argument("--sample", type=int, default=400, help="sentences to choose settings on")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument(
        "--batch-tokens",
        type=int,
        nargs="+",
        default=[1024, 2048, 4096],
        help="batch sizes in tokens, only for CTranslate2",
    )
    parser.add_argument("--latency", action="store_true", help="translate one sentence at a time")
    parser.add_argument(
        "--latency-sentences", type=int, default=100, help="number of sentences for --latency"
    )
    return parser.parse_args()


def _contestants(options: argparse.Namespace) -> Iterator[Contestant]:
    for beam_size, precision, name in product(
        options.beam, options.precisions, (_OURS, *options.only)
    ):
        if precision in _PRECISIONS[name]:
            yield Contestant(name, precision, beam_size)


def _settings(name: str, options: argparse.Namespace) -> Iterator[Setting]:
    """Yield the settings to choose from."""
    num_threads = options.threads
    divisors = [n for n in range(1, num_threads + 1) if num_threads % n == 0]
    if options.latency:
        for threads in divisors:
            yield Setting(1, threads, 0 if name == _OURS else 1, "examples")
        return
    if name == _OURS:
        processes = num_threads if options.device == "cpu" and sys.platform == "linux" else 1
        yield Setting(processes, num_threads // processes, 0, "tokens")
        return
    one_batch = name != "ctranslate2" or options.device == "cuda"
    for processes in [1] if one_batch else divisors:
        threads = num_threads // processes
        for size in options.batch_sizes:
            yield Setting(processes, threads, size, "examples")
        for size in options.batch_tokens if name == "ctranslate2" else ():
            yield Setting(processes, threads, size, "tokens")


def _name(contestant: Contestant, *details: object) -> str:
    """Return the name of a run, and of its files."""
    return "-".join(map(str, (contestant, *details)))


def _speed(result: dict[str, Any]) -> float:
    return float(result["tokens_per_second"])


class _Bench:
    """Runs the runners on a text."""

    def __init__(self, options: argparse.Namespace, text: Text) -> None:
        self._options = options
        self._text = text
        self._pythons = {_OURS: Path(sys.executable)}
        for name in options.only:
            self._pythons[name] = environment(name, options.envs)

    def tune(self, contestant: Contestant) -> tuple[Setting, int] | None:
        """Find the fastest setting and the number of copies of the text; None if it fails."""
        options = self._options
        num_sentences = min(30, options.sample) if options.latency else options.sample
        results: dict[Setting, dict[str, Any]] = {}
        for setting in _settings(contestant.name, options):
            name = _name(contestant, *setting)
            result = self._run(contestant, setting, name, num_sentences=num_sentences, copies=1)
            if result is not None:
                results[setting] = result
            elif not results:
                return None  # other settings would fail as well
        best = max(results, key=lambda setting: _speed(results[setting]))
        fraction = len(results[best]["translations"]) / len(self._text.lines)
        seconds = sum(results[best]["seconds"]) / fraction
        copies = max(1, min(options.repeat, int(options.max_seconds / seconds)))
        fast_enough = _CLOSE * _speed(results[best])
        close = [setting for setting, result in results.items() if _speed(result) >= fast_enough]
        speeds: dict[Setting, float] = {}
        for setting in close:
            name = _name(contestant, *setting, "again")
            result = self.time(contestant, setting, copies, name=name)
            if result is not None:
                speeds[setting] = _speed(result)
        return (max(speeds, key=lambda setting: speeds[setting]), copies) if speeds else None

    def time(
        self, contestant: Contestant, setting: Setting, copies: int, *, name: str
    ) -> dict[str, Any] | None:
        """Return the result for the whole text; None if it fails, after a message."""
        return self._run(
            contestant,
            setting,
            name,
            num_sentences=(
                self._options.latency_sentences if self._options.latency else len(self._text.lines)
            ),
            copies=1 if self._options.latency else copies,
        )

    def _run(
        self,
        contestant: Contestant,
        setting: Setting,
        name: str,
        *,
        num_sentences: int,
        copies: int,
    ) -> dict[str, Any] | None:
        options = self._options
        settings = {
            "setup": options.out / "setup",
            "model": options.model,
            "device": options.device,
            "precision": contestant.precision,
            "beam-size": contestant.beam_size,
            "length-penalty": options.length_penalty,
            "max-length": self._text.max_length,
            "processes": setting.processes,
            "threads": setting.threads,
            "batch-size": setting.batch_size,
            "batch-type": setting.batch_type,
            "num-sentences": num_sentences,
            "copies": copies,
            "one-at-a-time": str(options.latency).lower(),
        }
        result = run(
            self._pythons[contestant.name],
            _HERE / f"with_{contestant.name}.py",
            settings,
            options.out / name,
            threads=setting.processes * setting.threads,
            limit_seconds=300 + 10 * options.max_seconds,
        )
        if result is not None:
            print(f"{name}: {result['tokens_per_second']:,.0f} target tokens/s", file=sys.stderr)
        return result


def _table(results: Results, text: Text, vocabulary: Vocabulary) -> str:
    """Return the results in Markdown, the slowest last."""
    speeds = {
        contestant: median(rounds, "tokens_per_second")
        for contestant, (_, rounds) in results.items()
    }
    ours = [each for each in speeds if each.name == _OURS]
    titles = ["library", "precision", "beam", "threads and batches", "target tokens/s", "rounds"]
    titles += [f"{_OURS} {one.precision} to it" for one in ours]
    titles += ["BLEU", "as tfm fp32", "peak MB"]
    rows = []
    for contestant in sorted(speeds, key=lambda each: -speeds[each]):
        setting, rounds = results[contestant]
        last = rounds[-1]
        fp32 = results.get(Contestant(_OURS, "fp32", contestant.beam_size))
        rows.append(
            [
                last["version"],
                contestant.precision,
                str(contestant.beam_size),
                str(setting),
                f"{speeds[contestant]:,.0f}",
                " ".join(f"{one['tokens_per_second']:,.0f}" for one in rounds),
                *(
                    f"{speeds[one] / speeds[contestant]:.2f}"
                    if one.beam_size == contestant.beam_size
                    else ""
                    for one in ours
                ),
                f"{_bleu(last['translations'], text, vocabulary):.2f}",
                _fraction_equal(last, fp32[1][-1]) if fp32 else "",
                f"{median(rounds, 'peak_memory_mb'):,.0f}",
            ]
        )
    return markdown(titles, rows)


def _latency_table(results: Results) -> str:
    """Return the time per sentence in Markdown, the slowest last."""
    milliseconds = {
        contestant: [1e3 * value for one in rounds for value in one["seconds"]]
        for contestant, (_, rounds) in results.items()
    }
    titles = ["library", "precision", "beam", "threads", "ms a sentence", "p90", "rounds"]
    titles += ["ms a token"]
    rows = []
    for contestant in sorted(
        results, key=lambda each: (-each.beam_size, statistics.median(milliseconds[each]))
    ):
        setting, rounds = results[contestant]
        values = milliseconds[contestant]
        num_tokens = [number for one in rounds for number in one["num_tokens"]]
        by_token = [value / number for value, number in zip(values, num_tokens, strict=True)]
        rows.append(
            [
                rounds[-1]["version"],
                contestant.precision,
                str(contestant.beam_size),
                str(setting.threads),
                f"{statistics.median(values):.2f}",
                f"{statistics.quantiles(values, n=10)[-1]:.2f}",
                " ".join(f"{1e3 * statistics.median(one['seconds']):.2f}" for one in rounds),
                f"{statistics.median(by_token):.3f}",
            ]
        )
    return markdown(titles, rows)


def _bleu(translations: Iterable[list[int]], text: Text, vocabulary: Vocabulary) -> float:
    """Compute BLEU with sacreBLEU's defaults (13a, cased)."""
    lines = vocabulary.target.decode(translations)
    return float(sacrebleu.corpus_bleu(lines, [text.references]).score)


def _fraction_equal(result: dict[str, Any], fp32: dict[str, Any]) -> str:
    pairs = list(zip(result["translations"], fp32["translations"], strict=True))
    return f"{sum(one == other for one, other in pairs) / len(pairs):.1%}"


if __name__ == "__main__":
    main()
