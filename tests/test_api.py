"""The stages as functions of the package."""

import contextlib
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import stub
from helpers import number_pairs, write_lines, write_pairs

import tfm
from tfm.commands.declaration import command
from tfm.commands.translator import Translator
from tfm.errors import DataError, InterruptedRunError, TfmError, UsageError
from tfm.folders.run_folder import checkpoints, step_of

pytestmark = pytest.mark.usefixtures("elsewhere")

SMALL = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 2,
    "validation_beam": 0,
    "best_metric": "loss",
    "device": "cpu",
    "precision": "fp32",
    "checkpoint_steps": 2,
    "max_steps": 6,
}
AS_FLAGS = [
    word for name, value in SMALL.items() for word in (f"--{name}".replace("_", "-"), value)
]


@pytest.fixture
def text(elsewhere):
    """Write a small text for each split into the current folder."""
    for split, size in {"train": 150, "valid": 8, "test": 8}.items():
        write_pairs(elsewhere, split, list(number_pairs(split, num_pairs=size, seed=1)))


def weights(model_dir):
    """Return the checksum of a model's weights."""
    return json.loads((Path(model_dir) / "config.json").read_text())["sha256"]["model.safetensors"]


def test_functions_and_commands_give_the_same_results(run, elsewhere, text, capfd):
    prepared = tfm.prepare(
        train=("train.en", "train.de"),
        valid=("valid.en", elsewhere / "valid.de"),
        test=["test.en", "test.de"],
        out="data/one",
        vocab_size=300,
        character_coverage=0.99,
    )
    assert (str(prepared.data_dir), prepared.is_new) == ("data/one", True)
    assert tfm.train(run="runs/one", arch="tiny", **SMALL).step == 6
    averaged = tfm.average(out="runs/averaged", last=2)
    assert averaged.steps == [4, 6]

    texts = (f"--{split} {split}.en {split}.de".split() for split in ("train", "valid", "test"))
    flags = ["--out", "data/two", "--vocab-size", "300", "--character-coverage", "0.99"]
    run("prepare", *(word for words in texts for word in words), *flags)
    run("train", "data/two", "--run", "runs/two", "--arch", "tiny", *AS_FLAGS)
    run("average", "--last", "2")
    assert weights("runs/one/checkpoints/step-00000006") == weights(
        "runs/two/checkpoints/step-00000006"
    )
    assert weights("runs/averaged") == weights("runs/two/averaged")
    (elsewhere / "out.de").write_text((elsewhere / "test.de").read_text().replace("e", "a"))
    found = tfm.score("out.de", "test.de", metric=["bleu", "ter"], lowercase=True, paper=True)
    words = "--hypotheses out.de --reference test.de --metric bleu --metric ter --lowercase --paper"
    code, out, _ = run("score", *words.split(), "--json")
    assert (code, json.loads(out)) == (0, found.record())
    assert [score.name for score in found.scores] == ["bleu", "paper-bleu", "ter"]
    assert len(tfm.Translator.load(averaged.model_dir).translate(["seven"], beam=2)) == 1

    lines = [*tfm.generate("runs/averaged", input="test.en", beam=2)]
    assert [*tfm.generate("runs/averaged", input="test.en", output="found.de", beam=2)] == []
    assert (elsewhere / "found.de").read_text() == "".join(lines)
    assert run("generate", "runs/averaged", "--input", "test.en", "--beam", "2")[1] == "".join(
        lines
    )
    assert len([*tfm.generate(split="test", json=True)]) == 8  # the newest run


def test_the_newest_dataset_and_run_are_the_defaults(elsewhere, data_dir, capfd):
    (elsewhere / "data").mkdir()
    (elsewhere / "data" / "tiny").symlink_to(data_dir)
    result = tfm.train(arch="tiny", **SMALL, average=False)
    assert str(result.run_dir) == "runs/tiny-tiny"
    assert str(tfm.average().model_dir) == "runs/tiny-tiny/averaged"
    assert tfm.train(run="runs/tiny-tiny", max_steps=7).step == 7  # with its own settings
    assert "dataset: data/tiny" in capfd.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "Do it.",
        "Do it.\n\n    Args:\n        other: Something.\n",
        "Do it.\n\n    Args:\n        size: Something.\n        other: Something.\n",
    ],
)
def test_a_parameter_without_an_entry_is_an_error(text):
    def function(*, size: int = 1) -> None: ...

    function.__doc__ = text
    with pytest.raises(TypeError, match="in Args: or the signature only"):
        command()(function)


def test_the_stub_for_editors_and_type_checkers_is_up_to_date():
    assert stub.PATH.read_text(encoding="utf-8") == stub.stub(), "run `make reference`"


def test_type_checkers_know_the_settings(tmp_path):
    calls = {
        "train(max_steps=3, arch='tiny')": None,
        "train(max_step=3)": 'did you mean "max_steps"',
        "train(max_steps='3')": "incompatible type",
        "score(['a'], [['a']], metric='blue')": "incompatible type",
    }
    path = tmp_path / "calls.py"
    path.write_text("import tfm\n" + "".join(f"tfm.{call}\n" for call in calls))
    flags = ["--follow-imports", "skip", "--cache-dir", tmp_path / "cache"]
    command = [sys.executable, "-m", "mypy", *flags, stub.PATH, path]
    out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = {int(line.split(":")[1]): line for line in out.splitlines() if ": error:" in line}
    expected = {n: text for n, text in enumerate(calls.values(), 2) if text}
    assert found.keys() == expected.keys(), out
    assert all(text in found[number] for number, text in expected.items())


MISTAKES = [
    ("prepare()", "prepare"),
    ("prepare('numbers-en-de', test='in.tsv')", "prepare numbers-en-de --test in.tsv"),
    ("train()", "train"),
    ("train('nowhere')", "train nowhere"),
    ("train('.', max_steps=0, num_heads=0)", "train . --max-steps 0 --num-heads 0"),
    ("average('.', last=2, best=2)", "average . --last 2 --best 2"),
    ("score('in.en', 'in.en', metric='ter', tokenize='intl')",
     "score --hypotheses in.en --reference in.en --metric ter --tokenize intl"),
    ("score('in.en', 'in.en', metric='blue')",
     "score --hypotheses in.en --reference in.en --metric blue"),
    ("generate('A dog runs.')", "generate 'A dog runs.'"),
    ("generate(split='test', input='in.en')", "generate --split test --input in.en"),
    ("export('.', check=-1)", "export . --check -1"),
    ("attend('in.en', 'a', target='b', beam=2)", "attend in.en a --target b --beam 2"),
    ("serve('nowhere')", "serve nowhere"),
    ("learn_bpe('nowhere')", "learn-bpe nowhere"),
    ("binarize('in.en', share='3/2')", "binarize in.en --share 3/2"),
    ("models('in.en')", "models in.en"),
    ("runs()", "runs"),
    ("import_model('me/en-de')", "import me/en-de"),
    ("quickstart(out='in.en')", "quickstart --out in.en"),
    ("score('in.en', 'in.en', bootstrap_samples=9)",
     "score --hypotheses in.en --reference in.en --bootstrap-samples 9"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "command"), MISTAKES)
def test_a_mistake_gives_the_same_message_as_the_command(run, elsewhere, call, command, capfd):
    def with_names(text):
        return re.sub("--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), text)

    (elsewhere / "in.en").write_text("one\n")
    (elsewhere / "in.tsv").write_text("one\teins\n")
    with pytest.raises(TfmError) as caught:
        eval(call, {name: getattr(tfm, name) for name in tfm.__all__})
    capfd.readouterr()
    code, out, err = run(*shlex.split(command))
    assert (code, out) == (caught.value.exit_code, "")
    assert with_names(err) == with_names(f"tfm: {caught.value}\n")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("train(max_step=3)", "unknown setting 'max_step': did you mean max_steps?"),
        ("train(save_dir='x')", "unknown setting 'save_dir': did you mean run?"),
        ("train(gpus=2)", "unknown setting 'gpus': did you mean tfm train --gpus on the command "),
        ("train(max_steps='3')", "max_steps in [training] is '3', but must be a whole"),
        (
            "prepare(train=('in.en',) * 3)",
            "text is source and target, or one file with both, ",
        ),
        ("prepare(train='in.en', out='x')", "in.en is given as source and target: give two files,"),
        ("prepare(train=b'in.en')", "train is b'in.en', but must be a path"),
        ("prepare(train=[('in.en', 5)])", "train is 5, but must be a path"),
        ("prepare('x', languages='ende')", "languages is 'ende', but must be a list of 2"),
        ("prepare('x', force='no')", "force is 'no', but must be true or false"),
        ("train(5)", "data is 5, but must be a path"),
        ("train('.', run=['x'])", "run is ['x'], but must be a path"),
        ("train('.', arch=3)", "arch is 3, but must be text"),
        ("average(None, out=0)", "out is 0, but must be a path"),
        ("score(5, 'in.en')", "hypotheses is 5, but must be a path, or a list of texts"),
        (
            "score(['one'], [['one'], 5])",
            "reference[1] is 5, but must be a path, or a list of texts",
        ),
        ("score(['one', b'two'], ['one', 'two'])", "hypotheses[1] is b'two', but must be text"),
        ("score('in.en', 'in.en', metric=5)", "metric[0] is 5, but must be text"),
    ],
)
def test_a_mistake_in_a_call_is_one_line(elsewhere, call, message):
    (elsewhere / "in.en").write_text("one\n")
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        eval(call, {name: getattr(tfm, name) for name in tfm.__all__})
    assert "\n" not in str(caught.value)


# Where a type has a sensible meaning, it works.
TYPES = [
    *(None, b"x", b"", 5, 0.5, 10**30, float("nan"), True, "", "\0", "\ud800", "text", Path("no")),
    *([], [None], [1], ["a"], [["a"]], ("a",), {"a": 1}, {1}, range(3), len, object()),
    *(np.int64(3), np.float32(0.5), np.bool_(True), np.array(["a", "b"]), np.zeros((2, 2))),
]


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (tfm.prepare, ["subwords", "max_length_ratio", "drop_empty", "symbols"]),
        (tfm.train, ["max_steps", "dropout", "also_valid", "precision", "average"]),
        (tfm.average, ["last", "best", "calibrate"]),
        (tfm.learn_bpe, ["vocab_size", "subwords"]),
        (tfm.binarize, ["max_length", "written_by"]),
        (tfm.import_model, []),
        (tfm.models, []),
        (tfm.generate, ["beam", "threads"]),
        (tfm.export, []),
        (tfm.attend, []),
        (tfm.runs, []),
        (tfm.score, ["tokenize", "lowercase", "bootstrap_samples"]),
    ],
)
def test_no_type_of_an_argument_ends_in_another_error(elsewhere, function, settings, capfd):
    parameters = [n for n in inspect.signature(function).parameters if n != "settings"]
    required = {"hypotheses": ["a"], "reference": ["a"]} if function is tfm.score else {}
    required |= {"model": "nowhere"} if function is tfm.import_model else {}
    for name in (*parameters, *settings):
        for value in (*TYPES, (each for each in "ab")):
            with contextlib.suppress(TfmError):
                function(**{**required, name: value})


def test_numbers_of_numpy_and_paths_are_settings(elsewhere):
    for settings in ({"max_steps": np.int64(3)}, {"dropout": np.float64(0.5), "shard": np.False_}):
        with pytest.raises(DataError, match="holds no dataset"):
            tfm.train(**settings)


def test_lists_are_scored_as_their_files(elsewhere):
    texts = {"out": ["zwei Hunde .", "rot"], "one": ["zwei Hunde", "rot"], "two": ["2 Hunde", "r"]}
    for name, lines in texts.items():
        write_lines(elsewhere / f"{name}.de", lines)
    of_files = tfm.score("out.de", ["one.de", "two.de"])
    of_lists = tfm.score(texts["out"], [texts["one"], texts["two"]])
    assert of_lists.scores == of_files.scores
    assert of_lists.hypotheses == "hypotheses"
    assert of_lists.references == ["reference 1", "reference 2"]
    one = tfm.score("out.de", "one.de", baseline="two.de", bootstrap_samples=9)
    with_ends = (f"{line}\n" for line in texts["out"])
    of_list = tfm.score(with_ends, tuple(texts["one"]), baseline=texts["two"], bootstrap_samples=9)
    assert of_list.scores == one.scores
    mixed = tfm.score(np.array(texts["out"]), Path("one.de"))
    assert mixed.scores == tfm.score("out.de", [texts["one"]]).scores


def test_a_model_is_trained_in_another_thread_than_the_main_one(data_dir, capfd):
    with ThreadPoolExecutor() as pool:
        result = pool.submit(tfm.train, data_dir, run="runs/x", **SMALL, average=False).result()
    assert result.step == 6


def press_ctrl_c_after_a_checkpoint(run_dir):
    while not checkpoints(run_dir):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_a_run_and_raises_an_error(elsewhere, data_dir, capfd):
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(
        target=press_ctrl_c_after_a_checkpoint, args=[elsewhere / "runs" / "x"]
    )
    thread.start()
    with pytest.raises(InterruptedRunError, match="stopped and saved at step"):
        tfm.train(data_dir, run="runs/x", **{**SMALL, "max_steps": 100_000, "max_minutes": 1})
    thread.join()
    assert signal.getsignal(signal.SIGINT) == before
    [*_, newest] = checkpoints(elsewhere / "runs" / "x")
    step = step_of(newest)
    assert tfm.train(data_dir, run="runs/x", max_steps=step).step == step  # it was saved


def test_the_package_offers_its_names_and_types():
    assert dir(tfm) == sorted(tfm.__all__)
    assert tfm.Translator is Translator
    assert all(callable(getattr(tfm, name)) for name in tfm.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="module 'tfm' has no attribute 'trian'"):
        tfm.trian  # noqa: B018
    assert (resources.files(tfm) / "py.typed").is_file()


def test_notebooks_show_results_as_tables_and_pictures(trained_run, tmp_path):
    assert f"<td>{trained_run}" in tfm.runs(trained_run)._repr_html_()
    attended = tfm.attend(str(trained_run), "seven", out=tmp_path / "a.html")
    assert attended._repr_html_().startswith('<iframe srcdoc="&lt;!')
    assert tfm.Translator(trained_run).translate(["seven"], beam=1)
    with pytest.raises(UsageError, match="'seven' is no file: give a file, or a list of lines"):
        tfm.score("seven", ["sieben"])
