"""tfm evaluate: models and test sets → a matrix of scores with intervals and significance."""

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import Flag, NewFile, NewFolder, command
from tfm.commands.generate import Models, generate, where_to_compute
from tfm.commands.score import metrics_and_config, score_texts, suitable
from tfm.config import InferenceConfig, ScoreConfig, SearchConfig, settings_from, settings_to
from tfm.disk.files import write_text
from tfm.disk.paths import (
    RUNS_ROOT,
    OutputPath,
    check_outputs,
    check_streams,
    existing_file,
)
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.metrics.metric import MetricName, MetricScore
from tfm.metrics.texts import read, read_references
from tfm.pages import render
from tfm.reporting import Result, say
from tfm.steps import StepsConfig
from tfm.table import Table
from tfm.text.files import suffix_of
from tfm.text.formats import MEMORIES, RECORD_SUFFIXES, columns_in
from tfm.text.languages import target_language
from tfm.text.segments import REFERENCE, SOURCE

if TYPE_CHECKING:
    from tfm.folders.model_folder import ModelFolder

_DIGITS = 12  # of a checksum in a file name
_SIGNIFICANT = 0.05  # p-values below it are marked
_NOTE = (
    "± is half the 95 % confidence interval; p is of the difference to the first model, by the "
    f"paired bootstrap; * is below {_SIGNIFICANT}"
)


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """The scores of all models on a test set.

    Attributes:
        name: The name that the user gave.
        num_lines: Number of its segments.
        scores: {model: its scores, in the order of the metrics}.
        outputs: {model: the file of its translations}.
        extra: Further figures about the set, by name.
    """

    name: str
    num_lines: int
    scores: Mapping[str, Sequence[MetricScore]]
    outputs: Mapping[str, str]
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluation(Result):
    """The scores of models on test sets; the first model is the baseline."""

    models: Sequence[str]
    sets: Sequence[SetResult]

    def tables(self) -> list[Table]:
        """Return a table for each metric: a row for each model, a column for each set.

        Further figures about the sets are in a last table, if there are any.
        """
        names = [f"{each.name} ({each.num_lines:,})" for each in self.sets]
        tables = []
        scores = [each.scores[self.models[0]] for each in self.sets]
        for label in dict.fromkeys(score.label for of_set in scores for score in of_set):
            rows = [
                [model, *(_cell(each.scores[model], label) for each in self.sets)]
                for model in self.models
            ]
            tables.append(Table(rows, [label, *names], is_numeric=True))
        if extra := dict.fromkeys(name for each in self.sets for name in each.extra):
            rows = [[name, *(f"{s.extra.get(name, '')}" for s in self.sets)] for name in extra]
            tables.append(Table(rows, ["test sets", *names], is_numeric=True))
        return tables

    def lines(self, columns: int | None) -> Iterator[str | Table]:
        """Yield the tables, with empty lines between them."""
        first, *others = self.tables()
        yield first
        for table in others:
            yield from ("", table)

    def notes(self) -> list[str]:
        """Return the signature of each metric, with the sets that it holds for, and the legend."""
        names: dict[tuple[str, str], list[str]] = {}
        for each in self.sets:
            for score in each.scores[self.models[0]]:
                names.setdefault((score.label, score.signature), []).append(each.name)
        signatures = [f"{label}, {', '.join(of)}: {text}" for (label, text), of in names.items()]
        return [*signatures, _NOTE]

    def write_page(self, path: Path) -> None:
        """Write the tables and notes as an HTML page, without scripts."""
        page = "commands/evaluate.html"
        write_text(path, render(page, title="Evaluation", tables=self.tables(), notes=self.notes()))


@command(
    ScoreConfig,
    StepsConfig,
    SearchConfig,
    InferenceConfig,
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
    page: NewFile = None,
    mirror: str | None = None,
    gpus: Annotated[str | None, Flag("[N|auto]")] = None,
    **settings: Any,
) -> Evaluation:
    """Score models on test sets, and test whether they differ from the first.

    Examples::

        tfm evaluate runs/base runs/big --on wmt14 --on wmt24 --beam 4
        tfm evaluate runs/mine --on test --on news.en:news.de --page scores.html

    Args:
        models: Model or run folders (default: the newest run); the first is the baseline.
        on: Split of the dataset, test set of sacreBLEU, SOURCE:REFERENCE, or a file with both sides
            (XML of WMT, .tsv, .csv, .jsonl, .tmx); repeatable.
        metric: Metric; repeatable (default: bleu and chrf, or bracket-f1 for trees).
        out: Folder that keeps the translations.
        page: HTML page to write.
        mirror: Folder or URL that has the files of test sets by their names.
        gpus: Divide the work among N GPUs of this machine; auto uses all GPUs.
        **settings: Settings of [score], [steps], [search] and [inference].

    Raises:
        UsageError: Arguments are wrong or without effect, or there is no such test set.
        CheckpointError: There is no such model, or it is damaged.
        DataError: A text is missing or damaged, or differs from its reference in length.
    """
    from tfm.folders.model_folder import ModelFolder
    from tfm.folders.run_folder import newest_run

    folder = out or Path("evaluation")
    metrics, config = metrics_and_config(metric, settings["score"])
    if settings["search"].get("mbr") != "command":  # then the program only scores
        settings["search"].pop("metric_command", None)
    paths = models or (newest_run(RUNS_ROOT),)
    opened = {str(path): ModelFolder.open(path) for path in paths}
    searches = {name: _search(model, settings["search"]) for name, model in opened.items()}
    first = next(iter(opened))
    texts = {name: _files(name, opened[first], folder, mirror) for name in on}
    kept = {
        (set_name, name): _kept_output(model, paths[0], searches[name], settings, folder, gpus)
        for set_name, paths in texts.items()
        for name, model in opened.items()
    }
    inputs = [*chain(*texts.values()), *map(_existing, kept.values())]
    check_streams(inputs)
    if page is not None:
        check_outputs([OutputPath(path=page, flag="--page")], inputs)
    results = []
    for set_name, (source, *references) in texts.items():
        outputs = {
            name: _translated(model, source, kept[set_name, name], settings, gpus)
            for name, model in opened.items()
        }
        chosen = suitable(metrics, references[0])
        scored = {
            name: score_texts(
                read(outputs[name]),
                read_references(references, "reference"),
                metrics=chosen,
                config=config,
                language=target_language(model.info.target, searches[name].get("tag")),
                baseline=read(outputs[first]),  # also of the first model, for its intervals
                source=read(source, "source", SOURCE) if "command" in chosen else {},
                translated=source,
                models=[model],
            )
            for name, model in opened.items()
        }
        result = SetResult(
            name=set_name,
            num_lines=scored[first].num_lines,
            scores={name: each.scores for name, each in scored.items()},
            outputs={name: str(output) for name, output in outputs.items()},
            extra={
                f"{name}: {figure}": value
                for name, each in scored.items()
                if each.seen is not None
                for figure, value in each.seen.figures.items()
            },
        )
        results.append(result)
    evaluation = Evaluation(models=[*opened], sets=results)
    if page is not None:
        evaluation.write_page(page)
    return evaluation


def _search(model: "ModelFolder", given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the search of a model; UsageError if it has several outputs."""
    search = SearchConfig.for_model(model.info.search, given)
    if search.num_outputs > 1:
        raise UsageError("evaluate scores one translation of each line: add --mbr to n_best")
    return settings_to(search)


def _files(name: str, model: "ModelFolder", out: Path, mirror: str | None) -> Sequence[Path]:
    """Return source and references: given files, a split of the model's dataset, or a named set."""
    from tfm.dataset.manifest import set_split
    from tfm.dataset.test_sets import NamedSet, write_set
    from tfm.folders.model_folder import NoSplitError
    from tfm.text.sources import Downloads

    paths = [Path(part) for part in name.split(":")]
    if len(paths) == 1 and (columns := columns_in(paths[0])):
        for kind, side in {SOURCE: "source", REFERENCE: "reference"}.items():
            if not any(column.partition(":")[0] == kind for column in columns):
                raise UsageError(f"{name} has no {side}: give SOURCE:REFERENCE")
        paths *= 2
    if len(paths) == 1 and suffix_of(name) in RECORD_SUFFIXES and paths[0].is_file():
        return _written_sides(paths[0], model, out)
    if len(paths) > 1 and any(path.exists() for path in paths):
        return existing_file(paths)
    try:
        return model.split(name, advice="name a test set, or SOURCE:REFERENCE")
    except NoSplitError:
        if name in ("test", "valid"):
            raise
    named = NamedSet.parse(name).between(model.info.source, model.info.target)
    texts = named.read(named.fetch(Downloads(mirror=mirror)))
    return write_set(texts, out / f"{set_split(named.name)}.{named.pair}", named.languages)


def _written_sides(path: Path, model: "ModelFolder", out: Path) -> Sequence[Path]:
    """Write source and reference of a table, JSON lines or TMX as plain text; return the files."""
    from tfm.dataset.test_sets import write_set
    from tfm.disk.files import sha256_of
    from tfm.text.records import Records
    from tfm.text.tmx import read_tmx

    languages = model.info.source, model.info.target
    if suffix_of(path.name) in MEMORIES:
        pairs = read_tmx(path, languages)
    else:
        records = Records.of(path, None, languages)
        say(f"{path}: {records.description}")
        pairs = records.pairs(strict=True)
    lines = [*pairs]
    texts = [b"".join(pair[side] + b"\n" for pair in lines).decode() for side in (0, 1)]
    return write_set(texts, out / f"{path.stem}.{sha256_of(path)[:_DIGITS]}", languages)


def _kept_output(
    model: "ModelFolder",
    source: Path,
    search: Mapping[str, Any],
    settings: Mapping[str, dict[str, Any]],
    out: Path,
    gpus: str | None,
) -> Path:
    """Return the file of a translation; its name has a hash of all that decides the content."""
    from tfm.translation.generating import Generation, hash_of_inputs

    inference, _ = where_to_compute(gpus, None, settings["inference"])
    inputs = hash_of_inputs(
        Generation(models=[model], source=source),
        settings_from(SearchConfig, search),
        inference,
        settings_from(StepsConfig, settings["steps"]),
        form="text",
        texts=[source],
    )
    return out / f"{source.stem}.{model.path.resolve().name}.{inputs[:_DIGITS]}.txt"


def _existing(kept: Path) -> Path:
    """Return the file of a translation under the name that also has the hash of its content.

    It is the path itself if there is no such file.
    """
    for path in kept.parent.glob(f"{glob.escape(kept.stem)}.*.txt"):
        if _named_by_content(path) != path:
            raise DataError(
                f"{path} has changed since tfm evaluate wrote it: delete it to translate again, or "
                "move it elsewhere to score it with tfm score"
            )
        return path
    return kept


def _named_by_content(path: Path) -> Path:
    """Return the path of a file with a hash of the content before its suffix, if it has none."""
    from tfm.disk.files import sha256_of

    digest = sha256_of(path)[:_DIGITS]
    return path if path.stem.endswith(f".{digest}") else path.with_suffix(f".{digest}.txt")


def _translated(
    model: "ModelFolder",
    source: Path,
    kept: Path,
    settings: Mapping[str, dict[str, Any]],
    gpus: str | None,
) -> Path:
    """Translate a text, unless that was done; return the file, as `_existing` does."""
    path = _existing(kept)
    if not path.exists():
        if not model.is_current():
            raise CheckpointError(f"{model} was removed or replaced meanwhile: evaluate it again")
        given = settings["steps"] | settings["search"] | settings["inference"]
        generate((model.path,), input=source, output=path, gpus=gpus, **given)
    return path.rename(_named_by_content(path))


def _cell(scores: Sequence[MetricScore], label: str) -> str:
    """Return the score of a metric with its interval and p-value, as far as it has them."""
    by_label = {score.label: score for score in scores}
    if (score := by_label.get(label)) is None:
        return ""
    text, compared = f"{score.value:.{score.decimals}f}", score.comparison
    if compared is not None and compared.interval is not None:
        text += f" ± {compared.interval:.{score.decimals}f}"
    if compared is not None and compared.p_value is not None:
        text += f", p = {compared.p_value:.4f}{'*' * (compared.p_value < _SIGNIFICANT)}"
    return text
