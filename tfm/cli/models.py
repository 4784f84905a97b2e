"""Commands that produce models: train, average, export, import."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tfm.cli.app import MODEL, MODELS_PANEL, app, option, switch
from tfm.cli.flags import Call, add_command
from tfm.cli.help import Command
from tfm.cli.train import train as run_training
from tfm.commands.average import average
from tfm.commands.import_model import import_model
from tfm.commands.train import train
from tfm.errors import UsageError
from tfm.reporting import say
from tfm.storage.paths import RUNS_ROOT, new_folder

if TYPE_CHECKING:
    from tfm.stages.export.check import Agreement

_MAX_DIFFERENCES = 5
_MAX_CHECKED = 1_000_000  # lines


add_command(train, run_training, panel=MODELS_PANEL)


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


def _import(call: Call, /) -> None:
    result = call()
    from_to = " to ".join(result.languages)
    say(f"import: {call.keywords['model']}, {from_to}, {result.num_parameters:,} parameters")
    if result.takes_tokens:
        say(
            "import: there is no SentencePiece model: translate and train with text that is split "
            "into the model's tokens, separated by spaces; translations are such text"
        )
    if result.max_positions is not None:
        say(f"import: a sentence may have at most {result.max_positions:,} tokens, with its end")
    typer.echo(result.out_dir)


add_command(import_model, _import, name="import", panel=MODELS_PANEL)
