"""tfm evaluate: models and test sets → a matrix of scores with intervals and significance."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from tfm import __version__
from tfm.commands.declaration import Flag, NewFolder, argument, command, one_or_several
from tfm.commands.generate import Models, generate
from tfm.commands.score import requested_metrics
from tfm.config import InferenceConfig, ScoreConfig, SearchConfig, settings_from, settings_to
from tfm.data.languages import target_language
from tfm.errors import UsageError
from tfm.metrics.metric import MetricName
from tfm.steps import StepsConfig
from tfm.storage.files import sha256_of
from tfm.storage.paths import RUNS_ROOT, existing_file, new_file

if TYPE_CHECKING:
    from tfm.applications.evaluate.tables import Evaluation, SetResult
    from tfm.folders.model_folder import ModelFolder

_SECTIONS = ("steps", "search", "inference")  # the settings of translations
_DIGITS = 12  # of a checksum in a file name


class _TestText(NamedTuple):
    name: str
    source: Path
    references: Sequence[Path]


class _System(NamedTuple):
    name: str
    model: "ModelFolder"
    search: dict[str, Any]  # all settings of its search

    @classmethod
    def of(cls, path: Path, model: "ModelFolder", given: Mapping[str, Any]) -> "_System":
        """Return a model as the user named it; UsageError if it has several outputs of a line."""
        search = SearchConfig.for_model(model.info.search, given)
        if search.num_outputs > 1:
            raise UsageError("evaluate scores one translation of each line: add --mbr to n_best")
        return cls(str(path), model, settings_to(search))


@command(
    StepsConfig,
    SearchConfig,
    InferenceConfig,
    ScoreConfig,
    without=("format", "document", "align", "align_reverse"),
)
def evaluate(
    models: Models = (),
    *,
    on: Annotated[tuple[str, ...], Flag("SET")] = ("test",),
    metric: Annotated[
        MetricName | Sequence[MetricName] | None,
        Flag("METRIC", kind=tuple[str, ...]),
    ] = None,
    out: NewFolder = Path("evaluation"),
    page: Annotated[Path | None, partial(new_file, flag="--page"), Flag("FILE")] = None,
    mirror: str | None = None,
    gpus: Annotated[str | None, Flag("[N|auto]")] = None,
    **settings: Any,
) -> "Evaluation":
    """Score models on test sets, and test whether they differ from the first.

    Examples::

        tfm evaluate runs/base runs/big --on wmt14 --on wmt24 --beam 4
        tfm evaluate runs/mine --on test --on news.en:news.de --page scores.html

    Args:
        models: Model or run folders (default: the newest run); the first is the baseline.
        on: Split of the dataset, test set of sacreBLEU, or SOURCE:REFERENCE; repeatable.
        metric: Metric; repeatable (default: bleu and chrf, or bracket-f1 for trees).
        out: Folder that keeps the translations.
        page: HTML page to write.
        mirror: Folder or URL that has the files of test sets by their names.
        gpus: Divide the work among N GPUs of this machine; auto uses all GPUs.
        **settings: Settings of [steps], [search], [inference] and [score].

    Raises:
        UsageError: Arguments are wrong or without effect, or there is no such test set.
        CheckpointError: There is no such model, or it is damaged.
        DataError: A text is missing or damaged, or differs from its reference in length.
    """
    from tfm.applications.evaluate.tables import Evaluation, write_page
    from tfm.folders.model_folder import ModelFolder
    from tfm.folders.run_folder import newest_run
    from tfm.stages.score import check_settings

    folder = out or Path("evaluation")
    metrics = requested_metrics(
        argument("metric", one_or_several(metric), tuple[str, ...]),
        [*settings["score"]],
        paper=False,
        has_baseline=True,
    )
    config = settings_from(ScoreConfig, settings["score"])
    check_settings(metrics, config)
    paths = dict.fromkeys(models or [newest_run(RUNS_ROOT)])
    systems = [_System.of(path, ModelFolder.open(path), settings["search"]) for path in paths]
    texts = [_test_text(name, systems[0].model, folder, mirror) for name in on]
    results = []
    for text in texts:
        outputs = [_translated(each, text, folder, settings, gpus) for each in systems]
        results.append(_scored(text, systems, outputs, metrics, config))
    evaluation = Evaluation(models=[each.name for each in systems], sets=results)
    if page is not None:
        write_page(page, evaluation)
    return evaluation


def _test_text(name: str, model: "ModelFolder", out: Path, mirror: str | None) -> _TestText:
    """Return the files of a pair of files, a split of the model's dataset or a named test set."""
    from tfm.data.sources import Downloads
    from tfm.data.test_sets import NamedSet, write_set
    from tfm.folders.model_folder import NoSplitError

    paths = [Path(part) for part in name.split(":")]
    if len(paths) > 1 and any(path.exists() for path in paths):
        source, *references = existing_file(paths)
        return _TestText(name, source, references)
    try:
        source, *references = model.split(name, advice="name a test set, or SOURCE:REFERENCE")
    except NoSplitError:
        if name in ("test", "valid"):
            raise
        named = NamedSet.parse(name).between(model.info.source, model.info.target)
        texts = named.read(named.fetch(Downloads(mirror=mirror)))
        stem = out / "sets" / str(named).replace("/", "_").replace(":", ".")
        source, *references = write_set(texts, stem, named.languages)
    return _TestText(name, source, references)


def _translated(
    system: _System,
    text: _TestText,
    out: Path,
    settings: Mapping[str, Mapping[str, Any]],
    gpus: str | None,
) -> Path:
    """Translate a text, unless that was done, to a file whose name depends on all that decides it.

    The name has a checksum of the model, the text, settings and the files that these name.
    """
    named = (settings["steps"].get("glossary"), settings["search"].get("ban"))
    contents = [
        sha256_of(existing_file(Path(path))) for path in (text.source, *filter(None, named))
    ]
    model = system.model
    decisive = [system.search, settings["steps"], settings["inference"]]
    inputs = json.dumps([__version__, model.fingerprint, contents, *decisive], sort_keys=True)
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:_DIGITS]
    path = out / f"{text.source.stem}.{model.path.resolve().name}.{digest}.txt"
    if not path.exists():
        merged = {key: value for section in _SECTIONS for key, value in settings[section].items()}
        generate((model.path,), input=text.source, output=path, gpus=gpus, **merged)
    return path


def _scored(
    text: _TestText,
    systems: Sequence[_System],
    outputs: Sequence[Path],
    metrics: Sequence[MetricName] | None,
    config: ScoreConfig,
) -> "SetResult":
    """Score the outputs of all systems, each compared with the first, which has intervals so."""
    from tfm.applications.evaluate.tables import SetResult
    from tfm.stages.score import score

    results = {
        each.name: score(
            output,
            text.references,
            metrics=metrics,
            config=config,
            baseline=outputs[0],
            language=target_language(each.model.info.target, each.search.get("tag")),
            source=text.source,
            runs_dir=RUNS_ROOT,
        )
        for each, output in zip(systems, outputs, strict=True)
    }
    return SetResult(
        name=text.name,
        num_lines=results[systems[0].name].num_lines,
        scores={name: result.scores for name, result in results.items()},
        outputs={name: result.hypotheses for name, result in results.items()},
    )
