"""tfm generate: line by line translation."""

import json
import os
import pty
import re
import shutil
import sys
from pathlib import Path

import pytest
from helpers import contents, edit_json, edit_model, python

from tfm.commands.generate import generate, plan_generation
from tfm.commands.translator import Translator
from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import DataError, UsageError
from tfm.folders.run_folder import checkpoints, record_dataset
from tfm.steps import ModelSteps
from tfm.translation import engine, generating
from tfm.translation.generating import generate_lines
from tfm.translation.workers import Workers

CPU = InferenceConfig(device="cpu", precision="fp32")

CONFIG = SearchConfig(max_extra_length=3)


@pytest.fixture
def plan(trained_run, tmp_path):
    """Plan to translate a file with the trained run, or other models."""

    def make(path, models=(trained_run,), split=None, **options):
        return plan_generation(models, input_path=path, split=split, **options)

    return make


@pytest.fixture
def generated():
    """Generate by a plan."""

    def run(plan, config=CONFIG, inference=CPU, **options):
        return list(generate_lines(plan, config, inference=inference, **options))

    return run


@pytest.fixture
def translated(plan, generated):
    """Translate a file with the trained run."""
    return lambda path, config=CONFIG: generated(plan(path), config)


def write(path, content):
    path.write_bytes(content)
    return path


DIRTY = [" on\tMonday", "on\xa0Monday", "\u200bon Monday ", "on Monday", "\u200b\ufeff"]


def test_lines_are_translated_in_order_as_by_the_library_and_returned_as_they_are(
    translated, trained_run, tmp_path, monkeypatch
):
    monkeypatch.setattr(engine, "CHUNK_LINES", 3)
    lines = ["seven", "", "today is the third of May", "", "", "8", "I am buying a car", *DIRTY]
    found = translated(write(tmp_path / "in", "".join(f"{line}\n" for line in lines).encode()))
    assert [line for line, _ in found] == lines
    texts = [best[0].text for _, best in found]
    assert texts == Translator.load(trained_run, device="cpu").translate(lines, CONFIG)
    *clean, empty = texts[-len(DIRTY) :]
    assert (set(clean), empty) == ({clean[0]}, "")
    assert [not text for text in texts[:-1]] == [not line for line in lines[:-1]]


def test_a_tree_has_the_words_that_the_parser_reads_as_the_user_wrote_them(
    plan, generated, make_model, tmp_path
):
    text = "\ufeffco\xadal\tf\x1bell\xa0\u200b .\n\u200b\n".encode()
    planned = plan(write(tmp_path / "in", text), [make_model(task="parsing")])
    model = ModelSteps(info=planned.info, folder=planned.models[0])
    found = generated(planned, steps=model.around(CONFIG))
    [first], [second] = [best for _, best in found]
    assert re.findall(r"\(XX ([^\s)]+)\)", first.text) == ["co\xadal", "fell", "."]
    assert second.text == ""


def test_standard_input_is_read_when_it_has_text(plan, generated, tmp_path, monkeypatch):
    with write(tmp_path / "in", b"seven\n\n8\n").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        planned = plan(None)
        assert (planned.source, planned.text) == (None, "standard input")
        assert [line for line, _ in generated(planned)] == ["seven", "", "8"]


@pytest.fixture
def terminal(monkeypatch):
    """An empty standard input."""
    with Path(os.devnull).open() as file:
        monkeypatch.setattr("sys.stdin", file)
        yield


@pytest.fixture
def user():
    """Both ends of a pseudo-terminal: the user's, and that of the process."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_typed_sentences_get_a_hint_and_no_progress_bar(translated, user, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    os.write(user[0], b"seven\n8\n\x04")
    with open(user[1], closefd=False) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert [line for line, _ in translated(Path("-"))] == ["seven", "8"]
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1] == "type a sentence, then Enter; Ctrl-D ends"
    assert "loading the model" in shown
    assert "lines/s" not in shown


@pytest.mark.usefixtures("terminal")
def test_without_text_the_test_set_of_the_newest_run_is_translated(
    trained_run, data_dir, elsewhere, tmp_path, capsys
):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tiny").symlink_to(trained_run)
    record = tmp_path / "runs" / "last-generation.json"
    record.mkdir()
    planned = plan_generation([])
    assert [model.path for model in planned.models] == [checkpoints(Path("runs/tiny"))[-1]]
    assert (planned.source, planned.split) == (data_dir / "test.en", "test")
    assert planned.references == [data_dir / "test.de"]
    for is_writable in (False, True):
        assert len([*generate(device="cpu", max_extra_length=3)]) == 12
        assert ("needs --reference" in capsys.readouterr().err) is not is_writable
        if not is_writable:
            record.rmdir()
    note = json.loads(record.read_text())
    assert note["references"] == [str(data_dir / "test.de")]
    assert note["language"] == "de"


@pytest.mark.parametrize("path", [None, Path("-")])
def test_a_closed_standard_input_is_a_mistake_unless_it_is_not_read(
    plan, data_dir, monkeypatch, path
):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match=r"standard input is closed: .*--input FILE.*--split test"):
        plan(path)
    for planned in (plan(data_dir / "test.en"), plan(None, split="test")):
        assert planned.source == data_dir / "test.en"


def test_a_dataset_that_is_missing_or_no_longer_fits_the_model_is_refused(
    plan, trained_run, data_dir, tmp_path
):
    model = shutil.copytree(checkpoints(trained_run)[-1], tmp_path / "model")
    edit_model(model, data_dir="data/gone")
    with pytest.raises(DataError, match=r"data/gone, the dataset of .*model, does not exist"):
        plan(None, [model], split="test")
    for change in ({"source": "de", "target": "en"}, {"settings": {"task": "parsing"}}):
        data = shutil.copytree(data_dir, tmp_path / str(len(change)))
        edit_json(data / "manifest.json", **change)
        edit_model(model, data_dir=str(data))
        with pytest.raises(DataError, match=r"is now for \w+ from \w\w to \w\w, but the model is"):
            plan(None, [model], split="test")


# --- prefixes and targets


def test_targets_are_scored_as_in_the_library_and_summed(
    plan, generated, trained_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(engine, "CHUNK_LINES", 2)
    lines, targets = ["seven", "", "on Monday"], ["sieben", "x", "am Montag"]
    paths = [
        write(tmp_path / name, "\n".join(each).encode())
        for name, each in (("in", lines), ("targets", targets))
    ]
    found = [(line, target) for line, [target] in generated(plan(paths[0], targets=paths[1]))]
    expected = Translator.load(trained_run, device="cpu").score_targets(lines, targets, CONFIG)
    assert [line for line, _ in found] == lines
    for (_, scored), other in zip(found, expected, strict=True):
        assert (scored.text, scored.pieces) == (other.text, other.pieces)
        assert scored.log_prob == pytest.approx(other.log_prob, abs=1e-4)
    num_tokens = sum(len(scored.pieces) for _, scored in found)
    total = sum(scored.log_prob for _, scored in found)
    assert (
        f"generate: 3 targets of {num_tokens} tokens, EOS included: "
        f"log probability {total:,.1f}, perplexity "
    ) in capsys.readouterr().err


def test_files_of_different_length_are_refused_before_any_work(plan, tmp_path):
    text, other = write(tmp_path / "in", b"a\nb\n"), write(tmp_path / "other", b"a\nb\nc")
    for kind in ("prefixes", "targets"):
        with pytest.raises(DataError, match=r"in has 2 lines, but .*other has 3: line N of one"):
            plan(text, **{kind: other})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\nc\n", "standard input ends after 3 lines, but .*other has more: line N of one"),
        (b"a\nb\n\nd\ne\n", "other ends after 4 lines, but standard input has more: line N of one"),
    ],
)
def test_a_pipe_of_another_length_is_refused_when_it_ends(
    plan, generated, tmp_path, monkeypatch, content, message
):
    monkeypatch.setattr(engine, "CHUNK_LINES", 2)
    other = write(tmp_path / "other", b"A\nB\nC\nD\n")
    with write(tmp_path / "in", content).open() as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(DataError, match=message):
            generated(plan(None, prefixes=other))


def test_the_number_of_processes_does_not_change_the_output(
    plan, generated, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(engine, "CHUNK_LINES", 2)
    monkeypatch.setattr("tfm.reporting._PLAIN_LINE_SECONDS", float("inf"))  # on a busy machine
    text = write(tmp_path / "in", b"seven\non Monday\n\n8\nseven\n")
    config = SearchConfig(search="exact", max_extra_length=1, node_limit=3)
    each = []
    for num_processes in (1, 2):
        found = generated(plan(text), config, num_processes=num_processes)
        each.append([[best[0].text for _, best in found], capsys.readouterr().err])
    assert each[0] == each[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks processes")
@pytest.mark.parametrize(
    ("num_lines", "num_processes", "num_threads", "is_divided"),
    [(9, None, 2, False), (10, None, 2, True), (10, 1, 2, False), (10, None, 1, False)],
)
def test_a_long_text_is_divided_among_the_threads_of_a_cpu(
    plan, generated, tmp_path, monkeypatch, num_lines, num_processes, num_threads, is_divided
):
    monkeypatch.setattr(generating, "MIN_LINES_TO_DIVIDE", 10)
    started: list[Workers] = []
    monkeypatch.setattr(Workers, "__exit__", lambda self, *_: started.append(self) or self._end())
    inference = InferenceConfig(device="cpu", precision="fp32", threads=num_threads)
    planned = plan(write(tmp_path / "in", b"seven\n" * num_lines))
    results = generated(planned, inference=inference, num_processes=num_processes)
    found = [best[0].text for _, best in results]
    assert len(found) == num_lines
    assert len(set(found)) == 1
    assert bool(started) == is_divided


def test_exact_search_reports_the_number_of_proven_translations(translated, tmp_path, capsys):
    config = SearchConfig(search="exact", max_extra_length=1, node_limit=3, length_penalty=3.0)
    found = translated(write(tmp_path / "in", b"seven\n\non Monday\n"), config)
    num_proven = sum(best[0].proven is True for _, best in found)
    assert (
        f"generate: {num_proven} of 2 translations are proven optimal; {2 - num_proven} are not, "
        "within --node-limit 3"
    ) in capsys.readouterr().err


# --- the command


@pytest.fixture
def command(run, trained_run, elsewhere):
    """Run tfm generate on a file of two lines; return stdout and stderr."""
    write(elsewhere / "in.en", b"seven\non Monday\n")
    write(elsewhere / "out.de", b"sieben\nam Montag\n")
    (elsewhere / "model").symlink_to(checkpoints(trained_run)[-1])

    def call(arguments, given="--input in.en"):
        return run.ok(*f"generate model {given} --device cpu {arguments}".split())

    return call


@pytest.mark.usefixtures("terminal")
def test_without_input_the_first_line_names_the_test_set_that_is_translated(command, data_dir):
    for flags, start in (
        ("", "generate: no input was given (--input or a pipe), so model translates the test "),
        ("--split test", f"generate: model translates {data_dir / 'test.en'}"),
    ):
        out, err = command(f"--max-extra-length 1 {flags}", given="")
        assert out.count("\n") == 12
        assert err.startswith(start)
        assert str(data_dir / "test.en") in err.splitlines()[0]


def test_only_the_json_of_exact_search_has_proven(command):
    out, _ = command("--search exact --max-extra-length 1 --node-limit 2 --json")
    for line in out.splitlines():
        [best] = json.loads(line)["translations"]
        assert isinstance(best["proven"], bool)
    out, _ = command("--max-extra-length 1 --json")
    [best] = json.loads(out.splitlines()[0])["translations"]
    assert set(best) == {"text", "score", "log_prob"}


def test_targets_are_printed_as_lines_tokens_or_json(command, tmp_path):
    (tmp_path / "runs").mkdir()
    out, _ = command("--score-target out.de")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [text for *_, text in rows] == ["sieben", "am Montag"]
    assert not (tmp_path / "runs" / "last-generation.json").exists()
    out, _ = command("--score-target out.de --per-token")
    tokens = [line.split("\t") for line in out.splitlines()]
    out, _ = command("--score-target out.de --json")
    records = [json.loads(line) for line in out.splitlines()]
    for number, (row, record) in enumerate(zip(rows, records, strict=True), 1):
        score, log_prob, num_tokens, text = row
        own = [(piece, float(value)) for index, value, piece in tokens if index == str(number)]
        assert record["target"] == text
        assert (record["score"], record["log_prob"]) == (
            pytest.approx(float(score), abs=1e-4), pytest.approx(float(log_prob), abs=1e-4)
        )  # fmt: skip
        assert len(own) == int(num_tokens) == len(record["tokens"])
        assert sum(value for _, value in own) == pytest.approx(float(log_prob), abs=1e-2)
        assert [piece for piece, _ in own] == [token["piece"] for token in record["tokens"]]
        assert own[-1][0] == "</s>"


def test_flags_override_the_settings_of_the_model(command, tmp_path):
    folder = shutil.copytree(tmp_path / "model", tmp_path / "own")
    edit_model(folder, search={"beam_size": 2, "length_penalty": 0.0, "max_extra_length": 3})
    (tmp_path / "model").unlink()
    (tmp_path / "model").symlink_to(folder)
    out, _ = command("--json")
    for line in out.splitlines():
        [best] = json.loads(line)["translations"]
        assert best["score"] == best["log_prob"]
    out, _ = command("--json --length-penalty 1")
    assert any(
        best["score"] != best["log_prob"]
        for line in out.splitlines()
        for best in json.loads(line)["translations"]
    )
    # Sampling ignores the model's beam size without an error.
    command("--search sample")


def test_output_to_a_file_is_that_of_standard_output(command, tmp_path):
    for arguments in ("", "--json", "--n-best 2", "--score-target out.de"):
        expected, _ = command(arguments)
        assert command(f"{arguments} --output -")[0] == expected
        assert command(f"{arguments} --output new/found.de")[0] == ""
        assert (tmp_path / "new" / "found.de").read_text(encoding="utf-8") == expected


@pytest.fixture
def own_folders(trained_run, data_dir, tmp_path):
    """A run and its dataset that a test may change: folders "run" and "data"."""
    shutil.copytree(data_dir, tmp_path / "data")
    run_dir = shutil.copytree(trained_run, tmp_path / "run")
    for path in checkpoints(run_dir):
        edit_model(path, data_dir=str(tmp_path / "data"))
    record_dataset(run_dir, tmp_path / "data")
    (tmp_path / "exported").mkdir()
    for name in ("config.json", "model.bin"):  # as of CTranslate2
        (tmp_path / "exported" / name).write_text("{}", encoding="utf-8")


@pytest.mark.usefixtures("own_folders")
def test_files_of_datasets_models_and_runs_are_never_overwritten(command, run, tmp_path):
    before = contents(tmp_path)
    for output, kind in (
        ("data/train.en", "dataset"),
        ("data/valid.fr", "dataset"),  # would be taken for the text of a split
        ("data/bin/train.en.tokens.npy", "dataset"),
        ("run/checkpoints/step-00000008/bpe.model", "model"),
        ("run/checkpoints/step-00000008/alignment.json", "model"),
        ("exported/model.bin", "model"),
        ("exported/vocab.json", "model"),
        ("exported/source.spm", "model"),
        ("run/config.toml", "run"),
        ("run/data.json", "run"),
    ):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / output)
        for name in (output, "link"):
            pattern = f"{name} belongs to a {kind}: choose another name with --output"
            run.fails(2, pattern, "generate", "model", "--input", "in.en", "--output", name)
    (tmp_path / "link").unlink()
    given = ("generate", "model", "--input", "in.en", "--output", "runs/last-generation.json")
    run.fails(2, ".*last-generation.json belongs to tfm generate: choose another name .*", *given)
    assert contents(tmp_path) == before
    for _ in range(2):  # other files in these folders
        command("--output data/test.beam4.de")


@pytest.mark.usefixtures("own_folders")
def test_text_and_reference_of_a_test_set_are_not_overwritten(plan, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "data" / "test.de")
    (tmp_path / "hard link").hardlink_to(tmp_path / "data" / "test.de")
    for output in ("data/test.en", "data/test.de", "link", "hard link"):
        with pytest.raises(UsageError, match=f"{output} would be both read and overwritten"):
            plan(None, [tmp_path / "run"], split="test", output=tmp_path / output)


def test_a_file_that_is_standard_input_is_not_overwritten(trained_run, tmp_path):
    text = write(tmp_path / "in.en", b"seven\n")
    with text.open() as stdin:
        command = ("-m", "tfm", "generate", trained_run, "--output", text)
        done = python(*command, cwd=tmp_path, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tfm: {text} would be both read and overwritten: ")
    assert text.read_bytes() == b"seven\n"


@pytest.mark.usefixtures("command")
def test_a_file_stays_as_it_was_if_translating_fails(run, tmp_path):
    older = write(tmp_path / "found.de", b"older\n")
    write(tmp_path / "in.en", b"seven\n\xff\n")
    assert run("generate", "model", "--input", "in.en", "--output", "found.de")[:2] == (1, "")
    assert older.read_bytes() == b"older\n"
    assert not [*tmp_path.glob(".found.de*")]


def test_the_progress_bar_is_shown_if_translations_go_to_a_file(command, user, monkeypatch):
    monkeypatch.setattr("tfm.reporting._BestEffortFile.isatty", lambda _: True)
    monkeypatch.setattr("tfm.reporting._BAR_SECONDS", 0)
    monkeypatch.setenv("TERM", "xterm")
    with open(user[1], "w", closefd=False) as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert "\rgenerate 2/2 · " in command("--output found.de")[1]
        assert "\rgenerate 2" not in command("")[1]


def test_constraints_on_the_words_of_trees_are_refused(run, elsewhere, make_model):
    make_model(task="parsing")
    write(elsewhere / "in.en", b"seven\n")
    for arguments in (("--ban", "in.en"), ("--no-repeat-ngram", 2)):
        command = ("generate", "model", "--input", "in.en", *arguments)
        run.fails(2, ".* has no effect on task parsing, .*", *command)
