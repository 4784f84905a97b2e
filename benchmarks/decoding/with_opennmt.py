"""Translate with the Translator and the pre-norm Transformer of OpenNMT-py."""

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).parents[1]))
import opennmt_model  # first, because it makes the next imports possible
from onmt.constants import DefaultTokens
from onmt.model_builder import build_model
from onmt.translate import GNMTGlobalScorer, Translator
from timing import EOS, PAD, Sentence, Settings, in_batches, measure, read_settings, until_end
from weights import Example, StoredModel, check_against_tfm, projections, read_model

_PROJECTIONS = {
    "query": "linear_query",
    "key": "linear_keys",
    "value": "linear_values",
    "output": "final_linear",
}
_LAYERS = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
_ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "context_attn"}
_OTHERS = {
    "feed_forward.inner": "feed_forward.w_1",
    "feed_forward.outer": "feed_forward.w_2",
    "feed_forward_residual.norm": "feed_forward.layer_norm",
    "cross_attention_residual.norm": "layer_norm_2",
}
_FIRST_NORMS = {"encoder": "layer_norm", "decoder": "layer_norm_1"}


def main() -> None:
    """Run the benchmark."""
    settings = read_settings(__doc__)
    stored = read_model(settings.setup, norm="pre")
    vocabulary = opennmt_model.synthetic_vocabulary(stored.shape.vocab_size)
    vocabularies = {
        "src": vocabulary,
        "tgt": vocabulary,
        "decoder_start_token": DefaultTokens.BOS,
    }
    model = _model(stored, vocabularies)
    if settings.precision == "int8":
        # OpenNMT-py does the same when it loads a model with -precision int8.
        torch.quantization.quantize_dynamic(model, dtype=torch.qint8, inplace=True)
    model.to(settings.device)
    translator = _translator(model, vocabularies, settings)

    def translate(sources: list[list[int]]) -> list[list[int]]:
        rows = [torch.tensor([*ids, EOS]) for ids in sources]
        batch = {
            "src": pad_sequence(rows, batch_first=True, padding_value=PAD)[:, :, None],
            "srclen": torch.tensor([len(row) for row in rows]),
        }
        batch = {name: tensor.to(settings.device) for name, tensor in batch.items()}
        found = translator.translate_batch(batch, attn_debug=False)
        return [until_end(best[0].tolist()) for best in found["predictions"]]

    def translate_all(sentences: Sequence[Sentence]) -> list[list[int]]:
        return in_batches(sentences, settings.batch_size, translate)

    measure(settings, translate_all, version=f"OpenNMT-py {version('OpenNMT-py')}")


def _model(stored: StoredModel, vocabularies: dict[str, Any]) -> Any:
    """Build OpenNMT-py's counterpart of a model, and check its log probabilities."""
    shape = stored.shape
    options = opennmt_model.model_options(
        {
            "enc_layers": shape.num_encoder_layers,
            "dec_layers": shape.num_decoder_layers,
            "hidden_size": shape.d_model,
            "word_vec_size": shape.d_model,
            "transformer_ff": shape.d_ff,
            "heads": shape.num_heads,
            "add_qkvbias": None,
            "add_ffnbias": None,
            "norm_eps": 1e-5,
            "param_init_glorot": None,
        }
    )
    model = build_model(options, options, vocabularies, None, -1).eval()
    weights = dict(_weights(stored))
    # OpenNMT-py overrides load_state_dict with a method for its own files.
    keys = torch.nn.Module.load_state_dict(model, weights, strict=False)
    missing = [name for name in keys.missing_keys if not name.endswith(".pe.pe")]
    if missing or keys.unexpected_keys:
        raise SystemExit(f"missing weights: {missing}; unexpected: {keys.unexpected_keys}")

    def log_probs(example: Example) -> Tensor:
        source = example.source[:, :, None]
        lengths = torch.tensor([source.size(1)])
        encoded, states, _ = model.encoder(source, lengths)
        model.decoder.init_state(source, encoded, states)
        hidden_states, _ = model.decoder(example.target_input[:, :, None], encoded, src_len=lengths)
        result: Tensor = model.generator(hidden_states)[0].log_softmax(dim=-1)
        return result

    check_against_tfm(stored, log_probs)
    return model


def _weights(stored: StoredModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by OpenNMT-py's names; it computes the same positions as tfm."""
    weights = stored.weights
    embedding = weights["output_weight"]
    yield "generator.weight", embedding
    yield "generator.bias", torch.zeros(len(embedding))
    for side, layers in _LAYERS.items():
        yield f"{side}.embeddings.make_embedding.emb_luts.0.weight", embedding
        for kind in ("weight", "bias"):
            yield f"{side}.layer_norm.{kind}", weights[f"{side}_norm.{kind}"]
        names = {**_OTHERS, "self_attention_residual.norm": _FIRST_NORMS[side]}
        for layer in range(getattr(stored.shape, f"num_{side}_layers")):
            for name, tensor in _layer_weights(weights, f"{side}.{layer}", names):
                yield f"{layers}.{layer}.{name}", tensor


def _layer_weights(
    weights: dict[str, Tensor], layer: str, names: dict[str, str]
) -> Iterator[tuple[str, Tensor]]:
    for ours, theirs in _ATTENTIONS.items():
        if f"{layer}.{ours}.input.weight" in weights:
            for projection, weight, bias in projections(weights, f"{layer}.{ours}"):
                yield f"{theirs}.{_PROJECTIONS[projection]}.weight", weight
                yield f"{theirs}.{_PROJECTIONS[projection]}.bias", bias
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            if f"{layer}.{ours}.{kind}" in weights:
                yield f"{theirs}.{kind}", weights[f"{layer}.{ours}.{kind}"]


def _translator(model: Any, vocabularies: dict[str, Any], settings: Settings) -> Translator:
    """Return a translator with default settings, and with Wu et al.'s length penalty if not 0."""
    alpha = settings.length_penalty
    scorer = GNMTGlobalScorer(
        alpha=alpha, beta=0.0, length_penalty="wu" if alpha else "none", coverage_penalty="none"
    )
    return Translator(
        model,
        vocabularies,
        gpu=0 if settings.device == "cuda" else -1,
        beam_size=settings.beam_size,
        max_length=settings.max_length,
        max_length_ratio=0,
        ban_unk_token=True,
        global_scorer=scorer,
        report_score=False,
    )


if __name__ == "__main__":
    main()
