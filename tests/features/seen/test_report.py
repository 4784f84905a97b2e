"""What of a test set models have seen: in their dataset, and in those that they learned from."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import number_pairs, write_lines

from tfm.commands.binarize import binarize
from tfm.commands.score import score
from tfm.dataset.manifest import Manifest
from tfm.disk.files import sha256_of
from tfm.disk.paths import OutputPath, check_outputs
from tfm.errors import UsageError
from tfm.features.seen.report import find_seen
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import CONFIG, write_description
from tfm.text.seen import FILE, SeenText

NEW = [(f"Nobody wrote line {number} before.", f"Zeile {number} ist neu.") for number in range(6)]


@pytest.fixture(scope="module")
def training_pairs():
    return list(number_pairs("train", num_pairs=200, seed=1))


@pytest.fixture
def model(trained_run, tmp_path):
    """A model folder that tests may change."""
    path = ModelFolder.open(trained_run).path
    return ModelFolder(shutil.copytree(path, tmp_path / "model"))


@pytest.fixture
def own(make_dataset, tmp_path):
    """Another dataset."""
    return make_dataset(tmp_path / "own", {"train": [*NEW] * 5, "valid": NEW}, vocab_size=290)


def with_info(folder, **changes):
    """Change the description of a model."""
    digests = json.loads((folder.path / CONFIG).read_text(encoding="utf-8"))["sha256"]
    write_description(folder.path, replace(folder.info, **changes), digests)
    return ModelFolder(folder.path)


def counts(report):
    return {
        side: (of["exactly"], of["nearly"]) for side, of in report.seen.items() if any(of.values())
    }


def look_up(models, pairs):
    sources, targets = zip(*pairs, strict=True)
    return find(models, sources, targets)


def find(models, sources, *references):
    """Return the report of lines whose translations are their numbers, which are the scores."""
    numbers = [str(number) for number, _ in enumerate(sources)]
    return find_seen(models, sources, [numbers, *references], lambda found, _: found)


def test_a_model_names_the_record_of_its_dataset(trained_run, data_dir):
    assert ModelFolder.open(trained_run).info.seen == sha256_of(data_dir / FILE)


def test_pairs_and_single_sides_are_counted_exactly_and_nearly(model, training_pairs, data_dir):
    longest = max(training_pairs, key=lambda pair: len(pair[0].split()))
    assert len(longest[0].split()) >= 9
    pairs = [
        *NEW,
        training_pairs[0],
        tuple(side.upper() + " !!" for side in training_pairs[1]),
        (training_pairs[2][0], "Die Quelle ist bekannt."),
        ("The target is known.", training_pairs[3][1]),
        (longest[0] + " indeed", "Die Quelle ist fast bekannt."),
        (training_pairs[4][0], training_pairs[5][1]),  # of other pairs
    ]
    report = look_up([model], pairs)
    assert counts(report) == {"sources": (4, 1), "targets": (4, 0), "pairs": (3, 0)}
    assert report.num_clean == 6
    assert report.clean_scores == ["0", "1", "2", "3", "4", "5"]
    [(name, rate)] = report.datasets.items()
    assert name == str(data_dir)
    assert 0 < rate < 0.001


def test_any_reference_and_either_side_of_the_training_text_count(model, training_pairs):
    sources, targets = zip(*NEW, strict=True)
    source, target = training_pairs[0]
    report = find([model], sources, targets, [target, *targets[1:]])
    assert counts(report) == {"targets": (1, 0)}
    assert counts(look_up([model], [(target, source)]))["pairs"] == (1, 0)


def test_nothing_is_claimed_without_the_record_of_this_text(model, training_pairs, tmp_path):
    other_folders = {"data_dir": str(tmp_path)}, {"data_dir": ""}
    for changes in (*other_folders, {"seen": None}, {"seen": "0" * 64}):
        assert look_up([with_info(model, **changes)], training_pairs) is None


DAMAGE = [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    lambda path: path.write_bytes(b""),
]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("has_dataset", [True, False])
def test_a_record_that_a_model_names_and_that_is_gone_or_damaged_is_warned_of(
    model, training_pairs, data_dir, tmp_path, capsys, damage, has_dataset
):
    folder = tmp_path if has_dataset else model.path
    path = Path(shutil.copy(data_dir / FILE, folder / FILE))
    named = with_info(model, data_dir=str(folder) if has_dataset else "gone")
    assert look_up([named], training_pairs) is not None
    assert not capsys.readouterr().err
    damage(path)
    assert look_up([named], training_pairs) is None
    [line] = capsys.readouterr().err.splitlines()
    problem = f"{path} is damaged" if path.exists() else f"{FILE} is missing"
    assert f"{problem}, " in line.replace(", or of other text", "")
    assert line.endswith(f"tfm binarize {folder}" if has_dataset else f"copy it into {model}")


def test_a_copy_of_the_record_in_the_model_folder_is_enough(model, training_pairs, data_dir):
    shutil.copy(data_dir / FILE, model.path)
    moved = with_info(model, data_dir="gone")
    report = look_up([moved], training_pairs)
    assert counts(report)["pairs"] == (200, 0)


def test_text_of_ancestors_counts_and_those_without_a_record_are_named(model, training_pairs, own):
    parent = with_info(model).as_ancestor()
    ancestors = (replace(parent, path="imported", data_dir="", seen=None), parent)
    checksum = sha256_of(own / FILE)
    child = with_info(model, data_dir=str(own), seen=checksum, ancestors=ancestors)
    report = look_up([child], [NEW[0], training_pairs[0], ("Other.", "Anders.")])
    assert counts(report)["pairs"] == (2, 0)
    assert list(report.datasets) == [str(own), parent.data_dir, "imported"]
    assert report.datasets["imported"] is None
    assert "imported (not recorded)" in replace(report, clean_scores=[]).summary


def test_what_models_have_seen_that_wrote_some_of_the_text_counts(
    model, training_pairs, own, data_dir
):
    checksum = sha256_of(own / FILE)
    assert binarize(own, threads=1, written_by=[model.path]) is False
    assert sha256_of(own / FILE) != checksum
    [origin] = SeenText.load(own / FILE).origins
    assert (origin["path"], origin["data_dir"]) == (str(model), str(data_dir))
    student = with_info(model, data_dir=str(own), seen=sha256_of(own / FILE))
    report = look_up([student], [training_pairs[0]])
    assert counts(report)["pairs"] == (1, 0)
    assert list(report.datasets) == [str(own), str(data_dir)]
    assert Manifest.load(own).settings("binarize") == {"written_by": [str(model)]}
    shutil.rmtree(model.path)
    record = (own / FILE).read_bytes()
    binarize(own, threads=1, written_by=[model.path], force=True)
    assert (own / FILE).read_bytes() == record
    with pytest.raises(UsageError, match="does not exist"):
        binarize(own, threads=1, written_by=[model.path, "runs/none"])


def test_binarizing_makes_a_missing_or_damaged_record_again(own):
    before = (own / FILE).read_bytes()
    for damage in DAMAGE:
        damage(own / FILE)
        assert binarize(own, threads=1) is False
        assert (own / FILE).read_bytes() == before


def test_another_text_in_the_same_folder_is_named(model, training_pairs, data_dir):
    parent = replace(model.as_ancestor(), seen="0" * 64)
    report = look_up([with_info(model, ancestors=(parent,))], training_pairs)
    assert report.datasets.pop(str(data_dir)) is not None
    assert report.datasets == {f"{data_dir}, other text": None}


@pytest.fixture
def scored(elsewhere, tmp_path, model, training_pairs):
    """Score text of which half has been seen, by the record of a generation."""

    def run(hypotheses, **changes):
        pairs = [*NEW, *training_pairs[:6]]
        source, reference = (
            write_lines(tmp_path / name, [pair[side] for pair in pairs])
            for side, name in enumerate(("test.en", "test.de"))
        )
        record = {"format": 1, "model": [str(model)], "source": str(source)}
        record |= {"references": [str(reference)], "source_language": "en", "language": "de"}
        Path("runs").mkdir(exist_ok=True)
        Path("runs/last-generation.json").write_text(json.dumps(record | changes))
        write_lines(tmp_path / "out.de", hypotheses or [target for _, target in pairs])
        return score("out.de", reference)

    return run


def test_the_clean_part_is_scored_beside_the_whole(scored):
    hypotheses = ["ganz falsch"] * 3 + [target for _, target in NEW[3:]] + ["falsch"] * 6
    result = scored(hypotheses)
    assert result.seen.num_clean == 6
    [bleu, _] = result.scores
    [clean, chrf] = result.seen.clean_scores
    assert (clean.name, clean.signature, chrf.name) == ("bleu", bleu.signature, "chrf")
    assert clean.value > bleu.value > 0
    assert result.record()["seen"]["seen"]["pairs"] == {"exactly": 6, "nearly": 0}
    summary = result.seen.summary
    assert "sources 6 exactly, 0 nearly; targets 6 exactly, 0 nearly; pairs 6" in summary
    assert f"; neither: 6 lines, BLEU = {clean.value:.2f}, chrF2 = " in summary


def test_the_source_may_come_from_a_pipe(scored, tmp_path):
    whole = scored(None)
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb") as file:
        file.write((tmp_path / "test.en").read_bytes())
        file.close()
        source = f"/dev/fd/{reading}"
        result = score("out.de", tmp_path / "test.de", source=source, per_line="lines.tsv")
    assert result.seen == whole.seen


def test_only_this_text_and_others_of_as_many_lines_are_looked_up(scored, tmp_path):
    assert scored(None, references=[]).seen.num_clean == 6
    one, twelve = (str(write_lines(tmp_path / f"{n}", ["One."] * n)) for n in (1, 12))
    others = (
        {"references": [], "source": one},
        {"source": "standard input"},
        {"references": [twelve]},
    )
    for changes in others:
        assert scored(None, **changes).seen is None


def test_a_record_that_cannot_be_used_is_warned_of(scored, model, tmp_path, capsys):
    gone = tmp_path / "gone"
    for changes in ({"model": [str(gone)]}, {"model": [str(model), str(gone)]}, {}):
        if not changes:
            (model.path / CONFIG).write_text("{}")
        assert scored(None, **changes).seen is None
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("warning: it is unknown what of the text was seen in training: ")
    for changes in ({"format": 9}, {"model": 3}):
        assert scored(None, **changes).seen is None
        [line] = capsys.readouterr().err.splitlines()
        assert "record of the last generation is not used: " in line


def test_a_text_of_which_nothing_was_seen_is_not_scored_again(model):
    report = look_up([model], NEW)
    assert (counts(report), report.num_clean, list(report.clean_scores)) == ({}, 6, [])


def test_a_text_of_which_all_was_seen_has_no_clean_score(scored, monkeypatch):
    monkeypatch.setitem(globals(), "NEW", [])
    result = scored(None)
    assert (result.seen.num_clean, list(result.seen.clean_scores)) == (0, [])


def test_the_path_of_a_record_is_not_an_output(data_dir):
    with pytest.raises(UsageError, match="dataset"):
        check_outputs([OutputPath(path=data_dir / FILE, flag="--output")], read=[])
