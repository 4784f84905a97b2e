"""Commands that list what is on the disk: runs, models."""

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from tfm.cli.app import JSON, MODELS_PANEL, app, argument, option
from tfm.cli.help import Command
from tfm.errors import UsageError
from tfm.reporting import say
from tfm.storage.paths import MODELS_ROOT, RUNS_ROOT, existing_folder, new_file, where_instead

_PAGE, _START = Path("runs.html"), "start with tfm train"


@app.command(rich_help_panel=MODELS_PANEL, cls=Command)
def runs(
    folders: list[Path] | None = argument(
        metavar="DIR",
        callback=existing_folder,
        help="Run folders, or folders that have runs below them (default: runs/).",
    ),
    out: Path | None = option(
        metavar="FILE",
        callback=lambda path: new_file(path, flag="--out"),
        help=f"Page of curves to write (default: {_PAGE} for named runs, none with --json).",
    ),
    json: bool = JSON,
) -> None:
    """List runs with state, step, best validation, speed and age, the newest first.

    Run folders that are named are also drawn: their curves and different settings in one page.

    A run is running if a process on this machine holds its lock. That of another machine counts as
    running while its metrics are young: at most --stall-minutes, or three times between two lines.

    \b
    Examples:
      tfm runs
      tfm runs runs/multi30k-en-de-tiny runs/multi30k-en-de-small
    """
    from tfm.cli.output import print_runs
    from tfm.folders.run_folder import is_run
    from tfm.stages.runs import draw_runs, find_runs, summarize_run

    named = folders or _present(RUNS_ROOT)
    found = [summarize_run(run) for run in find_runs(named)]
    if out is None and not json and folders and all(map(is_run, folders)):
        out = _PAGE
    if out is not None:
        draw_runs(found, out)
    found.sort(key=lambda run: run.age_seconds)
    if json:
        typer.echo(json_format.dumps({"runs": [asdict(run) for run in found]}))
    else:
        print_runs(found)
    if not found:
        say(f"runs: none in {_listed(named)}: {where_instead(named[0], 'run') or _START}")
    if out is not None:
        say(f"runs: the curves are in {out}")


@app.command(rich_help_panel=MODELS_PANEL, cls=Command)
def models(
    folders: list[Path] | None = argument(
        metavar="DIR",
        callback=existing_folder,
        help="Folders to search (default: runs/ and models/).",
    ),
    json: bool = JSON,
) -> None:
    """List the models on the disk: the best checkpoints of runs, averaged and exported models.

    BLEU is that of validation, or F1 of a parser. "~" is the best of the checkpoints of an average.

    \b
    Examples:
      tfm models
      tfm models /data/models --json
    """
    from tfm.cli.output import print_models
    from tfm.stages.models import find_models, summarize_model

    named = folders or _present(RUNS_ROOT, MODELS_ROOT)
    found = [summarize_model(model) for model in find_models(named)]
    if json:
        typer.echo(json_format.dumps({"models": [asdict(model) for model in found]}))
    else:
        print_models(found)
    if not found:
        say(f"models: none in {_listed(named)}: {where_instead(named[0], 'model') or _START}")


def _present(*roots: Path) -> list[Path]:
    """Return the default folders that exist; raise UsageError if none does."""
    present = [root for root in roots if root.is_dir()]
    if not present:
        raise UsageError(f"there is no {_listed(roots)} here: name the folders to search")
    return present


def _listed(folders: Sequence[Path]) -> str:
    return " or ".join(f"{folder}/" for folder in folders)
