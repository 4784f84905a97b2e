"""tfm generate --output, stopped and repeated."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from helpers import wait_until

from tfm.config import InferenceConfig, SearchConfig
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.steps import StepsConfig
from tfm.translation import engine, generating
from tfm.translation.generating import Generation, hash_of_inputs

LINES = ["seven", "", "on Monday. I am", "today is the third of May", "8", "eight", "I am", "nine"]
TEXT = "".join(f"{line}\n" for line in LINES).encode()


@pytest.fixture
def folder(trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(checkpoints(trained_run)[-1])
    (tmp_path / "in.en").write_bytes(TEXT)
    (tmp_path / "prefixes").write_text("am\n" * len(LINES))
    return tmp_path


@pytest.fixture
def command(folder, run, monkeypatch):
    """Run tfm generate on in.en in chunks of two lines; return exit code and stderr."""
    monkeypatch.setattr(engine, "CHUNK_LINES", 2)

    def call(arguments):
        words = f"generate model --device cpu {arguments}"
        for flag, value in (("--input", "in.en"), ("--max-extra-length", "3")):
            words += f" {flag} {value}" if flag not in arguments else ""
        code, _, err = run(*words.split())
        return code, err

    return call


@pytest.mark.parametrize(
    "arguments",
    [
        "--search sample --n-best 2 --seed 5 --json",
        "--prefix prefixes",
        "--document --search sample --seed 5",
    ],
)
def test_a_stopped_output_is_continued_and_becomes_the_same_file(folder, command, arguments):
    assert command(f"{arguments} --output whole")[0] == 0
    (folder / "in.en").write_bytes(TEXT.replace(b"eight", b"\xff"))
    code, err = command(f"{arguments} --output out")
    assert code == 1
    assert "generate: out.partial is kept: the same command continues it" in err
    (folder / "in.en").write_bytes(TEXT)
    code, err = command(f"{arguments} --output out")
    assert (code, err.splitlines()[1]) == (0, "generate: continuing out.partial at line 6")
    read = texts if "--json" in arguments else Path.read_bytes  # scores differ by rounding
    assert read(folder / "out") == read(folder / "whole")
    assert not [*folder.glob("out.partial*")]


def test_what_does_not_fit_the_partial_file_is_refused_in_one_line(folder, command):
    (folder / "in.en").write_bytes(TEXT.replace(b"eight", b"\xff"))
    assert command("--output out")[0] == 1
    (folder / "in.en").write_bytes(TEXT)
    others = ("--beam 2", "--json", "--precision int8", "--prefix prefixes", "model")
    texts = (TEXT.replace(b"seven", b"7"), b"seven\n")
    for arguments, text in [*((each, TEXT) for each in others), *(("", each) for each in texts)]:
        (folder / "in.en").write_bytes(text)
        code, err = command(f"{arguments} --output out")  # with the last of them, an ensemble
        assert code == 2
        assert err.splitlines()[-1].startswith(
            "tfm: cannot continue out.partial: its 5 lines are of other text, settings, models or"
        )
    (folder / "in.en").write_bytes(TEXT)
    assert command("--threads 1 --max-tokens 99 --processes 1 --output out")[0] == 0


def test_all_that_decides_an_output_is_in_its_hash(folder, trained_run, monkeypatch):
    """And nothing else: files and models by their content, not their name."""
    model = ModelFolder.open(shutil.copytree(checkpoints(trained_run)[-1], folder / "copy"))
    for name in ("terms", "same"):
        (folder / name).write_text("one\teins\n")
    (folder / "metric.sh").write_text("cat")

    def hashed(search=None, steps=None, inference=None, *, form="text", given=None, models=1):
        plan = Generation(models=[model] * models, source=None, prefixes=given)
        return hash_of_inputs(
            plan,
            SearchConfig(**(search or {})),
            InferenceConfig(**({"device": "cpu"} | (inference or {}))),
            StepsConfig(**(steps or {})),
            form=form,
            texts=[folder / "in.en"],
        )

    program = {"mbr": "command", "n_best": 4, "metric_command": "sh metric.sh"}
    calls = [
        *[{"search": {each: 2}} for each in ("beam_size", "min_length", "no_repeat_ngram")],
        *[{"search": {"search": "sample", "seed": seed}} for seed in (1, 2)],
        *[{"search": {"mbr": each, "n_best": 4}} for each in ("chrf", "bleu")],
        *({"search": program}, {"search": {**program, "metric_command": "sh  metric.sh"}}),
        *({"search": {"ban": "terms"}}, {"search": {"ban": "in.en"}}, {"search": {"tag": "<2de>"}}),
        *({"steps": {"glossary": "terms"}}, {"steps": {"glossary": "in.en"}}),
        *({"steps": {"no_protect": True}}, {"steps": {"protect": ("a",)}}, {"form": "json"}),
        *({"inference": {"precision": "int8"}}, {"inference": {"kernels": "plain"}}),
        *({"given": folder / "prefixes"}, {"models": 2}, {}),
    ]
    hashes = [hashed(**call) for call in calls]
    assert len({*hashes}) == len(calls)
    assert hashed({"ban": "same"}) == hashed({"ban": "terms"})
    assert hashed({"max_tokens": 9}, inference={"threads": 1, "precision": "fp32"}) == hashes[-1]
    assert hashed(inference={"device": "auto"}) == hashes[-1]  # what it chooses counts
    for name in ("metric.sh", "in.en"):
        with (folder / name).open("a") as file:
            file.write(" ")
        hashes.append(hashed({**program}))
    monkeypatch.setattr(generating, "__version__", "9")
    assert len({*hashes, hashed({**program})}) == len(calls) + 3


@pytest.mark.parametrize("arguments", ["", "--document", "--prefix p", "--score-target p"])
@pytest.mark.parametrize(
    ("bad", "message"), [("x\udcff", "line 6 is not UTF-8"), ("a " * 40, "6 has [0-9]+ tokens")]
)
def test_the_lines_before_a_bad_one_are_kept(folder, run, make_model, arguments, bad, message):
    """Of the text or of a file beside it, if there is one."""
    (folder / "model").unlink()
    make_model(learned_positions=30)
    lines = ["one", "two", "three", "four", "five", bad, "seven", "eight"]
    paired = "p" in arguments
    for name, is_bad in (("in.en", not paired), ("p", paired)):
        text = "\n".join(lines if is_bad else ["x"] * len(lines)) + "\n"
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    words = f"generate model --input in.en --device cpu {arguments}"
    code, out, err = run(*words.split())
    assert (code, len(out.splitlines())) == (1, 5)
    assert re.search(message, err.splitlines()[-1])
    code, _, err = run(*words.split(), "--output", "out")
    assert (code, "the same command continues it" in err) == (1, True)
    lines[5] = "six"
    (folder / ("p" if paired else "in.en")).write_text("\n".join(lines) + "\n")
    code, _, err = run(*words.split(), "--output", "out")
    assert (code, "continuing out.partial at line 6" in err) == (0, True)
    assert len((folder / "out").read_text().splitlines()) == 8
    assert (folder / "out").read_text().startswith(out)


@pytest.fixture
def start(folder, fork_python):
    """Start tfm generate in another process; return it and a pipe that it reads."""

    def start_command(*flags, before=""):
        os.mkfifo(folder / "pipe")
        words = ["generate", "model", "--device", "cpu", "--output", "out", "--input", "-"]
        source = f"{before}\nfrom tfm.cli.main import main\nmain()"
        process = fork_python(source, *words, *flags, stdin=folder / "pipe")
        return process, (folder / "pipe").open("r+b", buffering=0)

    return start_command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_pipe_is_continued_after_any_signal(folder, command, start, monkeypatch, number):
    assert command("--output whole --max-extra-length 50")[0] == 0
    process, pipe = start()
    with pipe:
        pipe.write(b"".join(TEXT.splitlines(keepends=True)[:3]))
        partial = folder / "out.partial"
        wait_until(lambda: partial.exists() and partial.read_bytes().count(b"\n") >= 3, process)
        time.sleep(0.1)
        process.send_signal(number)
        process.communicate(30)
    assert not (folder / "out").exists()
    with (folder / "in.en").open() as text:
        monkeypatch.setattr("sys.stdin", text)
        code, err = command("--output out --max-extra-length 50 --input -")
    assert code == 0, err
    assert (folder / "out").read_bytes() == (folder / "whole").read_bytes()


def texts(path):
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        (record["source"], [each["text"] for each in record["translations"]]) for record in records
    ]


# Smaller than the output.
SMALL_FILES_ONLY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
sys.dont_write_bytecode = True
"""


def test_a_full_disk_is_one_line_and_the_output_is_continued(folder, command, start):
    assert command("--output whole --json")[0] == 0
    assert (folder / "whole").stat().st_size > 900
    arguments = "--json --max-extra-length 3 --max-tokens 9"
    process, pipe = start(*arguments.split(), before=SMALL_FILES_ONLY)
    with pipe:
        for line in TEXT.splitlines(keepends=True):
            pipe.write(line)
            time.sleep(0.1)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "tfm: out.partial: File too large"
    code, err = command(f"{arguments} --output out")
    assert code == 0, err
    assert texts(folder / "out") == texts(folder / "whole")
