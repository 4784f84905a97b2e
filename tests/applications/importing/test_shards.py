"""Weights in several files are those of one file."""

import json

import pytest
from foreign_models import new_marian
from safetensors.torch import load_file, save_file

from tfm.commands.import_model import import_model
from tfm.errors import CheckpointError, DataError

pytest.importorskip("transformers")

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path):
    """A folder of transformers with three files of weights."""
    folder = tmp_path / "sharded"
    new_marian(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(tmp_path / "whole")
    weight_map = {}
    for number in range(3):
        name = f"model-{number + 1:05}-of-00003.safetensors"
        part = {each: weights[each] for each in sorted(weights)[number::3]}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def test_sharded_weights_are_those_of_one_file(sharded, tmp_path):
    import_model(sharded, out=tmp_path / "one")
    (tmp_path / "whole").rename(sharded / "model.safetensors")
    import_model(sharded, out=tmp_path / "other")
    found = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other")]
    assert found[0] == found[1]


def test_a_missing_shard_is_named(sharded):
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is missing"):
        import_model(sharded)


@pytest.mark.parametrize(
    "weight_map",
    [{}, [], None, {"a": 1}, {"a": "../whole"}, {"a": "/etc/x.safetensors"}, {"a": ["x"]}],
    ids=str,
)
def test_an_index_without_names_of_files_beside_it_is_refused(sharded, weight_map):
    (sharded / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="names no files of weights"):
        import_model(sharded)
    (sharded / INDEX).write_text("[")
    with pytest.raises(DataError, match="is damaged"):
        import_model(sharded)
