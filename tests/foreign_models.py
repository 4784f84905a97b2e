"""Models in the formats of transformers and fairseq, with the classes that compute them."""

import argparse
import io
import json

import sentencepiece
import torch
from helpers import number_pairs

PAIRS = list(number_pairs("train", num_pairs=150, seed=3))
SHAPE = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}


def segmenter(lines, *, model_type="unigram", vocab_size=200, **options):
    """Return a SentencePiece model trained with SentencePiece's own defaults."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=content,
        minloglevel=2,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        model_type=model_type,
        **options,
    )
    return content.getvalue()


def pieces_of(content):
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    return [model.IdToPiece(i) for i in range(3, len(model))]


def randomize(model):
    """Give all weights of a model random values, norms and biases too."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(std=0.3).add_(1.0 if "norm.weight" in name else 0.0)
    return model.eval()


def scores_of(model, sources, targets):
    """Return the log probability of targets, as token ids without EOS, under a model of
    transformers."""
    config = model.config
    found = []
    for source, target in zip(sources, targets, strict=True):
        labels = torch.tensor([[*target, config.eos_token_id]])
        start = torch.tensor([[config.decoder_start_token_id]])
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([[*source, config.eos_token_id]]),
                decoder_input_ids=torch.cat([start, labels[:, :-1]], dim=1),
            ).logits
        log_probs = logits.log_softmax(-1).gather(2, labels[..., None])
        found.append(float(log_probs.sum()))
    return found


def new_marian(folder, *, model_type="unigram", num_missing=0, tags=(), **changes):
    """Write a Marian model of random weights as `transformers` does; return the model."""
    from transformers import MarianConfig, MarianMTModel

    folder.mkdir()
    contents = [segmenter([pair[side] for pair in PAIRS], model_type=model_type) for side in (0, 1)]
    pieces = sorted({*pieces_of(contents[0]), *pieces_of(contents[1])})[num_missing:]
    vocabularies = [["</s>", "<unk>", *pieces, *tags, "<pad>"]]
    is_joint = changes.get("share_encoder_decoder_embeddings", True)
    if not is_joint:
        vocabularies = [["</s>", "<unk>", "<pad>", *pieces_of(each)] for each in contents]
        changes["decoder_vocab_size"] = len(vocabularies[1])
    for name, content in zip(("source.spm", "target.spm"), contents, strict=True):
        (folder / name).write_bytes(content)
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=False):
        ids = {piece: number for number, piece in enumerate(vocabulary)}
        (folder / name).write_text(json.dumps(ids), encoding="utf-8")
    tokenizer = {"source_lang": "en", "target_lang": "de", "separate_vocabs": not is_joint}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    pad = vocabularies[0].index("<pad>")
    settings = {
        **SHAPE,
        "vocab_size": len(vocabularies[0]),
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "activation_function": "swish",
        "scale_embedding": True,
        **changes,
    }
    model = randomize(MarianMTModel(MarianConfig(**settings)))
    model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    return model


def fairseq_positions(num_positions, d_model):
    """Return fairseq's sinusoids for the positions of a sentence, which start at 2."""
    half = d_model // 2
    rates = 10_000 ** (-torch.arange(half, dtype=torch.float64) / (half - 1))
    angles = torch.arange(2, num_positions + 2)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1).float()


def unused_copies(layer):
    """Return what fairseq 0.12 registers in an encoder layer for a fused kernel."""
    size, inner = SHAPE["d_model"], SHAPE["encoder_ffn_dim"]
    shapes = {"in_proj": (3 * size, size), "out_proj": (size, size)}
    shapes |= {"fc1": (inner, size), "fc2": (size, inner)}
    return {
        f"{layer}{name}_{part}": torch.zeros(shape[: 2 - (part == "bias")])
        for name, shape in shapes.items()
        for part in ("weight", "bias")
    }


def new_fairseq(folder, *, norm="post", tokens=False, changes=None, **arguments):
    """Write a checkpoint of random weights as fairseq does; return a model that computes it.

    The layers of transformers' Marian and Pegasus are those of fairseq, without and with
    normalization before sub-layers.
    """
    import transformers

    folder.mkdir()
    if tokens:
        words = sorted({word for pair in PAIRS for line in pair for word in line.split()})
    else:
        content = segmenter([line for pair in PAIRS for line in pair])
        (folder / "sentencepiece.bpe.model").write_bytes(content)
        words = pieces_of(content)
    for language in ("en", "de"):
        lines = "".join(f"{word} {9}\n" for word in words)
        (folder / f"dict.{language}.txt").write_text(lines, encoding="utf-8")
    name = "Marian" if norm == "post" else "Pegasus"
    heads = {"Marian": "MTModel", "Pegasus": "ForConditionalGeneration"}
    config = getattr(transformers, f"{name}Config")(
        **SHAPE,
        vocab_size=len(words) + 4,
        pad_token_id=1,
        eos_token_id=2,
        forced_eos_token_id=None,
        decoder_start_token_id=2,
        activation_function="relu",
        scale_embedding=not arguments.get("no_scale_embedding"),
        max_position_embeddings=64,
    )
    model = randomize(getattr(transformers, name + heads[name])(config))
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data = fairseq_positions(64, SHAPE["d_model"])
    weights = {
        key.removeprefix("model."): each
        for key, each in model.state_dict().items()
        if "embed_positions" not in key and "shared" not in key and "final_logits" not in key
    }
    weights["decoder.output_projection.weight"] = weights.pop("lm_head.weight")
    weights["encoder.version"] = weights["decoder.version"] = torch.tensor([3.0])
    for layer in range(SHAPE["encoder_layers"]):
        weights |= unused_copies(f"encoder.layers.{layer}.")
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.embed_positions._float_tensor"] = torch.tensor([torch.nan])
    sizes = {
        "layers": SHAPE["encoder_layers"],
        "embed_dim": SHAPE["d_model"],
        "ffn_embed_dim": SHAPE["encoder_ffn_dim"],
        "attention_heads": SHAPE["encoder_attention_heads"],
        "normalize_before": norm == "pre",
    }
    given = {
        f"{side}_{key}": each for side in ("encoder", "decoder") for key, each in sizes.items()
    }
    given |= {"decoder_layers": SHAPE["decoder_layers"], "share_all_embeddings": True}
    given |= {"source_lang": "en", "target_lang": "de", "max_source_positions": 64}
    given |= {"max_target_positions": 64, **arguments}
    state = {"args": argparse.Namespace(**given), "model": {**weights, **(changes or {})}}
    torch.save(state, folder / "checkpoint.pt")
    return model
