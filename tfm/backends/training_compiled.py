"""The training backend of GPUs: layers under torch.compile, with torch's kernels for attention.

Layers are compiled as a whole, once per number of rows: batches have few distinct numbers of rows.
Attention is computed within packed sentences, without padding, by one of two kernels of torch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from tfm.backends.plain import TrainingBackend
from tfm.model.attention import Heads, MultiHeadAttention
from tfm.model.build import Model
from tfm.model.layers import DecoderLayer, EncoderLayer
from tfm.model.masks import AttentionMask
from tfm.model.packing import Layout, Packing
from tfm.model.transformer import Transformer

# Flash attention computes in half precision on GPUs since sm_80, and is measured. The kernel of
# memory-efficient attention also computes in fp32, and since sm_50; it has tiles of 64 rows instead
# of 128, but no window, and has not been measured.
AttentionKernel = Literal["flash", "efficient"]
_MAX_WIDTH = 256  # of a head, in flash attention
_HALF_DTYPES = (torch.float16, torch.bfloat16)
_MAX_ERRORS = {torch.float32: 1e-3, **dict.fromkeys(_HALF_DTYPES, 2e-2)}  # two roundings to bf16
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
        return _in_one_line(error)
    return None


def _in_one_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class CompiledTraining(TrainingBackend):
    """Installs compiled layers with attention for packed batches, if a kernel computes that.

    Args:
        kernel: The kernel of attention that works on the device; None leaves all layers plain.
    """

    compiles = True

    def __init__(self, kernel: AttentionKernel | None) -> None:
        self._kernel = kernel

    @override
    def packs(self, model: Model) -> bool:
        if self._kernel is None or not isinstance(model, Transformer):
            return False
        attentions = [each for each in model.modules() if isinstance(each, MultiHeadAttention)]
        return all(self._computes(each) for each in attentions)

    def _computes(self, attention: MultiHeadAttention) -> bool:
        heads = attention.heads
        width = heads.widths[0] // heads.num_heads
        has_usual_widths = len({*heads.widths}) == 1 and width % 8 == 0 and width <= _MAX_WIDTH
        has_window = heads.window is not None
        return (
            has_usual_widths
            and attention.additive_weight is None
            and not (has_window and self._kernel == "efficient")
        )

    @override
    def install(self, model: Model) -> None:
        if self._kernel is None or not isinstance(model, Transformer) or not self.packs(model):
            return
        for module in list(model.modules()):
            if isinstance(module, MultiHeadAttention):
                module.heads = PackedHeads(kernel=self._kernel, **module.heads.arguments())
        # Layers of equal shape share the code.
        encode, decode = compile_for_sizes(_encoder_layer), compile_for_sizes(_decoder_layer)
        for index, encoder_layer in enumerate(model.encoder.layers()):
            model.encoder[index] = CompiledEncoderLayer(encoder_layer, encode)
        for index, layer in enumerate(model.decoder.layers()):
            model.decoder[index] = CompiledDecoderLayer(layer, decode)


def _encoder_layer(layer: EncoderLayer, x: Tensor, sources: "Segments") -> Tensor:
    attention, residual = layer.self_attention, layer.self_attention_residual
    projected = attention.input(residual.before(x))
    x = residual.after(x, attention.output(_attend(attention, [projected], sources, sources)))
    out: Tensor = layer.feed_forward_residual(x, layer.feed_forward)
    return out


def _decoder_layer(
    layer: DecoderLayer, x: Tensor, encoded: Tensor, targets: "Segments", sources: "Segments"
) -> Tensor:
    attention, residual = layer.self_attention, layer.self_attention_residual
    projected = attention.input(residual.before(x))
    x = residual.after(x, attention.output(_attend(attention, [projected], targets, targets)))
    attention, residual = layer.cross_attention, layer.cross_attention_residual
    projections = attention.input.queries_and_keys_values(residual.before(x), encoded)
    x = residual.after(x, attention.output(_attend(attention, projections, targets, sources)))
    out: Tensor = layer.feed_forward_residual(x, layer.feed_forward)
    return out


def _attend(
    attention: MultiHeadAttention,
    projections: Sequence[Tensor],
    queries: "Segments",
    keys: "Segments",
) -> Tensor:
    heads: Any = attention.heads  # PackedHeads
    attended: Tensor = heads.attend_packed(projections, queries, keys)
    return attended


class CompiledEncoderLayer(EncoderLayer):
    """An encoder layer that is compiled as a whole in training."""

    def __init__(self, layer: EncoderLayer, compiled: Callable[..., Tensor]) -> None:
        nn.Module.__init__(self)
        for name, child in layer.named_children():
            self.add_module(name, child)
        self._compiled = compiled

    @override
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.training and isinstance(layout, Packing):  # validation compiles nothing
            return self._compiled(self, x, Segments.of(layout))
        return super().forward(x, layout)


class CompiledDecoderLayer(DecoderLayer):
    """A decoder layer that is compiled as a whole in training."""

    def __init__(self, layer: DecoderLayer, compiled: Callable[..., Tensor]) -> None:
        nn.Module.__init__(self)
        for name, child in layer.named_children():
            self.add_module(name, child)
        self._compiled = compiled

    @override
    def forward(self, x: Tensor, encoded: Tensor, targets: Layout, sources: Layout) -> Tensor:
        if self.training and isinstance(targets, Packing) and isinstance(sources, Packing):
            return self._compiled(self, x, encoded, Segments.of(targets), Segments.of(sources))
        return super().forward(x, encoded, targets, sources)


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


class PackedHeads(Heads):
    """Attention within the sentences of packed batches, without padding.

    Args:
        kernel: The kernel that computes it.
        **arguments: The arguments of `Heads`.
    """

    def __init__(self, *, kernel: AttentionKernel, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._kernel = kernel

    @override
    def forward(
        self,
        projections: Sequence[Tensor],
        queries: Layout,
        keys: Layout,
        additive_weight: Tensor | None,
    ) -> Tensor:
        suits = self._kernel == "efficient" or projections[0].dtype in _HALF_DTYPES
        if suits and isinstance(queries, Packing) and isinstance(keys, Packing):
            return self.attend_packed(projections, Segments.of(queries), Segments.of(keys))
        return super().forward(projections, queries, keys, additive_weight)

    def attend_packed(
        self, projections: Sequence[Tensor], queries: Segments, keys: Segments
    ) -> Tensor:
        """Attend as `forward` does, without padding: [num_rows, h · d_v]."""
        width = self.widths[0] // self.num_heads
        heads = [x.view(len(x), -1, self.num_heads, width) for x in projections]
        query, key, value = (x for each in heads for x in each.unbind(1))
        window = None
        if self.window is not None:
            window = AttentionMask(causal=self.causal, window=self.window).window_size()
        return packed_attention(
            self._kernel,
            query,
            key,
            value,
            queries,
            keys,
            dropout=self.active_dropout,
            causal=self.causal,
            window=window,
        ).flatten(1)


def packed_attention(
    kernel: AttentionKernel,
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

    Spare rows attend among themselves, so that all results are finite. The operations of torch have
    no public names, but dropout, which `varlen_attn` does not have.

    Args:
        kernel: Which operation computes it.
        query: [N, h, d_k] on a GPU.
        key: [M, h, d_k].
        value: [M, h, d_k].
        queries: The segments of the N rows.
        keys: The segments of the M rows, as many segments as `queries` has.
        dropout: Probability of dropping an attention weight.
        causal: Whether query i sees keys 0 to i only.
        window: Numbers of keys before and after its own that a query sees; None for all. Only flash
            attention has it.

    Returns:
        [N, h, d_k].
    """
    attended: Tensor
    layout = queries.offsets, keys.offsets, queries.longest, keys.longest
    if kernel == "efficient":
        batch = query[None], key[None], value[None]
        attended = torch.ops.aten._efficient_attention_forward(  # noqa: SLF001
            *batch, None, *layout, dropout, int(causal), compute_log_sumexp=True
        )[0][0]
        return attended
    before, after = window or (None, None)
    attended = torch.ops.aten._flash_attention_forward(  # noqa: SLF001
        query,
        key,
        value,
        *layout,
        dropout,
        causal,
        return_debug_mask=False,
        window_size_left=before,
        window_size_right=after,
    )[0]
    return attended


def working_kernel(
    device: torch.device, dtype: torch.dtype
) -> tuple[AttentionKernel | None, str | None]:
    """Return the first kernel that computes attention right in training, or why none does."""
    problem = None
    for kernel in ("flash", "efficient") if dtype in _HALF_DTYPES else ("efficient",):
        problem = kernel_problem(kernel, device, dtype)
        if problem is None:
            return kernel, None
    return None, problem


def kernel_problem(kernel: AttentionKernel, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a kernel does not suit a device and a dtype; None if it does.

    It is compared with attention of padded sentences.
    """
    try:
        error = max(_kernel_error(kernel, device, dtype, causal=causal) for causal in (False, True))
    except (RuntimeError, AttributeError, TypeError) as failure:
        return _in_one_line(failure)
    return None if error <= _MAX_ERRORS[dtype] else f"relative error {error:.1g}"


def _kernel_error(
    kernel: AttentionKernel, device: torch.device, dtype: torch.dtype, *, causal: bool
) -> float:
    """Return the largest relative error of attention and of its gradient, or infinity."""
    random = torch.Generator().manual_seed(0)
    queries = keys = Packing(torch.tensor([150, 33, 1]), 220, device)
    shapes = [(220, 3 * 128)]
    if not causal:
        keys = Packing(torch.tensor([90, 40, 7]), 160, device)
        shapes = [(220, 128), (160, 2 * 128)]
    rows = [torch.randn(shape, generator=random).to(device, dtype) for shape in shapes]
    arguments: dict[str, Any] = {"num_heads": 2, "widths": [128] * 3, "causal": causal}
    found = []
    with torch.inference_mode(False), torch.enable_grad():
        for heads in (
            PackedHeads(kernel=kernel, dropout=0.0, **arguments),
            Heads(dropout=0.0, **arguments),
        ):
            inputs = [each.clone().requires_grad_() for each in rows]
            out = heads(inputs, queries, keys, None)[: queries.num_tokens].float()
            found.append([out.detach(), *torch.autograd.grad(out.sin().sum(), inputs)])
    errors = [
        float((x.double() - y.double()).norm() / y.double().norm())
        for x, y in zip(*found, strict=True)
    ]
    return max(error if error == error else math.inf for error in errors)  # NaN is wrong, too
