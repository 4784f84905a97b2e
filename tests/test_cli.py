"""The command line: help, flags, exit codes, one line for every mistake."""

import dataclasses
import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import typing

import pytest

import tfm
from tfm.cli import main as cli
from tfm.config import (
    PRESETS,
    BatchingConfig,
    OptimizerConfig,
    RunConfig,
    TrainingConfig,
    TransformerConfig,
)
from tfm.config.toml import tomllib
from tfm.data.synthetic import generate_pairs
from tfm.errors import (
    CheckpointError,
    DataError,
    DownloadError,
    TfmError,
    TrainingError,
    UsageError,
)
from tfm.runtime.interruption import InterruptedRunError
from tfm.runtime.world import Layout

COMMANDS = [
    "prepare",
    "learn-bpe",
    "binarize",
    "train",
    "average",
    "export",
    "generate",
    "attend",
    "score",
    "quickstart",
    "bench",
]
TFM = [sys.executable, "-m", "tfm"]
RUN_GROUPS = [TransformerConfig, OptimizerConfig, BatchingConfig, TrainingConfig]
RUN_SETTINGS = [(group, item) for group in RUN_GROUPS for item in dataclasses.fields(group)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder to work in, and help as wide as it likes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return tmp_path


@pytest.fixture
def run(monkeypatch, capfd):
    """Run the command line in this process: its exit code, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tfm", *map(str, arguments)])
        monkeypatch.setattr(os, "_exit", sys.exit)  # which would be the end of pytest
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, *capfd.readouterr()

    return call


@pytest.fixture
def dataset(elsewhere, run):
    """The text of a dataset, and its subword model."""
    for side, language in enumerate(("en", "de")):
        lines = [pair[side] for pair in generate_pairs("train", num_pairs=60, seed=1)]
        (elsewhere / f"my.{language}").write_text("".join(f"{line}\n" for line in lines))
    code, _, err = run(
        "prepare",
        "--train",
        "my.en",
        "my.de",
        "--out",
        "data/mine",
        "--vocab-size",
        330,
        "--text-only",
    )
    assert code == 0, err
    assert run("learn-bpe", "data/mine")[0] == 0
    return elsewhere / "data" / "mine"


def complains(result, code, pattern):
    """Whether a command ended with a code, nothing on stdout and one line on stderr."""
    got, out, err = result
    assert got == code, err
    assert out == ""
    [line] = err.splitlines()
    assert re.fullmatch(f"tfm: {pattern}", line), line


# --- help


def imported_by(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


def test_the_command_line_starts_without_the_heavy_libraries():
    heavy = {"torch", "numpy", "sentencepiece", "sacrebleu", "matplotlib", "safetensors"}
    assert not imported_by("import tfm.cli.main") & heavy


def test_help_names_every_command(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert set(re.findall(r"^│ ([a-z][a-z-]+) ", out, re.MULTILINE)) == set(COMMANDS)


def test_without_a_command_there_is_help(run):
    code, out, err = run()
    assert (code, err) == (2, "")
    assert out == run("--help")[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(run, command):
    for flag in ("--help", "-h"):
        code, out, err = run(command, flag)
        assert (code, err) == (0, "")
        assert re.search(
            rf"Examples?:\s*(?:.*\| )?tfm {command}|Examples?:[^╭]* tfm {command}", out
        )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_in_the_help_name_what_exists(run, command):
    out = run(command, "--help")[1]
    for arch in re.findall(r"--arch ([a-z]+)", out):
        assert arch in PRESETS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_line_for_each_flag_on_a_wide_terminal(run, command):
    out = run(command, "--help")[1]
    unlabelled = [line for line in out.splitlines() if re.fullmatch(r"│ +[^│]{0,40}│", line)]
    assert not unlabelled


def test_help_of_train_names_the_sections_of_its_toml_file(run):
    out = run("train", "--help")[1]
    for group in RUN_GROUPS:
        assert f"[{group.section}]" in out


def test_help_shows_every_default(run):
    out = re.sub(r"\s+", " ", run("train", "--help")[1])
    for _, item in RUN_SETTINGS:
        if item.default is not None:
            default = {"True": "yes", "False": "no"}.get(str(item.default), item.default)
            assert f"{item.metadata['help']} (default {default})" in out


def test_help_has_no_colour_if_asked():
    environment = os.environ | {"NO_COLOR": "1", "FORCE_COLOR": "1"}
    for command in (["train", "--help"], ["--help"]):
        output = subprocess.check_output([*TFM, *command], env=environment, text=True)
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", output)


def test_the_version_is_that_of_the_package(run):
    assert run("--version") == (0, f"tfm {tfm.__version__}\n", "")


def test_the_package_runs_as_a_module():
    assert subprocess.check_output([*TFM, "--version"], text=True) == f"tfm {tfm.__version__}\n"


# --- mistakes: exit code 2, one line


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("foo", r"No such command 'foo' \(see tfm --help\)"),
        ("--foo", r"No such option: --foo \(see tfm --help\)"),
        ("train --max-step 3", r"No such option: --max-step .*--max-steps.*"),
        ("train --d-model wide", r"Invalid value for '--d-model': .*"),
        ("train --device gpu", r"Invalid value for '--device': 'gpu' is not one of .*"),
        ("train a b", r".*extra argument.*\(b\).*"),
        ("train --seed", r"Option '--seed' requires an argument"),
        ("train --max-steps 0", "max_steps is 0, but must be at least 1"),
        ("train --num-heads 0", "num_heads is 0, but must be at least 1"),
        ("train --dropout nan", "dropout is nan, but must be a finite number"),
        (
            "train --warmup-steps 0 --d-model 7",
            r"d_model is 7, .*; warmup_steps is 0, but must be at least 1",
        ),
        ("train --arch huge", r"there is no arch 'huge': choose one of base, big.*"),
        ("train --config none.toml", "none.toml does not exist"),
        ("prepare", r"name a recipe \(.*wmt14-en-de.*"),
        ("prepare nonsense", "there is no recipe 'nonsense'.*"),
        ("prepare --train a.en a.de --no-verify", "--mirror, .* need a recipe that downloads"),
        ("score --bootstrap-samples 9", "the paired bootstrap needs a --baseline .*"),
        ("prepare --train a.en", r"Option '--train' requires 2 arguments"),
        ("prepare --train a.en b.de", "say where your dataset goes, such as --out data/mine"),
        ("prepare wmt14-en-de --test a b", "a recipe names its own text: leave out .*"),
        ("prepare wmt14-en-de --max-length 0", "max_length is 0, but must be at least 1"),
        ("average --last 2 --best 2", "last and best exclude each other: give one"),
        ("generate --input a --split test", "--input and --split exclude each other: give one"),
        ("train --gpus all", "--gpus is all, but must be auto or at least 1"),
        ("train --gpus 0", "--gpus is 0, but must be auto or at least 1"),
        ("train --processes 0", "--processes is 0, but must be at least 1"),
        ("train --gpus 2 --processes 2", "--gpus and --processes exclude each other: give one"),
        ("train --gpus 2 --device cpu", "--gpus contradicts --device cpu: leave one out"),
        ("train --processes 2 --device cuda", "--processes are of the CPU: .* say --gpus"),
        ("train --nodes 2", "--nodes 2 needs, on each machine, its --node-rank and .*"),
        ("train --nodes 2 --node-rank 0", "--nodes 2 needs, on each machine, its .*"),
        ("train --node-rank 0", "--node-rank and --rendezvous are about several machines: .*"),
        (
            "train --nodes 2 --node-rank 2 --rendezvous a:1",
            "--node-rank is 2, but must be from 0 to 1",
        ),
        (
            "train --nodes 2 --node-rank 0 --rendezvous a",
            "--rendezvous is a, but must be HOST:PORT, such as .*",
        ),
        ("train --gpus 99 nowhere", "--gpus.*torch sees .*"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run, arguments, pattern):
    complains(run(*arguments.split()), 2, pattern)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("--beam 0", "beam_size is 0, but must be at least 1.*"),
        ("--n-best 9", "n_best 9 needs a beam of at least that size, not 4"),
        ("--temperature 0.5", "temperature has no effect on search beam, only on sample"),
        ("--search sample --beam 4", "beam_size has no effect on search sample, .*"),
    ],
)
def test_a_search_that_cannot_be_is_refused(run, trained_run, elsewhere, arguments, pattern):
    (elsewhere / "in.en").write_text("one\n")
    complains(run("generate", trained_run, "--input", "in.en", *arguments.split()), 2, pattern)


def test_settings_of_a_file_are_checked_like_flags(run, elsewhere):
    (elsewhere / "x.toml").write_text("[model]\nwidth = 3\ndropout = 2\n[optimiser]\na = 1\n")
    complains(
        run("train", "--config", "x.toml", "--warmup-steps", 0),
        2,
        r"unknown section 'optimiser'.*unknown setting 'width' in \[model\].*"
        r"dropout is 2\.0.*warmup_steps is 0.*",
    )


def test_a_file_that_is_no_toml_is_named(run, elsewhere):
    (elsewhere / "x.toml").write_text("[model\n")
    complains(run("train", "--config", "x.toml"), 2, r"x\.toml is not a TOML file: .*line 1.*")


def test_a_preset_that_contradicts_the_file_is_refused(run, elsewhere):
    (elsewhere / "x.toml").write_text('arch = "big"\n')
    result = run("train", "--config", "x.toml", "--arch", "base")
    complains(result, 2, "arch base contradicts arch big in the file: leave one out")


# --- failures: exit code 1, one line


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("train", 'data/ holds no dataset: make one with "tfm prepare"'),
        ("learn-bpe", 'data/ holds no dataset: make one with "tfm prepare"'),
        ("binarize", 'data/ holds no dataset: make one with "tfm prepare"'),
        ("learn-bpe nowhere", "nowhere is no dataset .*"),
        ("binarize nowhere", "nowhere is no dataset .*"),
        ("train nowhere", "nowhere is no dataset .*"),
        ("train --dry-run nowhere", "nowhere is no dataset .*"),
        ("average", 'runs/ holds no run with a checkpoint: start with "tfm train"'),
        ("average nowhere", "nowhere .*"),
        ("generate", 'runs/ holds no run with a checkpoint: start with "tfm train"'),
        ("generate nowhere", "nowhere is no run or model folder: .*"),
        ("score --hypotheses nowhere", "nowhere does not exist: .*"),
    ],
)
def test_a_wrong_path_is_one_line_and_exit_code_1(run, arguments, pattern):
    complains(run(*arguments.split()), 1, pattern)


def test_settings_that_are_no_file_are_wrong_usage(run):
    complains(run("train", "--config", "."), 2, r"\. cannot be read: Is a directory")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TfmError, 1),
        (DataError, 1),
        (DownloadError, 1),
        (CheckpointError, 1),
        (TrainingError, 1),
        (UsageError, 2),
    ],
)
def test_every_kind_of_error_is_one_line_and_its_exit_code(run, monkeypatch, error, code):
    def fail(*args, **kwargs):
        raise error("what and where: what to do")

    monkeypatch.setattr("tfm.stages.quickstart.quickstart", fail)
    complains(run("quickstart"), code, "what and where: what to do")


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "a/b: No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), "a: Permission denied"),
        (OSError("odd"), "odd"),
    ],
)
def test_an_error_of_the_system_is_one_line(run, monkeypatch, error, pattern):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("tfm.stages.quickstart.quickstart", fail)
    complains(run("quickstart"), 1, pattern)


def test_a_bug_keeps_its_traceback(monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr("tfm.stages.quickstart.quickstart", fail)
    monkeypatch.setattr(sys, "argv", ["tfm", "quickstart"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_ctrl_c_is_one_line_and_exit_code_130(run, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("tfm.stages.quickstart.quickstart", stop)
    complains(run("quickstart"), 130, "stopped")


def test_ctrl_c_stops_learning_at_once_and_leaves_nothing_half_done(dataset):
    text = (dataset / "train.en").read_text() * 3_000
    (dataset / "train.en").write_text(text)
    before = (dataset / "bpe.model").read_bytes()
    with subprocess.Popen(
        [*TFM, "learn-bpe", "data/mine", "--model-type", "unigram"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr.readline().startswith("learn-bpe: learning from")
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=5)
    assert (process.returncode, out, err) == (130, "", "tfm: stopped\n")
    assert (dataset / "bpe.model").read_bytes() == before
    assert not list(dataset.glob(".*"))


# --- full disks and closed pipes


def _allow_small_files_only():
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))


@pytest.mark.parametrize("command", ["learn-bpe", "binarize"])
def test_a_full_disk_is_one_line_and_leaves_the_old_output(dataset, command, run):
    assert run("binarize", "data/mine")[0] == 0
    before = {path: path.read_bytes() for path in dataset.iterdir() if path.is_file()}
    done = subprocess.run(
        [*TFM, command, "data/mine", "--force"],
        preexec_fn=_allow_small_files_only,
        capture_output=True,
        text=True,
        check=False,
    )
    last_line = done.stderr.splitlines()[-1]
    complains((done.returncode, done.stdout, last_line), 1, r"data/mine/\S+: File too large")
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in dataset.iterdir() if path.is_file()} == before
    assert not list(dataset.rglob("*.partial"))


def test_output_to_a_full_disk_is_one_line():
    for arguments in (["--version"], ["train", "--print-config"], ["train", "--help"]):
        with open("/dev/full", "w") as full:  # noqa: PTH123
            done = subprocess.run(
                [*TFM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert (done.returncode, done.stderr) == (1, "tfm: No space left on device\n")


@pytest.mark.parametrize("arguments", [["--version"], ["train", "--print-config"], ["-h"]])
def test_a_closed_pipe_is_quiet(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*TFM, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_closed_standard_stream_is_as_good_as_an_empty_one(stream):
    done = subprocess.run(
        [*TFM, "score", "--hypotheses", "nowhere"],
        preexec_fn=lambda: os.close(stream),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


# --- settings


@pytest.mark.parametrize("arch", PRESETS)
def test_printed_settings_are_settings_again(run, elsewhere, arch):
    code, printed, err = run("train", "--arch", arch, "--print-config")
    assert (code, err) == (0, "")
    (elsewhere / "x.toml").write_text(printed, encoding="utf-8")
    assert run("train", "--config", "x.toml", "--print-config") == (0, printed, "")


def test_flags_win_over_the_file_which_wins_over_the_preset(run, elsewhere):
    (elsewhere / "x.toml").write_text('arch = "big"\n[model]\ndropout = 0.2\nd_ff = 100\n')
    _, out, _ = run("train", "--config", "x.toml", "--d-ff", 200, "--print-config")
    model = tomllib.loads(out)["model"]
    assert (model["d_model"], model["dropout"], model["d_ff"]) == (1024, 0.2, 200)


def another(group, item):
    """A value for a setting that is not its default."""
    hint = typing.get_type_hints(group)[item.name]
    if typing.get_origin(hint) is typing.Literal:
        return next(choice for choice in typing.get_args(hint) if choice != item.default)
    if hint is bool:
        return not item.default
    return 0.5 if hint in (float, float | None) else 64


@pytest.mark.parametrize(("group", "item"), RUN_SETTINGS, ids=lambda x: getattr(x, "name", ""))
def test_every_flag_of_train_reaches_its_setting(run, group, item):
    value = another(group, item)
    flags = {"average_last": ["--keep-last", 64]}.get(item.name, [])
    name = item.name.replace("_", "-")
    given = [f"--{name}", value]
    if isinstance(value, bool):
        given = [f"--{name}" if value else f"--no-{name}"]
    code, out, err = run("train", *given, *flags, "--print-config")
    assert code == 0, err
    assert tomllib.loads(out)[group.section][item.name] == value


def test_settings_of_a_recipe_hold_for_later_commands_unless_flags_say_otherwise(dataset, run):
    assert json.loads((dataset / "manifest.json").read_text())["settings"]["subword"] == {
        "vocab_size": 330
    }
    assert len((dataset / "bpe.vocab").read_text().splitlines()) == 330
    assert run("learn-bpe", "data/mine", "--vocab-size", 335)[0] == 0
    assert len((dataset / "bpe.vocab").read_text().splitlines()) == 335


def test_a_switch_can_be_turned_off(dataset, run):
    assert run("learn-bpe", "--no-byte-fallback", "--vocab-size", 90)[0] == 0
    assert "<0x00>" not in (dataset / "bpe.vocab").read_text()


def test_commands_name_the_dataset_they_choose(dataset, run):
    code, out, err = run("binarize")
    assert (code, out) == (0, "")
    assert err.startswith("dataset: data/mine\n")


# --- output for machines


def test_json_of_score_parses(run, elsewhere):
    (elsewhere / "hyp").write_text("ein Hund\nzwei Katzen\n")
    code, out, err = run("score", "--hypotheses", "hyp", "--reference", "hyp", "--json")
    assert (code, err) == (0, "")
    [record] = map(json.loads, out.splitlines())
    assert [score["name"] for score in record["scores"]] == ["bleu", "chrf"]


def test_scores_have_no_colour_if_asked(elsewhere):
    (elsewhere / "hyp").write_text("ein Hund\n")
    output = subprocess.check_output(
        [*TFM, "score", "--hypotheses", "hyp", "--reference", "hyp"],
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert b"\x1b" not in output
    assert output.startswith(b"BLEU = ")


def test_json_of_generate_parses(capfd):
    from tfm.cli.output import print_translations

    @dataclasses.dataclass
    class Found:
        text: str
        score: float

    print_translations([("a\t\u2028", [Found("ä", -0.5)])], as_json=True, number=False)
    [line] = capfd.readouterr().out.split("\n")[:-1]
    assert json.loads(line) == {
        "source": "a\t\u2028",
        "translations": [{"text": "ä", "score": -0.5}],
    }


def test_the_defaults_that_help_promises_are_those_of_the_settings(run):
    assert f"(default {RunConfig().arch})" in run("train", "--help")[1]


# --- several processes


@pytest.fixture
def launched(monkeypatch):
    """What would be launched, as (layout, command)."""
    from tfm.runtime import launch

    calls = []
    monkeypatch.setattr(launch, "launch", lambda *call: calls.append(call) or 0)
    monkeypatch.setattr(launch, "num_local_processes", lambda layout: layout.local_size or 3)
    return calls


@pytest.fixture
def trained(monkeypatch):
    """The device of each training that is done in this process."""
    from tfm.stages import train

    devices = []

    def note(data_dir, run_dir, settings):
        devices.append(settings.training.device)
        return train.TrainResult(run_dir=run_dir, step=1, metrics={})

    monkeypatch.setattr(train, "train", note)
    return devices


@pytest.mark.parametrize(
    ("flags", "layout"),
    [
        ("--processes 2", Layout(local_size=2, device="cpu")),
        ("--gpus auto", Layout(local_size=None, device="cuda")),
        (
            "--nodes 2 --node-rank 1 --rendezvous a:1",
            Layout(nodes=2, node_rank=1, host="a", port=1),
        ),
    ],
)
def test_several_processes_run_the_same_command(run, launched, trained, flags, layout):
    flags = ["train", "nowhere", "--max-steps", "3", *flags.split()]
    assert run(*flags) == (0, "", "")
    assert launched == [(layout, [sys.executable, "-m", "tfm", *flags])]
    assert not trained


@pytest.mark.parametrize(
    ("flags", "device"),
    [("", "auto"), ("--processes 1", "cpu"), ("--gpus 1", "cuda"), ("--nodes 1", "auto")],
)
def test_a_single_process_is_this_one(run, launched, trained, flags, device):
    assert run("train", "nowhere", *flags.split())[0] == 0
    assert (launched, trained) == ([], [device])


@pytest.mark.parametrize(("flag", "device"), [("--gpus", "cuda"), ("--processes", "cpu")])
def test_printing_settings_launches_nothing(run, launched, flag, device):
    _, out, _ = run("train", flag, 2, "--print-config")
    assert tomllib.loads(out)["training"]["device"] == device
    complains(run("train", flag, 2, "--dry-run", "nowhere"), 1, "nowhere is no dataset .*")
    assert not launched


@pytest.fixture
def one_of_two(monkeypatch, elsewhere):
    """Make this process one of two; its launcher reads the file that is returned."""

    def make(rank):
        (elsewhere / "elastic").mkdir()
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2,
                     "MASTER_ADDR": "a", "MASTER_PORT": 1,
                     "TORCHELASTIC_ERROR_FILE": elsewhere / "elastic" / "error.json"}  # fmt: skip
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(cli, "stop_with_launcher", lambda: None)
        return elsewhere / "elastic" / "error.json"

    return make


def test_one_of_several_processes_launches_no_more(run, launched, trained, one_of_two):
    one_of_two(0)
    assert run("train", "nowhere", "--processes", 2)[0] == 0
    assert (launched, trained) == ([], ["cpu"])


def test_one_of_several_processes_leaves_its_failure_with_the_launcher(run, launched, one_of_two):
    error_file = one_of_two(1)
    assert run("train", "nowhere", "--processes", 3) == (2, "", "")
    message = json.loads(error_file.read_text())["message"]
    assert message["message"].startswith("torchrun has started 2 processes")
    assert message["extraInfo"]["exit_code"] == 2


@pytest.mark.parametrize(("rank", "err"), [(0, "tfm: saved at step 3\n"), (1, "")])
def test_processes_that_stop_in_order_say_so_once(run, monkeypatch, one_of_two, rank, err):
    def stop(*args, **kwargs):
        raise InterruptedRunError("saved at step 3", exit_code=130)

    error_file = one_of_two(rank)
    monkeypatch.setattr("tfm.stages.train.train", stop)
    assert run("train", "nowhere") == (0, "", err)
    assert not error_file.exists()
