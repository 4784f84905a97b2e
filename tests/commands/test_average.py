"""tfm average: the selection of checkpoints and their mean."""

import math
import shutil
from dataclasses import replace

import pytest
import torch

from tfm.commands.average import average
from tfm.commands.translator import Translator
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.folders.model_folder import ModelFolder, best_first, open_checkpoints
from tfm.folders.run_folder import checkpoint_path, checkpoints
from tfm.folders.saving import save_checkpoint
from tfm.training import averaging
from tfm.vocabulary.subword import Vocabulary


@pytest.fixture
def run_dir(trained_run, tmp_path):
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.fixture
def long_run(run_dir):
    """Return the run with its three checkpoints at steps 104, 108 and 112."""
    for path in checkpoints(run_dir):
        save_again(path, ModelFolder(path).info.step + 100)
    return run_dir


def save_again(path, step, **changes):
    """Replace a checkpoint by one at another step."""
    info, weights, bpe = (
        ModelFolder(path).info,
        ModelFolder(path).weights(),
        (path / "bpe.model").read_bytes(),
    )
    shutil.rmtree(path)
    save_checkpoint(
        checkpoint_path(path.parents[1], step),
        replace(info, step=step, **changes),
        weights,
        subword_files={"bpe.model": bpe},
    )


def test_the_average_is_the_mean_of_the_newest_checkpoints(run_dir):
    result = average(run_dir, last=3)
    assert (result.model_dir, result.steps) == (run_dir / "averaged", [4, 8, 12])
    weights = [ModelFolder(path).weights() for path in checkpoints(run_dir)]
    for name, tensor in ModelFolder(result.model_dir).weights().items():
        mean = sum(each[name].double() for each in weights) / 3
        torch.testing.assert_close(tensor, mean.float(), rtol=0, atol=0)


def test_the_default_number_is_that_of_the_run(long_run):
    assert average(long_run).steps == [108, 112]


@pytest.mark.parametrize(("step", "averaged"), [(10, [10, 12]), (9, [12])])
def test_by_default_only_the_last_fifth_of_the_steps_is_averaged(run_dir, step, averaged):
    save_again(checkpoint_path(run_dir, 8), step)
    assert average(run_dir).steps == averaged
    assert average(run_dir, last=2).steps == [step, 12]


def test_a_run_that_was_stopped_and_resumed_has_the_average_of_an_uninterrupted_run(long_run):
    _, before, newest = checkpoints(long_run)
    save_checkpoint(  # as when a signal stops the training
        checkpoint_path(long_run, 110),
        replace(ModelFolder(before).info, step=110, metrics={}),
        ModelFolder(before).weights(),
        subword_files={},
    )
    assert len(checkpoints(long_run)) == 4
    assert average(long_run).steps == [108, 112]
    shutil.rmtree(newest)
    result = average(long_run)
    assert (result.steps, ModelFolder(result.model_dir).info.step) == ([104, 108], 110)
    assert "steps 104, 108; step 110 is left out" in str(result)


def test_the_best_checkpoints_are_chosen_by_the_metric_of_the_run(run_dir):
    best = best_first(open_checkpoints(run_dir), "loss")[:2]
    expected = sorted(each.info.step for each in best)
    result = average(run_dir, best=2)
    assert result.steps == expected
    assert (
        ModelFolder(result.model_dir).info.step == ModelFolder(checkpoints(run_dir)[-1]).info.step
    )


def test_an_average_is_a_complete_model_without_training_state(run_dir):
    model_dir = average(run_dir).model_dir
    assert sorted(path.name for path in model_dir.iterdir()) == [
        "bpe.model", "config.json", "model.safetensors",
    ]  # fmt: skip
    info = ModelFolder(model_dir).info
    assert (info.step, info.averaged, info.metrics) == (12, (12,), {})
    assert len(Translator.load(run_dir, device="cpu").translate(["seven"])) == 1


def test_more_checkpoints_than_exist_are_refused(run_dir):
    with pytest.raises(UsageError, match=r"--(last|best) 4 is more than the checkpoints in .*: 3"):
        average(run_dir, last=4)


@pytest.fixture
def with_validation_text(run_dir, data_dir, tmp_path):
    """The run, with a validation split of 100 lines."""
    folder = shutil.copytree(data_dir, tmp_path / "data")
    for language in ("en", "de"):
        lines = (data_dir / f"train.{language}").read_text().splitlines(keepends=True)[:100]
        (folder / f"valid.{language}").write_text("".join(lines) + "\n")
    for path in checkpoints(run_dir):
        save_again(path, ModelFolder(path).info.step, data_dir=str(folder), search={"beam_size": 2})
    return run_dir


def test_a_calibrated_average_has_a_confidence_that_grows_with_the_probability(
    with_validation_text,
):
    plain = average(with_validation_text)
    weights = {name: each.clone() for name, each in ModelFolder(plain.model_dir).weights().items()}
    translator = Translator.load(plain.model_dir, device="cpu")
    assert [best.confidence for [best] in translator.search(["seven"])] == [None]

    result = average(with_validation_text, calibrate=True)
    assert result.calibrated_on == ModelFolder(result.model_dir).info.calibration.num_lines == 100
    assert str(result).endswith(", calibrated on 100 lines")
    calibrated = ModelFolder(result.model_dir).weights()
    assert all(torch.equal(calibrated[name], each) for name, each in weights.items())
    translator = Translator.load(result.model_dir, device="cpu")
    lines = ["seven", "on Monday", "today is the third of May", ""]
    found = [best for [best] in translator.search(lines, length_penalty=1.0)]
    assert found[-1].confidence is None  # an empty line
    ranked = sorted(found[:-1], key=log_prob_per_token)
    confidences = [each.confidence for each in ranked]
    assert confidences == sorted(confidences)
    assert 0 <= confidences[0] <= confidences[-1] <= 1
    [[sample]] = translator.search(["seven"], search="sample")
    assert sample.confidence is None
    ensemble = Translator.load(result.model_dir, result.model_dir, device="cpu")
    [[together]] = ensemble.search(["seven"])
    assert together.confidence is None


def log_prob_per_token(found):
    """Return the log probability per token of a translation with length penalty 1."""
    return found.log_prob / (6 * found.log_prob / found.score - 5)


def test_calibrating_is_refused_before_anything_is_written(run_dir, with_validation_text):
    for path in checkpoints(run_dir):
        save_again(path, ModelFolder(path).info.step, task="parsing")
    with pytest.raises(UsageError, match="trains a parser"):
        average(run_dir, calibrate=True)
    assert not (run_dir / "averaged").exists()


def test_calibrating_on_a_few_lines_is_refused(run_dir):
    with pytest.raises(DataError, match="has 12 lines, but calibrating takes at least 100"):
        average(run_dir, calibrate=True)
    assert not (run_dir / "averaged").exists()


def test_a_checkpoint_is_never_replaced_but_an_older_average_is(run_dir, tmp_path):
    checkpoint = checkpoints(run_dir)[0]
    before = ModelFolder(checkpoint).info
    with pytest.raises(UsageError, match="is no average: choose another folder with --out"):
        average(run_dir, out=checkpoint)
    assert ModelFolder(checkpoint).info == before
    for last in (1, 2):
        average(run_dir, last=last, out=tmp_path / "mean")
    assert len(ModelFolder(tmp_path / "mean").info.averaged) == 2


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_average_keeps_the_files_that_others_put_there(run_dir, is_damaged):
    averaged = average(run_dir, last=1).model_dir
    (averaged / "terms.tsv").write_bytes(b"mine")
    (averaged / "notes").mkdir()
    (averaged / "notes" / "x").write_text("mine")
    if is_damaged:
        (averaged / "config.json").write_text("{")
    average(run_dir, last=2)
    assert len(ModelFolder(averaged).info.averaged) == 2
    assert (averaged / "terms.tsv").read_bytes() == b"mine"
    assert (averaged / "notes" / "x").read_text() == "mine"


def test_what_is_no_average_stays_in_its_place(run_dir):
    averaged = run_dir / "averaged"
    shutil.copytree(checkpoints(run_dir)[0], averaged)
    for content in ((averaged / "config.json").read_text(), '{"model_type": "marian"}'):
        (averaged / "config.json").write_text(content)
        with pytest.raises(UsageError, match="exists and is no average"):
            average(run_dir)
        assert (averaged / "config.json").read_text() == content


def test_a_damaged_checkpoint_is_named(run_dir):
    newest = checkpoints(run_dir)[-1] / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"step-00000012/model\.safetensors: it is damaged"):
        average(run_dir)
    assert not (run_dir / "averaged").exists()


def test_checkpoints_removed_by_the_run_meanwhile_are_reported(run_dir, monkeypatch):
    listed = open_checkpoints(run_dir)
    monkeypatch.setattr(averaging, "open_checkpoints", lambda _: listed)
    shutil.rmtree(listed[0].path)
    with pytest.raises(CheckpointError, match="step-00000004 was removed while it was read"):
        average(run_dir, last=3)
    assert average(run_dir, last=2).steps == [8, 12]


def test_checkpoints_of_a_training_that_diverged_are_not_averaged(run_dir):
    newest = checkpoints(run_dir)[-1]
    weights = {
        name: weight.fill_(math.nan) for name, weight in ModelFolder(newest).weights().items()
    }
    files = Vocabulary.load(newest).files()
    save_checkpoint(newest, ModelFolder(newest).info, weights, subword_files=files)
    with pytest.raises(CheckpointError, match=r"step-00000012 is not finite: training diverged"):
        average(run_dir, last=2)
    assert not (run_dir / "averaged").exists()
