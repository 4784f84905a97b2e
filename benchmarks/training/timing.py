"""Settings, batches and timing for the runners. Needs only torch and numpy.

A runner trains one library's model on batches that `compare.py` wrote, in that library's own
environment, and writes one JSON object.
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

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # token ids of tfm

DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
ADAM_BETAS = (0.9, 0.98)
ADAM_EPSILON = 1e-9

# Losses are reported as means over windows of N steps.
_WINDOW = 50


class Shape(NamedTuple):
    """The dimensions of a model."""

    num_layers: int  # of the encoder and of the decoder each
    d_model: int
    d_ff: int
    num_heads: int


SHAPES = {"small": Shape(3, 256, 1024, 4), "base": Shape(6, 512, 2048, 8)}


class Pairs(NamedTuple):
    """A batch of sentence pairs, padded at the end.

    Attributes:
        rows: [B] indices in the dataset.
        source: [B, S] token ids, with EOS at the end of each sentence.
        source_lengths: [B] lengths of the sources, including EOS.
        target: [B, T + 1] token ids, with BOS at the start and EOS at the end of each sentence.
        num_tokens: Number of target tokens, including EOS, without padding.
    """

    rows: np.ndarray
    source: torch.Tensor
    source_lengths: torch.Tensor
    target: torch.Tensor
    num_tokens: int


class Loss(NamedTuple):
    """Losses of a step in nats per target token, as the library reports them."""

    smoothed: float
    nll: float | None = None  # without label smoothing


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run."""

    batches: Path
    out: Path
    data: Path
    device: str  # "cpu" or "cuda"
    arch: str
    precision: str
    steps: int
    untimed_steps: int
    learning_rate: float
    warmup_steps: int
    seed: int

    @property
    def shape(self) -> Shape:
        """Dimensions of the model."""
        return SHAPES[self.arch]

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        with np.load(self.batches) as stored:
            return int(stored["vocab_size"])

    def autocast(self) -> torch.autocast:
        """Return a context that runs matrix products in the chosen precision."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16")

    def synchronize(self) -> None:
        """Wait for a GPU."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1: linear warm-up, then step^-0.5."""
        return self.learning_rate * min(step / self.warmup_steps, (self.warmup_steps / step) ** 0.5)


def read_settings(description: str | None) -> Settings:
    """Parse the command line of a runner."""
    parser = argparse.ArgumentParser(description=description)
    add_settings(parser)
    parser.add_argument(
        "--batches", type=Path, required=True, help="file of batches that compare.py wrote"
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    return Settings(**vars(parser.parse_args()))


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options that compare.py passes to the runners."""
    parser.add_argument("--data", type=Path, required=True, help="dataset folder of tfm prepare")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--arch", choices=SHAPES, default="small")
    parser.add_argument("--steps", type=int, default=20, help="number of timed steps")
    parser.add_argument(
        "--untimed-steps", type=int, default=5, help="number of steps before the timed ones"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--warmup-steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def measure(
    settings: Settings,
    step: Callable[[Pairs, float], Loss],
    *,
    version: str,
    parameters: Iterator[torch.nn.Parameter],
) -> None:
    """Train, measure the time of each step without its padding, and write the results.

    Args:
        settings: Settings of the run.
        step: Makes one training step on a batch with a learning rate.
        version: The library and its version.
        parameters: The model's parameters, each once.
    """
    num_parameters = sum(p.numel() for p in parameters if p.requires_grad)
    seconds, cpu_seconds, num_tokens = [], 0.0, 0
    losses = []
    for number, pairs in enumerate(_batches(settings), start=1):
        cpu_started, started = time.process_time(), time.perf_counter()
        losses.append(step(pairs, settings.rate(number)))
        settings.synchronize()
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
        "peak_memory_mb": _peak_memory_mb(settings.device),
        "loss": _window_means([loss.smoothed for loss in losses]),
        "nll": _window_means([loss.nll for loss in losses if loss.nll is not None]),
    }
    settings.out.write_text(json.dumps(results) + "\n")


def _peak_memory_mb(device: str) -> float:
    """Return the peak memory of tensors on a GPU, or of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _window_means(losses: list[float]) -> list[float]:
    """Return the means of the windows that end at multiples of N steps, and of the last one."""
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
            padded += [_pad(ids[tokens[side] : end], lengths), lengths]
            tokens[side] = end
        source, source_lengths, target, target_lengths = (
            torch.from_numpy(each).to(settings.device) for each in padded
        )
        yield Pairs(
            rows=stored["rows"][first : first + size],
            source=source,
            source_lengths=source_lengths,
            target=target,
            num_tokens=int(target_lengths.sum()) - size,  # BOS is not predicted
        )
        first += size


def _pad(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return concatenated sentences as a padded [B, T] matrix."""
    matrix = np.full((len(lengths), int(lengths.max())), PAD, dtype=np.int64)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = ids
    return matrix
