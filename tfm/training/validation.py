"""Validation during training: loss, perplexity, and BLEU or bracket F1."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from tfm.backends.selection import inference_backend
from tfm.config import ScoreConfig, SearchConfig
from tfm.dataset.batching import Batcher
from tfm.dataset.parallel import Integers
from tfm.folders.model_info import SCORES, ModelInfo
from tfm.machine.compute import Compute
from tfm.machine.group import Group
from tfm.metrics.command import MetricCommand, MetricCommandError, ScoredText
from tfm.metrics.metric import MetricScore
from tfm.metrics.scores import corpus_scores
from tfm.model.build import Model, evaluation_copy
from tfm.reporting import format_number, say
from tfm.training.data import ValidationSplit
from tfm.training.loss import BatchLoss, perplexity
from tfm.translation.chain import Chain
from tfm.translation.engine import Engine
from tfm.translation.steps import Step
from tfm.vocabulary.subword import Vocabulary

# Translation checks whether to stop after this many sentences.
_CHUNK = 128
_PAIRS_PER_TEXT = 200  # of each training text, to compute its loss
_MAX_SAMPLE_LENGTH = 500  # characters


class ValidationStoppedError(Exception):
    """Validation was stopped, in all processes."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sentence of a validation set with its translation; long texts are cut off."""

    line: int  # from 1
    source: str
    reference: str
    output: str


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The result of one validation."""

    metrics: dict[str, float]  # loss in nats per target token, perplexity, score if computed
    score: MetricScore | None = None
    text_losses: list[float] = field(default_factory=list)  # of samples of the training texts
    samples: Sequence[Sample] = ()  # of the same sentences in all validations

    def __str__(self) -> str:
        loss = format_number(self.metrics["loss"], decimals=3)
        shown = f"loss {loss} (perplexity {format_number(self.metrics['perplexity'], decimals=2)})"
        if self.score is not None:
            shown += f" · {self.score.label} {self.score.value:.2f}"
        if (value := self.metrics.get("command")) is not None:
            shown += f" · command {value:.4g}"
        return shown


def validation_search(info: ModelInfo) -> SearchConfig:
    """Return the settings of the search in validation."""
    search = {**info.search, "beam_size": info.run.training.validation_beam}
    return SearchConfig.for_model(search, {})


@dataclass(frozen=True, kw_only=True)
class Validator:
    """Validates models on one split, which is divided among the processes of a group.

    If `train` batches several training texts, the loss of a sample of each is computed, too.
    """

    split: ValidationSplit
    train: Batcher | None = None
    vocabulary: Vocabulary
    info: ModelInfo
    compute: Compute
    group: Group = field(default_factory=Group)
    should_stop: Callable[[], bool] = lambda: False
    steps: Sequence[Step] = ()  # around the search of translations
    command: MetricCommand | None = None  # a further metric, which only the first process runs

    def validate(self, model: Model) -> Validation:
        """Validate a model with full weights, equal on all processes."""
        loss, *text_losses = self._losses(model)
        metrics = {"loss": loss, "perplexity": perplexity(loss)}
        if not self.info.run.training.validation_beam or not math.isfinite(loss):
            return Validation(metrics=metrics, text_losses=text_losses)
        outputs = self._translate(model)
        self.group.heartbeat("scoring the validation outputs")
        [score] = corpus_scores(
            outputs,
            [self.split.references],
            ["bracket-f1" if self.info.task == "parsing" else "bleu"],
            ScoreConfig(tokenize=self.info.bleu_tokenizer),
        )
        metrics[SCORES[self.info.task]] = score.value
        if self.command is not None:
            metrics |= self._run(self.command, outputs)
        return Validation(
            metrics=metrics, score=score, text_losses=text_losses, samples=self._samples(outputs)
        )

    def _samples(self, outputs: Sequence[str]) -> list[Sample]:
        """Return sentences at equal distances, with their translations."""
        number = min(self.info.run.training.validation_samples, len(outputs))
        indices = [(2 * i + 1) * len(outputs) // (2 * number) for i in range(number)]
        columns = self.split.sources, self.split.references, outputs
        texts = [[column[i][:_MAX_SAMPLE_LENGTH] for column in columns] for i in indices]
        return [
            Sample(line=i + 1, source=source, reference=reference, output=output)
            for i, (source, reference, output) in zip(indices, texts, strict=True)
        ]

    def _run(self, command: MetricCommand, outputs: list[str]) -> dict[str, float]:
        """Return the mean score that a program gives to outputs, equal on all processes.

        It is missing, with a warning, if the program fails.
        """
        measured: dict[str, float] | None = {}
        if self.group.world.is_first:
            texts = [*map(ScoredText, self.split.sources, outputs, self.split.references)]
            try:
                measured = {"command": sum(command.scores(texts)) / len(texts)}
            except MetricCommandError as error:
                if self.should_stop():
                    measured = None
                else:
                    say(f"warning: {error}; training continues without this score")
        self.group.heartbeat("waiting for the metric command", waits=True)
        result: dict[str, float] | None = self.group.gather(measured)[0]
        if result is None:
            raise ValidationStoppedError
        return result

    def _losses(self, model: Model) -> list[float]:
        """Return the loss of the split, and of a sample of each training text if several.

        They are in nats per target token, EOS included.
        """
        loss = BatchLoss(evaluation_copy(model), label_smoothing=0.0)
        valid = Batcher(self.split.pairs, self.info.run.batching, seed=0)
        losses = [self._mean_nll(loss, valid, valid.epoch(1))]
        if self.train is not None:
            samples = self.train.text_samples(_PAIRS_PER_TEXT)
            losses += [self._mean_nll(loss, self.train, [indices]) for indices in samples]
        return losses

    def _mean_nll(self, loss: BatchLoss, batcher: Batcher, batches: list[Integers]) -> float:
        """Return the negative log-likelihood of batches per target token."""
        world = self.group.world
        microbatches = [each for indices in batches for each in batcher.split(indices)]
        sums = torch.zeros(3, dtype=torch.float64)  # NLL, tokens, interrupted processes
        with torch.inference_mode():
            for indices in microbatches[world.rank :: world.size]:
                self.group.heartbeat("computing the validation loss")
                if self.should_stop():
                    sums[2] = 1
                    break
                batch = batcher.batch(indices).to(self.compute.device)
                with self.compute.autocast():
                    _, nll = loss(batch)
                sums += torch.tensor([float(nll), batch.num_tokens, 0])
        self.group.heartbeat("summing the validation loss", waits=True)
        total, num_tokens, num_interrupted = self.group.sum(sums).tolist()
        if num_interrupted:
            raise ValidationStoppedError
        return float(total / num_tokens)

    def _translate(self, model: Model) -> list[str]:
        """Translate the split with validation_beam."""
        world, num_sources = self.group.world, len(self.split.sources)
        outputs = self._translate_slice(model, range(world.rank, num_sources, world.size))
        self.group.heartbeat("gathering the validation outputs", waits=True)
        outputs_by_rank = self.group.gather(outputs)
        if None in outputs_by_rank:
            raise ValidationStoppedError
        return [outputs_by_rank[i % world.size][i // world.size] for i in range(num_sources)]

    def _translate_slice(self, model: Model, indices: Sequence[int]) -> list[str] | None:
        """Translate the sentences of this process; None if it was interrupted."""
        backend = inference_backend(self.compute, self.info.run.training.kernels)
        engine = Engine([model], self.compute, backend=backend, vocabulary=lambda: self.vocabulary)
        chain = Chain(engine=engine, vocabulary=self.vocabulary)
        outputs: dict[int, str] = {}
        self.group.heartbeat(f"translating for validation, 0 of {len(indices):,}")
        sources, search = self.split.sources, validation_search(self.info)
        for found in chain.search_by_length(sources, indices, search, self.steps, size=_CHUNK):
            outputs |= {index: best.text for index, best in found.items()}
            self.group.heartbeat(
                f"translating for validation, {len(outputs):,} of {len(indices):,}"
            )
            if self.should_stop():
                return None
        return [outputs[index] for index in indices]
