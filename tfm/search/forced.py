"""Forced decoding: the probability of given outputs under a model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.model.build import Model
from tfm.search.hypotheses import Hypothesis, check_finite, length_penalty
from tfm.search.model import mean_probability
from tfm.vocabulary.subword import BOS, EOS, PAD

_MAX_ROWS = 1024  # positions whose logits are in memory at a time


def forced_decoding(
    models: Sequence[Model],
    source: Tensor,
    lengths: Tensor,
    targets: Sequence[Sequence[int]],
    config: SearchConfig,
) -> list[Hypothesis]:
    """Compute the log probabilities and scores of given outputs, as a search would.

    Args:
        models: One model, or an ensemble whose probabilities are averaged; in evaluation mode.
        source: [B, S] token ids, each source closed by EOS and padded at the end.
        lengths: [B] source lengths, EOS included.
        targets: [B] token ids of the outputs, without EOS.
        config: Length penalty.
    """
    rows = [torch.tensor([BOS, *target, EOS], device=source.device) for target in targets]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    target_input, expected = padded[:, :-1], padded[:, 1:]
    sizes = [len(target) + 1 for target in targets]
    ends = torch.tensor(sizes, device=source.device)[:, None]
    is_token = torch.arange(expected.size(1), device=source.device) < ends
    model_log_probs = [
        _log_probs(expected[is_token], model, model(source, lengths, target_input)[is_token])
        for model in models
    ]
    log_probs = mean_probability(torch.stack(model_log_probs)).cpu()
    check_finite(bool(log_probs.isfinite().all()))
    outputs = []
    for target, values in zip(targets, torch.split(log_probs, sizes), strict=True):
        log_prob = float(values.double().sum())
        score = log_prob / length_penalty(len(values), config)
        found = Hypothesis(
            tokens=tuple(target),
            log_prob=log_prob,
            score=score,
            token_log_probs=tuple(values.tolist()),
        )
        outputs.append(found)
    return outputs


def _log_probs(tokens: Tensor, model: Model, hidden_states: Tensor) -> Tensor:
    """Return the log probabilities [N] of tokens [N], given hidden states [N, d_model]."""
    chunks = zip(*(torch.split(x, _MAX_ROWS) for x in (tokens, hidden_states)), strict=True)
    return torch.cat(
        [
            model.logits(hidden).float().log_softmax(dim=-1).gather(1, expected[:, None])[:, 0]
            for expected, hidden in chunks
        ]
    )
