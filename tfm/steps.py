"""The steps around a search: the settings that ask for them, and their order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfm.config import InferenceDevice, SearchConfig, Settings
from tfm.config.schema import setting
from tfm.data.languages import bleu_tokenizer, target_language

if TYPE_CHECKING:
    from tfm.folders.model_folder import ModelFolder
    from tfm.folders.model_info import ModelInfo
    from tfm.inference.steps import Step


@dataclass(frozen=True, kw_only=True)
class StepsConfig(Settings, section="steps"):
    """Settings of the steps that prepare text before a search, or complete outputs after it."""

    document: bool = setting(
        False, "Split paragraphs into sentences; keep white space.", common=True
    )
    align: bool = setting(
        False,
        "Add the word alignment of each translation, such as 0-0 1-2, in a last column.",
    )
    align_reverse: str | None = setting(
        None,
        "With --align: a model of the reverse direction, to combine both alignments.",
        metavar="MODEL",
    )

    def _conflicts(self) -> Iterator[str]:
        if self.align_reverse is not None and not self.align:
            yield "align_reverse has no effect without align"


def steps_around(
    search: SearchConfig,
    info: "ModelInfo | None",
    config: StepsConfig = StepsConfig(),
    *,
    models: Sequence["ModelFolder"] = (),
    device: InferenceDevice = "auto",
    scores_given: bool = False,
) -> "list[Step]":
    """Return the steps around a search, from the outermost to the innermost.

    Only their modules are imported, because commands declare the settings without torch.

    Args:
        search: Settings of the search.
        info: The description of the model; None for a model that has weights only.
        config: The steps that users ask for.
        models: The folders of the models; parsers get the steps of a parser.
        device: Where steps compute.
        scores_given: Whether given targets are scored, instead of searched.

    Raises:
        UsageError: The models do not suit a step.
        CheckpointError: A step needs a model that does not exist or is damaged.
    """
    target = "" if info is None else target_language(info.target, search.tag)
    steps: list[Step] = []
    if config.document:
        from tfm.features.documents.step import Sentences

        tags = () if info is None else info.tags
        steps.append(Sentences("" if info is None else info.source, target, tags))
    if config.align:
        from tfm.features.align.step import Align

        steps.append(Align.of(models[0], config.align_reverse, device))
    if scores_given:
        return steps
    if models and models[0].info.task == "parsing":
        from tfm.features.trees.step import Trees

        steps.append(Trees(models[0].vocabulary))
    # Samples have no confidence, nor outputs of a shortlist: its probabilities are of fewer pieces.
    calibration = None if info is None else info.calibration
    if calibration is not None and search.search != "sample" and not search.shortlist:
        from tfm.features.confidence.step import Confidence

        steps.append(Confidence(calibration))
    if search.mbr is not None:
        from tfm.features.mbr.step import MinimumBayesRisk

        are_samples, tokenizer = search.search == "sample", bleu_tokenizer(target)
        steps.append(
            MinimumBayesRisk(utility=search.mbr, are_samples=are_samples, tokenizer=tokenizer)
        )
    return steps
