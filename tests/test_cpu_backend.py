"""The CPU backend computes what the plain one does, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tfm.backends.cpu import CpuBackend
from tfm.backends.dropout import keep_scale
from tfm.backends.packing import Packing
from tfm.backends.plain import PLAIN
from tfm.config import TransformerConfig
from tfm.model.build import new_model, use_backend

N, IN, OUT = 6, 5, 7
NO_DROPOUT = {"dropout": 0, "embedding_dropout": 0, "attention_dropout": 0, "relu_dropout": 0}
SHAPE = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 16, "d_ff": 24}
MODELS = [
    {},
    {"norm": "pre"},
    {"attention": "additive"},
    {"attention_window": 2},
    {"learned_positions": 12},
    {"d_k": 3, "d_v": 5},
    {"tied_embeddings": "none"},
]


def new_backend(seed=0, dtype=torch.float64):
    backend = CpuBackend(dtype)
    backend.seed(seed)
    return backend


def new_inputs(dtype=torch.float64):
    torch.manual_seed(0)
    shapes = {"x": (N, IN), "weight": (OUT, IN), "bias": (OUT,), "residual": (N, OUT)}
    return {
        name: torch.randn(shape, dtype=dtype).requires_grad_() for name, shape in shapes.items()
    }


OPERATIONS = {
    "linear": lambda backend, i, p: backend.linear(i["x"], i["weight"], i["bias"]),
    "relu": lambda backend, i, p: backend.linear_relu_dropout(i["x"], i["weight"], i["bias"], p),
    "add": lambda backend, i, p: backend.add_linear_dropout(
        i["residual"], i["x"], i["weight"], i["bias"], p
    ),
    "dropout": lambda backend, i, p: backend.dropout(i["residual"], p),
}
EVERY_OPERATION = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


@EVERY_OPERATION
def test_without_dropout_operations_and_gradients_equal_the_plain_ones(operation):
    inputs = new_inputs()
    found, expected = (operation(backend, inputs, 0.0) for backend in (new_backend(), PLAIN))
    torch.testing.assert_close(found, expected)
    leaves = list(inputs.values())
    for ours, theirs in zip(
        torch.autograd.grad(found.square().sum(), leaves, allow_unused=True),
        torch.autograd.grad(expected.square().sum(), leaves, allow_unused=True),
        strict=True,
    ):
        # Gradients of weights are fp32.
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@EVERY_OPERATION
def test_gradients_with_dropout_pass_the_numerical_check(operation):
    inputs = new_inputs()

    def seeded_operation(*values):
        return operation(new_backend(5), dict(zip(inputs, values, strict=True)), 0.3)

    assert torch.autograd.gradcheck(seeded_operation, tuple(inputs.values()))


def test_dropout_scales_kept_elements_up_and_does_not_touch_the_residual():
    inputs = {name: value.detach() for name, value in new_inputs().items()}
    linear = PLAIN.linear(inputs["x"], inputs["weight"], inputs["bias"])
    scale = keep_scale(0.3)
    dropped = new_backend().dropout(linear, 0.3)
    relu = OPERATIONS["relu"](new_backend(), inputs, 0.3)
    added = OPERATIONS["add"](new_backend(), inputs, 0.3) - inputs["residual"]
    for found, kept in ((dropped, linear), (relu, linear.relu()), (added, linear)):
        is_kept = found.abs() > 1e-12
        torch.testing.assert_close(found, torch.where(is_kept, kept * scale, 0.0))
        assert 0 < int(is_kept.sum()) < found.numel()


@pytest.mark.needs_bf16
def test_activations_are_bf16_and_gradients_of_weights_fp32():
    backend = new_backend(dtype=torch.bfloat16)
    inputs = new_inputs(torch.float32)
    inputs["x"] = backend.cast_activations(inputs["x"])
    inputs["residual"] = backend.cast_activations(inputs["residual"])
    for operation in OPERATIONS.values():
        assert operation(backend, inputs, 0.1).dtype == torch.bfloat16
    OPERATIONS["add"](backend, inputs, 0.1).sum().backward()
    assert inputs["weight"].grad.dtype == inputs["bias"].grad.dtype == torch.float32


def packed_and_padded(model):
    """Outputs for the same pairs, packed and padded, both without spare rows."""
    torch.manual_seed(1)
    source_lengths, target_lengths = torch.tensor([4, 9, 1]), torch.tensor([6, 2, 11])
    sources, targets = Packing(source_lengths, 17), Packing(target_lengths, 20)
    source, target = torch.randint(4, 20, (17,)), torch.randint(4, 20, (20,))
    use_backend(model, new_backend())
    packed = model.forward_packed(source, sources, target, targets)
    use_backend(model, PLAIN)
    padded = model(sources.pad(source), source_lengths, targets.pad(target))
    return packed[: targets.num_tokens], targets.pack(padded)[: targets.num_tokens]


@pytest.mark.parametrize("changes", MODELS, ids=str)
def test_packed_and_padded_batches_give_the_same_outputs_and_gradients(changes):
    torch.manual_seed(0)
    config = TransformerConfig(**{**SHAPE, "num_heads": 4, **NO_DROPOUT, **changes})
    model = new_model(config, source_vocab_size=20, target_vocab_size=20).double()
    outputs = packed_and_padded(model)
    torch.testing.assert_close(*outputs)
    parameters = list(model.parameters())
    gradients = [
        torch.autograd.grad(
            F.cosine_similarity(output, torch.ones_like(output)).sum(),
            parameters,
            allow_unused=True,
            materialize_grads=True,
        )
        for output in outputs
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_use_backend_skips_modules_without_one():
    model = nn.Sequential(nn.Linear(2, 2))
    use_backend(model, new_backend())
    assert "backend" not in vars(model[0])
