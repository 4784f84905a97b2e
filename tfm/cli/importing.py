"""The command that imports models of other programs."""

from pathlib import Path

import typer

from tfm.cli.app import MODELS_PANEL, app
from tfm.cli.help import Command
from tfm.reporting import say
from tfm.storage.paths import existing_path, new_folder


@app.command("import", rich_help_panel=MODELS_PANEL, cls=Command)
def import_(
    model: Path = typer.Argument(
        ...,
        metavar="MODEL",
        callback=existing_path,
        help="Folder of the model, or fairseq's checkpoint in it.",
    ),
    out: Path | None = typer.Option(
        None, callback=new_folder, help="Model folder to write (default: MODEL-tfm)."
    ),
    source: str | None = typer.Option(
        None, metavar="LANG", help="Source language (default: the one that the model names)."
    ),
    target: str | None = typer.Option(
        None, metavar="LANG", help="Target language (default: the one that the model names)."
    ),
    force: bool = typer.Option(False, "--force", help="Overwrite an earlier import."),
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
