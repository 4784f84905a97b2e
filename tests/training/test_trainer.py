"""The training loop: deterministic, resumable, and safe against losses that are not finite."""

import itertools
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import take, weights_of

from tfm.dataset.batching import PADDING
from tfm.dataset.parallel import DatasetIndex, ParallelDataset, ShardIds
from tfm.training.progress import ControlFlags

VOCAB_SIZES = (400, 400)
NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}

# Every fifth loss of `test_the_first_losses_are_the_recorded_ones`.
RECORDED_LOSSES = [6.16871, 5.31295, 4.60924, 3.90532, 3.17817, 2.59351, 2.07224, 1.76730]


@pytest.fixture(scope="module")
def counting_data(tmp_path_factory):
    """Return a dataset of ascending source numbers and descending target numbers."""
    folder = tmp_path_factory.mktemp("counting")
    starts = [4 + (7 * i) % 60 for i in range(200)]
    sources = [list(range(start, start + 3 + start % 5)) for start in starts]
    for name, sentences in (("en", sources), ("de", [ids[::-1] for ids in sources])):
        np.save(folder / f"train.{name}.tokens.npy", np.concatenate(sentences).astype(np.uint16))
        offsets = np.cumsum([0, *map(len, sentences)])
        np.save(folder / f"train.{name}.offsets.npy", offsets.astype(np.uint32))
    ids = ShardIds.of_files(folder, "train", ("en", "de"))
    index = DatasetIndex(source="en", target="de", fingerprint="", shards={"train": (ids,)})
    index.save(folder)
    return ParallelDataset(folder, "train", vocab_sizes=VOCAB_SIZES)


def step(trainer, rows):
    return trainer.step(trainer.build(rows))[0].report()


def losses(reports):
    return [(report.step, report.epoch, report.loss, report.nll) for report in reports]


def assert_same_weights(one, other):
    assert all(torch.equal(*pair) for pair in zip(weights_of(one), weights_of(other), strict=True))


def test_the_seed_determines_weights_order_and_dropout(new_trainer):
    runs = [new_trainer(training={"seed": seed}) for seed in (1, 2)]
    assert not torch.equal(runs[0].model.output_weight, runs[1].model.output_weight)
    rows = runs[0].batcher.epoch(1)[0]
    assert rows.tolist() != runs[1].batcher.epoch(1)[0].tolist()
    # With the same weights and the same batch, only dropout differs.
    state = runs[0].model.state_dict()
    runs[1].model.load_state_dict(state)
    assert step(runs[0], rows).loss != step(runs[1], rows).loss


def test_steps_pairs_and_tokens_are_counted(new_trainer):
    trainer = new_trainer()
    num_batches = trainer.batcher.num_batches()
    reports = take(trainer, num_batches)
    assert (trainer.position.step, trainer.position.pairs) == (num_batches, 200)
    assert trainer.position.tokens == trainer.batcher.num_tokens
    assert sum(report.num_tokens for report in reports) == trainer.position.tokens


def test_a_step_follows_the_mean_loss_over_all_microbatches(new_trainer):
    """Compares with a step of torch's Adam on the whole batch."""
    changes = {
        "model": NO_DROPOUT,
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 1, "adam_epsilon": 1e-3},
    }
    trainer, plain = new_trainer(**changes), new_trainer(**changes)
    rows = trainer.batcher.epoch(1)[0]
    report = step(trainer, rows)

    model = plain.model
    microbatches = list(map(plain.batcher.batch, plain.batcher.split(rows)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-3)
    total = 0.0
    for batch in microbatches:
        sources, targets = batch.sources, batch.targets
        hidden_states = model(
            sources.pad(batch.source), sources.lengths, targets.pad(batch.target_input)
        )
        total += F.cross_entropy(
            model.logits(hidden_states).flatten(0, 1),
            targets.pad(batch.target_output).flatten(),
            ignore_index=PADDING,
            reduction="sum",
            label_smoothing=0.1 * 400 / 399,
        )
    loss = total / sum(batch.num_tokens for batch in microbatches)
    loss.backward()
    optimizer.step()
    assert len(microbatches) > 1
    assert report.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    for found, expected in zip(weights_of(trainer), weights_of(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_clipping_limits_the_gradient_norm(new_trainer):
    clipped = new_trainer(optimizer={"clip_norm": 0.01, "adam_epsilon": 1.0, "learning_rate": 1.0,
                                     "warmup_steps": 1})  # fmt: skip
    before = weights_of(clipped)
    [report] = take(clipped, 1)
    assert report.gradient_norm > 0.01
    # With such a large ε, Adam's first step is nearly the gradient itself.
    distance = math.sqrt(
        sum(float((a - b).square().sum()) for a, b in zip(weights_of(clipped), before, strict=True))
    )
    assert distance == pytest.approx(0.01, rel=0.02)


def test_a_step_with_a_loss_that_is_not_finite_is_skipped_and_counted(new_trainer, monkeypatch):
    monkeypatch.setattr("tfm.training.trainer.learning_rate", lambda *_: 1e30)
    trainer = new_trainer()
    [good] = take(trainer, 1)
    before = weights_of(trainer)
    bad = take(trainer, 3)
    assert [good.skipped, *(report.skipped for report in bad)] == [False, True, True, True]
    assert all(map(torch.equal, before, weights_of(trainer)))
    assert trainer.position.step == 4
    assert trainer.state()["updates"] == 1


@pytest.mark.parametrize("stop_before_microbatch", [1, 2])
def test_a_stop_within_a_step_leaves_everything_unchanged(new_trainer, stop_before_microbatch):
    uninterrupted, stopped = new_trainer(), new_trainer()
    expected = take(uninterrupted, 4)
    found = take(stopped, 2)
    before, position = weights_of(stopped), asdict(stopped.position)
    num_polls = itertools.count(1)

    def poll():
        return ControlFlags(stop=15 if next(num_polls) >= stop_before_microbatch else 0)

    batch = next(stopped.batches())
    assert len(batch.microbatches) >= stop_before_microbatch
    found_step, flags = stopped.step(batch, poll=poll)
    assert found_step is None
    assert flags.stop == 15
    assert asdict(stopped.position) == position
    assert all(map(torch.equal, before, weights_of(stopped)))
    assert losses(found + take(stopped, 2)) == losses(expected)
    assert_same_weights(stopped, uninterrupted)


def test_dropout_depends_only_on_the_step_and_the_microbatch(new_trainer):
    """So any process may compute any microbatch."""
    trainer = new_trainer()
    rows = trainer.batcher.epoch(1)[0]
    torch.manual_seed(999)
    report = step(trainer, rows)
    other = new_trainer()
    torch.manual_seed(0)
    assert step(other, rows).loss == report.loss


def test_the_first_losses_are_the_recorded_ones(new_trainer, counting_data):
    """Without dropout, whose random numbers may change with torch; a tolerance for other CPUs."""
    trainer = new_trainer(counting_data, model=NO_DROPOUT)
    found = [report.loss for report in take(trainer, 40)][4::5]
    assert found == pytest.approx(RECORDED_LOSSES, rel=1e-3)
