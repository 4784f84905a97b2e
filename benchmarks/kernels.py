"""Time each Triton kernel on a GPU, in turn with torch's implementations of the same operation.

Sentences have the average lengths of WMT14 (29.5 and 30.6 pieces), with 25,000 tokens per side.
Dropout is 0.1; activations are bf16. Rounds interleave implementations; medians are printed:

    .venv/bin/python benchmarks/kernels.py
    .venv/bin/python benchmarks/kernels.py --arch big --rounds 50
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from tfm.backends import has_triton
from tfm.backends.packing import Spans, attention_spans
from tfm.config import PRESETS, TransformerConfig, run_config

Step = Callable[[], Tensor]

_SOURCE_PIECES, _TARGET_PIECES = 29.5, 30.6
_DROPOUT, _SMOOTHING = 0.1, 0.1
_WARM_UP = 5


def main(
    arch: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = "base",
    tokens: Annotated[int, typer.Option(help="Number of rows per side.", min=256)] = 25_088,
    pieces: Annotated[int, typer.Option(help="Size of the vocabulary.")] = 37_000,
    rounds: Annotated[int, typer.Option(help="Rounds after the warm-up.", min=1)] = 20,
) -> None:
    """Time all kernels."""
    if not torch.cuda.is_available() or not has_triton():
        print("the kernels need a GPU and Triton: run this on a machine with both", file=sys.stderr)
        raise typer.Exit(1)
    torch.manual_seed(1)
    model = run_config(arch, {}).model
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, {arch}, {tokens:,} rows, medians of {rounds}\n")
    print("| operation | implementation | forward, ms | with backward, ms | relative time |")
    print("|---|---|---|---|---|")
    source, target = _pairs(tokens)
    for name, queries, keys, causal in (
        ("encoder self-attention", source, source, False),
        ("decoder self-attention", target, target, True),
        ("cross-attention", target, source, False),
    ):
        _report(
            name, _attention_implementations(model, tokens, queries, keys, causal=causal), rounds
        )
    _report("cross-entropy", _cross_entropy_implementations(tokens, pieces), rounds)


def _pairs(tokens: int) -> tuple[Tensor, Tensor]:
    """Return [B + 1] offsets of source and target sentences that fill two axes of tokens."""
    shape = 3.0  # a gamma distribution of this shape resembles lengths of sentences
    ends = [
        torch.distributions.Gamma(shape, shape / mean).sample((tokens,)).ceil().cumsum(0)
        for mean in (_SOURCE_PIECES, _TARGET_PIECES)
    ]
    fitting = (ends[0] <= tokens) & (ends[1] <= tokens)
    source, target = (F.pad(end[fitting], (1, 0)).int().cuda() for end in ends)
    return source, target


def _attention_implementations(
    model: TransformerConfig, tokens: int, queries: Tensor, keys: Tensor, *, causal: bool
) -> Iterator[tuple[str, Step, list[Tensor]]]:
    from tfm.backends.triton.packed_attention import packed_attention

    shape = (tokens, model.num_heads, model.d_model // model.num_heads)
    heads = [_random(*shape) for _ in range(3)]
    spans: Spans = attention_spans(
        queries, keys, num_queries=tokens, num_keys=tokens, causal=causal
    )
    seed = torch.tensor([1], device="cuda")
    yield (
        "tfm, packed",
        lambda: packed_attention(heads, spans, dropout=_DROPOUT, seed=seed),
        heads,
    )
    longest = [int(offsets.diff().max()) for offsets in (queries, keys)]
    # The public function has no dropout.
    flash = torch.ops.aten._flash_attention_forward  # noqa: SLF001
    yield (
        "torch's flash attention, packed",
        lambda: flash(*heads, queries, keys, *longest, _DROPOUT, causal, False)[0],
        heads,
    )
    padded = [
        _random(len(queries) - 1, shape[1], length, shape[2]) for length in (*longest, longest[1])
    ]
    places = torch.arange(longest[1], device="cuda")
    # A causal mask hides padding, too.
    mask = None if causal else (places < keys.diff()[:, None])[:, None, None, :]
    yield (
        "torch's scaled_dot_product_attention, padded",
        lambda: F.scaled_dot_product_attention(
            *padded, attn_mask=mask, dropout_p=_DROPOUT, is_causal=causal
        ),
        padded,
    )


def _cross_entropy_implementations(
    tokens: int, pieces: int
) -> Iterator[tuple[str, Step, list[Tensor]]]:
    from tfm.backends.triton.cross_entropy import cross_entropy_

    logits = _random(tokens, pieces)
    targets = torch.randint(pieces, (tokens,), device="cuda")
    # Its own results become its next input: the time does not depend on values.
    overwritten = logits.detach().clone()
    yield (
        "tfm, with its gradient",
        lambda: cross_entropy_(overwritten, targets, smoothing=_SMOOTHING)[0],
        [],
    )

    def plain() -> Tensor:
        return F.cross_entropy(
            logits.float(), targets, label_smoothing=_SMOOTHING, reduction="none"
        )

    yield "torch's cross_entropy in fp32", plain, [logits]
    yield "torch's cross_entropy in fp32, compiled", torch.compile(plain), [logits]


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def _report(
    name: str, implementations: Iterator[tuple[str, Step, list[Tensor]]], rounds: int
) -> None:
    """Print a row per implementation; the last column is relative to the first one."""
    listed = list(implementations)
    timings: dict[str, list[tuple[float, float]]] = {label: [] for label, _step, _inputs in listed}
    for _ in range(_WARM_UP + rounds):
        for label, step, inputs in listed:
            timings[label].append(_milliseconds(step, inputs))
    medians = {
        label: [statistics.median(column) for column in zip(*pairs[_WARM_UP:], strict=True)]
        for label, pairs in timings.items()
    }
    ours = medians[listed[0][0]][1]
    for label, (forward, total) in medians.items():
        print(f"| {name} | {label} | {forward:.3f} | {total:.3f} | {total / ours:.2f} |")


def _milliseconds(step: Step, inputs: list[Tensor]) -> tuple[float, float]:
    """Return the times of the forward pass and of both; without inputs there is no backward."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    _keep_busy()
    events[0].record()
    result = step()
    events[1].record()
    grad = torch.ones_like(result)
    events[2].record()
    if inputs:
        torch.autograd.grad(result, inputs, grad)
    events[3].record()
    torch.cuda.synchronize()
    forward = events[0].elapsed_time(events[1])
    return forward, forward + (events[2].elapsed_time(events[3]) if inputs else 0.0)


def _keep_busy() -> None:
    """Queue milliseconds of work, so that kernel launches are not timed."""
    matrix = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(4):
        matrix = matrix @ matrix


if __name__ == "__main__":
    typer.run(main)
