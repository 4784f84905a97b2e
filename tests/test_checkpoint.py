"""Model folders: whole or absent, checked when read, and kept or removed as the settings say."""

import dataclasses
import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfm.config import run_config
from tfm.errors import CheckpointError, TfmError
from tfm.runtime.checkpoint import (
    ModelInfo,
    average_weights,
    best_checkpoints,
    checkpoint_path,
    checkpoints,
    find_model,
    load_info,
    load_training_state,
    load_weights,
    newest_run,
    prune_checkpoints,
    save_checkpoint,
)

FILES = ["model.safetensors", "training.pt", "config.json"]


def new_info(step=1, metrics=None, **training):
    return ModelInfo(
        run=run_config("base", {"training": training}),
        source="en",
        target="de",
        vocab_sizes=(9, 9),
        fingerprint="f" * 64,
        data_dir="data/x",
        step=step,
        metrics=metrics or {},
    )


def save(path, info=None, *, weights=None, state=None):
    save_checkpoint(
        path,
        info or new_info(),
        weights or {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3)},
        subword_files={"bpe.model": b"subword"},
        training_state=state or {"optimizer": {"step": torch.tensor(3.0)}, "minutes": 1.5},
    )
    return path


def load_all(path):
    return load_info(path), load_weights(path), load_training_state(path)


@pytest.fixture
def model_dir(tmp_path):
    return save(tmp_path / "model")


def test_what_is_saved_is_loaded(model_dir):
    info, weights, state = load_all(model_dir)
    assert info == new_info()
    torch.testing.assert_close(weights["a"], torch.arange(6.0).view(2, 3))
    assert (state["minutes"], float(state["optimizer"]["step"])) == (1.5, 3.0)
    assert (model_dir / "bpe.model").read_bytes() == b"subword"


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(model_dir, name):
    (model_dir / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name}"):
        load_all(model_dir)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_named(model_dir, name, share):
    content = (model_dir / name).read_bytes()
    (model_dir / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=rf"{name}: it is damaged"):
        load_all(model_dir)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.parametrize("name", FILES[:2])
def test_any_flipped_bit_of_weights_or_state_is_found(model_dir, name, data):
    path = model_dir / name
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=rf"cannot read .*{name}: it is damaged"):
        load_all(model_dir)
    path.write_bytes(content)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_flipped_bit_of_the_settings_never_ends_in_a_traceback(model_dir, data):
    path = model_dir / "config.json"
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    try:
        load_all(model_dir)
    except TfmError as error:
        assert type(error) is CheckpointError  # noqa: PT017
    finally:
        path.write_bytes(content)


def test_a_model_of_another_format_is_refused(model_dir):
    record = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(CheckpointError, match="not of format 1"):
        load_info(model_dir)


def test_settings_that_nobody_knows_are_named(model_dir):
    record = json.loads((model_dir / "config.json").read_text())
    record["run"]["model"]["rotary"] = True
    (model_dir / "config.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"config\.json: unknown setting 'rotary'"):
        load_info(model_dir)


def test_training_state_is_never_unpickled_to_code(model_dir):
    class Evil:
        def __reduce__(self):
            return (print, ("never",))

    torch.save({"x": Evil()}, model_dir / "training.pt")
    with pytest.raises(CheckpointError):
        load_training_state(model_dir)


@pytest.mark.parametrize("function", ["safetensors.torch.save_file", "torch.save"])
def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, function):
    def fail(_content, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(function, fail)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_keeps_the_older_model(model_dir, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="No space"):
        save(model_dir, new_info(step=2))
    assert load_all(model_dir)[0].step == 1
    assert [path.name for path in model_dir.parent.iterdir()] == ["model"]


def test_writing_again_replaces_the_model(model_dir):
    save(model_dir, new_info(step=2))
    assert load_all(model_dir)[0].step == 2
    assert [path.name for path in model_dir.parent.iterdir()] == ["model"]


@pytest.fixture
def make_run(tmp_path):
    """A run whose checkpoints have given validation losses, by step."""

    def make(losses, **training):
        for step, loss in losses.items():
            metrics = {} if loss is None else {"loss": loss, "bleu": -loss}
            info = new_info(step, metrics, **{"average_last": 1, **training})
            save(checkpoint_path(tmp_path / "run", step), info)
        return tmp_path / "run"

    return make


def steps_of(paths):
    return [load_info(path).step for path in paths]


def test_checkpoints_are_listed_oldest_first(make_run):
    run_dir = make_run({1000: 1.0, 20: 1.0, 3: 1.0})
    (run_dir / "checkpoints" / ".step-00000099.1.partial").mkdir()
    assert steps_of(checkpoints(run_dir)) == [3, 20, 1000]
    assert checkpoints(run_dir / "nowhere") == []


def test_best_checkpoints_come_best_first_and_the_newer_of_equals_first(make_run):
    run_dir = make_run({1: 3.0, 2: 1.0, 3: 2.0, 4: None, 5: 1.0})
    for metric in ("loss", "score"):
        assert steps_of(best_checkpoints(run_dir, metric)) == [5, 2, 3, 1]


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [
        (1, 0, [6]),
        (2, 0, [5, 6]),
        (2, 1, [2, 5, 6]),
        (2, 3, [2, 3, 5, 6]),
        (20, 1, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_newest_and_the_best_are_kept_and_no_others(make_run, keep_last, keep_best, kept):
    losses = {1: 4.0, 2: 1.0, 3: 2.0, 4: 3.0, 5: 2.5, 6: None}
    run_dir = make_run(losses, keep_last=keep_last, keep_best=keep_best, best_metric="loss")
    prune_checkpoints(run_dir)
    assert steps_of(checkpoints(run_dir)) == kept
    assert len(list((run_dir / "checkpoints").iterdir())) == len(kept)
    with_state = [path for path in checkpoints(run_dir) if (path / "training.pt").exists()]
    assert steps_of(with_state) == kept[-2:]
    assert all(load_weights(path) for path in checkpoints(run_dir))


def test_pruning_removes_what_a_killed_run_left_half_done(make_run):
    run_dir = make_run({1: 2.0, 2: 1.0}, keep_last=1, keep_best=0)
    for name in (".step-00000001.old", ".step-00000003.123.partial"):
        leftover = run_dir / "checkpoints" / name
        leftover.mkdir()
        (leftover / "model.safetensors").touch()
    prune_checkpoints(run_dir)
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_run_means_its_average_else_its_best_else_its_newest_checkpoint(make_run):
    run_dir = make_run({1: None, 2: None}, best_metric="loss")
    assert find_model(run_dir).name == "step-00000002"
    make_run({3: 1.0, 4: 2.0}, best_metric="loss")
    assert find_model(run_dir).name == "step-00000003"
    save(run_dir / "averaged")
    assert find_model(run_dir).name == "averaged"
    assert find_model(run_dir / "averaged") == run_dir / "averaged"
    with pytest.raises(CheckpointError, match="no run or model folder"):
        find_model(run_dir / "nowhere")


def test_the_newest_run_is_the_one_last_written_to(make_run, tmp_path):
    with pytest.raises(CheckpointError, match="holds no run with a checkpoint"):
        newest_run(tmp_path)
    first = make_run({1: 1.0})
    shutil.copytree(first, tmp_path / "second", copy_function=shutil.copyfile)
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    assert newest_run(tmp_path) == tmp_path / "second"


def test_an_average_is_the_mean_and_of_one_is_itself(tmp_path):
    torch.manual_seed(0)
    weights = [{"a": torch.randn(50, 3), "b": torch.randn(4)} for _ in range(3)]
    paths = [save(tmp_path / str(i), weights=w) for i, w in enumerate(weights)]
    averaged = average_weights(paths)
    for name in ("a", "b"):
        mean = sum(w[name].double() for w in weights) / 3
        torch.testing.assert_close(averaged[name], mean.float(), rtol=0, atol=0)
        assert torch.equal(average_weights(paths[:1])[name], weights[0][name])


def test_models_that_differ_cannot_be_averaged(tmp_path):
    paths = [
        save(tmp_path / "x", weights={"a": torch.ones(2)}),
        save(tmp_path / "y", weights={"b": torch.ones(2)}),
    ]
    with pytest.raises(CheckpointError, match="not of one model"):
        average_weights(paths)


def test_a_damaged_model_cannot_be_averaged(tmp_path):
    paths = [save(tmp_path / "x"), save(tmp_path / "y")]
    content = bytearray((paths[1] / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (paths[1] / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"y/model\.safetensors: it is damaged"):
        average_weights(paths)


def test_every_field_of_a_model_survives(tmp_path):
    info = dataclasses.replace(new_info(7, {"loss": 1.25}, seed=3), averaged=(5, 6, 7))
    assert load_info(save(tmp_path / "model", info)) == info
