"""Train the rows of the paper's Table 3 at the size of Multi30k, and print the table.

Usage: python examples/multi30k/table3/table3.py data/multi30k-en-de [ROW ...]

Finished rows are not trained again, and interrupted ones are resumed.
"""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors import safe_open

HERE = Path(__file__).parent
PAPER = HERE.parents[1] / "wmt14" / "README.md"
RUNS = Path("runs/multi30k-table3")

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
HEADER = (
    "| row | change | parameters, 10⁶ | minutes | PPL | change | in the paper | same sign "
    "| BLEU | change | in the paper | same sign |\n|" + "---|" * 12
)


def main() -> None:
    """Train base and the rows of the command line, or all, and print the table of all rows."""
    data, *names = sys.argv[1:]
    for name in ["base", *names] if names else ROWS:
        config = ["--config", str(HERE / "base.toml"), *ROWS[name].split()]
        command = ["tfm", "train", data, "--run", str(RUNS / name), *config]
        if code := subprocess.run(command, check=False).returncode:
            raise SystemExit(code)
    print(HEADER, *table_lines(), sep="\n")


def table_lines() -> list[str]:
    """Return a line of the table for each row with a run, with its differences to base."""
    pattern = re.compile(r"^\| `(.+?)` \|.*?\| ([\d.]+) \| ([\d.]+) \|", re.MULTILINE)
    paper = {row[0]: row[1:] for row in pattern.findall(PAPER.read_text(encoding="utf-8"))}
    base = figures_of(RUNS / "base")
    lines = []
    for name in (name for name in ROWS if (RUNS / name).is_dir()):
        figures = figures_of(RUNS / name)
        cells = [f"`{name}`", ROWS[name], f"{figures['parameters'] / 1e6:.2f}"]
        cells += [f"{figures['minutes']:.0f}"]
        for index, key in enumerate(["perplexity", "bleu"]):
            change = figures[key] - base[key]
            in_paper = float(paper[name][index]) - float(paper["base"][index])
            same = "yes" if change * in_paper > 0 else "no" if in_paper else "equal in the paper"
            cells += [f"{figures[key]:.2f}", f"{change:+.2f}", f"{in_paper:+.2f}", same]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def figures_of(run: Path) -> dict[str, Any]:
    """Return the last validation of a run, with the model's number of parameters."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    *_, last = (each for each in map(json.loads, lines) if each["kind"] == "validation")
    checkpoint = run / "checkpoints" / f"step-{last['step']:08}" / "model.safetensors"
    with safe_open(checkpoint, "np") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    return last | {"parameters": sum(map(math.prod, shapes))}


if __name__ == "__main__":
    main()
