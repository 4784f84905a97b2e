"""Forced decoding: how probable a model finds outputs that are given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import BOS, EOS, PAD
from tfm.search.model import mean_probability
from tfm.search.scoring import Hypothesis, length_penalty

_POSITIONS_AT_ONCE = 1024  # whose logits are held in memory


class TeacherForcedModel(Protocol):
    """A model that takes in a whole target at once."""

    def __call__(self, source: Tensor, lengths: Tensor, target_input: Tensor, /) -> Any:
        """Map [B, S] sources, [B] lengths and [B, T] target inputs to hidden [B, T, d_model]."""

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Map [..., d_model] to the logits [..., V] of the next token."""


@dataclass(frozen=True, kw_only=True)
class ForcedOutput:
    """An output that was given, as the model sees it.

    Attributes:
        hypothesis: Its tokens, log probability and score.
        token_log_probs: Of each of its tokens and of EOS, in nats, given those before.
    """

    hypothesis: Hypothesis
    token_log_probs: tuple[float, ...]


def forced_decoding(
    models: Sequence[TeacherForcedModel],
    source: Tensor,
    lengths: Tensor,
    targets: Sequence[Sequence[int]],
    config: SearchConfig,
) -> list[ForcedOutput]:
    """Compute the log probabilities of given outputs, all positions at once.

    What a search returns has here the log probability and the score that the search gave it.

    Args:
        models: One model, or an ensemble whose probabilities are averaged; in evaluation mode.
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        targets: [B] token ids of the outputs, without EOS.
        config: Length penalty.
    """
    rows = [torch.tensor([BOS, *target, EOS], device=source.device) for target in targets]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    given, expected = padded[:, :-1], padded[:, 1:]
    sizes = [len(target) + 1 for target in targets]
    ends = torch.tensor(sizes, device=source.device)[:, None]
    is_token = torch.arange(expected.size(1), device=source.device) < ends
    each_model = [
        _log_probs_of(expected[is_token], model, model(source, lengths, given)[is_token])
        for model in models
    ]
    log_probs = mean_probability(torch.stack(each_model))
    outputs = []
    for target, values in zip(targets, torch.split(log_probs, sizes), strict=True):
        log_prob = float(values.double().sum())
        score = log_prob / length_penalty(len(values), config.length_penalty)
        hypothesis = Hypothesis(tokens=tuple(target), log_prob=log_prob, score=score)
        outputs.append(ForcedOutput(hypothesis=hypothesis, token_log_probs=tuple(values.tolist())))
    return outputs


def _log_probs_of(tokens: Tensor, model: TeacherForcedModel, hidden_states: Tensor) -> Tensor:
    """[N] log probabilities of tokens [N], each after what hidden [N, d_model] has seen."""
    parts = zip(
        torch.split(tokens, _POSITIONS_AT_ONCE),
        torch.split(hidden_states, _POSITIONS_AT_ONCE),
        strict=True,
    )
    return torch.cat(
        [
            model.logits(seen).float().log_softmax(dim=-1).gather(1, expected[:, None])[:, 0]
            for expected, seen in parts
        ]
    )
