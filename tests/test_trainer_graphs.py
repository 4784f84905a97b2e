"""Steps of which each pass is a CUDA graph: replayed on a CPU, they equal those without graphs."""

import itertools
from functools import partial

import numpy as np
import plain_kernels
import pytest
import torch
from replays import MemoryCheck, record

from tfm.backends.cross_entropy import differentiable_loss
from tfm.backends.plain import Backend
from tfm.data import batching
from tfm.distributed.group import Group
from tfm.errors import UsageError
from tfm.training import gradients
from tfm.training import trainer as trainer_module
from tfm.training.trainer import Trainer
from tfm.world import World

GRAPHS = {"training": {"cuda_graphs": True}}
ONE_MICROBATCH = {"batch_tokens": 200, "bucket_tokens": 100, "max_tokens": 10_000}
NUM_STEPS = 14


class ReplayableBackend(Backend):
    """What the backend of GPUs computes, in plain torch."""

    is_replayable = True

    def __init__(self, dtype=torch.float32):
        self.weights_dtype = dtype
        self.packed_attention = self

    def cast_activations(self, x):
        return x.to(self.weights_dtype)

    def attend(self, projections, queries, keys, *, num_heads, causal, dropout):
        *query, joint = projections
        heads = [x.view(len(x), num_heads, -1) for x in query]
        heads.append(joint.view(len(joint), 3 - len(query), num_heads, -1))
        seed = torch.empty(1, dtype=torch.int64).random_() if dropout else None
        spans = queries.spans(keys, causal=causal)
        return plain_kernels.packed_attention(heads, spans, dropout=dropout, seed=seed).flatten(1)

    def label_smoothed_cross_entropy(
        self, hidden_states, weight, targets, *, smoothing, num_tokens
    ):
        compute = partial(_compute_loss, targets=targets, smoothing=smoothing)
        return differentiable_loss(compute, hidden_states, weight)


def _compute_loss(hidden_states, weight, gradients, *, targets, smoothing):
    logits = hidden_states @ weight.T
    losses = plain_kernels.cross_entropy_(logits, targets, smoothing=smoothing)
    if gradients is not None:
        gradients[0].copy_(logits @ weight)
        gradients[1].add_(logits.T @ hidden_states)
    return tuple(each.sum() for each in losses)


@pytest.fixture
def make_trainer(new_trainer, monkeypatch):
    """Make a trainer with the backend of GPUs, and with graphs unless they are switched off."""

    # So that few shapes occur.
    monkeypatch.setattr(batching, "round_up_rows", lambda num_tokens: (num_tokens // 64 + 1) * 64)

    def make(dtype=torch.float32, *, group=None, **changes):
        with monkeypatch.context() as patched:
            patched.setattr(trainer_module, "training_backend", lambda *_: ReplayableBackend(dtype))
            changes = {"batching": ONE_MICROBATCH, **GRAPHS, **changes}
            made = new_trainer(**changes)
            if group is None:
                return made
            data = made.batcher._dataset
            return Trainer(made.model, data, made._run, made._compute, cost=made._cost, group=group)

    return make


@pytest.fixture
def captures(monkeypatch):
    """Record the operations of captured passes; return the recordings."""
    recordings = []

    def capture(function, *, shares_memory_of=None):
        with torch.random.fork_rng(devices=[]):  # a capture draws no numbers
            recordings.append(record(function))
        recordings[-1].is_shared = shares_memory_of is not None
        return recordings[-1]

    monkeypatch.setattr(gradients, "captured", capture)
    return recordings


def take(trainer, num_steps=NUM_STEPS):
    batches = itertools.islice(trainer.batches(), num_steps)
    reports = [trainer.step(batch)[0].report() for batch in batches]
    return [(report.loss, report.nll, report.gradient_norm) for report in reports]


def assert_same_run(found, expected, *, num_steps=NUM_STEPS):
    assert take(found, num_steps) == take(expected, num_steps)
    ours, theirs = found.weights(), expected.weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


WITHOUT_GRAPHS = {"training": {"cuda_graphs": False}}


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replayed_steps_equal_those_without_graphs(make_trainer, captures, norm, dtype):
    model = {"norm": norm, "dropout": 0.1, "attention_dropout": 0.1}
    graphed = make_trainer(dtype, model=model)
    assert_same_run(graphed, make_trainer(dtype, model=model, **WITHOUT_GRAPHS))
    _, *passes = captures
    assert 2 <= len(passes) <= NUM_STEPS / 3  # most others were replayed
    assert all(each.is_shared for each in passes)


@pytest.mark.parametrize("changes", [{"learned_positions": 100}, {"tied_embeddings": "none"}])
def test_other_weights_have_gradients_too(make_trainer, captures, changes):
    assert_same_run(make_trainer(model=changes), make_trainer(model=changes, **WITHOUT_GRAPHS))


def test_a_loss_that_is_scaled_for_fp16_is_replayed(make_trainer, captures, monkeypatch):
    def in_fp16(trainer):
        trainer._loss_scale = trainer_module.LossScale(torch.device("cpu"), is_fp16=True)
        return trainer

    assert_same_run(in_fp16(make_trainer()), in_fp16(make_trainer(**WITHOUT_GRAPHS)))


def test_the_gradients_of_several_microbatches_are_added(make_trainer, captures):
    batching = {**ONE_MICROBATCH, "max_tokens": 60}
    graphed = make_trainer(batching=batching)
    assert len(next(graphed.batches()).microbatches) > 1
    expected = make_trainer(batching=batching, **WITHOUT_GRAPHS)
    np.testing.assert_allclose(take(graphed), take(expected), rtol=1e-5)


def test_a_resumed_run_computes_the_same_steps(make_trainer, captures):
    uninterrupted, stopped, resumed = (make_trainer() for _ in range(3))
    expected = take(uninterrupted)
    assert take(stopped, 9) == expected[:9]
    resumed.model.load_state_dict(stopped.model.state_dict())
    resumed.load_state(stopped.state())
    assert take(resumed, NUM_STEPS - 9) == expected[9:]


def test_long_sentences_in_a_validation_free_no_memory_of_a_graph(make_trainer, monkeypatch):
    checks = []

    def capture(function, *, shares_memory_of=None):
        with torch.random.fork_rng(devices=[]):
            checks.append(MemoryCheck(function))
        return checks[-1]

    monkeypatch.setattr(gradients, "captured", capture)
    trainer, expected = make_trainer(), make_trainer()
    take(trainer, 10)
    assert len(checks) > 2
    with torch.inference_mode():
        trainer.model.target_embedding.position_table(5_000)
    assert take(trainer, 4) == take(expected)[10:]


def test_no_position_of_the_dataset_is_computed_after_a_capture(make_trainer, captures):
    trainer = make_trainer()
    take(trainer, 1)
    table = trainer.model.source_embedding.positions
    longest = trainer.batcher.longest(np.arange(len(trainer.batcher._dataset)))
    assert len(table) >= longest
    take(trainer)
    assert trainer.model.source_embedding.positions is table


class TwiceGroup(Group):
    """Two processes that compute the same microbatches."""

    def __init__(self):
        super().__init__(World(rank=0, size=2, local_rank=0, local_size=2))
        self.sums = []

    def sum(self, values):
        self.sums.append(values.numel())
        return values.mul_(2)

    def largest(self, values):
        return list(values)


def test_processes_sum_all_gradients_once_a_step(make_trainer, captures):
    group = TwiceGroup()
    trainer = make_trainer(group=group)
    take(trainer, 12)
    num_weights = sum(parameter.numel() for parameter in trainer.model.parameters())
    assert group.sums == [num_weights, 2] * 12
    assert len(captures) > 2


def test_a_process_without_memory_adds_nothing_to_the_sum(make_trainer, captures):
    group = TwiceGroup()
    trainer = make_trainer(group=group)
    trainer._gradients.release_peers()
    assert len(group.sums) == 1
    assert not trainer._gradients._flat.any()


def test_the_content_of_a_batch_is_copied_into_one_of_the_same_shape(make_trainer):
    trainer = make_trainer(**WITHOUT_GRAPHS)
    batches = [trainer.build(rows).own[0][1] for rows in trainer.batcher.epoch(1)]
    pairs = itertools.combinations(batches, 2)
    one, other = next((a, b) for a, b in pairs if a.shape == b.shape)
    assert not torch.equal(one.source, other.source)
    one.copy_(other)
    for name in ("source", "target_input", "target_output"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    for ours, theirs in ((one.sources, other.sources), (one.targets, other.targets)):
        assert torch.equal(ours.positions, theirs.positions)
        assert torch.equal(ours.offsets, theirs.offsets)


@pytest.mark.parametrize(
    "model", [{"attention": "additive"}, {"attention_window": 3}, {"d_k": 4, "d_v": 8}]
)
def test_models_with_other_operations_for_each_batch_are_refused(make_trainer, model):
    with pytest.raises(UsageError, match="--cuda-graphs needs a GPU with --kernels fast"):
        make_trainer(model=model)


def test_a_cpu_has_no_graphs(new_trainer):
    with pytest.raises(UsageError, match="--cuda-graphs needs a GPU with --kernels fast"):
        new_trainer(**GRAPHS)


def test_sharded_weights_and_graphs_exclude_each_other(tiny_run):
    with pytest.raises(UsageError, match="cuda_graphs cannot capture the collectives of shard"):
        tiny_run(training={"cuda_graphs": True, "shard": True})
