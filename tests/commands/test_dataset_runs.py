"""A dataset on which runs can be resumed is not changed unless the user insists."""

import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest
from helpers import contents, number_pairs, write_lines

from tfm.config import BinarizeConfig, SubwordConfig
from tfm.dataset.parallel import DatasetIndex
from tfm.dataset.text_parts import Share
from tfm.errors import UsageError
from tfm.folders.run_folder import record_dataset, record_run, recorded_runs
from tfm.stages.binarize import binarize
from tfm.stages.dataset_runs import runs_on
from tfm.stages.learn_bpe import learn_bpe
from tfm.stages.prepare import append_text, prepare
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import MonoText, TextFiles
from tfm.vocabulary.subword import Vocabulary


def numbers(split, num_pairs):
    """Return a text of the working directory, which `write_numbers` writes."""
    name = f"{split}-{num_pairs}.tsv"
    return (TextFiles(source=name, target=name),)


def write_numbers():
    for split, num_pairs in (("train", 80), ("train", 90), ("valid", 9)):
        pairs = number_pairs(split, num_pairs=num_pairs)
        write_lines(Path(f"{split}-{num_pairs}.tsv"), map("\t".join, pairs))


FOLDER, RUN = Path("data/x"), Path("runs/tiny")
RECIPE = Recipe(
    name="x",
    source="en",
    target="de",
    train=numbers("train", 80),
    subword={"subwords": ("of-the-run.model",)},
)
LARGER = replace(RECIPE, train=numbers("train", 90))


@pytest.fixture
def files(tmp_path, monkeypatch, data_dir, trained_run):
    """A dataset and a run on it in the working directory, and their files and contents."""
    monkeypatch.chdir(tmp_path)
    write_numbers()
    shutil.copytree(trained_run, RUN)
    shutil.copy(data_dir / "bpe.model", "of-the-run.model")
    prepare(RECIPE, FOLDER)
    record_dataset(RUN, FOLDER)
    return {path: path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}


def test_runs_are_found_in_the_working_directory_or_by_the_record_of_the_dataset(files, tmp_path):
    assert runs_on(FOLDER) == [RUN]  # as one that an earlier version did not record
    elsewhere, needed = tmp_path / "elsewhere", DatasetIndex.load(FOLDER / "bin").checksum("train")
    shutil.copytree(RUN, elsewhere)
    for run in (RUN, elsewhere):
        record_run(FOLDER, run, needed)
    assert runs_on(FOLDER) == [RUN, elsewhere]
    shutil.rmtree(RUN / "checkpoints")  # such a run starts again
    shutil.copytree(FOLDER, "data/y")
    assert runs_on(FOLDER) == [elsewhere]
    assert runs_on(Path("data/y")) == []


def test_training_records_its_run_in_the_dataset(data_dir, trained_run):
    checksum = DatasetIndex.load(data_dir / "bin").checksum("train")
    assert recorded_runs(data_dir)[str(trained_run)] == checksum


def test_a_run_is_named_while_a_checkpoint_is_intact(files):
    for config in sorted(RUN.glob("checkpoints/step-*/config.json"), reverse=True):
        assert runs_on(FOLDER) == [RUN]
        config.write_bytes(config.read_bytes()[:-9])
    assert runs_on(FOLDER) == []


def test_a_run_whose_record_of_its_dataset_is_damaged_is_warned_of(files, capsys):
    (RUN / "data.json").write_text("{")
    capsys.readouterr()
    assert runs_on(FOLDER) == []
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: it is unknown whether {RUN} needs {FOLDER}: {RUN}/data.json ")


def test_runs_that_cannot_be_resumed_anyway_are_not_named(files):
    assert runs_on(FOLDER) == [RUN]
    for needed, runs in (("other pairs", []), (Vocabulary.load(FOLDER).fingerprint, [RUN])):
        record_run(FOLDER, RUN, needed)
        assert runs_on(FOLDER) == runs
    learn_bpe(FOLDER, SubwordConfig(vocab_size=340), force=True)
    assert runs_on(FOLDER) == []


def prepare_with(**settings):
    return lambda force: prepare(RECIPE, FOLDER, settings, force=force)


CHANGES = {
    "vocabulary": prepare_with(subword={"vocab_size": 340}),
    "encoding": prepare_with(binarize={"max_length": 9}),
    "cleaning": prepare_with(cleaning={"drop_copies": False}),
    "text": lambda force: prepare(LARGER, FOLDER, text_only=True, force=force),
    "learn-bpe": lambda force: learn_bpe(FOLDER, SubwordConfig(vocab_size=340), force=force),
    "binarize": lambda force: binarize(FOLDER, BinarizeConfig(bpe_dropout=0.1), force=force),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_dataset_of_runs_is_changed_only_by_force(files, capsys, change):
    with pytest.raises(UsageError, match=r"^runs/tiny could not be resumed .*--out.*--force\n"):
        change(False)
    assert {path: path.read_bytes() for path in files} == files
    change(True)
    assert "warning: runs/tiny can be resumed only" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in files} != files


def test_what_does_not_change_the_training_pairs_is_not_refused(files):
    held_out = numbers("valid", 9)
    for recipe in (RECIPE, replace(RECIPE, valid=held_out, test=held_out)):
        assert prepare(recipe, FOLDER, text_only=True).is_new == bool(recipe.test)
        assert runs_on(FOLDER) == [RUN]


def test_text_that_a_call_does_not_name_is_removed_only_by_force(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_numbers()
    Path("mono.txt").write_text("ein Hund\n" * 9)
    held_out = numbers("valid", 9)
    mono = (MonoText(language="de", text="mono.txt"),)
    recipe = replace(RECIPE, subword={}, valid=held_out * 2, test=held_out, mono=mono)
    prepare(recipe, FOLDER, text_only=True)
    before = contents(FOLDER)
    for changes in (
        *({"test": ()}, {"valid": ()}, {"mono": ()}, {"valid": (), "mono": ()}),
        {"valid": held_out},  # one of two texts
    ):
        with pytest.raises(UsageError, match=rf"has {' and '.join(changes)}.* name it.*--force"):
            prepare(replace(recipe, **changes), FOLDER, text_only=True)
        with pytest.raises(UsageError, match=r"--force"):
            prepare(replace(recipe, **changes), FOLDER, text_only=True, share=Share(1, 2))
    append_text(replace(LARGER, subword={}), FOLDER, text_only=True)
    assert contents(FOLDER).items() >= {**before, "manifest.json": ANY}.items()
    prepare(replace(recipe, test=(), mono=()), FOLDER, text_only=True, force=True)
    assert "warning: data/x loses test and mono.de text" in capsys.readouterr().err
    assert not [*FOLDER.glob("test.*"), *FOLDER.glob("mono.*")]


def test_appending_says_which_runs_need_the_dataset_as_it_was(files, capsys):
    append_text(replace(LARGER, subword={}), FOLDER)
    assert "warning: runs/tiny cannot be resumed" in capsys.readouterr().err
