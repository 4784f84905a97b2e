"""Several processes train the same model as one process, and report a lost process."""

import json
import re
import signal
from functools import cache

import pytest
import torch
from helpers import steps_of, wait_until
from torch.distributed.elastic.utils.distributed import get_free_port

from tfm.commands.train import train_model
from tfm.config import run_toml
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.machine.group import Group

TIMEOUT_SECONDS = 180

# The start of all scripts.
JOIN = """
import json, sys
from datetime import timedelta
import torch
from tfm.machine.group import joined
from tfm.machine.world import World
world = World.from_environment()
def output(**facts):
    print(json.dumps(facts))
"""


# The program that `python -m tfm` runs.
TFM = "from tfm.cli.main import main; main()"


@pytest.fixture(scope="module")
def start(fork_python):
    """Start processes as torchrun does."""

    def start_all(source, *arguments, size=2):
        port = get_free_port()
        return [
            fork_python(
                source,
                *arguments,
                RANK=str(rank),
                WORLD_SIZE=str(size),
                LOCAL_RANK=str(rank),
                LOCAL_WORLD_SIZE=str(size),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                OMP_NUM_THREADS="1",
            )
            for rank in range(size)
        ]

    return start_all


def finish(processes):
    """Wait for processes; return their exit codes, stdout and stderr."""
    try:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], *zip(*outputs, strict=True)


@pytest.fixture(scope="module")
def run_script(start):
    """Run a script in several processes; return the output of each, by rank."""

    def run(script, *arguments, size=2):
        codes, outputs, errors = finish(start(JOIN + script, *arguments, size=size))
        assert codes == [0] * size, errors
        return [json.loads(text) for text in outputs]

    return run


@pytest.fixture(scope="module")
def run_processes(data_dir, start):
    """Train in several processes with the command line; return exit codes and stderr."""

    def run(run_dir, settings, size=2, meanwhile=None, before=""):
        config = run_dir.with_suffix(".toml")
        config.write_text(run_toml(settings))
        processes = start(
            before + TFM, "train", data_dir, "--run", run_dir, "--config", config, size=size
        )
        if meanwhile is not None:
            meanwhile(processes)
        codes, _, errors = finish(processes)
        return codes, errors

    return run


def losses(run_dir):
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {(line["kind"], line["step"]): line["loss"] for line in lines if "loss" in line}


def bleus(run_dir):
    return [ModelFolder(path).info.metrics["bleu"] for path in checkpoints(run_dir)]


@pytest.fixture(scope="module")
def scored_run(tiny_run):
    """Settings with dropout, several microbatches per step and BLEU."""

    def make(**changes):
        training = {"log_steps": 1, "validation_beam": 2, "best_metric": "score"}
        training |= changes.pop("training", {})
        # With a small ε, Adam would amplify rounding errors of gradients that are zero.
        optimizer = {"adam_epsilon": 1e-4, **changes.pop("optimizer", {})}
        changes = {"batching": {"num_dropout_shards": 2}, "optimizer": optimizer, **changes}
        return tiny_run(**changes, training=training)

    return make


@pytest.fixture(scope="module")
def single_process_run(data_dir, scored_run, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "single"
    train_model(data_dir, run_dir, scored_run())
    return run_dir


def assert_same_run(one, other):
    """Check equality up to the rounding of sums in another order."""
    assert losses(one).keys() == losses(other).keys()
    assert list(losses(one).values()) == pytest.approx(list(losses(other).values()), rel=1e-5)
    assert bleus(one) == bleus(other)
    weights, expected = (ModelFolder(checkpoints(run)[-1]).weights() for run in (one, other))
    for name in expected:
        torch.testing.assert_close(weights[name], expected[name], rtol=1e-4, atol=1e-5)


def test_two_processes_train_the_same_model_as_one(
    single_process_run, run_processes, scored_run, tmp_path
):
    codes, errors = run_processes(tmp_path / "run", scored_run())
    assert codes == [0, 0], errors
    assert_same_run(tmp_path / "run", single_process_run)
    assert "2 processes" in errors[0]
    assert errors[1] == ""


def test_one_process_resumes_a_run_of_two(
    single_process_run, run_processes, scored_run, data_dir, tmp_path
):
    codes, errors = run_processes(
        tmp_path / "run", scored_run(batching={"num_dropout_shards": 1}, training={"max_steps": 8})
    )
    assert codes == [0, 0], errors
    # The checkpoint stores that batches were split for two processes; the settings do not.
    result = train_model(data_dir, tmp_path / "run", scored_run(batching={"num_dropout_shards": 1}))
    assert result.step == 12
    found, expected = losses(tmp_path / "run"), losses(single_process_run)
    assert [found[key] for key in expected] == pytest.approx(list(expected.values()), rel=1e-5)


def test_augmented_pairs_are_the_same_for_two_processes_that_are_resumed_by_one(
    run_processes, tiny_run, data_dir, tmp_path, monkeypatch
):
    windows = "from tfm.dataset import plan\nplan.AUGMENTED_PAIRS, plan.RUN_PAIRS = 64, 16\n"
    changes = {"bpe_dropout": 0.1, "typo_share": 0.3}

    def settings(max_steps):
        training = {"max_steps": max_steps, "log_steps": 1}
        batching, optimizer = {"num_dropout_shards": 2}, {"adam_epsilon": 1e-4}
        return tiny_run(
            augmentation=changes, training=training, batching=batching, optimizer=optimizer
        )

    codes, errors = run_processes(tmp_path / "run", settings(8), before=windows)
    assert codes == [0, 0], errors
    monkeypatch.setattr("tfm.dataset.plan.AUGMENTED_PAIRS", 64)
    monkeypatch.setattr("tfm.dataset.plan.RUN_PAIRS", 16)
    for run_dir in ("run", "alone"):
        train_model(data_dir, tmp_path / run_dir, settings(12))
    found, expected = losses(tmp_path / "run"), losses(tmp_path / "alone")
    assert [found[key] for key in expected] == pytest.approx([*expected.values()], rel=1e-5)


def test_a_sharded_run_with_output_bias_has_the_moving_average_of_a_single_process(
    run_processes, scored_run, data_dir, tmp_path
):
    changes = {"model": {"output_bias": True}, "optimizer": {"ema": 0.9, "algorithm": "adamw"}}
    train_model(data_dir, tmp_path / "single", scored_run(**changes))
    for max_steps in (8, 12):
        settings = scored_run(training={"shard": True, "max_steps": max_steps}, **changes)
        codes, errors = run_processes(tmp_path / "run", settings)
        assert codes == [0, 0], errors
    assert_same_run(tmp_path / "run", tmp_path / "single")


def test_a_signal_to_one_process_stops_and_saves_both(run_processes, scored_run, tmp_path):
    run_dir = tmp_path / "run"
    settings = scored_run(training={"max_steps": 100_000, "checkpoint_steps": 100_000})

    def stop(processes):
        metrics = run_dir / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size, seconds=TIMEOUT_SECONDS)
        processes[1].send_signal(signal.SIGUSR1)

    codes, errors = run_processes(run_dir, settings, meanwhile=stop)
    assert codes == [0, 0], errors
    [saved] = checkpoints(run_dir)
    step = ModelFolder(saved).info.step
    assert f"stopped and saved at step {step:,}; run the same command to resume" in errors[0]
    assert errors[1] == ""


def test_collectives_of_two_processes(run_script):
    script = """
from tfm.errors import UsageError
with joined(world, torch.device("cpu"), timeout=timedelta(seconds=60)) as group:
    found = dict(
        sum=group.sum(torch.tensor([world.rank, 1.5])).tolist(),
        largest=group.largest([world.rank, -world.rank]),
        gathered=group.gather({"rank": world.rank, "text": "ä" * world.rank}),
    )
    try:
        group.check_equal({"settings": world.rank, "dataset": 1})
    except UsageError as error:
        output(**found, error=str(error).partition(":")[0])
"""
    expected = {
        "sum": [1.0, 3.0],
        "largest": [1, 0],
        "gathered": [{"rank": 0, "text": ""}, {"rank": 1, "text": "ä"}],
        "error": "rank 1 has other settings than rank 0",
    }
    assert run_script(script) == [expected, expected]


def test_a_group_ends_though_its_threads_free_tensors_after_ddp_is_gone(run_script):
    script = """
import sys
from torch.nn.parallel import DistributedDataParallel
nodes = World(rank=world.rank, size=world.size)  # without a shared folder, whose end lets them run
with joined(nodes, torch.device("cpu"), timeout=timedelta(seconds=60)) as group:
    module = DistributedDataParallel(torch.nn.Linear(2, 2))
    sys.setswitchinterval(100)  # seconds
    group.gather("x" * 100_000)
del module
output()
"""
    for _ in range(3):
        assert run_script(script) == [{}, {}]


def test_collectives_of_a_single_process_return_its_values():
    group = Group()
    assert group.sum(torch.tensor([2.0])).tolist() == [2.0]
    assert group.largest([3, 4]) == [3, 4]
    assert group.gather("a") == ["a"]
    group.check_equal({"settings": "any"})
    assert group.store is None


TRAINER = """
from pathlib import Path
from tfm.config import read_toml, run_config
from tfm.dataset.parallel import ParallelDataset
from tfm.model.build import new_model
from tfm.model.cost import model_cost
from tfm.machine.compute import Compute
from tfm.training.trainer import Trainer

data, config, *arguments = sys.argv[1:]
run = run_config(None, read_toml(Path(config)))
sizes = 400, 400
dataset = ParallelDataset(Path(data) / "bin", "train", vocab_sizes=(400, 400))
cost = model_cost(run.model, sizes)
compute = Compute(torch.device("cpu"), torch.float32)

def new_trainer(group):
    torch.manual_seed(1)
    model = new_model(run.model, sizes)
    return Trainer(model, dataset, run, compute, cost=cost, group=group)
"""


_OUT_OF_MEMORY = """
import os, torch
from tfm.training.loss import BatchLoss
original, num_calls, hook = BatchLoss.forward, 0, None
def fail(*_):
    if hook is not None:
        hook.remove()
    raise torch.OutOfMemoryError("tried to allocate")
def forward(module, batch):
    global num_calls, hook
    is_training = module.model.training
    num_calls += is_training
    if not is_training or batch.num_tokens <= 130:
        return original(module, batch)
    if place == "first" or (place == "last" and num_calls == 2):
        fail()
    loss, nll = original(module, batch)
    if place == "backward" and num_calls == 2:
        # When the gradients of the decoder were sent already.
        hook = module.model.source_embedding.weight.register_hook(fail)
    return loss, nll
if os.environ["RANK"] == "1":
    BatchLoss.forward = forward
"""
_SMALL_BUCKETS = """
from torch.nn.parallel import DistributedDataParallel
from tfm.training import gradients
gradients.DistributedDataParallel = lambda module, **options: DistributedDataParallel(
    module, bucket_cap_mb=0.01, **options)
"""


@pytest.fixture(scope="module")
def run_in_microbatches(run_processes, scored_run, tmp_path_factory):
    """Train three steps with microbatches of a size; each different run is trained once."""

    @cache
    def train(max_tokens, before=""):
        run_dir = tmp_path_factory.mktemp("runs") / "run"
        settings = scored_run(
            batching={"max_tokens": max_tokens, "num_dropout_shards": 4},
            training={"max_steps": 3, "checkpoint_steps": 3, "average": False},
        )
        codes, errors = run_processes(run_dir, settings, before=before)
        assert codes == [0, 0], errors
        return run_dir

    return train


@pytest.mark.parametrize("place", ["first", "last", "backward"])
def test_if_one_process_runs_out_of_memory_all_compute_smaller_microbatches(
    run_in_microbatches, place
):
    before = f"place = {place!r}" + _OUT_OF_MEMORY + _SMALL_BUCKETS
    halved = run_in_microbatches(400, before)  # two microbatches for each process
    state = ModelFolder(checkpoints(halved)[-1]).training_state()["trainer"]["gradient"]
    assert state["out_of_memory"] == 1
    small = run_in_microbatches(state["max_tokens"])
    found, expected = (
        [loss for (kind, _), loss in losses(run).items() if kind == "train"]
        for run in (halved, small)
    )
    assert len(found) == 3
    assert found == expected
    weights, expected = (ModelFolder(checkpoints(run)[-1]).weights() for run in (halved, small))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_each_microbatch_counts_once_though_ranks_have_different_numbers_of_them(
    data_dir, tiny_run, run_script, tmp_path
):
    script = """
import numpy as np
with joined(world, torch.device("cpu"), timeout=timedelta(seconds=60)) as group:
    trainer = new_trainer(group)
    report = trainer.step(trainer.build(np.arange(3)))[0].report()
    output(loss=report.loss, norm=report.gradient_norm)
"""
    config = tmp_path / "run.toml"
    no_dropout = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
    config.write_text(run_toml(tiny_run(model=no_dropout, batching={"max_tokens": 1})))
    [single] = run_script(TRAINER + script, data_dir, config, size=1)
    assert run_script(TRAINER + script, data_dir, config) == [pytest.approx(single)] * 2


@pytest.mark.parametrize("shard", [False, True])
def test_all_processes_agree_that_a_weight_or_an_update_of_one_of_them_is_wrong(
    data_dir, tiny_run, run_script, tmp_path, shard
):
    script = """
from tfm.training.gradients import local_part
with joined(world, torch.device("cpu"), timeout=timedelta(seconds=60)) as group:
    trainer = new_trainer(group)
    trainer.step(next(trainer.batches()))
    before = [trainer.has_finite_weights(), trainer.difference_between_ranks()]
    trainer._optimizer.num_updates += world.rank
    difference = trainer.difference_between_ranks()
    if world.rank == 1:
        local_part(trainer.model.output_weight)[-1] = float("nan")
    output(before=before, after=[trainer.has_finite_weights(), difference])
"""
    config = tmp_path / "run.toml"
    config.write_text(run_toml(tiny_run(training={"shard": shard})))
    difference = "rank 1 differs from the other ranks, first in its number of updates"
    expected = {"before": [True, None], "after": [False, difference]}
    assert run_script(TRAINER + script, data_dir, config) == [expected] * 2


_STALL = """
import os, time
from tfm.training.loss import BatchLoss
original, num_calls = BatchLoss.forward, 0
def forward(module, batch):
    global num_calls
    num_calls += module.model.training
    if num_calls == 3:
        time.sleep(600)
    return original(module, batch)
if os.environ["RANK"] == "1":
    BatchLoss.forward = forward
"""


def test_a_stalled_process_ends_the_run_and_all_write_their_last_collectives(
    run_processes, scored_run, tmp_path
):
    settings = scored_run(training={"stall_minutes": 0.1})
    codes, errors = run_processes(tmp_path / "run", settings, before=_STALL)
    assert codes == [1, 1]
    folder = tmp_path / "run" / "collectives"
    message = errors[0].splitlines()[-1]
    assert message.startswith("tfm: rank 1 ")
    assert f"the last collectives of each rank are in {folder};" in message
    counts = []
    for rank in (0, 1):
        entries = json.loads((folder / f"rank-{rank}.json").read_text())["gloo"]["entries"]
        assert {"gloo:all_reduce", "gloo:all_gather"} <= {
            each["profiling_name"] for each in entries
        }
        counts.append(entries[-1]["collective_seq_id"])
    assert counts[0] > counts[1]  # rank 0 waits in one that rank 1 has not started


_AT_STEP = """
import os
from tfm.training.trainer import Trainer
original = Trainer.step
def step(trainer, *arguments, **options):
    if trainer.position.step == {} and os.environ["RANK"] == "1":
        {}
    return original(trainer, *arguments, **options)
Trainer.step = step
"""
_DIE = _AT_STEP.format(3, "os.kill(os.getpid(), 9)")
_OTHER_WEIGHTS = _AT_STEP.format(5, "trainer.model.output_weight.data[7, 3] += 1e-3")
_HUGE_UPDATES = """
from tfm.training import trainer
trainer.learning_rate = lambda *_: 1e30
"""
_LITTLE_MEMORY = """
import os
from tfm.model import cost
cost.memory_bytes = lambda: 1000 if os.environ["RANK"] == "0" else 1 << 40
"""
# What is wrong, settings, exit codes, the last line of a rank, and the steps that are saved.
FAILURES = {
    "dies": (_DIE, {}, [1, -9], 0, r"rank 0 lost the connection to the other .*", []),
    "other weights": (
        _OTHER_WEIGHTS,
        {},
        [1, 1],
        1,
        r"step 8: rank 1 differs from the other ranks, first in .*weight, .*step-00000004; run.*",
        [4],
    ),
    "diverges": (
        _HUGE_UPDATES,
        {},
        [1, 1],
        1,
        r"step 4: the validation loss is nan; last good checkpoint: none\. Train in.*",
        [],
    ),
    "out of memory, sharded": (
        "place = 'first'" + _OUT_OF_MEMORY,
        {"shard": True},
        [1, 1],
        1,
        r"rank 1, step 1: out of memory with a microbatch of .* smaller --max.*",
        [],
    ),
    "too little to save, sharded": (
        _LITTLE_MEMORY,
        {"shard": True},
        [2, 2],
        1,
        r"with shard, rank 0 gathers .* takes 0 GB in all, but it has 0 GB.*",
        [],
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_run_that_fails_ends_all_processes_with_one_line(
    run_processes, scored_run, tmp_path, name
):
    before, training, expected_codes, rank, line, steps = FAILURES[name]
    settings = scored_run(training=training)
    codes, errors = run_processes(tmp_path / "run", settings, before=before)
    assert codes == expected_codes
    assert re.fullmatch(f"tfm: {line}", errors[rank].splitlines()[-1])
    assert not any("Traceback" in error for error in errors)
    assert steps_of(tmp_path / "run") == steps
