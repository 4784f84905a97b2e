"""The engine: models on a device that translate or score batches of sentences."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tfm.backends.plain import InferenceBackend
from tfm.backends.selection import inference_backend, verified_compute
from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import CheckpointError, DataError
from tfm.folders.model_folder import ModelFolder
from tfm.machine.compute import (
    Compute,
    ComputeThreads,
    device_memory_bytes,
    is_out_of_memory,
    oversubscription,
)
from tfm.model.build import Model
from tfm.reporting import say
from tfm.search.active import Prefixes
from tfm.search.constraints import constraints_of
from tfm.search.forced import forced_decoding
from tfm.search.hypotheses import Hypothesis
from tfm.search.model import Ensemble, SearchableModel
from tfm.search.search import search
from tfm.search.spelling import OpenEnd, Spellings
from tfm.text.languages import are_same
from tfm.translation.batches import CHUNK_LINES, BatchLimits, SentenceBatch
from tfm.vocabulary.subword import EOS, PAD, Vocabulary

if TYPE_CHECKING:
    from tfm.search.phrases import Edges, RequiredPhrases

# Elements of a batch's hidden states, and of the logits of a step: enough for fast matrix products,
# few enough for the memory of a laptop, or for this much memory of a GPU. With narrow products,
# the work that does not depend on the number of sentences is a larger share of a step.
_BATCH_ELEMENTS = 1 << 22
_LOGITS_ELEMENTS = 3 << 22
_LOGITS_ELEMENTS_OF_NARROW = 1 << 24
_GPU_BYTES = 16 << 30


class Engine:
    """One model or an ensemble in this process.

    Args:
        models: At least one model, on the device.
        compute: Device and arithmetic.
        backend: Optimizes copies of the models, which share their weights: these must not change
            afterwards. By default the device's inference backend.
        threads: Adapts torch's number of threads before each batch; None leaves it unchanged.
        notify: Receives messages for the user.
        vocabulary: Returns the models' vocabulary, for searches that ban, continue or require text.
        num_sharing: The number of processes that share the memory of a GPU.
    """

    def __init__(
        self,
        models: Sequence[Model],
        compute: Compute,
        *,
        backend: InferenceBackend | None = None,
        threads: ComputeThreads | None = None,
        notify: Callable[[str], None] = say,
        vocabulary: Callable[[], Vocabulary] | None = None,
        num_sharing: int = 1,
    ) -> None:
        self.compute = compute
        self._threads = threads
        self._backend = backend or inference_backend(compute)
        self._models = [self._backend.optimized(model) for model in models]
        self._model: SearchableModel = (
            self._models[0] if len(models) == 1 else Ensemble(self._models)
        )
        self._notify = notify
        self._vocabulary = vocabulary
        self._has_warned_of_memory = False
        scale = _batch_scale(compute.device, num_sharing)
        vocab_size, width = models[0].output_weight.shape
        is_narrow = compute.dtype != torch.float32
        logits_elements = _LOGITS_ELEMENTS_OF_NARROW if is_narrow else _LOGITS_ELEMENTS
        self.limits = BatchLimits(
            max_positions=self._model.max_positions,
            max_tokens=max(1, scale * _BATCH_ELEMENTS // width),
            max_hypotheses=max(1, scale * logits_elements // vocab_size),
            chunk_lines=scale * CHUNK_LINES,
        )

    @classmethod
    def start(
        cls,
        folders: Sequence[ModelFolder],
        inference: InferenceConfig,
        *,
        index: int = 0,
        num_processes: int = 1,
        owns_process: bool = True,
        notify: Callable[[str], None] = say,
    ) -> "Engine":
        """Load one model, or an ensemble of several, and set up the threads of this process.

        Args:
            folders: The models.
            inference: Device and arithmetic.
            index: The number of this worker process from 0. Processes take the GPUs in turn, and
                may share them.
            num_processes: The number of worker processes.
            owns_process: Whether to adapt the number of threads to the load of the machine, and to
                warn if it is too high. Otherwise, it changes only if it is set.
            notify: Receives messages for the user.
        """
        threads = None
        if owns_process or inference.threads is not None:
            threads = ComputeThreads(inference.threads, num_processes=num_processes)
        num_gpus = max(1, torch.cuda.device_count())
        compute = verified_compute(
            inference.device, inference.precision, local_rank=index % num_gpus, notify=notify
        )
        engine = cls(
            _load_models(folders, compute),
            compute,
            backend=inference_backend(compute, inference.kernels, notify=notify),
            threads=threads if compute.device.type == "cpu" else None,
            notify=notify,
            vocabulary=lambda: folders[0].vocabulary,
            num_sharing=-(-num_processes // num_gpus),
        )
        warning = oversubscription(compute.device, inference.threads, num_processes=num_processes)
        if warning and owns_process:
            notify(warning)
        return engine

    def enter_worker(self, notify: Callable[[str], None]) -> None:
        """Use one thread in a forked worker process, which inherits no other threads."""
        torch.set_num_threads(1)
        self._threads, self._notify = None, notify

    def run(self, batch: SentenceBatch, config: SearchConfig) -> list[list[Hypothesis]]:
        """Return the `n_best` hypotheses of each sentence, best first, or its scored target.

        If the device has too little memory for the batch, each half is computed by itself.
        """
        try:
            if self._threads is not None:
                self._threads.adapt()
            with torch.inference_mode(), self._backend.autocast(self.compute):
                return (
                    self._score(batch, config) if batch.is_scored else self._search(batch, config)
                )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise _too_large(batch) from error
        # Outside the handler: the error keeps the tensors of the failed attempt alive.
        torch.cuda.empty_cache()  # so that blocks of other sizes fit
        if not self._has_warned_of_memory:
            self._has_warned_of_memory = True
            self._notify(
                "warning: a batch needs more memory than the device has and is translated in "
                "halves: set a smaller --max-tokens to avoid failed attempts"
            )
        middle = (len(batch) + 1) // 2
        return self.run(batch[:middle], config) + self.run(batch[middle:], config)

    def _search(self, batch: SentenceBatch, config: SearchConfig) -> list[list[Hypothesis]]:
        source, lengths = (x.to(self.compute.device) for x in _pad(batch.sources))
        prefixes: Prefixes = batch.targets
        open_ends: Sequence[OpenEnd] | None = None
        if any(prefixes) and self._spellings is not None:
            prefixes, open_ends = self._spellings.open(prefixes, self._model.max_positions)
        constraints = constraints_of(config, self._vocabulary) if config.is_constrained else None
        return search(
            self._model,
            source,
            lengths,
            config,
            line_numbers=batch.line_numbers,
            prefixes=prefixes,
            constraints=constraints,
            open_ends=open_ends,
            required=self._required(batch) if batch.phrases else None,
        )

    @cached_property
    def _spellings(self) -> Spellings | None:
        """The token sequences that spell a prefix's last word; None without a vocabulary."""
        return self._vocabulary and Spellings(self._vocabulary().target.surfaces())

    def _required(self, batch: SentenceBatch) -> "list[RequiredPhrases]":
        from tfm.search.phrases import RequiredPhrases

        return [RequiredPhrases(phrases, self._edges) for phrases in batch.phrases]

    @cached_property
    def _edges(self) -> "Sequence[Edges]":
        """The edges of all tokens; phrases come from text, so there is a vocabulary."""
        from tfm.search.phrases import Edges

        if self._vocabulary is None:
            raise ValueError("required phrases need a vocabulary")
        return list(map(Edges.of, self._vocabulary().target.surfaces()))

    def _score(self, batch: SentenceBatch, config: SearchConfig) -> list[list[Hypothesis]]:
        source, lengths = (x.to(self.compute.device) for x in _pad(batch.sources))
        scored = forced_decoding(self._models, source, lengths, batch.targets, config)
        return [[each] for each in scored]


def _load_models(folders: Sequence[ModelFolder], compute: Compute) -> list[Model]:
    """Load models of the same task, languages and vocabulary onto a device."""
    first = folders[0]
    for folder in folders:
        info, other = folder.info, first.info
        is_same = are_same(info.source, other.source) and are_same(info.target, other.target)
        if info.task != other.task or not is_same:
            raise CheckpointError(
                f"{first} was trained for {other.purpose}, but {folder} for "
                f"{info.purpose}: use only models of the same task and languages"
            )
    for folder in folders:
        if folder.vocabulary.fingerprint != first.info.fingerprint:
            raise CheckpointError(
                f"{folder} was trained with subword model {folder.info.fingerprint[:8]}, not "
                f"{first.info.fingerprint[:8]}: use only models that share a subword model"
            )
    return [folder.model().to(compute.device) for folder in folders]


def _batch_scale(device: torch.device, num_sharing: int) -> int:
    """Return the ratio of batch sizes for a process's share of a device, and for a laptop."""
    memory = device_memory_bytes(device) if device.type == "cuda" else 0
    return max(1, round(memory / num_sharing / _GPU_BYTES))


def _pad(sources: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Return [B, S] token ids of sources with EOS, padded at the end, and their [B] lengths."""
    rows = [torch.tensor([*ids, EOS]) for ids in sources]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return padded, torch.tensor([len(row) for row in rows])


def _too_large(batch: SentenceBatch) -> DataError:
    [number], [source], [target] = batch.line_numbers, batch.sources, batch.targets
    targets = f" and {len(target):,} target tokens" if target else ""
    return DataError(
        f"line {number:,} with {len(source):,} source tokens{targets} needs more memory than the "
        "device has: use a smaller beam, or set max_source_length to truncate it"
    )
