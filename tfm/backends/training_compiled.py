"""The training backend of GPUs: layers under torch.compile, and torch's kernels for attention.

Layers are compiled once per number of rows; batches have few distinct numbers of rows. With flash
attention, a layer is compiled as a whole. Otherwise, the shapes of attention change from batch to
batch, and only the parts of the layer around attention are compiled.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from tfm.backends.plain import TrainingBackend
from tfm.config import ModelConfig, TransformerConfig
from tfm.machine.compute import autocast_dtype
from tfm.model.attention import FeedForward, Heads, MultiHeadAttention, Residual
from tfm.model.build import Model
from tfm.model.layers import DecoderLayer, EncoderLayer
from tfm.model.masks import AttentionMask
from tfm.model.packing import Layout, Packing
from tfm.model.transformer import Transformer

_HALF_DTYPES = (torch.float16, torch.bfloat16)
_MAX_WIDTH = 256  # of a head, in flash attention
_MAX_FLASH_ERROR = 2e-2  # as of two roundings to bf16
_MIN_LONGEST = 256  # tokens: code is compiled for each power of two from here on
# Maximum number of row counts that a function is compiled for; torch's default is eight.
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
    """Installs compiled layers, and attention for packed batches.

    Args:
        flash: Whether `flash_attention` works on the device.
    """

    compiles = True

    def __init__(self, *, flash: bool = False) -> None:
        self._flash = flash

    @override
    def packs(self, config: ModelConfig) -> bool:
        return self._flash and can_pack(config)

    @override
    def install(self, model: Model) -> None:
        if not isinstance(model, Transformer):  # torch has fused recurrent layers
            return
        parts = _CompiledParts()
        for module in list(model.modules()):
            if isinstance(module, MultiHeadAttention):
                flash = self._flash and module.additive_weight is None
                module.heads = PackedHeads(flash=flash, **module.heads.arguments())
        for index, encoder_layer in enumerate(model.encoder.layers()):
            model.encoder[index] = CompiledEncoderLayer(encoder_layer, parts)
        for index, layer in enumerate(model.decoder.layers()):
            model.decoder[index] = CompiledDecoderLayer(layer, parts)


def can_pack(config: ModelConfig) -> bool:
    """Return whether `flash_attention` computes the attention of a model."""
    if not isinstance(config, TransformerConfig) or config.attention == "additive":
        return False
    width = config.key_width
    return width == config.value_width and width % 8 == 0 and width <= _MAX_WIDTH


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


def _encoder_layer(layer: EncoderLayer, x: Tensor, sources: "Segments") -> Tensor:
    attention, residual = layer.self_attention, layer.self_attention_residual
    projected = attention.input(residual.before(x))
    x = residual.after(x, attention.output(_flash(attention, [projected], sources, sources)))
    out: Tensor = layer.feed_forward_residual(x, layer.feed_forward)
    return out


def _decoder_layer(
    layer: DecoderLayer, x: Tensor, encoded: Tensor, targets: "Segments", sources: "Segments"
) -> Tensor:
    attention, residual = layer.self_attention, layer.self_attention_residual
    projected = attention.input(residual.before(x))
    x = residual.after(x, attention.output(_flash(attention, [projected], targets, targets)))
    attention, residual = layer.cross_attention, layer.cross_attention_residual
    projections = attention.input.queries_and_keys_values(residual.before(x), encoded)
    x = residual.after(x, attention.output(_flash(attention, projections, targets, sources)))
    out: Tensor = layer.feed_forward_residual(x, layer.feed_forward)
    return out


def _flash(
    attention: MultiHeadAttention,
    projections: Sequence[Tensor],
    queries: "Segments",
    keys: "Segments",
) -> Tensor:
    heads: Any = attention.heads  # PackedHeads
    attended: Tensor = heads.attend_flash(projections, queries, keys)
    return attended


class _CompiledParts:
    """Layers and their parts, compiled; layers of equal shape share the code.

    Whole layers take fewer calls of the host, which was slower than the GPU with parts (62.5 ms a
    step of `base` on an H200, and 52.9 ms with whole layers).
    """

    def __init__(self) -> None:
        self.encoder_layer = compile_for_sizes(_encoder_layer)
        self.decoder_layer = compile_for_sizes(_decoder_layer)
        self.before_attention = compile_for_sizes(_before_attention)
        self.between_attentions = compile_for_sizes(_between_attentions)
        self.project_memory = compile_for_sizes(_project_memory)
        self.after_attention = compile_for_sizes(_after_attention)


class CompiledEncoderLayer(EncoderLayer):
    """An encoder layer, compiled as a whole or before and after attention."""

    def __init__(self, layer: EncoderLayer, parts: _CompiledParts) -> None:
        nn.Module.__init__(self)
        for name, child in layer.named_children():
            self.add_module(name, child)
        self._parts = parts

    @override
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if not self.training:  # validation must compile nothing
            return super().forward(x, layout)
        if _suits_flash(layout, self.self_attention, x):
            whole: Tensor = self._parts.encoder_layer(self, x, Segments.of(layout))
            return whole
        sublayer = self.self_attention_residual, self.self_attention
        projected = self._parts.before_attention(*sublayer, x)
        attended = _attend(self.self_attention, [projected], layout, layout)
        feed_forward = self.feed_forward_residual, self.feed_forward
        out: Tensor = self._parts.after_attention(*sublayer, *feed_forward, x, attended)
        return out


class CompiledDecoderLayer(DecoderLayer):
    """A decoder layer, compiled as a whole or before, between and after attentions."""

    def __init__(self, layer: DecoderLayer, parts: _CompiledParts) -> None:
        nn.Module.__init__(self)
        for name, child in layer.named_children():
            self.add_module(name, child)
        self._parts = parts

    @override
    def forward(self, x: Tensor, encoded: Tensor, targets: Layout, sources: Layout) -> Tensor:
        if not self.training:
            return super().forward(x, encoded, targets, sources)
        if _suits_flash(targets, self.self_attention, x) and isinstance(sources, Packing):
            segments = Segments.of(targets), Segments.of(sources)
            whole: Tensor = self._parts.decoder_layer(self, x, encoded, *segments)
            return whole
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


class Segments(NamedTuple):
    """Where the sentences and the spare rows of a packed batch start and end."""

    offsets: Tensor  # [S + 1] int32 first row of each of S segments, and the end
    longest: int  # rows of the longest segment, rounded up, because code is compiled for each value

    @classmethod
    def of(cls, layout: Packing) -> "Segments":
        """Return the segments of a layout; code is compiled for any number of them."""
        torch._dynamo.mark_dynamic(layout.offsets, 0)  # noqa: SLF001
        return cls(
            layout.offsets, max(_MIN_LONGEST, 1 << (layout.longest_segment - 1).bit_length())
        )


def _suits_flash(layout: Layout, attention: MultiHeadAttention, x: Tensor) -> TypeGuard[Packing]:
    """Return whether tokens x […, d_model] of this layout can attend by flash attention."""
    heads: Any = attention.heads  # PackedHeads
    suits_flash: bool = heads.suits_flash(autocast_dtype(x))
    return suits_flash and isinstance(layout, Packing)


class PackedHeads(Heads):
    """Attention in packed batches: by flash attention if supported, otherwise in padded parts.

    A part (`Packing.parts`) has sentences of similar lengths, so padding is short.

    Args:
        flash: Whether `flash_attention` works on the device.
        **arguments: The arguments of `Heads`.
    """

    def __init__(self, *, flash: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        width = self.widths[0] // self.num_heads
        has_usual_widths = len(set(self.widths)) == 1 and width % 8 == 0 and width <= _MAX_WIDTH
        self._flash = flash and has_usual_widths

    def suits_flash(self, dtype: torch.dtype) -> bool:
        """Return whether projections of this dtype can attend by flash attention."""
        return self._flash and dtype in _HALF_DTYPES

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
        if self.suits_flash(projections[0].dtype):
            return self.attend_flash(projections, Segments.of(queries), Segments.of(keys))
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

    def attend_flash(
        self, projections: Sequence[Tensor], queries: Segments, keys: Segments
    ) -> Tensor:
        """Attend as `forward` does, without padding: [num_rows, h · d_v]."""
        width = self.widths[0] // self.num_heads
        heads = [x.view(len(x), -1, self.num_heads, width) for x in projections]
        query, key, value = (x for each in heads for x in each.unbind(1))
        window = None
        if self.window is not None:
            window = AttentionMask(causal=self.causal, window=self.window).window_size()
        dropout = self.active_dropout
        return flash_attention(
            query, key, value, queries, keys, dropout=dropout, causal=self.causal, window=window
        ).flatten(1)


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Segments,
    keys: Segments,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """Compute attention of packed tokens to their sentence, or to its pair, without padding.

    Spare rows attend among themselves, so that all results are finite. This operation of torch has
    no public name, but has dropout, which `varlen_attn` does not.

    Args:
        query: [N, h, d_k], in half precision on a GPU.
        key: [M, h, d_k].
        value: [M, h, d_k].
        queries: The segments of the N rows.
        keys: The segments of the M rows, as many segments as `queries` has.
        dropout: Probability of dropping an attention weight.
        causal: Whether query i sees keys 0 to i only.
        window: Numbers of keys before and after its own that a query sees; None for all.

    Returns:
        [N, h, d_k].
    """
    before, after = window or (None, None)
    attended: Tensor = torch.ops.aten._flash_attention_forward(  # noqa: SLF001
        query,
        key,
        value,
        queries.offsets,
        keys.offsets,
        queries.longest,
        keys.longest,
        dropout,
        causal,
        return_debug_mask=False,
        window_size_left=before,
        window_size_right=after,
    )[0]
    return attended


def flash_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why `flash_attention` does not suit a device and a dtype; None if it does.

    It is compared with attention in parts.
    """
    try:
        error = max(_flash_error(device, dtype, causal=causal) for causal in (False, True))
    except (RuntimeError, AttributeError, TypeError) as failure:
        return str(failure).strip().splitlines()[0]
    return None if error <= _MAX_FLASH_ERROR else f"relative error {error:.1g}"


def _flash_error(device: torch.device, dtype: torch.dtype, *, causal: bool) -> float:
    """Return the largest relative error of attention and of its gradient, or infinity."""
    random = torch.Generator().manual_seed(0)
    queries = Packing(torch.tensor([150, 33, 1]), 220, device, part_starts=[1])
    keys = queries
    shapes = [(220, 3 * 128)]
    if not causal:
        keys = Packing(torch.tensor([90, 40, 7]), 160, device, part_starts=[1])
        shapes = [(220, 128), (160, 2 * 128)]
    rows = [torch.randn(shape, generator=random).to(device, dtype) for shape in shapes]
    found = []
    with torch.inference_mode(False), torch.enable_grad():
        for flash in (True, False):
            inputs = [each.clone().requires_grad_() for each in rows]
            heads = PackedHeads(flash=flash, num_heads=2, widths=[128] * 3, dropout=0.0)
            heads.causal = causal
            out = heads(inputs, queries, keys, None)[: queries.num_tokens].float()
            found.append([out.detach(), *torch.autograd.grad(out.sin().sum(), inputs)])
    errors = [
        float((x.double() - y.double()).norm() / y.double().norm())
        for x, y in zip(*found, strict=True)
    ]
    return max(error if error == error else math.inf for error in errors)  # NaN is wrong, too
