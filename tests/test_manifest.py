"""manifest.json: whether a step must run again, and its recorded result."""

import json
import os

import pytest

from tfm.data.manifest import Manifest, newest_dataset
from tfm.errors import DataError

INPUTS = {"text": {"train.en": "abc"}, "limit": 250}


def create(folder, **changes):
    facts = {"name": "x", "source": "en", "target": "de", "settings": {"subword": {"a": 1}}}
    return Manifest.create(folder, **(facts | changes))


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


def test_numbers_of_threads_in_manifests_of_older_versions_are_read(tmp_path):
    manifest = create(
        tmp_path / "x",
        settings={"subword": {"num_threads": 3, "vocab_size": 9}, "binarize": {"jobs": 2}},
    )
    assert manifest.settings("subword") == {"threads": 3, "vocab_size": 9}
    assert manifest.settings("binarize") == {"threads": 2}
    of_all_cores = create(tmp_path / "y", settings={"binarize": {"jobs": 0, "max_length": 9}})
    assert of_all_cores.settings("binarize") == {"max_length": 9}


def test_a_step_that_was_not_done_is_not_current(manifest):
    assert not manifest.is_current("step", INPUTS)
    assert manifest.result("step") == {}
    assert manifest.inputs("step") is None


def test_a_step_is_current_only_with_the_same_inputs(manifest):
    record(manifest)
    for each in (manifest, Manifest.load(manifest.data_dir)):
        assert each.is_current("step", INPUTS)
        assert not each.is_current("step", INPUTS | {"limit": 100})
        assert not each.is_current("other", INPUTS)
        assert each.result("step") == {"kept": 3}
        assert each.inputs("step") == INPUTS


def test_a_step_with_missing_or_resized_outputs_is_not_current(manifest):
    output = record(manifest)
    output.write_text("more content")
    assert not manifest.is_current("step", INPUTS)
    output.unlink()
    assert not manifest.is_current("step", INPUTS)
    output.mkdir()
    assert not manifest.is_current("step", INPUTS)


def test_a_dataset_may_be_moved(manifest, tmp_path):
    record(manifest)
    moved = tmp_path / "elsewhere"
    manifest.data_dir.rename(moved)
    assert Manifest.load(moved).is_current("step", INPUTS)


def test_creating_a_manifest_again_keeps_steps_and_replaces_settings(manifest):
    record(manifest)
    again = create(manifest.data_dir, settings={"subword": {"a": 2}})
    assert again.is_current("step", INPUTS)
    assert Manifest.load(manifest.data_dir).settings("subword") == {"a": 2}


def test_the_clean_step_tells_whether_white_space_was_normalized(manifest):
    assert manifest.normalizes_space
    for normalizes_space in (False, True):
        cleaning = {"normalize_space": normalizes_space}
        manifest.record("clean", inputs={"cleaning": cleaning}, outputs=[], result={})
        manifest.save()
        assert Manifest.load(manifest.data_dir).normalizes_space == normalizes_space


def test_a_draft_changes_nothing_on_disk_until_it_is_saved(manifest):
    record(manifest)
    facts = {"name": "y", "source": "de", "target": "en", "settings": {}}
    draft = Manifest.draft(manifest.data_dir, **facts, keep_steps=False)
    draft.record("other", inputs={}, outputs=[], result={})
    assert Manifest.load(manifest.data_dir).is_current("step", INPUTS)
    draft.save()
    assert Manifest.load(manifest.data_dir).source == "de"
    assert Manifest.load(manifest.data_dir).inputs("step") is None


def test_a_damaged_manifest_can_be_replaced(manifest):
    (manifest.data_dir / "manifest.json").write_text("cut sh")
    facts = {"name": "y", "source": "de", "target": "en", "settings": {}}
    Manifest.draft(manifest.data_dir, **facts, keep_steps=False).save()
    assert Manifest.load(manifest.data_dir).name == "y"


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


def test_the_error_without_manifest_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match=r"is no dataset .*: make one with tfm prepare"):
        Manifest.load(tmp_path)


def test_another_format_is_refused(manifest):
    path = manifest.data_dir / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(DataError, match=r"has format 99, but this tfm reads format"):
        Manifest.load(manifest.data_dir)


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": 1, "name": "x"}'])
def test_a_damaged_manifest_is_named(manifest, content):
    path = manifest.data_dir / "manifest.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        Manifest.load(manifest.data_dir)


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"source": None},
        {"target": "../../de"},
        {"target": "de/"},
        {"settings": []},
        {"settings": {"subword": 3}},
        {"settings": {"task": "cooking"}},
        {"steps": {"binarize": {}}},
        {"steps": {"binarize": {"inputs": {}, "outputs": [], "result": {}}}},
        {"steps": []},
        {"steps": {"clean": {"inputs": {"cleaning": []}, "outputs": {}, "result": {}}}},
    ],
    ids=str,
)
def test_a_manifest_with_a_value_of_another_type_is_damaged(manifest, change):
    path = manifest.data_dir / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for read in (Manifest.load, create):
        with pytest.raises(DataError, match=r"manifest\.json is damaged"):
            read(manifest.data_dir)


def test_a_wrong_value_of_a_manifest_is_named(manifest):
    path = manifest.data_dir / "manifest.json"
    steps = {"clean": {"inputs": {}, "outputs": {"train.en": -1}, "result": {}}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": steps}))
    message = r"steps\['clean'\]: outputs\['train\.en'\] is -1, but must be from 0 to"
    with pytest.raises(DataError, match=message):
        Manifest.load(manifest.data_dir)


def test_the_fingerprint_of_a_folder_is_an_error(manifest):
    manifest.text_path("train", "en").mkdir()
    with pytest.raises(DataError, match=r"train\.en does not exist or is not a file"):
        manifest.text_fingerprints(["train"])


def test_the_newest_dataset_is_the_one_changed_last(tmp_path):
    for age, name in enumerate(("a", "b", "c")):
        create(tmp_path / name)
        (tmp_path / name / "train.en").touch()
        os.utime(tmp_path / name / "manifest.json", (100 - age, 100 - age))
    assert newest_dataset(tmp_path) == tmp_path / "a"
    create(tmp_path / "b")
    assert newest_dataset(tmp_path) == tmp_path / "b"


def test_a_dataset_whose_preparation_failed_is_ignored(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "train.en").touch()
    create(tmp_path / "old")
    create(tmp_path / "failed")
    assert newest_dataset(tmp_path) == tmp_path / "old"


def test_the_error_without_datasets_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match=r"holds no dataset: make one with tfm prepare"):
        newest_dataset(tmp_path / "data")
