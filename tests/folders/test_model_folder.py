"""Model folders: complete or absent, and verified when they are read."""

import dataclasses
import json
import pickle
import shutil

import pytest
import safetensors.torch
import torch
from small_models import new_info

from tfm.disk.files import sha256_of
from tfm.errors import CheckpointError
from tfm.folders import model_folder, model_info
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import DamagedCheckpointError, checksum_of
from tfm.folders.saving import save_checkpoint
from tfm.training.averaging import average_weights

FILES = ["model.safetensors", "training.safetensors", "config.json", "bpe.model"]


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
    folder = ModelFolder(path)
    return folder.info, folder.weights(), folder.training_state()


@pytest.fixture
def model_dir(tmp_path):
    return save(tmp_path / "model")


def test_a_saved_model_is_loaded(tmp_path):
    saved = dataclasses.replace(new_info(7, {"loss": 1.25}, seed=3), averaged=(5, 6, 7))
    model_dir = save(tmp_path / "model", saved)
    info, weights, state = load_all(model_dir)
    assert info == saved
    torch.testing.assert_close(weights["a"], torch.arange(6.0).view(2, 3))
    assert (state["minutes"], float(state["optimizer"]["step"])) == (1.5, 3.0)
    assert (model_dir / "bpe.model").read_bytes() == b"subword"


def test_a_folder_or_a_file_without_a_record_holds_no_model(model_dir):
    for path in (model_dir.parent, model_dir / "bpe.model"):
        with pytest.raises(DamagedCheckpointError, match=r"holds no model \(no config\.json\)"):
            ModelFolder(path)


def test_a_file_that_cannot_be_read_is_not_reported_as_damaged(model_dir, monkeypatch):
    def fail(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(model_folder, "sha256_of", fail)
    with pytest.raises(CheckpointError, match=r"bpe\.model: Input/output error") as caught:
        ModelFolder(model_dir)
    assert not isinstance(caught.value, DamagedCheckpointError)


def test_a_model_removed_during_reading_is_not_reported_as_damaged(model_dir):
    folder = ModelFolder(model_dir)
    shutil.rmtree(model_dir)
    for load in (lambda: ModelFolder(model_dir), folder.weights, folder.training_state):
        with pytest.raises(CheckpointError, match="was removed while it was read") as caught:
            load()
        assert not isinstance(caught.value, DamagedCheckpointError)


def test_a_model_replaced_during_reading_is_not_reported_as_damaged(model_dir):
    folder = ModelFolder(model_dir)
    save(model_dir, weights={"a": torch.ones(2)})
    with pytest.raises(
        CheckpointError, match="was replaced while it was read: try again"
    ) as caught:
        pickle.loads(pickle.dumps(folder)).weights()
    assert not isinstance(caught.value, DamagedCheckpointError)
    assert (folder.is_current(), ModelFolder(model_dir).is_current()) == (False, True)


def edit(folder, change):
    """Change config.json and its checksum."""
    record = json.loads((folder / "config.json").read_text())
    del record["checksum"]
    change(record)
    text = json.dumps({**record, "checksum": checksum_of(record)})
    (folder / "config.json").write_text(text)


def test_the_error_for_edited_settings_explains_how_to_accept_them(model_dir):
    text = (model_dir / "config.json").read_text()
    (model_dir / "config.json").write_text(text.replace('"data/x"', '"data/y"'))
    with pytest.raises(
        CheckpointError, match='was edited: if you edited it, remove its "checksum"'
    ):
        ModelFolder(model_dir)
    record = json.loads((model_dir / "config.json").read_text())
    del record["checksum"]
    (model_dir / "config.json").write_text(json.dumps(record))
    assert ModelFolder(model_dir).info.data_dir == "data/y"


NESTED = {"a": 1}
for _ in range(400):
    NESTED = {"a": NESTED}


@pytest.mark.parametrize(
    "change",
    [
        {"step": -1}, {"step": True}, {"step": 2**63}, {"source": "x" * 10_000},
        {"metrics": {"loss": 10**400}}, {"metrics": {"loss": None}}, {"vocab_sizes": [9]},
        {"vocab_sizes": [2**64, 9]}, {"averaged": "123"}, {"task": []}, {"search": None},
        {"search": {"max_extra_length": 2**62}}, {"more": 1}, {"run": "base"},
        {"run": {"model": 5}}, {"run": {"model": {"num_encoder_layers": 2**62}}},
        {"run": {"model": {"dropout": float("inf")}}}, {"run": NESTED}, {"sha256": None},
        {"sha256": {"../../etc/passwd": "0" * 64}}, {"sha256": {"bpe.model": 1}},
    ],
    ids=lambda change: str(change)[:60],
)  # fmt: skip
def test_a_record_with_invalid_values_is_refused_though_its_checksum_is_correct(model_dir, change):
    edit(model_dir, lambda record: record.update(change))
    with pytest.raises(CheckpointError, match="cannot read") as caught:
        load_all(model_dir)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.pop("source"), r"config\.json: source is missing; choose another"),
        (lambda record: record.update(format=99), "has format 99, but this version of tfm reads"),
    ],
)
def test_a_record_without_a_value_or_of_another_format_is_refused(model_dir, change, message):
    edit(model_dir, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        ModelFolder(model_dir)
    assert isinstance(caught.value, DamagedCheckpointError) == ("missing" in message)


def test_a_model_of_another_program_is_refused(model_dir):
    (model_dir / "config.json").write_text('{"model_type": "marian"}')
    with pytest.raises(CheckpointError, match=r"is not of a tfm model: .* with tfm import"):
        ModelFolder(model_dir)


def replace_file(folder, name, content):
    """Replace a file of a model folder and its checksum."""
    (folder / name).write_bytes(content)
    edit(folder, lambda record: record["sha256"].update({name: sha256_of(folder / name)}))


@pytest.mark.parametrize("name", FILES[:2])
@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff" * 100, (1 << 40).to_bytes(8, "little") + b"{}",
        (90_000).to_bytes(8, "little") + b"[" * 90_000,
    ],
    ids=lambda content: repr(content[:10]),
)  # fmt: skip
def test_invalid_tensor_files_are_refused_though_their_checksum_is_correct(
    model_dir, name, content
):
    replace_file(model_dir, name, content)
    with pytest.raises(CheckpointError, match=rf"cannot read .*{name}: it is damaged"):
        load_all(model_dir)


@pytest.mark.parametrize(
    "outline", ["5", "{", "[" * 5_000, '{"mapping": [[1]]}', '{"tensor": "a"}']
)
def test_an_invalid_training_state_is_refused_though_its_checksum_is_correct(model_dir, outline):
    content = safetensors.torch.save({}, metadata={"state": outline})
    replace_file(model_dir, "training.safetensors", content)
    with pytest.raises(CheckpointError, match=r"training\.safetensors: it is damaged"):
        ModelFolder(model_dir).training_state()


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(path, *_, **__):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_info, "write_json", fail)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "other", [{"b": torch.ones(2)}, {"a": torch.ones(3)}, {"a": torch.ones(2), "b": torch.ones(2)}]
)
def test_different_models_cannot_be_averaged(tmp_path, other):
    paths = [
        save(tmp_path / "x", weights={"a": torch.ones(2)}),
        save(tmp_path / "y", weights=other),
    ]
    with pytest.raises(CheckpointError, match="not checkpoints of one model"):
        average_weights(list(map(ModelFolder, paths)))
