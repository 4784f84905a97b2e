"""The engine of CTranslate2: plain searches on a CPU, without torch until a batch needs it."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import ctranslate2
import numpy as np

from tfm.config import InferenceConfig, SearchConfig
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import KnownPair
from tfm.search.hypotheses import Hypothesis, check_finite, keep_best, length_penalty
from tfm.translation.batches import CHUNK_LINES, BatchLimits, SentenceBatch
from tfm.translation.chain import BatchEngine, NBestLists
from tfm.translation.ctranslate2_files import NUM_POSITIONS, ctranslate2_files, variables_of
from tfm.translation.engines import search_obstacles
from tfm.vocabulary.subword import BOS, PAD, UNK

COMPUTE_TYPES = {"auto": "float32", "fp32": "float32", "int8": "int8"}  # by precision
_MAX_TOKENS = 2_048  # source tokens of a batch
# Finished hypotheses in beam sizes, among which GNMT's length penalty chooses.
# More of them for several outputs, or for a length penalty above the default.
_PATIENCE, _MORE_PATIENCE = 2, 3
# Of CTranslate2's own length penalty; with 0, it would stop when the best hypothesis has ended.
_ALMOST_NONE = 1e-9
_NEVER_PRODUCED = {PAD, BOS, UNK}


class CTranslate2Engine:
    """A model without obstacles, whose weights all threads share.

    Sources are searched as by `tfm.search.beam`: the beams are the same, and finished hypotheses
    are ranked here. What CTranslate2 computes in another way goes to torch: see `_is_equal`.

    Args:
        folder: The model.
        inference: Precision, and the number of threads.
        num_workers: The number of batches that are computed at the same time; they share the
            threads.
        start_torch: Starts the engine of torch with the same model, when a batch needs it.
    """

    def __init__(
        self,
        folder: ModelFolder,
        inference: InferenceConfig,
        *,
        num_workers: int = 1,
        start_torch: Callable[[], BatchEngine],
    ) -> None:
        vocabulary = folder.vocabulary
        self._source, self._target = vocabulary.source, vocabulary.target
        self._ids = {p: id_ for id_, p in enumerate(self._target.pieces(range(len(self._target))))}
        self._start_torch, self._lock = start_torch, threading.Lock()
        variables = list(variables_of(folder))
        check_finite(all(np.isfinite(each).all() for _, each in variables))  # some would be hidden
        self._translator = ctranslate2.Translator(
            str(folder.path),
            device="cpu",
            files=ctranslate2_files(vocabulary, variables),
            compute_type=COMPUTE_TYPES[inference.precision],
            inter_threads=num_workers,
            intra_threads=max(1, (inference.threads or 1) // num_workers),
        )
        self.limits = BatchLimits(
            max_positions=getattr(folder.info.run.model, "learned_positions", None),
            max_tokens=_MAX_TOKENS,
            num_workers=num_workers,
            chunk_lines=num_workers * CHUNK_LINES,
        )

    def run(self, batch: SentenceBatch, config: SearchConfig) -> NBestLists:
        """Return the `n_best` hypotheses of each sentence, best first, or its scored target."""
        size = 1 + max(map(len, [*batch.sources, *batch.targets]))
        if batch.is_scored:
            is_plain = all(batch.sources)
        else:
            size += config.max_extra_length
            is_plain = not (batch.phrases or any(batch.targets) or search_obstacles(config))
        if not is_plain or (self.limits.max_positions is None and size > NUM_POSITIONS):
            return self._by_torch(batch, config)
        if batch.is_scored:
            return [[each] for each in self._scored(batch.sources, batch.targets, config)]
        return self._searched(batch, config)

    def difference(self, pair: KnownPair) -> float:
        """Return how far its log probability is from that by torch, in nats per token."""
        [scored] = self._scored([[*pair.source]], [[*pair.target]], SearchConfig())
        return abs(scored.log_prob - pair.log_prob) / (len(pair.target) + 1)

    def _by_torch(self, batch: SentenceBatch, config: SearchConfig) -> NBestLists:
        with self._lock:
            return self._torch.run(batch, config)

    @cached_property
    def _torch(self) -> BatchEngine:
        return self._start_torch()

    def _searched(self, batch: SentenceBatch, config: SearchConfig) -> NBestLists:
        # CTranslate2 has one maximum length for all: a search beyond its own is repeated.
        limits = [len(ids) + 1 + config.max_extra_length for ids in batch.sources]
        if (num_positions := self.limits.max_positions) is not None:
            limits = [min(limit, num_positions) for limit in limits]
        found = self._search(batch.sources, config, max_length=max(limits))
        by_limit = defaultdict(list)
        for row, (n_best, limit) in enumerate(zip(found, limits, strict=True)):
            if any(not config.min_length <= len(each.tokens) < limit for each in n_best):
                by_limit[limit].append(row)
        for limit, rows in by_limit.items():
            sources = [batch.sources[row] for row in rows]
            cut = self._search(sources, config, max_length=limit - 1, is_cut=True)
            for row, source, n_best in zip(rows, sources, cut, strict=True):
                found[row] = self._rescored(source, n_best, config)
        for row, n_best in enumerate(found):
            if not _is_equal(n_best, config):
                [found[row]] = self._by_torch(batch[row : row + 1], config)
        return [n_best[: config.n_best] for n_best in found]

    def _search(
        self,
        sources: Sequence[list[int]],
        config: SearchConfig,
        *,
        max_length: int,
        is_cut: bool = False,
    ) -> NBestLists:
        """Return the finished hypotheses of each source, best first, of at most some tokens.

        Without a length penalty, one output is the first that ends at the top of the beam. If the
        search `is_cut`, outputs have at least one token if the settings ask for that. To rule out
        EOS, CTranslate2 normalizes again; hypotheses of the maximum length have no EOS: both are
        `_rescored`.
        """
        is_first = config.length_penalty == 0 and config.n_best == 1 and not is_cut
        is_usual = config.n_best == 1 and config.length_penalty <= SearchConfig.length_penalty
        patience = _PATIENCE if is_usual else _MORE_PATIENCE
        if is_first or config.beam_size == 1:
            patience = 1
        results = self._translator.translate_batch(
            list(map(self._source.pieces, sources)),
            beam_size=config.beam_size,
            patience=patience,
            num_hypotheses=1 if patience == 1 else patience * config.beam_size,
            length_penalty=0 if is_first else _ALMOST_NONE,
            min_decoding_length=min(1, config.min_length) if is_cut else 0,
            max_decoding_length=max_length,
            max_input_length=0,
            return_scores=True,
        )
        return [self._ranked(result, config) for result in results]

    def _ranked(self, result: Any, config: SearchConfig) -> list[Hypothesis]:
        ranked: list[Hypothesis] = []
        for pieces, log_prob in zip(result.hypotheses, result.scores, strict=True):
            tokens = tuple(self._ids[piece] for piece in pieces)
            keep_best(ranked, _hypothesis(tokens, log_prob, config), len(result.scores))
        check_finite(all(each.log_prob > -float("inf") for each in ranked))
        return ranked

    def _rescored(
        self, source: list[int], n_best: list[Hypothesis], config: SearchConfig
    ) -> list[Hypothesis]:
        """Return hypotheses with their own probabilities, EOS included, best first."""
        targets = [[*each.tokens] for each in n_best]
        scored = self._scored([source] * len(targets), targets, config)
        ranked = sorted(scored, key=lambda each: -each.score)
        return [replace(each, token_log_probs=None) for each in ranked]

    def _scored(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], config: SearchConfig
    ) -> list[Hypothesis]:
        """Return given targets with the log probabilities of their tokens and EOS."""
        results = self._translator.score_batch(
            list(map(self._source.pieces, sources)),
            list(map(self._target.pieces, targets)),
            max_input_length=0,
        )
        scored = []
        for target, result in zip(targets, results, strict=True):
            log_probs = tuple(result.log_probs)
            check_finite(sum(log_probs) > -float("inf"))
            hypothesis = _hypothesis(tuple(target), sum(log_probs), config)
            scored.append(replace(hypothesis, token_log_probs=log_probs))
        return scored


def _hypothesis(tokens: tuple[int, ...], log_prob: float, config: SearchConfig) -> Hypothesis:
    score = log_prob / length_penalty(len(tokens) + 1, config)
    return Hypothesis(tokens=tokens, log_prob=log_prob, score=score)


def _is_equal(finished: Sequence[Hypothesis], config: SearchConfig) -> bool:
    """Return whether torch finds the same: it never produces special tokens, nor ends too early."""
    return all(
        len(each.tokens) >= config.min_length and _NEVER_PRODUCED.isdisjoint(each.tokens)
        for each in finished
    )
