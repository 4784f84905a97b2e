"""tfm evaluate: models by test sets."""

import gzip
import json
import re
import shutil
import sys
from pathlib import Path
from statistics import fmean, stdev

import pytest
from helpers import edit_model
from html_pages import is_self_contained, read_page, text_of
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

import tfm
from tfm.backends import selection
from tfm.commands import evaluate as command
from tfm.config import InferenceConfig
from tfm.dataset.test_sets import NamedSet
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.folders.run_folder import checkpoints
from tfm.translation import engine
from tfm.translation.partial_output import PartialOutput

FAST = {"beam": 1, "max_extra_length": 5, "device": "cpu", "bootstrap_samples": 50}


@pytest.fixture
def models(trained_run, data_dir, tmp_path, monkeypatch):
    """Return copies of two checkpoints, in a folder with the dataset's test text as files."""
    monkeypatch.chdir(tmp_path)
    for side in ("en", "de"):
        shutil.copy(data_dir / f"test.{side}", f"news.{side}")
    first, *_, last = checkpoints(trained_run)
    return [shutil.copytree(path, tmp_path / name) for name, path in (("b", last), ("a", first))]


@pytest.fixture
def translated(monkeypatch):
    """Return the texts that are translated, as they come."""
    texts = []

    def generate(models, **others):
        texts.append((models[0].name, others["input"].name))
        return tfm.generate(models, **others)

    monkeypatch.setattr(command, "generate", generate)
    return texts


def outputs(of_set):
    return {name: each.hypotheses for name, each in of_set.results.items()}


def lines_of(path):
    return Path(path).read_text(encoding="utf-8").splitlines()


def test_significance_and_intervals_equal_those_of_sacrebleu(models, data_dir, monkeypatch):
    def without_some_words(models, *, output, **others):
        kept = 4 if models[0].name == "b" else 3
        lines = [line.split() for line in lines_of(others["input"].with_suffix(".de"))]
        words = [[w for n, w in enumerate(line, 2) if n % kept] for line in lines]
        output.write_text("".join(" ".join(line) + "\n" for line in words), encoding="utf-8")

    monkeypatch.setattr(command, "generate", without_some_words)
    (models[0].parent / "evaluation").mkdir()
    result = tfm.evaluate(models, on=["valid", "test", "news.en:news.de"], **FAST)
    names = [*result.systems]
    assert names == [str(path) for path in models]
    assert [each.name for each in result.sets] == ["valid", "test", "news.en:news.de"]
    references = lines_of(data_dir / "test.de")
    for each in result.sets[1:]:
        systems = [(name, lines_of(path)) for name, path in outputs(each).items()]
        metrics = {"BLEU": BLEU(references=[references]), "chrF2": CHRF(references=[references])}
        _, theirs = PairedTest(systems, metrics, None, test_type="bs", n_samples=50)()
        for label, scored in theirs.items():
            if label == "System":
                continue
            ours = [
                next(score for score in each.results[name].scores if score.label == label)
                for name in names
            ]
            assert [score.value for score in ours] == [their.score for their in scored]
            compared = [score.comparison for score in ours]
            assert [score.interval for score in ours] == [their.ci for their in scored]
            assert compared[0] is None
            assert compared[1].p_value == scored[1].p_value


def test_what_each_model_has_seen_is_shown_beside_the_sets(models, data_dir, tmp_path):
    for side in ("en", "de"):
        lines = lines_of(data_dir / f"train.{side}")[:3] + lines_of(data_dir / f"test.{side}")[:1]
        (tmp_path / f"mixed.{side}").write_text("\n".join(lines), encoding="utf-8")
    tfm.evaluate(models[:1], on=["test"], **FAST)  # another text is the last
    edit_model(models[1], seen=None)
    result = tfm.evaluate(models, on=["mixed.en:mixed.de"], **FAST)
    seen = [each.seen for each in result.sets[0].results.values()]
    assert [each and each.num_clean for each in seen] == [1, None]


def test_systems_given_by_files_are_compared_and_named(models, translated):
    shutil.copy("news.de", "perfect.txt")
    Path("short.txt").write_text("zwei\n")
    given = {"on": ["test", "news.en:news.de"], **FAST}
    result = tfm.evaluate(models[0], system=["web=perfect.txt"] * 2, **given)
    for each in result.sets:
        ours, theirs = (each.results[name].scores[0] for name in result.systems)
        assert (round(theirs.value), theirs.comparison.baseline) == (100, ours.value)
        first, *_, last = each.differing["web"]
        assert (first.texts[1][2], last.texts[1][2]) == ({"chrF": 100}, {"chrF": 100})
        assert first.source == lines_of("news.en")[int(first.label[5:]) - 1]
    assert ", web is better by " in result.answer()[0]
    count = len(translated)
    for wrong, error in {
        ("web=perfect.txt",): "1 of 2 files",
        ("perfect.txt",): "give NAME=FILE",
        (f"{models[1]}=perfect.txt",) * 2: "a NAME that is no model here",
        ("web=short.txt",) * 2: "have 1 and 12 lines",
    }.items():
        with pytest.raises((UsageError, DataError), match=error):
            tfm.evaluate(models[1], system=wrong, **given)
    assert len(translated) == count


def test_models_that_differ_only_by_their_seed_form_a_group(models):
    run = json.loads((models[1] / "config.json").read_text())["run"]
    seed = {"training": {**run["training"], "seed": 7}}
    edit_model(models[1], run={**run, **seed})
    result = tfm.evaluate(models, on="test", **FAST)
    [(group, names)] = result.groups.items()
    assert group.endswith("/{b,a}")
    assert names == [str(path) for path in models]
    scores = [result.sets[0].results[name].scores[1].value for name in names]
    mean = result.sets[0].groups[group][1]
    assert (mean.value, mean.deviation) == (fmean(scores), stdev(scores))
    edit_model(models[1], run={**run, **seed, "optimizer": {**run["optimizer"], "clip_norm": 3}})
    assert len(tfm.evaluate(models, on="test", **FAST).groups) == 2


def test_translations_and_scores_are_those_of_generate_and_score(models):
    search = {key: FAST[key] for key in ("beam", "max_extra_length", "device")}
    result = tfm.evaluate(models[0], on="test", metric=["chrf", "ter"], **FAST)
    [test] = result.sets
    tfm.generate(models[0], split="test", output="out.de", **search)
    [output] = outputs(test).values()
    assert lines_of(output) == lines_of("out.de")
    scores = tfm.score("out.de", "news.de", metric=["chrf", "ter"]).scores
    found = test.results[str(models[0])].scores
    assert [(s.label, s.value) for s in found] == [(s.label, s.value) for s in scores]


def test_a_program_scores_and_chooses_only_if_that_is_asked(models):
    of_source = "awk -F'\\t' '{print length($1); fflush()}'"
    [test] = tfm.evaluate(models, on="test", metric_command=of_source, **FAST).sets
    mean = sum(len(line.encode()) for line in lines_of("news.en")) / len(lines_of("news.en"))
    for scores in (each.scores for each in test.results.values()):
        assert [score.name for score in scores] == ["bleu", "chrf", "command"]
        assert scores[-1].value == pytest.approx(mean, rel=1e-4)


def test_a_model_that_is_replaced_meanwhile_is_refused(models, monkeypatch):
    def generate(given, **settings):
        shutil.rmtree(models[1])
        shutil.copytree(models[0], models[1])
        return tfm.generate(given, **settings)

    monkeypatch.setattr(command, "generate", generate)
    with pytest.raises(CheckpointError, match="a was removed or replaced meanwhile"):
        tfm.evaluate(models, on="test", **FAST)


def test_a_kept_translation_is_used_only_if_it_is_what_would_be_written(
    models, translated, tmp_path, monkeypatch
):
    program = tmp_path / "metric.py"
    program.write_text("import sys\nfor line in sys.stdin: print(len(line), flush=True)\n")
    given = {"on": ["test", "news.en:news.de"], "n_best": 2, "mbr": "command", **FAST, "beam": 2}
    given["metric_command"] = f"{sys.executable} metric.py"
    arithmetic = selection.chosen_arithmetic(InferenceConfig(device="cpu"))
    monkeypatch.setattr(selection, "chosen_arithmetic", lambda _: arithmetic)

    def translate(number, **changes):
        result = tfm.evaluate(models[0], **given | changes)
        assert len(translated) == number
        return outputs(result.sets[0])[str(models[0])]

    translate(2)
    translate(2, lowercase=True)  # only the scores
    translate(4, max_extra_length=4)
    program.write_text(f"{program.read_text()} # changed")
    translate(6)
    arithmetic = {**arithmetic, "kernels": "others"}
    path = Path(translate(8))
    kept = path.read_bytes()
    for changed in (kept[:-5], kept.replace(b"e", b"a", 1), b""):
        path.write_bytes(changed)
        with pytest.raises(DataError, match="has changed since tfm evaluate wrote it: delete it"):
            translate(8)
        assert path.read_bytes() == changed
    path.write_bytes(kept)
    with pytest.raises(UsageError, match="would be both read and overwritten"):
        tfm.evaluate(models[0], **given | {"page": path})
    path.unlink()
    assert Path(translate(9)).read_bytes() == kept
    shutil.rmtree(models[0])
    shutil.copytree(models[1], models[0])  # other weights in the same folder
    translate(11)


def test_a_stopped_evaluation_continues(models, monkeypatch, capsys):
    complete = tfm.evaluate(models[0], on="test", out="other", **FAST)
    commit = PartialOutput.commit

    def stop(output, lines):
        commit(output, lines)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "CHUNK_LINES", 2)
    monkeypatch.setattr(PartialOutput, "commit", stop)
    with pytest.raises(KeyboardInterrupt):
        tfm.evaluate(models[0], on="test", **FAST)
    monkeypatch.setattr(PartialOutput, "commit", commit)
    capsys.readouterr()
    continued = tfm.evaluate(models[0], on="test", **FAST)
    assert re.search(
        r"continuing evaluation/test\.b\.\w+\.txt\.partial at line \d", capsys.readouterr().err
    )
    [one, other] = [next(iter(e.sets[0].results.values())) for e in (continued, complete)]
    assert one.scores == other.scores


def test_a_test_set_is_named(models, monkeypatch, tmp_path):
    texts = ["two\nthree\n", "zwei\ndrei\n", "Zwei\nDrei\n"]
    monkeypatch.setattr(NamedSet, "fetch", lambda named, downloads: {str(named): downloads.mirror})
    monkeypatch.setattr(NamedSet, "read", lambda named, files: texts * (files != {}))
    [each] = tfm.evaluate(models[0], on="wmt20/tworefs", **FAST).sets
    names = ["wmt20_tworefs.en-de.2.de", "wmt20_tworefs.en-de.de", "wmt20_tworefs.en-de.en"]
    assert sorted(path.name for path in (tmp_path / "evaluation" / "sets").iterdir()) == names
    assert "nrefs:2" in next(iter(each.results.values())).scores[0].signature
    assert next(iter(each.results.values())).num_lines == 2


@pytest.mark.parametrize("name", ["x.tsv", "x.csv.gz", "x.jsonl", "x.tmx"])
def test_a_file_with_both_sides_is_a_test_set(models, name):
    units = "".join(
        f"<tu><tuv lang='en'><seg>{s}</seg></tuv><tuv lang='de'><seg>{t}</seg></tuv></tu>"
        for s, t in (("two", "zwei"), ("three", "drei"))
    )
    content = {
        "x.tsv": "two\tzwei\nthree\tdrei\n",
        "x.csv.gz": "German,English\nzwei,two\ndrei,three\n",
        "x.jsonl": '{"en": "two", "de": "zwei"}\n{"en": "three", "de": "drei"}\n',
        "x.tmx": f"<tmx><body>{units}</body></tmx>",
    }[name].encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    for side, lines in {"en": "two\nthree\n", "de": "zwei\ndrei\n"}.items():
        Path(f"plain.{side}").write_text(lines)
    one, other = tfm.evaluate(models[0], on=[name, "plain.en:plain.de"], **FAST).sets
    [one, other] = [each.results[str(models[0])] for each in (one, other)]
    assert one.scores == other.scores
    assert one.num_lines == 2


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"on": []}, UsageError, "on is empty: name a test set"),
        ({"on": "wmt41"}, UsageError, "no test set 'wmt41': did you mean"),
        ({"on": "news.en:gone.de"}, UsageError, r"gone\.de does not exist"),
        ({"on": "src.SGM"}, UsageError, r"src\.SGM has no reference: give SOURCE:REFERENCE"),
        ({"on": "ref.xml"}, UsageError, r"ref\.xml has no source: give SOURCE:REFERENCE"),
        ({"on": "bad.jsonl"}, DataError, r"bad\.jsonl, line 1 is no JSON"),
        ({"on": "wmt14:en-fr"}, UsageError, "wmt14:en-fr is not from en to de"),
        ({"n_best": 2, "beam": 2}, UsageError, "one translation of each line"),
        ({"metric": "ter", "tokenize": "zh"}, UsageError, "only on bleu"),
        ({"metric": "blue"}, UsageError, "no metric"),
    ],
)
def test_mistakes_are_found_before_anything_is_translated(
    models, translated, given, error, message
):
    for kind, name in (("src", "src.SGM"), ("ref", "ref.xml")):
        Path(name).write_text(f"<{kind}set><doc><seg id=1>Two.</seg></doc></{kind}set>\n")
    Path("bad.jsonl").write_text("{\n")
    with pytest.raises(error, match=message):
        tfm.evaluate(models, **{"on": "test", "device": "cpu", **given})
    assert translated == []


def test_a_model_without_its_dataset_needs_another_text(models):
    edit_model(models[0], data_dir="gone")
    with pytest.raises(DataError, match="name a test set, or SOURCE:REFERENCE"):
        tfm.evaluate(models[0], on="test", **FAST)


def test_results_are_printed_in_every_form(models, run):
    flags = ["--beam", "1", "--max-extra-length", "5", "--device", "cpu", "--bootstrap-samples"]
    given = ["evaluate", "b", "a", "--on", "news.en:news.de", *flags, "50", "--page", "s.html"]

    def printed(*form):
        return run.ok(*given, *form)[0]

    record = json.loads(printed("--json"))
    [each] = record["sets"]
    value = f"{each['results']['b']['scores'][1]['value']:.2f}"
    assert {name: of["seen"]["num_clean"] for name, of in each["results"].items()} == {
        "b": 12,
        "a": 12,
    }
    table, markdown, latex = printed(), printed("--markdown"), printed("--latex")
    assert table.splitlines()[:1] == record["answer"]
    assert table.splitlines()[2].split() == ["BLEU", "news.en:news.de", "(12)"]
    assert markdown.splitlines()[:1] == record["answer"]
    assert "| BLEU " in markdown
    assert latex.splitlines()[:3] == [f"% {record['answer'][0]}", "", r"\begin{tabular}{lr}"]
    page = read_page(Path("s.html"))
    assert is_self_contained(page)
    assert page.find(".//script") is None
    assert all(f"{value} " in text for text in (table, markdown, latex, text_of(page)))
    run.fails(2, ".*exclude each other: give one", *given, "--json", "--latex")
