"""Where the time of training and decoding goes: kernels, launches, gaps, the host."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import torch
from common import WHOLE_BATCH, Setup, new_training, result_of, run_step, slot_engine
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tfm.backends.cuda_graphs import recorded
from tfm.config import SearchConfig
from tfm.stages.bench.measurement import synchronize

_NUM_TOP = 20
_GAP_MICROSECONDS = 10.0

Interval = tuple[float, float]


def training(setup: Setup) -> dict[str, Any]:
    """Profile five training steps of base, each one microbatch."""
    num_untimed, num_steps = (1, 1) if setup.dry_run else (10, 5)
    run = setup.run_config("base", batching=WHOLE_BATCH, training={"kernels": "fast"})
    trainer = new_training(setup, run, "profile").trainer
    batches = trainer.batches()
    for _ in range(num_untimed):
        trainer.step(next(batches))
    device = torch.device(setup.device)
    synchronize(device)
    with _new_profile(setup) as found:
        for _ in range(num_steps):
            trainer.step(next(batches))
        synchronize(device)
    return _result(setup, found, num_steps)


def decoding(setup: Setup) -> dict[str, Any]:
    """Profile 200 steps of slots, and compute the fraction of slots with an unfinished sentence."""
    first, num_steps = (2, 4) if setup.dry_run else (50, 200)
    steps = _SlotSteps(_new_profile(setup), first, num_steps)
    lines = setup.lines() * (1 if setup.dry_run else 16)
    config = SearchConfig(beam_size=4)
    with mock.patch("tfm.search.slot_search.recorded", steps.recorded):
        run_dir = setup.scratch / "multi30k"
        engine = slot_engine(setup, run_dir, "fp32" if setup.dry_run else "bf16")
        engine.best(lines, config)  # compiles and captures
        steps.number = 0
        engine.best(lines, config)
    result = _result(setup, steps.profile, steps.num_steps)
    occupancy = torch.stack(steps.occupancies).mean().item()
    result["summary"] += f", {occupancy:.0%} of the slots in use"
    return {**result, "occupancy": occupancy}


class _SlotSteps:
    """Profiles some steps of slots, and counts the slots in use in the others.

    Args:
        found: The profile.
        first: The first step to profile; steps are counted as soon as `number` is 0.
        num_steps: How many to profile.
    """

    def __init__(self, found: profile, first: int, num_steps: int) -> None:
        self.profile, self.first, self.num_steps = found, first, num_steps
        self.number: int | None = None
        self.occupancies: list[Tensor] = []

    def recorded(self, function: Any, device: torch.device) -> Callable[[], None]:
        """Return what `tfm.backends.cuda_graphs.recorded` returns, counted."""
        step, beams = recorded(function, device), function.__self__

        def counted() -> None:
            if self.number is None:
                return step()
            self.number += 1
            if self.number == self.first:
                synchronize(device)
                self.profile.start()
            step()
            if self.number == self.first + self.num_steps - 1:
                synchronize(device)
                self.profile.stop()
            elif not self.first <= self.number < self.first + self.num_steps:
                self.occupancies.append(beams.is_open.float().mean())
            return None

        return counted


def _new_profile(setup: Setup) -> profile:
    on_gpu = [] if setup.dry_run else [ProfilerActivity.CUDA]
    return profile(activities=[ProfilerActivity.CPU, *on_gpu])


def _result(setup: Setup, found: profile, num_steps: int) -> dict[str, Any]:
    """Summarize a profile of some steps: kernels of a GPU, or operations in a dry run."""
    events: Any = found.events()  # type: ignore[no-untyped-call]
    events = [each for each in events if not each.is_user_annotation]
    if setup.dry_run:
        kernels = [each for each in events if not each.cpu_children]
    else:
        kernels = [each for each in events if each.device_type == DeviceType.CUDA]
    intervals = [(each.time_range.start, each.time_range.end) for each in kernels]
    seconds: Counter[str] = Counter()
    for each, (start, end) in zip(kernels, intervals, strict=True):
        seconds[each.name] += (end - start) / 1e6
    counts = Counter(each.name for each in kernels)
    busy, gaps = busy_and_gaps(intervals)
    total = busy + sum(gaps)
    long_gaps = [gap for gap in gaps if gap > _GAP_MICROSECONDS]
    host = sorted(found.key_averages(), key=lambda each: -each.self_cpu_time_total)[:_NUM_TOP]
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=40), file=sys.stderr)
    result = result_of(
        [],
        launches_per_step=len(kernels) / num_steps,
        busy_share=busy / total,
        milliseconds_per_step=total / 1e3 / num_steps,
        gaps_per_step=len(long_gaps) / num_steps,
        gap_milliseconds_per_step=sum(long_gaps) / 1e3 / num_steps,
        kernels=[
            {"name": name, "milliseconds": 1e3 * value / num_steps, "calls": counts[name]}
            for name, value in seconds.most_common(_NUM_TOP)
        ],
        host=[{"name": each.key, "ms": each.self_cpu_time_total / 1e3} for each in host],
        needs_gpu=setup.dry_run,
    )
    result["summary"] = (
        f"{result['milliseconds_per_step']:.2f} ms a step, busy {result['busy_share']:.0%}, "
        f"{result['launches_per_step']:,.0f} launches, {result['gaps_per_step']:,.0f} gaps of more "
        f"than {_GAP_MICROSECONDS:.0f} µs: {result['gap_milliseconds_per_step']:.2f} ms"
    )
    return result


def busy_and_gaps(intervals: Iterable[Interval]) -> tuple[float, list[float]]:
    """Return the time that the union of intervals covers, and the gaps between its parts."""
    busy, gaps, last = 0.0, list[float](), None
    for start, end in sorted(intervals):
        if last is not None and start > last:
            gaps.append(start - last)
        begin = start if last is None else max(start, last)
        busy += max(0.0, end - begin)
        last = end if last is None else max(last, end)
    return busy, gaps


if __name__ == "__main__":
    run_step(training, decoding)
