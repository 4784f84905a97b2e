"""tfm train --run: an existing run resumes with its own settings and dataset."""

import shutil

import pytest

from tfm.config import read_toml
from tfm.disk.files import read_json
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints, newest_step, trained_on
from tfm.training.loop import TrainingRun

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def run_dir(trained_run, tmp_path):
    """A run of 12 steps, away from its dataset."""
    return shutil.copytree(trained_run, tmp_path / "mine")


def test_a_run_resumes_with_its_own_settings_and_dataset(run, run_dir, data_dir):
    shutil.rmtree(checkpoints(run_dir)[-1])
    out, err = run.ok("train", "--run", run_dir)
    assert out == ""
    assert f"train: resuming {run_dir} at step 8" in err
    assert f"train: {run_dir} on {data_dir}, " in err
    assert newest_step(run_dir) == 12


def test_a_run_that_was_killed_before_its_first_checkpoint_resumes_on_its_dataset(
    run, trained_run, data_dir, tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(TrainingRun, "loop", lambda self: None)
        settings = ("--config", trained_run / "config.toml")
        run.ok("train", data_dir, "--run", "mine", *settings)
    assert checkpoints(tmp_path / "mine") == []
    shutil.copytree(data_dir, tmp_path / "data" / "newer")
    _, err = run.ok("train", "--run", "mine", "--max-steps", 2)
    assert f"train: mine on {data_dir}, " in err


def test_a_run_resumes_on_the_dataset_that_it_was_last_trained_on(
    run, run_dir, data_dir, tmp_path, monkeypatch
):
    moved = shutil.copytree(data_dir, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    run.ok("train", "moved", "--run", run_dir, "--max-steps", 13)
    assert read_json(run_dir / "data.json") == {"format": 1, "data_dir": "moved"}
    shutil.rmtree(moved)
    message = f"{run_dir} was trained on moved, which does not exist here: .*"
    run.fails(1, message, "train", "--run", run_dir)


def test_a_damaged_record_of_the_dataset_is_one_line(run, run_dir, data_dir):
    (run_dir / "data.json").write_text("{")
    message = f"{run_dir}/data.json is damaged .*: name the dataset .* DATA --run {run_dir}"
    run.fails(1, message, "train", "--run", run_dir)
    run.ok("train", data_dir, "--run", run_dir)
    assert trained_on(run_dir) == data_dir


def test_flags_take_precedence_over_the_settings_of_the_run(run, run_dir):
    run.ok("train", "--run", run_dir, "--max-steps", 13)
    assert newest_step(run_dir) == 13
    before, after = (ModelFolder(path).info.run for path in checkpoints(run_dir)[-2:])
    assert (before.model, before.optimizer) == (after.model, after.optimizer)
    assert read_toml(run_dir / "config.toml")["training"]["max_steps"] == 13


def test_a_run_whose_settings_were_cut_off_is_not_resumed_with_defaults(run, run_dir):
    path = run_dir / "config.toml"
    path.write_text(path.read_text(encoding="utf-8").partition("average_last")[0], encoding="utf-8")
    before = path.read_bytes()
    message = (
        f"{path} lacks average_last, average, validation_beam, .* of {checkpoints(run_dir)[-1]}: .*"
    )
    run.fails(2, message, "train", "--run", run_dir, "--max-steps", 13)
    assert path.read_bytes() == before


def test_a_run_without_its_file_of_settings_takes_those_of_its_newest_checkpoint(run, run_dir):
    before = read_toml(run_dir / "config.toml")
    (run_dir / "config.toml").unlink()
    run.ok("train", "--run", run_dir, "--max-steps", 13)
    after = read_toml(run_dir / "config.toml")
    assert after.pop("training") == {**before.pop("training"), "max_steps": 13}
    assert after == before


def test_the_settings_of_a_run_are_printed_without_a_dataset(run, run_dir):
    config = (run_dir / "config.toml").read_text(encoding="utf-8")
    assert run("train", "--run", run_dir, "--print-config") == (0, config, "")


def test_fewer_steps_than_the_run_has_made_are_refused(run, run_dir):
    before = (run_dir / "config.toml").read_bytes()
    message = f"--max-steps 1 is below step 12, at which {run_dir} is: set a larger one to continue"
    code, out, err = run("train", "--run", run_dir, "--max-steps", 1, "--average")
    assert (code, out, err.splitlines()[-1]) == (2, "", f"tfm: {message}")
    assert (run_dir / "config.toml").read_bytes() == before
    assert not (run_dir / "averaged").exists()


def test_the_next_command_is_named_only_if_it_will_work(run, run_dir, data_dir, tmp_path):
    """It needs a model that has learned, and a test set or an input."""
    learning = ("--learning-rate", 0.01, "--warmup-steps", 4, "--max-steps", 12, "--arch", "tiny")
    small = ("--d-model", 16, "--d-ff", 32, "--num-heads", 2, "--num-encoder-layers", 1,
             "--num-decoder-layers", 1, "--device", "cpu", "--precision", "fp32",
             "--validation-beam", 0, "--best-metric", "loss", "--batch-tokens", 600)  # fmt: skip
    no_test_dir = shutil.copytree(data_dir, tmp_path / "no_test")
    for path in no_test_dir.glob("test.*"):
        path.unlink()
    new = tmp_path / "new"
    _, err = run.ok("train", no_test_dir, "--run", new, *small, *learning)
    assert err.splitlines()[-1] == f"next: tfm generate {new} --input -"
    _, err = run.ok("train", data_dir, "--run", new, "--max-steps", 13, "--no-average")
    assert err.splitlines()[-1] == f"next: tfm average {new}"
    _, err = run.ok("train", data_dir, "--run", tmp_path / "other", *small, "--max-steps", 1)
    assert "warning: the model has not learned" in err
    assert "next:" not in err


def test_a_run_without_a_step_names_no_next_command(run, data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingRun, "_is_out_of_time", lambda _: True)
    flags = ("--arch", "tiny", "--device", "cpu", "--max-minutes", 1)
    _, err = run.ok("train", data_dir, "--run", tmp_path / "new", *flags)
    assert err.splitlines()[-1] == (
        f"train: {tmp_path / 'new'} has reached --max-minutes 1, counted over the whole run before "
        "its first step: set more to continue"
    )
