"""Commands that make a model: train, average, export."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tfm.cli.app import ARCH, CONFIG, DATA, MODEL, MODELS_PANEL, RUNS_ROOT, app, dataset, say
from tfm.cli.options import RUN_SETTINGS, Overrides, with_settings
from tfm.config import AverageConfig, read_toml, run_config, run_toml, settings_from
from tfm.distributed.layout import Layout
from tfm.errors import UsageError
from tfm.world import World

if TYPE_CHECKING:
    from tfm.stages.export.check import Agreement

PROCESSES_PANEL = "Processes"
_DIFFERENCES_SHOWN = 5


@app.command(rich_help_panel=MODELS_PANEL)
@with_settings(*RUN_SETTINGS)
def train(
    data: Path | None = DATA,
    run: Path | None = typer.Option(None, help="Run folder; runs/DATA-ARCH if not given."),
    arch: str | None = ARCH,
    config: Path | None = CONFIG,
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print what the run would cost, and stop."
    ),
    print_config: bool = typer.Option(
        False, "--print-config", help="Print all settings as TOML, and stop."
    ),
    gpus: str | None = typer.Option(
        None,
        metavar="[N|auto]",
        help="Start one process on each of N GPUs of this machine; auto uses all GPUs.",
        rich_help_panel=PROCESSES_PANEL,
    ),
    processes: int | None = typer.Option(
        None, help="So many processes on the CPU of this machine.", rich_help_panel=PROCESSES_PANEL
    ),
    nodes: int | None = typer.Option(
        None, help="So many machines, each with this command.", rich_help_panel=PROCESSES_PANEL
    ),
    node_rank: int | None = typer.Option(
        None, help="Which of the machines this is, counted from 0.", rich_help_panel=PROCESSES_PANEL
    ),
    rendezvous: str | None = typer.Option(
        None,
        metavar="HOST:PORT",
        help="Where the machines meet: at a free port of machine 0.",
        rich_help_panel=PROCESSES_PANEL,
    ),
    *,
    overrides: Overrides,
) -> None:
    """Train a model; go on where the run folder stands, if it does.

    Examples:
      tfm train --arch tiny

      tfm train data/wmt14-en-de --arch big --gpus 8

      tfm train --gpus 8 --nodes 2 --node-rank 0 --rendezvous 10.0.0.1:29500
    """
    training = overrides.get("training", {})
    layout = Layout.from_flags(
        gpus=gpus,
        processes=processes,
        nodes=nodes,
        node_rank=node_rank,
        rendezvous=rendezvous,
        device=training.get("device"),
    )
    if layout.device is not None:  # --gpus and --processes imply it
        overrides = {**overrides, "training": {**training, "device": layout.device}}
    settings = run_config(arch, {} if config is None else read_toml(config), overrides)
    if print_config:
        typer.echo(run_toml(settings), nl=False)
        return
    if dry_run:
        folder = dataset(data)
        from tfm.cli.output import print_forecast
        from tfm.distributed.launch import num_local_processes
        from tfm.stages.forecast import forecast

        num_processes = layout.nodes * num_local_processes(layout)
        print_forecast(forecast(folder, settings, num_processes=num_processes))
        return
    _launch_if_asked(layout)
    folder = dataset(data)
    from tfm.stages.train import train as run_stage

    result = run_stage(folder, run or RUNS_ROOT / f"{folder.name}-{settings.arch}", settings)
    say(f"next: tfm average {result.run_dir}")


def _launch_if_asked(layout: Layout) -> None:
    """Run this command in several processes if they are asked for, and this is none of them yet.

    It then does not return.
    """
    world = World.from_environment()
    if world.launcher is not None:
        layout.check(world)
        return
    if layout.local_size == layout.nodes == 1:
        return
    from tfm.distributed.launch import launch, num_local_processes

    if layout.nodes > 1 or num_local_processes(layout) > 1:
        # What the first process has said of its end is enough.
        raise SystemExit(launch(layout, [sys.executable, "-m", "tfm", *sys.argv[1:]]))


@app.command(rich_help_panel=MODELS_PANEL)
@with_settings(AverageConfig)
def average(
    run: Path | None = typer.Argument(
        None, metavar="RUN", help="Run folder; the newest below runs/ if not given."
    ),
    out: Path | None = typer.Option(None, help="Model folder; RUN/averaged if not given."),
    *,
    overrides: Overrides,
) -> None:
    """Average the last checkpoints of a run, as the paper does.

    Example: tfm average runs/wmt14-en-de-base --last 5
    """
    from tfm.stages.average import average as run_stage
    from tfm.storage.checkpoint.run_folder import newest_run

    settings = settings_from(AverageConfig, overrides.get("average", {}))
    result = run_stage(run or newest_run(RUNS_ROOT), settings, out_dir=out)
    steps = ", ".join(f"{step:,}" for step in result.steps)
    say(f"average: {result.model_dir} is the mean of steps {steps}")


@app.command(rich_help_panel=MODELS_PANEL)
def export(
    models: list[Path] | None = MODEL,
    out: Path | None = typer.Option(
        None,
        help="Folder to write; RUN/ctranslate2 or MODEL-ctranslate2 if not given, with the "
        "quantization behind it.",
    ),
    format_: Literal["ctranslate2"] = typer.Option(
        "ctranslate2", "--format", help="Whose format to write."
    ),
    quantization: Literal[
        "none", "int8", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"
    ] = typer.Option(
        "none", help="What to store weights as, and compute in where it can be; none is fp32."
    ),
    check: int = typer.Option(
        0,
        min=0,
        metavar="LINES",
        help="Translate so many lines of the model's test set by both, and say which differ; "
        "without quantization, other probabilities than tfm's are an error.",
    ),
    force: bool = typer.Option(False, "--force", help="Replace an earlier export."),
) -> None:
    r"""Write a model for CTranslate2 (pip install "tfm\[export]"), which runs it without torch.

    The folder has weights, vocabulary and subword model. Both find the same translations with
    --length-penalty 0 here and length_penalty=0, min_decoding_length=0 there; with other values,
    tfm divides by ((5 + length) / 6)^α and CTranslate2 by length^α, and it stops sooner.

    Examples:
      tfm export runs/wmt14-en-de-base --check 200

      tfm export --format ctranslate2 --quantization int8 --out model-int8
    """
    from tfm.stages.export.folder import export as run_stage
    from tfm.storage.checkpoint.run_folder import newest_run

    if models and len(models) > 1:
        raise UsageError(
            "CTranslate2 runs one model, not an ensemble: export each, or tfm average one run"
        )
    result = run_stage(
        models[0] if models else newest_run(RUNS_ROOT),
        quantization=quantization,
        out_dir=out,
        force=force,
        check_lines=check,
    )
    if result.agreement is not None:
        _say_agreement(result.agreement)
    say(
        f"export: {result.model_dir} for {format_}, weights in "
        f"{'fp32' if quantization == 'none' else quantization}, {result.num_bytes / 1e6:,.1f} MB"
    )
    typer.echo(result.out_dir)


def _say_agreement(agreement: "Agreement") -> None:
    """Say how many translations are identical, and show the first others."""
    differences = agreement.differences
    num_identical = agreement.num_lines - len(differences)
    say(
        f"export: {num_identical:,} of {agreement.num_lines:,} translations are identical (beam "
        f"{agreement.beam_size}, no length penalty); log probabilities differ by at most "
        f"{agreement.max_error:.1g} nats a token"
    )
    for each in differences[:_DIFFERENCES_SHOWN]:
        why = ", cut off at the greatest length" if each.is_cut else ""
        say(f"line {each.line_number:,}, tfm:         {each.ours}")
        say(f"line {each.line_number:,}, CTranslate2: {each.theirs}")
        say(f"    {each.gain:+.4f} nats{why}")
    if len(differences) > _DIFFERENCES_SHOWN:
        say(f"… and {len(differences) - _DIFFERENCES_SHOWN:,} more")
