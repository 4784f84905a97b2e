"""The CPU backend computes what the plain one does, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from small_models import EVERY_TRANSFORMER, transformer
from torch import nn

from tfm.backends.sentence_attention import RandomMasks, keep_scale
from tfm.backends.training_cpu import (
    CpuTraining,
    FusedFeedForward,
    MaskedDropout,
    add_masked,
    fused_linear,
    fused_linear_relu_dropout,
)
from tfm.config import TransformerConfig
from tfm.model.attention import FeedForward
from tfm.model.packing import Packing

N, IN, OUT = 6, 5, 7
NO_DROPOUT = {"dropout": 0, "embedding_dropout": 0, "attention_dropout": 0, "relu_dropout": 0}
SHAPE = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 16, "num_heads": 4}


def new_masks(seed=0):
    masks = RandomMasks()
    masks.seed(seed)
    return masks


def new_inputs(dtype=torch.float64):
    torch.manual_seed(0)
    shapes = {"x": (N, IN), "weight": (OUT, IN), "bias": (OUT,), "residual": (N, OUT)}
    return {
        name: torch.randn(shape, dtype=dtype).requires_grad_() for name, shape in shapes.items()
    }


def add(i, p, masks):
    """Scale the output of a linear layer up, and add it with a mask."""
    out = fused_linear(i["x"], i["weight"], i["bias"], scale=keep_scale(p))
    return add_masked(i["residual"], out, p, masks)


def drop(i, p, masks):
    return MaskedDropout(nn.Dropout(p), masks)(i["residual"])


# Operations of inputs, a probability of dropout and masks; and the same in plain torch, without.
OPERATIONS = {
    "linear": (
        lambda i, p, masks: fused_linear(i["x"], i["weight"], i["bias"]),
        lambda i: F.linear(i["x"], i["weight"], i["bias"]),
    ),
    "relu": (
        lambda i, p, masks: fused_linear_relu_dropout(i["x"], i["weight"], i["bias"], p, masks),
        lambda i: F.linear(i["x"], i["weight"], i["bias"]).relu(),
    ),
    "add": (add, lambda i: i["residual"] + F.linear(i["x"], i["weight"], i["bias"])),
    "dropout": (drop, lambda i: i["residual"]),
}
EVERY_OPERATION = pytest.mark.parametrize(
    ("operation", "plain"), OPERATIONS.values(), ids=OPERATIONS
)


@EVERY_OPERATION
def test_without_dropout_operations_and_gradients_equal_the_plain_ones(operation, plain):
    inputs = new_inputs()
    found, expected = operation(inputs, 0.0, new_masks()), plain(inputs)
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
def test_gradients_with_dropout_pass_the_numerical_check(operation, plain):
    inputs = new_inputs()

    def seeded_operation(*values):
        return operation(dict(zip(inputs, values, strict=True)), 0.3, new_masks(5))

    assert torch.autograd.gradcheck(seeded_operation, tuple(inputs.values()))


def test_dropout_scales_kept_elements_up_and_does_not_touch_the_residual():
    inputs = {name: value.detach() for name, value in new_inputs().items()}
    linear = F.linear(inputs["x"], inputs["weight"], inputs["bias"])
    scale = keep_scale(0.3)
    dropped = MaskedDropout(nn.Dropout(0.3), new_masks())(linear)
    relu = OPERATIONS["relu"][0](inputs, 0.3, new_masks())
    added = add(inputs, 0.3, new_masks()) - inputs["residual"]
    for found, kept in ((dropped, linear), (relu, linear.relu()), (added, linear)):
        is_kept = found.abs() > 1e-12
        torch.testing.assert_close(found, torch.where(is_kept, kept * scale, 0.0))
        assert 0 < int(is_kept.sum()) < found.numel()


@pytest.mark.needs_bf16
def test_activations_are_bf16_and_gradients_of_weights_fp32():
    inputs = new_inputs(torch.float32)
    for name in ("x", "residual"):
        inputs[name] = inputs[name].bfloat16()
    for operation, _ in OPERATIONS.values():
        assert operation(inputs, 0.1, new_masks()).dtype == torch.bfloat16
    add(inputs, 0.1, new_masks()).sum().backward()
    assert inputs["weight"].grad.dtype == inputs["bias"].grad.dtype == torch.float32


def packed_and_padded(model):
    """Outputs for the same pairs, packed and padded, both without spare rows."""
    torch.manual_seed(1)
    source_lengths, target_lengths = torch.tensor([4, 9, 1]), torch.tensor([6, 2, 11])
    sources, targets = Packing(source_lengths, 17), Packing(target_lengths, 20)
    source, target = torch.randint(4, 20, (17,)), torch.randint(4, 20, (20,))
    padded = model(sources.pad(source), source_lengths, targets.pad(target))
    plain_packed = model.forward_packed(source, sources, target, targets)
    CpuTraining(torch.float64).install(model)
    packed = model.forward_packed(source, sources, target, targets)
    found = (packed[: targets.num_tokens], plain_packed[: targets.num_tokens])
    return *found, targets.pack(padded)[: targets.num_tokens]


@EVERY_TRANSFORMER
def test_packed_and_padded_batches_give_the_same_outputs_and_gradients(changes):
    model = transformer(20, **SHAPE, **NO_DROPOUT, **changes).train().double()
    outputs = packed_and_padded(model)
    for output in outputs[:2]:
        torch.testing.assert_close(output, outputs[2])
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
    for *ours, theirs in zip(*gradients, strict=True):
        for gradient in ours:
            torch.testing.assert_close(gradient, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_dropout_after_each_activation_scales_kept_elements_up(activation):
    torch.manual_seed(0)
    config = TransformerConfig(d_model=8, d_ff=8, activation=activation, relu_dropout=0.3)
    plain = FeedForward(config).double()
    nn.init.eye_(plain.outer.weight)  # the output is the hidden layer
    fused, x = FusedFeedForward(plain, new_masks(), dropout=0.0), torch.randn(50, 8).double()
    found, kept = fused(x), plain.eval()(x)
    is_kept = found.abs() > 1e-12
    torch.testing.assert_close(found, torch.where(is_kept, kept * keep_scale(0.3), 0.0))
    assert 0 < int(is_kept.sum()) < int((kept != 0).sum())
