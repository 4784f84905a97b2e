"""Sampling from a model, optionally truncated to the most probable tokens."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.search.active import ActiveHypotheses, Continuations, to_host
from tfm.search.hypotheses import Hypothesis
from tfm.search.spelling import Array
from tfm.vocabulary.subword import EOS


def sample(
    active: ActiveHypotheses, config: SearchConfig, line_numbers: Sequence[int]
) -> list[list[Hypothesis]]:
    """Draw outputs of sentences with [B] numbers, which start from one hypothesis each, at random.

    A sample depends only on the seed, the source's line number and the sample's index, not on the
    number of samples or the rest of the batch (except for rounding). Log probabilities and scores
    are the model's own, without temperature and truncation.

    Returns:
        `n_best` hypotheses of each source, best first, possibly with duplicates.
    """
    finished: list[list[Hypothesis]] = [[] for _ in line_numbers]
    numbers = _random_numbers(config, line_numbers, size=active.max_length)
    drawn_on = active.device if has_float64(active.device) else torch.device("cpu")
    while active.num_open:
        step_numbers = torch.from_numpy(numbers[active.sentences, :, active.length - 1])
        step_numbers = step_numbers.to(drawn_on, non_blocking=True)
        log_probs = active.next_log_probs()
        if log_probs.size(1) != config.n_best:  # all samples start from one hypothesis
            log_probs = log_probs.expand(-1, config.n_best, -1)
        distribution = _distribution(log_probs.to(drawn_on), config)
        drawn = _draw(distribution, step_numbers).to(log_probs.device)
        chosen_log_probs, tokens = to_host(log_probs.gather(2, drawn[:, :, None])[:, :, 0], drawn)
        parents = np.arange(config.n_best) % active.tokens.shape[1]
        chosen = Continuations(
            totals=active.log_probs + chosen_log_probs,
            parents=np.tile(parents, (len(tokens), 1)),
            tokens=tokens,
        )
        ends = tokens == EOS
        for sentence, hypothesis in active.finished(chosen, ends):
            finished[sentence].append(hypothesis)
        active.advance(chosen, ~ends & (chosen.totals > -math.inf))
    for samples in finished:
        samples.sort(key=lambda hypothesis: -hypothesis.score)
    return finished


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64; Apple GPUs do not."""
    return device.type != "mps"


def _distribution(log_probs: Tensor, config: SearchConfig) -> Tensor:
    """Return unnormalized float64 probabilities [B, K, V] to draw from, given log_probs [B, K, V].

    Of the `top_k` most probable tokens at the temperature, the smallest set whose probability is at
    least `top_p` is kept (the nucleus of Holtzman et al. 2020); of these, the tokens that have at
    least the probability `epsilon` among the `top_k` (Hewitt et al. 2022); and at least one token.
    """
    scaled = log_probs.double() / config.temperature
    if config.top_k is not None and config.top_k < scaled.size(-1):
        threshold = scaled.topk(config.top_k).values[..., -1:]
        scaled = scaled.masked_fill(scaled < threshold, -math.inf)
    probs = scaled.softmax(dim=-1)
    if config.top_p is not None:
        ordered, index = probs.sort(dim=-1, descending=True)
        removed = ordered.cumsum(dim=-1) - ordered >= config.top_p
        removed[..., 0] = False
        probs = probs.masked_fill(removed.scatter(-1, index, removed), 0.0)
    if config.epsilon is not None:
        most = probs.amax(dim=-1, keepdim=True)
        probs = probs.masked_fill((probs < config.epsilon) & (probs < most), 0.0)
    return probs


def _draw(probs: Tensor, numbers: Tensor) -> Tensor:
    """Draw tokens [B, K] from unnormalized probabilities [B, K, V] by random numbers [B, K].

    Tokens are not sorted, so that probabilities that differ by rounding draw the same tokens.
    """
    cumulative = probs.cumsum(dim=-1)
    thresholds = numbers[:, :, None] * cumulative[:, :, -1:]
    tokens = torch.searchsorted(cumulative, thresholds, right=True)[:, :, 0]
    return tokens.clamp(max=probs.size(-1) - 1)  # of probabilities that are not finite


def _random_numbers(config: SearchConfig, line_numbers: Sequence[int], *, size: int) -> Array:
    """Return float64 numbers [B, n_best, size] in [0, 1), seeded for each line and sample."""
    numbers = np.empty((len(line_numbers), config.n_best, size))
    for row, line_number in zip(numbers, line_numbers, strict=True):
        for index in range(config.n_best):
            generator = np.random.Generator(np.random.PCG64([config.seed, line_number, index]))
            row[index] = generator.random(size)
    return numbers
