"""Commands on translations: generate, score and attend; and quickstart, which runs all stages."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import typer

from tfm.cli.app import TRANSLATIONS_PANEL, app, argument, option, switch
from tfm.cli.flags import Call, add_command
from tfm.cli.help import Command
from tfm.cli.options import Overrides, hidden_option, hidden_switch, with_settings
from tfm.cli.unknown_names import existing_models
from tfm.commands.quickstart import quickstart
from tfm.commands.score import score
from tfm.config import InferenceConfig, SearchConfig, settings_from
from tfm.errors import UsageError, tfm_command
from tfm.reporting import say
from tfm.storage.paths import (
    RUNS_ROOT,
    existing_file,
    existing_file_or_stream,
    existing_folder,
    new_file,
    new_file_or_stream,
)

if TYPE_CHECKING:
    from tfm.stages.generate_plan import Generation


@app.command(rich_help_panel=TRANSLATIONS_PANEL, cls=Command)
@with_settings(SearchConfig, InferenceConfig, help_all=True)
def generate(
    models: list[Path] | None = argument(
        callback=existing_models,
        metavar="MODEL",
        help="Model or run folders (default: the newest run); several form an ensemble.",
    ),
    input_: Path | None = option(
        "--input", callback=existing_file_or_stream, help="File to translate; - is standard input."
    ),
    output: Path | None = option(
        callback=new_file_or_stream,
        help="File to write when complete; repeat a stopped command to continue; - is stdout.",
    ),
    split: Literal["test", "valid"] | None = option(
        help="Translate this split of the model's dataset."
    ),
    gpus: str | None = option(
        metavar="[N|auto]", help="Divide the work among N GPUs of this machine; auto uses all GPUs."
    ),
    processes: int | None = hidden_option(
        help="Divide the work and the cores among N processes on the CPU."
    ),
    prefix: Path | None = hidden_option(
        callback=existing_file,
        help="File with the beginning of each translation, perhaps within a word; may be empty.",
    ),
    score_target: Path | None = hidden_option(
        callback=existing_file,
        help="Score the translations in a file: print score, log probability, tokens and text.",
    ),
    per_token: bool = hidden_switch(
        "--per-token",
        help="With --score-target: print a line per token: line number, log probability, piece.",
    ),
    align: bool = hidden_switch(
        "--align",
        help="Add the word alignment of each translation, such as 0-0 1-2, in a last column.",
    ),
    align_reverse: Path | None = hidden_option(
        callback=existing_folder,
        metavar="MODEL",
        help="With --align: a model of the reverse direction, to combine both alignments.",
    ),
    document: bool = switch(
        "--document", help="Split paragraphs into sentences; keep white space."
    ),
    json: bool = switch("--json", help="Print one JSON object per line, with scores."),
    *,
    overrides: Overrides,
) -> None:
    """Translate standard input, a file or a test set, line by line.

    The output has one line per input line, in the same order.

    \b
    Examples:
      tfm generate --beam 4 | tfm score
      echo "Two dogs play in the snow." | tfm generate runs/multi30k-en-de-tiny
      tfm generate --search sample --top-p 0.9 --n-best 5 --input in.en
      tfm generate --gpus 8 --input in.en --output out.de
    """
    from tfm.cli.output import (
        continued_output,
        print_document,
        print_scored_targets,
        print_translations,
    )
    from tfm.stages import generate as stage
    from tfm.stages.generate_plan import (
        check_constraints,
        check_document,
        output_settings,
        plan_generation,
    )

    mistakes = {
        "--per-token has no effect without --score-target": per_token and score_target is None,
        "--json prints every token anyway: leave --per-token out": per_token and json,
        "--align adds a column for each target, --per-token lines: give one": per_token and align,
        "--align-reverse has no effect without --align": align_reverse is not None and not align,
    }
    for mistake, is_made in mistakes.items():
        if is_made:
            raise UsageError(mistake)
    inference, num_processes = _where_to_compute(gpus, processes, overrides)
    plan = plan_generation(
        models or [],
        input_path=input_,
        split=split,
        runs_dir=RUNS_ROOT,
        prefixes=prefix,
        targets=score_target,
        align=align,
        align_reverse=align_reverse,
        output=output,
    )
    merged = SearchConfig.for_model if score_target is None else SearchConfig.for_targets
    config = merged(plan.info.search, overrides.get("search", {}))
    if align and config.tag is not None:
        raise UsageError(
            "--align cannot go with --tag: write the tag at the beginning of each line instead"
        )
    if document:
        check_document(plan, config, as_json=json)
    check_constraints(plan, config)
    _say_plan(plan, is_default_text=split is None and plan.source.split is not None)
    form = "lines per token" if per_token else "json" if json else "text"
    form = "document" if document else f"numbered {form}" if config.num_outputs > 1 else form
    settings = {} if output is None else output_settings(plan, config, inference, form=form)
    with continued_output(output, settings) as partial:
        first_line = 1 if partial is None else partial.num_lines + 1
        where: dict[str, Any] = {
            "inference": inference,
            "num_processes": num_processes,
            "output": partial,
        }
        if score_target is not None:
            scored = stage.score_targets(plan, config, **where)
            print_scored_targets(scored, as_json=json, per_token=per_token, first_line=first_line)
        elif document:
            print_document(stage.translate_document(plan, config, runs_dir=RUNS_ROOT, **where))
        else:
            print_translations(
                stage.generate(plan, config, runs_dir=RUNS_ROOT, **where),
                as_json=json,
                number=config.num_outputs > 1,
                first_line=first_line,
            )
    is_scorable = score_target is None and plan.source.reference is not None
    if output is not None and is_scorable and config.num_outputs == 1:
        say(f"next: {tfm_command('score', '--hypotheses', output)}")


def _where_to_compute(
    gpus: str | None, processes: int | None, overrides: Overrides
) -> tuple[InferenceConfig, int | None]:
    """Return device and arithmetic, and the number of processes, None to choose it."""
    from tfm.distributed.layout import Layout

    inference = settings_from(InferenceConfig, overrides.get("inference", {}))
    layout = Layout.from_flags(gpus=gpus, processes=processes, device=inference.device)
    inference = replace(inference, device=layout.device or inference.device)
    return inference, None if gpus is None and processes is None else layout.num_local_processes()


def _say_plan(plan: "Generation", *, is_default_text: bool) -> None:
    """Print which models translate which text, or score which translations of it."""
    names, text = ", ".join(map(str, plan.models)), str(plan.source)
    ending = "s" if len(plan.models) == 1 else ""  # of the verb
    if is_default_text:
        names = f"no input was given (--input or a pipe), so {names}"
        text = f"the test set {text}"
    if plan.targets is not None:
        say(f"generate: {names} score{ending} {plan.targets} as translation of {text}")
    else:
        say(f"generate: {names} translate{ending} {text}")


class _ScoreCommand(Command):
    """A command that names the flags of files that are given without."""

    def explain_rest(self, ctx: Any, rest: list[str]) -> str:
        """Return the files with their flags."""
        return f"takes files with flags only: give {_with_flags(ctx, rest)}"


def _with_flags(context: typer.Context, files: Sequence[str]) -> str:
    """Return files, of which the first may be that of the translations, with their flags."""
    quoted = [shlex.quote(file) for file in files]
    references = [f"--reference {file}" for file in quoted]
    if context.params["hypotheses"] is not None:
        return " ".join(references)
    others = references[1:] or ["or", references[0]]
    return " ".join([f"--hypotheses {quoted[0]}", *others])


def _score(call: Call, /, *, json: bool = False) -> None:
    """Print scores.

    Args:
        call: Scores translations.
        json: Print the result as one JSON object.
    """
    from tfm.cli.output import print_scores

    print_scores(call(), as_json=json)


add_command(score, _score, panel=TRANSLATIONS_PANEL, cls=_ScoreCommand)


@app.command(rich_help_panel=TRANSLATIONS_PANEL, cls=Command)
def attend(
    model: str | None = argument(
        metavar="MODEL", help="Model or run folder (default: the newest run)."
    ),
    sentence: str | None = argument(metavar="SENTENCE", help="Source sentence in quotes."),
    target: str | None = option(help="Target sentence (default: the model's translation)."),
    out: list[Path] | None = option(
        metavar="FILE",
        callback=lambda paths: [_new_picture(path) for path in paths or ()],
        help="Page (.html) or figure (.png, .svg) to write; repeatable (default: attention.html).",
    ),
    kind: Literal["encoder", "decoder", "cross"] = typer.Option(
        "cross", help="Attention to draw; a page contains all kinds and shows this one first."
    ),
    layer: int | None = option(help="Draw only this layer, counted from 1."),
    head: int | None = option(help="Draw only this head, counted from 1."),
    beam: int | None = option(
        help=f"Beam size of the translation (default: {SearchConfig().beam_size})."
    ),
    device: Literal["auto", "cpu", "cuda", "mps"] = typer.Option(
        "auto", help="Device to compute on; mps: an Apple GPU, never tried."
    ),
) -> None:
    """Draw the attention of each layer and head while a model translates a sentence.

    \b
    Examples:
      tfm attend "Two dogs play in the snow."
      tfm attend runs/wmt14-en-de-base "The law." --layer 5 --out law.svg
    """
    from tfm.folders.run_folder import newest_run
    from tfm.stages.attend import attend as run_stage

    if sentence is None:
        model, sentence = None, model
    if sentence is None or os.path.isdir(sentence):  # noqa: PTH112 - Path fails on long ones
        raise UsageError('attend needs a sentence, in quotes: "Two dogs play in the snow."')
    model_path = None if model is None else existing_folder(Path(model))
    if beam is not None and target is not None:
        raise UsageError("--beam has no effect with --target: leave one out")
    result = run_stage(
        model_path or newest_run(RUNS_ROOT),
        sentence,
        target=target,
        out=out or [],
        kind=kind,
        layer=layer,
        head=head,
        search=settings_from(SearchConfig, {} if beam is None else {"beam_size": beam}),
        device=device,
    )
    say(f"attend: {result.model_dir}: {sentence} → {result.target}")
    for path in result.paths:
        typer.echo(path)


def _new_picture(path: Path) -> Path:
    return path if path.is_dir() else cast("Path", new_file(path, flag="--out"))


add_command(quickstart)
