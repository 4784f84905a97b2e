"""Summaries of models on the disk: what their folders say about them."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.filesize import decimal

from tfm.config.values import from_table
from tfm.disk.files import find_folders, folder_size, read_json, write_json
from tfm.errors import CheckpointError, DataError
from tfm.folders.model_folder import ModelFolder, best_first, open_checkpoints
from tfm.folders.model_info import SCORES, ModelInfo, is_model
from tfm.folders.run_folder import checkpoints, is_run
from tfm.text.languages import shown_languages
from tfm.training.metrics_log import read_metrics

# Describes the model in a folder for another program.
EXPORTED, EXPORTED_FORMAT = "tfm.json", 1
_UNKNOWN = "model"


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """A summary of a model, read from its folder.

    Attributes:
        model: The folder.
        kind: "checkpoint", "averaged", "imported", or the format of an exported model; "model" if
            its description cannot be read.
        source: Source language.
        target: Target language.
        num_parameters: The number of weights.
        num_bytes: The size of all files in the folder.
        metric: "bleu" or "f1".
        score: The score of its validation; None if it was not validated.
        checkpoint_score: Of an average, the best score of the averaged checkpoints.
        license: The license that the user gave it, or an ancestor; None if unknown.
        origin: The address or name of the imported model that it comes from; None if unknown.
        problem: Why the model cannot be used; None if nothing is wrong. Of the weights, only the
            size is checked.
    """

    model: str
    kind: str
    num_bytes: int
    source: str | None = None
    target: str | None = None
    num_parameters: int | None = None
    metric: str | None = None
    score: float | None = None
    checkpoint_score: float | None = None
    license: str | None = None
    origin: str | None = None
    problem: str | None = None

    def cells(self) -> dict[str, str]:
        """Return the columns of a table of models."""
        score = ""
        if self.score is not None:
            score = f"{self.score:.1f}"
        elif self.checkpoint_score is not None:
            score = f"~{self.checkpoint_score:.1f}"
        count = self.num_parameters
        sides = [shown_languages(each) for each in (self.source, self.target) if each]
        return {
            "model": self.model,
            "kind": self.kind,
            "languages": "-".join(sides),
            "parameters": "" if count is None else f"{count / 1e6:,.1f} M",
            "size": decimal(self.num_bytes),
            "BLEU": score if self.metric != "f1" else f"F1 {score}",
            "license": self.license or "",
            "origin": self.origin or "",
        }


def find_models(folders: Iterable[Path]) -> list[Path]:
    """Return the model folders at and below some folders, each once.

    Of the checkpoints of a run, only the best or, without a score, the newest is listed.
    """
    return list(dict.fromkeys(model for folder in folders for model in _models_below(folder)))


def summarize_model(folder: Path) -> ModelSummary:
    """Return the description of a model of tfm, or of a model exported to another program."""
    summary = ModelSummary(model=str(folder), kind=_UNKNOWN, num_bytes=folder_size(folder))
    try:
        if (folder / EXPORTED).is_file():
            return _exported(folder, summary)
        model = ModelFolder(folder)
        info, count = model.info, model.num_parameters()
    except (CheckpointError, DataError) as error:
        return replace(summary, problem=str(error))
    kind = "averaged" if info.averaged else "checkpoint" if info.step else "imported"
    metric = SCORES[info.task]
    return replace(
        summary,
        kind=kind,
        source=info.source,
        target=info.target,
        num_parameters=count,
        metric=metric,
        score=info.metrics.get(metric),
        checkpoint_score=_best_of_checkpoints(folder, info),
        license=info.license,
        origin=info.origin,
    )


def describe_export(folder: Path, model_dir: Path, kind: str) -> None:
    """Write a summary of a model, and the names of all files, into an export of it."""
    record = asdict(summarize_model(model_dir))
    del record["model"], record["num_bytes"], record["problem"]
    files = sorted(path.name for path in folder.iterdir())
    write_json(
        folder / EXPORTED, {"format": EXPORTED_FORMAT, **record, "kind": kind, "files": files}
    )


def exported_files(folder: Path, kind: str) -> frozenset[str] | None:
    """Return the names that an export of a format wrote to a folder; None if it is no export."""
    try:
        record = read_json(folder / EXPORTED)
    except (DataError, OSError):
        return None
    if (record.get("format"), record.get("kind")) != (EXPORTED_FORMAT, kind):
        return None
    files = record.get("files")
    return frozenset([EXPORTED, *map(str, files)]) if isinstance(files, list | tuple) else None


def _exported(folder: Path, summary: ModelSummary) -> ModelSummary:
    record = read_json(folder / EXPORTED)
    written = record.pop("format", None)
    record.pop("files", None)
    try:
        if written != EXPORTED_FORMAT:
            raise ValueError(f"format {written}, not {EXPORTED_FORMAT}")
        known = {"model": summary.model, "num_bytes": summary.num_bytes}
        return from_table(ModelSummary, {**record, **known})
    except ValueError as error:
        raise DataError(f"{folder / EXPORTED}: {error}: export the model again") from error


def _models_below(folder: Path) -> Iterator[Path]:
    for found in find_folders(folder, lambda path: is_run(path) or _is_listed(path)):
        if not is_run(found):
            yield found
            continue
        yield from _checkpoint(found)
        for inside in sorted(found.iterdir()):
            if inside.is_dir() and inside.name != "checkpoints":
                yield from find_folders(inside, _is_listed)


def _is_listed(folder: Path) -> bool:
    return (folder / EXPORTED).is_file() or is_model(folder)


def _checkpoint(run_dir: Path) -> list[Path]:
    """Return the checkpoint to list of a run, if it has any."""
    try:
        present = open_checkpoints(run_dir)
        best = best_first(present, present[-1].info.run.training.best_metric) if present else []
        return [each.path for each in best[:1] or present[-1:]]
    except CheckpointError:  # the list names what is damaged
        return checkpoints(run_dir)[-1:]


def _best_of_checkpoints(folder: Path, info: ModelInfo) -> float | None:
    """Return the best validation score of the checkpoints of an average, by the run's metrics."""
    if not info.averaged or not is_run(folder.parent):
        return None
    metric, validation = SCORES[info.task], read_metrics(folder.parent).validation
    scores = (record.get(metric) for record in validation if record["step"] in info.averaged)
    return max((score for score in scores if score is not None), default=None)
