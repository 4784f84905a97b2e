"""tfm evaluate: models and test sets → a matrix of scores with intervals and significance."""

import glob
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import Flag, Hidden, NewFile, NewFolder, command
from tfm.commands.evaluation import Evaluation, SetResult
from tfm.commands.generate import Models, generate, where_to_compute
from tfm.commands.score import metrics_and_config, score_texts, suitable
from tfm.config import InferenceConfig, ScoreConfig, SearchConfig, settings_from, settings_to
from tfm.disk.files import sha256_of
from tfm.disk.paths import (
    RUNS_ROOT,
    OutputPath,
    check_outputs,
    check_streams,
    existing_file,
)
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.folders.model_info import CONFIG
from tfm.folders.run_folder import is_run, newest_run
from tfm.metrics.lines import differing_lines
from tfm.metrics.metric import MetricName
from tfm.metrics.scores import check_lengths
from tfm.metrics.seeds import group_by_seed, mean_score
from tfm.metrics.texts import read, read_references
from tfm.reporting import say
from tfm.steps import StepsConfig
from tfm.text.files import PIPE, suffix_of
from tfm.text.formats import MEMORIES, RECORD_SUFFIXES, columns_in
from tfm.text.languages import target_language
from tfm.text.segments import REFERENCE, SOURCE

if TYPE_CHECKING:
    from tfm.folders.model_folder import ModelFolder

_DIGITS = 12  # of a checksum in a file name


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
    system: Annotated[tuple[str, ...], Flag("NAME=FILE")] = (),
    out: NewFolder = Path("evaluation"),
    page: NewFile = None,
    mirror: Hidden[str | None] = None,
    gpus: Annotated[str | None, Flag("[N|auto]")] = None,
    **settings: Any,
) -> Evaluation:
    """Score models on test sets, and test whether they differ from the first.

    Runs that differ only by --seed are a group, compared by its mean.

    Examples::

        tfm evaluate runs/base runs/big --on wmt14 --on wmt24 --beam 4
        tfm evaluate runs/new --on news.en:news.de --system old=news.old.de

    Args:
        models: Model or run folders (default: the newest run); the first is the baseline.
        on: Split, test set of sacreBLEU, SOURCE:REFERENCE, or one file with both sides; repeatable.
        metric: Metric; repeatable (default: bleu and chrf, or bracket-f1 for trees).
        system: Translations of another system, a FILE for each --on.
        out: Folder of translations.
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

    if not on:
        raise UsageError("on is empty: name a test set, or leave it out")
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
    files = _systems(system, texts, opened)
    inputs = [*chain(*texts.values(), *files.values()), *map(_existing, kept.values())]
    check_streams(inputs)
    if page is not None:
        check_outputs([OutputPath(path=page, flag="--page")], inputs)
    language = target_language(opened[first].info.target, searches[first].get("tag"))
    groups = group_by_seed(
        {name: model.info.without_seed() for name, model in opened.items()} | dict.fromkeys(files)
    )
    results = []
    for number, (set_name, sides) in enumerate(texts.items()):
        outputs = {
            name: _translated(model, sides[0], kept[set_name, name], settings, gpus)
            for name, model in opened.items()
        }
        outputs |= {name: paths[number] for name, paths in files.items()}
        results.append(_scored(set_name, sides, outputs, opened, groups, metrics, config, language))
    systems = {name: _facts(opened.get(name), files.get(name, ())) for name in outputs}
    evaluation = Evaluation(systems=systems, groups=groups, sets=results)
    if page is not None:
        evaluation.write_page(page, language)
    return evaluation


def _scored(
    name: str,
    sides: Sequence[Path],
    outputs: Mapping[str, Path],
    models: Mapping[str, "ModelFolder"],
    groups: Mapping[str, Sequence[str]],
    metrics: Sequence[MetricName] | None,
    config: ScoreConfig,
    language: str,
) -> SetResult:
    """Score the outputs of all systems on a test set, given by its source and references."""
    (source, *references), (first, *_) = sides, outputs
    chosen, read_source = suitable(metrics, references[0]), read(source, "source", SOURCE)
    texts = {system: read(path) for system, path in outputs.items()}
    of_references = read_references(references, "reference")
    results = {
        system: score_texts(
            text,
            of_references,
            metrics=chosen,
            config=config,
            language=language,
            baseline={} if system == first else texts[first],
            source=read_source if "command" in chosen else {},
            translated=next(iter(read_source.values())),
            models=[models[system]] if system in models else [],
        )
        for system, text in texts.items()
    }
    by_metric = {
        group: [*zip(*(results[each].scores for each in systems), strict=True)]
        for group, systems in groups.items()
    }
    baselines = by_metric[next(iter(groups))]
    others = [] if "bracket-f1" in chosen else [each for each, *_ in groups.values()][1:]
    return SetResult(
        name=name,
        results=results,
        groups={group: [*map(mean_score, of, baselines)] for group, of in by_metric.items()},
        differing={
            other: differing_lines(
                {each: next(iter(texts[each].values())) for each in (first, other)},
                next(iter(read_source.values())),
                [*of_references.values()],
            )
            for other in others
        },
    )


def _systems(
    given: Sequence[str], texts: Mapping[str, Sequence[Path]], models: Mapping[str, object]
) -> dict[str, list[Path]]:
    """Return the files of each system that is given as NAME=FILE, one for each text."""
    files: dict[str, list[Path]] = {}
    for each in given:
        name, _, path = each.partition("=")
        if not name or not path or name in models:
            raise UsageError(f"--system {each}: give NAME=FILE, with a NAME that is no model here")
        files.setdefault(name, []).extend(_lasting([Path(path)]))
    for name, paths in files.items():
        if len(paths) != len(texts):
            raise UsageError(
                f"--system {name} has {len(paths)} of {len(texts)} files: give {name}=FILE for "
                f"each test set, in the order of --on ({', '.join(texts)})"
            )
        for file, (_, *references) in zip(paths, texts.values(), strict=True):
            check_lengths({**read(file), **read_references(references, "reference")})
    return files


def _facts(model: "ModelFolder | None", files: Sequence[Path]) -> dict[str, str]:
    """Return when a system was written, and of a model what is known about its training."""
    from tfm.training.run_summaries import summarize_run

    path = files[0] if model is None else model.path / CONFIG
    written = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    facts = {"written": f"{written:%Y-%m-%d %H:%M}", "step": "", "run": "", "seed": ""}
    if model is not None and model.info.step:
        facts |= {"step": f"{model.info.step:,}", "seed": str(model.info.run.training.seed)}
        runs = [each for each in model.path.resolve().parents[:2] if is_run(each)]
        facts |= {"run": summarize_run(runs[0]).state} if runs else {}
    return facts


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
    is_text = any(path.suffix or path.exists() for path in paths)
    if len(paths) > 1 and is_text:
        if len({*paths}) < len(paths) and not columns_in(paths[0]):
            raise UsageError(f"--on {name} names one file twice: give SOURCE:REFERENCE")
        return _lasting(paths)
    try:
        return model.split(name, advice="name a test set, or SOURCE:REFERENCE")
    except NoSplitError:
        if name in ("test", "valid"):
            raise
    if is_text:
        existing_file(paths)
        raise UsageError(f"{name} has no reference: give SOURCE:REFERENCE")
    named = NamedSet.parse(name).between(model.info.source, model.info.target)
    texts = named.read(named.fetch(Downloads(mirror=mirror)))
    return write_set(texts, out / f"{set_split(named.name)}.{named.pair}", named.languages)


def _lasting(paths: list[Path]) -> list[Path]:
    """Return files that can be read several times; raise UsageError unless they are."""
    for path in existing_file(paths):
        if not path.is_file():
            raise UsageError(f"{path} {PIPE}")
    return paths


def _written_sides(path: Path, model: "ModelFolder", out: Path) -> Sequence[Path]:
    """Write source and reference of a table, JSON lines or TMX as plain text; return the files."""
    from tfm.dataset.test_sets import write_set
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
    path = model.path.resolve()
    names = [*(each.name for each in path.parents[:2] if is_run(each)), path.name]
    return out / f"{source.stem}.{'-'.join(names)}.{inputs[:_DIGITS]}.txt"


def _existing(kept: Path) -> Path:
    """Return the file under the name that also has a hash of its content; itself if missing."""
    for path in kept.parent.glob(f"{glob.escape(kept.stem)}.*.txt"):
        if _named_by_content(kept, path) != path:
            raise DataError(
                f"{path} has changed since tfm evaluate wrote it: delete it to translate again, or "
                "move it elsewhere to score it with tfm score"
            )
        return path
    return kept


def _named_by_content(kept: Path, path: Path) -> Path:
    """Return the name of a translation with a hash of the content of a file."""
    return kept.with_suffix(f".{sha256_of(path)[:_DIGITS]}.txt")


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
    return path.rename(_named_by_content(kept, path))
