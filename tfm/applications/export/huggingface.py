"""Write a Transformer as a folder that Hugging Face's transformers loads by itself.

A post-norm model becomes a Marian model, a pre-norm model a Pegasus model: these classes compute
the same functions. Their sinusoids are all sines, then all cosines; ours alternate. The elements of
d_model are therefore put into their order: Marian computes its positions anew at each loading.
"""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from torch import Tensor, nn

from tfm.config import ModelConfig, SearchConfig, TransformerConfig
from tfm.config.normalization import INVISIBLE, SPACES
from tfm.disk.files import write_json
from tfm.disk.tensor_file import write_tensors
from tfm.errors import UsageError
from tfm.folders.model_info import PORTABLE, ModelInfo
from tfm.model.attention import sinusoidal_encoding
from tfm.model.build import Model
from tfm.vocabulary.subword import BOS, EOS, ESCAPES, PAD, SPACE_MARK, UNK, Vocabulary

_FIRST_BYTE = "<0x00>"
# What normalization may change, names of special pieces, rare characters, runs of one character.
_ODD_LINES = (
    "",
    "  a\tb\xa0c \u200b \u3000d\r\n ",
    "ﬁ Å A\u030a ½ Ａ① ABC",
    f"{SPACE_MARK} \ufdd0 \ufdd01 {SPACE_MARK}{SPACE_MARK}",
    "<s> </s><pad> <unk> <0x41>",
    "🙂 é 中文\x00\ufffd",
    "aaaaaaaaaaaaa -------- ababababab",
)


def new_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer of a joint BPE vocabulary, which also cleans text as tfm does."""
    model = vocabulary.source
    pieces = model.pieces(range(len(model)))
    text_pieces = model.text_pieces()
    merges = list(_merges(text_pieces))
    # Learned pieces join two others. Text with a tag, which does not, is cut at it before BPE.
    joined = {left + right for left, right in merges}
    tags = {piece for piece in text_pieces if len(piece) > 1 and piece not in joined}
    names = [_content(piece) if piece in tags else piece for piece in pieces]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: token_id for token_id, name in enumerate(names)},
            merges=merges,
            unk_token=pieces[UNK],
            fuse_unk=True,
            byte_fallback=_FIRST_BYTE in pieces,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(list(_normalizers(vocabulary)))
    tokenizer.add_special_tokens(
        [AddedToken(pieces[token_id], normalized=False) for token_id in (PAD, BOS, EOS, UNK)]
    )
    # The normalizer also changes these names: to the pieces, with a space before the tag.
    tokenizer.add_tokens([AddedToken(_content(tag), normalized=True) for tag in sorted(tags)])
    eos = pieces[EOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, EOS)]
    )
    tokenizer.decoder = decoders.Sequence(list(_decoders(vocabulary)))
    _check_equal(tokenizer, vocabulary)
    return tokenizer


def _merges(text_pieces: list[str]) -> Iterator[tuple[str, str]]:
    """Yield all pairs of pieces that form a piece, in the order of the formed pieces' scores."""
    known = set(text_pieces)
    for piece in text_pieces:
        for cut in range(1, len(piece)):
            if piece[:cut] in known and piece[cut:] in known:
                yield piece[:cut], piece[cut:]


def _content(tag: str) -> str:
    return tag.removeprefix(SPACE_MARK)


def _normalizers(vocabulary: Vocabulary) -> Iterator[normalizers.Normalizer]:
    """Yield the steps of `Vocabulary.clean`, of `SubwordModel.encode` and of SentencePiece."""
    rules = vocabulary.normalization
    for character, replacement in rules.replacements.items():
        yield normalizers.Replace(character, replacement)
    if rules.space:
        yield normalizers.Replace(Regex(INVISIBLE.pattern), "")
        yield normalizers.Replace(Regex(SPACES.pattern), " ")
        yield normalizers.Replace(Regex(r"\A | \z"), "")
    else:
        yield normalizers.Replace(Regex(rf"\A{SPACES.pattern}\z"), "")
    if rules.unicode:
        yield normalizers.NFC()
    for character, escaped in ESCAPES.items():
        yield normalizers.Replace(character, escaped)
    yield normalizers.Prepend(SPACE_MARK)
    yield normalizers.Replace(" ", SPACE_MARK)


def _decoders(vocabulary: Vocabulary) -> Iterator[decoders.Decoder]:
    """Yield the steps of SentencePiece and of `SubwordModel.decode`."""
    yield decoders.Replace(SPACE_MARK, " ")
    yield decoders.ByteFallback()
    yield decoders.Fuse()
    yield decoders.Strip(" ", 1, 0)
    for character, escaped in reversed(ESCAPES.items()):
        yield decoders.Replace(escaped, character)


def _check_equal(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Raise UsageError unless both encode and decode a sample with all pieces alike."""
    texts = [piece.replace(SPACE_MARK, " ") for piece in vocabulary.source.text_pieces()]
    lines = [*_ODD_LINES, *texts, *map("".join, pairwise(texts))]
    tokenizer.encode_special_tokens = True  # not saved: names of special pieces are text
    found = tokenizer.encode_batch(lines, add_special_tokens=False)
    expected = vocabulary.source.encode(vocabulary.clean(lines))
    for line, encoding, token_ids in zip(lines, found, expected, strict=True):
        if encoding.ids != token_ids or (
            UNK not in token_ids
            and [tokenizer.decode(token_ids)] != vocabulary.source.decode([token_ids])
        ):
            raise UsageError(
                f"a tokenizer.json cannot express this subword model: it encodes {line!r} "
                f"differently (such as one that normalizes Unicode): export with another --format"
            )


_CLASSES = {
    "post": ("marian", "MarianMTModel"),
    "pre": ("pegasus", "PegasusForConditionalGeneration"),
}
_NAMES = {
    "self_attention.output": "self_attn.out_proj",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
_ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_EPSILON = 1e-5  # of the layer norms of both classes
# transformers divides by length^β, tfm by ((5 + length) / 6)^α, which grows more slowly at first:
# as fast as length^(2α/3) at 10 tokens.
_LENGTH_PENALTY_RATIO = 2 / 3


def check_supported(info: ModelInfo, vocabulary: Vocabulary) -> TransformerConfig:
    """Return the settings of a model; UsageError names all that cannot be expressed, and why."""
    config = info.run.model
    problems = [*_problems_of_model(config)]
    if info.task != "translation":
        problems.append(f"task {info.task} (only tfm generate makes trees of the output)")
    elif not vocabulary.is_joint:
        problems.append("separate vocabularies (a tokenizer.json holds one)")
    elif not vocabulary.source.is_bpe:
        problems.append("a subword model other than BPE (ties between segmentations differ)")
    if problems or not isinstance(config, TransformerConfig):
        raise UsageError(
            f"Hugging Face's Marian and Pegasus models cannot express {', '.join(problems)}: "
            "translate with tfm generate"
        )
    return config


def _problems_of_model(config: ModelConfig) -> Iterator[str]:
    if not isinstance(config, TransformerConfig):
        yield "arch rnn"
        return
    if config.attention != "dot-product":
        yield f"attention {config.attention}"
    if config.attention_window is not None:
        yield f"attention_window {config.attention_window}"
    if config.learned_positions is not None:
        yield "learned_positions (theirs are sinusoids)"
    if {config.key_width * config.num_heads, config.value_width * config.num_heads} != {
        config.d_model
    }:
        yield "d_k and d_v other than d_model / num_heads"
    if config.norm == "pre" and config.tied_embeddings != "three-way":
        yield f"tied_embeddings {config.tied_embeddings} with norm pre (Pegasus has one matrix)"


def write_huggingface(
    folder: Path, model: Model, info: ModelInfo, config: TransformerConfig, vocabulary: Vocabulary
) -> None:
    """Write weights, settings and tokenizer; the settings must have passed `check_supported`."""
    search = SearchConfig.for_model(info.search, {})
    tokenizer = new_tokenizer(vocabulary)
    tokenizer.save(str(folder / "tokenizer.json"))
    pieces = vocabulary.source.pieces([PAD, BOS, EOS, UNK])
    special = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), pieces, strict=True))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **special,
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,  # the name of a special piece in a text is text
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": search.max_source_length + 1,  # with EOS
        },
    )
    max_length = search.max_source_length + search.max_extra_length + 2  # with BOS and EOS
    settings = _config(config, len(vocabulary.target), max_length)
    # For tfm import: transformers keeps a section that it does not know.
    write_json(folder / "config.json", {**settings, PORTABLE: asdict(info.portable)})
    for name, content in vocabulary.files().items():
        (folder / name).write_bytes(content)
    write_json(folder / "generation_config.json", _generation_config(search, max_length))
    weights = _weights(model, config, num_positions=max_length)
    write_tensors(folder / "model.safetensors", weights, metadata={"format": "pt"})


def _config(config: TransformerConfig, vocab_size: int, max_length: int) -> dict[str, Any]:
    model_type, class_name = _CLASSES[config.norm]
    sides = {
        f"{side}_{name}": value
        for side, num_layers in (
            ("encoder", config.num_encoder_layers),
            ("decoder", config.num_decoder_layers),
        )
        for name, value in (
            ("layers", num_layers),
            ("attention_heads", config.num_heads),
            ("ffn_dim", config.d_ff),
            ("layerdrop", 0.0),
        )
    }
    marian = {
        "decoder_vocab_size": vocab_size,
        "share_encoder_decoder_embeddings": config.tied_embeddings == "three-way",
    }
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": vocab_size,
        **(marian if model_type == "marian" else {}),
        "d_model": config.d_model,
        **sides,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.relu_dropout,
        "max_position_embeddings": max_length,
        "scale_embedding": True,
        "tie_word_embeddings": config.tied_embeddings != "none",
        "is_encoder_decoder": True,
        **_token_ids(),
        "forced_eos_token_id": None,  # both classes would force it at the maximum length
        "dtype": "float32",
    }


def _token_ids() -> dict[str, int]:
    return {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }


def _generation_config(search: SearchConfig, max_length: int) -> dict[str, Any]:
    return {
        **_token_ids(),
        "num_beams": search.beam_size,
        "length_penalty": round(search.length_penalty * _LENGTH_PENALTY_RATIO, 4),
        "early_stopping": False,
        "do_sample": False,
        "max_length": max_length,
        "min_new_tokens": search.min_length,  # without EOS
        "suppress_tokens": [PAD, BOS, UNK],
        "forced_eos_token_id": None,
    }


def _weights(model: nn.Module, config: TransformerConfig, num_positions: int) -> dict[str, Tensor]:
    """Return the weights, of any shape, by the names and in the order of d_model of the classes."""
    if any(norm.eps != _EPSILON for norm in model.modules() if isinstance(norm, nn.LayerNorm)):
        raise ValueError("layer norms have another epsilon")
    named = {
        name: tensor.detach() for name, tensor in model.named_parameters(remove_duplicate=False)
    }
    order = torch.arange(config.d_model).view(-1, 2).mT.flatten()  # even elements, then odd ones
    weights = {
        name: named[ours][:, order] for name, ours in _embedding_names(config.tied_embeddings)
    }
    if config.output_bias:
        weights["final_logits_bias"] = named["output_bias"][None]
    for stack in ("encoder", "decoder"):
        if config.norm == "pre":
            for kind in ("weight", "bias"):
                weights[f"model.{stack}.layer_norm.{kind}"] = named[f"{stack}_norm.{kind}"][order]
            # Pegasus computes the same, but warns if they are missing.
            positions = sinusoidal_encoding(torch.arange(num_positions), config.d_model)
            weights[f"model.{stack}.embed_positions.weight"] = positions[:, order]
    for name, tensor in named.items():
        stack, _, rest = name.partition(".")
        if stack in ("encoder", "decoder"):
            index, _, rest = rest.partition(".")
            for renamed, part in _layer_weights(rest, tensor, order):
                weights[f"model.{stack}.layers.{index}.{renamed}"] = part
    return weights


def _embedding_names(tied: str) -> Iterator[tuple[str, str]]:
    """Yield the names of stored embeddings, theirs and ours."""
    if tied == "three-way":
        yield "model.shared.weight", "source_embedding.weight"
        return
    yield "model.encoder.embed_tokens.weight", "source_embedding.weight"
    yield "model.decoder.embed_tokens.weight", "target_embedding.weight"
    if tied == "none":
        yield "lm_head.weight", "output_weight"


def _layer_weights(name: str, tensor: Tensor, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors, of any shape, for a parameter of a layer."""
    module, _, kind = name.rpartition(".")
    block, _, part = module.rpartition(".")
    if part in ("input", "inner") and kind == "weight":
        tensor = tensor[:, order]  # maps from d_model
    elif part not in ("input", "inner"):
        tensor = tensor[order]  # maps to d_model
    if part == "input":
        for letter, each in zip("qkv", tensor.chunk(3), strict=True):
            yield f"{_ATTENTIONS[block]}.{letter}_proj.{kind}", each
    else:
        yield f"{_NAMES[module]}.{kind}", tensor
