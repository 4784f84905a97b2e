"""Results of benchmarks, as a table or JSON."""

import json
from typing import TYPE_CHECKING

from tfm.cli.output import print_rows

if TYPE_CHECKING:
    from tfm.stages.bench.generate import GenerateBench, Milliseconds
    from tfm.stages.bench.measurement import PeakMemory
    from tfm.stages.bench.train import TrainBench

_RATE = "target tokens per second"


def print_train_bench(result: "TrainBench", *, as_json: bool) -> None:
    """Print the speed of training."""
    if as_json:
        print(json.dumps(result.to_json()))  # noqa: T201
        return
    settings, plan, share = result.settings, result.plan, result.real_share
    matrix, step = result.matrix_flops_per_second, result.step_seconds
    rows = {
        "model": f"{settings['arch']}, {result.num_parameters:,} parameters",
        "data": result.data or "random tokens with the sentence lengths of WMT16",
        "batches": f"{result.target_tokens_per_step:,.0f} target tokens per step, in "
        f"{result.microbatches_per_step:,.1f} microbatches",
        "device": result.device,
        "precision": f"{result.compute}; torch {result.torch}",
        "timed": f"{plan.rounds} rounds of {plan.steps:,} steps",
        _RATE: f"{result.target_tokens_per_second:,.0f} "
        f"(by round {_format_rates(result.target_tokens_per_second_by_round)})",
        "MFU": f"{result.mfu:.1%} of the device's best matrix product, "
        f"{result.mfu_of_median:.1%} of its median",
        "model FLOPs per second": f"{result.flops_per_second:.3g}",
        "matrix product FLOPs per second": f"best {matrix.best:.3g}, median {matrix.median:.3g}, "
        f"of size {matrix.size:,}",
        "seconds per step": f"median {step.median:.4g}, p10 {step.p10:.4g}, p90 {step.p90:.4g}",
    }
    if result.loop is not None:
        rows["loop of tfm train"] = (
            f"{result.loop.share:.1%} of the speed of bare steps "
            f"(by round {_format_rates(result.loop.target_tokens_per_second_by_round)}); "
            f"{result.loop.share_in_steps:.1%} of its time is spent in steps"
        )
    rows |= {
        "seconds to the first step": f"{result.seconds_to_first_step:.1f}",
        "tokens that are not padding": f"{share.both:.1%} of all computed tokens; source "
        f"{share.source:.1%}, target {share.target:.1%}",
        "peak memory": _format_memory(result.peak_memory),
    }
    if result.skipped_steps:
        rows["skipped steps"] = f"{result.skipped_steps:,}"
    if result.out_of_memory:
        rows["batches split further"] = f"{result.out_of_memory:,}, because memory ran out"
    print_rows(rows, bold=_RATE)


def print_generate_bench(result: "GenerateBench", *, as_json: bool) -> None:
    """Print the speed of translation."""
    if as_json:
        print(json.dumps(result.to_json()))  # noqa: T201
        return
    search, plan = result.search, result.plan
    method = f"beam {search['beam_size']}" if search["search"] == "beam" else search["search"]
    repeats = f", {plan.repeat:,} times" if plan.repeat > 1 else ""
    rows = {
        "model": f"{result.model}, {result.num_parameters:,} parameters",
        "text": f"{result.text}{repeats}: {result.num_sentences:,} sentences, "
        f"{result.num_source_tokens:,} source and {result.num_target_tokens:,} target tokens, "
        "EOS included",
        "search": f"{method}, length penalty {search['length_penalty']:g}",
        "device": result.device,
        "precision": f"{result.compute}; torch {result.torch}",
        "timed": f"{plan.rounds} rounds, after an untimed one",
        _RATE: f"{result.target_tokens_per_second:,.0f} "
        f"(by round {_format_rates(result.target_tokens_per_second_by_round)})",
        "source tokens per second": f"{result.source_tokens_per_second:,.0f}",
        "sentences per second": f"{result.sentences_per_second:,.1f}",
    }
    if result.latency is not None:
        rows["ms per sentence, one at a time"] = _format_quantiles(result.latency.sentence)
        rows["ms per token, one at a time"] = _format_quantiles(result.latency.token)
    rows["seconds to load"] = f"{result.seconds_to_load:.2f}"
    rows["peak memory"] = _format_memory(result.peak_memory)
    print_rows(rows, bold=_RATE)


def _format_memory(peak: "PeakMemory") -> str:
    places = {"on the GPU": peak.device, "in the process": peak.process}
    sizes = [
        f"{size / 2**30:.2f} GiB {place}" for place, size in places.items() if size is not None
    ]
    return ", ".join(sizes) or "unknown"


def _format_quantiles(times: "Milliseconds") -> str:
    return f"median {times.median:.4g}, p90 {times.p90:.4g}, p99 {times.p99:.4g}"


def _format_rates(rates: list[float]) -> str:
    return ", ".join(f"{rate:,.0f}" for rate in rates)
