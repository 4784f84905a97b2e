"""Steps of the trainer on an emulated GPU: no waits, and the losses and gradients of the CPU."""

import math
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from claimed_gpu.emulation import emulated_gpu
from claimed_gpu.kernels import KERNELS

from tfm.backends.training_compiled import packed_attention
from tfm.dataset.parallel import ParallelDataset
from tfm.machine.compute import choose_compute
from tfm.machine.group import Group
from tfm.machine.world import World
from tfm.model.build import new_model
from tfm.model.cost import model_cost
from tfm.training.gradients import Gradients, gradient_norm
from tfm.training.loss import BatchLoss
from tfm.training.progress import PendingStep
from tfm.training.trainer import Trainer

SIZES = 400, 400
DROPOUTS = ("dropout", "embedding_dropout", "relu_dropout", "attention_dropout")
NUM_STEPS = 3
NUM_ATTENTIONS = 3  # of a step: one of the encoder, and two of the decoder
# Largest relative errors of losses and of the norms of gradients; seen: a fifth of them.
BOUNDS = {"fp32": (1e-6, 1e-5), "bf16": (1e-3, 1e-2), "fp16": (1e-3, 1e-2)}
BOUNDS_OF_DROPOUT = (1e-2, 5e-2)  # whose random numbers differ


@pytest.fixture
def new_trainer(data_dir, tiny_run):
    dataset = ParallelDataset(data_dir / "bin", "train", vocab_sizes=(400, 400))

    def make(device, precision, kernels, settings, group=None):
        defaults = {
            "model": {"d_model": 32, **dict.fromkeys(DROPOUTS, 0.0)},
            # A large ε: Adam makes steps of full size from rounding errors of gradients.
            "optimizer": {"warmup_steps": 4, "adam_epsilon": 1e-3},
            "batching": {"max_tokens": 100_000},
            "training": {"kernels": kernels},
        }
        run = tiny_run(**{name: each | settings.get(name, {}) for name, each in defaults.items()})
        torch.manual_seed(1)
        model = new_model(run.model, SIZES)
        compute = choose_compute(device, precision, trains=True)
        cost = model_cost(run.model, SIZES)
        return Trainer(model.to(compute.device), dataset, run, compute, cost=cost, group=group)

    return make


def refuse_old_gpu(*_, **__):  # as before sm_80
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


def train(trainer: Trainer) -> list[PendingStep]:
    rows = trainer.batcher.epoch(1)[:NUM_STEPS]
    return [trainer.step(trainer.build(each))[0] for each in rows]


def problems(new_trainer, precision: str, settings: dict, fault=None, is_old=False) -> set[str]:
    """Return what differs between steps on the CPU and those on an emulated GPU with a fault."""
    expected = [each.report() for each in train(new_trainer("cpu", "fp32", "plain", settings))]
    uncompiled = patch("torch.compile", lambda function, **_: function)
    old = patch.dict(KERNELS, {"_flash_attention_forward": refuse_old_gpu} if is_old else {})
    with emulated_gpu() as emulation, uncompiled, old, fault or nullcontext():
        trainer = new_trainer("cuda", precision, "auto", settings)
        emulation.forget()
        steps = train(trainer)
        names = {f"waits: {place}" for place in emulation.waits}
        found = [each.report() for each in steps]
    model = settings.get("model", {})
    bounds = BOUNDS_OF_DROPOUT if "attention_dropout" in model else BOUNDS[precision]
    for name, bound in zip(("loss", "gradient_norm"), bounds, strict=True):
        pairs = [[getattr(each, name) for each in reports] for reports in (found, expected)]
        if pairs[0] != pytest.approx(pairs[1], rel=bound):
            names.add(f"{name}: {pairs}")
    name = "efficient" if precision == "fp32" or is_old else "flash"
    kernels = {x: n for x, n in emulation.launches.items() if x.endswith("attention_forward")}
    is_packed = "attention" not in model and not (
        name == "efficient" and "attention_window" in model
    )
    used = {f"_{name}_attention_forward"} if is_packed else set()
    if kernels.keys() != used or any(n % NUM_ATTENTIONS for n in kernels.values()):
        names.add(f"attention: {kernels}")
    return names


@pytest.mark.parametrize(
    ("precision", "settings"),
    [
        ("bf16", {}),
        ("bf16", {"model": {"attention_dropout": 0.1}}),
        ("fp16", {}),
        ("fp32", {}),
        ("bf16", {"model": {"attention": "additive"}}),  # in plain layers
        ("fp32", {"model": {"attention_window": 3}}),  # likewise
        ("bf16", {"model": {"attention_window": 3, "learned_positions": 300}}),
        ("bf16", {"model": {"norm": "pre", "output_bias": True, "activation": "gelu"}}),
        ("fp16", {"optimizer": {"clip_norm": 0.1, "ema": 0.9}}),
        ("fp32", {"optimizer": {"algorithm": "adamw", "clip_norm": 0.1, "ema": 0.9}}),
        ("fp32", {"batching": {"max_tokens": 200}}),
    ],
)
def test_a_step_never_waits_and_computes_what_the_cpu_does(new_trainer, precision, settings):
    assert not problems(new_trainer, precision, settings)


@pytest.mark.parametrize("settings", [{}, {"model": {"attention_dropout": 0.1}}])
def test_a_gpu_without_flash_attention_computes_what_the_cpu_does(new_trainer, settings):
    assert not problems(new_trainer, "fp16", settings, is_old=True)


@pytest.mark.parametrize(("model", "is_packed"), [({}, True), ({"attention": "additive"}, False)])
def test_layers_that_need_no_padding_compute_the_batch_at_once(new_trainer, model, is_packed):
    with emulated_gpu(), patch("torch.compile", lambda function, **_: function):
        unlimited = {"model": model, "batching": {"max_tokens": None}}
        trainer = new_trainer("cuda", "bf16", "auto", unlimited)
    rows, batcher = trainer.batcher.epoch(1)[0], trainer.batcher
    num_tokens = max(int(lengths.sum()) for lengths in batcher.lengths(rows))
    assert (batcher.microbatch_tokens(rows) == num_tokens) == is_packed
    assert (trainer.accumulation.max_tokens > 100_000) == is_packed


class OfTwo(Group):
    """The first of two processes, of which the other has the same gradients and memory."""

    is_alone = False

    def __init__(self) -> None:
        super().__init__(World(size=2))

    def largest(self, values):
        return [*values]

    def sum(self, values):
        return values


@pytest.mark.parametrize("runs_out", [False, True])
def test_several_processes_try_the_largest_microbatches_first(new_trainer, monkeypatch, runs_out):
    limit, tried = 300, []  # tokens of both sides

    def forward(module, batch, compute=BatchLoss.forward):
        tried.append(batch.sources.num_tokens + batch.targets.num_tokens)
        if runs_out and tried[-1] > limit:
            raise torch.OutOfMemoryError
        return compute(module, batch)

    others = 10_000
    with emulated_gpu(), patch("torch.compile", lambda function, **_: function):
        monkeypatch.setattr(BatchLoss, "forward", forward)
        monkeypatch.setattr(
            "tfm.training.accumulation.build_gradients", lambda x, *_, **__: Gradients(x)
        )
        trainer = new_trainer("cuda", "bf16", "auto", {"batching": {"max_tokens": None}}, OfTwo())
        later = 8 * sum(each.numel() for each in trainer.model.parameters())
        memory = {
            "reset_peak_memory_stats": lambda _: tried.clear(),
            "max_memory_allocated": lambda _: max(tried),
            "memory_reserved": lambda _: 0,
            "mem_get_info": lambda _: (total - others, total),
        }
        total = math.ceil((limit + others + later) / 0.9)
        with patch.multiple(torch.cuda, **memory):
            first = trainer.build(trainer.batcher.epoch(1)[0])
            trainer.fit_memory(first)
        assert trainer.accumulation.out_of_memory > 0
        assert limit / 3 < max(tried) <= limit
        assert all(each.grad is None for each in trainer.model.parameters())
        step, _ = trainer.step(first)
        assert step.position.step == 1


def read_norm(gradients):
    norm = gradient_norm(gradients)
    return norm if norm.item() > 0 else norm * 0


def see_everything(*arguments, causal, **more):
    return packed_attention(*arguments, causal=False, **more)


@pytest.mark.parametrize(
    ("check", "precision", "name", "replacement"),
    [
        ("waits", "bf16", "tfm.training.trainer.gradient_norm", read_norm),
        ("waits", "bf16", "tfm.dataset.batching.copy_to_device", lambda x, device: x.to(device)),
        ("loss", "bf16", "tfm.training.progress.DeviceClock.seconds", lambda self: [1.0]),
        ("loss", "bf16", "torch.zeros_like", torch.empty_like),
        ("loss", "bf16", "tfm.training.loss.PADDING", -2),
        ("loss", "bf16", "torch.promote_types", lambda dtype, _: dtype),
        ("loss", "fp32", "tfm.model.masks.AttentionMask.allowed", lambda *_: None),
        ("attention", "bf16", "tfm.backends.training_compiled.packed_attention", see_everything),
        ("attention", "fp16", "tfm.backends.training_compiled._MAX_ERRORS", {torch.float16: 0}),
        (
            "gradient_norm",
            "fp16",
            "tfm.training.optimizer.LossScale.weight",
            lambda self, num: 1 / num,
        ),
    ],
)
def test_a_fault_is_noticed(new_trainer, check, precision, name, replacement):
    found = problems(new_trainer, precision, {}, fault=patch(name, replacement))
    assert any(each.startswith(check) for each in found), found
