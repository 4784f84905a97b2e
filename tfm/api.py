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
    ScoreConfig,
    Settings,
    by_section,
    settings_from,
)
from tfm.config.arguments import Line, argument, one_or_several
from tfm.config.schema import shown
from tfm.errors import UsageError
from tfm.stages.defaults import (
    check_extras,
    dataset_to_train_on,
    run_folder,
    run_settings,
)
from tfm.storage.paths import (
    RUNS_ROOT,
    STANDARD_STREAM,
    existing_file,
    existing_file_or_stream,
    existing_folder,
    new_folder,
)
from tfm.world import World

if TYPE_CHECKING:
    from tfm.metrics.metric import MetricName
    from tfm.stages.score import ScoreResult
    from tfm.stages.train import TrainResult

StrPath = str | os.PathLike[str]
Text = StrPath | Iterable[str]  # a file, or its lines
Paths = StrPath | Sequence[StrPath]
PathPairs = Paths | Sequence[Sequence[StrPath]]


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
