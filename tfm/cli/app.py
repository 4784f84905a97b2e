"""The typer app."""

import typer

from tfm import __version__
from tfm.cli.unknown_names import Commands
from tfm.errors import UsageError

app = typer.Typer(
    cls=Commands,
    help='Train, run and score the Transformer of "Attention Is All You Need".\n\n'
    "Stages: prepare → learn-bpe → binarize → train → average → generate → score. Each finds the "
    "output of the previous one. Start with: tfm quickstart",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", "-V", help="Print versions and exit."),
) -> None:
    if version:
        typer.echo(f"tfm {__version__}, {_torch_and_device()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


def _torch_and_device() -> str:
    """Return the version of torch and the device that is used by default."""
    try:
        from tfm.device.compute import torch_and_device
    except (ImportError, OSError) as error:
        return f"torch cannot be loaded ({error}): see tfm doctor"
    return torch_and_device()
