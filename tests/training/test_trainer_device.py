"""A step on a device: the host waits for nothing, and builds the next batch meanwhile."""

import contextlib
import itertools
import time
from dataclasses import replace

import pytest
import torch

from tfm.machine.compute import Compute
from tfm.training import loss, progress
from tfm.training.progress import ControlFlags
from tfm.training.trainer import Trainer

META = torch.device("meta")


@pytest.fixture
def on_meta(new_trainer, monkeypatch):
    """Make a trainer on the meta device, whose tensors have no data: reading them fails."""
    monkeypatch.setattr(loss, "autocast_dtype", lambda x: x.dtype)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())

    def make(dtype=torch.float32, **changes):
        on_cpu = new_trainer(training={"kernels": "plain"}, **changes)
        run, data = on_cpu._run, on_cpu.batcher._dataset
        return Trainer(on_cpu.model.to(META), data, run, Compute(META, dtype), cost=on_cpu._cost)

    return make


@pytest.mark.parametrize(
    ("dtype", "clip_norm"), [(torch.float32, 0.0), (torch.bfloat16, 1.0), (torch.float16, 1.0)]
)
def test_a_step_reads_nothing_from_the_device(on_meta, monkeypatch, clip_norm, dtype):
    copies = []

    def copy_to_host(x):
        copies.append(x)
        return torch.zeros(len(x))

    monkeypatch.setattr(progress, "copy_to_host", copy_to_host)
    trainer = on_meta(dtype, optimizer={"clip_norm": clip_norm})
    for batch in itertools.islice(trainer.batches(), 2):
        assert len(batch.microbatches) > 1
        pending, flags = trainer.step(batch)
        assert flags == ControlFlags()
    assert len(copies) == 2  # one for the figures of each step, which nothing waits for
    assert pending.report().step == trainer.position.step == 2


def test_reading_the_figures_is_what_waits(on_meta):
    trainer = on_meta()
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        trainer.step(next(trainer.batches()))


def test_the_time_of_a_step_includes_the_wait_for_its_batch(new_trainer, monkeypatch):
    trainer = new_trainer()
    build = trainer.build

    def slowly(*args, **kwargs):
        time.sleep(0.2)
        return build(*args, **kwargs)

    monkeypatch.setattr(trainer, "build", slowly)
    report = trainer.step(next(trainer.batches()))[0].report()
    assert 0.2 < report.waiting_seconds < report.seconds
    at_once = trainer.step(build(trainer.batcher.epoch(1)[1]))[0].report()
    assert at_once.waiting_seconds == 0


def test_a_batch_is_built_again_after_memory_ran_out(new_trainer):
    changes = {"batching": {"max_tokens": 10_000}}
    trainer, small = new_trainer(**changes), new_trainer(batching={"max_tokens": 100})
    stale = next(trainer.batches())
    assert len(stale.microbatches) == 1
    trainer.accumulation.max_tokens = 100
    found, expected = trainer.step(stale)[0], small.step(next(small.batches()))[0]
    assert found.report().loss == expected.report().loss


@pytest.mark.parametrize(("setting", "expected"), [(None, 30_000), (50, 50)])
def test_a_size_that_the_device_chose_is_kept_when_a_run_is_resumed(new_trainer, setting, expected):
    def make(max_tokens):
        trainer = new_trainer()
        batching = replace(trainer._run.batching, max_tokens=max_tokens)
        trainer._run = replace(trainer._run, batching=batching)
        return trainer

    on_gpu, resumed = make(None), make(setting)
    on_gpu.accumulation.max_tokens = 30_000
    resumed.load_state(on_gpu.state())
    assert resumed.accumulation.max_tokens == expected
