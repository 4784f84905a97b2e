"""Commands that measure speed: bench train and bench generate."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import typer

from tfm.cli.app import CONFIG, JSON, MODEL, app, arch_option
from tfm.cli.help import Command
from tfm.cli.options import Overrides, with_settings
from tfm.cli.unknown_names import Commands
from tfm.config import (
    RUN_SETTINGS,
    InferenceConfig,
    SearchConfig,
    read_toml,
    run_config,
    settings_from,
)
from tfm.errors import UsageError
from tfm.stages.defaults import RUNS_ROOT
from tfm.storage.paths import existing_file, existing_folder

SPEED_PANEL = "Speed"

# Settings of [training] that affect a training step, and those that affect the loop around it.
_STEP_SETTINGS = ("seed", "kernels", "compile", "device", "precision", "threads")
_LOOP_SETTINGS = ("log_steps", "background_saving")
_ROUNDS = typer.Option(3, min=1, max=1000, help="Rounds of measurements; medians are reported.")

bench = typer.Typer(
    cls=Commands,
    help="Measure the speed of training and translation on this machine.\n\n"
    "\b\nExamples:\n  tfm bench train --arch base\n  tfm bench generate --beam 4",
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench", rich_help_panel=SPEED_PANEL)


@bench.command(cls=Command)
@with_settings(*RUN_SETTINGS)
def train(
    data: Path | None = typer.Argument(
        None,
        metavar="DATA",
        callback=existing_folder,
        help="Dataset folder (default: random tokens with the sentence lengths of WMT16).",
    ),
    arch: str | None = arch_option("base"),
    config: Path | None = CONFIG,
    steps: int = typer.Option(200, min=1, max=100_000, help="Timed steps per round."),
    untimed_steps: int = typer.Option(
        20, min=1, max=100_000, help="Warmup steps before the first round."
    ),
    rounds: int = _ROUNDS,
    loop: bool = typer.Option(
        False, "--loop", help="Also time the loop of tfm train, with one checkpoint per round."
    ),
    as_json: bool = JSON,
    *,
    overrides: Overrides,
) -> None:
    """Measure training: tokens per second, and the model FLOPs utilization (MFU).

    Defaults are those of --arch base.

    \b
    Examples:
      tfm bench train --arch big
      tfm bench train data/multi30k-en-de --arch tiny --steps 50 --json
      tfm bench train --arch base --steps 500 --loop
    """
    started = time.perf_counter()
    _refuse_without_effect(overrides.get("training", {}), loop=loop)
    settings = run_config(arch, {} if config is None else read_toml(config), overrides)
    from tfm.cli.bench_output import print_train_bench
    from tfm.stages.bench.train import Plan, bench_train

    plan = Plan(steps=steps, untimed_steps=untimed_steps, rounds=rounds, loop=loop)
    print_train_bench(bench_train(data, settings, plan, started=started), as_json=as_json)


@bench.command(cls=Command)
@with_settings(SearchConfig, InferenceConfig)
def generate(
    model: Path | None = MODEL,
    input_: Path | None = typer.Option(
        None,
        "--input",
        callback=existing_file,
        help="File to translate, one sentence per line.",
    ),
    split: Literal["test", "valid"] | None = typer.Option(
        None, help="Translate this split of the model's dataset (default: test, unless --input)."
    ),
    rounds: int = _ROUNDS,
    repeat: int = typer.Option(1, min=1, max=10_000, help="Translate the text N times per round."),
    latency: bool = typer.Option(False, "--latency", help="Also time one sentence at a time."),
    as_json: bool = JSON,
    *,
    overrides: Overrides,
) -> None:
    """Measure translation: sentences and tokens per second, with a loaded model.

    Times include subword encoding and decoding. Target tokens are counted in the best translation
    of each sentence, with its end-of-sentence token.

    \b
    Examples:
      tfm bench generate runs/multi30k-en-de-small --beam 4
      tfm bench generate --input news.en --repeat 5 --precision bf16 --json
      tfm bench generate --beam 1 --latency
    """
    from tfm.cli.bench_output import print_generate_bench
    from tfm.stages.bench.generate import Plan, bench_generate
    from tfm.stages.generate_plan import plan_generation

    if input_ is None and split is None:
        split = "test"  # not standard input, which cannot be read twice
    generation = plan_generation(
        [] if model is None else [model], input_path=input_, split=split, runs_dir=RUNS_ROOT
    )
    result = bench_generate(
        generation,
        SearchConfig.for_model(generation.search, overrides.get("search", {})),
        Plan(rounds=rounds, repeat=repeat, latency=latency),
        settings_from(InferenceConfig, overrides.get("inference", {})),
    )
    print_generate_bench(result, as_json=as_json)


def _refuse_without_effect(training: Mapping[str, Any], *, loop: bool) -> None:
    """Refuse flags without effect; in a --config file, which is made for tfm train, they may be."""
    effective = _STEP_SETTINGS + _LOOP_SETTINGS if loop else _STEP_SETTINGS
    problems = [
        f"{name} has no effect on tfm bench train"
        + (" without --loop" if name in _LOOP_SETTINGS else "")
        for name in training
        if name not in effective
    ]
    if problems:
        raise UsageError("; ".join(problems))
