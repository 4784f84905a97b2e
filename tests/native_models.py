"""Models in Marian's own files, with classes of transformers that compute the same."""

import json
import re

import numpy as np
import sentencepiece
import torch
from foreign_models import PAIRS, SHAPE, pieces_of, randomize, segmenter

_PARTS = {
    "self_attn": "self",
    "encoder_attn": "context",
    "self_attn_layer_norm": "self_Wo_ln",
    "encoder_attn_layer_norm": "context_Wo_ln",
    "final_layer_norm": "ffn_ffn_ln",
    "fc1": "ffn",
    "fc2": "ffn",
}
_LAYER = re.compile(r"model\.(encoder|decoder)\.layers\.(\d+)\.(\w+?)(?:\.(\w)\w*_proj)?\.(\w+)")
_TOP = re.compile(r"model\.(encoder|decoder)\.layer_norm\.(\w+)")


def marian_positions(num_positions, d_model):
    """Return Marian's sinusoids."""
    half = d_model // 2
    rates = 10_000 ** (-torch.arange(half, dtype=torch.float64) / (half - 1))
    angles = torch.arange(num_positions)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1).float()


def _named(name, norm):
    """Return Marian's name of a weight of a layer."""
    suffix = "_pre" if norm == "pre" else ""
    if top := _TOP.fullmatch(name):
        return f"{top[1]}_top_ln_{'scale' if top[2] == 'weight' else 'bias'}"
    stack, number, part, projection, kind = _LAYER.fullmatch(name).groups()
    prefix = f"{stack}_l{int(number) + 1}_{_PARTS[part]}"
    if part.endswith("norm"):
        return f"{prefix}_{'scale' if kind == 'weight' else 'bias'}{suffix}"
    return f"{prefix}_{'W' if kind == 'weight' else 'b'}{projection or part[-1]}"


def _yaml(values):
    """Return settings as Marian writes them."""
    lines = [
        f"{key}:\n  []" if value == [] else f"{key}: {value if value != '' else chr(34) * 2}"
        for key, value in sorted(values.items())
    ]
    return "\n".join(lines)


def write_npz(path, weights, settings):
    """Write weights with settings, which end with a NUL."""
    content = np.frombuffer(f"{_yaml(settings)}\0".encode(), dtype=np.int8)
    np.savez(path, **weights, **{"special:model.yml": content})


def settings_of(norm="post", **changes):
    """Return the settings that Marian stores."""
    operations = {"post": ("", "dan", ""), "pre": ("n", "da", "n")}[norm]
    return {
        "type": "transformer",
        "dim-emb": SHAPE["d_model"],
        "enc-depth": SHAPE["encoder_layers"],
        "dec-depth": SHAPE["decoder_layers"],
        "transformer-heads": SHAPE["encoder_attention_heads"],
        "transformer-dim-ffn": SHAPE["encoder_ffn_dim"],
        "transformer-decoder-dim-ffn": 0,
        "transformer-ffn-activation": "swish",
        "transformer-ffn-depth": 2,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-preprocess": operations[0],
        "transformer-postprocess": operations[1],
        "transformer-postprocess-top": operations[2],
        "transformer-postprocess-emb": "d",
        "transformer-tied-layers": [],
        "dec-cell": "ssru",
        "separator-symbol": '"[eos]"',
        "version": "v1.12.42 b7be0e964 2025-05-24 22:34:42 -0700",
        **changes,
    }


def _vocabularies(folder, kind):
    """Write vocabularies; return the ids of each side by piece, and the words for encoding."""
    if kind == "spm":  # those of Marian built with SentencePiece
        special = {"bos_id": -1, "eos_id": 0, "unk_id": 1}
        content = segmenter([line for pair in PAIRS for line in pair], **special)
        (folder / "vocab.spm").write_bytes(content)
        model = sentencepiece.SentencePieceProcessor(model_proto=content)
        return ["vocab.spm"] * 2, {model.IdToPiece(i): i for i in range(len(model))}
    if kind == "opus":  # pieces of two models, which are applied before
        contents = [segmenter([pair[side] for pair in PAIRS]) for side in (0, 1)]
        for name, content in zip(("source.spm", "target.spm"), contents, strict=True):
            (folder / name).write_bytes(content)
        words = sorted({*pieces_of(contents[0]), *pieces_of(contents[1])})
    else:
        words = sorted({word for pair in PAIRS for line in pair for word in line.split()})
    ids = {word: number for number, word in enumerate(["</s>", "<unk>", *words])}
    lines = [f"{json.dumps(word, ensure_ascii=False)}: {number}\n" for word, number in ids.items()]
    (folder / "opus.vocab.yml").write_text("".join(lines), encoding="utf-8")
    return ["opus.vocab.yml"] * 2, ids


def new_native(folder, *, norm="post", vocabulary="spm", tied=True, settings=None, **changes):
    """Write a model of random weights as Marian does; return one that computes it, and its ids."""
    import transformers

    folder.mkdir()
    names, ids = _vocabularies(folder, vocabulary)
    name = "Marian" if norm == "post" else "Pegasus"
    heads = {"Marian": "MTModel", "Pegasus": "ForConditionalGeneration"}
    size = len(ids)
    config = getattr(transformers, f"{name}Config")(
        **SHAPE,
        vocab_size=size + 1,
        pad_token_id=size,
        eos_token_id=0,
        forced_eos_token_id=None,
        decoder_start_token_id=size,
        activation_function="silu",
        scale_embedding=True,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    model = randomize(getattr(transformers, name + heads[name])(config))
    model.final_logits_bias.normal_()
    model.final_logits_bias[:, size] = -100  # Marian has no start
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data = marian_positions(64, SHAPE["d_model"])
        stack.embed_tokens.weight.data[size] = 0
    weights = {
        _named(key, norm): (each.T if each.ndim == 2 else each[None]).numpy()
        for key, each in model.state_dict().items()
        if "layer" in key
    }
    embeddings = {
        "encoder_Wemb": model.model.encoder.embed_tokens,
        "decoder_Wemb": model.model.decoder.embed_tokens,
        "decoder_ff_logit_out_Wt": model.lm_head,
    }
    for each, module in ({"Wemb": model.lm_head} if tied else embeddings).items():
        weights[each] = module.weight.detach().numpy()[:size]
    weights["decoder_ff_logit_out_b"] = model.final_logits_bias.numpy()[:, :size]
    write_npz(folder / "model.npz", weights | changes, settings_of(norm, **(settings or {})))
    vocabs = "".join(f"  - /elsewhere/{each}\n" for each in names)
    (folder / "decoder.yml").write_text(
        f"models:\n  - model.npz\nvocabs:\n{vocabs}", encoding="utf-8"
    )
    readme = "* source languages: en\n* target languages: de\n"
    (folder / "README.md").write_text(readme, encoding="utf-8")
    return model, ids
