"""What of a test set models have seen in training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np

from tfm.config.values import from_table
from tfm.disk.files import sha256_of
from tfm.errors import explain_os_error, tfm_command
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import Ancestor
from tfm.metrics.metric import MetricScore
from tfm.reporting import say
from tfm.text.seen import FILE, Flags, SeenText


@dataclass(frozen=True, kw_only=True)
class SeenReport:
    """What of a test set was seen, and the scores of the rest.

    Attributes:
        datasets: {dataset or model that was learned from: share of unseen sentences that its record
            takes for seen; None if it has no record}.
        seen: {"sources", "targets" or "pairs": {"exactly" or "nearly": number of lines}}. A line is
            counted once. Any reference counts as target, and a pair needs both sides.
        num_clean: Number of lines with neither side seen.
        clean_scores: The scores of these lines, unless they are none or all.
    """

    datasets: Mapping[str, float | None]
    seen: Mapping[str, Mapping[str, int]]
    num_clean: int
    clean_scores: Sequence[MetricScore]

    @property
    def unseen(self) -> str:
        """The number of clean lines and their scores, in words."""
        return ", ".join(
            [f"{self.num_clean:,} lines", *(x.beside_baseline for x in self.clean_scores)]
        )

    @property
    def summary(self) -> str:
        """The counts, and the scores of the clean lines, in words."""
        names = (f"{k} (not recorded)" if v is None else k for k, v in self.datasets.items())
        counts = [
            f"{k} {v['exactly']:,} exactly, {v['nearly']:,} nearly" for k, v in self.seen.items()
        ]
        return (
            f"seen in {', '.join(names)}: {'; '.join(counts)}; neither: {self.unseen} (exactly: a "
            "training sentence has the same words; nearly: most of their sequences of four)"
        )


def find_seen(
    models: Sequence[ModelFolder],
    sources: Sequence[str],
    texts: Sequence[Sequence[str]],
    score: Callable[..., list[MetricScore]],
    baseline: Sequence[str] | None = None,
) -> SeenReport | None:
    """Look for [N] lines in the text that models and their origins learned from, if recorded.

    Args:
        models: The models.
        sources: The source of each line.
        texts: Its translations, then one or several lists of references.
        score: Returns the scores of translations and references, and of a baseline.
        baseline: Other translations of the lines, to compare.
    """
    found = _find_records(models)
    records = [record for record in found.values() if record is not None]
    if not records:
        return None
    exact_source, source = _look_up(records, [sources])
    exact_target, target = _look_up(records, texts[1:])
    sides = {"sources": (exact_source, source), "targets": (exact_target, target)}
    sides["pairs"] = (exact_source & exact_target, source & target)
    is_clean = ~(source | target)
    hypotheses, *references = [[*compress(lines, is_clean)] for lines in texts]
    others = {} if baseline is None else {"baseline": [*compress(baseline, is_clean)]}
    return SeenReport(
        datasets={
            name: None if each is None else each.false_hits() for name, each in found.items()
        },
        seen={
            name: {"exactly": int(exactly.sum()), "nearly": int((seen & ~exactly).sum())}
            for name, (exactly, seen) in sides.items()
        },
        num_clean=len(hypotheses),
        clean_scores=score(hypotheses, references, **others)
        if 0 < len(hypotheses) < len(sources)
        else [],
    )


def _find_records(models: Sequence[ModelFolder]) -> dict[str, SeenText | None]:
    """Return the record of each dataset that models and their origins learned from, by its name."""
    found: dict[tuple[str, str | None], SeenText | None] = {}
    pending = [each for model in models for each in reversed(model.lineage())]
    for model in pending:  # grows by the models that wrote some of the text
        key = model.data_dir or model.path, model.seen
        if key not in found:
            found[key] = record = _find_record(model)
            origins = () if record is None else record.origins
            pending += [from_table(Ancestor, each) for each in origins]
    named: dict[str, SeenText | None] = {}
    for (name, _), record in found.items():
        named[f"{name}, other text" if name in named else name] = record
    return named


def _find_record(model: Ancestor) -> SeenText | None:
    """Read the record that a model names, in its folder or its dataset.

    If it is in neither, a warning says why, and None is returned.
    """
    if model.seen is None:
        return None
    problem = ""
    for folder in filter(None, (model.path, model.data_dir)):
        path = Path(folder) / FILE
        try:
            if path.is_file() and sha256_of(path) == model.seen:
                return SeenText.load(path)
            if path.exists():
                problem = f"{path} is damaged, or of other text"
        except OSError as error:
            problem = f"{path} cannot be read ({explain_os_error(error)})"
    advice = f"copy it into {model.path}"
    if model.data_dir and Path(model.data_dir).is_dir():
        advice = f"make it again with {tfm_command('binarize', model.data_dir)}"
    say(
        f"warning: {problem or f'{path} is missing'}, so it is unknown what {model.path} has seen "
        f"in training: {advice}"
    )
    return None


def _look_up(records: Sequence[SeenText], texts: Sequence[Sequence[str]]) -> list[Flags]:
    """Return [N] which lines of any text are in any record exactly, and which exactly or nearly."""
    lines = [[line.encode(errors="ignore") for line in text] for text in texts]
    found = [record.look_up(text) for record in records for text in lines]
    return [np.any(flags, axis=0) for flags in zip(*found, strict=True)]
