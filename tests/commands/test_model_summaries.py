"""tfm models: what the folders of models below a folder say about them."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import CONFIG, WEIGHTS, Ancestor
from tfm.folders.run_folder import checkpoint_path
from tfm.folders.saving import save_checkpoint
from tfm.training.model_summaries import describe_export, find_models, summarize_model


@pytest.fixture
def make_folder(make_model, tmp_path):
    """Copy a model to a folder, with changes of its description."""
    model = make_model()
    info, weights = ModelFolder(model).info, ModelFolder(model).weights()
    files = {"bpe.model": (model / "bpe.model").read_bytes()}

    def make(name, **changes):
        path = tmp_path / name
        save_checkpoint(path, replace(info, **changes), weights, subword_files=files)
        return path

    return make


@pytest.fixture
def run_dir(make_folder, tmp_path):
    """A run with two checkpoints, of which the first is the better one, and their average."""
    run_dir = tmp_path / "runs" / "a"
    for step, bleu in ((100, 20.0), (200, 10.0)):
        path = checkpoint_path(run_dir, step).relative_to(tmp_path)
        make_folder(path, step=step, metrics={"loss": step / 100, "bleu": bleu})
    make_folder("runs/a/averaged", step=200, averaged=(100, 200))
    lines = [{"kind": "validation", "step": step, "bleu": 20.0} for step in (100, 300)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return run_dir


def test_the_best_checkpoint_of_a_run_and_its_average_are_listed(run_dir, tmp_path):
    best, average = found = find_models([tmp_path / "runs"])
    assert found == [checkpoint_path(run_dir, 100), run_dir / "averaged"]
    assert summarize_model(best).score == 20.0
    summary = summarize_model(average)
    assert (summary.kind, summary.score, summary.checkpoint_score) == ("averaged", None, 20.0)


def test_a_score_of_zero_is_shown(make_folder):
    summary = summarize_model(make_folder("models/x", step=5, metrics={"bleu": 0.0}))
    assert summary.cells()["BLEU"] == "0.0"


def test_a_summary_has_languages_size_and_license(make_folder, tiny_run):
    run = tiny_run(training={"license": "CC-BY-4.0"})
    path = make_folder("models/x", run=run, step=5)
    found = summarize_model(path)
    assert (found.kind, found.source, found.target, found.license) == (
        *("checkpoint", "en", "de", "CC-BY-4.0"),
    )
    assert found.num_parameters == sum(
        weight.numel() for weight in ModelFolder(path).weights().values()
    )
    assert found.num_bytes == sum(file.stat().st_size for file in path.iterdir())
    assert found.num_bytes > 4 * found.num_parameters


def test_a_model_has_the_license_and_origin_of_what_it_was_made_from(make_folder, tiny_run):
    def ancestor(license_, origin):
        return Ancestor(path="x", data_dir="", step=0, sha256="", license=license_, origin=origin)

    ancestors = (ancestor("MIT", "a"), ancestor("CC-BY-4.0", None), ancestor(None, None))
    found = summarize_model(make_folder("models/x", ancestors=ancestors))
    assert (found.license, found.origin) == ("CC-BY-4.0", "a")
    run = tiny_run(training={"license": "Apache-2.0"})
    found = summarize_model(make_folder("models/y", run=run, ancestors=ancestors))
    assert (found.license, found.origin) == ("Apache-2.0", "a")


def test_of_many_languages_the_first_are_listed(make_folder):
    found = summarize_model(make_folder("models/x", source="en", target="a+b+c+d+e"))
    assert found.cells()["languages"] == "en-a+b+c+d+… (5)"
    assert found.target == "a+b+c+d+e"


def test_a_model_that_no_training_made_here_was_imported(make_folder):
    assert summarize_model(make_folder("models/x", step=0)).kind == "imported"


def test_an_exported_model_keeps_what_is_known_about_it(make_folder, tmp_path, tiny_run):
    run = tiny_run(training={"license": "MIT"})
    model = make_folder("models/x", run=run, metrics={"bleu": 33.0})
    folder = tmp_path / "models" / "exported"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    describe_export(folder, model, "ctranslate2")
    assert find_models([tmp_path / "models"]) == [folder, model]
    expected = replace(summarize_model(model), model=str(folder), kind="ctranslate2")
    found = summarize_model(folder)
    assert replace(expected, num_bytes=found.num_bytes) == found
    assert found.num_bytes < 1_000


def test_models_of_other_programs_are_not_listed(make_folder, tmp_path):
    path = make_folder("models/theirs")
    (path / CONFIG).write_text('{"model_type": "marian"}')
    assert find_models([tmp_path / "models"]) == []


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, "bpe.model", "tfm.json"])
def test_a_damaged_model_is_listed_with_what_is_wrong(make_folder, tmp_path, name):
    path = make_folder("models/x")
    (path / name).write_text("}")
    assert find_models([tmp_path / "models"]) == [path]
    assert name in summarize_model(path).problem


def test_the_command_prints_a_table_or_json(run_dir, run, elsewhere):
    out, err = run.ok("models")
    assert err == ""
    head, *rows = [re.split(" {2,}", row) for row in out.splitlines()]
    assert head == ["model", "kind", "languages", "parameters", "size", "BLEU", "license", "origin"]
    assert [row[1] for row in rows] == ["checkpoint", "averaged"]
    assert [row[5] for row in rows] == ["20.0", "~20.0"]
    out, _ = run.ok("models", run_dir, "--json")
    assert [each["kind"] for each in json.loads(out)["models"]] == ["checkpoint", "averaged"]
    shutil.rmtree(run_dir)
    out, err = run.ok("models")
    assert (out, "none in runs/" in err) == ("", True)
