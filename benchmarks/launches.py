"""Count what a training step asks a GPU for, without a GPU: operations, and reads by the host.

The step runs on torch's meta device, whose tensors have no data: every operation passes torch's
dispatcher, and a read by the host ends the script with an error. Only the copy of a step's figures,
which nothing waits for, is left out.
Views launch nothing and are left out. Dropout and the norm of all gradients are one operation
each, as they are on a GPU. The casts of autocast, which plain kernels use and the meta device
lacks, are not counted. What is a single kernel on a GPU may count as its parts: attention in plain
kernels, and each residual sum with its dropout and norm in fast ones.

With --cuda-graphs, a replay counts as one operation.

    python benchmarks/launches.py --arch base --kernels fast
"""

import argparse
import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from typing_extensions import override

from tfm.backends import cross_entropy
from tfm.backends.plain import PLAIN, Backend
from tfm.config import RunConfig, run_config
from tfm.data.dataset import ParallelDataset
from tfm.data.synthetic.token_dataset import VOCAB_SIZE, write_token_dataset
from tfm.device.compute import Compute
from tfm.model.build import new_model
from tfm.model.cost import model_cost
from tfm.training import gradients, progress, trainer
from tfm.training.trainer import Trainer

_META = torch.device("meta")
_NUM_PAIRS = 20_000
_SHOWN = 12
# Views, and allocations without content.
_NO_LAUNCH = frozenset(
    [
        "_unsafe_view",
        "as_strided",
        "detach",
        "empty",
        "empty_like",
        "expand",
        "new_empty",
        "permute",
        "promote_types",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    ]
)


class Operations(TorchDispatchMode):
    """Counts the operations that are dispatched, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    @override
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name not in _NO_LAUNCH:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def main() -> None:
    """Print the counts of the third step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", default="base")
    parser.add_argument("--kernels", choices=["plain", "fast"], default="plain")
    parser.add_argument("--cuda-graphs", action="store_true")
    arguments = parser.parse_args()
    backend = PLAIN if arguments.kernels == "plain" else _gpu_backend()
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (cross_entropy, "autocast_dtype", lambda x: x.dtype),
            (torch, "autocast", lambda *_, **__: contextlib.nullcontext()),
            (F, "dropout", _dropout),
            (torch.nn.utils, "get_total_norm", _total_norm),
            (progress, "copy_to_host", _no_copy),
            (trainer, "training_backend", lambda *_: backend),
            (gradients, "captured", _Graph),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        changes = {"training": {"cuda_graphs": arguments.cuda_graphs}}
        _count(run_config(arguments.arch, changes), folder)


class _Graph:
    """In place of a CUDA graph: runs a function once, and counts replays."""

    def __init__(self, function: Callable[[], Any], *, shares_memory_of: Any = None) -> None:
        function()

    def replay(self) -> None:
        if (mode := _get_current_dispatch_mode()) is not None:
            mode.counts["replay"] += 1


def _gpu_backend() -> Backend:
    from tfm.backends.gpu import GpuBackend  # needs Triton

    return GpuBackend(torch.bfloat16)


def _dropout(x: Tensor, p: float) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if p else x


def _total_norm(gradients: Sequence[Tensor]) -> Tensor:
    norms = torch._foreach_norm(gradients)  # noqa: SLF001  # as get_total_norm calls on GPUs
    return torch.stack(list(norms)).norm()


def _no_copy(figures: Tensor) -> Tensor:
    return torch.zeros(len(figures))


def _count(run: RunConfig, folder: Path) -> None:
    write_token_dataset(folder, num_pairs=_NUM_PAIRS)
    sizes = {"source_vocab_size": VOCAB_SIZE, "target_vocab_size": VOCAB_SIZE}
    data = ParallelDataset(folder / "bin", "train", vocab_sizes=(VOCAB_SIZE, VOCAB_SIZE))
    model = new_model(run.model, **sizes).to(_META)
    cost = model_cost(run.model, **sizes, max_tokens=run.batching.batch_tokens)
    made = Trainer(model, data, run, Compute(_META, torch.float32), cost=cost)
    _, second = islice(made.batches(), 2)
    for _ in range(3):  # the first step allocates Adam's moments, the second may capture a graph
        batch = made.build(second.rows)
        with Operations() as operations:
            made.step(batch)
    counts = operations.counts
    print(f"microbatches      {len(batch.microbatches)}")
    print(f"target tokens     {sum(each.num_tokens for _, each in batch.own):,}")
    print(f"operations        {counts.total():,}")
    print(", ".join(f"{number} {name}" for name, number in counts.most_common(_SHOWN)))


if __name__ == "__main__":
    main()
