"""A gradient that overflows, or finds too little memory, is computed again, and is the same."""

import itertools
import math

import pytest
import torch

from tfm.errors import TrainingError
from tfm.training.loss import BatchLoss

NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}


def take(trainer, num_steps):
    return [trainer.step(rows)[0] for rows in itertools.islice(trainer.batches(), num_steps)]


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def test_in_fp16_too_a_loss_that_is_not_finite_is_skipped(new_trainer):
    trainer = new_trainer(training={"precision": "fp16"})
    take(trainer, 2)
    with torch.no_grad():
        trainer.model.output_weight[5] = math.nan
    assert take(trainer, 1)[0].skipped


def scale_of(trainer):
    return trainer.state()["gradient"]["loss_scale"]


def with_scale(trainer, value):
    state = trainer.state()
    state["gradient"]["loss_scale"] = {"value": value, "good_steps": 0}
    trainer.load_state(state)
    return trainer


def test_a_gradient_that_overflows_in_fp16_is_computed_again_at_a_smaller_scale(new_trainer):
    trainer, plain = (new_trainer(training={"precision": "fp16"}) for _ in range(2))
    with_scale(trainer, 2.0**24)
    [report], [expected] = take(trainer, 1), take(plain, 1)
    assert trainer.overflows > 0
    assert not report.skipped
    assert scale_of(trainer)["value"] == 2.0 ** (24 - trainer.overflows)
    assert report.loss == expected.loss
    assert report.gradient_norm == pytest.approx(expected.gradient_norm, rel=0.01)


def test_where_fp16_overflows_at_any_scale_fp32_takes_its_place(new_trainer):
    trainer = new_trainer(training={"precision": "fp16"})
    exact = new_trainer(training={"kernels": "plain"})
    for each in (trainer, exact):
        with torch.no_grad():  # beyond 65,504, the largest number of fp16, but in one sum
            each.model.encoder[0].feed_forward.inner.weight *= 1e6
    [report], [expected] = take(trainer, 1), take(exact, 1)
    assert report.loss == expected.loss
    assert not report.skipped
    assert trainer.overflows == 1
    assert scale_of(trainer)["value"] == 2.0**16


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.needs_bf16), "fp16"])
def test_half_precision_learns_as_fp32_does(new_trainer, precision):
    exact = take(new_trainer(), 12)
    rounded = take(new_trainer(training={"precision": precision}), 12)
    assert rounded[-1].loss == pytest.approx(exact[-1].loss, rel=0.02)


@pytest.mark.parametrize("precisions", [("fp32", "fp16"), ("fp16", "fp32"), ("fp16", "fp16")])
def test_a_run_may_go_on_in_another_precision(new_trainer, precisions):
    before, after = (new_trainer(training={"precision": precision}) for precision in precisions)
    take(before, 2)
    after.load_state(before.state())
    assert take(after, 1)[0].step == 3


class OutOfMemory:
    """Makes a device's memory too small for parts beyond some size."""

    def __init__(self, monkeypatch, most_rows):
        original = BatchLoss.forward

        def forward(module, batch):
            if len(batch.sources.lengths) > most_rows:
                raise torch.OutOfMemoryError("tried to allocate")
            return original(module, batch)

        monkeypatch.setattr(BatchLoss, "forward", forward)


def test_a_step_that_is_out_of_memory_is_done_again_in_smaller_parts(new_trainer, monkeypatch):
    changes = {
        "model": NO_DROPOUT,
        "batching": {"max_tokens": 10_000},
        "optimizer": {"adam_epsilon": 1e-3},  # else what rounding leaves of zero counts as much
    }
    plain = new_trainer(**changes)
    expected = take(plain, 3)
    OutOfMemory(monkeypatch, most_rows=8)
    small = new_trainer(**changes)
    assert len(small.batcher.split(small.batcher.epoch(1)[0])) == 1
    found = take(small, 3)
    assert [report.loss for report in found] == pytest.approx(
        [report.loss for report in expected], rel=1e-5
    )
    for ours, theirs in zip(weights(small), weights(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert small.out_of_memory >= 1
    # What was learned about the device is not forgotten.
    take(small, 1)
    again = new_trainer(**changes)
    again.load_state(small.state())
    before = again.out_of_memory
    take(again, 3)
    assert again.out_of_memory == before


def test_a_sentence_that_memory_is_too_small_for_ends_the_run(new_trainer, monkeypatch):
    OutOfMemory(monkeypatch, most_rows=0)
    trainer = new_trainer()
    with pytest.raises(
        TrainingError, match=r"step 1: out of memory with a microbatch of \d+ tokens"
    ):
        take(trainer, 1)


def test_other_errors_are_not_taken_for_memory(new_trainer, monkeypatch):
    def broken(module, batch):
        raise RuntimeError("a bug")

    monkeypatch.setattr(BatchLoss, "forward", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        take(new_trainer(), 1)
