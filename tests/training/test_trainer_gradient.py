"""After an overflow or out of memory, a gradient is computed again, with the same result."""

import math

import pytest
import torch
from helpers import take, weights_of

from tfm.errors import TrainingError
from tfm.training.loss import BatchLoss

NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}


def loss_scale(trainer):
    return trainer.state()["gradient"]["loss_scale"]


def set_loss_scale(trainer, value):
    state = trainer.state()
    state["gradient"]["loss_scale"] = {"value": value, "good_steps": 0}
    trainer.load_state(state)
    return trainer


def test_a_step_that_overflows_in_fp16_is_skipped_and_the_scale_halved(new_trainer):
    trainer, plain = (new_trainer(training={"precision": "fp16"}) for _ in range(2))
    set_loss_scale(trainer, 2.0**24)
    before = weights_of(trainer)
    [report] = take(trainer, 1)
    assert (report.skipped, report.overflowed, report.loss_scale) == (True, True, 2.0**24)
    assert all(map(torch.equal, before, weights_of(trainer)))
    assert trainer.state()["updates"] == 0
    assert loss_scale(trainer)["value"] == 2.0**23
    [expected] = take(plain, 1)
    assert report.loss == expected.loss
    assert (expected.skipped, expected.overflowed) == (False, False)
    assert loss_scale(plain) == {"value": 2.0**16, "good_steps": 1}


def test_a_loss_that_overflows_itself_is_not_blamed_on_the_scale(new_trainer):
    trainer = new_trainer(training={"precision": "fp16"})
    with torch.no_grad():  # activations exceed 65,504, the largest number of fp16
        trainer.model.encoder[0].feed_forward.inner.weight *= 1e6
    [report] = take(trainer, 1)
    assert (report.skipped, report.overflowed) == (True, False)


def test_the_scale_of_fp16_stays_at_least_1(new_trainer):
    trainer = set_loss_scale(new_trainer(training={"precision": "fp16"}), 1.0)
    with torch.no_grad():
        trainer.model.output_weight[5] = math.nan
    [report] = take(trainer, 1)
    assert (report.skipped, report.overflowed) == (True, False)
    assert loss_scale(trainer)["value"] == 1.0


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.needs_bf16), "fp16"])
def test_half_precision_learns_as_well_as_fp32(new_trainer, precision):
    exact = take(new_trainer(), 12)
    rounded = take(new_trainer(training={"precision": precision}), 12)
    assert rounded[-1].loss == pytest.approx(exact[-1].loss, rel=0.02)


def test_a_run_can_be_resumed_in_another_precision(new_trainer):
    half, full = (new_trainer(training={"precision": precision}) for precision in ("fp16", "fp32"))
    for before, after in ((half, full), (full, half)):
        take(before, 2)
        after.load_state(before.state())
    assert take(half, 1)[0].step == 5


class OutOfMemory:
    """Simulates a device whose memory is too small for large microbatches."""

    def __init__(self, monkeypatch, max_rows):
        original = BatchLoss.forward

        def forward(module, batch):
            if len(batch.sources.lengths) > max_rows:
                raise torch.OutOfMemoryError("tried to allocate")
            return original(module, batch)

        monkeypatch.setattr(BatchLoss, "forward", forward)


def test_a_step_that_is_out_of_memory_is_repeated_in_smaller_microbatches(new_trainer, monkeypatch):
    changes = {
        "model": NO_DROPOUT,
        "batching": {"max_tokens": 10_000},
        "optimizer": {"adam_epsilon": 1e-3},  # a smaller ε would amplify rounding errors
    }
    plain = new_trainer(**changes)
    expected = take(plain, 3)
    OutOfMemory(monkeypatch, max_rows=8)
    small = new_trainer(**changes)
    assert len(small.batcher.split(small.batcher.epoch(1)[0])) == 1
    found = take(small, 3)
    assert [report.loss for report in found] == pytest.approx(
        [report.loss for report in expected], rel=1e-5
    )
    for weight, plain_weight in zip(weights_of(small), weights_of(plain), strict=True):
        torch.testing.assert_close(weight, plain_weight, rtol=1e-3, atol=1e-4)
    assert small.accumulation.out_of_memory >= 1
    # A resumed run starts with the smaller microbatches.
    take(small, 1)
    resumed = new_trainer(**changes)
    resumed.load_state(small.state())
    before = resumed.accumulation.out_of_memory
    take(resumed, 3)
    assert resumed.accumulation.out_of_memory == before


def test_a_sentence_that_does_not_fit_in_memory_ends_the_run(new_trainer, monkeypatch):
    OutOfMemory(monkeypatch, max_rows=0)
    trainer = new_trainer()
    with pytest.raises(
        TrainingError, match=r"step 1: out of memory with a microbatch of \d+ tokens"
    ):
        take(trainer, 1)


def test_other_errors_are_not_treated_as_out_of_memory(new_trainer, monkeypatch):
    def broken(module, batch):
        raise RuntimeError("a bug")

    monkeypatch.setattr(BatchLoss, "forward", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        take(new_trainer(), 1)
