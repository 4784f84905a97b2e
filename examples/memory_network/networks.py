"""A memory network and a Transformer that answer questions about stories.

Both see sentences as vectors: a story is a memory with one slot per sentence. Sentences are given
as indices of the distinct sentences of a task, so that each is encoded once per batch.
"""

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import TransformerConfig
from tfm.model.layers import EncoderLayer
from tfm.model.packing import Padded
from tfm.model.transformer import Encoder

EMPTY = 0  # the index of the sentence without words
_WIDTH = 20  # of the memory network
INITIAL_STD = 0.1
_TRANSFORMER = TransformerConfig(
    num_encoder_layers=3, d_model=32, d_ff=64, num_heads=2, norm="pre", dropout=0.1
)


class Batch(NamedTuple):
    """B questions, each about a story."""

    questions: Tensor  # [B] indices of sentences
    slots: Tensor  # [B, N] indices of sentences, the last of the story first; EMPTY elsewhere
    num_slots: Tensor  # [B] how many slots belong to the story
    answers: Tensor  # [B] indices of words

    def rows(self, indices: Tensor) -> "Batch":
        """Return some of the questions."""
        return Batch(*(part[indices] for part in self))


def encode_positions(sentences: list[list[int]], vocab_size: int) -> Tensor:
    """Return the bags of words [2, sentences, V] of the position encoding (§4.1).

    Word j of J has the weights l_kj = (1 - j/J) - (k/d)(1 - 2j/J) for the dimensions k = 1 … d.
    Thus a sentence is the sum of its word vectors weighted by 1 - j/J, less k/d times their sum
    weighted by 1 - 2j/J: two products with a matrix of words.
    """
    bags = torch.zeros(2, len(sentences), vocab_size)
    for index, words in enumerate(sentences):
        for j, word in enumerate(words, start=1):
            bags[0, index, word] += 1 - j / len(words)
            bags[1, index, word] += 1 - 2 * j / len(words)
    return bags


def sentence_vectors(bags: Tensor, words: Tensor) -> Tensor:
    """Map bags [2, sentences, V] and word vectors […, V, d] to vectors […, sentences, d]."""
    width = words.size(-1)
    fractions = torch.arange(1, width + 1) / width  # k/d
    return bags[0] @ words - fractions * (bags[1] @ words)


class MemoryNetwork(nn.Module):
    """An end-to-end memory network with adjacent weight tying (Sukhbaatar et al. 2015, §2).

    Hop k attends with the question u to memories m from A^k, and adds memories c from C^k:
    p = softmax(m u), u ← u + cᵀ p. A^(k+1) = C^k, and the answer is softmax(C^K u).

    Attributes:
        is_linear: Whether attention lacks the softmax, as in the linear start (§4.2).
    """

    bags: Tensor

    def __init__(
        self,
        bags: Tensor,
        num_slots: int,
        *,
        num_hops: int,
        temporal: bool = True,
        std: float = INITIAL_STD,
    ) -> None:
        super().__init__()
        self.register_buffer("bags", bags)
        self.words = nn.Parameter(std * torch.randn(num_hops + 1, bags.size(2), _WIDTH))
        # T_A and T_C, of the temporal encoding: vectors of slots, added to sentences.
        times = std * temporal * torch.randn(num_hops + 1, num_slots, _WIDTH)
        self.times = nn.Parameter(times, requires_grad=temporal)
        self.is_linear = False

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits [B, V] of answers."""
        return self.run(batch)[0]

    def run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits [B, V] of answers, and the attention to slots, [B, hops, N]."""
        vectors = sentence_vectors(self.bags, self.words)
        num_slots = batch.slots.size(1)
        stories = F.embedding(batch.slots, vectors.transpose(0, 1).flatten(1))
        times = self.times[:, :num_slots].transpose(0, 1)
        memories = stories.unflatten(2, (len(vectors), -1)) + times
        is_padding = torch.arange(num_slots) >= batch.num_slots[:, None]
        u = F.embedding(batch.questions, vectors[0])
        attention = []
        for keys, values in itertools.pairwise(memories.unbind(2)):
            scores = (keys @ u[:, :, None]).squeeze(2)
            if self.is_linear:
                weights = scores.masked_fill(is_padding, 0.0)
            else:
                weights = scores.masked_fill(is_padding, -torch.inf).softmax(dim=1)
            u = u + (weights[:, None] @ values).squeeze(1)
            attention.append(weights)
        return u @ self.words[-1].mT, torch.stack(attention, dim=1)


class Transformer(nn.Module):
    """tfm's encoder over the question and the sentences; the answer is read at the question."""

    bags: Tensor

    def __init__(self, bags: Tensor, num_slots: int) -> None:
        super().__init__()
        config = _TRANSFORMER
        self.register_buffer("bags", bags)
        self.words = nn.Parameter(INITIAL_STD * torch.randn(bags.size(2), config.d_model))
        self.times = nn.Parameter(INITIAL_STD * torch.randn(1 + num_slots, config.d_model))
        self.encoder = Encoder(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.to_words = nn.Linear(config.d_model, bags.size(2))

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits [B, V] of answers."""
        vectors = sentence_vectors(self.bags, self.words)
        x = F.embedding(torch.cat([batch.questions[:, None], batch.slots], dim=1), vectors)
        length = x.size(1)
        x = self.encoder(x + self.times[:length], Padded(length, 1 + batch.num_slots))
        logits: Tensor = self.to_words(self.norm(x[:, 0]))
        return logits
