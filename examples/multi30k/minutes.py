"""Print and draw the BLEU of English-German after minutes of training, with three trainings.

    tfm prepare multi30k-en-de --vocab-size 4000
    python examples/multi30k/minutes.py data/multi30k-en-de

The commands are printed. Results are in minutes.json beside this script; these are not computed
again. Interrupted, the same command continues. Without DATA, only the table is made.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from tfm.machine.compute import choose_compute
from tfm.plotting import Figure, drawing

HERE = Path(__file__).parent
RUNS = Path("runs/multi30k-minutes")
TRAININGS = {
    "tiny": ("--arch", "tiny"),
    "small": ("--arch", "small"),
    "multi30k.toml": ("--config", HERE / "multi30k.toml"),
}
MINUTES = (2, 5, 15, 30, 60, 120, 480)
# BLEU of cased, detokenized text, and of Moses tokens without case, as Wu et al. (2021) score.
SCORES = {
    "cased": "--metric bleu",
    "tokens": "--metric paper-bleu --lowercase --split-compounds no",
}
LABELS = {"cased": "BLEU, cased", "tokens": "BLEU of tokens without case"}
COLUMNS = ("training", "minutes", "steps", *LABELS.values(), "precision")


def main() -> None:
    """Train and score what is missing, then print and draw the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="dataset folder")
    parser.add_argument("--results", type=Path, default=HERE / "minutes.json")
    arguments = parser.parse_args()
    results = read_results(arguments.results)
    if arguments.data is not None:
        for training in TRAININGS:
            measure(training, arguments.data, results, arguments.results)
    print("\n".join(table_lines(results)))
    if results:
        draw(results, arguments.results.with_suffix(".svg"))


def measure(training: str, data: Path, results: dict[str, Any], path: Path) -> None:
    """Train until the next limit and score, limit after limit, until the training ends."""
    run = RUNS / training.removesuffix(".toml")
    for limit in MINUTES:
        key = f"{training}, {limit}"
        if key not in results:
            tfm("train", data, *TRAININGS[training], "--run", run, "--max-minutes", limit)
            results[key] = last_validation(run) | score(run, data)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
            partial.replace(path)
        if results[key]["minutes"] < limit:
            return


def last_validation(run: Path) -> dict[str, Any]:
    """Return the steps and minutes of a run so far, and its precision."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    *_, last = (each for each in map(json.loads, lines) if each["kind"] == "validation")
    compute = choose_compute("auto", "auto", trains=True)
    precision = str(compute.dtype).removeprefix("torch.")
    return {"step": last["step"], "minutes": last["minutes"], "precision": precision}


def score(run: Path, data: Path) -> dict[str, float]:
    """Translate the test set with the averaged checkpoint of a run, and score it in both ways."""
    translations, reference = run / "test.de", data / "test.de"
    output = tfm("generate", run, "--split", "test", "--beam", 5)
    translations.write_text(output, encoding="utf-8")
    found = {}
    for name, flags in SCORES.items():
        files = ("--hypotheses", translations, "--reference", reference)
        found[name] = json.loads(tfm("score", *files, *flags.split(), "--json"))["scores"][0][
            "value"
        ]
    return found


def tfm(*arguments: object) -> str:
    """Print and run a command of tfm; return its output."""
    command = ["tfm", *map(str, arguments)]
    sys.stderr.write(f"+ {shlex.join(command)}\n")
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def read_results(path: Path) -> dict[str, Any]:
    """Return the results so far, by training and limit."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def rows_of(results: dict[str, Any], training: str) -> list[dict[str, Any]]:
    """Return the results of a training, in the order of time."""
    rows = [row for key, row in results.items() if key.startswith(f"{training}, ")]
    return sorted(rows, key=lambda row: float(row["minutes"]))


def table_lines(results: dict[str, Any]) -> list[str]:
    """Return the lines of the table, one for each result."""
    return [
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(
            f"| `{training}` | {row['minutes']:.1f} | {row['step']:,} "
            f"| {' | '.join(f'{row[name]:.2f}' for name in SCORES)} | {row['precision']} |"
            for training in TRAININGS
            for row in rows_of(results, training)
        ),
    ]


@drawing({"svg.hashsalt": "minutes"})
def draw(results: dict[str, Any], path: Path) -> None:
    """Draw both kinds of BLEU over the minutes of training."""
    longest = max(row["minutes"] for row in results.values())
    ticks = [limit for limit in MINUTES if limit <= longest]
    figure = Figure(figsize=(10, 4))
    axes = figure.subplots(1, 2, sharex=True)
    for axis, (name, label) in zip(axes, LABELS.items(), strict=True):
        for training in TRAININGS:
            rows = rows_of(results, training)
            times, values = [row["minutes"] for row in rows], [row[name] for row in rows]
            axis.plot(times, values, marker="o", label=training)
        axis.set_xscale("log")
        axis.set_xticks(ticks, map(str, ticks))
        axis.minorticks_off()
        axis.set_xlabel("minutes of training")
        axis.set_ylabel(label)
        axis.grid(color="0.95")
        axis.set_axisbelow(True)
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
