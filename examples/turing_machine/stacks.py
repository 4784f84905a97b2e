"""Train networks with stacks and an LSTM to predict words, and compare them.

    python examples/turing_machine/stacks.py

Results are in stacks.json beside this script; these are not computed again, so that the same
command continues after an interruption. The table is printed, the picture is stacks.svg.
"""

import argparse
import itertools
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from machines import LSTM
from torch import Tensor, nn
from train import HERE, mean_and_deviation

from tfm.config import OptimizerConfig
from tfm.disk.files import atomic_write, write_json
from tfm.plotting import Figure, drawing
from tfm.reporting import Progress
from tfm.training.optimizer import Adam

SYMBOLS = {"a^n b^n": "$ab", "reversal": "$ab=", "brackets": "$([)]"}  # "$" begins and ends a word
_OPENING = torch.tensor([1, 2])  # brackets
_OPENING_RATE = 0.6  # where a bracket could also close
LONGEST = 19  # the size of words in training
SIZES = {"1 to 19": range(1, 20), "20 to 60": range(20, 61), "61 to 120": range(61, 121, 3)}
_WORDS_PER_SIZE = 10
_HIDDEN_SIZE, _NUM_STACKS, _DEPTH = 40, 10, 2  # the paper's for counting (§5.1)
_EMPTY = -1.0
_BATCH_SIZE, _CLIP_NORM = 16, 0.1
# At first; the last third of the steps goes down to 0.
_LEARNING_RATES = {"stacks": 1e-2, "stacks, R = 0": 1e-2, "lstm": 3e-3}


class StackNetwork(nn.Module):
    """A recurrent network that pushes to and pops from stacks (Joulin and Mikolov 2015, §4.2).

    Its state h_t = σ(U x_t + R h_(t-1) + P s_(t-1)) sees the two upper values of each stack
    (equation 6). Without R, as in §5.1, the stacks are its only memory.

    Attributes:
        is_rounded: Whether each stack either pushes or pops ("rounding").
    """

    def __init__(self, num_symbols: int, *, is_recurrent: bool) -> None:
        super().__init__()
        self.from_input = nn.Linear(num_symbols, _HIDDEN_SIZE)
        self.from_stacks = nn.Linear(_NUM_STACKS * _DEPTH, _HIDDEN_SIZE, bias=False)
        self.from_state = nn.Linear(_HIDDEN_SIZE, _HIDDEN_SIZE, bias=False)
        self.to_stacks = nn.Linear(_HIDDEN_SIZE, 2 * _NUM_STACKS)
        self.to_output = nn.Linear(_HIDDEN_SIZE, num_symbols)
        self.is_recurrent, self.is_rounded = is_recurrent, False

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, T, symbols] to logits [B, T, symbols] of the next symbol."""
        return self.run(inputs)[0]

    def run(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, and [B, T, 2, stacks]: how much each stack pushes, and its top."""
        batch_size, length, _ = inputs.shape
        empty = inputs.new_full((batch_size, _NUM_STACKS, 1), _EMPTY)
        stacks = empty.repeat(1, 1, max(_DEPTH, length))
        state = inputs.new_zeros(batch_size, _HIDDEN_SIZE)
        states, history = [], []
        for x in self.from_input(inputs).unbind(1):
            x = x + self.from_stacks(stacks[..., :_DEPTH].flatten(1))
            state = (x + self.from_state(state) if self.is_recurrent else x).sigmoid()
            # The softmax over two actions (equation 3) is the sigmoid of their difference.
            push, value = self.to_stacks(state).sigmoid().chunk(2, dim=1)
            push = push.round() if self.is_rounded else push
            pushed = torch.cat([value[..., None], stacks[..., :-1]], dim=2)
            popped = torch.cat([stacks[..., 1:], empty], dim=2)
            stacks = torch.lerp(popped, pushed, push[..., None])  # equations 4 and 5
            states.append(state)
            history.append(torch.stack([push, stacks[..., 0]], dim=1))
        return self.to_output(torch.stack(states, dim=1)), torch.stack(history, dim=1)


def make(language: str, n: int, random_: random.Random, num_words: int) -> tuple[Tensor, ...]:
    """Return B words of size n: inputs [B, T, symbols], and the symbol after each, [B, T].

    The third tensor [B, T] says whether that symbol follows from those before (Table 1).
    """
    words = [f"${_draw_word(language, n, random_)}$" for _ in range(num_words)]
    ids = torch.tensor([[SYMBOLS[language].index(symbol) for symbol in word] for word in words])
    targets = ids[:, 1:]
    if language == "brackets":  # whether one closes is free, but not which
        is_determined = ~torch.isin(targets, _OPENING)
    else:
        is_determined = (torch.arange(targets.size(1)) > n).expand_as(targets)
    return F.one_hot(ids[:, :-1], len(SYMBOLS[language])).float(), targets, is_determined


def _draw_word(language: str, n: int, random_: random.Random) -> str:
    if language == "a^n b^n":
        return "a" * n + "b" * n
    if language == "reversal":
        word = "".join(random_.choices("ab", k=n))
        return f"{word}={word[::-1]}"
    word, closing, num_opened = "", "", 0
    while num_opened < n or closing:
        if num_opened < n and (not closing or random_.random() < _OPENING_RATE):
            num_opened += 1
            bracket = random_.choice("([")
            closing += {"(": ")", "[": "]"}[bracket]
        else:
            bracket, closing = closing[-1], closing[:-1]
        word += bracket
    return word


def main() -> None:
    """Train what has no results yet, then print all; draw the networks of one seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of results and picture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # operations are small
    path = arguments.out / "stacks.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    drawn: dict[str, StackNetwork] = {}
    for seed, system, language in itertools.product(arguments.seeds, _LEARNING_RATES, SYMBOLS):
        if (key := f"{language} {system} {seed}") not in results:
            start = time.process_time()
            network = train(language, system, seed=seed, num_steps=arguments.steps)
            results[key] = {"cpu_seconds": round(time.process_time() - start)}
            results[key]["right"] = right(network, language)
            if isinstance(network, StackNetwork):
                network.is_rounded = True
                results[key]["rounded"] = right(network, language)
                drawn.setdefault(language, network)
            write_json(path, results)
    if drawn:
        draw(drawn, arguments.out / "stacks.svg")
    print("\n".join(table_lines(results)))


def train(language: str, system: str, *, seed: int, num_steps: int) -> nn.Module:
    """Return a trained network."""
    torch.manual_seed(seed)
    random_ = random.Random(seed)
    size, is_recurrent = len(SYMBOLS[language]), system == "stacks"
    network = (
        LSTM(size, size) if system == "lstm" else StackNetwork(size, is_recurrent=is_recurrent)
    )
    optimizer = Adam(network.parameters(), OptimizerConfig(adam_beta2=0.999, adam_epsilon=1e-8))
    with Progress(f"{language} {system} seed {seed}", total=num_steps, unit="steps") as bar:
        for step in range(num_steps):
            # Words grow during the first third of the steps, as in §5.1.
            longest = min(LONGEST, 3 + 3 * LONGEST * step // num_steps)
            inputs, targets, _ = make(language, random_.randint(1, longest), random_, _BATCH_SIZE)
            loss = F.cross_entropy(network(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), _CLIP_NORM)
            rate = _LEARNING_RATES[system] * min(1.0, 3 * (1 - step / num_steps))
            optimizer.step(optimizer.gradients(), rate)
            bar.update(1)
    return network.eval()


@torch.no_grad()
def right(network: nn.Module, language: str) -> dict[str, float]:
    """Return the percentage of words whose determined symbols are all right, by size."""
    by_size = {}
    for n in itertools.chain(*SIZES.values()):
        inputs, targets, is_determined = make(language, n, random.Random(n), _WORDS_PER_SIZE)
        logits = network(inputs)
        if language == "brackets":
            logits[..., _OPENING] = -torch.inf
        is_right = ((logits.argmax(2) == targets) | ~is_determined).all(1)
        by_size[n] = 100 * float(is_right.double().mean())
    return {k: statistics.mean(by_size[n] for n in sizes) for k, sizes in SIZES.items()}


def table_lines(results: dict[str, Any]) -> list[str]:
    """Return a Markdown table of the percentage of right words: the mean ± deviation, and each."""
    lines = [f"| language | system | {' | '.join(SIZES)} | CPU seconds |", "|" + "---|" * 6]
    for language, system, kind in itertools.product(SYMBOLS, _LEARNING_RATES, ("right", "rounded")):
        start = f"{language} {system} "
        runs = [run for key, run in results.items() if key.startswith(start) and kind in run]
        if runs:
            cells = [mean_and_deviation([run[kind][sizes] for run in runs]) for sizes in SIZES]
            seconds = sum(run["cpu_seconds"] for run in runs) / len(runs)
            name = f"{system}, rounded" if kind == "rounded" else system
            lines.append(f"| {language} | {name} | {' | '.join(cells)} | {seconds:.0f} |")
    return lines


@torch.no_grad()
def draw(networks: dict[str, StackNetwork], path: Path) -> None:
    """Draw how much each stack pushes, and its top, for one word of each language."""
    with drawing({"svg.hashsalt": "tfm", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 7), layout="constrained")
        axes = figure.subplots(len(networks), 2, squeeze=False)
        for row, (language, network) in zip(axes, networks.items(), strict=True):
            inputs, *_ = make(language, 8, random.Random(1), 1)
            word = [SYMBOLS[language][i] for i in inputs[0].argmax(1)]
            for axis, panel in zip(row, network.run(inputs)[1][0].permute(1, 2, 0), strict=True):
                style = {"aspect": "auto", "cmap": "Greys", "vmin": panel.min().floor(), "vmax": 1}
                axis.imshow(panel.numpy(), interpolation="none", **style)
                axis.set_xticks(range(len(word)), word)
            row[0].set(ylabel="stack", title=f"{language}: pushes")
            row[1].set(title="top")
        with atomic_write(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
