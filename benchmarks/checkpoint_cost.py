"""What saving costs: the pause that training sees, in turn with training and in the background.

A model of the preset's size with Adam's state is saved in both ways in turn, and medians are
printed; the first round, in which memory is taken, is printed by itself. While the background
writes, the main thread multiplies matrices as training does, and its speed is compared with what it
is when nothing is written:

    .venv/bin/python benchmarks/checkpoint_cost.py --folder /tmp/checkpoint-cost
    .venv/bin/python benchmarks/checkpoint_cost.py --arch tiny --pieces 8000 --folder /tmp/x
"""

import shutil
import statistics
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

_SIDE = 1024  # of the matrices, so that one product takes some hundredths of a second


def main(
    folder: Annotated[Path, typer.Option(help="Where to save; removed at the end.")],
    arch: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = "big",
    pieces: Annotated[int, typer.Option(help="Size of the joint vocabulary.")] = 37_000,
    rounds: Annotated[int, typer.Option(help="Rounds after the first.", min=1)] = 5,
) -> None:
    """Time saving in both ways."""
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
    print(
        f"{arch}, {pieces:,} pieces: {num_bytes / 1e9:.2f} GB a checkpoint, Adam's state included"
    )
    idle = _products_a_second(lambda: False, seconds=2.0)
    savers = {way: Saver(folder / way, background=way == "background") for way in WAYS}
    timings: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    try:
        for step in range(1, rounds + 2):
            for way, saver in savers.items():
                timings[way].append(_timed(saver, info, step, weights, state, idle))
        for saver in savers.values():
            saver.finish()
        newest = checkpoints(folder / WAYS[0])[-1]
        print(f"checking it before it is gone on from: {_seconds(check_model, newest):.2f} s")
        print(f"reading its training state: {_seconds(load_training_state, newest):.2f} s")
    finally:
        shutil.rmtree(folder)
    print("| | pause, s | written after, s | MB/s | training meanwhile |")
    print("|---|---|---|---|---|")
    for way, found in timings.items():
        print(_row(f"{way}, first", found[:1], num_bytes))
        print(_row(f"{way}, median of {rounds}", found[1:], num_bytes))


WAYS = ("in turn", "background")


def _adam_state(weights: list[Tensor]) -> dict[str, Any]:
    """A state as the trainer's, of an optimizer that has made a step."""
    moments = {
        number: {
            "step": torch.tensor(1.0),
            "exp_avg": torch.randn_like(weight, requires_grad=False),
            "exp_avg_sq": torch.rand_like(weight, requires_grad=False),
        }
        for number, weight in enumerate(weights)
    }
    return {"trainer": {"optimizer": {"state": moments, "param_groups": []}}}


def _timed(
    saver: Saver,
    info: ModelInfo,
    step: int,
    weights: dict[str, Tensor],
    state: dict[str, Any],
    idle: float,
) -> tuple[float, ...]:
    """Seconds of pause, seconds until all is on the disk, and the speed of training meanwhile."""
    info = ModelInfo(**{**vars(info), "step": step})
    started = time.perf_counter()
    saver.save(info, weights, state, {"bpe.model": b"subword"})
    pause = time.perf_counter() - started
    share = _products_a_second(saver.is_writing) / idle if saver.is_writing() else 0.0
    return pause, time.perf_counter() - started, share


def _products_a_second(is_active: Callable[[], bool], *, seconds: float = 0.0) -> float:
    """Matrix products made in a second, for so long or as long as something goes on."""
    matrix = torch.randn(_SIDE, _SIDE)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds or is_active():
        matrix @ matrix
        count += 1
    return count / (time.perf_counter() - started)


def _row(label: str, found: list[tuple[float, ...]], num_bytes: int) -> str:
    pause, written, share = (statistics.median(column) for column in zip(*found, strict=True))
    shown = f"{share:.0%} of its speed" if share else "waits"
    return f"| {label} | {pause:.2f} | {written:.2f} | {num_bytes / written / 1e6:,.0f} | {shown} |"


def _seconds(work: Callable[[Path], object], path: Path) -> float:
    started = time.perf_counter()
    work(path)
    return time.perf_counter() - started


if __name__ == "__main__":
    typer.run(main)
