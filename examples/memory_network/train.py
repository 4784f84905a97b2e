"""Train memory networks and a Transformer to answer questions about stories, and compare them.

    python examples/memory_network/train.py

Results are in results.json beside this script; these are not computed again, so that the same
command continues after an interruption. The tables are printed.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from dataset import Task, add_empty
from networks import INITIAL_STD, Batch, MemoryNetwork, Transformer
from stories import FROGS, FROGS_TASK, TASKS

from tfm.config import OptimizerConfig
from tfm.disk.files import write_json
from tfm.reporting import Progress
from tfm.training.optimizer import Adam

Network = MemoryNetwork | Transformer
HERE = Path(__file__).parent
# The settings of the paper (§4.2) for 1,000 stories; the Transformer's rate is not tuned.
_BATCH_SIZE = 32
_CLIP_NORM = 40.0
_RATE, _LINEAR_START_RATE, _TRANSFORMER_RATE = 0.01, 0.005, 1e-3
_EPOCHS_TO_HALVE = 25
_NUM_LINEAR_EPOCHS = 20


@dataclass(frozen=True)
class System:
    """What to train: a memory network, or the Transformer if it has no hops."""

    num_hops: int = 0
    linear_start: bool = False
    temporal: bool = True
    std: float = INITIAL_STD  # of initial weights
    tasks: tuple[int, ...] = tuple(TASKS)  # where the comparison is of interest

    def rates(self, num_epochs: int) -> tuple[list[float], list[float]]:
        """Return the learning rates of the epochs without softmax, and those of all others."""
        rate = _RATE if self.num_hops else _TRANSFORMER_RATE
        linear = []
        if self.linear_start:
            rate = _LINEAR_START_RATE
            linear = [rate] * min(num_epochs, _NUM_LINEAR_EPOCHS)
        return linear, [rate * 0.5 ** (epoch // _EPOCHS_TO_HALVE) for epoch in range(num_epochs)]


SYSTEMS = {
    "1 hop": System(1, linear_start=True),
    "2 hops": System(2, linear_start=True),
    "3 hops": System(3, linear_start=True),
    "3 hops, no linear start": System(3, tasks=(2, 16)),
    "3 hops, no temporal encoding": System(3, linear_start=True, temporal=False, tasks=(2, 16)),
    "3 hops, larger initial weights": System(3, linear_start=True, std=0.2, tasks=(16,)),
    "Transformer": System(),
}


def main() -> None:
    """Train what has no results yet, then print all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", type=int, choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--stories", type=int, default=1_000, help="to train, and as many to test")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of results.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # operations are small
    path = arguments.out / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    tasks = {number: Task(number, arguments.stories) for number in arguments.tasks}
    for seed, number, name in product(arguments.seeds, tasks, arguments.systems):
        task, system, key = tasks[number], SYSTEMS[name], f"{number} {name}, seed {seed}"
        if number in system.tasks and key not in results:
            start = time.process_time()
            network = train(task, system, seed=seed, num_epochs=arguments.epochs, title=key)
            seconds = round(time.process_time() - start, 1)
            results[key] = {**_result(task, network), "cpu_seconds": seconds}
            write_json(path, results)
    print("\n".join([*table_lines(results), "", *attention_lines(results)]))


def train(task: Task, system: System, *, seed: int, num_epochs: int, title: str) -> Network:
    """Return a trained network."""
    torch.manual_seed(seed)
    network = _new_network(task, system)
    adam = None if system.num_hops else Adam(network.parameters(), OptimizerConfig())
    linear, others = system.rates(num_epochs)
    with Progress(title, total=len(linear) + num_epochs, unit="epochs") as bar:
        for epoch, rate in enumerate([*linear, *others]):
            if isinstance(network, MemoryNetwork):
                network.is_linear = epoch < len(linear)
            bar.update(1, [f"loss {_epoch(network, task, rate, adam):.4f}"])
    return network.eval()


def _new_network(task: Task, system: System) -> Network:
    if not system.num_hops:
        return Transformer(task.bags, task.num_slots)
    return MemoryNetwork(
        task.bags,
        task.num_slots,
        num_hops=system.num_hops,
        temporal=system.temporal,
        std=system.std,
    )


def _epoch(network: Network, task: Task, rate: float, adam: Adam | None) -> float:
    """Train on each story once, in random order, and return the mean loss.

    Without Adam, updates are those of stochastic gradient descent.
    """
    total = 0.0
    order = torch.randperm(len(task.train.answers))
    for indices in order.split(_BATCH_SIZE):
        batch = add_empty(task.train.rows(indices), task.num_empty)
        # The sum, as the rate and the norm to clip at are those of sums over a batch.
        loss = F.cross_entropy(network(batch), batch.answers, reduction="sum")
        network.zero_grad()
        loss.backward()
        if adam:
            adam.step(adam.gradients(), rate)
        else:
            _descend(network, rate)
        total += loss.item()
    return total / len(order)


@torch.no_grad()
def _descend(network: Network, rate: float) -> None:
    """Take one step of gradient descent; the gradient of each matrix is clipped on its own."""
    for parameter in network.parameters():
        if (gradient := parameter.grad) is not None:
            norms = torch.linalg.vector_norm(gradient, dim=(-2, -1), keepdim=True)
            parameter -= rate * gradient * (_CLIP_NORM / norms).clamp(max=1)


@torch.no_grad()
def accuracy(network: Network, batch: Batch) -> float:
    """Return the fraction of questions that are answered correctly."""
    return float((network(batch).argmax(1) == batch.answers).double().mean())


@torch.no_grad()
def _result(task: Task, network: Network) -> dict[str, Any]:
    """Return the accuracies of a network, and what a memory network answers about the frogs."""
    result: dict[str, Any] = {
        "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "train": accuracy(network, task.train),
        "valid": accuracy(network, task.valid),
        "test": accuracy(network, task.test),
    }
    if task.number == FROGS_TASK and isinstance(network, MemoryNetwork):
        logits, attention = network.run(task.batch([FROGS]))
        hops = attention[0, :, : len(FROGS.sentences)].flip(1)  # in the order of the story
        result["frogs"] = {
            "answer": task.words[int(logits.argmax())],
            "attention": [[round(weight, 3) for weight in hop] for hop in hops.tolist()],
        }
    return result


def table_lines(results: dict[str, Any]) -> list[str]:
    """Return a Markdown table of test accuracy in percent: the median over seeds, and all."""
    titles = ("system", *(f"task {number}" for number in TASKS), "CPU seconds")
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for name in SYSTEMS:
        cells, seconds = [], []
        for number in TASKS:
            start = f"{number} {name}, seed "
            runs = [run for key, run in sorted(results.items()) if key.startswith(start)]
            cells.append(_cell([100 * run["test"] for run in runs]))
            seconds += [run["cpu_seconds"] for run in runs]
        if seconds:
            lines.append(f"| {name} | {' | '.join(cells)} | {statistics.mean(seconds):.0f} |")
    return lines


def _cell(figures: list[float]) -> str:
    each = ", ".join(f"{figure:.1f}" for figure in figures)
    return f"{statistics.median(figures):.1f} ({each})" if figures else ""


def attention_lines(results: dict[str, Any]) -> list[str]:
    """Return a Markdown table of attention to the frogs, by the best network with three hops."""
    runs = {key: run for key, run in results.items() if key.startswith(f"{FROGS_TASK} 3 hops")}
    if not runs:
        return []
    best = max(runs, key=lambda key: float(runs[key]["valid"]))
    frogs = runs[best]["frogs"]
    lines = ["| story | hop 1 | hop 2 | hop 3 |", "|---|---|---|---|"]
    for sentence, *weights in zip(FROGS.sentences, *frogs["attention"], strict=True):
        lines.append(f"| {sentence}. | {' | '.join(f'{weight:.2f}' for weight in weights)} |")
    answer = f"{FROGS.question}? {frogs['answer']} (correct: {FROGS.answer}); task {best}"
    return [*lines, "", answer]


if __name__ == "__main__":
    main()
