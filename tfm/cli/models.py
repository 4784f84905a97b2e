"""Commands that make a model: train, average."""

from pathlib import Path
from typing import Annotated

import typer

from tfm.cli.app import MODELS_PANEL, RUNS_ROOT, DataArgument, app, dataset, say
from tfm.cli.options import Given, with_settings
from tfm.config import (
    PRESETS,
    AverageConfig,
    BatchingConfig,
    OptimizerConfig,
    RecurrentConfig,
    RunConfig,
    TrainingConfig,
    TransformerConfig,
    read_toml,
    run_config,
    run_toml,
    settings_from,
)


@app.command(rich_help_panel=MODELS_PANEL)
@with_settings(TransformerConfig, RecurrentConfig, OptimizerConfig, BatchingConfig, TrainingConfig)
def train(
    data: DataArgument = None,
    run: Annotated[
        Path | None, typer.Option(help="Run folder; runs/DATA-ARCH if not given.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(help=f"Preset: {', '.join(PRESETS)} (default {RunConfig().arch})."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; flags win over it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the run would cost, and stop.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as TOML, and stop.")
    ] = False,
    *,
    given: Given,
) -> None:
    """Train a model; go on where the run folder stands, if it does.

    Examples:
      tfm train --arch tiny

      tfm train data/wmt14-en-de --arch big --max-steps 50000
    """
    file_table = {} if config is None else read_toml(config)
    settings = run_config(arch, file_table, given)
    if print_config:
        typer.echo(run_toml(settings), nl=False)
        return
    folder = dataset(data)
    if dry_run:
        from tfm.cli.output import print_forecast
        from tfm.stages.forecast import forecast

        print_forecast(forecast(folder, settings))
        return
    from tfm.stages.train import train as run_stage

    result = run_stage(folder, run or RUNS_ROOT / f"{folder.name}-{settings.arch}", settings)
    say(f"next: tfm average {result.run_dir}")


@app.command(rich_help_panel=MODELS_PANEL)
@with_settings(AverageConfig)
def average(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Run folder; the newest below runs/ if not given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Model folder; RUN/averaged if not given.")
    ] = None,
    *,
    given: Given,
) -> None:
    """Average the last checkpoints of a run, as the paper does.

    Example: tfm average runs/wmt14-en-de-base --last 5
    """
    from tfm.runtime.checkpoint import newest_run
    from tfm.stages.average import average as run_stage

    settings = settings_from(AverageConfig, given.get("average", {}))
    result = run_stage(run or newest_run(RUNS_ROOT), settings, out_dir=out)
    steps = ", ".join(f"{step:,}" for step in result.steps)
    say(f"average: {result.model_dir} is the mean of steps {steps}")
