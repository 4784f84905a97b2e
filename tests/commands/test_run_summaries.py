"""tfm runs: the state of every run below a folder, and the curves of several in one page."""

import json
import os
import re
import shutil
import socket
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch
from html_pages import read_page, rows
from small_models import new_info

from tfm.commands.train import train_model
from tfm.config import run_config, run_toml
from tfm.disk.lock import lock_folder
from tfm.errors import TrainingError, UsageError
from tfm.folders.run_folder import checkpoint_path, checkpoints, record_dataset
from tfm.folders.saving import save_checkpoint
from tfm.training.run_summaries import draw_runs, find_runs, summarize_run


def line(kind, step, **figures):
    return {"kind": kind, "step": step, "epoch": 1, "minutes": step / 100, **figures}


@pytest.fixture
def make_run(tmp_path):
    """Make a run of 1,000 steps at most, with some lines of metrics and a checkpoint."""

    def make(name, *lines, step=None, seed=1, **model):
        run_dir = tmp_path / "runs" / name
        run_dir.mkdir(parents=True)
        settings = run_config(
            "tiny", {"training": {"max_steps": 1_000, "seed": seed}, "model": model}
        )
        (run_dir / "config.toml").write_text(run_toml(settings))
        record_dataset(run_dir, tmp_path / "data")
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
        if step is not None:
            info = replace(new_info(step), run=settings)
            weights = {"a": torch.ones(3, 5)}
            files = {"bpe.model": b"subword"}
            save_checkpoint(checkpoint_path(run_dir, step), info, weights, subword_files=files)
        return run_dir

    return make


def training(step, speed=5000.0):
    figures = {"perplexity": 9.0, "learning_rate": 1e-3, "target_tokens_per_second": speed}
    return line("train", step, **figures)


def validation(step, bleu):
    return line("validation", step, loss=2.0, perplexity=7.0, bleu=bleu)


def hold_lock_elsewhere(run_dir, host="elsewhere"):
    (run_dir / ".lock").write_text(f"process {os.getpid()} on {host}, since 2026-01-01 00:00:00")


# --- what is listed


def test_a_summary_has_step_best_validation_and_newest_speed(make_run):
    lines = [training(50), validation(60, 12.5), training(100, speed=7.0), validation(120, 11.0)]
    found = summarize_run(make_run("a", *lines, step=120))
    assert (found.step, found.max_steps, found.tokens_per_second) == (120, 1_000, 7.0)
    assert (found.metric, found.best, found.best_step) == ("bleu", 12.5, 60)
    noise = summarize_run(make_run("b", validation(60, 0.2), validation(120, 1.0)))
    assert (noise.metric, noise.best, noise.best_step) == ("loss", 2.0, 60)


def test_runs_are_found_at_any_depth_and_through_links_but_once(make_run, tmp_path):
    runs = [make_run("a"), make_run("sweep/b"), make_run("sweep/deep/c")]
    make_run(".hidden")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "runs" / "sweep")
    (tmp_path / "runs" / "notes").mkdir()
    assert find_runs([tmp_path / "runs", runs[0]]) == runs
    assert len(find_runs([tmp_path / "elsewhere"])) == 2


def test_a_folder_that_cannot_be_read_is_named(make_run, tmp_path, monkeypatch, capsys):
    readable, unreadable = make_run("a"), tmp_path / "runs" / "private"
    unreadable.mkdir()
    listed = type(tmp_path).iterdir

    def iterdir(path):
        if path == unreadable:
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(type(tmp_path), "iterdir", iterdir)
    assert find_runs([tmp_path / "runs"]) == [readable]
    assert f"{unreadable} is left out: Permission denied" in capsys.readouterr().err


def test_other_files_named_metrics_do_no_harm(make_run):
    run_dir = make_run("a", {"step": "x"}, {"loss": 1}, [5], "train", {"kind": "train"})
    (run_dir / "config.toml").write_text('[training]\nmax_steps = "x"\nstall_minutes = []\n')
    assert summarize_run(run_dir).step == 0


@pytest.mark.parametrize(
    "setting",
    [
        *(f"max_steps = {value}" for value in ("inf", "-inf", "nan", "1e400", "-5", "true", "'x'")),
        *("max_steps = 99999999999999999999999999", "max_steps = [1]", "stall_minutes = inf"),
        *("max_steps = 5.5", "stall_minutes = {}", "max_steps = ["),
    ],
)
def test_a_run_with_a_wrong_setting_is_listed_with_one_warning(make_run, run, tmp_path, setting):
    good, bad = make_run("good", validation(50, 10.0)), make_run("bad")
    (bad / "config.toml").write_text(f"[training]\n{setting}\n")
    out, err = run.ok("runs", tmp_path / "runs")
    assert err.count("\n") == 1
    assert str(bad / "config.toml") in err
    assert {line.split()[0] for line in out.splitlines()[1:]} == {str(good), str(bad)}
    assert run.ok("runs", good, bad, "--out", tmp_path / "page.html")[1].count("warning") == 1


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.toml"])
def test_a_file_that_cannot_be_read_is_one_warning(make_run, monkeypatch, name):
    run_dir = make_run("a")

    def refuse(path, *arguments, **options):
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return open_(path, *arguments, **options)

    open_ = type(run_dir).open
    monkeypatch.setattr(type(run_dir), "open", refuse)
    assert name in summarize_run(run_dir).problem


# --- states


@pytest.mark.parametrize("state", ["finished", "stopped", "diverged"])
def test_a_run_says_how_it_ended(make_run, state):
    end = {"kind": "end", "step": 100, "state": state}
    assert summarize_run(make_run("a", training(100), end)).state == state


def test_a_killed_run_is_stopped_until_it_reaches_its_last_step(make_run):
    assert summarize_run(make_run("killed", training(999))).state == "stopped"
    assert summarize_run(make_run("older", training(1_000))).state == "finished"


def test_a_run_is_running_while_a_process_holds_its_lock(make_run):
    run_dir = make_run("a", training(100))
    with lock_folder(run_dir):
        assert summarize_run(run_dir).state == "running"
    assert summarize_run(run_dir).state == "stopped"


def test_a_killed_process_is_not_running_whoever_has_its_number_now(make_run):
    run_dir = make_run("a", training(100))
    hold_lock_elsewhere(run_dir, host=socket.gethostname())
    before = (run_dir / ".lock").read_text()
    assert summarize_run(run_dir).state == "stopped"
    assert (run_dir / ".lock").read_text() == before


def test_a_run_on_another_machine_is_running_while_its_metrics_are_young(make_run):
    run_dir = make_run("a", training(1), training(1_000 - 1))  # 9.98 minutes between lines
    hold_lock_elsewhere(run_dir)
    for minutes, state in ((1, "running"), (29, "running"), (31, "stopped")):
        newest = run_dir.stat().st_mtime - 60 * minutes
        os.utime(run_dir / "metrics.jsonl", (newest, newest))
        assert summarize_run(run_dir).state == state


def test_a_run_is_damaged_if_its_newest_checkpoint_is(make_run):
    run_dir = make_run("a", training(100), step=100)
    weights = checkpoint_path(run_dir, 100) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    found = summarize_run(run_dir)
    assert found.state == "damaged"
    assert str(weights) in found.problem


@pytest.mark.parametrize("damage", ["set aside", "description", "settings"])
def test_other_damage_is_named_too(make_run, damage):
    run_dir = make_run("a", training(100), step=100)
    checkpoint = checkpoint_path(run_dir, 100)
    if damage == "set aside":
        checkpoint.rename(checkpoint.with_name(f"damaged-{checkpoint.name}"))
    path = {"description": checkpoint / "config.json", "settings": run_dir / "config.toml"}
    if damage in path:
        path[damage].write_text("}")
    found = summarize_run(run_dir)
    assert found.state == "damaged"
    assert str(path.get(damage, run_dir)) in found.problem


# --- real runs


@pytest.fixture
def short_run(tiny_run):
    def settings(**training):
        return tiny_run(
            training={"max_steps": 4, "checkpoint_steps": 2, "log_steps": 1, **training}
        )

    return settings


def test_training_records_that_it_finished_and_forgets_it_when_it_continues(
    data_dir, short_run, tmp_path
):
    train_model(data_dir, tmp_path / "run", short_run())
    assert summarize_run(tmp_path / "run").state == "finished"
    train_model(data_dir, tmp_path / "run", short_run(max_steps=6))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(each)["kind"] == "end" for each in lines].index(True) == len(lines) - 1


def test_training_records_that_it_diverged(data_dir, short_run, tmp_path, monkeypatch):
    monkeypatch.setattr("tfm.training.trainer.learning_rate", lambda *_: 1e30)
    with pytest.raises(TrainingError):
        train_model(data_dir, tmp_path / "run", short_run(max_steps=100, max_skipped_steps=2))
    assert summarize_run(tmp_path / "run").state == "diverged"


# --- the page


def test_a_page_has_a_curve_for_each_run_and_the_settings_that_differ(make_run, tmp_path):
    both = [validation(50, 10.0), training(100), validation(100, 12.0)]
    runs = [make_run("one/best", *both), make_run("two/best", *both, dropout=0.25)]
    draw_runs([summarize_run(run) for run in runs], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html")
    bleu, loss, _ = (chart.get("aria-label") for chart in [*page.iter("svg")][:3])
    for label in (bleu, loss):
        assert "1 best from" in label
        assert "2 best from" in label
    assert "12 at step 100" in bleu
    table, different = page.iter("table")
    assert [row[0] for row in rows(table)[1:]] == [f"1 {runs[0]}", f"2 {runs[1]}"]
    [(setting, first, second)] = rows(different)[1:]
    assert (setting, second) == ("model.dropout", "0.25")
    assert first != second


def test_a_run_without_bleu_does_not_change_the_colors_of_others(make_run, tmp_path):
    runs = [
        make_run("a", line("validation", 50, perplexity=9.0)),
        make_run("training", validation(50, 1)),
    ]
    draw_runs([summarize_run(run) for run in runs], tmp_path / "page.html")
    bleu, loss = (
        ET.tostring(chart, "unicode") for chart in read_page(tmp_path / "page.html").iter("svg")
    )
    assert "var(--set-1)" not in bleu
    assert "var(--set-1)" in loss
    assert "var(--set-2)" in bleu


def test_runs_of_several_seeds_have_their_mean_and_one_color(make_run, run, tmp_path):
    names = [make_run(f"a-{n}", validation(50, bleu), seed=n) for n, bleu in ((1, 10), (2, 13))]
    names += [make_run("other", validation(50, 20), seed=3, dropout=0.25), make_run("a", seed=4)]
    out, _ = run.ok("runs", tmp_path / "runs")
    assert re.search(r"/a\{,-1,-2\} +3 seeds$", out, re.MULTILINE)  # one has no BLEU yet
    shutil.rmtree(names.pop())
    out, _ = run.ok("runs", *names, "--out", tmp_path / "page.html")
    assert re.search(r"/a-\{1,2\} +2 seeds +BLEU 11\.5 ± 2\.1$", out, re.MULTILINE)
    [group] = json.loads(run.ok("runs", *names, "--json")[0])["groups"]
    assert (group["runs"], group["metric"]) == ([*map(str, names[:2])], "bleu")
    assert (group["mean"], group["deviation"]) == (11.5, pytest.approx(2.1213, abs=1e-4))
    page = read_page(tmp_path / "page.html")
    assert [row[0][:2] for row in rows(next(page.iter("table")))[1:3]] == ["1 ", "2 "]
    bleu = ET.tostring(next(page.iter("svg")), "unicode")
    assert [f"var(--set-{number})" in bleu for number in (1, 2, 3)] == [True, True, False]


def test_more_runs_than_lines_that_differ_are_refused(make_run, tmp_path):
    run = summarize_run(make_run("a"))
    with pytest.raises(UsageError, match="of 1 to 16 runs, not of 17"):
        draw_runs([run] * 17, tmp_path / "page.html")


# --- the command


def test_the_command_lists_runs_newest_first_and_draws_those_that_are_named(
    make_run, run, elsewhere
):
    older, newer = make_run("older", validation(50, 10.0)), make_run("newer")
    os.utime(older / "metrics.jsonl", (1e9, 1e9))
    out, _ = run.ok("runs")
    assert [row.split()[0] for row in out.splitlines()] == ["run", "runs/newer", "runs/older"]
    assert re.search(r"older +stopped +50 of 1,000 +BLEU 10\.0 at 50 .* days$", out, re.MULTILINE)
    assert not (elsewhere / "runs.html").exists()
    out, err = run.ok("runs", older, newer, "--json")
    assert [each["run"] for each in json.loads(out)["runs"]] == [str(newer), str(older)]
    assert err == ""
    assert not (elsewhere / "runs.html").exists()
    assert "runs.html" in run("runs", older, newer)[2]
    run.ok("runs", older, newer)  # again
    (elsewhere / "runs.html").write_text("mine")
    run.fails(2, "runs.html exists and was not written by tfm runs: .* --out", "runs", newer)
    assert (elsewhere / "runs.html").read_text() == "mine"


def test_the_page_replaces_what_a_link_leads_to_and_nothing_else(make_run, run, elsewhere):
    one = make_run("one")
    os.mkfifo(elsewhere / "pipe")
    for name, target in {"link": "page.html", "odd": "pipe", "own": one / "report.html"}.items():
        (elsewhere / name).symlink_to(target)
    run.ok("runs", one, "--out", "link")
    assert "<!doctype html>" in (elsewhere / "page.html").read_text()
    for name in ("odd", "own", "-", "runs"):
        run.fails(2, f".*{name}.*", "runs", one, "--out", name)
    assert all((elsewhere / name).is_symlink() for name in ("link", "odd", "own"))
    assert (elsewhere / "pipe").is_fifo()


def test_without_runs_the_command_says_so(run, elsewhere):
    (elsewhere / "runs").mkdir()
    out, err = run.ok("runs", "--json")
    assert json.loads(out) == {"runs": []}
    assert "none in runs/" in err


def test_a_damaged_run_is_listed_with_what_is_wrong(make_run, run, tmp_path):
    run_dir = make_run("a", training(100), step=100)
    [checkpoint] = checkpoints(run_dir)
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    out, err = run.ok("runs", tmp_path / "runs")
    assert "damaged" in out
    assert f"warning: {checkpoint} holds no model" in err
