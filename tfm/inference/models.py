"""Models on a device: batches of token ids to hypotheses."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from tfm.backends.cuda_graphs import recorded
from tfm.backends.plain import PLAIN, Backend
from tfm.backends.selection import inference_backend, verified_compute
from tfm.config import InferenceConfig, SearchConfig
from tfm.data.subword import EOS, PAD, Vocabulary
from tfm.device.compute import Compute, is_out_of_memory, release_memory
from tfm.device.threads import ComputeThreads
from tfm.errors import CheckpointError, DataError
from tfm.inference.sentences import SentenceBatch
from tfm.model.build import EvaluationMode, Model, converted, load_model
from tfm.model.transformer import Transformer
from tfm.reporting import say
from tfm.search import search
from tfm.search.beam import Beams, finished_beams
from tfm.search.forced import ForcedOutput, forced_decoding
from tfm.search.hypothesis import Hypothesis
from tfm.search.model import Ensemble, SearchableModel
from tfm.search.slot_beams import SlotSentences
from tfm.search.slot_search import MOST_HYPOTHESES, SlotSearch
from tfm.search.unfinished import Unfinished
from tfm.storage.checkpoint.model_folder import load_info

Output = TypeVar("Output")
# What is done to a batch: `Models.search` or `Models.score`. It has an output for each sentence.
Task = Callable[["Models", SentenceBatch, SearchConfig], list[Output]]
# Returns the next batch; None if there is none, or if it is told not to wait, and would have to. It
# is told to wait, and raises what went wrong, only when all before is done and yielded.
Take = Callable[[bool], SentenceBatch | None]


class Models:
    """One model or an ensemble, in this process.

    Args:
        models: At least one model, on the device.
        compute: Device and arithmetic.
        backend: What to compute their layers with; those made for inference on the device if
            not given. With others than plain ones, weights must not change meanwhile.
        threads: Adapted between batches; None leaves the threads of torch as they are.
        tell: Where to say what the user should know.

    Attributes:
        compute: Device and arithmetic.
        max_positions: The most tokens that all of them take in on a side; None if there is no
            limit.
        decodes_in_slots: Whether sentences are put into slots, where they can be: then many lines
            are best sorted together.
    """

    def __init__(
        self,
        models: Sequence[Model],
        compute: Compute,
        *,
        backend: Backend | None = None,
        threads: ComputeThreads | None = None,
        tell: Callable[[str], None] = say,
    ) -> None:
        self.compute = compute
        self._threads = threads
        self._backend = backend or inference_backend(compute)
        if (dtype := self._backend.weights_dtype) is not None:
            models = [converted(model, dtype) for model in models]
        self._models = models
        self._model: SearchableModel = models[0] if len(models) == 1 else Ensemble(models)
        self._evaluation = EvaluationMode(models, self._backend)
        self._slots = self._slot_search()
        self.decodes_in_slots = self._slots is not None
        self._tell = tell
        self._told_of_memory = False
        self.max_positions = self._model.max_positions

    @property
    def num_parameters(self) -> int:
        """Of all of them together."""
        return sum(each.numel() for model in self._models for each in model.parameters())

    def map(
        self, task: Task[Output], take: Take, config: SearchConfig
    ) -> Iterator[tuple[SentenceBatch, list[Output]]]:
        """Do a task to batches, one after another or, in beam search, side by side.

        Yields:
            Each batch, in order, and its outputs.
        """
        if task is Models.search and _is_plain_beam(config):
            yield from cast(
                "Iterator[tuple[SentenceBatch, list[Output]]]", self._search_together(take, config)
            )
            return
        while (batch := take(True)) is not None:
            yield batch, self.run(task, batch, config)

    def run(self, task: Task[Output], batch: SentenceBatch, config: SearchConfig) -> list[Output]:
        """Do a task to a batch: in halves if the memory of the device is too small for the whole.

        Raises:
            DataError: The memory is too small for a single sentence.
        """
        with self._ready():
            return self._in_parts(task, batch, config)

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        """Have the models compute as they should."""
        if self._threads is not None:
            self._threads.adapt()
        # What is made for an arithmetic needs no autocast, which would go through all operations.
        autocast = self.compute.autocast() if self._backend is PLAIN else contextlib.nullcontext()
        with self._evaluation, torch.inference_mode(), autocast:
            yield

    def _search_together(
        self, take: Take, config: SearchConfig
    ) -> Iterator[tuple[SentenceBatch, list[list[Hypothesis]]]]:
        """Search the batches that there are side by side."""
        underway: deque[SentenceBatch] = deque()

        def take_batch(wait: bool) -> SentenceBatch | None:
            batch = take(wait)
            if batch is not None:
                underway.append(batch)
            return batch

        searches = self._searches(take_batch, config)
        while True:
            try:
                with self._ready():
                    found = next(searches, None)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                found = None
            if found is not None:
                yield underway.popleft(), found
            elif underway:
                # The memory was too small for what was underway: all of it anew, one by one.
                self._release_memory()
                searches = self._searches(take_batch, config)
                while underway:
                    batch = underway.popleft()
                    yield batch, self.run(Models.search, batch, config)
            else:
                return

    def _searches(self, take: Take, config: SearchConfig) -> Iterator[list[list[Hypothesis]]]:
        """What is found for batches that are searched side by side, in order."""
        if self._slots is not None and config.beam_size <= MOST_HYPOTHESES:
            return self._slots.found(lambda wait: self._sentences(take(wait), config), config)

        def take_beams(wait: bool) -> Beams | None:
            batch = take(wait)
            if batch is None:
                return None
            start = Unfinished(self._model, *self._padded(batch.sources), config, batch.targets)
            return Beams(start, config)

        return (beams.finished for beams in finished_beams(self._model, take_beams))

    def _sentences(self, batch: SentenceBatch | None, config: SearchConfig) -> SlotSentences | None:
        """A batch, as slots take it."""
        if batch is None:
            return None
        return SlotSentences.of(
            *_padded(batch.sources),
            config,
            max_positions=self._model.max_positions,
            prefixes=batch.targets,
        )

    def _slot_search(self) -> SlotSearch | None:
        """Search in slots, if they are how the model is best decoded."""
        [model, *others] = self._models
        with self._evaluation:
            if others or not isinstance(model, Transformer) or not model.decodes_in_slots:
                return None
        device = self.compute.device
        return SlotSearch(model, device, record=lambda step: recorded(step, device))

    def search(self, batch: SentenceBatch, config: SearchConfig) -> list[list[Hypothesis]]:
        """The `n_best` hypotheses of each sentence, best first."""
        if _is_plain_beam(config):
            only = [batch]
            [found] = self._searches(lambda _: only.pop() if only else None, config)
            return found
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
        self._release_memory()
        if not self._told_of_memory:
            self._told_of_memory = True
            self._tell(
                "warning: the device has too little memory for a batch: it is translated in "
                "halves; a smaller --max-tokens saves the attempts"
            )
        middle = (len(batch) + 1) // 2
        halves = batch.part(slice(0, middle)), batch.part(slice(middle, None))
        return [output for half in halves for output in self._in_parts(task, half, config)]

    def _release_memory(self) -> None:
        if self._slots is not None:
            self._slots.release()
        release_memory(self.compute.device)

    def _padded(self, sources: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Sources as `_padded` returns them, on the device."""
        padded, lengths = _padded(sources)
        return padded.to(self.compute.device), lengths.to(self.compute.device)


def load_engine(
    folders: Sequence[Path],
    inference: InferenceConfig,
    *,
    index: int = 0,
    num_processes: int = 1,
    tell: Callable[[str], None] = say,
) -> Models:
    """Read models that translate together, and set this process up to compute them.

    Args:
        folders: Model folders; several make an ensemble.
        inference: Where to compute, and how.
        index: Number of this process among those that share the work, and of its GPU.
        num_processes: How many do.
        tell: Where to say what the user should know.

    Raises:
        CheckpointError: A folder holds no sound model, or models differ in vocabulary.
        UsageError: The settings do not suit this machine.
    """
    threads = ComputeThreads(inference.threads, num_processes=num_processes)
    compute = verified_compute(inference.device, inference.precision, local_rank=index, tell=tell)
    return Models(
        load_models(folders, compute),
        compute,
        backend=inference_backend(compute, inference.kernels, tell=tell),
        threads=threads if compute.device.type == "cpu" else None,
        tell=tell,
    )


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


def _padded(sources: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Sources with EOS as [B, S] token ids, padded at the end, and their [B] lengths."""
    rows = [torch.tensor([*ids, EOS]) for ids in sources]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return padded, torch.tensor([len(row) for row in rows])


def _is_plain_beam(config: SearchConfig) -> bool:
    return config.search == "beam" and config.num_groups == 1


def _too_large(batch: SentenceBatch) -> DataError:
    [number], [source], [target] = batch.line_numbers, batch.sources, batch.targets
    beside = f" and {len(target):,} beside it" if target else ""
    return DataError(
        f"line {number:,} with its {len(source):,} tokens{beside} needs more memory than the "
        "device has: take a smaller beam, or let max_source_length cut it"
    )
