"""The typer app, and the flags and helpers that its commands share."""

from pathlib import Path

import typer

from tfm import __version__
from tfm.config import PRESETS, RunConfig
from tfm.errors import UsageError
from tfm.world import World

DATA_ROOT = Path("data")
RUNS_ROOT = Path("runs")

TEXT_PANEL = "Text"
MODELS_PANEL = "Models"
TRANSLATIONS_PANEL = "Translations"

DATA = typer.Argument(
    None, metavar="DATA", help="Dataset folder; the newest below data/ if not given."
)
FORCE = typer.Option(False, "--force", help="Do it again, even if unchanged.")
ARCH = typer.Option(None, help=f"Preset: {', '.join(PRESETS)} (default {RunConfig().arch}).")
CONFIG = typer.Option(None, help="TOML file of settings; flags win over it.")
JSON = typer.Option(False, "--json", help="Print one JSON object.")
MODEL = typer.Argument(
    None, metavar="MODEL", help="Model or run folder; the newest run below runs/ if not given."
)

app = typer.Typer(
    help='Train, run and score the Transformer of "Attention Is All You Need".\n\n'
    "prepare → learn-bpe → binarize → train → average → generate → score: each command finds what "
    "the one before it left. Start with: tfm quickstart",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        typer.echo(f"tfm {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


def dataset(path: Path | None) -> Path:
    """Return the dataset folder at a path, or the newest one, which is then named."""
    if path is not None:
        return path
    from tfm.data.manifest import newest_dataset

    folder = newest_dataset(DATA_ROOT)
    say(f"dataset: {folder}")
    return folder


def say(message: str) -> None:
    """Tell the user something, on stderr; of many processes, one speaks."""
    if World.from_environment().is_first:
        typer.echo(message, err=True)
