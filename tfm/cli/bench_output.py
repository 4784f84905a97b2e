"""What benchmarks measured, as a terminal, or another program, reads it."""

import json
from typing import TYPE_CHECKING

from tfm.cli.output import print_rows

if TYPE_CHECKING:
    from tfm.stages.bench.generate import GenerateBench, Milliseconds
    from tfm.stages.bench.measurement import PeakMemory
    from tfm.stages.bench.train import TrainBench

_RATE = "target tokens a second"


def print_train_bench(result: "TrainBench", *, as_json: bool) -> None:
    """Print how fast a model trains."""
    if as_json:
        print(json.dumps(result.to_json()))  # noqa: T201
        return
    settings, plan, share = result.settings, result.plan, result.real_share
    matrix, step = result.matrix_flops_per_second, result.step_seconds
    rows = {
        "model": f"{settings['arch']}, {result.num_parameters:,} parameters",
        "data": result.data or "made-up pairs as long as those of WMT16",
        "batches": f"{result.target_tokens_per_step:,.0f} target tokens a step, in parts of at "
        f"most {settings['batching']['max_tokens']:,} a side",
        "device": result.device,
        "arithmetic": f"{result.compute}; torch {result.torch}",
        "timed": f"{plan.rounds} rounds of {plan.steps:,} steps",
        _RATE: f"{result.target_tokens_per_second:,.0f} "
        f"(by round {_figures(result.target_tokens_per_second_by_round)})",
        "MFU": f"{result.mfu:.1%} of the device's best matrix product, "
        f"{result.mfu_of_median:.1%} of its median",
        "FLOPs a second, model": f"{result.flops_per_second:.3g}",
        "FLOPs a second, matrices": f"{matrix.best:.3g} at best, median {matrix.median:.3g}, "
        f"of size {matrix.size:,}",
        "seconds a step": f"median {step.median:.4g}, four in five from {step.p10:.4g} to "
        f"{step.p90:.4g}",
    }
    if result.loop is not None:
        rows["loop of tfm train"] = (
            f"{result.loop.share:.1%} of the speed of bare steps "
            f"(by round {_figures(result.loop.target_tokens_per_second_by_round)}); "
            f"{result.loop.share_in_steps:.1%} of its time in steps"
        )
    rows |= {
        "seconds to the first step": f"{result.seconds_to_first_step:.1f}",
        "tokens that are no padding": f"{share.both:.1%} of all computed ones; source "
        f"{share.source:.1%}, target {share.target:.1%}",
        "peak memory": _memory(result.peak_memory),
    }
    if result.skipped_steps:
        rows["steps that changed nothing"] = f"{result.skipped_steps:,}"
    if result.out_of_memory:
        rows["batches split further"] = f"{result.out_of_memory:,}, as memory ran out"
    print_rows(rows, bold=_RATE)


def print_generate_bench(result: "GenerateBench", *, as_json: bool) -> None:
    """Print how fast a model translates."""
    if as_json:
        print(json.dumps(result.to_json()))  # noqa: T201
        return
    search, plan = result.search, result.plan
    how = f"beam {search['beam_size']}" if search["search"] == "beam" else search["search"]
    times = f", {plan.repeat:,} times over" if plan.repeat > 1 else ""
    rows = {
        "model": f"{result.model}, {result.num_parameters:,} parameters",
        "text": f"{result.text}{times}: {result.num_sentences:,} sentences, "
        f"{result.num_source_tokens:,} tokens to {result.num_target_tokens:,}, ends counted",
        "search": f"{how}, length penalty {search['length_penalty']:g}",
        "device": result.device,
        "arithmetic": f"{result.compute}; torch {result.torch}",
        "timed": f"{plan.rounds} rounds, after one that was not",
        _RATE: f"{result.target_tokens_per_second:,.0f} "
        f"(by round {_figures(result.target_tokens_per_second_by_round)})",
        "source tokens a second": f"{result.source_tokens_per_second:,.0f}",
        "sentences a second": f"{result.sentences_per_second:,.1f}",
    }
    if result.latency is not None:
        rows["ms a sentence, one at a time"] = _quantiles(result.latency.sentence)
        rows["ms a token, one at a time"] = _quantiles(result.latency.token)
    rows["seconds to load"] = f"{result.seconds_to_load:.2f}"
    rows["peak memory"] = _memory(result.peak_memory)
    print_rows(rows, bold=_RATE)


def _memory(peak: "PeakMemory") -> str:
    on_gpu = "" if peak.device is None else f"{peak.device / 2**30:.2f} GiB on the GPU, "
    return f"{on_gpu}{peak.process / 2**30:.2f} GiB of the process"


def _quantiles(times: "Milliseconds") -> str:
    return f"median {times.median:.4g}, p90 {times.p90:.4g}, p99 {times.p99:.4g}"


def _figures(rates: list[float]) -> str:
    return ", ".join(f"{rate:,.0f}" for rate in rates)
