"""Attention of the recurrent decoder to the source: soft, hard or local."""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import RecurrentConfig
from tfm.model.additive import new_additive_weight
from tfm.model.attention import attention_weights
from tfm.model.masks import AttentionMask

# Those of the program of Xu et al. (2015).
_SHARE_OF_SOFT_WORDS = 0.5
_REWARD_WEIGHT, _ENTROPY_WEIGHT = 0.1, 0.002
_MIN_PROBABILITY = 1e-9  # in logarithms


class Memory(NamedTuple):
    """The encoder's output, as the decoder attends to it."""

    keys: Tensor  # [B, 1, S, d] the outputs, projected to d_model for additive attention
    values: Tensor  # [B, 1, S, encoded_width] the outputs
    lengths: Tensor  # [B] source lengths


class Attended(NamedTuple):
    """The outputs of attention or of the decoder, and where it attended to."""

    outputs: Tensor  # [B, T, width]
    weights: Tensor  # [B, T, S] attention weights before dropout
    # [B, T, 3] while hard attention is trained: log probability of the sampled source position,
    # entropy of the distribution, baseline of the loss; else [B, T, 0].
    samples: Tensor


class SourceAttention(nn.Module):
    """Attention of the decoder's states h to the encoder's outputs.

    Scores are kᵀ W_q h / √d_model (Luong et al. 2015, §3.1, "general", scaled), or
    vᵀ tanh(W_q h + W_k k) (Bahdanau et al. 2015, A.1.2), where k and h may differ in width. α is
    their softmax over the source positions s = 1 … S, and the output Σ α_s k_s.

    - Soft: α as it is (Xu et al. 2015, §4.2).
    - Hard: the output is k_s of a single s, drawn from α in training and the likeliest one
      otherwise (§4.1). Half of the words attend softly in training; there, half of the pictures.
    - Local-m: the softmax is over positions in [p_t - D, p_t + D] alone, with p_t = t, or the last
      position of a shorter source (Luong et al. 2015, §3.2).
    - Local-p: the same with p_t = S · sigmoid(v_pᵀ tanh(W_p h)) (eq. 9), and each weight is then
      multiplied by exp(-(s - p_t)² / 2σ²), with σ = D / 2 (eq. 10). They sum to at most 1.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        d = config.d_model
        self.kind, self.window = config.source_attention, config.local_window
        self.dropout = nn.Dropout(config.attention_dropout)
        self.query = nn.Linear(d, d, bias=False)
        nn.init.xavier_uniform_(self.query.weight)
        self.key: nn.Linear | nn.Identity = nn.Identity()
        self.additive_weight: nn.Parameter | None = None
        if config.attention == "additive":
            self.key = nn.Linear(config.encoded_width, d, bias=False)
            nn.init.xavier_uniform_(self.key.weight)
            self.additive_weight = new_additive_weight(1, d)
        if self.kind == "local-p":
            self.position = nn.Sequential(
                nn.Linear(d, d, bias=False), nn.Tanh(), nn.Linear(d, 1, bias=False)
            )
        if self.kind == "hard":
            self.baseline = nn.Linear(d, 1)

    def memory(self, encoded: Tensor, lengths: Tensor) -> Memory:
        """Project the encoder's outputs [B, S, encoded_width] of [B] lengths for all queries."""
        return Memory(self.key(encoded)[:, None], encoded[:, None], lengths)

    def forward(self, x: Tensor, memory: Memory, positions: Tensor | int) -> Attended:
        """Attend from states [B, T, d_model] at positions [T], or all at one, counted from 0."""
        query, mask = self.query(x)[:, None], AttentionMask(key_lengths=memory.lengths)
        allowed, samples = mask.allowed(query, memory.keys), x.new_empty(*x.shape[:2], 0)
        if self.kind.startswith("local"):
            distances = self._distances(x, memory, positions)
            allowed = (distances.abs() <= self.window) & cast("Tensor", allowed)
        weights = attention_weights(query, memory.keys, allowed, self.additive_weight)
        if self.kind == "local-p":
            weights = weights * torch.exp(-2 * (distances / self.window).square())
        elif self.kind == "hard" and self.training:
            weights, samples = self._sample(x, weights)
        elif self.kind == "hard":
            weights = F.one_hot(weights.argmax(dim=-1), weights.size(-1)).to(weights.dtype)
        attended = self.dropout(weights).to(memory.values.dtype) @ memory.values
        return Attended(attended[:, 0], weights[:, 0], samples)

    def _distances(self, x: Tensor, memory: Memory, positions: Tensor | int) -> Tensor:
        """Return s - p_t [B, 1, T or 1, S] of each source position s and center p_t."""
        lengths = memory.lengths[:, None].float()
        if self.kind == "local-p":
            centers: Tensor = lengths * self.position(x)[..., 0].sigmoid()
        else:
            centers = lengths.clamp(max=positions + 1)
        sources = torch.arange(1, memory.keys.size(2) + 1, device=x.device)
        return sources - centers[:, None, :, None]

    def _sample(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights [B, 1, T, S] of sampled or soft words, and `Attended.samples`."""
        # Of exponential times with rates α, the first is that of s with probability α_s.
        chosen = (weights / torch.empty_like(weights).exponential_()).argmax(-1, keepdim=True)
        is_soft = torch.rand(chosen.shape, device=x.device) < _SHARE_OF_SOFT_WORDS
        log_weights = weights.clamp(min=_MIN_PROBABILITY).log()
        log_probs = log_weights.gather(-1, chosen).masked_fill(is_soft, 0.0)
        entropies = -(weights * log_weights).sum(-1, keepdim=True)
        baselines = self.baseline(x.detach())[:, None].to(weights.dtype)
        hard = torch.zeros_like(weights).scatter(-1, chosen, 1.0)
        samples = torch.cat([log_probs, entropies, baselines], dim=-1)
        return torch.where(is_soft, weights, hard), samples[:, 0]


def reinforce_loss(samples: Tensor, nll: Tensor) -> Tensor:
    """Return a loss of value 0 whose gradient trains hard attention (Xu et al. 2015, §4.1).

    With the word's log p(y), its reward, and log p(s) of the sampled position, the gradient is that
    of λ_r (log p(y) - b) log p(s) + λ_e H, with the entropy H. The paper's reward is that of the
    whole sentence, and its baseline b a moving average. Here b is learned from the decoder's state
    (Mnih and Gregor 2014), so that it is saved, resumed and shared as all weights are.

    Args:
        samples: [N, 3] of `Attended`, for N target tokens.
        nll: [N] negative log-likelihoods.
    """
    log_probs, entropies, baselines = samples.unbind(dim=-1)
    reinforced = (nll - baselines).detach() * log_probs
    regression = F.smooth_l1_loss(baselines, nll, reduction="none")
    loss = _REWARD_WEIGHT * (reinforced + regression) - _ENTROPY_WEIGHT * entropies
    return (loss - loss.detach()).sum()
