"""The step that aligns the words of sources and outputs."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from tfm.config import InferenceDevice
from tfm.errors import UsageError
from tfm.features.align.heads import AlignmentModel
from tfm.folders.model_folder import ModelFolder
from tfm.text.languages import are_same
from tfm.text.units import Span, blanked, units
from tfm.translation.steps import Output, Segment, Step

if TYPE_CHECKING:
    from tfm.features.align.alignment import Aligner, Alignment


class Align(Step):
    """Adds the word alignment of source and output to each output.

    Args:
        folders: The model to align with, and optionally a model for the reverse direction.
        device: The device to compute on.
        tag: The tag of the target language, which the model reads before each source.
        records: Whether to record in a folder which heads were chosen, if it can be written to.
    """

    def __init__(
        self,
        folders: Sequence[ModelFolder],
        device: InferenceDevice,
        tag: str | None = None,
        *,
        records: bool = True,
    ) -> None:
        self._folders, self._device, self._records, self.tag = folders, device, records, tag

    @classmethod
    def of(
        cls,
        model: ModelFolder,
        reverse: str | None,
        device: InferenceDevice,
        *,
        records: bool = True,
    ) -> Self:
        """Align with a model, and perhaps with one of the reverse direction in a folder."""
        info = model.info
        if reverse is None:
            return cls([model], device, records=records)
        folder = ModelFolder.open(Path(reverse))
        other = folder.info
        is_reverse = are_same(other.source, info.target) and are_same(other.target, info.source)
        if other.task != "translation" or not is_reverse:
            raise UsageError(
                f"{folder} is for {other.purpose}, but --align-reverse needs a model from "
                f"{info.target} to {info.source}"
            )
        return cls([model, folder], device, records=records)

    def with_tag(self, tag: str | None) -> Self:
        """Return the same step with a tag before each source; both share a model."""
        tagged = copy(self)
        tagged.tag = tag
        return tagged

    def hold(self) -> Self:
        """Read from disk all that is needed to align, and return the step."""
        self._models  # noqa: B018 - reads it
        return self

    @override
    def load(self) -> Self:
        self._aligner  # noqa: B018 - loads it
        return self

    @cached_property
    def _models(self) -> list[AlignmentModel]:
        return [AlignmentModel(each, self._device, self._records) for each in self._folders]

    @cached_property
    def _aligner(self) -> "Aligner":
        aligner, *reverse = [model.aligner for model in self._models]
        return replace(aligner, reverse=reverse[0]) if reverse else aligner

    @override
    def after(self, states: Sequence[Segment], outputs: list[list[Output]]) -> list[list[Output]]:
        pairs = [
            (unit.source, each)
            for unit, n_best in zip(states, outputs, strict=True)
            for each in n_best
        ]
        sources, targets = _without_kept(pairs)
        found = self._aligner.align(self._tagged(sources), targets)
        if self.tag:  # which is the first word, but not of the text
            found = [tuple((source - 1, at) for source, at in links if source) for links in found]
        alignments = map(_with_kept, found, pairs)
        return [
            [replace(each, alignment=next(alignments)) for each in n_best] for n_best in outputs
        ]

    def align_units(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> list[list[tuple[Span, Span]]]:
        """Return the linked units of each source and target, by their spans of characters.

        Models are loaded by the first call. The tag is read before each source, but has no links.
        """
        tagged = self._tagged(sources)
        start = len(tagged[0]) - len(sources[0])
        found = []
        for pair, links in zip(
            zip(tagged, targets, strict=True),
            self._units_aligner.align(tagged, targets),
            strict=True,
        ):
            source_units, target_units = map(units, pair)
            spans = [(source_units[source], target_units[target]) for source, target in links]
            found.append([((a - start, b - start), span) for (a, b), span in spans if a >= start])
        return found

    def _tagged(self, sources: Sequence[str]) -> list[str]:
        return [f"{self.tag} {source}" if self.tag else source for source in sources]

    @cached_property
    def _units_aligner(self) -> "Aligner":
        aligner = self._aligner
        reverse = aligner.reverse and replace(aligner.reverse, by_units=True)
        return replace(aligner, by_units=True, reverse=reverse)


def _without_kept(pairs: Sequence[tuple[str, Output]]) -> tuple[list[str], list[str]]:
    """Return sources and translations without the copied words, which the aligner must not see."""
    sources, targets = [], []
    for source, output in pairs:
        sources.append(blanked(source, [span for span, _ in output.kept]))
        targets.append(blanked(output.text, [span for _, span in output.kept]))
    return sources, targets


def _with_kept(alignment: "Alignment", pair: tuple[str, Output]) -> "Alignment":
    """Return an alignment in which the words of copied text are linked to their copies."""
    source, output = pair
    links = set(alignment)
    for of_source, of_target in output.kept:
        links.update(product(_words(source, of_source), _words(output.text, of_target)))
    return tuple(sorted(links))


def _words(text: str, span: Span) -> range:
    """Return the numbers of the words that a span has parts of."""
    start, end = span
    first = len(text[:start].split()) - (not text[start - 1 : start].isspace() and start > 0)
    return range(first, len(text[:end].split()))
