"""Models on a device: batches of token ids to hypotheses."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import EOS, PAD, Vocabulary
from tfm.errors import CheckpointError, DataError
from tfm.model.build import Model, evaluation_mode, new_model
from tfm.runtime.checkpoint import ModelInfo, load_info, load_weights
from tfm.runtime.device import Compute, is_out_of_memory, release_memory
from tfm.runtime.reporting import say
from tfm.search import search
from tfm.search.forced import ForcedOutput, forced_decoding
from tfm.search.hypothesis import Hypothesis
from tfm.search.model import Ensemble, SearchableModel
from tfm.translator.sentences import SentenceBatch

Output = TypeVar("Output")
# What is done to a batch: `Models.search` or `Models.score`. It has an output for each sentence.
Task = Callable[["Models", SentenceBatch, SearchConfig], list[Output]]


class Models:
    """One model or an ensemble, in this process.

    Args:
        models: At least one model, on the device.
        compute: Device and arithmetic.
        tell: Where to say what the user should know.

    Attributes:
        max_positions: The most tokens that all of them take in on a side; None if there is no
            limit.
    """

    def __init__(
        self, models: Sequence[Model], compute: Compute, *, tell: Callable[[str], None] = say
    ) -> None:
        self._models = models
        self._model: SearchableModel = models[0] if len(models) == 1 else Ensemble(models)
        self._compute = compute
        self._tell = tell
        self._told_of_memory = False
        self.max_positions = self._model.max_positions

    def map(
        self, task: Task[Output], batches: Iterable[SentenceBatch], config: SearchConfig
    ) -> Iterator[tuple[SentenceBatch, list[Output]]]:
        """Do a task to one batch after another."""
        for batch in batches:
            yield batch, self.run(task, batch, config)

    def run(self, task: Task[Output], batch: SentenceBatch, config: SearchConfig) -> list[Output]:
        """Do a task to a batch: in halves if the memory of the device is too small for the whole.

        Raises:
            DataError: The memory is too small for a single sentence.
        """
        with evaluation_mode(self._models), torch.inference_mode(), self._compute.autocast():
            return self._in_parts(task, batch, config)

    def search(self, batch: SentenceBatch, config: SearchConfig) -> list[list[Hypothesis]]:
        """The `n_best` hypotheses of each sentence, best first."""
        return search(
            self._model,
            *self._padded(batch.sources),
            config,
            line_numbers=batch.line_numbers,
            prefixes=batch.targets,
        )

    def score(self, batch: SentenceBatch, config: SearchConfig) -> list[ForcedOutput]:
        """The log probabilities of the target of each sentence."""
        return forced_decoding(self._models, *self._padded(batch.sources), batch.targets, config)

    def _in_parts(
        self, task: Task[Output], batch: SentenceBatch, config: SearchConfig
    ) -> list[Output]:
        try:
            return task(self, batch, config)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise _too_large(batch) from error
        # Only here, where the error is gone, are the tensors of the attempt.
        release_memory(self._compute.device)
        if not self._told_of_memory:
            self._told_of_memory = True
            self._tell(
                "warning: the device has too little memory for a batch: it is translated in "
                "halves; a smaller --max-tokens saves the attempts"
            )
        middle = (len(batch) + 1) // 2
        halves = batch.part(slice(0, middle)), batch.part(slice(middle, None))
        return [output for half in halves for output in self._in_parts(task, half, config)]

    def _padded(self, sources: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Sources with EOS as [B, S] token ids, padded at the end, and their [B] lengths."""
        rows = [torch.tensor([*ids, EOS]) for ids in sources]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        lengths = torch.tensor([len(row) for row in rows])
        return padded.to(self._compute.device), lengths.to(self._compute.device)


def load_models(folders: Sequence[Path], compute: Compute) -> list[Model]:
    """Read models that agree on a vocabulary.

    Args:
        folders: Model folders.
        compute: Where to put them.

    Raises:
        CheckpointError: A folder holds no sound model, or models differ in vocabulary.
    """
    infos = [load_info(folder) for folder in folders]
    vocabularies = [Vocabulary.load(folder) for folder in folders]
    models = []
    for folder, info, vocabulary in zip(folders, infos, vocabularies, strict=True):
        for other in (vocabulary.fingerprint, vocabularies[0].fingerprint):
            if other != info.fingerprint:
                raise CheckpointError(
                    f"{folder} was trained with subword model {info.fingerprint[:8]}, not "
                    f"{other[:8]}: models translate only with their own"
                )
        models.append(load_model(folder, info).to(compute.device))
    return models


def load_model(folder: Path, info: ModelInfo) -> Model:
    """Build a model and read its weights.

    Raises:
        CheckpointError: The weights are damaged, or not those of this model.
    """
    source_size, target_size = info.vocab_sizes
    model = new_model(info.run.model, source_vocab_size=source_size, target_vocab_size=target_size)
    weights = load_weights(folder)
    parameters = dict(model.named_parameters())
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    if shapes != {name: parameter.shape for name, parameter in parameters.items()}:
        raise CheckpointError(f"{folder}: weights and config.json are not of one model")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return model


def _too_large(batch: SentenceBatch) -> DataError:
    [number], [source], [target] = batch.line_numbers, batch.sources, batch.targets
    beside = f" and {len(target):,} beside it" if target else ""
    return DataError(
        f"line {number:,} with its {len(source):,} tokens{beside} needs more memory than the "
        "device has: take a smaller beam, or let max_source_length cut it"
    )
