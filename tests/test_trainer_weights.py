"""Weights in half precision: the optimizer updates fp32 ones, which checkpoints hold."""

import itertools

import pytest
import torch

from tfm.backends.plain import Backend
from tfm.training import trainer as trainer_module


class HalfPrecisionBackend(Backend):
    """Plain operations on weights and activations in half precision."""

    def __init__(self, dtype):
        self.weights_dtype = dtype

    def cast_activations(self, x):
        return x.to(self.weights_dtype)


@pytest.fixture
def in_half_precision(new_trainer, monkeypatch):
    """Make a trainer of a tiny run with weights in half precision."""

    def make(dtype=torch.bfloat16, **changes):
        backend = HalfPrecisionBackend(dtype)
        with monkeypatch.context() as patch:
            patch.setattr(trainer_module, "training_backend", lambda *_: backend)
            return new_trainer(**changes)

    return make


def take(trainer, num_steps):
    batches = itertools.islice(trainer.batches(), num_steps)
    return [trainer.step(batch)[0].report() for batch in batches]


def dtypes(tensors):
    return {tensor.dtype for tensor in tensors}


def test_updates_too_small_for_bf16_are_not_lost(in_half_precision):
    trainer = in_half_precision(optimizer={"learning_rate": 1e-6, "warmup_steps": 1})
    before = {name: weight.clone() for name, weight in trainer.weights().items()}
    take(trainer, 3)
    after, parameters = trainer.weights(), dict(trainer.model.named_parameters())
    assert dtypes(after.values()) == {torch.float32}
    assert dtypes(parameters.values()) == {torch.bfloat16}
    for name, weight in after.items():
        assert not torch.equal(weight, before[name])
        assert torch.equal(parameters[name], weight.bfloat16())
    norm = "encoder.0.feed_forward_residual.norm.weight"  # about 1, where bf16 has steps of 2^-8
    assert torch.equal(parameters[norm], before[norm].bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_learns_as_well_as_fp32(in_half_precision, new_trainer, dtype):
    precision = {"training": {"precision": "fp16"}} if dtype == torch.float16 else {}
    exact = take(new_trainer(), 12)
    rounded = take(in_half_precision(dtype, **precision), 12)
    assert rounded[-1].loss == pytest.approx(exact[-1].loss, rel=0.02)
    assert rounded[-1].gradient_norm == pytest.approx(exact[-1].gradient_norm, rel=0.1)


def test_a_resumed_run_takes_the_same_steps(in_half_precision):
    whole, first, second = (in_half_precision() for _ in range(3))
    expected = take(whole, 4)
    take(first, 2)
    with torch.no_grad():
        for name, parameter in second.model.named_parameters():
            saved = first.weights()[name]
            second.weights()[name].copy_(saved)
            parameter.copy_(saved)
    second.load_state(first.state())
    found = take(second, 2)
    assert [each.loss for each in found] == [each.loss for each in expected[2:]]
    assert all(map(torch.equal, second.weights().values(), whole.weights().values()))
    moments = (each.values() for each in second.state()["moments"].values())
    assert dtypes(itertools.chain(*moments)) == {torch.float32}


def test_an_overflow_in_fp16_leaves_weights_unchanged(in_half_precision):
    trainer = in_half_precision(torch.float16, training={"precision": "fp16"})
    state = trainer.state()
    state["gradient"]["loss_scale"] = {"value": 2.0**24, "good_steps": 0}
    trainer.load_state(state)
    before = {name: weight.clone() for name, weight in trainer.weights().items()}
    [report] = take(trainer, 1)
    assert (report.skipped, report.overflowed) == (True, True)
    assert all(map(torch.equal, before.values(), trainer.weights().values()))
