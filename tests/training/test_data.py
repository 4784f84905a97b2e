"""A dataset is trained on only if its token ids are those of its text and subword model."""

import json
import os
import shutil
from concurrent.futures import Future

import numpy as np
import pytest
from helpers import binarize, write_shards

from tfm.commands.train import train_model
from tfm.config import BinarizeConfig
from tfm.dataset import manifest
from tfm.disk.files import sha256_of
from tfm.errors import DataError
from tfm.training.data import open_data


@pytest.fixture
def copy(data_dir, tmp_path):
    """A dataset that a test may change."""
    return shutil.copytree(data_dir, tmp_path / "data")


def test_the_text_may_be_deleted_once_it_is_binarized(copy, tiny_run):
    for name in ("train.en", "test.en", "test.de"):
        (copy / name).unlink()
    assert len(open_data(copy, tiny_run()).train) == 200


@pytest.mark.parametrize(("num_long", "most"), [(0, None), (1, None), (3, 100)])
def test_translations_may_be_as_long_as_validation_references(copy, tiny_run, num_long, most):
    sources = [f"one {number}" for number in range(200)]
    targets = ["eins"] * (200 - num_long) + ["q" * 70] * num_long
    for language, lines in (("en", sources), ("de", targets)):
        (copy / f"valid.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    binarize(copy, BinarizeConfig(threads=1))
    assert open_data(copy, tiny_run()).info.search.get("max_extra_length") == most


@pytest.mark.parametrize("name", ["train.en", "valid.de", "test.en"])
def test_text_that_has_changed_is_refused_until_it_is_binarized(copy, tiny_run, name):
    text = (copy / name).read_text(encoding="utf-8")
    (copy / name).write_text(f"X{text[1:]}", encoding="utf-8")
    with pytest.raises(DataError, match=rf"/data/{name} has changed .*: run tfm binarize {copy}$"):
        open_data(copy, tiny_run())
    binarize(copy, BinarizeConfig(threads=1))
    open_data(copy, tiny_run())


def test_text_is_read_again_only_if_its_size_or_time_has_changed(copy, tiny_run, monkeypatch):
    binarize(copy, BinarizeConfig(threads=1), force=True)
    read = []
    monkeypatch.setattr(manifest, "sha256_of", lambda path: read.append(path) or sha256_of(path))
    open_data(copy, tiny_run())
    assert not read
    os.utime(copy / "train.de")
    open_data(copy, tiny_run())
    assert read == [copy / "train.de"]


@pytest.mark.parametrize("inputs", [None, {}, {"text": []}])
def test_token_ids_without_a_record_of_their_text_are_refused(copy, tiny_run, inputs):
    path = copy / "manifest.json"
    content = json.loads(path.read_text())
    content["steps"]["binarize"]["inputs"] = inputs
    if inputs is None:
        del content["steps"]["binarize"]
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"not binarized from the text in .*binarize {copy}$"):
        open_data(copy, tiny_run())
    binarize(copy, BinarizeConfig(threads=1))
    open_data(copy, tiny_run())


def test_token_ids_of_other_languages_are_refused(copy, tiny_run):
    path = copy / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"source": "de", "target": "en"}))
    with pytest.raises(DataError, match=r"bin is en-de, but .*data is de-en: run tfm binarize "):
        open_data(copy, tiny_run())
    binarize(copy, BinarizeConfig(threads=1), force=True)
    assert open_data(copy, tiny_run()).info.source == "de"


@pytest.fixture
def in_shards(copy, monkeypatch):
    """A dataset in several shards, of which only the first is verified before the first step."""
    monkeypatch.setattr("tfm.training.data.WINDOW_PAIRS", 60)
    sides = (
        (copy / f"train.{lang}").read_text(encoding="utf-8").splitlines() for lang in ("en", "de")
    )
    pairs = [*zip(*sides, strict=True)]
    write_shards(copy, pairs, [50, 50, 50, len(pairs) - 150])
    binarize(copy, BinarizeConfig(threads=1), force=True)
    return copy


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_first_part_is_found_before_the_first_step(in_shards, tiny_run, tmp_path):
    damage(in_shards / "bin" / "train.de.tokens.npy")
    open_data(in_shards, tiny_run())
    with pytest.raises(DataError, match=r"train\.de\.tokens\.npy is damaged .* --force$"):
        train_model(in_shards, tmp_path / "run", tiny_run(training={"max_steps": 1}))
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_a_damaged_later_part_ends_training(in_shards, tiny_run, tmp_path):
    damage(in_shards / "bin" / "train.4.de.tokens.npy")
    with pytest.raises(DataError, match=r"train\.4\.de\.tokens\.npy is damaged"):
        train_model(in_shards, tmp_path / "run", tiny_run(training={"max_steps": 10_000}))


@pytest.mark.parametrize(
    ("kind", "value"),
    [("offsets", 0), ("offsets", 1 << 16), ("offsets", (1 << 32) - 1), ("tokens", 1 << 15)],
)
def test_damage_that_is_used_before_it_is_verified_is_named(
    in_shards, tiny_run, tmp_path, monkeypatch, kind, value
):
    """As if verifying in the background took forever."""
    monkeypatch.setattr("tfm.training.data.run_in_thread", lambda work: Future())
    monkeypatch.setattr("tfm.dataset.plan.WINDOW_PAIRS", 60)
    monkeypatch.setattr("tfm.dataset.plan.RUN_PAIRS", 10)
    array = np.load(in_shards / "bin" / f"train.4.de.{kind}.npy", mmap_mode="r+")
    array[len(array) // 2] = value
    array.flush()
    with pytest.raises(DataError, match=r"bin/train\.4\.de.* --force$"):
        train_model(in_shards, tmp_path / "run", tiny_run(training={"max_steps": 20}))


def test_all_shards_are_verified_first_on_request(in_shards, tiny_run, tmp_path, monkeypatch):
    damage(in_shards / "bin" / "train.4.de.tokens.npy")
    monkeypatch.setattr("tfm.training.loop.Trainer", None)
    with pytest.raises(DataError, match=r"train\.4\.de\.tokens\.npy is damaged"):
        train_model(in_shards, tmp_path / "run", tiny_run(training={"verify_data": True}))
