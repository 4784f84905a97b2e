"""What the runners share: settings, batches, and the clock. Needs torch and numpy alone.

A runner trains one library's model, step by step, on batches that `compare.py` wrote, and leaves
one JSON object. It runs in that library's own environment.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # as tfm numbers them

DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
ADAM_BETAS = (0.9, 0.98)
ADAM_EPSILON = 1e-9

# A figure of the loss is the mean over so many steps.
_WINDOW = 50


class Shape(NamedTuple):
    """How large a model is."""

    num_layers: int  # of the encoder, and of the decoder
    d_model: int
    d_ff: int
    num_heads: int


SHAPES = {"small": Shape(3, 256, 1024, 4), "base": Shape(6, 512, 2048, 8)}


class Pairs(NamedTuple):
    """A batch of sentence pairs, padded at the end.

    Attributes:
        rows: [B] which pairs of the dataset.
        source: [B, S] token ids, each sentence closed by EOS.
        source_lengths: [B] lengths of the sources, EOS included.
        target: [B, T + 1] token ids, each sentence opened by BOS and closed by EOS.
        num_tokens: Target tokens that are not padding, EOS included.
    """

    rows: np.ndarray
    source: torch.Tensor
    source_lengths: torch.Tensor
    target: torch.Tensor
    num_tokens: int


class Loss(NamedTuple):
    """Losses of a step in nats a target token, as a library tells them."""

    smoothed: float
    nll: float | None = None  # without label smoothing


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to train, and for how long."""

    batches: Path
    out: Path
    data: Path
    arch: str
    precision: str
    steps: int
    untimed_steps: int
    learning_rate: float
    warmup_steps: int
    seed: int

    @property
    def shape(self) -> Shape:
        """The model's."""
        return SHAPES[self.arch]

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        with np.load(self.batches) as stored:
            return int(stored["vocab_size"])

    def autocast(self) -> torch.autocast:
        """Run matrix products in the precision asked for."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 1: a linear rise, then step^-0.5."""
        return self.learning_rate * min(step / self.warmup_steps, (self.warmup_steps / step) ** 0.5)


def read_settings(description: str | None) -> Settings:
    """The command line of a runner."""
    parser = argparse.ArgumentParser(description=description)
    add_settings(parser)
    parser.add_argument("--batches", type=Path, required=True, help="as compare.py wrote them")
    parser.add_argument("--out", type=Path, required=True, help="the JSON to write")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    return Settings(**vars(parser.parse_args()))


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The settings that the driver hands on."""
    parser.add_argument("--data", type=Path, required=True, help="a dataset of tfm prepare")
    parser.add_argument("--arch", choices=SHAPES, default="small")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    parser.add_argument("--untimed-steps", type=int, default=5, help="steps before them")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at its peak")
    parser.add_argument("--warmup-steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give all parameters a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def measure(
    settings: Settings,
    step: Callable[[Pairs, float], Loss],
    *,
    version: str,
    parameters: Iterator[torch.nn.Parameter],
) -> None:
    """Train, time and write what came out.

    Batches are padded before the clock runs.

    Args:
        settings: What to train.
        step: Trains on a batch at a learning rate, to the updated weights.
        version: The library and its version.
        parameters: The model's, each once.
    """
    num_parameters = sum(p.numel() for p in parameters if p.requires_grad)
    seconds, cpu_seconds, num_tokens = [], 0.0, 0
    losses = []
    for number, pairs in enumerate(_batches(settings), start=1):
        cpu_started, started = time.process_time(), time.perf_counter()
        losses.append(step(pairs, settings.rate(number)))
        if number > settings.untimed_steps:
            seconds.append(time.perf_counter() - started)
            cpu_seconds += time.process_time() - cpu_started
            num_tokens += pairs.num_tokens
    results = {
        "version": version,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "arch": settings.arch,
        "precision": settings.precision,
        "num_parameters": num_parameters,
        "steps": len(seconds),
        "num_tokens": num_tokens,
        "seconds": sum(seconds),
        "cpu_seconds": cpu_seconds,
        "tokens_per_second": num_tokens / sum(seconds),
        "tokens_per_cpu_second": num_tokens / cpu_seconds,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "loss": _window_means([loss.smoothed for loss in losses]),
        "nll": _window_means([loss.nll for loss in losses if loss.nll is not None]),
    }
    settings.out.write_text(json.dumps(results) + "\n")


def _window_means(losses: list[float]) -> list[float]:
    """Means of the windows that end at multiples of its length, and of the last window."""
    ends = sorted({*range(_WINDOW, len(losses), _WINDOW), len(losses)} - {0})
    windows = [losses[max(0, end - _WINDOW) : end] for end in ends]
    return [sum(window) / len(window) for window in windows]


def _batches(settings: Settings) -> Iterator[Pairs]:
    with np.load(settings.batches) as file:
        stored = dict(file)
    sides = [(stored[side], stored[f"{side}_lengths"]) for side in ("source", "target")]
    first, tokens = 0, [0, 0]
    for size in stored["sizes"][: settings.untimed_steps + settings.steps].tolist():
        padded = []
        for side, (ids, all_lengths) in enumerate(sides):
            lengths = all_lengths[first : first + size]
            end = tokens[side] + int(lengths.sum())
            padded += [_padded(ids[tokens[side] : end], lengths), lengths]
            tokens[side] = end
        source, source_lengths, target, target_lengths = map(torch.from_numpy, padded)
        yield Pairs(
            rows=stored["rows"][first : first + size],
            source=source,
            source_lengths=source_lengths,
            target=target,
            num_tokens=int(target_lengths.sum()) - size,  # BOS is not predicted
        )
        first += size


def _padded(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Lay sentences that follow each other into the rows of a matrix."""
    matrix = np.full((len(lengths), int(lengths.max())), PAD, dtype=np.int64)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = ids
    return matrix
