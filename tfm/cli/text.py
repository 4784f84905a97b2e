"""Commands that produce datasets: prepare, learn-bpe, binarize."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any

from tfm.cli.app import TEXT_PANEL
from tfm.cli.flags import Call, add_command
from tfm.cli.help import Command
from tfm.commands.binarize import binarize
from tfm.commands.declaration import Flag
from tfm.commands.learn_bpe import learn_bpe
from tfm.commands.prepare import prepare
from tfm.data.text_files import unpacked_name
from tfm.errors import UsageError

_TEXT_FLAGS = ("--train", "--valid", "--test")


class _PrepareCommand(Command):
    """A command whose flags of text take two files, or one .tsv file with both columns."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a .tsv file as source and target."""
        return super().parse_args(ctx, _with_both_sides(args))


def _with_both_sides(args: Sequence[str]) -> list[str]:
    """Return command-line arguments in which each flag of text has a source and a target file.

    The flag is repeated for each: typer has no flags that are repeatable and take two values.

    Raises:
        UsageError: A flag has a single file that is not .tsv.
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
            if not unpacked_name(files[0]).endswith(".tsv"):
                raise UsageError(
                    f"{flag} takes two files, source and target, or one .tsv file with two "
                    f"columns: add the translation of {files[0]}"
                )
            files *= 2
        words += [word for file in files for word in (flag, file)] or [flag]
    return words


def _prepare(
    call: Call,
    /,
    *,
    list_recipes: Annotated[bool, Flag(name="--list", before="text_only")] = False,
) -> None:
    """Prepare a dataset, or list recipes.

    Args:
        call: Prepares the dataset.
        list_recipes: Print the built-in recipes and the sizes of their texts, and exit.
    """
    if not list_recipes:
        call()
        return
    from tfm.cli.output import print_recipes
    from tfm.data.corpus.loading import builtin_recipes, load_recipe

    print_recipes([load_recipe(name) for name in builtin_recipes()])


add_command(prepare, _prepare, panel=TEXT_PANEL, cls=_PrepareCommand)


add_command(learn_bpe, panel=TEXT_PANEL)
add_command(binarize, panel=TEXT_PANEL)
