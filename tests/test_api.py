"""The stages as functions of the package."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import pytest

import tfm
from tfm.data.synthetic.corpus import generate_pairs
from tfm.errors import InterruptedRunError, TfmError, UsageError
from tfm.inference.translator import Translator
from tfm.storage.checkpoint.run_folder import checkpoints, step_of

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
        pairs = list(generate_pairs(split, num_pairs=size, seed=1))
        for side, language in enumerate(("en", "de")):
            path = elsewhere / f"{split}.{language}"
            path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


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
    assert (code, json.loads(out)) == (0, found.to_json())
    assert [score.name for score in found.scores] == ["bleu", "paper-bleu", "ter"]
    assert len(tfm.Translator.load(averaged.model_dir).translate(["seven"], beam=2)) == 1


def test_the_newest_dataset_and_run_are_the_defaults(elsewhere, data_dir, capfd):
    (elsewhere / "data").mkdir()
    (elsewhere / "data" / "tiny").symlink_to(data_dir)
    result = tfm.train(arch="tiny", **SMALL, average=False)
    assert str(result.run_dir) == "runs/tiny-tiny"
    assert str(tfm.average().model_dir) == "runs/tiny-tiny/averaged"
    assert tfm.train(run="runs/tiny-tiny", max_steps=7).step == 7  # with its own settings
    assert "dataset: data/tiny" in capfd.readouterr().err


def test_one_tsv_file_is_text_of_both_sides(elsewhere):
    for split in ("train", "valid"):
        pairs = generate_pairs(split, num_pairs=30, seed=1)
        (elsewhere / f"{split}.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    files = {"train": "train.tsv", "valid": elsewhere / "valid.tsv", "languages": ("en", "de")}
    assert tfm.prepare(**files, out="data/mine", text_only=True).is_new
    assert not tfm.prepare(**files, out="data/mine", text_only=True).is_new
    assert (elsewhere / "data" / "mine" / "train.de").is_file()


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
    ("score('in.en', 'in.en', bootstrap_samples=9)",
     "score --hypotheses in.en --reference in.en --bootstrap-samples 9"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "command"), MISTAKES)
def test_a_mistake_gives_the_same_message_as_the_command(run, elsewhere, call, command, capfd):
    (elsewhere / "in.en").write_text("one\n")
    (elsewhere / "in.tsv").write_text("one\teins\n")
    with pytest.raises(TfmError) as caught:
        eval(call, {name: getattr(tfm, name) for name in tfm.__all__})
    capfd.readouterr()
    code, out, err = run(*command.split())
    assert (code, out, err) == (caught.value.exit_code, "", f"tfm: {caught.value}\n")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("train(max_step=3)", "unknown setting 'max_step': did you mean max_steps?"),
        ("train(save_dir='x')", "unknown setting 'save_dir': did you mean run?"),
        ("train(gpus=2)", "unknown setting 'gpus': did you mean tfm train --gpus on the command "),
        ("train(max_steps='3')", "max_steps in [training] is '3', but must be a whole"),
        (
            "prepare(train=('in.en',) * 3)",
            "text is source and target, or one .tsv file with both, ",
        ),
        ("prepare(train='in.en', out='x')", "in.en is given as source and target: give two files,"),
    ],
)
def test_a_mistake_in_a_call_is_one_line(elsewhere, call, message):
    (elsewhere / "in.en").write_text("one\n")
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        eval(call, {name: getattr(tfm, name) for name in tfm.__all__})
    assert "\n" not in str(caught.value)


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


def test_preparing_and_scoring_from_python_do_not_import_torch(elsewhere):
    code = (
        "import shutil, sys, tfm\n"
        "from tfm import average, prepare, score, train\n"
        "prepare('numbers-en-de', out='data', text_only=True)\n"
        "shutil.copy('data/test.de', 'out.de')\n"
        "score('out.de', 'data/test.de')\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_package_offers_its_names_and_types():
    assert set(tfm.__all__) <= set(dir(tfm))
    assert tfm.Translator is Translator
    assert all(callable(getattr(tfm, name)) for name in tfm.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="module 'tfm' has no attribute 'trian'"):
        tfm.trian  # noqa: B018
    assert (resources.files(tfm) / "py.typed").is_file()
