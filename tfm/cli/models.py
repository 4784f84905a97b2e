"""Commands that produce models: train, average, export, import."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tfm.cli.app import (
    CONFIG,
    DATA,
    MODEL,
    MODELS_PANEL,
    app,
    arch_option,
    option,
    switch,
)
from tfm.cli.flags import Call, add_command
from tfm.cli.help import Command
from tfm.cli.options import Overrides, hidden_option, with_settings
from tfm.cli.unknown_names import model_to_import
from tfm.commands.average import average
from tfm.config import RUN_SETTINGS, run_toml
from tfm.distributed.interruption import StopRequests
from tfm.errors import UsageError, tfm_command
from tfm.reporting import say
from tfm.stages.defaults import (
    check_extras,
    dataset_to_train_on,
    run_folder,
    run_settings,
)
from tfm.storage.paths import RUNS_ROOT, existing_folder, new_folder
from tfm.world import World, current_world

if TYPE_CHECKING:
    from tfm.distributed.layout import Layout
    from tfm.stages.export.check import Agreement

PROCESSES_PANEL = "Processes"
_MAX_DIFFERENCES = 5
_MAX_CHECKED = 1_000_000  # lines


@app.command(rich_help_panel=MODELS_PANEL, cls=Command)
@with_settings(*RUN_SETTINGS, help_all=True)
def train(
    data: Path | None = DATA,
    run: Path | None = option(
        callback=new_folder, help="Run folder (default: runs/DATA-ARCH); keeps its settings."
    ),
    arch: str | None = arch_option("by size of DATA and device"),
    from_: Path | None = option(
        "--from",
        metavar="MODEL",
        callback=existing_folder,
        help="Model or run folder to start from, to adapt it to DATA.",
    ),
    config: Path | None = CONFIG,
    dry_run: bool = switch("--dry-run", help="Print parameters, memory, time and disk, and exit."),
    print_config: bool = switch("--print-config", help="Print all settings as TOML, and exit."),
    gpus: str | None = option(
        metavar="[N|auto]",
        help="Start one process on each of N GPUs of this machine; auto uses all GPUs.",
        rich_help_panel=PROCESSES_PANEL,
    ),
    processes: int | None = hidden_option(
        help="Start N processes on the CPU of this machine.", rich_help_panel=PROCESSES_PANEL
    ),
    nodes: int | None = hidden_option(
        help="Number of machines; start the same command on each.", rich_help_panel=PROCESSES_PANEL
    ),
    node_rank: int | None = hidden_option(
        help="Index of this machine, counted from 0.", rich_help_panel=PROCESSES_PANEL
    ),
    rendezvous: str | None = hidden_option(
        metavar="HOST:PORT",
        help="Address and a free port of machine 0, the same on all machines.",
        rich_help_panel=PROCESSES_PANEL,
    ),
    *,
    overrides: Overrides,
) -> None:
    """Train a model, or resume from the last checkpoint of the run folder.

    Without --config and --arch, an existing --run resumes with its own settings and dataset, and a
    new run takes the preset that suits the number of pairs and the device. Defaults are those of
    --arch base; presets and --from differ.

    \b
    Examples:
      tfm train --arch tiny
      tfm train --run runs/wmt14-en-de-base --max-steps 200000
      tfm train data/wmt14-en-de --arch big --gpus 8
      tfm train data/legal --from runs/wmt14-en-de-base
      tfm train --gpus 8 --nodes 2 --node-rank 0 --rendezvous 10.0.0.1:29500
    """
    from tfm.distributed.layout import Layout

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
    settings_for = partial(
        run_settings, run=run, arch=arch, config=config, overrides=overrides, from_model=from_
    )
    # Without data, only to find mistakes before the dataset is opened and processes are started.
    settings = settings_for(data if print_config else None)
    if print_config:
        typer.echo(run_toml(settings), nl=False)
        return
    if dry_run:
        folder = dataset_to_train_on(data, run)
        from tfm.cli.output import print_rows
        from tfm.stages.forecast import forecast

        num_local = layout.local_size or layout.num_local_processes()
        found = forecast(
            folder,
            settings_for(folder),
            num_processes=layout.nodes * num_local,
            num_local=num_local,
        )
        print_rows(found.rows())
        for warning in found.warnings:
            say(warning)
        return
    check_extras(settings)
    world = _launch_processes(layout)
    folder = dataset_to_train_on(data, run)
    settings = settings_for(folder)
    from tfm.stages.train import train as run_stage

    unit = "step" if settings.training.shard else "microbatch"
    stop = StopRequests(
        f"train: stopping after the current {unit}, then saving; press Ctrl-C again to stop now "
        "without saving"
    )
    run_dir = run_folder(run, folder, settings)
    result = run_stage(folder, run_dir, settings, world=world, stop=stop)
    if not result.step or not result.has_learned:
        return  # there is no model, or none that is worth using
    following = ["generate" if settings.training.average else "average", result.run_dir]
    if settings.training.average and not any(folder.glob("test.*")):
        following += ["--input", "-"]  # what the user types
    say(f"next: {tfm_command(*following)}")


def _launch_processes(layout: "Layout") -> World:
    """Return the world of this process.

    If the flags ask for several processes, and no launcher has started this one, restart this
    command in each; then do not return.
    """
    from tfm.distributed.layout import Layout

    # Flags that say how to start processes do not need the variables of a launcher.
    world = World.from_environment() if layout == Layout() else current_world()
    if world.launcher is not None:
        layout.check(world)
        return world
    if layout.local_size == layout.nodes == 1:
        return world
    if layout.nodes > 1 or layout.num_local_processes() > 1:
        from tfm.distributed.launch import launch

        raise SystemExit(launch(layout, [sys.executable, "-m", "tfm", *sys.argv[1:]]))
    return world


def _average(call: Call, /) -> None:
    say(f"average: {call().summary}")


add_command(average, _average, panel=MODELS_PANEL)


@app.command(rich_help_panel=MODELS_PANEL, cls=Command)
def export(
    models: list[Path] | None = MODEL,
    out: Path | None = option(
        callback=new_folder,
        help="Output folder (default: RUN/FORMAT or MODEL-FORMAT, plus quantization).",
    ),
    format_: Literal["ctranslate2", "huggingface", "onnx", "argos"] = typer.Option(
        "ctranslate2",
        "--format",
        help="Program to write for: CTranslate2, transformers, ONNX Runtime, or Argos Translate.",
    ),
    quantization: Literal[
        "none", "int8", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"
    ] = typer.Option(
        "none",
        help="For CTranslate2 and Argos: type of weights, and of products if the CPU supports it.",
    ),
    check: int = typer.Option(
        0,
        metavar="N",
        help="Translate N lines of the test set with both programs and print the differences.",
    ),
    force: bool = switch("--force", help="Overwrite an earlier export."),
) -> None:
    """Convert a model for CTranslate2, transformers, ONNX Runtime or Argos Translate.

    CTranslate2 is a runtime without torch (pip install "tfm-mt[export]"). For transformers,
    post-norm models become Marian and pre-norm ones Pegasus models (pip install
    "tfm-mt[huggingface]"). For ONNX Runtime, encoder and decoder step are two files without a
    search (pip install "tfm-mt[onnx]"). Argos Translate and LibreTranslate install a package of the
    model for CTranslate2.

    With length penalty 0, all programs find the same translations. With other values, tfm divides
    log probabilities by ((5 + length) / 6)^α, and the others by length^α.

    With --check, unquantized weights must also give the same probabilities.

    \b
    Examples:
      tfm export runs/wmt14-en-de-base --check 200
      tfm export --quantization int8 --out model-int8
      tfm export runs/wmt14-en-de-base --format huggingface
    """
    from tfm.folders.run_folder import newest_run
    from tfm.stages.export.folder import export as run_stage

    if models and len(models) > 1:
        raise UsageError(
            "other programs run a single model, not an ensemble: export each model by itself"
        )
    if not 0 <= check <= _MAX_CHECKED:
        raise UsageError(f"--check is {check}, but must be from 0 to {_MAX_CHECKED:,}")
    result = run_stage(
        models[0] if models else newest_run(RUNS_ROOT),
        format_=format_,
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
    """Print how many translations are identical, and the first of those that differ."""
    differences = agreement.differences
    num_identical = agreement.num_lines - len(differences)
    say(
        f"export: {num_identical:,} of {agreement.num_lines:,} translations are identical (beam "
        f"{agreement.beam_size}, no length penalty); log probabilities differ by at most "
        f"{agreement.max_error:.1g} nats per token"
    )
    program = agreement.program
    for each in differences[:_MAX_DIFFERENCES]:
        note = ", cut off at the maximum length" if each.is_cut else ""
        say(f"line {each.line_number:,}, {'tfm:':{len(program) + 1}} {each.ours}")
        say(f"line {each.line_number:,}, {program}: {each.theirs}")
        say(f"    {each.gain:+.4f} nats{note}")
    if len(differences) > _MAX_DIFFERENCES:
        say(f"… and {len(differences) - _MAX_DIFFERENCES:,} more")


@app.command("import", rich_help_panel=MODELS_PANEL, cls=Command)
def import_(
    model: Path = typer.Argument(
        ...,
        metavar="MODEL",
        callback=model_to_import,
        help="Folder of the model, or fairseq's checkpoint in it.",
    ),
    out: Path | None = option(
        callback=new_folder, help="Model folder to write (default: MODEL-tfm)."
    ),
    source: str | None = option(
        metavar="LANG", help="Source language (default: the one that the model names)."
    ),
    target: str | None = option(
        metavar="LANG", help="Target language (default: the one that the model names)."
    ),
    force: bool = switch("--force", help="Overwrite an earlier import."),
) -> None:
    """Import a Marian model of transformers (OPUS-MT), or a Transformer of fairseq.

    A Marian model is a folder with config.json, weights, source.spm, target.spm and vocab.json. A
    model of fairseq is a checkpoint with its dict.LANG.txt, and its SentencePiece model if it has
    one. No code in a checkpoint is run.

    The result is an ordinary model folder: translate with it, adapt it with tfm train --from.

    \b
    Examples:
      tfm import opus-mt-en-de --out models/en-de
      tfm import wmt16.en-de/checkpoint_best.pt
    """
    from tfm.stages.importing.folder import import_model

    result = import_model(model, out_dir=out, source=source, target=target, force=force)
    from_to = " to ".join(result.languages)
    say(f"import: {model}, {from_to}, {result.num_parameters:,} parameters")
    if result.takes_tokens:
        say(
            "import: there is no SentencePiece model: translate and train with text that is split "
            "into the model's tokens, separated by spaces; translations are such text"
        )
    if result.max_positions is not None:
        say(f"import: a sentence may have at most {result.max_positions:,} tokens, with its end")
    typer.echo(result.out_dir)
