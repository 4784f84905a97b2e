"""What `tfm prepare` refuses before the long work."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tfm.config import BinarizeConfig, CleaningConfig, SubwordConfig, Values
from tfm.dataset.draft import DRAFT
from tfm.dataset.encoded_shards import encoding_settings
from tfm.dataset.manifest import BINARIZE, GOLD, Manifest
from tfm.dataset.rerun import RUNS, changes
from tfm.dataset.text_report import DROPPED
from tfm.dataset.token_ids import check_tags
from tfm.disk.paths import OutputPath, check_outputs
from tfm.errors import DETAIL, DataError, UsageError, tfm_command
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import SPLITS
from tfm.text.languages import are_same
from tfm.text.seen import FILE as SEEN_TEXT
from tfm.vocabulary.foreign import load_subword_models
from tfm.vocabulary.subword import Vocabulary, model_paths


def check_settings(subword: SubwordConfig) -> None:
    """Raise an error if the steps after cleaning would refuse the settings."""
    if subword.subwords:
        models = load_subword_models([Path(each) for each in subword.subwords])
        check_tags(
            models,
            tags=(subword.symbols or "").split(),
            origin=" and ".join(subword.subwords),
            remedy="leave out --subwords",
        )


def check_folder(recipe: Recipe, out_dir: Path, *, text_only: bool, force: bool) -> None:
    """Raise UsageError rather than overwrite anything but this dataset."""
    languages = (recipe.source, recipe.target)
    suffixes = (*languages, GOLD) if recipe.task == "parsing" else languages
    names = [f"{split}.{suffix}" for split in SPLITS for suffix in suffixes]
    names += [f"mono.{text.language}" for text in recipe.mono]
    names += [RUNS, SEEN_TEXT, "bin/dataset.json", "metrics.jsonl", "checkpoints"]  # also of runs
    if not (out_dir / DRAFT).exists():  # otherwise, a call that was stopped may have written it
        names.append(DROPPED)
    written = OutputPath(path=out_dir, flag="--out", is_folder=True, others=names)
    check_outputs([written], recipe.local_paths())
    outputs = written.files
    if not text_only:
        models = model_paths(out_dir, separate=False) + model_paths(out_dir, separate=True)
        outputs += models + [path.with_suffix(".vocab") for path in models]
    if not (out_dir / "manifest.json").exists():
        parts = (out_dir.glob(f"train.[1-9]*.{language}") for language in languages)
        mono = filter(Path.is_file, out_dir.glob("mono.*"))
        for path in chain(outputs, *parts, mono):
            if path.exists():
                raise UsageError(
                    f"{path} was not written by tfm prepare: move it, which --force does not "
                    "replace, or choose another folder with --out"
                )
    elif not force:
        manifest = Manifest.load(out_dir)
        if (manifest.name, *manifest.languages) != (recipe.name, *languages):
            raise UsageError(
                f"{out_dir} holds {manifest.name} ({'-'.join(manifest.languages)}), not "
                f"{recipe.name} ({'-'.join(languages)}): choose another folder with --out, or "
                "replace the dataset with --force"
            )


def check_appended(
    recipe: Recipe, manifest: Manifest, cleaning: CleaningConfig, overrides: Mapping[str, Values]
) -> None:
    """Raise an error unless training text can be added to a dataset."""
    folder = manifest.data_dir
    if not (manifest.shard_files(["train"]) and manifest.texts("train")):
        raise DataError(f"{folder} has no training text to append to: run tfm prepare first")
    given = chain.from_iterable(
        {**getattr(recipe, section), **overrides.get(section, {})}
        for section in ("subword", "binarize")
    )
    settings = [name for name in given if name != "written_by"]
    held_out = {*recipe.cleaning, *overrides.get("cleaning", {})} & {"hold_out", "hold_out_seed"}
    new_tags = [tag for tag in recipe.tags() if tag not in manifest.symbols]
    normalization = manifest.normalization
    weights = [text.weight for text in (*manifest.texts("train"), *recipe.train)]
    if not all(map(are_same, (recipe.source, recipe.target), manifest.languages)):
        problem = (
            f"{folder} is {manifest.source}-{manifest.target}, but the text to append is "
            f"{recipe.source}-{recipe.target}"
        )
    elif recipe.task != manifest.task:
        problem = f"{folder} is for {manifest.task}, but the text to append for {recipe.task}"
    elif recipe.valid or recipe.test or recipe.mono or held_out:
        problem = "--append adds training text: leave out all other text, and hold_out"
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


def check_encoded(manifest: Manifest, config: BinarizeConfig) -> None:
    """Raise UsageError unless the token ids of a dataset were made with its settings."""
    data_dir = manifest.data_dir
    vocabulary = Vocabulary.load(data_dir, manifest.normalization)
    inputs = {"settings": encoding_settings(vocabulary, config)}
    if found := changes(manifest, BINARIZE, inputs, ["settings"]):
        summary = (
            f"{data_dir} is not encoded as its settings say: run "
            f"{tfm_command('binarize', data_dir)} with the settings that you want, then append"
        )
        raise UsageError(DETAIL.join([summary, *found]))
