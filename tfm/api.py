"""The stages as functions, with the settings, defaults and checks of their commands.

Settings are named as in their groups or as their flags; None leaves a setting at its default. All
functions print their progress on stderr, and raise a TfmError where the command fails.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tfm.config import (
    RUN_SETTINGS,
    AverageConfig,
    BinarizeConfig,
    CleaningConfig,
    ScoreConfig,
    Settings,
    SubwordConfig,
    by_section,
    settings_from,
)
from tfm.config.arguments import Line, argument, one_or_several
from tfm.config.schema import shown
from tfm.errors import UsageError
from tfm.stages.defaults import (
    DATA_ROOT,
    RUNS_ROOT,
    check_extras,
    dataset_to_train_on,
    run_folder,
    run_settings,
)
from tfm.storage.paths import (
    STANDARD_STREAM,
    existing_file,
    existing_file_or_stream,
    existing_folder,
    existing_path,
    new_folder,
)
from tfm.world import World

if TYPE_CHECKING:
    from tfm.metrics.metric import MetricName
    from tfm.stages.average import AverageResult
    from tfm.stages.prepare import PrepareResult
    from tfm.stages.score import ScoreResult
    from tfm.stages.train import TrainResult

StrPath = str | os.PathLike[str]
Text = StrPath | Iterable[str]  # a file, or its lines
Paths = StrPath | Sequence[StrPath]
PathPairs = Paths | Sequence[Sequence[StrPath]]


def prepare(
    recipe: StrPath | None = None,
    *,
    train: PathPairs | None = None,
    valid: Paths | None = None,
    test: Paths | None = None,
    languages: tuple[str, str] | None = None,
    train_trees: Paths | None = None,
    valid_trees: Paths | None = None,
    test_trees: Paths | None = None,
    out: StrPath | None = None,
    mirror: StrPath | None = None,
    downloads: StrPath | None = None,
    verify: bool = True,
    text_only: bool = False,
    append: bool = False,
    part: str | None = None,
    fetch_only: bool = False,
    force: bool = False,
    **settings: Any,
) -> "PrepareResult":
    """Prepare a dataset of a recipe or of your own text or trees, as `tfm prepare` does.

    Args:
        recipe: Name of a built-in recipe, or path of a recipe's TOML file.
        train: Training text: source and target file, or one .tsv file with both columns; or a
            list of several such texts.
        valid: Validation text, in the same forms.
        test: Test text, in the same forms.
        languages: Codes of both languages, if they are not the suffixes of the files.
        train_trees: Files or folders of training trees in brackets.
        valid_trees: Files or folders of validation trees.
        test_trees: Files or folders of test trees.
        out: Dataset folder; data/RECIPE if None.
        mirror: Folder or URL to fetch archives from, by their file names.
        downloads: Folder to keep archives in; in the dataset folder if None.
        verify: Check archives against their checksums.
        text_only: Stop before the subword model is learned.
        append: Add the training text to the dataset in `out`, whose subword model stays.
        part: Only clean a share of the training text, such as "3/8", for a call without it.
        fetch_only: Stop after the text is downloaded and unpacked.
        force: Redo all steps, and replace another dataset in the folder, or that of runs.
        **settings: Settings of [cleaning], [subword] and [binarize].

    Raises:
        UsageError: Arguments are wrong or contradict each other, or a file does not exist.
        DataError: Text or archives are missing, damaged or inconsistent, or a disk is too small.
    """
    flags = {"verify": verify, "text_only": text_only, "append": append, "force": force}
    for name, flag in {**flags, "fetch_only": fetch_only}.items():
        argument(name, flag, bool | None)
    part = argument("part", part, str | None)
    verify = verify is not False  # None is the default, too
    from tfm.data.text_parts import Share
    from tfm.stages.prepare import append_text, requested_recipe
    from tfm.stages.prepare import prepare as run_stage

    overrides = _by_section(prepare, (CleaningConfig, SubwordConfig, BinarizeConfig), settings)
    fetches = mirror is not None or downloads is not None or not verify or fetch_only
    if recipe is None and fetches:
        raise UsageError(
            "--mirror, --downloads, --no-verify and --fetch-only have no effect without a recipe"
        )
    out_dir = new_folder(_path("out", out))
    if append and (out_dir is None or force):
        raise UsageError("--append needs --out, the dataset to add to, and cannot go with --force")
    exclusive = [bool(part), bool(fetch_only), bool(append)]
    if sum(exclusive) > 1 or (any(exclusive[:2]) and (force or text_only)):
        raise UsageError(
            "--part, --fetch-only and --append exclude each other, and the first two --force and "
            "--text-only, too: give one"
        )
    selected_recipe = requested_recipe(
        argument("recipe", recipe, str | None),
        text={
            "train": _pairs("train", train),
            "valid": _pairs("valid", valid),
            "test": _pairs("test", test),
        },
        languages=argument("languages", languages, tuple[str, str] | None),
        trees={
            "train": existing_path(_paths("train_trees", train_trees)),
            "valid": existing_path(_paths("valid_trees", valid_trees)),
            "test": existing_path(_paths("test_trees", test_trees)),
        },
        out_dir=out_dir,
    )
    folder = out_dir or DATA_ROOT / selected_recipe.name
    share = None if part is None else Share.parse(part)
    run: Callable[..., PrepareResult] = append_text
    if not append:
        run = partial(run_stage, force=force, share=share, fetch_only=fetch_only)
    return run(
        selected_recipe,
        folder,
        mirror=None if _path("mirror", mirror) is None else str(mirror),
        verify=verify,
        downloads_dir=new_folder(_path("downloads", downloads)),
        overrides=overrides,
        text_only=text_only,
    )


def train(
    data: StrPath | None = None,
    *,
    run: StrPath | None = None,
    arch: str | None = None,
    from_model: StrPath | None = None,
    config: StrPath | None = None,
    **settings: Any,
) -> "TrainResult":
    """Train a model in this process, or resume its run, as `tfm train` does.

    Several GPUs need several processes: start them with `tfm train --gpus N`.

    Ctrl-C and other signals save the run first, if this is the main thread; a second Ctrl-C raises
    KeyboardInterrupt. A run that makes no progress for `stall_minutes` ends the process.

    Args:
        data: Dataset folder; that of an existing `run`, or else the newest in data/, if None.
        run: Run folder, runs/DATA-ARCH if None; an existing one keeps its settings.
        arch: Preset; the one that suits the size of the dataset and the device if None.
        from_model: Model or run folder to start from, as with `tfm train --from`.
        config: TOML file of settings.
        **settings: Settings of [model], [optimizer], [batching] and [training].

    Raises:
        UsageError: Arguments are wrong, or differ from those of the run to resume.
        DataError: There is no dataset, or it cannot be used.
        CheckpointError: The checkpoints are damaged, or the last one could not be saved.
        TrainingError: Too many steps in a row were skipped, or there is not enough memory.
        InterruptedRunError: A signal stopped the run, which is saved.
    """
    overrides = _by_section(
        train, RUN_SETTINGS, settings, gpus="tfm train --gpus on the command line"
    )
    run_dir = new_folder(_path("run", run))
    settings_for = partial(
        run_settings,
        run=run_dir,
        arch=argument("arch", arch, str | None),
        config=existing_file(_path("config", config)),
        overrides=overrides,
        from_model=existing_folder(_path("from_model", from_model)),
    )
    check_extras(settings_for(None))  # finds mistakes before the dataset is opened
    data_dir = dataset_to_train_on(existing_folder(_path("data", data)), run_dir)
    merged = settings_for(data_dir)
    from tfm.stages.train import train as run_stage

    run_dir = run_folder(run_dir, data_dir, merged)
    return run_stage(data_dir, run_dir, merged, world=World.from_environment())


def average(
    run: StrPath | None = None, *, out: StrPath | None = None, **settings: Any
) -> "AverageResult":
    """Average the last or the best checkpoints of a run, as `tfm average` does.

    Args:
        run: Run folder; the newest in runs/ if None.
        out: Folder of the averaged model; RUN/averaged if None.
        **settings: Settings of [average].

    Raises:
        UsageError: Arguments are wrong, or there are fewer checkpoints than requested.
        CheckpointError: The run has no checkpoints, or a damaged one.
    """
    given = _by_section(average, [AverageConfig], settings).get("average", {})
    config = settings_from(AverageConfig, given)
    run_dir, out_dir = existing_folder(_path("run", run)), new_folder(_path("out", out))
    from tfm.folders.run_folder import newest_run
    from tfm.stages.average import average as run_stage

    return run_stage(run_dir or newest_run(RUNS_ROOT), config, out_dir=out_dir)


def score(
    hypotheses: Text,
    reference: Text | Sequence[Text] | None = None,
    *,
    metric: "MetricName | Sequence[MetricName] | None" = None,
    paper: bool = False,
    language: str | None = None,
    baseline: Text | None = None,
    **settings: Any,
) -> "ScoreResult":
    """Score translations, as `tfm score` does.

    Args:
        hypotheses: File of translations, or a list of them; "-" is standard input.
        reference: One or more reference files, or lists; that of the last `tfm generate` if None.
            A list of strings is a reference if the translations are a list, too, or else files.
        metric: One or more metrics; BLEU and chrF, or bracket F1 for trees, if None.
        paper: Also compute BLEU as in the paper.
        language: Target language, for BLEU's tokenizer and the paper's BLEU; that of the last
            `tfm generate` for this reference, or the reference's suffix, if None.
        baseline: Other translations of the same text, to test whether the scores differ.
        **settings: Settings of [score].

    Raises:
        UsageError: Arguments are wrong or without effect, or there is no reference.
        DataError: A text is missing, empty or not UTF-8, or the files differ in length.
    """
    from tfm.stages.score import requested_metrics
    from tfm.stages.score import score as run_stage

    given = _by_section(score, [ScoreConfig], settings).get("score", {})
    language = argument("language", language, str | None)
    metrics = requested_metrics(
        argument("metric", one_or_several(metric), tuple[str, ...]),
        [*given, *(["language"] if language else [])],
        paper=argument("paper", paper, bool | None) or False,
        has_baseline=baseline is not None,
    )
    text = _text("hypotheses", hypotheses, existing_file_or_stream)
    return run_stage(
        None if text == STANDARD_STREAM else text,
        _texts("reference", reference, are_lines=isinstance(text, list)),
        metrics=metrics,
        config=settings_from(ScoreConfig, given),
        baseline=None if baseline is None else _text("baseline", baseline),
        language=language,
        runs_dir=RUNS_ROOT,
    )


def _path(name: str, path: StrPath | None) -> Path | None:
    return cast("Path | None", argument(name, path, Path | None))


def _paths(name: str, paths: object) -> list[Path]:
    return [argument(name, path, Path) for path in one_or_several(paths)]


def _pairs(name: str, texts: PathPairs | None) -> list[tuple[Path, Path]]:
    """Return source and target file of one text or of each in a list; the same for a .tsv file."""
    several = one_or_several(texts)
    if several and all(isinstance(each, str | os.PathLike) for each in several):
        several = [several]
    pairs = []
    for text in several:
        paths = existing_file(_paths(name, text))
        if len(paths) not in (1, 2):
            raise UsageError(
                f"text is source and target, or one .tsv file with both, not {len(paths)} files: "
                f"{', '.join(map(str, paths))}"
            )
        pairs.append((paths[0], paths[-1]))
    return pairs


def _text(
    name: str, text: object, check: Callable[[Path], Path | None] = existing_file
) -> Path | list[str]:
    """Return a file that exists, or the lines of a list."""
    if not isinstance(text, str | os.PathLike | Iterable):
        raise UsageError(f"{name} is {shown(text)}, but must be a path, or a list of texts")
    if not isinstance(text, str | os.PathLike):
        return list(argument(name, text, tuple[Line, ...]))
    path: Path = argument(name, text, Path)
    check(path)
    return path


def _texts(name: str, texts: object, *, are_lines: bool) -> list[Path | list[str]]:
    """Return one or more texts; a list of strings is one text if `are_lines`, or else files."""
    several = one_or_several(texts)
    is_list = not isinstance(texts, str) and all(isinstance(each, str) for each in several)
    if are_lines and several and is_list:
        return [several]
    return [_text(f"{name}[{number}]", each) for number, each in enumerate(several)]


def _by_section(
    function: Callable[..., object],
    kinds: Iterable[type[Settings]],
    settings: Mapping[str, Any],
    **elsewhere: str,
) -> dict[str, dict[str, Any]]:
    """Sort a function's settings into sections; for unknown names, suggest its parameters, too."""
    parameters = inspect.signature(function).parameters.values()
    others = {each.name: each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    return by_section(kinds, settings, {**others, **elsewhere})
