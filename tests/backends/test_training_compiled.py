"""Compiled training computes what plain training does, here by Inductor's C++ code on a CPU."""

import functools
import itertools
import shutil

import pytest
import torch
import torch.distributed as dist
from claimed_gpu.kernels import attend as emulated_attention
from claimed_gpu.kernels import attend_in_one_product
from small_models import recurrent, transformer
from torch.nn.parallel import DistributedDataParallel

from tfm.backends.plain import PLAIN_TRAINING
from tfm.backends.training_compiled import (
    CompiledTraining,
    PackedHeads,
    compilation_problem,
    compile_for_sizes,
    working_kernel,
)
from tfm.machine.group import Group
from tfm.model.build import evaluation_copy
from tfm.model.packing import Packing
from tfm.training import trainer as trainer_module
from tfm.training.gradients import ReplicatedGradients
from tfm.training.loss import BatchLoss

NEEDS_COMPILER = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler"
)
# torch's compiler warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore")
NO_DROPOUT = {"dropout": 0, "embedding_dropout": 0, "attention_dropout": 0, "relu_dropout": 0}
SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 16}
# A large ε: Adam makes steps of full size from rounding errors of gradients that are zero.
OPTIMIZER = {"warmup_steps": 4, "adam_epsilon": 1e-3}
CPU = torch.device("cpu")


@pytest.fixture
def kernel(monkeypatch):
    """Replace the kernels of attention, which CPUs lack."""
    name = "tfm.backends.training_compiled.packed_attention"
    monkeypatch.setattr(name, attend_in_one_product)


@pytest.fixture
def train(new_trainer, monkeypatch, kernel):
    """Train with a backend from a state, if any; return losses and the trainer."""

    def run(backend, *, steps, state=None, weights=None, **model):
        monkeypatch.setattr(trainer_module, "training_backend", lambda *_, **__: backend)
        trainer = new_trainer(model={**SMALL, **model}, optimizer=OPTIMIZER)
        if state is not None:
            trainer.model.load_state_dict(weights)
            trainer.load_state(state)
        batches = itertools.islice(trainer.batches(), steps)
        return [trainer.step(batch)[0].report().loss for batch in batches], trainer

    return run


def num_compiled():
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


@NEEDS_COMPILER
@pytest.mark.parametrize("output_bias", [False, True])
def test_losses_and_weights_equal_the_plain_ones_and_validation_compiles_nothing(
    train, output_bias
):
    settings = {**NO_DROPOUT, "output_bias": output_bias}
    found, trainer = train(CompiledTraining("efficient"), steps=4, **settings)
    expected, plain = train(PLAIN_TRAINING, steps=4, **settings)
    assert found == pytest.approx(expected, rel=1e-5)
    for ours, theirs in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)

    if output_bias:
        assert trainer.model.output_bias.detach().abs().max() > 0

    compiled = num_compiled()
    assert 0 < compiled < 10
    batch = trainer.batcher.batch(trainer.batcher.epoch(1)[0])
    model = evaluation_copy(trainer.model)
    with torch.no_grad():
        model.forward_packed(batch.source, batch.sources, batch.target_input, batch.targets)
    assert num_compiled() == compiled


@NEEDS_COMPILER
def test_with_dropout_a_resumed_run_equals_an_uninterrupted_one_and_learns(train):
    losses, uninterrupted = train(CompiledTraining("efficient"), steps=8)
    assert losses[-1] < losses[0] - 0.1
    first, stopped = train(CompiledTraining("efficient"), steps=4)
    weights = {name: each.clone() for name, each in stopped.model.state_dict().items()}
    second, resumed = train(
        CompiledTraining("efficient"), steps=4, state=stopped.state(), weights=weights
    )
    assert first + second == losses
    for ours, theirs in zip(
        resumed.model.parameters(), uninterrupted.model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


def wrong_gradient(x):
    return x + 0.2 * (x - x.detach())


FAULTS = {
    "output": {"out": lambda x: 1.1 * x},
    "not a number": {"out": lambda x: x * torch.nan},
    **{f"gradient of {name}": {name: wrong_gradient} for name in ("query", "key", "value")},
}


@pytest.mark.parametrize("of_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fault", [{}, *FAULTS.values()], ids=["none", *FAULTS])
def test_a_kernel_with_a_fault_is_not_used(monkeypatch, fault, dtype, of_causal):
    def attend(kernel, query, key, value, queries, keys, *, dropout, causal, window):
        def changed(name, x):
            return fault[name](x) if name in fault and causal == of_causal else x

        inputs = [changed(*each) for each in (("query", query), ("key", key), ("value", value))]
        out = emulated_attention(
            *inputs, queries.offsets, keys.offsets, [0], dropout, causal, window, None
        )
        return changed("out", out)

    monkeypatch.setattr("tfm.backends.training_compiled.packed_attention", attend)
    kernel, problem = working_kernel(CPU, dtype)
    if fault:
        assert kernel is None
        assert problem.startswith("relative error")
    else:
        assert kernel == ("efficient" if dtype == torch.float32 else "flash")


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_a_kernel_is_told_of_dropout_and_long_sentences(monkeypatch, kernel):
    given, name = [], f"_{kernel}_attention_forward"
    monkeypatch.setattr(torch.ops.aten, name, lambda *x, **_: given.extend(x) or [x[0]])
    heads = PackedHeads(kernel=kernel, num_heads=2, widths=[16] * 3, dropout=0.25, causal=True)
    layout, x = Packing(torch.tensor([300, 7]), 320), torch.zeros(320, 48)
    heads([x], layout, layout, None)
    assert bool(given) == (kernel == "efficient")  # flash attention has no fp32
    heads([x.bfloat16()], layout, layout, None)
    assert given[-4:] == [512, 512, 0.25, True]


def test_without_flash_attention_the_other_kernel_is_taken(monkeypatch):
    def problem(kernel, *_):
        return "FlashAttention only supports Ampere GPUs or newer." * (kernel == "flash") or None

    monkeypatch.setattr("tfm.backends.training_compiled.kernel_problem", problem)
    assert working_kernel(CPU, torch.float16) == ("efficient", None)


@pytest.mark.parametrize(
    ("kernel", "settings", "packs"),
    [
        ("flash", {}, True),
        ("flash", {"attention_window": 3}, True),
        ("efficient", {}, True),
        ("efficient", {"attention_window": 3}, False),
        ("efficient", {"attention": "additive"}, False),
        ("flash", {"d_k": 16}, False),
        ("flash", {"num_heads": 4}, False),
        ("flash", {"d_model": 528, "num_heads": 2}, False),
        (None, {}, False),
    ],
)
def test_layers_are_compiled_if_a_kernel_computes_their_attention(kernel, settings, packs):
    model, backend = transformer(20, **{"d_model": 16, **settings}), CompiledTraining(kernel)
    before = dict(model.named_modules())
    assert backend.packs(model) == packs
    backend.install(model)
    assert (dict(model.named_modules()) != before) == packs
    assert backend.packs(model) == packs


@pytest.fixture
def ddp(monkeypatch):
    """Join a group of one process; compile without a C++ compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("ddp")
def test_a_function_in_ddp_is_compiled_as_a_whole():
    from torch._dynamo.utils import counters

    def part(x, inner, outer):
        return outer(torch.relu(inner(x)))

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(4, 1 << 17), torch.nn.Linear(1 << 17, 4)
            self.part = compile_for_sizes(part)

        def forward(self, x):
            return self.part(x, self.inner, self.outer)

    model = DistributedDataParallel(Layers())
    counters.clear()
    model(torch.ones(1, 4)).sum().backward()
    assert counters["aot_autograd"]["total"] == 1


@pytest.mark.usefixtures("ddp", "kernel")
def test_building_the_buckets_of_ddp_compiles_nothing(new_trainer):
    batcher = new_trainer(model=SMALL).batcher
    model = transformer(400, **SMALL, **NO_DROPOUT).train()
    CompiledTraining("efficient").install(model)
    loss = BatchLoss(model, label_smoothing=0.1, compiles=True)
    example = batcher.batch(batcher.epoch(1)[0])
    before = num_compiled()
    gradients = ReplicatedGradients(loss, Group(), example)
    assert num_compiled() == before
    with gradients.accumulate(is_last=True):
        total, nll = gradients.loss(example)
        total.backward()
    assert num_compiled() > before
    assert not total._is_view()  # FSDP warns of views
    assert not nll._is_view()
    expected = [each.grad.clone() for each in model.parameters()]
    loss.zero_grad()
    loss.eval()(example)[0].backward()
    found = [each.grad for each in model.parameters()]
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("ddp")
def test_a_recurrent_model_with_hard_attention_learns_from_the_first_step_with_ddp(new_trainer):
    batcher = new_trainer().batcher
    example = batcher.batch(batcher.epoch(1)[0])
    model = recurrent(400, d_model=16, source_attention="hard").train()
    loss = BatchLoss(model, label_smoothing=0.1)
    modes = []
    model.encoder.register_forward_hook(lambda encoder, *_: modes.append(encoder.training))
    gradients = ReplicatedGradients(loss, Group(), example)
    assert all(modes)  # cuDNN has no gradient of recurrent layers in evaluation mode
    assert all(module.training for module in model.modules())
    with gradients.accumulate(is_last=True):
        gradients.loss(example)[0].backward()
    assert all(each.grad.any() for each in model.decoder.attention.parameters())


def test_a_device_without_a_compiler_has_a_problem_in_one_line(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC.")

    monkeypatch.setattr(torch, "compile", fail)
    assert compilation_problem(CPU) == "Failed to find C compiler."
