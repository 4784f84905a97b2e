"""Commands that list what is on the disk: runs, models."""

import json as json_format
from dataclasses import asdict
from pathlib import Path

import typer

from tfm.cli.app import MODELS_PANEL
from tfm.cli.flags import Call, add_command
from tfm.commands.models import models
from tfm.commands.runs import runs
from tfm.reporting import say


def _runs(call: Call, /, *, json: bool = False) -> None:
    """Print runs, and draw those that are named.

    Args:
        call: Finds the runs.
        json: Print the result as one JSON object.
    """
    from tfm.cli.output import print_runs
    from tfm.folders.run_folder import is_run

    named, out = call.keywords.get("folders"), call.keywords.get("out")
    if out is None and not json and named and all(map(is_run, named)):
        out = Path("runs.html")
    found = call(out=out)
    if json:
        typer.echo(json_format.dumps({"runs": [asdict(run) for run in found]}))
    else:
        print_runs(found)
    if out is not None:
        say(f"runs: the curves are in {out}")


def _models(call: Call, /, *, json: bool = False) -> None:
    """Print models.

    Args:
        call: Finds the models.
        json: Print the result as one JSON object.
    """
    from tfm.cli.output import print_models

    found = call()
    if json:
        typer.echo(json_format.dumps({"models": [asdict(model) for model in found]}))
    else:
        print_models(found)


add_command(runs, _runs, panel=MODELS_PANEL)
add_command(models, _models, panel=MODELS_PANEL)
