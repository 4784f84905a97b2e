"""Train torch.nn.Transformer in a plain loop, following torch's documentation."""

import math

import torch
from timing import (
    ADAM_BETAS,
    ADAM_EPSILON,
    DROPOUT,
    LABEL_SMOOTHING,
    PAD,
    Loss,
    Pairs,
    Settings,
    measure,
    read_settings,
    set_rate,
)
from torch import Tensor, nn
from torch.nn import functional as F

_MAX_LENGTH = 1024


class Translation(nn.Module):
    """Embeddings, nn.Transformer and an output layer, with one matrix for all embeddings."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        shape = settings.shape
        self.embedding = nn.Embedding(settings.vocab_size, shape.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=shape.d_model**-0.5)
        self.scale = math.sqrt(shape.d_model)
        self.register_buffer("positions", _sinusoids(_MAX_LENGTH, shape.d_model))
        self.dropout = nn.Dropout(DROPOUT)
        self.transformer = nn.Transformer(
            shape.d_model,
            shape.num_heads,
            shape.num_layers,
            shape.num_layers,
            shape.d_ff,
            dropout=DROPOUT,
            batch_first=True,
        )

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """Map [B, S] and [B, T] ids to [B, T, V] logits."""
        is_padding = source == PAD
        length = target_input.size(1)
        # Targets need no padding mask: the causal mask hides the padding after a sentence.
        states = self.transformer(
            self.embed(source),
            self.embed(target_input),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length, device=source.device),
            tgt_is_causal=True,
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
        )
        return F.linear(states, self.embedding.weight)

    def embed(self, ids: Tensor) -> Tensor:
        """Map [B, L] ids to [B, L, d_model]."""
        return self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.size(1)])


def _sinusoids(length: int, d_model: int) -> Tensor:
    angles = torch.arange(length)[:, None] * torch.exp(
        torch.arange(0, d_model, 2) * (-math.log(10_000) / d_model)
    )
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def train(*, compiled: bool) -> None:
    """Train, with torch.compile if `compiled`, and write the results."""
    settings = read_settings(__doc__)
    torch.manual_seed(settings.seed)
    model = Translation(settings).train().to(settings.device)
    if compiled:
        model.compile(dynamic=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=ADAM_BETAS, eps=ADAM_EPSILON)

    def step(pairs: Pairs, rate: float) -> Loss:
        with settings.autocast():
            logits = model(pairs.source, pairs.target[:, :-1])
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                pairs.target[:, 1:].flatten(),
                ignore_index=PAD,
                label_smoothing=LABEL_SMOOTHING,
            )
        optimizer.zero_grad()
        loss.backward()
        set_rate(optimizer, rate)
        optimizer.step()
        return Loss(loss.item())

    version = f"torch {torch.__version__}{', compiled' if compiled else ''}"
    measure(settings, step, version=version, parameters=model.parameters())


if __name__ == "__main__":
    train(compiled=False)
