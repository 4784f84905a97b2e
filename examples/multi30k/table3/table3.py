"""Train the rows of the paper's Table 3 at the size of Multi30k; print and draw the table.

    tfm prepare multi30k-en-de --vocab-size 4000
    python examples/multi30k/table3/table3.py data/multi30k-en-de --jobs 2

Rows that have ended are not trained again, interrupted ones are resumed. Runs and results.json are
in runs/NAME-table3, for the folder NAME of the dataset. Without DATA, the table is that of the
results.json beside this script.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from safetensors import safe_open

from tfm.machine.compute import choose_compute
from tfm.plotting import Figure, drawing

HERE = Path(__file__).parent
PAPER = HERE.parents[1] / "wmt14" / "README.md"

# By the name of the row's file for WMT14: the change to base, scaled from 6 layers, d_model 512,
# d_ff 2048, 8 heads and dropout 0.1 to 4 layers, 128, 256, 4 and 0.2.
ROWS = {
    "base": "",
    "a-h1": "--num-heads 1",
    "a-h4": "--num-heads 2",
    "a-h16": "--num-heads 8",
    "a-h32": "--num-heads 16",
    "b-dk16": "--d-k 8",
    "b-dk32": "--d-k 16",
    "c-layers2": "--num-encoder-layers 1 --num-decoder-layers 1",
    "c-layers4": "--num-encoder-layers 3 --num-decoder-layers 3",
    "c-layers8": "--num-encoder-layers 5 --num-decoder-layers 5",
    "c-dmodel256": "--d-model 64",
    "c-dmodel1024": "--d-model 256",
    "c-dff1024": "--d-ff 128",
    "c-dff4096": "--d-ff 512",
    "d-dropout0.0": "--dropout 0 --embedding-dropout 0",
    "d-dropout0.2": "--dropout 0.4 --embedding-dropout 0.4",
    "d-smoothing0.0": "--label-smoothing 0",
    "d-smoothing0.2": "--label-smoothing 0.2",
    "e-learned-positions": "--learned-positions 128",
    "big": "--d-model 256 --d-ff 512 --num-heads 8",
}
# Base with other seeds, which shows the noise.
SEEDS = {"base-seed2": "--seed 2", "base-seed3": "--seed 3"}
METRICS = {"perplexity": "PPL", "bleu": "BLEU"}
HEADER = (
    "| row | change | parameters, 10⁶ | minutes | PPL | change | in the paper | same sign "
    "| BLEU | change | in the paper | same sign |\n|" + "---|" * 12
)


def main() -> None:
    """Train the rows of the command line, or all, then print and draw the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="dataset folder")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS | SEEDS))
    parser.add_argument("--jobs", type=int, default=1, help="rows to train at the same time")
    parser.add_argument("--fresh", action="store_true", help="train rows again that have ended")
    arguments = parser.parse_args()
    if unknown := set(arguments.rows) - set(ROWS | SEEDS):
        parser.error(f"unknown rows: {' '.join(sorted(unknown))}")
    data = arguments.data
    folder = HERE if data is None else Path("runs") / f"{data.resolve().name}-table3"
    path = folder / "results.json"
    if data is not None:
        wanted, ended = arguments.rows or [*SEEDS, *ROWS], read_results(path)
        missing = [name for name in wanted if arguments.fresh or name not in ended]
        again = "" if missing else "; --fresh trains them again"
        print(f"{len(missing)} rows to train, {len(ended)} in {path}{again}", file=sys.stderr)
        if arguments.fresh:
            for name in missing:
                shutil.rmtree(folder / name, ignore_errors=True)
        train(missing, data, arguments.jobs, folder)
    results = read_results(path)
    print(HEADER, *table_lines(results), sep="\n")
    if data is not None and "base" in results:
        draw(results, path.with_suffix(".svg"))


def train(names: list[str], data: Path, jobs: int, folder: Path) -> None:
    """Train rows, some at a time, and add the figures of each to the results when it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)

    def run(name: str) -> int:
        flags = ["--config", str(HERE / "base.toml"), "--threads", str(threads)]
        flags += (ROWS | SEEDS)[name].split()
        command = ["tfm", "train", str(data), "--run", str(folder / name), *flags]
        with (folder / f"{name}.log").open("a") as log:
            return subprocess.run(command, stderr=log if jobs > 1 else None, check=False).returncode

    pool = ThreadPoolExecutor(jobs)
    try:
        for name, code in zip(names, pool.map(run, names), strict=True):
            if code:
                raise SystemExit(code)
            known = read_results(results) | {name: figures_of(folder / name)}
            partial = results.with_suffix(".partial")
            partial.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
            partial.replace(results)
    finally:
        pool.shutdown(cancel_futures=True)


def read_results(path: Path) -> dict[str, Any]:
    """Return the figures of the rows that have ended, by name."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def figures_of(run: Path) -> dict[str, Any]:
    """Return the last validation of a run, the model's number of parameters, and the precision."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    *_, last = (each for each in map(json.loads, lines) if each["kind"] == "validation")
    checkpoint = run / "checkpoints" / f"step-{last['step']:08}" / "model.safetensors"
    with safe_open(checkpoint, "np") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    shown = {key: last[key] for key in ("step", "minutes", *METRICS)}
    compute = choose_compute("auto", "auto", trains=True)
    precision = str(compute.dtype).removeprefix("torch.")
    return {"parameters": sum(map(math.prod, shapes)), **shown, "precision": precision}


def paper_changes() -> dict[str, dict[str, float]]:
    """Return the differences of the paper's rows to its base, by name and metric."""
    pattern = re.compile(r"^\| `(.+?)` \|.*?\| ([\d.]+) \| ([\d.]+) \|", re.MULTILINE)
    rows = pattern.findall(PAPER.read_text(encoding="utf-8"))
    values = {name: dict(zip(METRICS, map(float, row), strict=True)) for name, *row in rows}
    base = values["base"]
    return {name: {key: row[key] - base[key] for key in METRICS} for name, row in values.items()}


def table_lines(results: dict[str, Any]) -> list[str]:
    """Return a line of the table for each row that has ended, with its differences to base.

    Base is the mean of its seeds that have ended.
    """
    paper, base, noise = paper_changes(), base_of(results), noise_of(results)
    lines = []
    for name, change in (ROWS | SEEDS).items():
        if name not in results:
            continue
        row = results[name]
        cells = [f"`{name}`", f"`{change}`" if change else ""]
        cells += [f"{row['parameters'] / 1e6:.2f}", f"{row['minutes']:.0f}"]
        for key in METRICS:
            cells.append(f"{row[key]:.2f}")
            ours = row[key] - base[key]
            if math.isnan(ours) or name == "base" or name in SEEDS:
                cells += ["" if math.isnan(ours) else f"{ours:+.2f}", "", ""]
                continue
            theirs = paper[name][key]
            same = "yes" if ours * theirs > 0 else "no" if theirs else "equal in the paper"
            cells += [f"{ours:+.2f}", f"{theirs:+.2f}"]
            cells.append(f"{same}, within noise" if abs(ours) <= noise[key] else same)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def base_of(results: dict[str, Any]) -> dict[str, float]:
    """Return the means of base's metrics over the seeds that have ended; NaN if there are none."""
    return {key: fmean(each) if each else math.nan for key, each in seeds_of(results).items()}


def noise_of(results: dict[str, Any]) -> dict[str, float]:
    """Return the range of base's metrics over the seeds that have ended."""
    seeds = seeds_of(results)
    return {key: max(each, default=0) - min(each, default=0) for key, each in seeds.items()}


def seeds_of(results: dict[str, Any]) -> dict[str, list[float]]:
    """Return the metrics of base with each seed that has ended."""
    seeds = [results[name] for name in ("base", *SEEDS) if name in results]
    return {key: [row[key] for row in seeds] for key in METRICS}


@drawing({"svg.hashsalt": "table3"})
def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the differences to base, here and in the paper, with the range of base's seeds."""
    paper, base, noise = paper_changes(), base_of(results), noise_of(results)
    names = [name for name in ROWS if name in results and name != "base"]
    places = range(len(names), 0, -1)
    figure = Figure(figsize=(10, 1.5 + 0.26 * len(names)))
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (key, label) in zip(axes, METRICS.items(), strict=True):
        axis.axvspan(-noise[key], noise[key], color="0.9", label="range of base over its seeds")
        axis.axvline(0, color="0.6", linewidth=0.8)
        ours = [results[name][key] - base[key] for name in names]
        axis.scatter(ours, places, color="tab:blue", label="Multi30k")
        in_paper = [paper[name][key] for name in names]
        axis.scatter(in_paper, places, facecolors="none", edgecolors="tab:red", label="the paper")
        axis.set_xlabel(f"{label}, difference to the mean of base")
        axis.grid(axis="y", color="0.95")
        axis.set_axisbelow(True)
    axes[0].set_yticks(list(places), names)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
