"""Commands that make a dataset: prepare, learn-bpe, binarize."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfm.cli.app import DATA_ROOT, TEXT_PANEL, DataArgument, ForceOption, app, dataset
from tfm.cli.options import Given, with_settings
from tfm.config import BinarizeConfig, CleaningConfig, SubwordConfig, settings_from
from tfm.errors import UsageError

if TYPE_CHECKING:
    from tfm.data.corpus.recipe import Recipe


@app.command(rich_help_panel=TEXT_PANEL)
@with_settings(CleaningConfig, SubwordConfig, BinarizeConfig)
def prepare(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="Name of a built-in recipe, or a TOML file."),
    ] = None,
    train: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="SRC TGT", help="Your own training text: source and target file."),
    ] = None,
    valid: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="SRC TGT", help="Your own validation text, likewise."),
    ] = None,
    test: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="SRC TGT", help="Your own test text, likewise."),
    ] = None,
    languages: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="SRC TGT",
            help="Languages of your own text, if the suffixes of its files do not say so.",
        ),
    ] = None,
    train_trees: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="Your own bracketed trees, a file or folder; may be repeated."
        ),
    ] = None,
    valid_trees: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Your own trees to validate on, likewise."),
    ] = None,
    test_trees: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Your own trees to test on, likewise."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Dataset folder; data/RECIPE if not given.")
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(help="Folder or URL that serves each archive by its name.")
    ] = None,
    downloads: Annotated[
        Path | None,
        typer.Option(help="Folder to keep archives in; OUT/downloads if not given."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Check archives against their checksums.")
    ] = True,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Stop before learn-bpe and binarize.")
    ] = False,
    force: ForceOption = False,
    *,
    given: Given,
) -> None:
    """Make a dataset: download, clean, split, learn subwords, binarize.

    Examples:
      tfm prepare wmt14-en-de

      tfm prepare --train my.en my.de --valid dev.en dev.de --test test.en test.de --out data/mine

      tfm prepare --train-trees wsj/02-21 --valid-trees wsj/22 --test-trees wsj/23 --out data/wsj
    """
    from tfm.stages.prepare import prepare as run_stage

    if recipe is None and (mirror is not None or downloads is not None or not verify):
        raise UsageError("--mirror, --downloads and --no-verify need a recipe that downloads")
    own_text = _OwnText(train=train, valid=valid, test=test, languages=languages)
    own_trees = _OwnTrees(train=train_trees, valid=valid_trees, test=test_trees)
    chosen = _recipe(recipe, own_text, own_trees, out)
    run_stage(
        chosen,
        out or DATA_ROOT / chosen.name,
        mirror=mirror,
        verify=verify,
        downloads_dir=downloads,
        overrides=given,
        text_only=text_only,
        force=force,
    )


@app.command(rich_help_panel=TEXT_PANEL)
@with_settings(SubwordConfig)
def learn_bpe(data: DataArgument = None, force: ForceOption = False, *, given: Given) -> None:
    """Learn the subword vocabulary of a dataset.

    Example: tfm learn-bpe data/mine --vocab-size 8000
    """
    from tfm.data.manifest import Manifest
    from tfm.stages.learn_bpe import learn_bpe as run_stage

    folder = dataset(data)
    recipe = Manifest.load(folder).settings("subword")
    run_stage(
        folder, settings_from(SubwordConfig, {**recipe, **given.get("subword", {})}), force=force
    )


@app.command(rich_help_panel=TEXT_PANEL)
@with_settings(BinarizeConfig)
def binarize(data: DataArgument = None, force: ForceOption = False, *, given: Given) -> None:
    """Turn the text of a dataset into token ids on disk.

    Example: tfm binarize data/mine --jobs 8
    """
    from tfm.data.manifest import Manifest
    from tfm.stages.binarize import binarize as run_stage

    folder = dataset(data)
    table = {**Manifest.load(folder).settings("binarize"), **given.get("binarize", {})}
    run_stage(folder, settings_from(BinarizeConfig, table), force=force)


@dataclass(frozen=True, kw_only=True)
class _OwnText:
    """A user's own files of text, each a pair of source and target."""

    train: tuple[Path, Path] | None
    valid: tuple[Path, Path] | None
    test: tuple[Path, Path] | None
    languages: tuple[str, str] | None

    def __bool__(self) -> bool:
        return any((self.train, self.valid, self.test, self.languages))


@dataclass(frozen=True, kw_only=True)
class _OwnTrees:
    """A user's own files and folders of trees."""

    train: list[Path] | None
    valid: list[Path] | None
    test: list[Path] | None

    def __bool__(self) -> bool:
        return any((self.train, self.valid, self.test))


def _recipe(name: str | None, text: _OwnText, trees: _OwnTrees, out: Path | None) -> "Recipe":
    from tfm.data.corpus.loading import builtin_recipes, load_recipe
    from tfm.data.corpus.own import recipe_from_files, recipe_from_trees

    if name is not None:
        if text or trees:
            raise UsageError("a recipe names its own text: leave out --train, --valid and --test")
        return load_recipe(name)
    if text and trees:
        raise UsageError("text and trees exclude each other: give --train or --train-trees")
    if not (text.train or trees.train):
        raise UsageError(
            f"name a recipe ({', '.join(builtin_recipes())}, or a TOML file), or give your own "
            "text with --train SRC TGT, or trees with --train-trees"
        )
    if out is None:
        raise UsageError("say where your dataset goes, such as --out data/mine")
    if trees.train:
        return recipe_from_trees(
            name=out.name, train=trees.train, valid=trees.valid or [], test=trees.test or []
        )
    source, target = text.languages or (None, None)
    return recipe_from_files(
        name=out.name,
        train=[text.train] if text.train else [],
        valid=[text.valid] if text.valid else [],
        test=[text.test] if text.test else [],
        source=source,
        target=target,
    )
