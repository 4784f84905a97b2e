"""The training loop: deterministic, resumable, and stopped before it does harm."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tfm.data.batching import Batcher
from tfm.data.dataset import DatasetIndex, ParallelDataset
from tfm.errors import TrainingError
from tfm.model.cost import model_cost
from tfm.model.transformer import Transformer
from tfm.runtime.device import choose_compute
from tfm.training.trainer import Trainer, batch_loss, evaluate

VOCAB_SIZES = (400, 400)

# Of `test_the_first_steps_are_those_that_were_recorded`, every fifth step.
RECORDED_LOSSES = [6.16976, 5.39860, 4.69432, 4.01166, 3.43903, 2.85940, 2.32656, 1.99175]


@pytest.fixture(scope="module")
def counting_data(tmp_path_factory):
    """Sources that count up from somewhere, targets that count down from their end."""
    folder = tmp_path_factory.mktemp("counting")
    starts = [4 + (7 * i) % 60 for i in range(200)]
    sources = [list(range(start, start + 3 + start % 5)) for start in starts]
    for name, sentences in (("en", sources), ("de", [ids[::-1] for ids in sources])):
        np.save(folder / f"train.{name}.tokens.npy", np.concatenate(sentences).astype(np.uint16))
        offsets = np.cumsum([0, *map(len, sentences)])
        np.save(folder / f"train.{name}.offsets.npy", offsets.astype(np.int64))
    DatasetIndex(source="en", target="de", fingerprint="", num_pairs={"train": 200}).save(folder)
    return ParallelDataset(folder, "train", vocab_sizes=VOCAB_SIZES)


@pytest.fixture
def new_trainer(data_dir, tiny_run):
    real_data = ParallelDataset(data_dir / "bin", "train", vocab_sizes=VOCAB_SIZES)

    def make(dataset=real_data, **changes):
        run = tiny_run(**changes)
        torch.manual_seed(run.training.seed)
        model = Transformer(run.model, source_vocab_size=400, target_vocab_size=400)
        compute = choose_compute("cpu", run.training.precision)
        cost = model_cost(run.model, source_vocab_size=400, target_vocab_size=400, max_tokens=1000)
        return Trainer(model, dataset, run, compute, cost=cost)

    return make


def take(trainer, num_steps):
    return list(itertools.islice(trainer, num_steps))


def losses(reports):
    return [(report.step, report.epoch, report.loss, report.nll) for report in reports]


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def assert_same_weights(one, other):
    assert all(torch.equal(*pair) for pair in zip(weights(one), weights(other), strict=True))


def test_one_seed_gives_the_same_losses_and_weights_to_the_bit(new_trainer):
    one, other = new_trainer(), new_trainer()
    assert losses(take(one, 12)) == losses(take(other, 12))
    assert_same_weights(one, other)


def test_the_seed_decides_on_weights_order_and_dropout(new_trainer):
    runs = [new_trainer(training={"seed": seed}) for seed in (1, 2)]
    assert not torch.equal(runs[0].model.output_weight, runs[1].model.output_weight)
    rows = runs[0].batcher.epoch(1)[0]
    assert rows.tolist() != runs[1].batcher.epoch(1)[0].tolist()
    # From the same weights, on the same batch, only dropout is left to differ.
    state = runs[0].model.state_dict()
    runs[1].model.load_state_dict(state)
    assert runs[0].step(rows).loss != runs[1].step(rows).loss


@pytest.mark.parametrize("seed", [0, 2**32, 2**63 - 1])
def test_any_seed_that_the_settings_allow_works(new_trainer, seed):
    assert math.isfinite(take(new_trainer(training={"seed": seed}), 1)[0].loss)


@pytest.mark.parametrize("stop_after", [1, 7, 8, 13])
def test_a_run_that_is_stopped_and_resumed_is_the_same_run(new_trainer, stop_after):
    straight, stopped = new_trainer(), new_trainer()
    num_batches = straight.batcher.num_batches()
    assert 7 <= num_batches <= 12  # so that stops are within, between and beyond epochs
    assert len(straight.batcher.split(straight.batcher.epoch(1)[0])) > 1
    expected = take(straight, 18)
    before = take(stopped, stop_after)
    resumed = new_trainer()
    resumed.model.load_state_dict(stopped.model.state_dict())
    resumed.load_state(stopped.state())
    after = take(resumed, 18 - stop_after)
    assert losses(before + after) == losses(expected)
    assert resumed.position == straight.position
    assert_same_weights(resumed, straight)


def test_stopping_at_the_end_of_an_epoch_begins_the_next(new_trainer):
    stopped, resumed = new_trainer(), new_trainer()
    take(stopped, stopped.batcher.num_batches())
    resumed.load_state(stopped.state())
    [report] = take(resumed, 1)
    assert (report.epoch, resumed.position.batch) == (2, 1)


def test_progress_is_counted(new_trainer):
    trainer = new_trainer()
    num_batches = trainer.batcher.num_batches()
    reports = take(trainer, num_batches)
    assert (trainer.position.step, trainer.position.pairs) == (num_batches, 200)
    assert trainer.position.tokens == trainer.batcher.num_tokens
    assert sum(report.num_tokens for report in reports) == trainer.position.tokens


def test_the_step_follows_the_mean_loss_over_all_parts(new_trainer):
    """Against one plain step of torch's Adam on the whole batch."""
    changes = {
        "model": {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 1, "adam_epsilon": 1e-3},
    }
    trainer, plain = new_trainer(**changes), new_trainer(**changes)
    rows = trainer.batcher.epoch(1)[0]
    report = trainer.step(rows)

    model, parts = plain.model, list(plain.batcher.parts(rows))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-3)
    total = sum(
        F.cross_entropy(
            model.logits(model(part.source, part.source_lengths, part.target_input)).flatten(0, 1),
            part.target_output.flatten(),
            ignore_index=0,
            reduction="sum",
            label_smoothing=0.1 * 400 / 399,
        )
        for part in parts
    )
    loss = total / sum(part.num_tokens for part in parts)
    loss.backward()
    optimizer.step()
    assert len(parts) > 1
    assert report.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    for ours, theirs in zip(weights(trainer), weights(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_clipping_keeps_the_gradient_norm_to_its_limit(new_trainer):
    clipped = new_trainer(optimizer={"clip_norm": 0.01, "adam_epsilon": 1.0, "learning_rate": 1.0,
                                     "warmup_steps": 1})  # fmt: skip
    before = weights(clipped)
    [report] = take(clipped, 1)
    assert report.gradient_norm > 0.01
    # With so large an ε, Adam's first step is nearly the gradient itself.
    moved = math.sqrt(
        sum(float((a - b).square().sum()) for a, b in zip(weights(clipped), before, strict=True))
    )
    assert moved == pytest.approx(0.01, rel=0.02)


def test_a_loss_that_is_not_finite_stops_before_the_update(new_trainer):
    trainer = new_trainer(optimizer={"learning_rate": 1e30, "warmup_steps": 1})
    good = take(trainer, 1)
    before = weights(trainer)
    with pytest.raises(TrainingError, match=r"step 2: loss .*: not finite; .*learning rate"):
        take(trainer, 1)
    assert all(map(torch.equal, before, weights(trainer)))
    assert trainer.position.step == len(good)


def test_in_fp16_too_a_loss_that_is_not_finite_stops(new_trainer):
    trainer = new_trainer(training={"precision": "fp16"})
    take(trainer, 2)
    with torch.no_grad():
        trainer.model.output_weight[5] = math.nan
    with pytest.raises(TrainingError, match="step 3: loss nan"):
        take(trainer, 1)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
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


def test_evaluation_is_the_plain_loss_over_all_pairs_without_dropout(new_trainer, data_dir):
    trainer = new_trainer()
    dataset = ParallelDataset(data_dir / "bin", "valid", vocab_sizes=VOCAB_SIZES)
    results = []
    for max_tokens in (40, 100_000):
        config = type(trainer._run.batching)(batch_tokens=60, bucket_tokens=60,
                                             max_tokens=max_tokens)  # fmt: skip
        batcher = Batcher(dataset, config, seed=0)
        results.append(evaluate(trainer.model, batcher, trainer._compute))
    assert results[0] == pytest.approx(results[1], rel=1e-5)

    trainer.model.eval()
    total = num_tokens = 0
    for rows in batcher.epoch(1):
        for part in batcher.parts(rows):
            _, nll = batch_loss(trainer.model, part, smoothing=0.0)
            total, num_tokens = total + float(nll), num_tokens + part.num_tokens
    assert results[1] == pytest.approx(total / num_tokens, rel=1e-6)
    assert num_tokens == batcher.num_tokens


def test_training_goes_on_after_an_evaluation_as_if_there_had_been_none(new_trainer):
    one, other = new_trainer(), new_trainer()
    take(one, 4)
    take(other, 2)
    evaluate(other.model, other.batcher, other._compute)
    take(other, 2)
    assert_same_weights(one, other)


def test_the_first_steps_are_those_that_were_recorded(new_trainer, counting_data):
    """Without dropout, whose random numbers may change with torch; a tolerance for other CPUs."""
    trainer = new_trainer(
        counting_data, model={"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
    )
    found = [report.loss for report in take(trainer, 40)][4::5]
    assert found == pytest.approx(RECORDED_LOSSES, rel=1e-3)
