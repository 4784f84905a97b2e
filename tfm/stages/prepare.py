"""tfm prepare: recipe or text files → text, subword model and token ids of a dataset."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from tfm.config import BinarizeConfig, CleaningConfig, SubwordConfig, Table, settings_from
from tfm.config.schema import merged_table
from tfm.dataset.manifest import GOLD, Manifest
from tfm.dataset.test_sets import NamedSet, read_protected, write_sets
from tfm.dataset.text_parts import Share, lock_dataset, lock_share
from tfm.dataset.text_writer import TextWriter, cleaning_of
from tfm.dataset.token_parts import encoding_changes
from tfm.disk.paths import OutputPath, check_outputs
from tfm.errors import DETAIL, DataError, UsageError, tfm_command
from tfm.reporting import say
from tfm.stages.binarize import check_models, check_task, find_origins, update_token_ids
from tfm.stages.dataset_runs import check_runs, runs_on
from tfm.stages.learn_bpe import update_subword_models
from tfm.text.cleaning import Score
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import SPLITS
from tfm.text.languages import are_same
from tfm.text.pair_checks import pair_checks
from tfm.text.sources import Downloads, TextSources
from tfm.vocabulary.foreign import load_subword_models
from tfm.vocabulary.subword import Vocabulary, model_paths


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """The dataset folder, and whether its text was written; False if it was up to date."""

    data_dir: Path
    is_new: bool


def prepare(
    recipe: Recipe,
    out_dir: Path,
    overrides: Mapping[str, Table] = {},
    downloads: Downloads = Downloads(),
    *,
    sets: Mapping[str, NamedSet] = {},
    text_only: bool = False,
    fetch_only: bool = False,
    share: Share | None = None,
    force: bool = False,
) -> PrepareResult:
    """Prepare a dataset: download, extract, clean, learn the subword model, binarize.

    Only training text is cleaned; validation and test text keep every line, with Unicode composed.
    A step is skipped if its inputs have not changed and its outputs exist, so files that only
    earlier steps read may be deleted, and a killed call is resumed by the next one.

    `overrides` are {"cleaning" | "subword" | "binarize": {name: value}}; they replace settings of
    the recipe. A call without a `share` joins the shares of earlier calls, which different machines
    may clean at the same time. `force` replaces another dataset in the folder, which stays as it
    was until all text of the new one is complete. Other arguments and the errors are documented at
    the command.
    """
    settings = {
        kind.section: merged_table(
            kind, recipe.settings(kind.section), overrides.get(kind.section, {})
        )
        for kind in (CleaningConfig, SubwordConfig, BinarizeConfig)
    }
    if tags := recipe.tags():
        known = (settings["subword"].get("symbols") or "").split()
        symbols = [*known, *(tag for tag in tags if tag not in known)]
        settings["subword"]["symbols"] = " ".join(symbols)
    cleaning = settings_from(CleaningConfig, settings["cleaning"])
    subword = settings_from(SubwordConfig, settings["subword"])
    binarization = settings_from(BinarizeConfig, settings["binarize"])
    _check_encoding(recipe, subword, binarization)
    sources = TextSources(
        recipe,
        data_dir=out_dir,
        downloads=downloads,
        tags=(subword.symbols or "").split(),
    )
    scorers = _scorers(recipe, cleaning)
    lock = lock_dataset(out_dir) if share is None else lock_share(out_dir, share)
    with lock:
        _check_folder(recipe, out_dir, text_only=text_only, force=force)
        manifest = Manifest.draft(
            out_dir,
            name=recipe.name,
            source=recipe.source,
            target=recipe.target,
            settings={
                "task": recipe.task,
                "subword": settings["subword"],
                "binarize": settings["binarize"],
                "search": recipe.settings("search"),
            },
            keep_steps=not force,
        )
        find_origins(manifest, binarization)
        # Before the long work, because they may be unavailable.
        for_sets = replace(downloads, folder=sources.downloads_dir)
        files = {name: named.fetch(for_sets) for name, named in sets.items()}
        protected = read_protected(cleaning.protect, manifest.languages, for_sets)
        rules = cleaning, cleaning.normalization
        writer = TextWriter(sources, *rules, *scorers, manifest, force, protected=protected)
        if not fetch_only:
            _check_replaced(writer, out_dir, force=force)
        if share is not None:
            writer.write_share(share)
            return PrepareResult(data_dir=out_dir, is_new=False)
        if fetch_only:
            writer.fetch()
            return PrepareResult(data_dir=out_dir, is_new=False)
        is_new = writer.update()
        if is_new or text_only:
            manifest.save()
        if not recipe.valid:
            say("warning: there is no validation text, so training cannot tell when to stop")
        if not text_only:  # refused before the manifest is saved, if runs need the older ones
            update_subword_models(manifest, subword, force=force)
            update_token_ids(manifest, binarization, force=force)
        if write_sets(manifest, sets, files, force=force):
            manifest.save()
    if is_new and sources.unpacked_paths:
        say(f"{out_dir / 'raw'} and the downloads are only needed to clean the text again")
    return PrepareResult(data_dir=out_dir, is_new=is_new)


def append_text(
    recipe: Recipe,
    out_dir: Path,
    overrides: Mapping[str, Table] = {},
    downloads: Downloads = Downloads(),
    *,
    text_only: bool = False,
) -> PrepareResult:
    """Add the training text of a recipe to a dataset, in further parts of it.

    It is cleaned by the rules of the dataset, unless the recipe or `overrides` change them, and
    pairs that the dataset has are dropped. The subword model stays, and only the new text is
    encoded. Takes the arguments and raises the errors of `prepare`.
    """
    with lock_dataset(out_dir):
        manifest = Manifest.load(out_dir)
        # What an older record lacks.
        before: dict[str, Any] = {"normalize_unicode": manifest.normalization.unicode}
        before |= (manifest.inputs("clean") or {}).get("cleaning", {})
        table = {**before, **recipe.settings("cleaning"), **overrides.get("cleaning", {})}
        cleaning = settings_from(CleaningConfig, table)
        _check_appended(recipe, manifest, cleaning, overrides)
        table = {
            **manifest.settings("binarize"),
            "written_by": _writers(manifest, recipe, overrides),
        }
        binarization = settings_from(BinarizeConfig, table)
        find_origins(manifest, binarization)  # before the long work
        if not text_only:
            _check_encoded(manifest, binarization)
        # An identical call finds the text that it has unpacked.
        step = f"append-{len(manifest.appended()) + 1}"
        sources = TextSources(
            recipe,
            data_dir=out_dir,
            raw_dir=out_dir / "raw" / step,
            downloads=downloads,
            tags=manifest.symbols,
        )
        scorers = _scorers(recipe, cleaning)
        rules = manifest.normalization
        protected = read_protected(cleaning.protect, manifest.languages, downloads)
        options: Table = {"step_prefix": f"{step}.", "protected": protected}
        writer = TextWriter(sources, cleaning, rules, *scorers, manifest, **options)
        runs = runs_on(out_dir)
        is_new = writer.append()
        manifest.save()
        if not text_only:
            update_token_ids(manifest, binarization, force=False)
        if is_new and runs:
            say(
                f"warning: {', '.join(map(str, runs))} cannot be resumed on a dataset that has "
                "grown: start another run from it with tfm train --from"
            )
    return PrepareResult(data_dir=out_dir, is_new=is_new)


def _writers(manifest: Manifest, recipe: Recipe, overrides: Mapping[str, Table]) -> list[str]:
    """Return the models that wrote some text of a dataset, or of what is appended to it."""
    table = {**recipe.settings("binarize"), **overrides.get("binarize", {})}
    added = settings_from(BinarizeConfig, {"written_by": table.get("written_by", ())}).written_by
    return [*dict.fromkeys((*manifest.settings("binarize").get("written_by", ()), *added))]


def _check_appended(
    recipe: Recipe, manifest: Manifest, cleaning: CleaningConfig, overrides: Mapping[str, Table]
) -> None:
    """Raise an error unless training text can be added to a dataset."""
    folder = manifest.data_dir
    parts = manifest.text_parts("train")
    missing = [name for name in manifest.part_sizes() if name not in parts]
    if missing or not parts:
        raise DataError(
            f"the text {folder / (missing or ['train'])[0]}.{manifest.source} is missing, but is "
            "needed to find duplicates: prepare the dataset again"
        )
    settings = [
        name
        for section in ("subword", "binarize")
        for name in {**getattr(recipe, section), **overrides.get(section, {})}
        if name != "written_by"
    ]
    new_tags = [tag for tag in recipe.tags() if tag not in manifest.symbols]
    normalization = manifest.normalization
    weights = [text.weight for text in (*manifest.texts("train"), *recipe.train)]
    if not manifest.part_sizes():
        problem = f"an older tfm prepared {folder}: prepare it again, then append"
    elif not all(map(are_same, (recipe.source, recipe.target), (manifest.source, manifest.target))):
        problem = (
            f"{folder} is {manifest.source}-{manifest.target}, but the text to append is "
            f"{recipe.source}-{recipe.target}"
        )
    elif recipe.task != manifest.task:
        problem = f"{folder} is for {manifest.task}, but the text to append for {recipe.task}"
    elif recipe.valid or recipe.test or recipe.mono:
        problem = "--append adds training text: leave out all other text"
    elif settings:
        problem = (
            f"appended text is encoded as the text of {folder}: leave out {', '.join(settings)}"
        )
    elif replace(cleaning.normalization, version=normalization.version) != normalization:
        problem = f"normalize_space and normalize_unicode must be as in {folder}: leave them out"
    elif None in weights and any(weights):
        problem = f"give all texts of {folder} and those to append a weight, or none of them"
    elif new_tags:
        problem = (
            f"the vocabulary of {folder} has no piece for the tag {new_tags[0]}, only for "
            f"{', '.join(manifest.symbols) or 'none'}: reserve tags for later text with --symbols "
            "when the dataset is prepared"
        )
    else:
        return
    raise UsageError(problem)


def _check_encoded(manifest: Manifest, config: BinarizeConfig) -> None:
    """Raise UsageError unless the token ids of a dataset were made with its settings."""
    data_dir = manifest.data_dir
    vocabulary = Vocabulary.load(data_dir, manifest.normalization)
    if changes := encoding_changes(manifest, vocabulary, config):
        summary = (
            f"{data_dir} is not encoded as its settings say: run "
            f"{tfm_command('binarize', data_dir)} with the settings that you want, then append"
        )
        raise UsageError(DETAIL.join([summary, *changes]))


def _check_folder(recipe: Recipe, out_dir: Path, *, text_only: bool, force: bool) -> None:
    """Raise UsageError rather than overwrite anything but this dataset."""
    languages = (recipe.source, recipe.target)
    suffixes = (*languages, GOLD) if recipe.task == "parsing" else languages
    names = [f"{split}.{suffix}" for split in SPLITS for suffix in suffixes]
    names += [f"mono.{text.language}" for text in recipe.mono]
    written = OutputPath(path=out_dir, flag="--out", is_folder=True, others=names)
    check_outputs([written], recipe.local_paths())
    outputs = written.files
    if not text_only:
        outputs += model_paths(out_dir, separate=False) + model_paths(out_dir, separate=True)
    if not (out_dir / "manifest.json").exists():
        parts = (out_dir.glob(f"train.[1-9]*.{language}") for language in languages)
        for path in chain(outputs, *parts):
            if path.exists():
                raise UsageError(
                    f"{path} was not written by tfm prepare: move it, which --force does not "
                    "replace, or choose another folder with --out"
                )
    elif not force:
        manifest = Manifest.load(out_dir)
        if (manifest.name, manifest.source, manifest.target) != (recipe.name, *languages):
            raise UsageError(
                f"{out_dir} holds {manifest.name} ({manifest.source}-{manifest.target}), not "
                f"{recipe.name} ({'-'.join(languages)}): choose another folder with --out, or "
                "replace the dataset with --force"
            )


def _check_replaced(writer: TextWriter, out_dir: Path, *, force: bool) -> None:
    """Raise UsageError rather than remove text, or change what runs need; `force` only warns."""
    if lost := " and ".join(writer.lost_text()):
        if not force:
            raise UsageError(
                f"{out_dir} has {lost} text that this call does not name and would remove: "
                "name it again, choose another folder with --out, or remove it with --force"
            )
        say(f"warning: {out_dir} loses {lost} text that this call does not name")
    if force or writer.changes_training_text():
        check_runs(out_dir, ["its training text would be other text"], force=force)


def _check_encoding(recipe: Recipe, subword: SubwordConfig, binarization: BinarizeConfig) -> None:
    """Raise an error if the steps after cleaning would refuse the settings."""
    check_task(binarization, recipe.task)
    if subword.subwords:
        models = load_subword_models([Path(each) for each in subword.subwords])
        check_models(
            binarization,
            models,
            tags=(subword.symbols or "").split(),
            origin=" and ".join(subword.subwords),
            remedy="leave out --subwords",
        )
    elif binarization.bpe_dropout and (subword.model_type != "bpe" or subword.target_words):
        raise UsageError("bpe_dropout needs --model-type bpe, without --target-words")


def _scorers(
    recipe: Recipe, cleaning: CleaningConfig
) -> tuple[dict[str, Callable[[str | None], Score]], dict[str, str]]:
    """Return the models that score training text and their checksums; check all settings."""
    configs = [cleaning_of(text, cleaning) for text in recipe.train]
    for config in configs:
        pair_checks(config, recipe.source, recipe.target)
    paths = dict.fromkeys(config.score_model for config in configs if config.score_model)
    if not paths:
        return {}, {}
    from tfm.translation.pair_scores import PairScorer  # imports torch, which takes seconds

    scorers = {
        path: PairScorer(Path(path), source=recipe.source, target=recipe.target) for path in paths
    }
    return (
        {path: each.for_text for path, each in scorers.items()},
        {path: each.fingerprint for path, each in scorers.items()},
    )
