"""What of a test set models have seen in training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfm.config.schema import from_table
from tfm.data.seen_text import FILE, Flags, SeenText
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import Ancestor
from tfm.metrics.metric import MetricScore
from tfm.storage.files import sha256_of


@dataclass(frozen=True, kw_only=True)
class SeenReport:
    """What of a test set was seen, and the scores of the rest.

    Attributes:
        datasets: {dataset or model that was learned from: share of unseen sentences that its record
            takes for seen; None if it has no record}.
        seen: {"sources", "targets" or "pairs": {"exactly" or "nearly": number of lines}}. A line is
            counted once. Any reference counts as target, and a pair needs both sides.
        num_clean: Number of lines of which neither side was seen.
        clean_scores: The scores of these lines.
    """

    datasets: Mapping[str, float | None]
    seen: Mapping[str, Mapping[str, int]]
    num_clean: int
    clean_scores: Sequence[MetricScore] = ()

    @property
    def summary(self) -> str:
        """The counts in words, without the scores."""
        names = (f"{k} (not recorded)" if v is None else k for k, v in self.datasets.items())
        counts = (
            f"{k} {v['exactly']:,} exactly and {v['nearly']:,} nearly" for k, v in self.seen.items()
        )
        return f"seen in {', '.join(names)}: {', '.join(counts)}"


def find_seen(
    models: Sequence[ModelFolder], sources: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[SeenReport, Flags] | None:
    """Look for [N] source lines and references in the text that models and their origins learned.

    Returns:
        A report without scores, and [N] which lines are clean; None if nothing was recorded.

    Raises:
        DataError: A record is of another format.
    """
    datasets: dict[str, float | None] = {}
    records: dict[str, SeenText] = {}
    pending = [each for model in models for each in reversed(model.lineage())]
    for model in pending:  # which grows by those that wrote some of the text
        name, record = model.data_dir or model.path, _find_record(model)
        datasets.setdefault(name, None)
        if record is not None and str(model.seen) not in records:
            records[str(model.seen)], datasets[name] = record, record.false_hits()
            pending += [from_table(Ancestor, origin) for origin in record.origins]
    if not records:
        return None
    exact_source, source = _look_up(records.values(), [sources])
    exact_target, target = _look_up(records.values(), references)
    sides = {"sources": (exact_source, source), "targets": (exact_target, target)}
    sides["pairs"] = (exact_source & exact_target, source & target)
    seen = {
        side: {"exactly": int(exact.sum()), "nearly": int((found & ~exact).sum())}
        for side, (exact, found) in sides.items()
    }
    is_clean = ~(source | target)
    return SeenReport(datasets=datasets, seen=seen, num_clean=int(is_clean.sum())), is_clean


def _find_record(model: Ancestor) -> SeenText | None:
    """Read the record that a model names, in its folder or its dataset; None if it is gone."""
    paths = (Path(folder) / FILE for folder in (model.path, model.data_dir))
    found = (path for path in paths if path.is_file() and sha256_of(path) == model.seen)
    return next(map(SeenText.load, found), None)


def _look_up(records: Iterable[SeenText], texts: Sequence[Sequence[str]]) -> list[Flags]:
    """Return [N] which lines of any text are in any record exactly, and which exactly or nearly."""
    lines = [[line.encode() for line in text] for text in texts]
    found = [record.look_up(text) for record in records for text in lines]
    return [np.any(flags, axis=0) for flags in zip(*found, strict=True)]
