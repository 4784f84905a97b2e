"""tfm prepare: recipe or text files → text, subword model and token ids of a dataset."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import (
    Flag,
    Hidden,
    NewFolder,
    Share,
    TextPairs,
    argument,
    command,
    one_or_several,
)
from tfm.config import BinarizeConfig, CleaningConfig, SubwordConfig
from tfm.config.values import shown
from tfm.disk.paths import DATA_ROOT, existing_file, existing_path
from tfm.errors import UsageError

if TYPE_CHECKING:
    from tfm.dataset.test_sets import NamedSet
    from tfm.stages.prepare import PrepareResult
    from tfm.text.corpus.recipe import Recipe
    from tfm.text.sources import Downloads

StrPath = str | os.PathLike[str]
Texts = Annotated[
    StrPath | Sequence[StrPath] | Sequence[Sequence[StrPath]],
    Flag("SRC TGT", kind=TextPairs),
]
Trees = Annotated[tuple[Path, ...], existing_path, Flag("PATH", hidden=True)]


@command(CleaningConfig, SubwordConfig, BinarizeConfig)
def prepare(
    recipe: Annotated[str | None, Flag("RECIPE")] = None,
    *,
    train: Texts = (),
    valid: Texts = (),
    test: Texts = (),
    valid_set: Annotated[tuple[str, ...], Flag("NAME")] = (),
    test_set: Annotated[tuple[str, ...], Flag("NAME")] = (),
    languages: Annotated[tuple[str, str] | None, Flag("SRC TGT")] = None,
    columns: Hidden[Annotated[str | None, Flag("S,T")]] = None,
    train_trees: Trees = (),
    valid_trees: Trees = (),
    test_trees: Trees = (),
    out: NewFolder = None,
    mirror: str | None = None,
    downloads: Hidden[NewFolder] = None,
    verify: Hidden[bool] = True,
    text_only: bool = False,
    append: bool = False,
    share: Hidden[Share] = None,
    fetch_only: Hidden[bool] = False,
    force: bool = False,
    **settings: Any,
) -> "PrepareResult":
    r"""Prepare a dataset: download, clean, split, learn subwords, binarize.

    Examples::

        tfm prepare --list
        tfm prepare wmt14-en-de --test-set wmt19 --test-set wmt24
        tfm prepare --train train.en train.de --valid valid.en valid.de \
            --test test.en test.de --out data/mine
        tfm prepare --train train.tsv --valid valid.tsv --test test.tsv \
            --languages en de --out data/mine
        tfm prepare --train-trees wsj/02-21 --valid-trees wsj/22 \
            --test-trees wsj/23 --out data/wsj

    Args:
        recipe: Name of a built-in recipe, or path of a recipe's TOML file.
        train: Training text: source and target file, or one .tsv or .xml with both; repeatable.
        valid: Validation text, in the same forms.
        test: Test text, in the same forms.
        valid_set: Validation set of sacreBLEU, such as wmt13; repeatable.
        test_set: Test set of sacreBLEU, such as wmt24; repeatable.
        languages: Language codes, unless they are the files' suffixes.
        columns: Numbers of the columns of source and target in .tsv files, such as 2,3.
        train_trees: Training trees in brackets: a file or folder; repeatable.
        valid_trees: Validation trees: a file or folder; repeatable.
        test_trees: Test trees: a file or folder; repeatable.
        out: Dataset folder (default: data/RECIPE).
        mirror: Folder or URL that has the archives by their names.
        downloads: Folder to keep archives in (default: OUT/downloads).
        verify: Check archives against their checksums.
        text_only: Stop before learn-bpe and binarize.
        append: Add the training text to the dataset in OUT, which keeps its vocabulary.
        share: Only clean share I of N of the training text; for several machines.
        fetch_only: Stop after the text is downloaded and unpacked.
        force: Redo this step, even if its inputs are unchanged or runs depend on its output.
        **settings: Settings of [cleaning], [subword] and [binarize].

    Raises:
        UsageError: Arguments are wrong or contradict each other, or a file does not exist.
        DataError: Text or archives are missing, damaged or inconsistent, or a disk is too small,
            which is checked before anything is downloaded.
        LockedFolderError: Another process writes to the dataset.
    """
    for_downloads = mirror is not None or downloads is not None or not verify or fetch_only
    has_sets = valid_set or test_set or settings["cleaning"].get("protect")
    if recipe is None and not has_sets and for_downloads:
        raise UsageError(
            "--mirror, --downloads, --no-verify and --fetch-only have no effect without a recipe"
        )
    if test_set and (append or share):
        raise UsageError("--append and --share are about training text: leave out --test-set")
    if valid_set and append:
        raise UsageError("--append is about training text: leave out --valid-set")
    if append and (out is None or force):
        raise UsageError("--append needs --out, the dataset to add to, and cannot go with --force")
    exclusive = [bool(share), fetch_only, append]
    if sum(exclusive) > 1 or (any(exclusive[:2]) and (force or text_only)):
        raise UsageError(
            "--share, --fetch-only and --append exclude each other, and the first two --force and "
            "--text-only, too: give one"
        )
    texts = {"train": train, "valid": valid, "test": test}
    pairs = {name: _pairs(name, given) for name, given in texts.items()}
    trees = {"train": train_trees, "valid": valid_trees, "test": test_trees}
    chosen = _chosen_recipe(recipe, pairs, trees, languages, columns, out)
    folder = out or DATA_ROOT / chosen.name
    from tfm.dataset import text_parts
    from tfm.stages import prepare as stage
    from tfm.text.sources import Downloads

    sets = _named_sets(test_set, chosen)
    archives = Downloads(mirror=mirror, folder=downloads, verify=verify)
    if valid_set:
        chosen = _validated_on(chosen, _named_sets(valid_set, chosen).values(), archives)
    if append:
        return stage.append_text(chosen, folder, settings, archives, text_only=text_only)
    return stage.prepare(
        chosen,
        folder,
        settings,
        archives,
        sets=sets,
        text_only=text_only,
        fetch_only=fetch_only,
        share=None if share is None else text_parts.Share.parse(share),
        force=force,
    )


def _chosen_recipe(
    name_or_path: str | None,
    text: Mapping[str, Sequence[tuple[Path, Path]]],
    trees: Mapping[str, Sequence[Path]],
    languages: tuple[str, str] | None,
    columns: str | None,
    out: Path | None,
) -> "Recipe":
    """Return the recipe that the user names, or one for the user's own text or trees."""
    from tfm.text.corpus import loading

    if name_or_path is not None:
        if languages or columns or any((*text.values(), *trees.values())):
            raise UsageError(
                "a recipe names its own files: leave out --train, --valid, --test and --columns"
            )
        return loading.load_recipe(name_or_path)
    if (languages or columns or any(text.values())) and any(trees.values()):
        raise UsageError("text and trees exclude each other: give --train or --train-trees")
    if not (text["train"] or trees["train"]):
        raise UsageError(
            f"name a recipe ({', '.join(loading.builtin_recipes())}, or a TOML file; --list "
            "describes them), or pass your own text with --train SRC TGT, or trees with "
            "--train-trees"
        )
    if out is None:
        raise UsageError("name the folder of the new dataset, such as --out data/mine")
    if trees["train"]:
        return loading.recipe_from_trees(name=out.name, **trees)
    numbers = None if columns is None else _column_numbers(columns)
    return loading.recipe_from_files(name=out.name, languages=languages, columns=numbers, **text)


def _column_numbers(text: str) -> tuple[int, int]:
    """Return the numbers of the columns that a user names."""
    match = re.fullmatch(r"([1-9][0-9]{0,3}),([1-9][0-9]{0,3})", text)
    if match is None or match[1] == match[2]:
        raise UsageError(
            f"--columns is {shown(text)}, but must be the numbers of the columns of source and "
            "target, such as 2,3"
        )
    return int(match[1]), int(match[2])


def _named_sets(names: Sequence[str], recipe: "Recipe") -> "dict[str, NamedSet]":
    """Return the test sets that a user names, in the languages of a recipe."""
    if not names:
        return {}
    from tfm.dataset.test_sets import NamedSet

    return {name: NamedSet.parse(name).between(recipe.source, recipe.target) for name in names}


def _validated_on(recipe: "Recipe", sets: "Iterable[NamedSet]", archives: "Downloads") -> "Recipe":
    """Return a recipe with test sets, which are fetched, as further validation text."""
    from tfm.text.corpus.texts import TextFiles

    if recipe.task == "parsing":
        raise UsageError("--valid-set is for text, not for trees: leave it out")
    files = (map(str, each.write(archives)) for each in sets)
    texts = [TextFiles(source=source, target=target) for source, target in files]
    return replace(recipe, valid=(*recipe.valid, *texts))


def _pairs(name: str, texts: object) -> list[tuple[Path, Path]]:
    """Return the files of source and target of each text; one file is both."""
    several = one_or_several(texts)
    if several and all(isinstance(each, str | os.PathLike) for each in several):
        several = [several]
    pairs = []
    for text in several:
        paths = existing_file([argument(name, path, Path) for path in one_or_several(text)])
        if len(paths) not in (1, 2):
            raise UsageError(
                f"text is source and target, or one .tsv file with both, not {len(paths)} files: "
                f"{', '.join(map(str, paths))}"
            )
        pairs.append((paths[0], paths[-1]))
    return pairs
