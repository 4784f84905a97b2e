"""manifest.json: whether a step must run again, and its recorded result."""

import os
from dataclasses import asdict

import pytest
from helpers import edit_json

from tfm.config import Normalization
from tfm.dataset.manifest import FORMAT, Manifest, newest_dataset
from tfm.errors import DataError
from tfm.text.corpus.recipe import Recipe

INPUTS = {"text": {"train.en": "abc"}, "limit": 250}


RECIPE = Recipe(name="x", source="en", target="de")


def create(folder, **subword):
    manifest = Manifest.draft(folder, RECIPE, {"subword": subword or {"a": 1}})
    manifest.save()
    return manifest


@pytest.fixture
def manifest(tmp_path):
    return create(tmp_path / "x")


def record(manifest, name="out", inputs=INPUTS):
    output = manifest.data_dir / name
    output.write_text("content")
    manifest.record("step", inputs=inputs, outputs=[output], result={"kept": 3})
    manifest.save()
    return output


def test_a_manifest_is_read_as_written(manifest):
    loaded = Manifest.load(manifest.data_dir)
    assert (loaded.name, loaded.source, loaded.target) == ("x", "en", "de")
    assert loaded.settings("subword") == {"a": 1}
    assert loaded.settings("binarize") == {}


def test_a_step_is_current_only_with_the_same_inputs_also_in_a_moved_dataset(manifest, tmp_path):
    assert not manifest.is_current("step", INPUTS)
    assert (manifest.result("step"), manifest.inputs("step")) == ({}, None)
    record(manifest)
    moved = manifest.data_dir.rename(tmp_path / "elsewhere")
    loaded = Manifest.load(moved)
    assert loaded.is_current("step", INPUTS)
    assert not loaded.is_current("step", INPUTS | {"limit": 100})
    assert not loaded.is_current("other", INPUTS)
    assert loaded.result("step") == {"kept": 3}
    assert loaded.inputs("step") == INPUTS


def test_a_step_with_missing_or_resized_outputs_is_not_current(manifest):
    output = record(manifest)
    output.write_text("more content")
    assert not manifest.is_current("step", INPUTS)
    output.unlink()
    assert not manifest.is_current("step", INPUTS)
    output.mkdir()
    assert not manifest.is_current("step", INPUTS)


def test_creating_a_manifest_again_keeps_steps_and_replaces_settings(manifest):
    record(manifest)
    again = create(manifest.data_dir, a=2)
    assert again.is_current("step", INPUTS)
    assert Manifest.load(manifest.data_dir).settings("subword") == {"a": 2}


def test_the_clean_step_tells_how_text_was_normalized(manifest):
    assert manifest.normalization == Normalization()
    for space in (False, True):
        rules = Normalization(space=space)
        manifest.record("clean", inputs={"normalization": asdict(rules)}, outputs=[], result={})
        manifest.save()
        assert Manifest.load(manifest.data_dir).normalization == rules


LATER = {"space": True, "unicode": True, "version": 3}


@pytest.mark.parametrize(("rules", "why"), [(LATER, "version is 3"), (None, "must be a table")])
def test_the_normalization_of_a_later_version_is_refused(manifest, rules, why):
    manifest.record("clean", inputs={"normalization": rules}, outputs=[], result={})
    with pytest.raises(DataError, match=why):
        _ = manifest.normalization


def test_a_draft_changes_nothing_on_disk_until_it_is_saved(manifest):
    record(manifest)
    other = Recipe(name="y", source="de", target="en")
    draft = Manifest.draft(manifest.data_dir, other, keep_steps=False)
    draft.record("other", inputs={}, outputs=[], result={})
    assert Manifest.load(manifest.data_dir).is_current("step", INPUTS)
    (manifest.data_dir / "manifest.json").write_text("cut sh")  # a damaged one can be replaced
    draft.save()
    assert Manifest.load(manifest.data_dir).source == "de"
    assert Manifest.load(manifest.data_dir).inputs("step") is None


def test_splits_with_text_are_listed_training_first(manifest):
    assert manifest.splits() == []
    for split in ("test", "train"):
        manifest.text_path(split, "en").write_text("")
    assert manifest.splits() == ["train", "test"]


def test_fingerprints_change_with_the_text(manifest):
    for language in ("en", "de"):
        manifest.text_path("train", language).write_text("a\n")
    before = manifest.text_fingerprints(["train"])
    assert list(before) == ["train.en", "train.de"]
    manifest.text_path("train", "de").write_text("b\n")
    after = manifest.text_fingerprints(["train"])
    assert before["train.en"] == after["train.en"]
    assert before["train.de"] != after["train.de"]
    manifest.text_path("valid", "en").mkdir()
    with pytest.raises(DataError, match=r"valid\.en does not exist or is not a file"):
        manifest.text_fingerprints(["valid"])


@pytest.mark.parametrize(
    "change",
    [
        *("", "[]", f'{{"format": {FORMAT}}}', f'{{"format": {FORMAT}, "name": "x"}}'),
        {"name": 1},
        {"target": "../../de"},
        {"settings": {"task": "cooking"}},
        {"steps": {"binarize": {"inputs": {}, "outputs": [], "result": {}}}},
        {"steps": []},
    ],
    ids=str,
)
def test_a_damaged_manifest_or_value_of_another_type_is_named(manifest, change):
    path = manifest.data_dir / "manifest.json"
    if isinstance(change, str):
        path.write_text(change)
    else:
        edit_json(path, **change)
    for read in (Manifest.load, create):
        with pytest.raises(DataError, match=r"manifest\.json is damaged"):
            read(manifest.data_dir)


def test_another_format_and_no_manifest_are_named(manifest, tmp_path):
    edit_json(manifest.data_dir / "manifest.json", format=99)
    with pytest.raises(DataError, match=r"has format 99, but this tfm reads .* --force$"):
        Manifest.load(manifest.data_dir)
    with pytest.raises(DataError, match=r"is no dataset .*: make one with tfm prepare"):
        Manifest.load(tmp_path)


def test_the_newest_dataset_is_the_one_changed_last(tmp_path):
    for age, name in enumerate(("a", "b", "c")):
        create(tmp_path / name)
        (tmp_path / name / "train.en").touch()
        os.utime(tmp_path / name / "manifest.json", (100 - age, 100 - age))
    assert newest_dataset(tmp_path) == tmp_path / "a"
    create(tmp_path / "b")
    create(tmp_path / "failed")  # without text
    assert newest_dataset(tmp_path) == tmp_path / "b"
    with pytest.raises(DataError, match=r"holds no dataset: make one with tfm prepare"):
        newest_dataset(tmp_path / "data")
