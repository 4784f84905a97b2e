"""Commands that produce datasets: prepare, learn-bpe, binarize."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer

from tfm import api
from tfm.cli.app import DATA, FORCE, TEXT_PANEL, app, argument, option, switch
from tfm.cli.help import Command
from tfm.cli.options import Overrides, flat, hidden_option, hidden_switch, with_settings
from tfm.config import BinarizeConfig, CleaningConfig, SubwordConfig, settings_from
from tfm.config.schema import merged
from tfm.data.text_files import unpacked_name
from tfm.errors import UsageError
from tfm.stages.defaults import dataset
from tfm.storage.paths import existing_file, existing_path, new_folder

_TEXT_FLAGS = ("--train", "--valid", "--test")


class _PrepareCommand(Command):
    """A command whose flags of text take two files, or one .tsv file with both columns."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a .tsv file as source and target."""
        return super().parse_args(ctx, _with_both_sides(args))


def _with_both_sides(args: Sequence[str]) -> list[str]:
    """Return command-line arguments in which each flag of text has a source and a target file.

    --train gets them one by one: typer has no flags that are repeatable and take two values.

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
        if flag == "--train" and files:
            words += [flag, files[0], flag, files[1]]
        else:
            words += [flag, *files]
    return words


@app.command(rich_help_panel=TEXT_PANEL, cls=_PrepareCommand)
@with_settings(CleaningConfig, SubwordConfig, BinarizeConfig, help_all=True)
def prepare(
    recipe: str | None = argument(
        metavar="RECIPE", help="Name of a built-in recipe, or path of a recipe's TOML file."
    ),
    train: list[Path] | None = option(
        metavar="SRC TGT",
        callback=existing_file,
        help="Training text: source and target file, or one .tsv file with both; repeatable.",
    ),
    valid: tuple[Path, Path] | None = option(
        metavar="SRC TGT", callback=existing_file, help="Validation text, in the same forms."
    ),
    test: tuple[Path, Path] | None = option(
        metavar="SRC TGT", callback=existing_file, help="Test text, in the same forms."
    ),
    languages: tuple[str, str] | None = option(
        metavar="SRC TGT", help="Language codes, if they are not the file names' suffixes."
    ),
    train_trees: list[Path] | None = hidden_option(
        metavar="PATH",
        callback=existing_path,
        help="Training trees in brackets: a file or folder; repeatable.",
    ),
    valid_trees: list[Path] | None = hidden_option(
        metavar="PATH",
        callback=existing_path,
        help="Validation trees: a file or folder; repeatable.",
    ),
    test_trees: list[Path] | None = hidden_option(
        metavar="PATH", callback=existing_path, help="Test trees: a file or folder; repeatable."
    ),
    out: Path | None = option(callback=new_folder, help="Dataset folder (default: data/RECIPE)."),
    mirror: str | None = option(help="Folder or URL to fetch archives from, by their file names."),
    downloads: Path | None = hidden_option(
        callback=new_folder, help="Folder to keep archives in (default: OUT/downloads)."
    ),
    verify: bool = typer.Option(
        True, "--verify/--no-verify", hidden=True, help="Check archives against their checksums."
    ),
    list_recipes: bool = switch(
        "--list", help="Print the built-in recipes and the sizes of their texts, and exit."
    ),
    text_only: bool = switch("--text-only", help="Stop before learn-bpe and binarize."),
    append: bool = switch(
        "--append", help="Add the training text to the dataset in OUT; its vocabulary stays."
    ),
    part: str | None = hidden_option(
        metavar="I/N", help="Only clean share I of N of the training text; for several machines."
    ),
    fetch_only: bool = hidden_switch(
        "--fetch-only", help="Stop after the text is downloaded and unpacked."
    ),
    force: bool = FORCE,
    *,
    overrides: Overrides,
) -> None:
    """Prepare a dataset: download, clean, split, learn subwords, binarize.

    \b
    Examples:
      tfm prepare --list
      tfm prepare wmt14-en-de
      tfm prepare --train train.en train.de --valid valid.en valid.de \\
          --test test.en test.de --out data/mine
      tfm prepare --train train.tsv --valid valid.tsv --test test.tsv \\
          --languages en de --out data/mine
      tfm prepare --train-trees wsj/02-21 --valid-trees wsj/22 \\
          --test-trees wsj/23 --out data/wsj
    """
    if list_recipes:
        from tfm.cli.output import print_recipes
        from tfm.data.corpus.loading import builtin_recipes, load_recipe

        print_recipes([load_recipe(name) for name in builtin_recipes()])
        return
    api.prepare(
        recipe,
        train=None if not train else list(zip(train[::2], train[1::2], strict=True)),
        valid=valid,
        test=test,
        languages=languages,
        train_trees=train_trees,
        valid_trees=valid_trees,
        test_trees=test_trees,
        out=out,
        mirror=mirror,
        downloads=downloads,
        verify=verify,
        text_only=text_only,
        append=append,
        part=part,
        fetch_only=fetch_only,
        force=force,
        **flat(overrides),
    )


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
