"""Training that starts from a model: tfm train --from, --freeze, --also-valid."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import metrics_of, number_pairs, same_weights

from tfm.commands.average import average
from tfm.commands.train import TrainingPlan, train_model
from tfm.config import adapting_table, read_toml, run_config
from tfm.errors import CheckpointError, UsageError
from tfm.folders.model_folder import ModelFolder, best_first, open_checkpoints
from tfm.folders.run_folder import checkpoints
from tfm.model.build import part_of_model
from tfm.vocabulary.subword import Vocabulary

# Of the test runs, whose checkpoints are few and small.
FEW_STEPS = {"max_steps": 4, "checkpoint_steps": 2, "log_steps": 2}


@pytest.fixture(scope="module")
def other_data(tmp_path_factory, data_dir, make_dataset):
    """Another dataset with the subwords of the first."""
    splits = {}
    for split, size in (("train", 60), ("valid", 8)):
        pairs = number_pairs(split, num_pairs=size, seed=7)
        splits[split] = [(source.upper(), target.upper()) for source, target in pairs]
    folder = tmp_path_factory.mktemp("data") / "other"
    return make_dataset(folder, splits, subwords=(str(data_dir),))


def settings(start, **changes):
    """The settings of a run that starts from a model, with few steps."""
    training = {**FEW_STEPS, **changes.pop("training", {})}
    plan = TrainingPlan(settings={"training": training, **changes}, from_model=start)
    return plan.merged(None)


@pytest.fixture(scope="module")
def start(trained_run, tmp_path_factory):
    """A model folder to start from."""
    out_dir = tmp_path_factory.mktemp("models") / "average"
    return average(trained_run, last=2, out=out_dir).model_dir


@pytest.fixture(scope="module")
def adapted(start, data_dir, other_data, tmp_path_factory):
    """A run that was adapted, with the other dataset as a further validation set."""
    run_dir = tmp_path_factory.mktemp("runs") / "adapted"
    changes = {"also_valid": [f"general={data_dir}"], "best_metric": "general:loss"}
    train_model(other_data, run_dir, settings(start, training=changes))
    return run_dir


def validations(run_dir):
    return metrics_of(run_dir, "validation")


def test_training_starts_with_the_weights_of_the_model(start, other_data, tmp_path):
    frozen = {"optimizer": {"learning_rate": 0.0}}
    train_model(other_data, tmp_path / "run", settings(start, **frozen))
    assert same_weights(start, tmp_path / "run")


def test_the_model_is_that_of_the_start_and_the_rest_suits_adapting(start, trained_run):
    run, before = settings(start), ModelFolder(start).info.run
    assert run.model == before.model
    assert run.optimizer.learning_rate == adapting_table(before)["optimizer"]["learning_rate"]
    assert 0 < run.optimizer.learning_rate < (run.model.d_model * 4000) ** -0.5
    assert run.optimizer.warmup_steps < 100
    assert settings(start, optimizer={"warmup_steps": 7}).optimizer.warmup_steps == 7
    assert settings(start, model={"dropout": 0.4}).model.dropout == 0.4
    assert run.training.max_epochs is None  # max_steps is set
    assert TrainingPlan(from_model=start).merged(None).training.max_epochs is not None
    with pytest.raises(UsageError, match="has arch base, not big: leave arch big out"):
        TrainingPlan(from_model=start, arch="big").merged(None)
    assert TrainingPlan().run_dir(Path("data/x"), run).name == f"x-{start.name}-adapted"
    in_run = replace(run, from_model=str(checkpoints(trained_run)[-1]))
    assert TrainingPlan().run_dir(Path(), in_run).name == f"{Path.cwd().name}-base-adapted"


def test_each_validation_has_all_sets_from_before_the_first_step_on(adapted):
    found = validations(adapted)
    assert [line["step"] for line in found] == [0, 2, 4]
    assert all({"loss", "general:loss", "general:perplexity"} <= line.keys() for line in found)
    assert found[0]["loss"] > found[-1]["loss"]  # it learns the one
    assert found[0]["general:loss"] != found[0]["loss"]


def test_a_further_set_gives_the_metrics_that_training_on_it_gives(
    adapted, start, data_dir, tmp_path
):
    train_model(data_dir, tmp_path / "run", settings(start))
    assert validations(tmp_path / "run")[0]["loss"] == validations(adapted)[0]["general:loss"]


def test_checkpoints_are_ranked_by_the_metric_of_a_further_set(adapted):
    infos = [each.info for each in best_first(open_checkpoints(adapted), "general:loss")]
    losses = [info.metrics["general:loss"] for info in infos]
    assert losses == sorted(losses)
    assert infos[0].quality("general:loss") == -losses[0]
    assert infos[0].quality("other:loss") is None


def test_a_model_names_its_ancestors_through_several_generations(
    adapted, start, trained_run, data_dir, other_data, tmp_path
):
    [first] = ModelFolder(checkpoints(adapted)[-1]).info.ancestors
    assert (first.path, first.data_dir) == (str(start), str(data_dir))
    assert (first.step, len(first.sha256)) == (12, 64)
    train_model(data_dir, tmp_path / "again", settings(adapted))
    grandchild = average(tmp_path / "again").model_dir
    ancestors = ModelFolder(grandchild).info.ancestors
    assert [each.data_dir for each in ancestors] == [str(data_dir), str(other_data)]
    assert ancestors[0] == first


def test_a_run_resumes_without_naming_its_start(adapted, start, other_data, tmp_path):
    """Even when the model that it started from is gone."""
    copy = shutil.copytree(adapted, tmp_path / "run")
    moved = shutil.copytree(start, tmp_path / "start")
    changes = read_toml(copy / "config.toml")
    train_model(other_data, tmp_path / "short", settings(moved, training={"max_steps": 2}))
    shutil.rmtree(moved)
    plan = TrainingPlan(run=tmp_path / "short", settings={"training": {"max_steps": 4}})
    train_model(other_data, tmp_path / "short", plan.merged(other_data))
    assert same_weights(tmp_path / "short", copy)
    assert changes["from_model"] == str(start)
    [ancestor] = ModelFolder(checkpoints(tmp_path / "short")[-1]).info.ancestors
    assert ancestor.path == str(moved)


def test_another_start_is_refused_on_resume(adapted, start, trained_run):
    def resume(run, given):
        return TrainingPlan(run=run, from_model=given).merged(None)

    assert resume(adapted, start).from_model == str(start)
    with pytest.raises(UsageError, match=r"was started from .*, not from .*leave out --from"):
        resume(adapted, trained_run)
    with pytest.raises(UsageError, match="was started from scratch"):
        resume(trained_run, start)


def test_a_run_that_never_saved_starts_from_its_model_again(start, other_data, tmp_path):
    run_dir = tmp_path / "run"
    train_model(other_data, run_dir, settings(start))
    expected = shutil.move(checkpoints(run_dir)[-1], tmp_path / "expected")
    shutil.rmtree(run_dir / "checkpoints")
    train_model(other_data, run_dir, TrainingPlan(run=run_dir).merged(other_data))
    assert same_weights(run_dir, expected)
    assert [line["step"] for line in validations(run_dir)] == [0, 2, 4]


@pytest.mark.parametrize(
    ("parts", "kernels"), [(["decoder"], "plain"), (["encoder", "embeddings"], "auto")]
)
def test_frozen_parts_keep_their_weights_and_the_others_change(
    start, other_data, tmp_path, parts, kernels
):
    changes = {"optimizer": {"freeze": parts}, "training": {"kernels": kernels}}
    train_model(other_data, tmp_path / "run", settings(start, **changes))
    newest = checkpoints(tmp_path / "run")[-1]
    before, after = ModelFolder(start).weights(), ModelFolder(newest).weights()
    is_frozen = {name: part_of_model(name).startswith(tuple(parts)) for name in before}
    assert {name: torch.equal(before[name], after[name]) for name in before} == is_frozen
    moments = ModelFolder(newest).training_state()["trainer"]["moments"]
    assert set(moments) == {name for name, frozen in is_frozen.items() if not frozen}


def test_a_frozen_run_resumed_equals_an_uninterrupted_one(start, other_data, tmp_path):
    optimizer = {"freeze": ["decoder"], "ema": 0.9}
    for name, stops in (("one", [4]), ("two", [2, 4])):
        for stop in stops:
            run = settings(start, optimizer=optimizer, training={"max_steps": stop})
            train_model(other_data, tmp_path / name, run)
    assert same_weights(tmp_path / "one", tmp_path / "two")


def refusal(data, run, run_dir):
    with pytest.raises((UsageError, CheckpointError)) as refused:
        train_model(data, run_dir, run)
    assert not run_dir.exists()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_other_models_are_refused_before_anything_is_written(
    start, make_model, data_dir, separate_data_dir, tmp_path
):
    message = refusal(separate_data_dir, settings(start, model={}), tmp_path / "run")
    assert "has other subwords" in message
    other = settings(make_model(tied_embeddings="two-way"))
    assert "has other subwords" in refusal(data_dir, other, tmp_path / "run")
    parser = settings(make_model(task="parsing"))
    assert "is a model for parsing" in refusal(data_dir, parser, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"d_model": 64}}, "has d_model 16, not 64: only dropout may differ"),
        ({"model": {"tied_embeddings": "none"}}, "has tied_embeddings three-way, not none"),
        ({"training": 5}, "unknown section 'training': write its settings under"),
        ({"optimizer": {"freeze": ["encoder", "decoder", "embeddings"]}}, "nothing is trained"),
    ],
)
def test_another_shape_and_everything_frozen_are_refused(start, changes, message):
    with pytest.raises(UsageError, match=message) as refused:
        TrainingPlan(settings=changes, from_model=start).merged(None)
    assert "\n" not in str(refused.value)


def test_freezing_needs_a_start(data_dir, tiny_run, tmp_path):
    message = refusal(data_dir, tiny_run(optimizer={"freeze": ["encoder"]}), tmp_path / "run")
    assert "freeze has no effect without --from" in message


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"best_metric": "general:loss"}, "also_valid has no set general"),
        ({"also_valid": ["a=x", "a=y"]}, "two sets of the name a"),
        ({"also_valid": ["x"]}, "must be NAME=DATA, such as general=data/general"),
        ({"best_metric": "bleu"}, "must be loss, score or command, or NAME:loss"),
        ({"license": ""}, "must be 1 to 100 letters, .*, such as CC-BY-4.0"),
        ({"also_valid": ["a=x"], "best_metric": "a:score", "validation_beam": 0}, "computes none"),
    ],
)
def test_sets_without_sense_are_refused(training, message):
    with pytest.raises(UsageError, match=message):
        run_config("base", {"training": training})


def test_a_further_set_with_other_subwords_is_refused(
    data_dir, separate_data_dir, tiny_run, tmp_path
):
    run = tiny_run(training={"also_valid": [f"x={separate_data_dir}"]})
    assert "has other subwords" in refusal(data_dir, run, tmp_path / "run")
    run = tiny_run(training={"also_valid": ["x=nowhere"]})
    assert "nowhere does not exist" in refusal(data_dir, run, tmp_path / "run")
    assert Vocabulary.load(data_dir).is_joint


def test_the_command_adapts_and_resumes(run, start, other_data, elsewhere):
    flags = ["--device", "cpu", "--precision", "fp32", "--no-average", "--max-steps"]
    command = ["train", other_data, "--from", start, "--run", "mine", "--freeze", "encoder"]
    _, err = run.ok(*command, "--freeze", "embeddings", *flags, "2")
    assert "valid: step 0 " in err
    _, err = run.ok("train", "--run", "mine", *flags, "3")
    assert "resuming mine at step 2" in err
    code, _, err = run(*command, "--freeze", "decoder", *flags, "4")
    assert code == 2
    assert "optimizer.freeze was" in err
    printed = run("train", "--from", start, "--print-config")[1]
    assert f'from_model = "{start}"' in printed
