"""Sampling from a model, whole or truncated to what is likely."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import EOS
from tfm.search.active import ActiveHypotheses
from tfm.search.constraints import Prefixes
from tfm.search.model import SearchableModel
from tfm.search.scoring import Hypothesis


def sample(
    model: SearchableModel,
    source: Tensor,
    lengths: Tensor,
    config: SearchConfig,
    *,
    line_numbers: Sequence[int],
    prefixes: Prefixes | None = None,
) -> list[list[Hypothesis]]:
    """Draw outputs of a batch of sources at random, independently of each other.

    A draw depends on the seed, the number of the source's line and that of the sample alone: not on
    how many samples there are, nor on what else is in the batch (but for the rounding of the
    model's arithmetic). Log probabilities and scores are the model's own, whatever temperature and
    truncation the tokens were drawn with.

    Args:
        model: Anything that can encode and step, in evaluation mode.
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        config: Distribution, seed, number of samples (`n_best`), penalty and limits.
        line_numbers: [B] a number for each source.
        prefixes: What outputs must start with.

    Returns:
        For each source `n_best` hypotheses, best first; the same one may come more than once.
    """
    active = ActiveHypotheses(model, source, lengths, config, prefixes)
    finished: list[list[Hypothesis]] = [[] for _ in line_numbers]
    numbers = _random_numbers(config, line_numbers, size=active.max_length).to(lengths.device)
    while active.num_open:
        now = numbers[active.sentences.to(numbers.device), :, active.length - 1]
        _step(active, finished, now, config)
    for samples in finished:
        samples.sort(key=lambda hypothesis: -hypothesis.score)
    return finished


def _step(
    active: ActiveHypotheses,
    finished: list[list[Hypothesis]],
    numbers: Tensor,
    config: SearchConfig,
) -> None:
    """Draw the next token of each of K' samples of each sentence by random numbers [B, K']."""
    log_probs = active.next_log_probs()
    if log_probs.size(1) != numbers.size(1):  # all samples start from one hypothesis
        log_probs = log_probs.expand(-1, numbers.size(1), -1)
    tokens = _drawn(_distribution(log_probs, config), numbers)
    totals = active.log_probs + log_probs.gather(2, tokens[:, :, None])[:, :, 0]
    parents = torch.arange(numbers.size(1), device=tokens.device) % active.tokens.size(1)
    parents = parents.expand_as(tokens)
    ends = tokens == EOS
    for sentence, hypothesis in active.finished(totals, parents, ends):
        finished[sentence].append(hypothesis)
    active.advance(totals.masked_fill(ends, -math.inf), parents, tokens)


def _distribution(log_probs: Tensor, config: SearchConfig) -> Tensor:
    """What to draw from.

    Of the likeliest `top_k` tokens at the temperature, the fewest that have the probability `top_p`
    together: the nucleus of Holtzman et al. 2020. There is always one.

    Args:
        log_probs: [B, K, V] of the next token.
        config: Temperature and truncation.

    Returns:
        [B, K, V] float64 weights, which need not sum to one.
    """
    scaled = log_probs.double() / config.temperature
    if config.top_k is not None and config.top_k < scaled.size(-1):
        least = scaled.topk(config.top_k).values[..., -1:]
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    probs = scaled.softmax(dim=-1)
    if config.top_p is not None:
        ordered, index = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        beyond = before >= config.top_p
        beyond[..., 0] = False
        probs = probs.masked_fill(beyond.scatter(-1, index, beyond), 0.0)
    return probs


def _drawn(weights: Tensor, numbers: Tensor) -> Tensor:
    """The tokens [B, K] at which cumulative weights [B, K, V] pass random numbers [B, K].

    Tokens keep the vocabulary's order: then weights that differ by rounding draw the same ones.
    """
    cumulative = weights.cumsum(dim=-1)
    levels = numbers[:, :, None] * cumulative[:, :, -1:]
    return torch.searchsorted(cumulative, levels, right=True)[:, :, 0]


def _random_numbers(config: SearchConfig, line_numbers: Sequence[int], *, size: int) -> Tensor:
    """[B, n_best, size] float64 in [0, 1): a stream of its own for each line and sample."""
    numbers = np.empty((len(line_numbers), config.n_best, size))
    for row, line_number in zip(numbers, line_numbers, strict=True):
        for index in range(config.n_best):
            generator = np.random.Generator(np.random.PCG64([config.seed, line_number, index]))
            row[index] = generator.random(size)
    return torch.from_numpy(numbers)
