"""How good a model is on the validation split while it is being trained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from tfm.backends.selection import inference_backend
from tfm.config import ScoreConfig, SearchConfig
from tfm.data.batching import Batcher
from tfm.data.subword import Vocabulary
from tfm.device.compute import Compute
from tfm.distributed.group import Group
from tfm.inference.batches import Chunk
from tfm.inference.engine import Engine
from tfm.inference.lines import translate_lines
from tfm.metrics.metric import MetricScore
from tfm.metrics.scores import corpus_scores
from tfm.model.build import Model
from tfm.stages.training_data import ValidationSplit
from tfm.storage.checkpoint.model_folder import SCORES, ModelInfo
from tfm.training.loss import batch_loss, perplexity
from tfm.training.progress import Heartbeat, no_heartbeat

# Signals are looked for after this many sentences.
_CHUNK = 128


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The figures of one validation.

    Attributes:
        metrics: Loss in nats per target token, perplexity, and the score if it is computed.
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


@dataclass(frozen=True, kw_only=True)
class Validator:
    """Measures models on one split; each process of a group does its share of the work.

    Attributes:
        split: What to measure on.
        vocabulary: Of its ids.
        info: Describes the models.
        compute: Device and arithmetic.
        group: The processes that measure together.
        heartbeat: Told where it stands.
        stopped: Whether to give up.
    """

    split: ValidationSplit
    vocabulary: Vocabulary
    info: ModelInfo
    compute: Compute
    group: Group = field(default_factory=Group)
    heartbeat: Heartbeat = no_heartbeat
    stopped: Callable[[], bool] = lambda: False

    def validate(self, model: Model) -> Validation | None:
        """Measure a model, which must be full and the same on all processes.

        Returns:
            Its figures; None if a process gave up.
        """
        loss = self._loss(model)
        if loss is None:
            return None
        metrics = {"loss": loss, "perplexity": perplexity(loss)}
        if not self.info.run.training.validation_beam:
            return Validation(metrics=metrics)
        outputs = self._translate(model)
        if outputs is None:
            return None
        self.heartbeat("the score of the validation")
        [score] = corpus_scores(
            outputs,
            [self.split.references],
            ["bracket-f1" if self.info.task == "parsing" else "bleu"],
            ScoreConfig(),
        )
        return Validation(metrics={**metrics, SCORES[self.info.task]: score.value}, score=score)

    def _loss(self, model: Model) -> float | None:
        """Return the negative log-likelihood in nats per target token, EOS included."""
        model.train(False)
        world, batcher = self.group.world, Batcher(self.split.pairs, self.info.run.batching, seed=0)
        microbatches = [each for rows in batcher.epoch(1) for each in batcher.split(rows)]
        sums = torch.zeros(3, dtype=torch.float64)  # NLL, tokens, processes that gave up
        with torch.inference_mode():
            for rows in microbatches[world.rank :: world.size]:
                self.heartbeat("the loss of the validation")
                if self.stopped():
                    sums[2] = 1
                    break
                batch = batcher.batch(rows).to(self.compute.device)
                with self.compute.autocast():
                    _, nll = batch_loss(model, batch, label_smoothing=0.0)
                sums += torch.tensor([float(nll), batch.num_tokens, 0])
        self.heartbeat("the sum of the loss of the validation", waits=True)
        total, num_tokens, num_stopped = self.group.sum(sums).tolist()
        return None if num_stopped else float(total / num_tokens)

    def _translate(self, model: Model) -> list[str] | None:
        """Return the outputs of the model by validation_beam; None if a process gave up."""
        world, sources = self.group.world, self.split.sources
        outputs = self._translate_share(model, sources[world.rank :: world.size])
        self.heartbeat("the outputs of the validation", waits=True)
        everyone = self.group.gather(outputs)
        if None in everyone:
            return None
        return [everyone[i % world.size][i // world.size] for i in range(len(sources))]

    def _translate_share(self, model: Model, sources: Sequence[str]) -> list[str] | None:
        training = self.info.run.training
        search = {**self.info.search, "beam_size": training.validation_beam}
        # Sentences that are translated together have about the same length.
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        chunks = (
            Chunk(first_line=start + 1, lines=[sources[i] for i in order[start : start + _CHUNK]])
            for start in range(0, len(order), _CHUNK)
        )
        backend = inference_backend(self.compute, training.kernels)
        engine = Engine([model], self.compute, backend=backend)
        outputs: list[str] = []
        self._report(outputs, sources)
        config = SearchConfig.for_model(search, {})
        for _, found in translate_lines(engine, self.vocabulary, chunks, config):
            outputs += [best[0].text for best in found]
            self._report(outputs, sources)
            if self.stopped():
                return None
        translations = dict(zip(order, outputs, strict=True))
        return [translations[number] for number in range(len(sources))]

    def _report(self, outputs: Sequence[str], sources: Sequence[str]) -> None:
        self.heartbeat(f"the outputs of the validation, {len(outputs):,} of {len(sources):,}")
