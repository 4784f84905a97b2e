"""The commands of the command line: flags that only terminals have, and how results are printed."""

import shlex
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tfm.cli.app import Command
from tfm.cli.flags import Call, add_command
from tfm.cli.output import print_result
from tfm.commands.attend import attend
from tfm.commands.average import average
from tfm.commands.binarize import binarize
from tfm.commands.check import check
from tfm.commands.declaration import Flag
from tfm.commands.doctor import Diagnosis, doctor
from tfm.commands.evaluate import evaluate
from tfm.commands.export import export
from tfm.commands.generate import generate
from tfm.commands.import_model import import_model
from tfm.commands.learn_bpe import learn_bpe
from tfm.commands.models import models
from tfm.commands.prepare import prepare
from tfm.commands.quickstart import quickstart
from tfm.commands.runs import runs
from tfm.commands.score import score
from tfm.commands.serve import serve
from tfm.commands.train import train, train_on_command_line
from tfm.disk.paths import check_written_by
from tfm.errors import UsageError, tfm_command
from tfm.reporting import Result, say
from tfm.text.files import suffix_of
from tfm.text.formats import BOTH_SIDES

if TYPE_CHECKING:
    from tfm.applications.export.check import Agreement

_TEXT_FLAGS = ("--train", "--valid", "--test")
_MAX_DIFFERENCES = 5


class _PrepareCommand(Command):
    """A command whose flags of text take two files, or one with both sides."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a file with both sides as source and target."""
        return super().parse_args(ctx, _with_both_sides(args))


def _with_both_sides(args: Sequence[str]) -> list[str]:
    """Return command-line arguments in which each flag of text has a source and a target file.

    The flag is repeated for each: typer has no flags that are repeatable and take two values.
    """
    words: list[str] = []
    rest = list(args)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag not in _TEXT_FLAGS:
            words.append(flag + equals + value)
            continue
        following = [value, *rest] if equals else rest
        files = list(takewhile(lambda word: not word.startswith("-"), following[:2]))
        rest = following[len(files) :]
        if len(files) == 1:
            if suffix_of(files[0]) not in BOTH_SIDES:
                raise UsageError(
                    f"{flag} takes two files, source and target, or one with both "
                    f"({', '.join(BOTH_SIDES)}): add the translation of {files[0]}"
                )
            files *= 2
        words += [word for file in files for word in (flag, file)] or [flag]
    return words


def _prepare(
    call: Call,
    /,
    *,
    list_recipes: Annotated[bool, Flag(name="--list")] = False,
) -> Result | None:
    """Prepare a dataset, or list recipes.

    Args:
        call: Prepares the dataset.
        list_recipes: Print the built-in recipes, and exit.
    """
    if not list_recipes:
        result: Result = call()
        return result
    from tfm.cli.output import print_recipes
    from tfm.text.corpus.loading import builtin_recipes, load_recipe

    print_recipes([load_recipe(name) for name in builtin_recipes()])
    return None


def _export(call: Call, /) -> None:
    result = call()
    if result.agreement is not None:
        _say_agreement(result.agreement)
    weights = call.keywords["quantization"].replace("none", "fp32")
    say(
        f"export: {result.model_dir} for {call.keywords['format']}, weights in {weights}, "
        f"{result.num_bytes / 1e6:,.1f} MB"
    )
    if call.keywords["format"] == "huggingface":
        say(
            "export: to publish it, choose the license in its README.md, and run pip install "
            f"huggingface_hub, hf auth login, and hf upload USER/NAME {result.out_dir}"
        )
    _print_paths(result.out_dir)


def _say_agreement(agreement: "Agreement") -> None:
    """Print the number of identical translations, and the first translation that differs."""
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
    from tfm.text.languages import shown_languages

    from_to = " to ".join(map(shown_languages, result.languages))
    say(f"import: {call.keywords['model']}, {from_to}, {result.num_parameters:,} parameters")
    if result.license is not None:
        say(f"import: license {result.license}")
    if result.takes_tokens:
        say(
            "import: there is no SentencePiece model: translate and train with text that is split "
            "into the model's tokens, separated by spaces; translations are such text"
        )
    if result.max_positions is not None:
        say(f"import: a sentence may have at most {result.max_positions:,} tokens, with its end")
    say(f"next: {tfm_command('generate', result.out_dir, '--input', '-')}")
    _print_paths(result.out_dir)


def _runs(call: Call, /, *, json: bool = False) -> None:
    """Print runs, and draw the runs that are named.

    Args:
        call: Finds the runs.
        json: Print the result as one JSON object.
    """
    from tfm.folders.run_folder import is_run

    named, out = call.keywords.get("folders"), call.keywords.get("out")
    if out is None and not json and named and all(map(is_run, named)):
        out = Path("runs.html")
        check_written_by(out, "tfm runs")
    print_result(call.func(**{**call.keywords, "out": out}), "json" if json else "text")
    if out is not None:
        say(f"runs: the curves are in {out}")


def _generate(call: Call, /) -> None:
    for line in call():
        print(line, end="", flush=True)  # noqa: T201


def _print_paths(*paths: Path) -> None:
    """Print the paths of written files; if standard output is closed, the files are still there."""
    if sys.stdout.writable():
        print(*paths, sep="\n")  # noqa: T201


class _ScoreCommand(Command):
    """A command that names the flags of files that are given without."""

    def explain_rest(self, ctx: Any, rest: list[str]) -> str:
        """Return the files with their flags; the first file may hold the translations."""
        quoted = [*map(shlex.quote, rest)]
        flags = [f"--reference {file}" for file in quoted]
        if ctx.params["hypotheses"] is None:
            flags = [f"--hypotheses {quoted[0]}", *(flags[1:] or ["or", *flags])]
        return f"takes files with flags only: give {' '.join(flags)}"


# The help lists commands in this order.
add_command(prepare, _prepare, panel="Text", cls=_PrepareCommand, forms=("json",))
add_command(learn_bpe, panel="Text")
add_command(binarize, panel="Text")
add_command(train, train_on_command_line, panel="Models")
add_command(average, panel="Models")
add_command(export, _export, panel="Models")
add_command(import_model, _import, name="import", panel="Models")
add_command(runs, _runs, panel="Models")
add_command(models, panel="Models", forms=("json",))
add_command(generate, _generate, panel="Translations")
add_command(score, panel="Translations", cls=_ScoreCommand, forms=("json",))
add_command(evaluate, panel="Translations", forms=("json", "markdown", "latex"))
add_command(check, panel="Translations", forms=("json",))
add_command(attend, lambda call, /: _print_paths(*call().paths), panel="Translations")
add_command(quickstart)
add_command(serve, panel="Translations")
add_command(doctor, lambda call, /: Diagnosis(call()), forms=("json",))
