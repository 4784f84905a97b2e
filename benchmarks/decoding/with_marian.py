"""Translate with `generate` of MarianMTModel in Hugging Face transformers."""

from collections.abc import Iterator, Sequence

import torch
import transformers
from timing import (
    BOS,
    EOS,
    PAD,
    UNK,
    Sentence,
    Settings,
    in_batches,
    measure,
    read_settings,
    until_end,
)
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, MarianConfig, MarianMTModel
from weights import Example, Shape, StoredModel, check_against_tfm, projections, read_model

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_RESIDUALS = {
    "self_attention_residual.norm": "self_attn_layer_norm",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feed_forward_residual.norm": "final_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
}
_ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}


def main() -> None:
    """Run the benchmark."""
    settings = read_settings(__doc__)
    model = _model(read_model(settings.setup, norm="post"))
    model.to(settings.device, _DTYPES[settings.precision])
    generation = _generation(settings)

    def translate(sources: list[list[int]]) -> list[list[int]]:
        rows = [torch.tensor([*ids, EOS]) for ids in sources]
        source = pad_sequence(rows, batch_first=True, padding_value=PAD).to(settings.device)
        found = model.generate(
            input_ids=source, attention_mask=(source != PAD).long(), generation_config=generation
        )
        return [until_end(ids[1:]) for ids in found.tolist()]  # the first is BOS

    def translate_all(sentences: Sequence[Sentence]) -> list[list[int]]:
        return in_batches(sentences, settings.batch_size, translate)

    with torch.inference_mode():
        measure(
            settings, translate_all, version=f"transformers {transformers.__version__} (Marian)"
        )


def _model(stored: StoredModel) -> MarianMTModel:
    """Build Marian's counterpart of a model, and check its log probabilities."""
    model = MarianMTModel(_config(stored.shape, num_positions=len(stored.positions))).eval()
    weights = dict(_weights(stored))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if missing or unexpected:
        raise SystemExit(f"missing weights: {missing}; unexpected weights: {unexpected}")

    def log_probs(example: Example) -> Tensor:
        outputs = model(input_ids=example.source, decoder_input_ids=example.target_input)
        return outputs.logits[0].log_softmax(dim=-1)

    check_against_tfm(stored, log_probs)
    return model


def _config(shape: Shape, *, num_positions: int) -> MarianConfig:
    return MarianConfig(
        vocab_size=shape.vocab_size,
        d_model=shape.d_model,
        encoder_layers=shape.num_encoder_layers,
        decoder_layers=shape.num_decoder_layers,
        encoder_attention_heads=shape.num_heads,
        decoder_attention_heads=shape.num_heads,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        max_position_embeddings=num_positions,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
    )


def _weights(stored: StoredModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by Marian's names."""
    embedding = stored.weights["output_weight"]
    yield "model.shared.weight", embedding
    yield "lm_head.weight", embedding
    yield "final_logits_bias", torch.zeros(1, len(embedding))
    for side in ("encoder", "decoder"):
        yield f"model.{side}.embed_tokens.weight", embedding
        yield f"model.{side}.embed_positions.weight", stored.positions
        for layer in range(getattr(stored.shape, f"num_{side}_layers")):
            for name, tensor in _layer_weights(stored.weights, f"{side}.{layer}"):
                yield f"model.{side}.layers.{layer}.{name}", tensor


def _layer_weights(weights: dict[str, Tensor], layer: str) -> Iterator[tuple[str, Tensor]]:
    for ours, theirs in _ATTENTIONS.items():
        if f"{layer}.{ours}.input.weight" in weights:
            for projection, weight, bias in projections(weights, f"{layer}.{ours}"):
                yield f"{theirs}.{_PROJECTIONS[projection]}.weight", weight
                yield f"{theirs}.{_PROJECTIONS[projection]}.bias", bias
    for ours, theirs in _RESIDUALS.items():
        for kind in ("weight", "bias"):
            if f"{layer}.{ours}.{kind}" in weights:
                yield f"{theirs}.{kind}", weights[f"{layer}.{ours}.{kind}"]


def _generation(settings: Settings) -> GenerationConfig:
    """Return the documented settings of the search, without the tokens that tfm never outputs."""
    return GenerationConfig(
        num_beams=settings.beam_size,
        length_penalty=settings.length_penalty,
        max_new_tokens=settings.max_length,
        do_sample=False,
        suppress_tokens=[PAD, BOS, UNK],
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )


if __name__ == "__main__":
    main()
