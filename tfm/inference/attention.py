"""The attention weights of a model for a sentence and its translation, labelled with pieces."""

from collections.abc import Sequence

import torch

from tfm.data.subword import BOS, EOS, Vocabulary
from tfm.model.build import Model
from tfm.model.weights import record_attention
from tfm.visualization.attention_maps import AttentionKind, AttentionMaps


def attention_maps(
    model: Model, vocabulary: Vocabulary, source_ids: Sequence[int], target_ids: Sequence[int]
) -> dict[AttentionKind, AttentionMaps]:
    """Return the weights of each kind of attention that the model has, on the model's device.

    Args:
        model: The model.
        vocabulary: Its vocabulary.
        source_ids: Token ids of the sentence, without EOS.
        target_ids: Token ids of the translation, without EOS.
    """
    device = model.output_weight.device
    source = torch.tensor([[*source_ids, EOS]], device=device)
    lengths = torch.tensor([source.size(1)], device=device)
    target_input = torch.tensor([[BOS, *target_ids]], device=device)
    recorded = record_attention(model, source, lengths, target_input)
    sources = vocabulary.source.pieces([*source_ids, EOS])
    target_inputs = vocabulary.target.pieces([BOS, *target_ids])
    predictions = vocabulary.target.pieces([*target_ids, EOS])
    kinds: dict[AttentionKind, tuple[torch.Tensor | None, list[str], list[str]]] = {
        "encoder": (recorded.encoder, sources, sources),
        "decoder": (recorded.decoder, predictions, target_inputs),
        "cross": (recorded.cross, predictions, sources),
    }
    return {
        kind: AttentionMaps(
            kind=kind, queries=queries, keys=keys, weights=weights[:, 0].cpu().numpy()
        )
        for kind, (weights, queries, keys) in kinds.items()
        if weights is not None
    }
