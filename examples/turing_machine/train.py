"""Train a neural Turing machine, an LSTM and a Transformer on three tasks, and compare them.

    python examples/turing_machine/train.py

Results are in results.json beside this script; these are not computed again, so that the same
command continues after an interruption. The table is printed, the picture is heads.svg.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
import torch.nn.functional as F
from machines import MACHINES, MachineName, TuringMachine, new_machine
from matplotlib.figure import Figure
from tasks import BITS, NUM_MARKS, TASKS, Examples, Task, make, random_length
from torch import nn

from tfm.config import OptimizerConfig
from tfm.reporting import Progress
from tfm.storage.files import atomic_write, write_json
from tfm.training.optimizer import Adam

HERE = Path(__file__).parent
LONGEST = 20  # in training
TEST_LENGTHS = (20, 40, 120)
_NUM_TESTS = 100
_BATCH_SIZE = 16
_CLIP_NORM = 10.0
_LEARNING_RATE = 1e-3  # not tuned, and the same for all machines


def main() -> None:
    """Train what has no results yet, then draw and print all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=MACHINES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of results and picture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # operations are small
    results_path = arguments.out / "results.json"
    results = json.loads(results_path.read_text()) if results_path.exists() else {}
    for seed in arguments.seeds:
        for task in arguments.tasks:
            for name in arguments.machines:
                if (key := f"{task} {name} {seed}") not in results:
                    machine, seconds = train(task, name, seed=seed, num_steps=arguments.steps)
                    results[key] = {
                        "steps": arguments.steps,
                        "seconds": round(seconds),
                        "parameters": sum(each.numel() for each in machine.parameters()),
                        "wrong": {
                            str(length): wrong_bits(machine, task, length)
                            for length in TEST_LENGTHS
                        },
                    }
                    write_json(results_path, results)
                    if isinstance(machine, TuringMachine) and task == "copy" and seed == 1:
                        draw(machine, arguments.out / "heads.svg")
    print("\n".join(table_lines(results)))


def train(task: Task, name: MachineName, *, seed: int, num_steps: int) -> tuple[nn.Module, float]:
    """Return a trained machine, and the seconds that it took."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    bits = BITS[task]
    machine = new_machine(name, bits + NUM_MARKS, bits)
    optimizer = Adam(machine.parameters(), OptimizerConfig(adam_beta2=0.999, adam_epsilon=1e-8))
    start, average = time.monotonic(), float("nan")
    with Progress(f"{task} {name} seed {seed}", total=num_steps, unit="steps") as bar:
        for step in range(num_steps):
            examples = make(task, random_length(task, LONGEST, random), _BATCH_SIZE, random)
            loss = F.binary_cross_entropy_with_logits(_answer(machine, examples), examples.answers)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(machine.parameters(), _CLIP_NORM)
            optimizer.step(optimizer.gradients(), _LEARNING_RATE)
            average = loss.item() if step == 0 else 0.99 * average + 0.01 * loss.item()
            bar.update(1, [f"loss {average:.4f}"])
    return machine, time.monotonic() - start


@torch.no_grad()
def wrong_bits(machine: nn.Module, task: Task, length: int) -> float:
    """Return the mean number of wrong bits in the answers of test sequences of a length."""
    random = torch.Generator().manual_seed(length)  # the same sequences for all machines
    total = 0
    for _ in range(_NUM_TESTS):
        examples = make(task, length, 1, random)
        total += int(((_answer(machine, examples) > 0) != (examples.answers > 0)).sum())
    return total / _NUM_TESTS


def _answer(machine: nn.Module, examples: Examples) -> torch.Tensor:
    """Return the logits [B, A, bits] of what a machine answers."""
    out: torch.Tensor = machine(examples.inputs)[:, -examples.answer_length :]
    return out


def table_lines(results: dict[str, Any]) -> list[str]:
    """Return a Markdown table of wrong bits per sequence: the median over seeds, and all."""
    lines = [
        "| task | machine | "
        + " | ".join(f"length {each}" for each in TEST_LENGTHS)
        + " | seconds |",
        "|---|---|" + "---|" * (len(TEST_LENGTHS) + 1),
    ]
    for task in TASKS:
        for name in MACHINES:
            runs = [run for key, run in results.items() if key.startswith(f"{task} {name} ")]
            if runs:
                cells = [_cell([run["wrong"][str(n)] for run in runs]) for n in TEST_LENGTHS]
                seconds = statistics.median(run["seconds"] for run in runs)
                lines.append(f"| {task} | {name} | {' | '.join(cells)} | {seconds:.0f} |")
    return lines


def _cell(figures: list[float]) -> str:
    each = ", ".join(f"{figure:.1f}" for figure in figures)
    return f"{statistics.median(figures):.1f} ({each})"


def draw(machine: TuringMachine, path: Path) -> None:
    """Draw input, output and where both heads look while a machine copies one sequence."""
    examples = make("copy", LONGEST, 1, torch.Generator().manual_seed(1))
    reads, writes = machine.trace(examples.inputs)
    output = machine(examples.inputs).sigmoid().detach()[0]
    seen = slice(0, int(max(reads.argmax(1).max(), writes.argmax(1).max())) + 4)
    panels = {
        "input": examples.inputs[0].mT,
        "output": output.mT,
        "written row": writes[:, seen].mT,
        "read row": reads[:, seen].mT,
    }
    with mpl.rc_context({"svg.hashsalt": "tfm", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 8), layout="constrained")
        heights = [len(panel) for panel in panels.values()]
        axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=heights)
        for axis, (label, panel) in zip(axes, panels.items(), strict=True):
            axis.imshow(
                panel.numpy(), aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="none"
            )
            axis.set_ylabel(label)
        axes[-1].set_xlabel("step: 20 vectors, a mark, then 20 steps to write them")
        with atomic_write(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
