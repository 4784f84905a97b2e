"""What benchmarks measured, as a terminal, or another program, reads it."""

import json
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tfm.stages.bench.generate import GenerateBench, Milliseconds
    from tfm.stages.bench.measurement import PeakMemory
    from tfm.stages.bench.train import TrainBench


def _two_columns() -> Table:
    """Return an empty table of names and values; long values take several lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    return table


def print_train_bench(result: "TrainBench", *, as_json: bool) -> None:
    """Print how fast a model trains."""
    if as_json:
        print(json.dumps(result.to_json()))  # noqa: T201
        return
    table = _two_columns()
    _add_what_was_timed(table, result)
    _add_speed(table, result)
    _add_cost(table, result)
    Console(highlight=False).print(table)


def print_generate_bench(result: "GenerateBench", *, as_json: bool) -> None:
    """Print how fast a model translates."""
    if as_json:
        print(json.dumps(result.to_json()))  # noqa: T201
        return
    table = _two_columns()
    _add_what_was_translated(table, result)
    _add_rates(table, result)
    Console(highlight=False).print(table)


def _add_what_was_timed(table: Table, result: "TrainBench") -> None:
    settings, plan = result.settings, result.plan
    table.add_row("model", f"{settings['arch']}, {result.num_parameters:,} parameters")
    table.add_row("data", result.data or "made-up pairs as long as those of WMT16")
    table.add_row(
        "batches",
        f"{result.target_tokens_per_step:,.0f} target tokens a step, in parts of at most "
        f"{settings['batching']['max_tokens']:,} a side",
    )
    table.add_row("device", result.device)
    table.add_row("arithmetic", f"{result.compute}; torch {result.torch}")
    table.add_row("timed", f"{plan.rounds} rounds of {plan.steps:,} steps")


def _add_speed(table: Table, result: "TrainBench") -> None:
    matrix, step = result.matrix_flops_per_second, result.step_seconds
    table.add_row(
        "target tokens a second",
        f"{result.target_tokens_per_second:,.0f} "
        f"(by round {_figures(result.target_tokens_per_second_by_round)})",
        style="bold",
    )
    table.add_row(
        "MFU",
        f"{result.mfu:.1%} of the device's best matrix product, "
        f"{result.mfu_of_median:.1%} of its median",
    )
    table.add_row("FLOPs a second, model", f"{result.flops_per_second:.3g}")
    table.add_row(
        "FLOPs a second, matrices",
        f"{matrix.best:.3g} at best, median {matrix.median:.3g}, of size {matrix.size:,}",
    )
    table.add_row(
        "seconds a step",
        f"median {step.median:.4g}, four in five from {step.p10:.4g} to {step.p90:.4g}",
    )
    if result.loop is not None:
        table.add_row(
            "loop of tfm train",
            f"{result.loop.share:.1%} of the speed of bare steps "
            f"(by round {_figures(result.loop.target_tokens_per_second_by_round)}); "
            f"{result.loop.share_in_steps:.1%} of its time in steps",
        )


def _add_cost(table: Table, result: "TrainBench") -> None:
    share = result.real_share
    table.add_row("seconds to the first step", f"{result.seconds_to_first_step:.1f}")
    table.add_row(
        "tokens that are no padding",
        f"{share.both:.1%} of all computed ones; source {share.source:.1%}, "
        f"target {share.target:.1%}",
    )
    _add_memory(table, result.peak_memory)
    if result.skipped_steps:
        table.add_row("steps that changed nothing", f"{result.skipped_steps:,}")
    if result.out_of_memory:
        table.add_row("batches split further", f"{result.out_of_memory:,}, as memory ran out")


def _add_what_was_translated(table: Table, result: "GenerateBench") -> None:
    search, plan = result.search, result.plan
    how = f"beam {search['beam_size']}" if search["search"] == "beam" else search["search"]
    times = f", {plan.repeat:,} times over" if plan.repeat > 1 else ""
    table.add_row("model", f"{result.model}, {result.num_parameters:,} parameters")
    table.add_row(
        "text",
        f"{result.text}{times}: {result.num_sentences:,} sentences, "
        f"{result.num_source_tokens:,} tokens to {result.num_target_tokens:,}, ends counted",
    )
    table.add_row("search", f"{how}, length penalty {search['length_penalty']:g}")
    table.add_row("device", result.device)
    table.add_row("arithmetic", f"{result.compute}; torch {result.torch}")
    table.add_row("timed", f"{plan.rounds} rounds, after one that was not")


def _add_rates(table: Table, result: "GenerateBench") -> None:
    table.add_row(
        "target tokens a second",
        f"{result.target_tokens_per_second:,.0f} "
        f"(by round {_figures(result.target_tokens_per_second_by_round)})",
        style="bold",
    )
    table.add_row("source tokens a second", f"{result.source_tokens_per_second:,.0f}")
    table.add_row("sentences a second", f"{result.sentences_per_second:,.1f}")
    if result.latency is not None:
        table.add_row("ms a sentence, one at a time", _quantiles(result.latency.sentence))
        table.add_row("ms a token, one at a time", _quantiles(result.latency.token))
    table.add_row("seconds to load", f"{result.seconds_to_load:.2f}")
    _add_memory(table, result.peak_memory)


def _add_memory(table: Table, memory: "PeakMemory") -> None:
    on_gpu = "" if memory.device is None else f"{memory.device / 2**30:.2f} GiB on the GPU, "
    table.add_row("peak memory", f"{on_gpu}{memory.process / 2**30:.2f} GiB of the process")


def _quantiles(times: "Milliseconds") -> str:
    return f"median {times.median:.4g}, p90 {times.p90:.4g}, p99 {times.p99:.4g}"


def _figures(rates: list[float]) -> str:
    return ", ".join(f"{rate:,.0f}" for rate in rates)
