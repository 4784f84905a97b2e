"""Commands that produce datasets: prepare, learn-bpe, binarize."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from tfm.cli.app import DATA, FORCE, TEXT_PANEL, app, option
from tfm.cli.flags import Call, add_command
from tfm.cli.help import Command
from tfm.cli.options import Overrides, with_settings
from tfm.commands.declaration import Flag
from tfm.commands.prepare import prepare
from tfm.config import BinarizeConfig, SubwordConfig, settings_from
from tfm.config.schema import merged
from tfm.data.text_files import unpacked_name
from tfm.errors import UsageError
from tfm.stages.defaults import dataset

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


@app.command(rich_help_panel=TEXT_PANEL, cls=Command)
@with_settings(SubwordConfig)
def learn_bpe(data: Path | None = DATA, force: bool = FORCE, *, overrides: Overrides) -> None:
    """Learn the subword vocabulary of a dataset.

    \b
    Examples:
      tfm learn-bpe data/mine --vocab-size 8000
      tfm learn-bpe data/mine --subwords my.model
    """
    from tfm.data.manifest import Manifest
    from tfm.stages.learn_bpe import learn_bpe as run_stage
    from tfm.stages.learn_bpe import merged_table

    folder = dataset(data)
    defaults = Manifest.load(folder).settings("subword")
    table = merged_table(defaults, overrides.get("subword", {}))
    run_stage(folder, settings_from(SubwordConfig, table), force=force)


@app.command(rich_help_panel=TEXT_PANEL, cls=Command)
@with_settings(BinarizeConfig)
def binarize(
    data: Path | None = DATA,
    part: str | None = option(
        metavar="I/N",
        help="Encode only share I of N of the parts of the training text; for several machines.",
    ),
    force: bool = FORCE,
    *,
    overrides: Overrides,
) -> None:
    """Turn the text of a dataset into token ids on disk.

    Example: tfm binarize data/mine --threads 8
    """
    from tfm.data.manifest import Manifest
    from tfm.data.text_parts import Share
    from tfm.stages.binarize import binarize as run_stage
    from tfm.stages.binarize import binarize_share

    folder = dataset(data)
    defaults = Manifest.load(folder).settings("binarize")
    table = merged(BinarizeConfig, defaults, overrides.get("binarize", {}))
    config = settings_from(BinarizeConfig, table)
    if part is None:
        run_stage(folder, config, force=force)
        return
    if "shortlist" in overrides.get("binarize", {}):
        raise UsageError(
            "--shortlist has no effect with --part: give it to tfm binarize without --part"
        )
    binarize_share(folder, config, Share.parse(part), force=force)
