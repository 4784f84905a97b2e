"""How good a model is on the validation split, while it is being trained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tfm.config import ScoreConfig, SearchConfig
from tfm.data.batching import Batcher
from tfm.data.dataset import ParallelDataset
from tfm.data.subword import Vocabulary
from tfm.model.build import Model
from tfm.runtime.checkpoint import SCORES, ModelInfo
from tfm.runtime.device import Compute
from tfm.scoring.metric import MetricScore
from tfm.scoring.scores import corpus_scores
from tfm.training.trainer import evaluate
from tfm.translator import Translator


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The figures of one validation.

    Attributes:
        metrics: Loss in nats a target token, perplexity, and the score if it is computed.
        score: The score and all that decides it; None if it is not computed.
    """

    metrics: dict[str, float]
    score: MetricScore | None = None

    def __str__(self) -> str:
        loss, perplexity = self.metrics["loss"], self.metrics["perplexity"]
        shown = f"loss {loss:.3f} (perplexity {perplexity:.2f})"
        if self.score is not None:
            shown += f" · {self.score.label} {self.score.value:.2f} ({self.score.signature})"
        return shown


class Validator:
    """Measures models on one split.

    Args:
        dataset: Its pairs as token ids.
        sources: Their plain text.
        references: What is right for each source: a translation, or for a parser a tree.
        vocabulary: Of the ids.
        info: What a model that is trained is.
        compute: Device and arithmetic.
    """

    def __init__(
        self,
        dataset: ParallelDataset,
        sources: Sequence[str],
        references: Sequence[str],
        *,
        vocabulary: Vocabulary,
        info: ModelInfo,
        compute: Compute,
    ) -> None:
        self._batcher = Batcher(dataset, info.run.batching, seed=0)
        self._sources = sources
        self._references = references
        self._vocabulary = vocabulary
        self._info = info
        self._compute = compute

    def validate(self, model: Model) -> Validation:
        """Measure a model."""
        loss = evaluate(model, self._batcher, self._compute)
        metrics = {"loss": loss, "perplexity": math.exp(loss)}
        if not self._info.run.training.validation_beam:
            return Validation(metrics=metrics)
        score = self._score(model)
        return Validation(metrics={**metrics, SCORES[self._info.task]: score.value}, score=score)

    def _score(self, model: Model) -> MetricScore:
        """The score of what the model says, by a search that is short of beam only."""
        translator = Translator([model], self._vocabulary, self._compute)
        beam = {"beam_size": self._info.run.training.validation_beam}
        search = SearchConfig.for_model({**self._info.search, **beam}, {})
        outputs = translator.translate(self._sources, search)
        [score] = corpus_scores(
            outputs,
            [self._references],
            ["bracket-f1" if self._info.task == "parsing" else "bleu"],
            ScoreConfig(),
        )
        return score
