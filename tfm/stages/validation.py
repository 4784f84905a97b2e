"""How good a model is on the validation split, while it is being trained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfm.backends.selection import inference_backend
from tfm.config import ScoreConfig, SearchConfig
from tfm.data.batching import Batcher
from tfm.data.dataset import ParallelDataset
from tfm.data.subword import Vocabulary
from tfm.device.compute import Compute
from tfm.distributed.group import Group
from tfm.inference.batches import Chunk
from tfm.inference.engine import Engine
from tfm.inference.lines import translate_lines
from tfm.metrics.metric import MetricScore
from tfm.metrics.scores import corpus_scores
from tfm.model.build import Model
from tfm.storage.checkpoint.model_folder import SCORES, ModelInfo
from tfm.training.loss import perplexity
from tfm.training.progress import Beat, unwatched
from tfm.training.trainer import evaluate

# After so many sentences there is a look at signals.
_CHUNK = 128


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
    """Measures models on one split; each process of a group does its share of the work.

    Args:
        dataset: Its pairs as token ids.
        sources: Their plain text.
        references: What is right for each source: a translation, or for a parser a tree.
        vocabulary: Of the ids.
        info: What a model that is trained is.
        compute: Device and arithmetic.
        group: The processes that measure together.
        beat: Told where it stands.
        stopped: Whether to give up.
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
        group: Group | None = None,
        beat: Beat = unwatched,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._batcher = Batcher(dataset, info.run.batching, seed=0)
        self._sources = sources
        self._references = references
        self._vocabulary = vocabulary
        self._info = info
        self._compute = compute
        self._group = group or Group()
        self._beat = beat
        self._stopped = stopped

    def validate(self, model: Model) -> Validation | None:
        """Measure a model, which must be whole and the same on all processes.

        Returns:
            Its figures; None if a process gave up.
        """
        loss = evaluate(
            model,
            self._batcher,
            self._compute,
            group=self._group,
            beat=self._beat,
            stopped=self._stopped,
        )
        if loss is None:
            return None
        metrics = {"loss": loss, "perplexity": perplexity(loss)}
        if not self._info.run.training.validation_beam:
            return Validation(metrics=metrics)
        outputs = self._translate(model)
        if outputs is None:
            return None
        self._beat("the score of the validation")
        [score] = corpus_scores(
            outputs,
            [self._references],
            ["bracket-f1" if self._info.task == "parsing" else "bleu"],
            ScoreConfig(),
        )
        return Validation(metrics={**metrics, SCORES[self._info.task]: score.value}, score=score)

    def _translate(self, model: Model) -> list[str] | None:
        """What the model says, by a search that is short of beam only; None if one gave up."""
        world = self._group.world
        outputs = self._translate_share(model, self._sources[world.rank :: world.size])
        self._beat("the outputs of the validation", waits=True)
        everyone = self._group.gather(outputs)
        if None in everyone:
            return None
        return [everyone[i % world.size][i // world.size] for i in range(len(self._sources))]

    def _translate_share(self, model: Model, sources: Sequence[str]) -> list[str] | None:
        beam = {"beam_size": self._info.run.training.validation_beam}
        config = SearchConfig.for_model({**self._info.search, **beam}, {})
        # Those that are translated together are about as long.
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        chunks = (
            Chunk(first_line=start + 1, lines=[sources[i] for i in order[start : start + _CHUNK]])
            for start in range(0, len(order), _CHUNK)
        )
        backend = inference_backend(self._compute, self._info.run.training.kernels)
        engine = Engine([model], self._compute, backend=backend)
        outputs: list[str] = []
        self._beat_for(outputs, sources)
        for _, found in translate_lines(engine, self._vocabulary, chunks, config):
            outputs += [best[0].text for best in found]
            self._beat_for(outputs, sources)
            if self._stopped():
                return None
        translations = dict(zip(order, outputs, strict=True))
        return [translations[number] for number in range(len(sources))]

    def _beat_for(self, outputs: Sequence[str], sources: Sequence[str]) -> None:
        self._beat(f"the outputs of the validation, {len(outputs):,} of {len(sources):,}")
