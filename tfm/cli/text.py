"""Commands that produce datasets: prepare, learn-bpe, binarize."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tfm.cli.app import DATA, FORCE, TEXT_PANEL, app
from tfm.cli.help import Command
from tfm.cli.options import Overrides, with_settings
from tfm.config import BinarizeConfig, CleaningConfig, SubwordConfig, settings_from
from tfm.errors import UsageError
from tfm.stages.defaults import DATA_ROOT, dataset
from tfm.storage.paths import existing_file, existing_path, new_folder

if TYPE_CHECKING:
    from tfm.data.corpus.recipe import Recipe

_TEXT_FLAGS = ("--train", "--valid", "--test")


class _PrepareCommand(Command):
    """A command whose flags of text take two files, or one .tsv file with both columns."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a .tsv file as source and target, which the flags take."""
        return super().parse_args(ctx, _with_both_sides(args))


def _with_both_sides(args: Sequence[str]) -> list[str]:
    """Return command-line arguments in which each flag of text has a source and a target file.

    Raises:
        UsageError: A flag has a single file that is not .tsv.
    """
    paired: list[str] = []
    for index, arg in enumerate(args):
        paired.append(arg)
        flag = args[index - 1] if index else ""
        is_single = args[index + 1 : index + 2] == [] or args[index + 1].startswith("-")
        if flag in _TEXT_FLAGS and is_single and not arg.startswith("-"):
            if not arg.endswith((".tsv", ".tsv.gz")):
                raise UsageError(
                    f"{flag} takes two files, source and target, or one .tsv file with two "
                    f"columns: add the translation of {arg}"
                )
            paired.append(arg)
    return paired


@app.command(rich_help_panel=TEXT_PANEL, cls=_PrepareCommand)
@with_settings(CleaningConfig, SubwordConfig, BinarizeConfig, help_all=True)
def prepare(
    recipe: str | None = typer.Argument(
        None, metavar="RECIPE", help="Name of a built-in recipe, or path of a recipe's TOML file."
    ),
    train: tuple[Path, Path] | None = typer.Option(
        None,
        metavar="SRC TGT",
        callback=existing_file,
        help="Training text: source and target file, or one .tsv file with both columns.",
    ),
    valid: tuple[Path, Path] | None = typer.Option(
        None,
        metavar="SRC TGT",
        callback=existing_file,
        help="Validation text, in the same forms.",
    ),
    test: tuple[Path, Path] | None = typer.Option(
        None, metavar="SRC TGT", callback=existing_file, help="Test text, in the same forms."
    ),
    languages: tuple[str, str] | None = typer.Option(
        None, metavar="SRC TGT", help="Language codes, if they are not the file names' suffixes."
    ),
    train_trees: list[Path] | None = typer.Option(
        None,
        hidden=True,
        metavar="PATH",
        callback=existing_path,
        help="Training trees in brackets: a file or folder; repeatable.",
    ),
    valid_trees: list[Path] | None = typer.Option(
        None,
        hidden=True,
        metavar="PATH",
        callback=existing_path,
        help="Validation trees: a file or folder; repeatable.",
    ),
    test_trees: list[Path] | None = typer.Option(
        None,
        hidden=True,
        metavar="PATH",
        callback=existing_path,
        help="Test trees: a file or folder; repeatable.",
    ),
    out: Path | None = typer.Option(
        None, callback=new_folder, help="Dataset folder (default: data/RECIPE)."
    ),
    mirror: str | None = typer.Option(
        None, help="Folder or URL to fetch archives from, by their file names."
    ),
    downloads: Path | None = typer.Option(
        None,
        callback=new_folder,
        hidden=True,
        help="Folder to keep archives in (default: OUT/downloads).",
    ),
    verify: bool = typer.Option(
        True, "--verify/--no-verify", hidden=True, help="Check archives against their checksums."
    ),
    list_recipes: bool = typer.Option(
        False, "--list", help="Print the built-in recipes and the sizes of their texts, and exit."
    ),
    text_only: bool = typer.Option(
        False, "--text-only", help="Stop before learn-bpe and binarize."
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
    from tfm.data.corpus.loading import builtin_recipes, load_recipe
    from tfm.stages.prepare import prepare as run_stage

    if list_recipes:
        from tfm.cli.output import print_recipes

        print_recipes([load_recipe(name) for name in builtin_recipes()])
        return
    if recipe is None and (mirror is not None or downloads is not None or not verify):
        raise UsageError("--mirror, --downloads and --no-verify have no effect without a recipe")
    text = {"train": train, "valid": valid, "test": test}
    trees = {"train": train_trees, "valid": valid_trees, "test": test_trees}
    if recipe is None:
        selected_recipe = _recipe_from_user_files(text, languages, trees, out)
    elif languages or any((*text.values(), *trees.values())):
        raise UsageError("a recipe names its own files: leave out --train, --valid and --test")
    else:
        selected_recipe = load_recipe(recipe)
    run_stage(
        selected_recipe,
        out or DATA_ROOT / selected_recipe.name,
        mirror=mirror,
        verify=verify,
        downloads_dir=downloads,
        overrides=overrides,
        text_only=text_only,
        force=force,
    )


def _recipe_from_user_files(
    text: Mapping[str, tuple[Path, Path] | None],
    languages: tuple[str, str] | None,
    trees: Mapping[str, list[Path] | None],
    out: Path | None,
) -> "Recipe":
    """Make a recipe of the user's text or trees, which are given by split."""
    from tfm.data.corpus.loading import builtin_recipes
    from tfm.data.corpus.user_files import recipe_from_files, recipe_from_trees

    if (languages or any(text.values())) and any(trees.values()):
        raise UsageError("text and trees exclude each other: give --train or --train-trees")
    if not (text["train"] or trees["train"]):
        raise UsageError(
            f"name a recipe ({', '.join(builtin_recipes())}, or a TOML file; --list describes "
            "them), or pass your own text with --train SRC TGT, or trees with --train-trees"
        )
    if out is None:
        raise UsageError("name the folder of the new dataset, such as --out data/mine")
    if trees["train"]:
        paths = {split: files or [] for split, files in trees.items()}
        return recipe_from_trees(name=out.name, **paths)
    pairs = {split: [pair] if pair else [] for split, pair in text.items()}
    source, target = languages or (None, None)
    return recipe_from_files(name=out.name, source=source, target=target, **pairs)


@app.command(rich_help_panel=TEXT_PANEL, cls=Command)
@with_settings(SubwordConfig)
def learn_bpe(data: Path | None = DATA, force: bool = FORCE, *, overrides: Overrides) -> None:
    """Learn the subword vocabulary of a dataset.

    Example: tfm learn-bpe data/mine --vocab-size 8000
    """
    from tfm.data.manifest import Manifest
    from tfm.stages.learn_bpe import learn_bpe as run_stage

    folder = dataset(data)
    table = {**Manifest.load(folder).settings("subword"), **overrides.get("subword", {})}
    run_stage(folder, settings_from(SubwordConfig, table), force=force)


@app.command(rich_help_panel=TEXT_PANEL, cls=Command)
@with_settings(BinarizeConfig)
def binarize(data: Path | None = DATA, force: bool = FORCE, *, overrides: Overrides) -> None:
    """Turn the text of a dataset into token ids on disk.

    Example: tfm binarize data/mine --jobs 8
    """
    from tfm.data.manifest import Manifest
    from tfm.stages.binarize import binarize as run_stage

    folder = dataset(data)
    table = {**Manifest.load(folder).settings("binarize"), **overrides.get("binarize", {})}
    run_stage(folder, settings_from(BinarizeConfig, table), force=force)
