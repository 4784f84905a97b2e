"""Train a neural Turing machine, an LSTM and a Transformer on three tasks, and compare them.

    python examples/turing_machine/train.py

Results are in results.json beside this script; these are not computed again, so that the same
command continues after an interruption. The table is printed, the picture is heads.svg.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from machines import MACHINES, MachineName, TuringMachine, new_machine
from tasks import BITS, NUM_MARKS, TASKS, Examples, Task, make, random_length
from torch import nn

from tfm.config import OptimizerConfig
from tfm.disk.files import atomic_write, write_json
from tfm.plotting import Figure, drawing
from tfm.reporting import Progress
from tfm.training.optimizer import Adam

HERE = Path(__file__).parent
LONGEST = 20  # in training
TEST_LENGTHS = (20, 40, 120)
_TEST_BATCHES, _TEST_BATCH_SIZE = 10, 10
_BATCH_SIZE = 16
_CLIP_NORM = 0.3
# At first; the last third of the steps goes down to 0.
_LEARNING_RATES = {"turing-machine": 1e-2, "lstm": 3e-3, "transformer": 1e-3}


def main() -> None:
    """Train what has no results yet, then draw and print all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=MACHINES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of results and picture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # operations are small
    results_path = arguments.out / "results.json"
    results = json.loads(results_path.read_text()) if results_path.exists() else {}
    for seed, task, name in product(arguments.seeds, arguments.tasks, arguments.machines):
        if (key := f"{task} {name} {seed}") not in results:
            machine, loss, seconds = train(task, name, seed=seed, num_steps=arguments.steps)
            results[key] = {
                "steps": arguments.steps,
                "cpu_seconds": round(seconds),
                "parameters": sum(each.numel() for each in machine.parameters()),
                "loss": round(loss, 4),
                "wrong": {str(n): wrong_bits(machine, task, n) for n in TEST_LENGTHS},
            }
            write_json(results_path, results)
            if isinstance(machine, TuringMachine) and task == "copy" and seed == arguments.seeds[0]:
                draw(machine, arguments.out / "heads.svg")
    print("\n".join(table_lines(results)))


def train(
    task: Task, name: MachineName, *, seed: int, num_steps: int
) -> tuple[nn.Module, float, float]:
    """Return a trained machine, its last loss in nats per bit, and the CPU seconds that it took."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    bits = BITS[task]
    machine = new_machine(name, bits + NUM_MARKS, bits)
    optimizer = Adam(machine.parameters(), OptimizerConfig(adam_beta2=0.999, adam_epsilon=1e-8))
    start, average = time.process_time(), float("nan")
    with Progress(f"{task} {name} seed {seed}", total=num_steps, unit="steps") as bar:
        for step in range(num_steps):
            examples = make(task, random_length(task, LONGEST, random), _BATCH_SIZE, random)
            loss = F.binary_cross_entropy_with_logits(_answer(machine, examples), examples.answers)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(machine.parameters(), _CLIP_NORM)
            rate = _LEARNING_RATES[name] * min(1.0, 3 * (1 - step / num_steps))
            optimizer.step(optimizer.gradients(), rate)
            average = loss.item() if step == 0 else 0.98 * average + 0.02 * loss.item()
            bar.update(1, [f"loss {average:.4f}"])
    return machine.eval(), average, time.process_time() - start


@torch.no_grad()
def wrong_bits(machine: nn.Module, task: Task, length: int) -> float:
    """Return the mean number of wrong bits in the answers of test sequences of a length."""
    random = torch.Generator().manual_seed(length)  # the same sequences for all machines
    total = 0
    for _ in range(_TEST_BATCHES):
        examples = make(task, length, _TEST_BATCH_SIZE, random)
        total += int(((_answer(machine, examples) > 0) != (examples.answers > 0)).sum())
    return total / (_TEST_BATCHES * _TEST_BATCH_SIZE)


def _answer(machine: nn.Module, examples: Examples) -> torch.Tensor:
    """Return the logits [B, A, bits] of what a machine answers."""
    out: torch.Tensor = machine(examples.inputs)[:, -examples.answer_length :]
    return out


def table_lines(results: dict[str, Any]) -> list[str]:
    """Return a Markdown table of wrong bits per sequence: the median over seeds, and all."""
    lines = [
        "| task | machine | "
        + " | ".join(f"length {each}" for each in TEST_LENGTHS)
        + " | CPU seconds |",
        "|---|---|" + "---|" * (len(TEST_LENGTHS) + 1),
    ]
    for task in TASKS:
        for name in MACHINES:
            runs = [run for key, run in results.items() if key.startswith(f"{task} {name} ")]
            if runs:
                cells = [_cell([run["wrong"][str(n)] for run in runs]) for n in TEST_LENGTHS]
                seconds = statistics.median(run["cpu_seconds"] for run in runs)
                lines.append(f"| {task} | {name} | {' | '.join(cells)} | {seconds:.0f} |")
    return lines


def _cell(figures: list[float]) -> str:
    each = ", ".join(f"{figure:.1f}" for figure in figures)
    return f"{statistics.median(figures):.1f} ({each})"


def mean_and_deviation(figures: Sequence[float]) -> str:
    """Return the mean over seeds, the standard deviation, and each figure."""
    each = ", ".join(f"{figure:.1f}" for figure in figures)
    deviation = statistics.stdev(figures) if len(figures) > 1 else 0.0
    return f"{statistics.mean(figures):.1f} ± {deviation:.1f} ({each})"


def draw(machine: TuringMachine, path: Path) -> None:
    """Draw input, output and where both heads look while a machine copies one sequence."""
    examples = make("copy", LONGEST, 1, torch.Generator().manual_seed(1))
    reads, writes = machine.trace(examples.inputs)
    output = machine(examples.inputs).sigmoid().detach()[0]
    # Rows are on a circle: the last one is also row -1.
    num_rows = reads.size(1)
    used = (torch.cat([reads, writes]).argmax(1) + num_rows // 2) % num_rows - num_rows // 2
    rows = torch.arange(int(used.min()) - 2, int(used.max()) + 3)
    panels = {
        "input": (examples.inputs[0], 0),
        "output": (output, 0),
        "written row": (writes[:, rows % num_rows], int(rows[0])),
        "read row": (reads[:, rows % num_rows], int(rows[0])),
    }
    with drawing({"svg.hashsalt": "tfm", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 8), layout="constrained")
        heights = [panel.size(1) for panel, _ in panels.values()]
        axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=heights)
        for axis, (label, (panel, first)) in zip(axes, panels.items(), strict=True):
            extent = (-0.5, len(panel) - 0.5, first + panel.size(1) - 0.5, first - 0.5)
            style = {"aspect": "auto", "cmap": "Greys", "vmin": 0, "vmax": 1}
            axis.imshow(panel.mT.numpy(), extent=extent, interpolation="none", **style)
            axis.set_ylabel(label)
        axes[-1].set_xlabel("step: 20 vectors, a mark, then 20 steps to write them")
        with atomic_write(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
