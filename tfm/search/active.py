"""The active hypotheses of a batch, which searches extend."""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.search.constraints import Constraints
from tfm.search.continuations import NextTokens, indices_on, negative_infinity
from tfm.search.hypotheses import Hypothesis, length_penalty
from tfm.search.model import SearchableModel
from tfm.search.spelling import Array, OpenEnd, SpellingStep, next_step
from tfm.vocabulary.subword import BOS, EOS, PAD, UNK

# A thread of a CPU projects this number of hypotheses to logits at a time: enough that products are
# fast, and few enough that all these logits stay in a cache.
_PART_ROWS = 256
# Positions of prefixes with their logits in memory at a time.
_PREFILL_ROWS = 1024

# The token ids that the output of each source must start with.
Prefixes: TypeAlias = Sequence[Sequence[int]]

_NEVER_PRODUCED = (PAD, BOS, UNK)
_ANY = -1  # no token is forced
# Compact the batch when at most this fraction of its sentences is active: the caches are copied.
_COMPACTION_THRESHOLD = 0.75


class Continuations(NamedTuple):
    """K' continuations of the hypotheses of each sentence by one token, on the host."""

    totals: Array  # [B, K'] log probability
    parents: Array  # [B, K'] which of the K hypotheses it continues
    tokens: Array  # [B, K'] the token


class ActiveHypotheses:
    """The active hypotheses of a batch: K for each of B sentences, all of one length.

    The model's state is on the device, and all else in numpy arrays on the host, so that a step
    waits for the device once: for the continuations that are chosen.

    A hypothesis that is not continued remains as a row that is not computed. A finished sentence
    remains until the batch is compacted.
    """

    def __init__(
        self,
        model: SearchableModel,
        source: Tensor,
        lengths: Tensor,
        config: SearchConfig,
        prefixes: Prefixes | None,
        constraints: Constraints | None = None,
        open_ends: Sequence[OpenEnd] | None = None,
    ) -> None:
        self.device, num_sentences = lengths.device, len(lengths)
        self._model = model
        self._constraints = constraints
        self._excluded = _NEVER_PRODUCED + (constraints.never if constraints else ())
        self.state = model.start(source, lengths)
        self.num_open = num_sentences  # number of sentences with an active hypothesis
        self.sentences: Array = np.arange(num_sentences)  # [B] indices in the batch
        self.tokens: Array = np.full((num_sentences, 1, 1), BOS)  # [B, K, t], BOS first
        # [B, K]; -inf for hypotheses that are not continued.
        self.log_probs: Array = np.zeros((num_sentences, 1), dtype=np.float32)
        self.rows: Array = np.arange(num_sentences)  # [R] active ones among the B·K, ascending
        # [B, P] the token that is forced at each position, or `_ANY`, as at all later positions.
        prefixes = prefixes or [()] * num_sentences
        self._open_ends = open_ends or [()] * num_sentences  # of all sentences of the batch
        self._forced: Array = np.full((num_sentences, max(map(len, prefixes), default=0) + 1), _ANY)
        for row, prefix in zip(self._forced, prefixes, strict=True):
            row[: len(prefix)] = prefix
        self._num_forced: Array = np.array([len(prefix) for prefix in prefixes], np.int64)  # [B]
        # [B] maximum numbers of tokens; each spells at least one byte of an open end.
        sizes = zip(prefixes, self._open_ends, strict=True)
        longest_prefixes = np.array([len(prefix) + len(end) for prefix, end in sizes], np.int64)
        # [B] maximum number of tokens of an output, EOS included; the minimum is without EOS.
        [source_lengths] = to_host(lengths)
        max_lengths = source_lengths + config.max_extra_length
        if model.max_positions is not None:
            max_lengths = max_lengths.clip(max=model.max_positions)
        self._max_lengths: Array = np.maximum(max_lengths, longest_prefixes + 1)
        self._min_length = config.min_length
        # Tokens are forced up to the longest prefix, and from the smallest maximum length.
        self._unforced = (
            int(longest_prefixes.max(initial=0)),
            int(self._max_lengths.min(initial=2**31)),
        )
        longest = self._max_lengths.max(initial=0)
        # By length.
        self._penalties: Array = np.array(
            [length_penalty(length, config) for length in range(longest + 2)]
        )
        self._penalties_grow = config.length_penalty >= 0
        self._follow_prefixes()

    @property
    def length(self) -> int:
        """The length of an output that ends now: EOS counts, and BOS does not."""
        return int(self.tokens.shape[2])

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of an output, EOS included."""
        return int(self._max_lengths.max())

    def copy(self) -> "ActiveHypotheses":
        """Return a copy that can be extended independently."""
        clone = copy.copy(self)
        clone.state = copy.deepcopy(self.state)
        return clone

    def to_device(self, x: Array) -> Tensor:
        """Copy an array of any shape to the model's device."""
        on_host = torch.from_numpy(x)
        if self.device.type == "cpu":
            return on_host
        return on_host.to(self.device, non_blocking=self.device.type == "cuda")

    def next_log_probs(self) -> Tensor:
        """Run the model: return [B, K, V] log probabilities of the next token, -inf if excluded."""
        newest = self.to_device(self.tokens[:, :, -1])
        logits = self._model.step(newest, self.state)
        log_probs = logits.flatten(0, 1).float().log_softmax(dim=-1)
        ruled_out, only = self._restrictions(np.arange(len(log_probs)), log_probs.size(1))
        only_rows, only_tokens = map(self.to_device, only)
        only_log_probs = log_probs[only_rows, only_tokens]
        log_probs.index_fill_(1, indices_on(log_probs.device, self._excluded), -math.inf)
        if len(ruled_out[0]):
            log_probs[tuple(map(self.to_device, ruled_out))] = negative_infinity(log_probs)
        if len(only_rows):
            log_probs[only_rows] = negative_infinity(log_probs)
            log_probs[only_rows, only_tokens] = only_log_probs
        return log_probs.view(logits.shape)

    def best_continuations(self, size: int) -> Continuations:
        """Run the model on the newest tokens; return at most `size` best continuations [B, K']."""
        parts = self._next_tokens()
        return Continuations(
            *_to_host(each.best(past, rows, size) for each, past, rows, _ in parts)
        )

    def best_and_given(self, size: int, given: Array) -> tuple[Continuations, Array, Array]:
        """Run the model; return the best continuations, and the continuations by given tokens.

        Args:
            size: The maximum number of best continuations of a sentence.
            given: [R, N] tokens for each of the hypotheses in `rows`.

        Returns:
            The best continuations [B, K'] of sentences; the total log probabilities [R, 1 + N] of
            each active hypothesis with its best token and the given ones; and these tokens.
        """
        on_device = self.to_device(given)
        *best, totals, tokens = _to_host(
            (*each.best(past, rows, size), *each.best_and_given(past, rows, on_device[part]))
            for each, past, rows, part in self._next_tokens()
        )
        return Continuations(*best), totals, tokens

    def _next_tokens(self) -> Iterator[tuple[NextTokens, Tensor, Tensor, slice]]:
        """Run the model on the newest tokens; yield the distributions that follow them in parts.

        Each is with the log probabilities [B', K] of the hypotheses of some sentences, the active
        rows [R'] among these, and which of all R rows they are.
        """
        log_probs, rows, newest = map(
            self.to_device, (self.log_probs, self.rows, self.tokens[:, :, -1])
        )
        project = self._model.step_rows(newest, self.state, rows)
        for sentences, part in self._parts():
            next_tokens = NextTokens.of(project(part), self._excluded)
            self._restrict(next_tokens, self.rows[part])
            first_row = sentences.start * log_probs.size(1)
            yield next_tokens, log_probs[sentences], rows[part] - first_row, part

    def _parts(self) -> list[tuple[slice, slice]]:
        """Return the parts of the batch that are projected to logits one after another.

        These are slices of the B sentences, and of the R active hypotheses.
        """
        num_sentences, num_hypotheses = self.log_probs.shape
        num_rows, num_parts = len(self.rows), 1
        if self.device.type == "cpu":
            num_parts = -(-num_rows // (_PART_ROWS * torch.get_num_threads()))
        if num_parts == 1:
            return [(slice(0, num_sentences), slice(0, num_rows))]
        sentences = self.rows // num_hypotheses
        cuts = sentences[np.arange(num_parts) * num_rows // num_parts]
        # Each part begins with the first row of a sentence.
        starts = np.unique(np.searchsorted(sentences, cuts))
        rows = pairwise([*starts.tolist(), num_rows])
        bounds = pairwise([0, *sentences[starts[1:]].tolist(), num_sentences])
        return [
            (slice(*of_sentences), slice(*of_rows))
            for of_sentences, of_rows in zip(bounds, rows, strict=True)
        ]

    def _restrict(self, next_tokens: NextTokens, rows: Array) -> None:
        """Rule out and force tokens of the distributions of hypotheses, [N] among the B·K."""
        if self._may_force or self._may_rule_out:
            ruled_out, only = self._restrictions(rows, next_tokens.vocab_size)
            next_tokens.rule_out(*map(self.to_device, ruled_out))
            next_tokens.force(*map(self.to_device, only))

    def _restrictions(
        self, rows: Array, vocab_size: int
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return which tokens may not follow the hypotheses in rows [N] among the B·K.

        Returns:
            Rows [M] among the N, and a token [M] that each rules out; and the same for tokens that
            are the only ones to follow in their rows: they are forced, or spell an open end. In
            these rows, constraints only rule out tokens that continue beyond the open end.
        """
        rows_out, tokens_out = self._ruled_out(rows, vocab_size)
        forced = self._forced_tokens()[rows // self.tokens.shape[1]]  # [N]
        is_forced = forced != _ANY
        only_rows, only_tokens = [is_forced.nonzero()[0]], [forced[is_forced]]
        for row, step, size in self._open_rows(rows):
            never = np.concatenate([tokens_out[rows_out == row], self._excluded])
            is_out = (step.ends > size) & np.isin(step.tokens, never)
            tokens = step.tokens if is_out.all() else step.tokens[~is_out]
            only_rows.append(np.full_like(tokens, row))
            only_tokens.append(tokens)
        only = np.concatenate(only_rows), np.concatenate(only_tokens)
        is_free = ~np.isin(rows_out, only[0])
        return (rows_out[is_free], tokens_out[is_free]), only

    def _open_rows(self, rows: Array) -> Iterator[tuple[int, SpellingStep, int]]:
        """Yield the index of each of rows [N] in an open end, its next step, and the end's size."""
        if self.length > self._unforced[0]:
            return
        num_hypotheses = self.tokens.shape[1]
        for index, row in enumerate(rows.tolist()):
            sentence, hypothesis = divmod(row, num_hypotheses)
            open_end = self._open_ends[self.sentences[sentence]]
            num_fixed = int(self._num_forced[sentence])
            if open_end and self.length > num_fixed:
                tokens = self.tokens[sentence, hypothesis, 1 + num_fixed :].tolist()
                step = next_step(open_end, tokens)
                if step is not None:
                    yield index, step, len(open_end)

    def finished(self, chosen: Continuations, ends: Array) -> Iterator[tuple[int, Hypothesis]]:
        """Yield the outputs that continuations finish, each after its sentence's index.

        `ends` [B, K'] says which continuations are EOS.
        """
        rows, columns = (ends & (chosen.totals > -math.inf)).nonzero()
        if not len(rows):
            return
        for sentence, tokens, log_prob in zip(
            self.sentences[rows].tolist(),
            self.tokens[rows, chosen.parents[rows, columns], 1:].tolist(),
            chosen.totals[rows, columns].tolist(),
            strict=True,
        ):
            score = self.score(log_prob)
            yield sentence, Hypothesis(tokens=tuple(tokens), log_prob=log_prob, score=score)

    def score(self, log_prob: float) -> float:
        """Return the score of an output that ends now with a log probability."""
        return log_prob / float(self._penalties[self.length])

    def min_log_probs(self, scores: Sequence[float]) -> Array:
        """Return the [B] log probabilities above which outputs can beat [B] scores.

        Log probabilities only fall. The greatest divisor belongs to the maximum length or, if the
        length penalty's exponent is negative, to the next length.
        """
        lengths = self._max_lengths if self._penalties_grow else self.length + 1
        bounds: Array = np.array(scores) * self._penalties[lengths]
        return bounds

    def advance(self, chosen: Continuations, is_active: Array) -> None:
        """Replace the hypotheses by their continuations, where `is_active` [B, K'] is True."""
        log_probs, parents, tokens = chosen
        num_sentences, num_hypotheses, length = self.tokens.shape
        log_probs = np.where(is_active, log_probs, np.float32(-math.inf))
        tokens = np.where(is_active, tokens, PAD)  # an impossible one may not be in the vocabulary
        # [B, K'] indices among the B·K
        rows = np.arange(0, num_sentences * num_hypotheses, num_hypotheses)[:, None] + parents
        is_open: Array = np.any(is_active, axis=1)
        self.num_open = int(is_open.sum())
        if self.num_open <= _COMPACTION_THRESHOLD * num_sentences:
            rows, tokens, log_probs = rows[is_open], tokens[is_open], log_probs[is_open]
            is_active = is_active[is_open]
            self._keep_sentences(is_open.nonzero()[0])
        prefixes = self.tokens.reshape(-1, length)[rows]
        self.tokens = np.concatenate([prefixes, tokens[:, :, None]], axis=2)
        self.log_probs = log_probs
        self.rows = is_active.reshape(-1).nonzero()[0]
        if self.num_open:
            self.state.reorder(self.to_device(rows))
            self._follow_prefixes()

    def _keep_sentences(self, kept: Array) -> None:
        self.sentences, self._max_lengths = self.sentences[kept], self._max_lengths[kept]
        self._forced, self._num_forced = self._forced[kept], self._num_forced[kept]

    def _follow_prefixes(self) -> None:
        """Append the tokens that prefixes force next on all open sentences, at once.

        So far, the hypotheses of such a sentence are alike: the first of them remains.
        """
        length, longest = self.length, self._forced.shape[1] - 1
        if length >= longest:  # a step forces a single token
            return
        [kept] = np.any(self.log_probs > -math.inf, axis=1).nonzero()
        end = int(self._num_forced[kept].min(initial=longest))
        if end <= length:
            return
        self._keep_sentences(kept)
        rows = kept[:, None] * self.log_probs.shape[1]
        self.state.reorder(self.to_device(rows))
        forced = self._forced[:, length - 1 : end]
        self.tokens = self.tokens.reshape(-1, length)[rows]
        self.tokens = np.concatenate([self.tokens, forced[:, None]], axis=2)
        given = self.tokens[:, 0, length - 1 : -1]
        log_probs, size = [], max(1, _PREFILL_ROWS // len(rows))
        for start in range(0, given.shape[1], size):
            part = slice(start, start + size)
            tokens, expected = map(self.to_device, (given[:, part], forced[:, part]))
            found = self._model.step(tokens, self.state).float().log_softmax(dim=-1)
            log_probs.append(found.gather(2, expected[:, :, None])[:, :, 0])
        [totals] = to_host(torch.cat(log_probs, dim=1).sum(dim=1, keepdim=True))
        self.log_probs = self.log_probs.reshape(-1)[rows] + totals
        self.rows = np.arange(len(rows))

    @property
    def _may_rule_out(self) -> bool:
        """Whether tokens may be ruled out next, besides the tokens that are never produced."""
        return self._constraints is not None or self.length <= self._min_length

    def _ruled_out(self, selected: Array, vocab_size: int) -> tuple[Array, Array]:
        """Return rows [N] among the selected hypotheses, and the token that each rules out.

        EOS is among them up to the minimum length, unless nothing else remains.
        """
        tokens = self.tokens.reshape(-1, self.length)[selected]
        rows, ruled_out = np.zeros((2, 0), np.int64)
        if self._constraints is not None:
            rows, ruled_out = self._constraints.ruled_out(tokens[:, 1:])
        if self.length <= self._min_length:
            is_excluded = np.isin(ruled_out, self._excluded)  # as a prefix may have them
            pairs = np.unique((rows * vocab_size + ruled_out)[~is_excluded])
            num_ruled_out = np.bincount(pairs // vocab_size, minlength=len(tokens))
            num_left = vocab_size - len(set(self._excluded)) - num_ruled_out
            early = (num_left > 1).nonzero()[0]
            rows = np.concatenate([rows, early])
            ruled_out = np.concatenate([ruled_out, np.full_like(early, EOS)])
        return rows, ruled_out

    @property
    def _may_force(self) -> bool:
        """Whether a token may be forced next."""
        return not self._unforced[0] < self.length < self._unforced[1]

    def _forced_tokens(self) -> Array:
        """Return the [B] tokens that are forced next: the prefix's, EOS at the limit, or `_ANY`."""
        forced = self._forced[:, min(self.length, self._forced.shape[1]) - 1]
        is_at_limit = self.length >= self._max_lengths
        return np.where((forced == _ANY) & is_at_limit, EOS, forced)


def _to_host(parts: Iterable[tuple[Tensor, ...]]) -> list[Array]:
    """Join the tensors of parts, and copy them to the host."""
    found = list(parts)
    return to_host(*(found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))))


def to_host(*tensors: Tensor) -> list[Array]:
    """Copy tensors to the host, waiting for a GPU only once."""
    if tensors[0].is_cpu:
        return [x.numpy() for x in tensors]
    is_cuda = tensors[0].is_cuda
    copies = [x.to("cpu", non_blocking=is_cuda) for x in tensors]
    if is_cuda:
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return [copied.numpy() for copied in copies]
