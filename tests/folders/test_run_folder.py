"""A run's checkpoints: found, resumed from, kept or removed, and set aside if damaged."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from small_models import new_info

from tfm.errors import CheckpointError, UsageError
from tfm.folders import model_folder, run_folder, saving
from tfm.folders.model_folder import ModelFolder, best_first, open_checkpoints
from tfm.folders.run_folder import (
    check_new_run,
    checkpoint_path,
    checkpoints,
    newest_run,
    record_dataset,
    trained_on,
)
from tfm.folders.saving import (
    last_good_checkpoint,
    newest_intact_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)

STATE = "training.safetensors"


def save(path, info):
    save_checkpoint(
        path,
        info,
        {"a": torch.ones(3)},
        subword_files={"bpe.model": b"subword"},
        training_state={"moment": torch.ones(3)},
    )


def test_checkpoints_are_in_the_order_of_their_steps_after_any_number_of_steps(tmp_path):
    steps = [99_999_999, 100_000_000, 1_000_000_000]
    for step in reversed(steps):
        checkpoint_path(tmp_path, step).mkdir(parents=True)
    assert [path.name for path in checkpoints(tmp_path)] == [f"step-{step}" for step in steps]


@pytest.fixture
def make_run(tmp_path):
    """Make a run whose checkpoints have the given validation losses, by step."""

    def make(losses, **training):
        for step, loss in losses.items():
            metrics = {} if loss is None else {"loss": loss, "bleu": -loss}
            info = new_info(step, metrics, **{"average_last": 1, **training})
            save(checkpoint_path(tmp_path / "run", step), info)
        return tmp_path / "run"

    return make


def steps_of(paths):
    return [ModelFolder(path).info.step for path in paths]


def best(run_dir, metric):
    return [each.path for each in best_first(open_checkpoints(run_dir), metric)]


def test_the_dataset_of_a_run_is_the_recorded_one(make_run):
    run_dir = make_run({1: 1.0})
    assert trained_on(run_dir) is None
    name = "a folder/\udcff"  # a name that is not UTF-8
    record_dataset(run_dir, Path(name))
    assert trained_on(run_dir) == Path(name)


def test_checkpoints_are_ranked_by_quality_then_by_step(make_run):
    run_dir = make_run({1: 3.0, 2: 1.0, 3: 2.0, 4: None, 5: 1.0})
    for metric in ("loss", "score"):
        assert steps_of(best(run_dir, metric)) == [5, 2, 3, 1]


def test_a_checkpoint_with_a_nan_loss_is_never_the_best(make_run):
    run_dir = make_run({1: float("nan"), 2: 3.0, 3: float("nan"), 4: 2.0, 5: float("inf")})
    assert steps_of(best(run_dir, "loss")) == [4, 2, 5]


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [(1, 0, [6, 7]), (2, 1, [2, 4, 6, 7]), (2, 3, [2, 3, 4, 6, 7]), (20, 1, [1, 2, 3, 4, 6, 7])],
)
def test_the_newest_and_the_best_validated_checkpoints_and_the_newest_of_all_are_kept(
    make_run, keep_last, keep_best, kept
):
    losses = {1: 4.0, 2: 1.0, 3: 2.0, 4: 3.0, 5: None, 6: 2.5, 7: None}
    run_dir = make_run(losses, keep_last=keep_last, keep_best=keep_best, best_metric="loss")
    prune_checkpoints(run_dir)
    assert steps_of(checkpoints(run_dir)) == kept
    assert len(list((run_dir / "checkpoints").iterdir())) == len(kept)
    with_state = [path for path in checkpoints(run_dir) if (path / STATE).exists()]
    assert steps_of(with_state) == kept[-2:]
    assert all(ModelFolder(path).weights() for path in checkpoints(run_dir))


def test_pruning_removes_leftovers_of_a_killed_run(make_run):
    run_dir = make_run({1: 2.0, 2: 1.0}, keep_last=1, keep_best=0)
    for name in (".step-00000001.removed", ".step-00000003.123.partial"):
        leftover = run_dir / "checkpoints" / name
        leftover.mkdir()
        (leftover / "model.safetensors").touch()
    prune_checkpoints(run_dir)
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-00000002"]


def test_the_model_of_a_run_is_its_average_or_best_or_newest_checkpoint(make_run):
    run_dir = make_run({1: None, 2: None}, best_metric="loss")
    assert ModelFolder.open(run_dir).path.name == "step-00000002"
    make_run({3: 1.0, 4: 2.0}, best_metric="loss")
    assert ModelFolder.open(run_dir).path.name == "step-00000003"
    save(run_dir / "averaged", new_info(4, {}))
    assert ModelFolder.open(run_dir).path.name == "averaged"
    assert ModelFolder.open(run_dir / "averaged").path == run_dir / "averaged"
    with pytest.raises(CheckpointError, match="not a run or model folder"):
        ModelFolder.open(run_dir / "checkpoints")
    with pytest.raises(UsageError, match="nowhere does not exist: check its name"):
        ModelFolder.open(run_dir / "nowhere")


def test_the_current_folder_may_be_a_run(make_run, monkeypatch):
    run_dir = make_run({1: None}, best_metric="loss")
    monkeypatch.chdir(run_dir)
    assert ModelFolder.open(Path()).path.samefile(run_dir / "checkpoints" / "step-00000001")
    monkeypatch.chdir("checkpoints/step-00000001")
    assert ModelFolder.open(Path()).path == Path()


def test_an_average_older_than_the_newest_checkpoint_is_passed_over_with_a_warning(
    make_run, capsys
):
    run_dir = make_run({1: 1.0, 2: 2.0}, best_metric="loss")
    save(run_dir / "averaged", new_info(2, {}))
    assert ModelFolder.open(run_dir).path.name == "averaged"
    assert not capsys.readouterr().err
    make_run({3: 0.5}, best_metric="loss")
    assert ModelFolder.open(run_dir).path.name == "step-00000003"
    said = capsys.readouterr().err
    assert "averaged is older than the newest checkpoint: using" in said
    assert said.count("\n") == 1
    assert ModelFolder.open(run_dir / "averaged").path.name == "averaged"


@pytest.mark.parametrize(
    ("losses", "metric", "chosen", "reason"),
    [
        ({1: 2.0, 2: 1.0, 3: 3.0}, "loss", 2, "loss; step-00000003 has a worse loss"),
        ({1: 2.0, 2: 1.0, 3: None}, "score", 2, "loss; step-00000003 was not validated"),
        ({1: -2.0, 2: -3.0, 3: -1.0}, "score", 2, "score; step-00000003 has a worse score"),
        ({1: 2.0, 2: 1.0}, "loss", 2, None),
    ],
)
def test_the_reason_is_given_if_another_checkpoint_than_the_newest_is_used(
    make_run, capsys, losses, metric, chosen, reason
):
    run_dir = make_run(losses, best_metric=metric)
    assert ModelFolder.open(run_dir).path == checkpoint_path(run_dir, chosen)
    expected = f"{run_dir}: using step-{chosen:08d}, the best by validation {reason}\n"
    assert capsys.readouterr().err == (expected if reason else "")


@pytest.mark.parametrize(
    ("losses", "before", "good"),
    [
        ({1: None, 2: None, 3: None}, 3, 2),
        ({1: None, 2: 5.0, 3: None}, 1, 2),
        ({1: None, 2: float("nan"), 3: float("inf")}, 2, 1),
        ({}, 9, None),
    ],
)
def test_a_checkpoint_is_good_if_it_was_validated_or_training_continued(
    make_run, tmp_path, losses, before, good
):
    make_run(losses)
    expected = None if good is None else checkpoint_path(tmp_path / "run", good)
    assert last_good_checkpoint(tmp_path / "run", before=before) == expected


def test_the_newest_run_is_the_last_written_one(make_run, tmp_path):
    with pytest.raises(CheckpointError, match="holds no run with a checkpoint"):
        newest_run(tmp_path)
    first = make_run({1: 1.0})
    shutil.copytree(first, tmp_path / "second", copy_function=shutil.copyfile)
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    assert newest_run(tmp_path) == tmp_path / "second"


def damage(path, name):
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)


def folder_names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("name", "change"),
    [("model.safetensors", "damage"), (STATE, "remove"), ("bpe.model", "truncate")],
)
def test_a_damaged_checkpoint_is_named_and_set_aside_and_the_previous_one_is_used(
    make_run, capsys, name, change
):
    run_dir = make_run({1: 1.0, 2: 1.0, 3: 1.0})
    newest = checkpoint_path(run_dir, 3)
    if change == "damage":
        damage(newest, name)
    elif change == "truncate":
        (newest / name).write_bytes((newest / name).read_bytes()[:-2])
    else:
        (newest / name).unlink()
    assert newest_intact_checkpoint(run_dir) == checkpoint_path(run_dir, 2)
    assert folder_names(run_dir) == ["damaged-step-00000003", "step-00000001", "step-00000002"]
    error = capsys.readouterr().err
    assert str(newest) in error
    assert name in error
    assert "set aside as damaged-step-00000003" in error
    assert error.count("\n") == 1


def test_a_run_with_only_damaged_checkpoints_does_not_start_from_scratch(make_run):
    run_dir = make_run({1: 1.0, 2: 1.0})
    for path in checkpoints(run_dir):
        damage(path, "model.safetensors")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"has only damaged checkpoints: remove .*, or"):
            newest_intact_checkpoint(run_dir)


def test_a_run_does_not_resume_from_a_checkpoint_without_state(make_run):
    run_dir = make_run({1: 1.0, 2: 1.0, 3: 1.0})
    prune_checkpoints(run_dir)
    for step in (2, 3):
        damage(checkpoint_path(run_dir, step), STATE)
    with pytest.raises(CheckpointError, match=r"newest intact .*step-00000001, has no train"):
        newest_intact_checkpoint(run_dir)
    assert ModelFolder.open(run_dir).path == checkpoint_path(run_dir, 1)


def test_a_checkpoint_that_cannot_be_read_is_not_set_aside(make_run, monkeypatch):
    def fail(path, **_):
        raise CheckpointError(f"cannot read {path}: Permission denied")

    run_dir = make_run({1: 1.0, 2: 1.0})
    monkeypatch.setattr(saving, "ModelFolder", fail)
    with pytest.raises(CheckpointError, match="Permission denied"):
        newest_intact_checkpoint(run_dir)
    assert folder_names(run_dir) == ["step-00000001", "step-00000002"]


def test_damaged_checkpoints_are_never_removed(make_run):
    run_dir = make_run({1: 1.0, 2: 1.0, 3: 1.0}, keep_last=1, keep_best=0)
    damage(checkpoint_path(run_dir, 3), "model.safetensors")
    newest_intact_checkpoint(run_dir)
    prune_checkpoints(run_dir)
    assert folder_names(run_dir) == ["damaged-step-00000003", "step-00000002"]


def test_readers_report_damage_and_rename_nothing(make_run):
    run_dir = make_run({1: 1.0, 2: 2.0})
    damage(checkpoint_path(run_dir, 1), "config.json")
    for read in (ModelFolder.open, open_checkpoints):
        with pytest.raises(CheckpointError, match=r"step-00000001/config\.json: it is damaged"):
            read(run_dir)
    assert folder_names(run_dir) == ["step-00000001", "step-00000002"]


def test_a_checkpoint_removed_during_the_search_is_ignored(make_run, monkeypatch):
    run_dir = make_run({1: 1.0, 2: 2.0})
    present = checkpoints(run_dir)
    shutil.rmtree(present[0])
    for module in (model_folder, run_folder):
        monkeypatch.setattr(module, "checkpoints", lambda _: present)
    assert best(run_dir, "loss") == present[1:]
    assert newest_run(run_dir.parent) == run_dir


def test_an_interrupted_replacement_leaves_the_older_average(make_run):
    run_dir = make_run({1: 1.0})
    save(run_dir / ".averaged.old", new_info(7, {}))
    assert ModelFolder.open(run_dir).info.step == 7
    assert ModelFolder.open(run_dir / "averaged").info.step == 7


def test_an_interrupted_replacement_of_a_checkpoint_is_undone(make_run):
    run_dir = make_run({1: 1.0, 2: 2.0})
    path = checkpoint_path(run_dir, 2)
    path.rename(path.with_name(f".{path.name}.old"))
    assert newest_intact_checkpoint(run_dir) == path


def test_pruning_a_link_to_a_checkpoint_keeps_its_target(make_run, tmp_path):
    run_dir = make_run({1: 1.0, 2: 1.0}, keep_last=1, keep_best=0)
    path = checkpoint_path(run_dir, 1)
    path.rename(tmp_path / "archive")
    path.symlink_to(tmp_path / "archive")
    prune_checkpoints(run_dir)
    assert folder_names(run_dir) == ["step-00000002"]
    assert json.loads((tmp_path / "archive" / "config.json").read_text())["step"] == 1


def test_a_new_run_does_not_replace_files_of_others(tmp_path):
    check_new_run(tmp_path / "missing")
    (tmp_path / "test.de").touch()
    check_new_run(tmp_path)
    for name in ("metrics.jsonl", "report.html", "averaged"):
        (tmp_path / name).touch()
        with pytest.raises(UsageError, match=f"{name} exists, but .* is no run"):
            check_new_run(tmp_path)
        (tmp_path / "config.toml").touch()  # of a run that has started
        check_new_run(tmp_path)
        (tmp_path / "config.toml").unlink()
        (tmp_path / name).unlink()
