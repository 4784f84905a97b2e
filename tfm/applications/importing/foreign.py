"""A model of another program, and its conversion to the settings, weights and pieces of tfm.

Marian in transformers and fairseq name their weights alike.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfm.config import RunConfig, TransformerConfig, run_config, settings_to, tag_problem
from tfm.config.values import check_table, shown
from tfm.errors import CheckpointError, UsageError
from tfm.model.build import empty_model
from tfm.text.corpus.texts import LANGUAGE
from tfm.text.tags import tagged_language
from tfm.vocabulary.foreign import with_vocabulary, word_model
from tfm.vocabulary.subword import BOS, SubwordModel, Vocabulary

# Added to the logit of a start that is a copy of another token. Beside a probability of 1, e^-100
# is 0 in float32, but label smoothing still gives a sensible loss.
COPY_BIAS = -100.0
# By the names that transformers and fairseq give them.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
# The presets for adapting a model, with its batches and learning rate, by the least d_model.
_ARCHS = ((1024, "big"), (512, "base"), (0, "tiny"))
_SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")
# Sub-layers of fairseq, by whether they read hidden states or write them.
_READS = {
    "self_attn.in_proj": "self_attention.input",
    "encoder_attn.in_proj": "cross_attention.input",
    "fc1": "feed_forward.inner",
}
_WRITES = {
    "self_attn.out_proj": "self_attention.output",
    "encoder_attn.out_proj": "cross_attention.output",
    "fc2": "feed_forward.outer",
    "self_attn_layer_norm": "self_attention_residual.norm",
    "encoder_attn_layer_norm": "cross_attention_residual.norm",
    "final_layer_norm": "feed_forward_residual.norm",
}


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of one side by their new ids.

    Attributes:
        pieces: [V] distinct pieces.
        original_ids: [V] the id of each piece in the original model.
        has_own_start: Whether the start of a translation is another token than padding and EOS.
    """

    pieces: Sequence[str]
    original_ids: Sequence[int]
    has_own_start: bool


@dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """A model that another program has written.

    Attributes:
        path: Its file of weights.
        languages: Source and target.
        settings: Values of TransformerConfig.
        weights: The layers, by the names of fairseq.
        embeddings: [V, d_model] source, target and output; tied embeddings are equal.
        output_bias: [V] of the logits, if there is one.
        positions: {"source_embedding" and "target_embedding": [N, d_model]}; empty for the paper's
            sinusoids with all sines before all cosines.
        tokens: The tokens of source and target.
        vocabulary: The subword models with these ids.
        takes_tokens: Whether its text is tokens separated by spaces.
        search: Values of SearchConfig that suit it better than the defaults.
    """

    path: Path
    languages: tuple[str, str]
    settings: Mapping[str, Any]
    weights: dict[str, Tensor]
    embeddings: tuple[Tensor, Tensor, Tensor]
    output_bias: Tensor | None = None
    positions: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: tuple[Tokens, Tokens]
    vocabulary: Vocabulary
    takes_tokens: bool = False
    search: Mapping[str, Any] = field(default_factory=dict)


def renumber(
    pieces: Sequence[str],
    *,
    pad: int,
    start: int,
    eos: int,
    unk: int,
) -> Tokens:
    """Return the tokens with the special ids of tfm first.

    Args:
        pieces: [V] distinct pieces by their ids in the original model.
        pad: The id of padding; the others also are ids in the original.
        start: The id of the token before each translation, which may also be pad or eos.
        eos: The id of the end of a sentence.
        unk: The id of unknown pieces.
    """
    special = [pad, start, eos, unk]
    others = [number for number in range(len(pieces)) if number not in special]
    taken = {*pieces, *_SPECIAL_PIECES}
    names = []
    for number in others:
        name = pieces[number]
        while name in _SPECIAL_PIECES or (name != pieces[number] and name in taken):
            name += "_"
        names.append(name)
        taken.add(name)
    return Tokens(
        pieces=[*_SPECIAL_PIECES, *names],
        original_ids=[*special, *others],
        has_own_start=start not in (pad, eos),
    )


def checked_settings(settings: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return settings of the model; raise UsageError for another type or a value out of range."""
    values, wrong = check_table(TransformerConfig, settings)
    problems = list(wrong.values()) or list(map(str, TransformerConfig(**values).problems()))
    if problems:
        raise UsageError(f"{path} cannot be imported: {'; '.join(problems)}")
    return settings


def checked_weights(weights: Mapping[Any, Any], path: Path) -> dict[str, Tensor]:
    """Return weights of any shape by name, in fp32."""
    checked = {}
    for name, each in weights.items():
        if (
            not isinstance(name, str)
            or not isinstance(each, Tensor)
            or (each.layout, each.device.type) != (torch.strided, "cpu")
            or not each.is_floating_point()
            # A tensor of few numbers that are repeated might exceed the memory.
            or each.numel() * each.element_size() > each.untyped_storage().nbytes()
        ):
            raise CheckpointError(
                f"{path} is damaged ({name!r:.80} is no dense tensor of numbers by name): download "
                "it again, or import another model"
            )
        checked[name] = each.detach().float()
        if not checked[name].isfinite().all():
            raise CheckpointError(
                f"{path} has weights that are not finite, such as in {name}: it is damaged, or its "
                "training diverged: import another model"
            )
    return checked


def unscaled(embeddings: Sequence[Tensor], d_model: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return source, target and output embeddings [V, d_model] of a model that scales none.

    tfm multiplies the first two by √d_model, so they cannot be tied to the output.
    """
    source, target, output = embeddings
    return source / math.sqrt(d_model), target / math.sqrt(d_model), output


def check_supported(unsupported: Sequence[str], path: Path) -> None:
    """Raise a UsageError that lists the parts of a model that tfm does not support, if any."""
    if unsupported:
        raise UsageError(f"{path} cannot be imported: tfm has no {' or '.join(unsupported)}")


def language_tags(pieces: Iterable[str]) -> list[str]:
    """Return the pieces such as >>fra<<, which choose the target language."""
    return [each for each in pieces if each.startswith(">>") and tag_problem(each) is None]


def chosen_languages(
    given: tuple[str | None, str | None],
    named: Mapping[str, Any],
    path: Path,
    tags: Sequence[str] = (),
) -> tuple[str, str]:
    """Return the given languages; languages that are None are read from the model's files.

    Args:
        given: Source and target; None if they are not given.
        named: What the files name: source_lang and target_lang.
        path: The model, for error messages.
        tags: The tags of the vocabulary. Several name the target languages.
    """
    tagged = list(filter(LANGUAGE.fullmatch, map(tagged_language, tags)))
    target = "+".join(tagged) if len(tagged) > 1 else named.get("target_lang")
    codes = given[0] or named.get("source_lang"), given[1] or target
    for code in codes:
        if not LANGUAGE.fullmatch(str(code or "")):
            found = "no languages" if code is None else f"the language {shown(code)}"
            raise UsageError(f"{path} names {found}: give --source and --target, such as en and de")
    targets = str(codes[1]).split("+")
    if len(targets) > 1 and (unknown := [code for code in targets if code not in tagged]):
        has = f"only for {', '.join(tagged)}" if tagged else "for no language"
        raise UsageError(f"{path} has a tag {has}, not for {unknown[0]}: give another --target")
    return str(codes[0]), str(codes[1])


def sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """Return the [N, d_model] of fairseq and Marian, of other wavelengths than §3.5.

    All sines come before all cosines. The table is computed in float32, as both programs do.
    """
    half = d_model // 2
    exponents = torch.arange(half, dtype=torch.float32) * -(math.log(10_000) / max(1, half - 1))
    angles = positions[:, None].float() * exponents.exp()
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def subword_models(
    tokens: tuple[Tokens, Tokens],
    segmenters: Sequence[Path],
    folder: Path,
    tags: Sequence[str] = (),
) -> Vocabulary:
    """Return the subword models of source and target, joint if they are equal.

    Args:
        tokens: Their pieces.
        segmenters: The SentencePiece models that segment text; empty if its tokens are separated by
            spaces.
        folder: Where they are from, for messages.
        tags: The tags of sources.
    """
    if segmenters:
        contents = [
            with_vocabulary(path.read_bytes(), side.pieces, tags=own, origin=path)
            for path, side, own in zip(segmenters, tokens, (tags, ()), strict=True)
        ]
    else:
        contents = [word_model(side.pieces) for side in tokens]
    source, target = (SubwordModel(content, origin=folder) for content in contents)
    chosen = language_tags(source.tags())
    return Vocabulary(
        source,
        source if contents[0] == contents[1] else target,
        tags=tuple(chosen) if len(chosen) > 1 else (),
    )


def convert(model: ForeignModel) -> tuple[RunConfig, dict[str, Tensor]]:
    """Take the settings and the weights, of any shape, out of a model; return them for tfm."""
    tied = _tied(*model.embeddings)
    has_bias = model.output_bias is not None or not model.tokens[1].has_own_start
    settings = {**model.settings, "tied_embeddings": tied, "output_bias": has_bias}
    if model.positions:
        settings["learned_positions"] = min(map(len, model.positions.values()))
    given = run_config("base", {"model": settings}).model
    arch = next(name for width, name in _ARCHS if given.d_model >= width)
    run = run_config(arch, {"model": settings_to(given)})
    order = _order(run.model.d_model, has_sinusoids=not model.positions)
    try:
        weights = _embeddings(model, order, tied)
        if has_bias:
            weights["output_bias"] = _output_bias(model)
        for name, table in model.positions.items():
            weights[f"{name}.positions"] = table[: settings["learned_positions"]]
        for stack in ("encoder", "decoder"):
            weights |= _stack(model, stack, settings, order)
    except KeyError as error:
        raise CheckpointError(
            f"{model.path} has no weight {error.args[0]}: import another model"
        ) from error
    except (IndexError, RuntimeError) as error:  # of torch, about shapes
        raise CheckpointError(
            f"{model.path} has weights of other shapes than its settings say: import another model"
        ) from error
    if model.weights:
        raise UsageError(
            f"{model.path} has weights without a counterpart in tfm, such as "
            f"{', '.join(list(model.weights)[:3])}: it cannot be imported"
        )
    weights = {name: each.contiguous() for name, each in weights.items()}
    _check_shapes(model, run, weights)
    return run, weights


def _tied(source: Tensor, target: Tensor, output: Tensor) -> str:
    """Return the value of `tied_embeddings` for these embeddings."""
    if not torch.equal(target, output):
        return "none"
    return "three-way" if torch.equal(source, target) else "two-way"


def _order(d_model: int, *, has_sinusoids: bool) -> Tensor:
    """Return [d_model] the old index of each component of hidden states.

    In the paper, sines and cosines alternate: a model that has all sines first computes the same
    with its components in another order.
    """
    index = torch.arange(d_model)
    return index.view(2, -1).T.flatten() if has_sinusoids else index


def _embeddings(model: ForeignModel, order: Tensor, tied: str) -> dict[str, Tensor]:
    """Return the embeddings by the names of tfm; tied embeddings have the last of their names."""
    names = ("source_embedding.weight", "target_embedding.weight", "output_weight")
    kept = {"none": names, "two-way": names[::2], "three-way": names[2:]}[tied]
    ids = [torch.tensor(side.original_ids) for side in (*model.tokens, model.tokens[1])]
    _, target, output = model.embeddings
    if target.shape != output.shape:
        raise IndexError("the output embedding has another shape")
    return {
        name: _reordered(weight[chosen], order, 1)
        for name, weight, chosen in zip(names, model.embeddings, ids, strict=True)
        if name in kept
    }


def _output_bias(model: ForeignModel) -> Tensor:
    """Return [V] the bias of the logits, which makes a copy of another token improbable."""
    tokens = model.tokens[1]
    bias = torch.zeros(len(tokens.original_ids))
    if model.output_bias is not None:
        if len(model.output_bias) != len(model.embeddings[1]):
            raise IndexError("the output bias has another shape")
        bias = model.output_bias[torch.tensor(tokens.original_ids)]
    if not tokens.has_own_start:
        bias[BOS] += COPY_BIAS
    return bias


def _stack(
    model: ForeignModel, stack: str, settings: Mapping[str, Any], order: Tensor
) -> dict[str, Tensor]:
    """Return the weights of the encoder or decoder by the names of tfm."""
    names = {
        f"{stack}.layers.{index}.{old}": f"{stack}.{index}.{new}"
        for index in range(settings[f"num_{stack}_layers"])
        for old, new in (_READS | _WRITES).items()
        if stack == "decoder" or not old.startswith("encoder_attn")
    }
    if settings["norm"] == "pre":
        names[f"{stack}.layer_norm"] = f"{stack}_norm"
    found: dict[str, Tensor] = {}
    for old, new in names.items():
        weight, bias = (_take(model.weights, old, part) for part in ("weight", "bias"))
        if old.endswith(tuple(_READS)):
            found |= {f"{new}.weight": _reordered(weight, order, 1), f"{new}.bias": bias}
        else:
            weight, bias = (_reordered(each, order, 0) for each in (weight, bias))
            found |= {f"{new}.weight": weight, f"{new}.bias": bias}
    return found


def _reordered(weight: Tensor, order: Tensor, dim: int) -> Tensor:
    """Return a weight of any shape with the components of hidden states in another order."""
    if weight.size(dim) != len(order):
        raise IndexError("a weight has another shape")
    return weight.index_select(dim, order)


def _take(weights: dict[str, Tensor], name: str, part: str) -> Tensor:
    """Remove and return a weight or bias; queries, keys and values may be separate."""
    *_, last = name.rpartition(".")
    if last != "in_proj":
        return weights.pop(f"{name}.{part}")
    if f"{name}_{part}" in weights:
        return weights.pop(f"{name}_{part}")
    prefix = name.removesuffix(last)
    return torch.cat([weights.pop(f"{prefix}{each}_proj.{part}") for each in "qkv"])


def _check_shapes(model: ForeignModel, run: RunConfig, weights: Mapping[str, Tensor]) -> None:
    source, target = model.tokens
    empty = empty_model(run.model, (len(source.original_ids), len(target.original_ids)))
    for name, parameter in empty.named_parameters():
        if weights[name].shape != parameter.shape:
            raise CheckpointError(
                f"{model.path} has weights of other shapes than its settings say ({name} is "
                f"{list(weights[name].shape)}, not {list(parameter.shape)}): import another model"
            )
