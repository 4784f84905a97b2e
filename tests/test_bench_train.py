"""tfm bench train: plausible results for the requested plan."""

import json
import re
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer

from tfm.cli import main as cli
from tfm.data.batching import Batcher
from tfm.data.dataset import ParallelDataset
from tfm.device.compute import choose_compute
from tfm.errors import UsageError
from tfm.stages.bench import measurement
from tfm.stages.bench import train as stage
from tfm.stages.bench.train import Plan, bench_train, time_loop
from tfm.storage.checkpoint.model_folder import load_info
from tfm.storage.checkpoint.run_folder import checkpoints
from tfm.training.data import open_data

PLAN = Plan(steps=4, untimed_steps=2, rounds=2, loop=False)
TINY_FLAGS = ["--d-model", 16, "--d-ff", 32, "--num-heads", 2, "--batch-tokens", 600,
              "--device", "cpu", "--steps", 2, "--untimed-steps", 1, "--rounds", 2]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Use small matrices and small synthetic datasets."""
    monkeypatch.setattr(measurement, "_matrix_size", lambda device: 256)
    monkeypatch.setattr(stage, "_NUM_SYNTHETIC_PAIRS", 500)
    monkeypatch.setattr("tfm.visualization.report.write_report", lambda _: None)


# --- results


def test_results_are_plausible_and_consistent(data_dir, tiny_run):
    started = time.perf_counter() - 5.0
    result = bench_train(data_dir, tiny_run(), PLAN, started=started)
    assert result.data == str(data_dir)
    by_round = result.target_tokens_per_second_by_round
    assert len(by_round) == 2
    assert result.target_tokens_per_second == pytest.approx(np.median(by_round))
    tokens = result.target_tokens_per_step
    assert 400 < tokens < 800
    assert result.target_tokens_per_second == pytest.approx(
        tokens / result.step_seconds.median, rel=0.9
    )
    assert 0 < result.mfu <= result.mfu_of_median < 1.5
    matrix = result.matrix_flops_per_second
    assert result.mfu == pytest.approx(result.flops_per_second / matrix.best)
    for share in (result.real_share.source, result.real_share.target, result.real_share.both):
        assert 0 < share <= 1
    step = result.step_seconds
    assert 0 < step.p10 <= step.median <= step.p90
    assert 5.0 < result.seconds_to_first_step < 60
    assert 1e7 < result.peak_memory.process < 1e11
    assert (result.skipped_steps, result.out_of_memory, result.loop) == (0, 0, None)


def test_tokens_are_counted_without_padding(data_dir, tiny_run):
    run = tiny_run()
    result = bench_train(data_dir, run, PLAN, started=time.perf_counter())
    dataset = ParallelDataset(data_dir / "bin", "train", vocab_sizes=(400, 400))
    batcher = Batcher(dataset, run.batching, seed=run.training.seed)
    batches = [rows for epoch in range(1, 9) for rows in batcher.epoch(epoch)]
    timed = batches[PLAN.untimed_steps : PLAN.untimed_steps + PLAN.steps]
    mean = np.mean([batcher.lengths(rows)[1].sum() for rows in timed])
    assert result.target_tokens_per_step == pytest.approx(mean)


def test_sentences_are_padded_to_the_longest_of_a_microbatch(new_trainer):
    trainer = new_trainer()
    num_pairs = sum(map(len, trainer.batcher.epoch(1)))
    lengths = np.stack(trainer.batcher.lengths(np.arange(num_pairs)))
    rows = np.array([lengths[1].argmin(), lengths[1].argmax()])  # far below max_tokens
    share = stage._real_share([trainer.build(rows)], packs=False)
    both = lengths[:, rows]
    assert share.target == pytest.approx(both[1].mean() / both[1].max())
    assert share.both == pytest.approx(both.sum() / (2 * both.max(axis=1)).sum())


def test_without_a_dataset_synthetic_pairs_are_used(tiny_run):
    plan = Plan(steps=1, untimed_steps=1, rounds=1, loop=False)
    result = bench_train(None, tiny_run(), plan, started=time.perf_counter())
    assert result.data is None
    assert result.num_parameters > 37_000 * 16


def test_limits_of_a_run_do_not_stop_a_benchmark(tiny_run):
    run = tiny_run(training={"patience": 1, "max_steps": 1, "max_minutes": 0.01})
    plan = Plan(steps=2, untimed_steps=1, rounds=1, loop=True)
    assert bench_train(None, run, plan, started=time.perf_counter()).loop is not None


@pytest.mark.parametrize("interrupted", [False, True])
def test_temporary_files_are_removed(tiny_run, tmp_path, monkeypatch, interrupted):
    def interrupt(*args, **kwargs):
        assert list(tmp_path.glob("tfm-bench-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if interrupted:
        monkeypatch.setattr(stage, "time_loop", interrupt)
    plan = Plan(steps=1, untimed_steps=1, rounds=1, loop=True)
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        bench_train(None, tiny_run(), plan, started=time.perf_counter())
    assert not list(tmp_path.glob("tfm-bench-*"))


def test_several_processes_are_refused(data_dir, tiny_run, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2,
                        "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UsageError, match="a single process, but torchrun has started 2"):
        bench_train(data_dir, tiny_run(), PLAN, started=0.0)


# --- the loop


def test_the_loop_is_compared_with_bare_steps(data_dir, tiny_run):
    plan = Plan(steps=4, untimed_steps=2, rounds=2, loop=True)
    result = bench_train(data_dir, tiny_run(), plan, started=time.perf_counter())
    rates = zip(
        result.loop.target_tokens_per_second_by_round,
        result.target_tokens_per_second_by_round,
        strict=True,
    )
    assert result.loop.share == pytest.approx(np.median([loop / bare for loop, bare in rates]))
    assert 0 < result.loop.share < 2
    assert 0 < result.loop.share_in_steps < 1


def test_the_timed_loop_saves_in_the_middle_and_does_not_validate(
    data_dir, tiny_run, tmp_path, monkeypatch
):
    data = replace(open_data(data_dir, tiny_run()), valid=None)
    compute = choose_compute("cpu", "fp32")
    seconds = iter(np.arange(0.0, 1e6, 0.5))
    monkeypatch.setattr("tfm.training.loop.time.monotonic", lambda: next(seconds))
    found = time_loop(tmp_path / "run", data, compute, steps=6, untimed_steps=4)
    assert [load_info(path).step for path in checkpoints(tmp_path / "run")] == [7, 10]
    lines = list(map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))
    assert "validation" not in {line["kind"] for line in lines}
    by_step = {line["step"]: line for line in lines if line["kind"] == "train"}
    assert {4, 10} <= by_step.keys()
    assert found.num_tokens == by_step[10]["tokens"] - by_step[4]["tokens"]
    assert found.seconds == pytest.approx(60 * (by_step[10]["minutes"] - by_step[4]["minutes"]))
    assert 0 < found.in_steps < found.seconds  # the clock is accelerated


# --- the command line


def test_json_is_one_object(run, data_dir):
    code, out, err = run("bench", "train", data_dir, *TINY_FLAGS, "--json")
    assert code == 0, err
    [record] = map(json.loads, out.splitlines())
    assert record["plan"] == {"steps": 2, "untimed_steps": 1, "rounds": 2, "loop": False}
    assert record["settings"]["model"]["d_model"] == 16
    assert {
        "target_tokens_per_second",
        "flops_per_second",
        "matrix_flops_per_second",
        "mfu",
        "real_share",
        "step_seconds",
        "seconds_to_first_step",
        "peak_memory",
        "device",
        "num_threads",
        "torch",
    } <= record.keys()
    assert err.startswith("bench train: base on ")


def test_the_table_shows_the_results(run, data_dir):
    code, out, err = run("bench", "train", data_dir, *TINY_FLAGS, "--loop", "--log-steps", 1)
    assert code == 0, err
    for word in (
        "target tokens per second",
        "MFU",
        "not padding",
        "peak memory",
        "loop of tfm train",
    ):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("bench", 2, r"Missing command"),
        ("bench nothing", 2, "no such command nothing"),
        ("bench train --foo", 2, "no such option --foo"),
        ("bench train --steps 0", 2, "Invalid value for '--steps'"),
        ("bench train --d-model 7 --num-heads 7", 2, "d_model is 7"),
        ("bench train --patience 3", 2, "patience has no effect on tfm bench train"),
        ("bench train --log-steps 3", 2, "log_steps has no effect .* without --loop"),
        ("bench train nowhere", 2, "nowhere does not exist"),
    ],
)
def test_a_mistake_is_one_line(run, arguments, code, message):
    got, out, err = run(*arguments.split())
    assert (got, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert re.match(f"tfm: {message}", err)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused(run):
    code, out, err = run("bench", "train", "--device", "cuda")
    assert (code, out) == (2, "")
    assert err == "tfm: device is cuda, but torch sees no GPU: use --device cpu\n"


def test_the_benchmark_has_every_setting_of_train():
    group = typer.main.get_command(cli.app)
    train, timed = group.commands["train"], group.commands["bench"].commands["train"]
    panels = {p.name for p in train.params if "Settings" in (p.rich_help_panel or "")}
    assert panels
    assert panels <= {p.name for p in timed.params}
