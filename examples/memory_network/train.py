"""Train memory networks and a Transformer to answer questions about stories, and compare them.

    python examples/memory_network/train.py

Results are in results.json beside this script; these are not computed again, so that the same
command continues after an interruption. The tables are printed.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from networks import EMPTY, INITIAL_STD, Batch, MemoryNetwork, Transformer, encode_positions
from stories import FROGS, FROGS_TASK, TASKS, Story, make
from torch import nn

from tfm.config import OptimizerConfig
from tfm.reporting import Progress
from tfm.storage.files import write_json
from tfm.training.optimizer import Adam

HERE = Path(__file__).parent
# The settings of the paper (§4.2) for 1,000 stories; the Transformer's rate is not tuned.
_BATCH_SIZE = 32
_CLIP_NORM = 40.0
_RATE, _LINEAR_START_RATE, _TRANSFORMER_RATE = 0.01, 0.005, 1e-3
_EPOCHS_TO_HALVE = 25
_NUM_LINEAR_EPOCHS = 20
_EMPTY_FRACTION = 0.1


@dataclass(frozen=True)
class System:
    """What to train: a memory network, or the Transformer if it has no hops."""

    num_hops: int = 0
    linear_start: bool = False
    temporal: bool = True
    std: float = INITIAL_STD  # of initial weights
    tasks: tuple[int, ...] = tuple(TASKS)  # where the comparison is of interest


SYSTEMS = {
    "1 hop": System(1, linear_start=True),
    "2 hops": System(2, linear_start=True),
    "3 hops": System(3, linear_start=True),
    "3 hops, no linear start": System(3, tasks=(2, 16)),
    "3 hops, no temporal encoding": System(3, linear_start=True, temporal=False, tasks=(2, 16)),
    "3 hops, larger initial weights": System(
        3, linear_start=True, std=2 * INITIAL_STD, tasks=(16,)
    ),
    "Transformer": System(),
}


class Task:
    """Stories of one task as tensors: 9 of 10 to train, the others to validate, and a test set."""

    def __init__(self, number: int, num_stories: int) -> None:
        self.number = number
        stories = make(number, 2 * num_stories, seed=number)
        shown = [FROGS] if number == FROGS_TASK else []
        told = {s for each in stories + shown for s in (*each.sentences, each.question)}
        sentences = ["", *sorted(told)]
        text = " ".join([*sentences, *(story.answer for story in stories)])
        self.words = sorted(set(text.split()))
        self._word_index = {word: index for index, word in enumerate(self.words)}
        self._sentence_index = {sentence: index for index, sentence in enumerate(sentences)}
        ids = [[self._word_index[word] for word in each.split()] for each in sentences]
        self.bags = encode_positions(ids, len(self.words))
        self._longest = max(len(story.sentences) for story in stories)
        self.num_empty = max(1, self._longest // 5)  # slots for empty sentences
        self.num_slots = self._longest + self.num_empty
        num_train = num_stories - num_stories // 10
        self.train = self.batch(stories[:num_train])
        self.valid = self.batch(stories[num_train:num_stories])
        self.test = self.batch(stories[num_stories:])

    def batch(self, stories: list[Story]) -> Batch:
        """Return stories as tensors."""
        slots = torch.full((len(stories), self._longest), EMPTY)
        for row, story in zip(slots, stories, strict=True):
            ids = [self._sentence_index[sentence] for sentence in reversed(story.sentences)]
            row[: len(ids)] = torch.tensor(ids)
        return Batch(
            torch.tensor([self._sentence_index[story.question] for story in stories]),
            slots,
            torch.tensor([len(story.sentences) for story in stories]),
            torch.tensor([self._word_index[story.answer] for story in stories]),
        )


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
    for seed in arguments.seeds:
        for number, task in tasks.items():
            for name in arguments.systems:
                system, key = SYSTEMS[name], f"{number} {name}, seed {seed}"
                if number in system.tasks and key not in results:
                    network, seconds = train(
                        task, system, seed=seed, num_epochs=arguments.epochs, title=key
                    )
                    results[key] = {**_result(task, network), "cpu_seconds": round(seconds, 1)}
                    write_json(path, results)
    print("\n".join([*table_lines(results), "", *attention_lines(results)]))


def train(
    task: Task, system: System, *, seed: int, num_epochs: int, title: str
) -> tuple[nn.Module, float]:
    """Return a trained network, and the seconds of one core that it took."""
    torch.manual_seed(seed)
    start = time.process_time()
    with Progress(title, total=None, unit="epochs") as bar:
        if system.num_hops:
            network: nn.Module = _train_memory_network(task, system, num_epochs, bar)
        else:
            network = Transformer(task.bags, task.num_slots)
            adam = Adam(network.parameters(), OptimizerConfig())
            for epoch in range(num_epochs):
                loss = _epoch(network, task, _TRANSFORMER_RATE * _decay(epoch), adam)
                bar.update(1, [f"loss {loss:.4f}"])
    network.eval()
    return network, time.process_time() - start


def _train_memory_network(
    task: Task, system: System, num_epochs: int, bar: Progress
) -> MemoryNetwork:
    """Train with softmax; if there is a linear start, first without, and all at a lower rate."""
    network = MemoryNetwork(
        task.bags,
        task.num_slots,
        num_hops=system.num_hops,
        temporal=system.temporal,
        std=system.std,
    )
    rate = _RATE
    if system.linear_start:
        rate = _LINEAR_START_RATE
        network.is_linear = True
        for _ in range(min(num_epochs, _NUM_LINEAR_EPOCHS)):
            loss = _epoch(network, task, rate)
            bar.update(1, [f"linear, loss {loss:.4f}"])
        network.is_linear = False
    for epoch in range(num_epochs):
        loss = _epoch(network, task, rate * _decay(epoch))
        bar.update(1, [f"loss {loss:.4f}"])
    return network


def _decay(epoch: int) -> float:
    """Return the factor of the learning rate: halved every 25 epochs."""
    return float(0.5 ** (epoch // _EPOCHS_TO_HALVE))


def _epoch(network: nn.Module, task: Task, rate: float, adam: Adam | None = None) -> float:
    """Train on each story once, in random order, and return the mean loss.

    Without Adam, the update is that of stochastic gradient descent.
    """
    network.train()
    total = 0.0
    order = torch.randperm(len(task.train.answers))
    for indices in order.split(_BATCH_SIZE):
        batch = add_empty(task.train.rows(indices), task.num_empty)
        # The sum, as the rate and the norm to clip at are those of sums over a batch.
        loss = F.cross_entropy(network(batch), batch.answers, reduction="sum")
        network.zero_grad()
        loss.backward()
        if adam is None:
            _descend(network, rate)
        else:
            adam.step(adam.gradients(), rate)
        total += loss.item()
    return total / len(order)


@torch.no_grad()
def _descend(network: nn.Module, rate: float) -> None:
    """Take one step of gradient descent; the gradient of each matrix is clipped on its own."""
    for parameter in network.parameters():
        if (gradient := parameter.grad) is not None:
            norms = torch.linalg.vector_norm(gradient, dim=(-2, -1), keepdim=True)
            parameter -= rate * gradient * (_CLIP_NORM / norms).clamp(max=1)


def add_empty(batch: Batch, num_empty: int) -> Batch:
    """Insert empty sentences at random, at most num_empty per story (random noise, §4.1).

    The temporal encoding then cannot rely on exact places.
    """
    num_stories, longest = batch.slots.shape
    is_empty = torch.rand(num_stories, longest + num_empty) < _EMPTY_FRACTION
    is_empty &= is_empty.cumsum(1) <= num_empty
    places = torch.arange(longest + num_empty) - is_empty.cumsum(1)  # in the story
    in_story = places < batch.num_slots[:, None]
    slots = batch.slots.gather(1, places.clamp(0, longest - 1))
    slots = slots.masked_fill(is_empty | ~in_story, EMPTY)
    return replace(batch, slots=slots, num_slots=in_story.sum(1))


@torch.no_grad()
def accuracy(network: nn.Module, batch: Batch) -> float:
    """Return the fraction of questions that are answered correctly."""
    return float((network(batch).argmax(1) == batch.answers).double().mean())


@torch.no_grad()
def _result(task: Task, network: nn.Module) -> dict[str, Any]:
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
    lines = [
        "| system | " + " | ".join(f"task {number}" for number in TASKS) + " | CPU seconds |",
        "|---|" + "---|" * (len(TASKS) + 1),
    ]
    for name in SYSTEMS:
        by_task = {
            number: [
                run
                for key, run in sorted(results.items())
                if key.startswith(f"{number} {name}, seed ")
            ]
            for number in TASKS
        }
        runs = [run for each in by_task.values() for run in each]
        if runs:
            cells = [_cell([100 * run["test"] for run in each]) for each in by_task.values()]
            seconds = statistics.mean(run["cpu_seconds"] for run in runs)
            lines.append(f"| {name} | {' | '.join(cells)} | {seconds:.0f} |")
    return lines


def _cell(figures: list[float]) -> str:
    if not figures:
        return ""
    each = ", ".join(f"{figure:.1f}" for figure in figures)
    return f"{statistics.median(figures):.1f} ({each})"


def attention_lines(results: dict[str, Any]) -> list[str]:
    """Return a Markdown table of attention to the frogs, by the best network with three hops."""
    prefix = f"{FROGS_TASK} 3 hops"
    runs = {key: run for key, run in results.items() if key.startswith(prefix)}
    if not runs:
        return []
    best = max(runs, key=lambda key: float(runs[key]["valid"]))
    frogs = runs[best]["frogs"]
    lines = [
        "| story | " + " | ".join(f"hop {hop}" for hop in (1, 2, 3)) + " |",
        "|---|---|---|---|",
    ]
    for sentence, *weights in zip(FROGS.sentences, *frogs["attention"], strict=True):
        lines.append(f"| {sentence}. | " + " | ".join(f"{w:.2f}" for w in weights) + " |")
    answer = f"{FROGS.question}? {frogs['answer']} (correct: {FROGS.answer}); task {best}"
    return [*lines, "", answer]


if __name__ == "__main__":
    main()
