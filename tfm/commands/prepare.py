"""tfm prepare: recipe or text files → text, subword model and token ids of a dataset."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import override

from tfm.commands.binarize import find_origins
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
from tfm.config import (
    BinarizeConfig,
    CleaningConfig,
    Settings,
    SubwordConfig,
    Values,
    settings_from,
)
from tfm.config.schema import Rules, merged_table
from tfm.config.values import shown
from tfm.disk.paths import DATA_ROOT, existing_file, existing_path
from tfm.errors import UsageError, tfm_command
from tfm.reporting import Result, say
from tfm.text.files import suffix_of
from tfm.text.formats import JSON_LINES, TABLES

if TYPE_CHECKING:
    from tfm.dataset import shards
    from tfm.dataset.figures import Figures
    from tfm.dataset.test_sets import NamedSet
    from tfm.table import Table
    from tfm.text.cleaning import Score
    from tfm.text.corpus.recipe import Recipe
    from tfm.text.sources import Downloads

StrPath = str | os.PathLike[str]
Texts = Annotated[
    StrPath | Sequence[StrPath] | Sequence[Sequence[StrPath]],
    Flag("SRC TGT", kind=TextPairs),
]
Names = Annotated[tuple[str, ...], Flag("NAME")]
_OF_TEXT = ("train", "valid", "test", "languages", "columns", "keep_tags")
Trees = Annotated[
    tuple[Path, ...], existing_path, Flag("PATH", hidden=True), Rules(excludes=_OF_TEXT)
]
# What has no effect on the user's own files alone.
_OF_DOWNLOADS = Rules(needs=("recipe", "valid_set", "test_set", "protect"))
_FETCH_ONLY = replace(_OF_DOWNLOADS, excludes=("append", "share", "text_only", "force"))
_OF_RECIPE = Rules(excludes=(*_OF_TEXT, "train_trees", "valid_trees", "test_trees"))


@dataclass(frozen=True, kw_only=True)
class PrepareResult(Result):
    """A prepared dataset.

    Attributes:
        data_dir: The folder.
        is_new: Whether its text was written; False if it was up to date.
        figures: Pairs, tokens, lengths and scripts of its text, and how many pairs each rule
            dropped; None of a share and of downloads.
    """

    data_dir: Path
    is_new: bool
    figures: "Figures | None" = None

    @override
    def lines(self, columns: int | None) -> "Iterator[Table]":
        """Yield the tables of the figures."""
        return iter(()) if self.figures is None else self.figures.tables()

    @override
    def notes(self) -> "Iterator[str]":
        """Yield the command that follows."""
        if self.figures is not None:
            is_encoded = any("tokens" in side for side in self.figures.sides)
            yield f"next: {tfm_command('train' if is_encoded else 'learn-bpe', self.data_dir)}"

    @override
    def record(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**asdict(self), "data_dir": str(self.data_dir)}


@command(CleaningConfig, SubwordConfig, BinarizeConfig)
def prepare(
    recipe: Annotated[str | None, Flag("RECIPE"), _OF_RECIPE] = None,
    *,
    train: Texts = (),
    valid: Texts = (),
    test: Texts = (),
    valid_set: Annotated[Names, Rules(excludes=("append",))] = (),
    test_set: Annotated[Names, Rules(excludes=("append", "share"))] = (),
    languages: Annotated[tuple[str, str] | None, Flag("SRC TGT")] = None,
    columns: Hidden[Annotated[str | None, Flag("S,T")]] = None,
    keep_tags: Hidden[bool] = False,
    train_trees: Trees = (),
    valid_trees: Trees = (),
    test_trees: Trees = (),
    out: NewFolder = None,
    mirror: Annotated[str | None, _OF_DOWNLOADS] = None,
    downloads: Hidden[Annotated[NewFolder, _OF_DOWNLOADS]] = None,
    verify: Hidden[Annotated[bool, _OF_DOWNLOADS]] = True,
    text_only: bool = False,
    append: Annotated[bool, Rules(needs=("out",), excludes=("force",))] = False,
    share: Hidden[Annotated[Share, Rules(excludes=("append", "text_only", "force"))]] = None,
    fetch_only: Hidden[Annotated[bool, _FETCH_ONLY]] = False,
    force: bool = False,
    **settings: Any,
) -> PrepareResult:
    r"""Prepare a dataset: download, clean, split, learn subwords, binarize.

    Examples::

        tfm prepare --list
        tfm prepare wmt14-en-de --test-set wmt19 --test-set wmt24
        tfm prepare --train train.en train.de --valid valid.en valid.de \
            --test test.en test.de --out data/mine
        tfm prepare --train memory.tmx --valid valid.csv --test test.jsonl \
            --languages en de --out data/mine
        tfm prepare --train-trees wsj/02-21 --valid-trees wsj/22 \
            --test-trees wsj/23 --out data/wsj

    Args:
        recipe: Name of a built-in recipe, or path of a recipe's TOML file.
        train: Training text: source and target file, or one with both (.tsv, .csv, .jsonl, .tmx,
            .xml); repeatable.
        valid: Validation text, in the same forms.
        test: Test text, in the same forms.
        valid_set: Validation set of sacreBLEU, such as wmt13; repeatable.
        test_set: Test set of sacreBLEU, such as wmt24; repeatable.
        languages: Language codes, unless they are the files' suffixes.
        columns: Columns of source and target, by number or title, or keys of JSON lines, such as
            2,3 or translation.en,translation.de.
        keep_tags: Keep the inline tags of TMX as placeholders such as {1}.
        train_trees: Training trees in brackets: a file or folder; repeatable.
        valid_trees: Validation trees: a file or folder; repeatable.
        test_trees: Test trees: a file or folder; repeatable.
        out: Dataset folder (default: data/RECIPE).
        mirror: Folder or URL that has the archives by their names.
        downloads: Folder to keep archives in (default: OUT/downloads).
        verify: Check archives against their checksums.
        text_only: Stop before learn-bpe and binarize.
        append: Add the training text to the dataset in OUT.
        share: Only clean share I of N of the training text; for several machines.
        fetch_only: Stop after the text is downloaded and unpacked.
        force: Redo all steps, even if runs depend on the dataset.
        **settings: Settings of [cleaning], [subword] and [binarize].

    Raises:
        UsageError: Arguments are wrong or contradict each other, or a file does not exist.
        DataError: Text or archives are missing, damaged or inconsistent, or a disk is too small,
            which is checked before anything is downloaded.
        LockedFolderError: Another process writes to the dataset.
    """
    texts = {"train": train, "valid": valid, "test": test}
    pairs = {name: _pairs(name, given) for name, given in texts.items()}
    trees = {"train": train_trees, "valid": valid_trees, "test": test_trees}
    chosen = _chosen_recipe(recipe, pairs, trees, languages, columns, out, keep_tags=keep_tags)
    folder = out or DATA_ROOT / chosen.name
    from tfm.dataset import shards
    from tfm.text.sources import Downloads

    sets = _named_sets(test_set, chosen)
    archives = Downloads(mirror=mirror, folder=downloads, verify=verify)
    if valid_set:
        chosen = _validated_on(chosen, valid_set, archives)
    if append:
        return append_text(chosen, folder, settings, archives, text_only=text_only)
    return prepare_recipe(
        chosen,
        folder,
        settings,
        archives,
        sets=sets,
        text_only=text_only,
        fetch_only=fetch_only,
        share=None if share is None else shards.Share.parse(share),
        force=force,
    )


def prepare_recipe(
    recipe: "Recipe",
    out_dir: Path,
    overrides: Mapping[str, Values] = {},
    downloads: "Downloads | None" = None,
    *,
    sets: "Mapping[str, NamedSet] | None" = None,
    text_only: bool = False,
    fetch_only: bool = False,
    share: "shards.Share | None" = None,
    force: bool = False,
) -> PrepareResult:
    """Prepare a dataset by a recipe, whose settings `overrides` replace: {section: {name: value}}.

    Only training text is cleaned; validation and test text keep every line, with Unicode composed.
    A step is skipped if its inputs have not changed and its outputs exist, so files that only
    earlier steps read may be deleted, and a killed call is resumed by the next one.

    A call without a `share` joins the shares of earlier calls, which different machines may clean
    at the same time. `force` replaces another dataset in the folder, which stays as it was until
    all text of the new one is complete.
    """
    from tfm.dataset import checks, subword_models, text_writer, token_ids
    from tfm.dataset.clean_text import CleanText
    from tfm.dataset.draft import lock_dataset, lock_share
    from tfm.dataset.figures import Figures
    from tfm.dataset.manifest import Manifest
    from tfm.dataset.test_sets import write_sets

    tables = _tables(recipe, overrides)
    cleaning = settings_from(CleaningConfig, tables["cleaning"])
    subword = settings_from(SubwordConfig, tables["subword"])
    binarization = settings_from(BinarizeConfig, tables["binarize"])
    checks.check_settings(subword)
    scorers = _scorers(recipe, cleaning)
    is_new, figures = False, None
    with lock_dataset(out_dir) if share is None else lock_share(out_dir, share):
        checks.check_folder(recipe, out_dir, text_only=text_only, force=force)
        manifest = Manifest.draft(out_dir, recipe, tables, keep_steps=not force)
        # Before the long work, because they may be unavailable.
        origins = find_origins(manifest, binarization)
        text = CleanText(recipe, manifest, cleaning, downloads, scorers=scorers, force=force)
        files = {name: named.fetch(text.downloads) for name, named in (sets or {}).items()}
        if share is not None:
            text_writer.write_share(manifest, text, share)
        elif fetch_only:
            text_writer.fetch_text(manifest, text)
            say("the text is on this disk: without --fetch-only, the same command prepares it")
        else:
            is_new = text_writer.update_text(manifest, text)
            if is_new or text_only:
                manifest.save()
            if "valid" not in manifest.splits():
                say(
                    "warning: there is no validation text, so training cannot tell when to stop: "
                    "give --valid, or take it from the training text with --hold-out 2000"
                )
            if not text_only:  # refused before the manifest is saved, if runs need the older ones
                subword_models.update(manifest, subword, force=force)
                token_ids.update(manifest, binarization, origins, force=force)
            write_sets(manifest, sets or {}, files, force=force)
            figures = Figures.of(manifest, is_encoded=not text_only)
    if is_new and text.sources.unpacked_paths:
        say(f"{out_dir / 'raw'} and the downloads are only needed to clean the text again")
    return PrepareResult(data_dir=out_dir, is_new=is_new, figures=figures)


def append_text(
    recipe: "Recipe",
    out_dir: Path,
    overrides: Mapping[str, Values] = {},
    downloads: "Downloads | None" = None,
    *,
    text_only: bool = False,
) -> PrepareResult:
    """Add the training text of a recipe to a dataset, in further shards of it.

    It is cleaned by the rules of the dataset, unless the recipe or `overrides` change them, and
    pairs that the dataset has are dropped. The subword model stays, and only the new text is
    encoded.
    """
    from tfm.dataset import checks, rerun, text_writer, token_ids
    from tfm.dataset.clean_text import CleanText
    from tfm.dataset.draft import lock_dataset
    from tfm.dataset.figures import Figures
    from tfm.dataset.manifest import Manifest

    given = _tables(recipe, overrides)
    Manifest.load(out_dir)  # before its lock creates the folder
    with lock_dataset(out_dir):
        manifest = Manifest.load(out_dir)
        rules, kept = manifest.normalization, manifest.settings("binarize")
        before = (manifest.inputs("clean") or {}).get("cleaning", {})
        if before.get("scores"):  # which are of the text before
            before = {**before, "scores": None, "min_score": None}
        table = {"normalize_unicode": rules.unicode, **before, **given["cleaning"]}
        cleaning = settings_from(CleaningConfig, table)
        checks.check_appended(recipe, manifest, cleaning, overrides)
        added = {"written_by": given["binarize"].get("written_by", ())}
        writers = (*kept.get("written_by", ()), *settings_from(BinarizeConfig, added).written_by)
        binarization = settings_from(
            BinarizeConfig, {**kept, "written_by": [*dict.fromkeys(writers)]}
        )
        origins = find_origins(manifest, binarization)  # before the long work
        if not text_only:
            checks.check_encoded(manifest, binarization)
        text = CleanText(
            recipe,
            manifest,
            cleaning,
            downloads,
            normalization=rules,
            scorers=_scorers(recipe, cleaning),
            # An identical call finds the text that it has unpacked.
            step=f"append-{len(manifest.appended()) + 1}",
            first=1 + len(manifest.texts("train")),
        )
        runs = ", ".join(map(str, rerun.runs_on(out_dir)))
        is_new = text_writer.update_text(manifest, text)
        manifest.save()
        if not text_only:
            token_ids.update(manifest, binarization, origins)
        if is_new and runs:
            say(
                f"warning: {runs} cannot be resumed on a dataset that has grown: start another run "
                "from it with tfm train --from"
            )
        figures = Figures.of(manifest, is_encoded=not text_only)
    return PrepareResult(data_dir=out_dir, is_new=is_new, figures=figures)


def _tables(recipe: "Recipe", overrides: Mapping[str, Values]) -> dict[str, dict[str, Any]]:
    """Return the settings of a recipe by section, with the user's settings and all tags."""
    kinds: Sequence[type[Settings]] = (CleaningConfig, SubwordConfig, BinarizeConfig)
    tables = {
        kind.section: merged_table(
            kind, recipe.settings(kind.section), overrides.get(kind.section, {})
        )
        for kind in kinds
    }
    if tags := recipe.tags():
        known = (tables["subword"].get("symbols") or "").split()
        symbols = [*known, *(tag for tag in tags if tag not in known)]
        tables["subword"]["symbols"] = " ".join(symbols)
    return tables


def _scorers(
    recipe: "Recipe", cleaning: CleaningConfig
) -> "dict[str, tuple[str, Callable[[str | None], Score]]]":
    """Return {path: (checksum, scorer)} of the models that score training text; check its rules."""
    from tfm.dataset.clean_text import cleaning_of
    from tfm.text.pair_checks import pair_checks

    configs = [cleaning_of(text, cleaning) for text in recipe.train]
    for config in configs:
        pair_checks(config, recipe.source, recipe.target)
    paths = dict.fromkeys(config.score_model for config in configs if config.score_model)
    if not paths:
        return {}
    from tfm.translation.pair_scores import PairScorer  # imports torch, which takes seconds

    languages: Values = {"source": recipe.source, "target": recipe.target}
    scorers = {path: PairScorer(Path(path), **languages) for path in paths}
    return {path: (each.fingerprint, each.for_text) for path, each in scorers.items()}


def _chosen_recipe(
    name_or_path: str | None,
    text: Mapping[str, Sequence[tuple[Path, Path]]],
    trees: Mapping[str, Sequence[Path]],
    languages: tuple[str, str] | None,
    columns: str | None,
    out: Path | None,
    *,
    keep_tags: bool,
) -> "Recipe":
    """Return the recipe that the user names, or one for the user's own text or trees."""
    from tfm.text.corpus import loading

    if name_or_path is not None:
        return loading.load_recipe(name_or_path)
    if not (text["train"] or trees["train"]):
        raise UsageError(
            f"name a recipe ({', '.join(loading.builtin_recipes())}, or a TOML file; --list "
            "describes them), or pass your own text with --train SRC TGT, or trees with "
            "--train-trees"
        )
    if out is None:
        raise UsageError("name the folder of the new dataset, such as --out data/mine")
    name = Path(os.path.abspath(out)).name  # "." has none  # noqa: PTH100
    if trees["train"]:
        return loading.recipe_from_trees(name=name, **trees)
    named = None if columns is None else _columns(columns, chain(*text.values()))
    return loading.recipe_from_files(
        name=name, languages=languages, columns=named, keep_tags=keep_tags, **text
    )


def _columns(text: str, files: Iterable[tuple[Path, Path]]) -> tuple[int | str, int | str]:
    """Return the numbers or names of the columns that a user gives for files."""
    if not any(suffix_of(source.name) in (*TABLES, *JSON_LINES) for source, _ in files):
        raise UsageError("--columns is for tables and JSON lines: leave it out")
    columns = [int(each) if re.fullmatch("[0-9]{1,4}", each) else each for each in text.split(",")]
    if len(columns) != 2 or columns[0] == columns[1] or not all(columns):
        raise UsageError(
            f"--columns is {shown(text)}, but must be the columns of source and target, such as "
            "2,3 or translation.en,translation.de"
        )
    return columns[0], columns[1]


def _named_sets(names: Sequence[str], recipe: "Recipe") -> "dict[str, NamedSet]":
    """Return the test sets that a user names, in the languages of a recipe."""
    if not names:
        return {}
    from tfm.dataset.test_sets import NamedSet

    return {name: NamedSet.parse(name).between(recipe.source, recipe.target) for name in names}


def _validated_on(recipe: "Recipe", names: Sequence[str], archives: "Downloads") -> "Recipe":
    """Fetch test sets, and return the recipe with them as further validation text."""
    from tfm.text.corpus.texts import TextFiles

    if recipe.task == "parsing":
        raise UsageError("--valid-set is for text, not for trees: leave it out")
    files = [named.write(archives) for named in _named_sets(names, recipe).values()]
    texts = [TextFiles(source=str(source), target=str(target)) for source, target in files]
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
                f"text is source and target, or one file with both, not {len(paths)} files: "
                f"{', '.join(map(str, paths))}"
            )
        pairs.append((paths[0], paths[-1]))
    return pairs
