"""A step of a dataset runs again only after a change, and not if runs need what it would change."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest
from helpers import (
    binarize,
    contents,
    decoded,
    learn_bpe,
    number_pairs,
    write_dataset,
    write_lines,
    write_pairs,
)

from tfm.commands.prepare import append_text
from tfm.commands.prepare import prepare_recipe as prepare
from tfm.config import BinarizeConfig, SubwordConfig
from tfm.dataset.parallel import DatasetIndex
from tfm.dataset.rerun import record_run, recorded_runs, runs_on
from tfm.dataset.shards import Share
from tfm.errors import UsageError
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
    record_run(FOLDER, RUN, DatasetIndex.load(FOLDER / "bin").checksum("train"))
    return {path: path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}


LEARNINGS = [
    SubwordConfig(vocab_size=340),
    SubwordConfig(vocab_size=330, model_type="unigram"),
    SubwordConfig(vocab_size=330, separate=True),
    SubwordConfig(vocab_size=330),
]
ENCODINGS = [BinarizeConfig(), BinarizeConfig(max_length=99)]


def test_steps_run_again_only_after_a_change_of_inputs_or_outputs(tmp_path, capsys):
    train, test = (number_pairs(split, num_pairs=60) for split in ("train", "test"))
    folder = write_dataset(tmp_path / "x", {"train": train, "test": test})

    def run(learning, encoding):
        """Return which steps do their work, which may be in any number of threads."""
        done = learn_bpe(folder, learning), binarize(folder, encoding)
        before = contents(folder)
        capsys.readouterr()
        assert not learn_bpe(folder, learning)
        assert not binarize(folder, replace(encoding, threads=2))
        assert contents(folder) == before
        assert capsys.readouterr().err.count("unchanged") == 2
        assert len({*folder.glob("bpe.*")}) == (4 if learning.separate else 2)
        assert decoded(folder) == train
        assert decoded(folder, "test") == test
        return done

    for learning in LEARNINGS:
        assert run(learning, ENCODINGS[0]) == (True, True)
    for encoding in ENCODINGS[1:]:
        assert run(learning, encoding) == (False, True)
    test = test[::-1]
    write_pairs(folder, "test", test)
    assert run(learning, encoding) == (False, True)
    train = train[::-1]
    write_pairs(folder, "train", train)
    assert run(learning, encoding) == (True, True)
    tokens = folder / "bin" / "train.de.tokens.npy"
    for damage in (tokens.unlink, lambda: os.truncate(tokens, 100)):
        damage()
        assert run(learning, encoding) == (False, True)
    (folder / "bpe.model").unlink()
    assert run(learning, encoding) == (True, False)


def test_runs_with_a_checkpoint_are_named_but_not_by_a_copy_of_their_dataset(files, tmp_path):
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    shutil.copytree(RUN, elsewhere)
    record_run(FOLDER, elsewhere, DatasetIndex.load(FOLDER / "bin").checksum("train"))
    assert runs_on(FOLDER) == [RUN, elsewhere]
    shutil.rmtree(RUN / "checkpoints")  # such a run starts again
    shutil.copytree(FOLDER, "data/y")
    assert runs_on(FOLDER) == [elsewhere]
    assert runs_on(Path("data/y")) == []


def test_training_records_its_run_in_the_dataset(data_dir, trained_run):
    checksum = DatasetIndex.load(data_dir / "bin").checksum("train")
    assert recorded_runs(data_dir)[str(trained_run)] == checksum


def test_a_dataset_records_its_runs_but_not_those_of_another_that_it_is_a_copy_of(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    for name, needed in (("a", "1"), ("b", "1"), ("a", "2")):
        record_run(first, tmp_path / name, needed)
    assert recorded_runs(first) == {str(tmp_path / "a"): "2", str(tmp_path / "b"): "1"}
    shutil.copytree(first, copy)
    assert recorded_runs(copy) == {}
    record_run(copy, tmp_path / "a", "1")
    assert recorded_runs(copy) == {str(tmp_path / "a"): "1"}
    first.rename(tmp_path / "moved")
    assert len(recorded_runs(tmp_path / "moved")) == 2


def test_runs_that_start_at_the_same_time_are_all_recorded(tmp_path):
    runs = {str(tmp_path / name): "1" for name in "abcdefgh"}
    with ThreadPoolExecutor(len(runs)) as threads:
        [*threads.map(lambda run: record_run(tmp_path / "x", Path(run), "1"), runs)]
    assert recorded_runs(tmp_path / "x") == runs


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1, "data_dir": "/", "runs": 3}', "[]"])
def test_a_damaged_record_of_runs_names_none_with_a_warning(tmp_path, capsys, content):
    assert recorded_runs(tmp_path) == {}
    assert not capsys.readouterr().err
    (tmp_path / "runs.json").write_text(content)
    assert recorded_runs(tmp_path) == {}
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"warning: it is unknown which runs need {tmp_path}: {tmp_path}/runs.json"
    )


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
    "binarize": lambda force: binarize(FOLDER, BinarizeConfig(max_length=9), force=force),
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


@pytest.mark.parametrize("hold_out", [0, 5])
def test_other_validation_text_may_change_the_training_text(files, hold_out):
    """Less of it would be held out, and appended text would be gone."""
    folder, settings = Path("data/y"), {"cleaning": {"hold_out": hold_out}}
    prepare(RECIPE, folder, settings)
    if not hold_out:
        append_text(replace(LARGER, subword={}), folder)
    record_run(folder, RUN, DatasetIndex.load(folder / "bin").checksum("train"))
    before = contents(folder)
    with pytest.raises(UsageError, match=r"^runs/tiny could not be resumed .*--force\n  the "):
        prepare(replace(RECIPE, valid=numbers("valid", 9)), folder, settings)
    assert contents(folder) == before


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


def test_a_step_that_runs_again_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_numbers()
    settings = {"subword": {"vocab_size": 330}, "binarize": {"max_length": 90}}
    recipe = replace(RECIPE, subword={})
    prepare(recipe, FOLDER, settings)
    capsys.readouterr()
    for change, reason in (
        ({"binarize": {"max_length": 80}}, "binarize: data/x/bin again: max_length was 90, not 80"),
        ({"cleaning": {"max_characters": 99}}, "clean: data/x again: max_characters was "),
        ({"subword": {"vocab_size": 340}}, "learn-bpe: data/x again: vocab_size was 330, not 340"),
    ):
        settings |= change
        assert prepare(recipe, FOLDER, settings).data_dir == FOLDER
        assert reason in capsys.readouterr().err
    prepare(replace(recipe, train=LARGER.train), FOLDER, settings)
    printed = capsys.readouterr().err
    for step in ("clean", "learn-bpe"):
        assert f"{step}: data/x again: the training text has changed" in printed
    (FOLDER / "train.en").unlink()
    prepare(replace(recipe, train=LARGER.train), FOLDER, settings)
    assert "clean: data/x again: its files are gone" in capsys.readouterr().err


def test_appending_says_which_runs_need_the_dataset_as_it_was(files, capsys):
    append_text(replace(LARGER, subword={}), FOLDER)
    assert "warning: runs/tiny cannot be resumed" in capsys.readouterr().err
