"""The training backend of GPUs: layers under torch.compile, and torch's kernels for attention.

What acts on each token by itself is compiled for each number of rows, of which batches have few.
Attention, whose shapes differ from batch to batch, stays outside the compiled code.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from tfm.backends.plain import TrainingBackend
from tfm.data.packing import Layout, Packing
from tfm.model.attention import AttentionMask, Heads, MultiHeadAttention
from tfm.model.build import Model
from tfm.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from tfm.model.transformer import Transformer

_HALF_DTYPES = (torch.float16, torch.bfloat16)
# Numbers of rows for which a function is compiled; torch stops after eight by default.
_MAX_SIZES = 64


def compile_for_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for each size of its arguments."""
    config = torch._dynamo.config  # noqa: SLF001
    config.recompile_limit = _MAX_SIZES
    # In DDP, torch would split functions so that gradients are sent earlier: these are short.
    config.optimize_ddp = False
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    return compiled


def compilation_problem(device: torch.device) -> str | None:
    """Return why a device cannot run compiled code, in one line; None if it can."""
    try:
        compile_for_sizes(torch.relu)(torch.ones(8, device=device))
    except (RuntimeError, ImportError, OSError) as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


class CompiledTraining(TrainingBackend):
    """Installs layers that are compiled except for attention, and attention for packed batches."""

    compiles = True

    @override
    def install(self, model: Model) -> None:
        if not isinstance(model, Transformer):  # torch has fused recurrent layers
            return
        parts = _CompiledParts()
        for module in list(model.modules()):
            if isinstance(module, MultiHeadAttention):
                module.heads = PackedHeads(**module.heads.arguments())
        for index, encoder_layer in enumerate(model.encoder.layers()):
            model.encoder[index] = CompiledEncoderLayer(encoder_layer, parts)
        for index, layer in enumerate(model.decoder.layers()):
            model.decoder[index] = CompiledDecoderLayer(layer, parts)


def _before_attention(residual: Residual, attention: MultiHeadAttention, x: Tensor) -> Tensor:
    projected: Tensor = attention.input(residual.before(x))
    return projected


def _between_attentions(
    residual: Residual,
    attention: MultiHeadAttention,
    cross_residual: Residual,
    cross_attention: MultiHeadAttention,
    x: Tensor,
    attended: Tensor,
) -> tuple[Tensor, Tensor]:
    x = residual.after(x, attention.output(attended))
    return x, cross_attention.input.queries(cross_residual.before(x))


def _project_memory(attention: MultiHeadAttention, encoded: Tensor) -> Tensor:
    return attention.input.keys_values(encoded)


def _after_attention(
    residual: Residual,
    attention: MultiHeadAttention,
    feed_forward_residual: Residual,
    feed_forward: FeedForward,
    x: Tensor,
    attended: Tensor,
) -> Tensor:
    x = residual.after(x, attention.output(attended))
    out: Tensor = feed_forward_residual(x, feed_forward)
    return out


class _CompiledParts:
    """The parts of layers, compiled; layers of equal shape share the code."""

    def __init__(self) -> None:
        self.before_attention = compile_for_sizes(_before_attention)
        self.between_attentions = compile_for_sizes(_between_attentions)
        self.project_memory = compile_for_sizes(_project_memory)
        self.after_attention = compile_for_sizes(_after_attention)


class CompiledEncoderLayer(EncoderLayer):
    """An encoder layer whose parts before and after attention are compiled."""

    def __init__(self, layer: EncoderLayer, parts: _CompiledParts) -> None:
        nn.Module.__init__(self)
        for name, child in layer.named_children():
            self.add_module(name, child)
        self._parts = parts

    @override
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if not self.training:  # validation must compile nothing
            return super().forward(x, layout)
        sublayer = self.self_attention_residual, self.self_attention
        projected = self._parts.before_attention(*sublayer, x)
        attended = _attend(self.self_attention, [projected], layout, layout)
        feed_forward = self.feed_forward_residual, self.feed_forward
        out: Tensor = self._parts.after_attention(*sublayer, *feed_forward, x, attended)
        return out


class CompiledDecoderLayer(DecoderLayer):
    """A decoder layer whose parts before, between and after attention are compiled."""

    def __init__(self, layer: DecoderLayer, parts: _CompiledParts) -> None:
        nn.Module.__init__(self)
        for name, child in layer.named_children():
            self.add_module(name, child)
        self._parts = parts

    @override
    def forward(self, x: Tensor, encoded: Tensor, targets: Layout, sources: Layout) -> Tensor:
        if not self.training:
            return super().forward(x, encoded, targets, sources)
        parts, sublayer = self._parts, (self.self_attention_residual, self.self_attention)
        projected = parts.before_attention(*sublayer, x)
        attended = _attend(self.self_attention, [projected], targets, targets)
        cross_sublayer = self.cross_attention_residual, self.cross_attention
        x, queries = parts.between_attentions(*sublayer, *cross_sublayer, x, attended)
        memory = parts.project_memory(self.cross_attention, encoded)
        attended = _attend(self.cross_attention, [queries, memory], targets, sources)
        feed_forward = self.feed_forward_residual, self.feed_forward
        out: Tensor = parts.after_attention(*cross_sublayer, *feed_forward, x, attended)
        return out


def _attend(
    attention: MultiHeadAttention, projections: Sequence[Tensor], queries: Layout, keys: Layout
) -> Tensor:
    attended: Tensor = attention.heads(projections, queries, keys, attention.additive_weight)
    return attended


class PackedHeads(Heads):
    """Attention in packed batches: by `varlen_attn` where it can, else in padded parts.

    `varlen_attn` has no dropout. In a part, sentences have similar lengths, so padding is short.
    """

    @override
    def forward(
        self,
        projections: Sequence[Tensor],
        queries: Layout,
        keys: Layout,
        additive_weight: Tensor | None,
    ) -> Tensor:
        if not isinstance(queries, Packing) or not isinstance(keys, Packing):
            return super().forward(projections, queries, keys, additive_weight)
        is_half_on_gpu = projections[0].is_cuda and projections[0].dtype in _HALF_DTYPES
        has_usual_heads = additive_weight is None and len(set(self.widths)) == 1
        if is_half_on_gpu and has_usual_heads and not self.active_dropout:
            return self._attend_varlen(projections, queries, keys)
        layouts = (queries, keys)[-len(projections) :]
        split = [
            torch.split(x[: layout.num_tokens], [part.num_tokens for part in layout.parts])
            for x, layout in zip(projections, layouts, strict=True)
        ]
        attended = []
        for query_part, key_part, *rows in zip(queries.parts, keys.parts, *split, strict=True):
            padded = [F.pad(each, (0, 0, 0, 1)) for each in rows]
            part = super().forward(padded, query_part, key_part, additive_weight)
            attended.append(part[: query_part.num_tokens])
        num_spare = queries.num_rows - queries.num_tokens
        return F.pad(torch.cat(attended), (0, 0, 0, num_spare))

    def _attend_varlen(
        self, projections: Sequence[Tensor], queries: Packing, keys: Packing
    ) -> Tensor:
        """Attend without padding; spare rows are a sentence, so that all results are finite."""
        from torch.nn.attention.varlen import varlen_attn  # imports torch's compiler

        width = self.widths[0] // self.num_heads
        heads = [x.view(len(x), -1, self.num_heads, width) for x in projections]
        query, key, value = (x for each in heads for x in each.unbind(1))
        window = (-1, 0 if self.causal else -1)
        if self.window is not None:
            window = AttentionMask(causal=self.causal, window=self.window).window_size()
        lengths = [max(each.longest, each.num_rows - each.num_tokens) for each in (queries, keys)]
        attended = varlen_attn(
            query, key, value, queries.offsets, keys.offsets, *lengths, window_size=window
        )
        return cast("Tensor", attended).flatten(1)
