"""The step that aligns the words of sources and outputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from typing_extensions import override

from tfm.config import InferenceDevice
from tfm.features.align.alignment import load_aligner
from tfm.folders.model_folder import ModelFolder, fingerprints
from tfm.inference.steps import Output, Segment, Step


class Align(Step):
    """Adds their word alignments to outputs.

    Args:
        folders: The model to align with, and perhaps one for the reverse direction.
        device: Where to compute.
    """

    def __init__(self, folders: Sequence[ModelFolder], device: InferenceDevice) -> None:
        self._folders, self._device = folders, device
        self.settings = {"aligners": fingerprints(folders)}

    @override
    def load(self) -> Self:
        aligner, *reverse = [load_aligner(folder, self._device) for folder in self._folders]
        self._aligner = replace(aligner, reverse=reverse[0]) if reverse else aligner
        return self

    @override
    def after(self, states: Sequence[Segment], found: list[list[Output]]) -> list[list[Output]]:
        pairs = [
            (unit.source, each.text)
            for unit, outputs in zip(states, found, strict=True)
            for each in outputs
        ]
        alignments = iter(self._aligner.align(*zip(*pairs, strict=True)))
        return [
            [replace(each, alignment=next(alignments)) for each in outputs] for outputs in found
        ]
