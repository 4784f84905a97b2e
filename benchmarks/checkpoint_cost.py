"""Measure the cost of saving checkpoints, in the foreground and in the background.

Save a model of a preset's size with Adam's state in both ways by turns, and print the pause of
training and the time until all is on disk: of the first round, which allocates memory, and the
medians of the others. During a background save, the main thread multiplies matrices in place of
training; its speed is compared with the speed without a save:

    .venv/bin/python benchmarks/checkpoint_cost.py --folder /tmp/checkpoint-cost
    .venv/bin/python benchmarks/checkpoint_cost.py --arch tiny --pieces 8000 --folder /tmp/x
"""

import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from tfm.config import PRESETS, run_config
from tfm.model.build import new_model
from tfm.storage.checkpoint.model_folder import ModelInfo, check_model, load_training_state
from tfm.storage.checkpoint.run_folder import checkpoints
from tfm.storage.saving import Saver

_MIN_SAVE_SECONDS = 0.01
_MATRIX_SIZE = 1024  # one product takes some hundredths of a second


def main(
    folder: Annotated[Path, typer.Option(help="New folder to save to; removed at the end.")],
    arch: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = "big",
    pieces: Annotated[int, typer.Option(help="Size of the joint vocabulary.")] = 37_000,
    rounds: Annotated[int, typer.Option(help="Number of rounds after the first.", min=1)] = 5,
) -> None:
    """Measure both ways of saving."""
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists: choose another")
    torch.set_num_threads(1)
    run = run_config(arch, {"training": {"keep_last": 1, "keep_best": 0, "average_last": 1}})
    model = new_model(run.model, source_vocab_size=pieces, target_vocab_size=pieces)
    weights = dict(model.named_parameters())
    state = _adam_state(list(weights.values()))
    info = ModelInfo(
        run=run, source="en", target="de", vocab_sizes=(pieces, pieces), fingerprint="0" * 64,
        data_dir="data/x", step=0,
    )  # fmt: skip
    num_bytes = 3 * sum(4 * weight.numel() for weight in weights.values())
    print(f"{arch}, {pieces:,} pieces: {num_bytes / 1e9:.2f} GB per checkpoint, with Adam's state")
    idle_speed = _products_per_second(lambda: False, seconds=2.0)
    savers = {way: Saver(folder / way, background=way == "background") for way in WAYS}
    timings: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    try:
        for step in range(1, rounds + 2):
            for way, saver in savers.items():
                timings[way].append(_time_save(saver, info, step, weights, state, idle_speed))
        for saver in savers.values():
            saver.finish()
        newest = checkpoints(folder / WAYS[0])[-1]
        print(f"verifying it before resuming: {_seconds(check_model, newest):.2f} s")
        print(f"reading its training state: {_seconds(load_training_state, newest):.2f} s")
    finally:
        shutil.rmtree(folder)
    print("| | pause, s | written after, s | MB/s | training during the save |")
    print("|---|---|---|---|---|")
    for way, rows in timings.items():
        print(_row(f"{way}, first", rows[:1], num_bytes))
        print(_row(f"{way}, median of {rounds}", rows[1:], num_bytes))


WAYS = ("foreground", "background")


def _adam_state(weights: list[Tensor]) -> dict[str, Any]:
    """Return a training state like that of Adam after a step."""
    moments = {
        number: {
            "step": torch.tensor(1.0),
            "exp_avg": torch.randn_like(weight, requires_grad=False),
            "exp_avg_sq": torch.rand_like(weight, requires_grad=False),
        }
        for number, weight in enumerate(weights)
    }
    return {"trainer": {"optimizer": {"state": moments, "param_groups": []}}}


def _time_save(
    saver: Saver,
    info: ModelInfo,
    step: int,
    weights: dict[str, Tensor],
    state: dict[str, Any],
    idle_speed: float,
) -> tuple[float, ...]:
    """Return the pause and the time to disk in seconds, and the relative speed during the save."""
    info = ModelInfo(**{**vars(info), "step": step})
    started = time.perf_counter()
    saver.save(info, weights, state, {"bpe.model": b"subword"})
    pause = time.perf_counter() - started
    waiting = threading.Thread(target=saver.wait)
    waiting.start()
    waiting.join(_MIN_SAVE_SECONDS)  # ends at once after a save in the foreground
    speed = _products_per_second(waiting.is_alive) / idle_speed if waiting.is_alive() else 0.0
    return pause, time.perf_counter() - started, speed


def _products_per_second(is_active: Callable[[], bool], *, seconds: float = 0.0) -> float:
    """Return the matrix products per second, for a time or while something is active."""
    matrix = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds or is_active():
        matrix @ matrix
        count += 1
    return count / (time.perf_counter() - started)


def _row(label: str, timings: list[tuple[float, ...]], num_bytes: int) -> str:
    pause, written, speed = (statistics.median(column) for column in zip(*timings, strict=True))
    shown = f"{speed:.0%} of its speed" if speed else "waits"
    return f"| {label} | {pause:.2f} | {written:.2f} | {num_bytes / written / 1e6:,.0f} | {shown} |"


def _seconds(function: Callable[[Path], object], path: Path) -> float:
    started = time.perf_counter()
    function(path)
    return time.perf_counter() - started


if __name__ == "__main__":
    typer.run(main)
