"""Commands that time the others: bench train and bench generate."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import typer

from tfm.cli.app import ARCH, CONFIG, JSON, MODEL, RUNS_ROOT, app
from tfm.cli.options import RUN_SETTINGS, Overrides, with_settings
from tfm.config import InferenceConfig, SearchConfig, read_toml, run_config, settings_from
from tfm.errors import UsageError

SPEED_PANEL = "Speed"

# The settings of [training] that have an effect on a step, and those on the loop around it.
_OF_A_STEP = ("seed", "kernels", "device", "precision", "threads")
_OF_THE_LOOP = ("log_steps", "background_saving")
_ROUNDS = typer.Option(3, min=1, help="Repeats of all that is timed, in turn; medians count.")

bench = typer.Typer(
    help="How fast tfm is on this machine, beside what the machine could do.\n\n"
    "Examples: tfm bench train --arch base; tfm bench generate --beam 4",
    rich_markup_mode="rich",
)
app.add_typer(bench, name="bench", rich_help_panel=SPEED_PANEL)


@bench.command()
@with_settings(*RUN_SETTINGS)
def train(
    data: Path | None = typer.Argument(
        None,
        metavar="DATA",
        help="Dataset folder; made-up pairs as long as WMT16's if not given.",
    ),
    arch: str | None = ARCH,
    config: Path | None = CONFIG,
    steps: int = typer.Option(200, min=1, help="Steps to time in each round."),
    untimed_steps: int = typer.Option(20, min=1, help="Steps before the first round."),
    rounds: int = _ROUNDS,
    loop: bool = typer.Option(
        False, "--loop", help="Time the loop of tfm train, too, with a checkpoint a round."
    ),
    as_json: bool = JSON,
    *,
    overrides: Overrides,
) -> None:
    """Time training: tokens a second, and the share of what the device could compute.

    Examples:
      tfm bench train --arch big

      tfm bench train data/multi30k-en-de --arch tiny --device cpu --steps 50 --json

      tfm bench train --arch base --steps 500 --loop
    """
    started = time.perf_counter()
    _refuse_without_effect(overrides.get("training", {}), loop=loop)
    settings = run_config(arch, {} if config is None else read_toml(config), overrides)
    from tfm.cli.bench_output import print_train_bench
    from tfm.stages.bench.train import Plan, bench_train

    plan = Plan(steps=steps, untimed_steps=untimed_steps, rounds=rounds, loop=loop)
    print_train_bench(bench_train(data, settings, plan, started=started), as_json=as_json)


@bench.command()
@with_settings(SearchConfig, InferenceConfig)
def generate(
    model: Path | None = MODEL,
    input_: Path | None = typer.Option(
        None, "--input", help="File to translate, a sentence a line."
    ),
    split: Literal["test", "valid"] | None = typer.Option(
        None,
        help="Translate this split of the model's dataset (default test, without --input).",
    ),
    rounds: int = _ROUNDS,
    repeat: int = typer.Option(1, min=1, help="Translate the text N times in each round."),
    latency: bool = typer.Option(False, "--latency", help="Time one sentence at a time, too."),
    as_json: bool = JSON,
    *,
    overrides: Overrides,
) -> None:
    """Time translation: sentences and tokens a second, from text to text, the model loaded.

    Target tokens are those of the best translation of each sentence, its end included.

    Examples:
      tfm bench generate runs/multi30k-en-de-small --beam 4

      tfm bench generate --input news.en --repeat 5 --precision bf16 --json

      tfm bench generate --beam 1 --latency
    """
    from tfm.cli.bench_output import print_generate_bench
    from tfm.stages.bench.generate import Plan, bench_generate
    from tfm.stages.generate import plan_generation

    if input_ is None and split is None:
        split = "test"  # and not standard input, which cannot be read twice
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
    """Refuse flags that would change nothing; in a file, they are those of a run."""
    effective = _OF_A_STEP + _OF_THE_LOOP if loop else _OF_A_STEP
    problems = [
        f"{name} has no effect on tfm bench train"
        + (", only on --loop" if name in _OF_THE_LOOP else "")
        for name in training
        if name not in effective
    ]
    if problems:
        raise UsageError("; ".join(problems))
