"""The command line: help, settings, and output for machines."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

import pytest
import torch
import typer.main

import tfm
from tfm.cli.main import app
from tfm.commands.declaration import declaration_of
from tfm.config import RUN_SETTINGS, RunConfig, by_section
from tfm.folders.model_folder import ModelFolder
from tfm.folders.saving import newest_intact_checkpoint
from tfm.machine.compute import torch_and_device
from tfm.text.corpus.loading import builtin_recipes, load_recipe

COMMANDS = [
    "prepare",
    "learn-bpe",
    "binarize",
    "train",
    "average",
    "export",
    "import",
    "runs",
    "models",
    "generate",
    "attend",
    "score",
    "serve",
    "quickstart",
    "doctor",
    "check",
    "evaluate",
]
TFM = [sys.executable, "-m", "tfm"]

LONG_COMMANDS = ["prepare", "train", "generate", "evaluate", "check", "serve"]

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_every_command_is_a_function_of_the_package():
    functions = {name.replace("_", "-") for name in tfm.__all__} - {"Translator", "--version--"}
    assert functions - {"import-model"} | {"import"} == set(COMMANDS)


# --- help


def test_the_recipes_are_listed_one_per_line(run):
    code, out, err = run("prepare", "--list")
    assert (code, err) == (0, "")
    assert not re.search(" $", out, re.MULTILINE)
    lines = [re.split(" {2,}", line) for line in out.splitlines()]
    assert [name for name, *_ in lines] == builtin_recipes()
    for name, languages, size, description in lines:
        assert re.fullmatch(r"[\d,]+ pairs|[\d.]+ [GM]B of text", size)
        assert description == load_recipe(name).description
        assert languages.count("-") == 1


def help_of(run, *command):
    """The help of a command with all its flags."""
    return run(*command, "--help-all" if command[0] in LONG_COMMANDS else "--help")[1]


def test_help_names_every_command(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert set(re.findall(r"^  ([a-z][a-z-]+)  ", out, re.MULTILINE)) == set(COMMANDS)


def test_without_a_command_tfm_prints_its_help(run):
    code, out, err = run()
    assert (code, err) == (2, "")
    assert out == run("--help")[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_examples_that_fit(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    for flag in ("--help", "-h"):
        code, out, err = run(command, flag)
        assert (code, err) == (0, "")
        assert re.search(rf"Examples?:[^:]* tfm {command}", out)
        assert not re.search(r"\n\n +tfm |.{81}", out)


@pytest.mark.parametrize("columns", ["60", "80", "100"])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_flag_whole_on_narrow_terminals(run, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", columns)
    out = help_of(run, command)
    parsed = typer.main.get_command(app).commands[command]
    flags = {flag for option in parsed.params for flag in (*option.opts, *option.secondary_opts)}
    in_help = {flag for flag in flags if flag.startswith("--")} | {"--help"}
    assert in_help <= set(re.findall(r"(?<=[ (])--[a-z0-9-]+(?=[ \n])", out))
    assert "…" not in out
    assert not re.findall(r"--[a-z0-9-]*-$|--$", out, re.MULTILINE)  # cut in a sentence


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_no_types_of_python(run, command):
    assert not re.findall(r"<[a-z]*(?:int|float|str|path|list)\b.*", help_of(run, command), re.I)


@pytest.mark.parametrize("command", LONG_COMMANDS)
def test_help_of_commands_with_many_flags_fits_a_screen(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    short, full = run(command, "--help")[1], run(command, "--help-all")[1]
    assert short.count("\n") <= 44
    assert "--help-all" in short
    flags_in = {line.split()[0] for line in short.splitlines() if line.startswith("  -")}
    assert flags_in < {line.split()[0] for line in full.splitlines() if line.startswith("  -")}


def test_help_shows_every_default(run):
    out = re.sub(r"\s+", " ", run("train", "--help-all")[1])
    for item in (item for group in RUN_SETTINGS for item in dataclasses.fields(group)):
        if item.default not in (None, ()):
            default = {"True": "yes", "False": "no"}.get(str(item.default), item.default)
            assert f"{item.metadata['help']} (default: {default})" in out


def test_help_says_whose_defaults_it_shows(run):
    out = " ".join(run("train", "--help")[1].split())
    assert f"The defaults shown here are those of --arch {RunConfig().arch}" in out


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_versions_and_the_device_are_printed(run, flag):
    device = torch_and_device()
    assert re.fullmatch(rf"torch {re.escape(torch.__version__)}, .+", device)
    assert run(flag) == (0, f"tfm {tfm.__version__}, {device}\n", "")


def test_the_version_names_a_torch_that_cannot_be_loaded(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "tfm.machine.compute", None)
    code, out, _ = run("--version")
    assert (code, "torch cannot be loaded (" in out) == (0, True)


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("tfm gen", {"generate"}),
        ("tfm train --arch s", {"small", "student"}),
        ("tfm generate --search ", {"beam", "sample", "exact"}),
        ("tfm generate --document --out", {"--output"}),
        ("tfm prepare --train a.en ", set()),
        ("tfm nonsense --x", set()),
    ],
)
def test_a_shell_completes_commands_flags_and_values(run, monkeypatch, words, completions):
    monkeypatch.setenv("_TFM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    _, out, err = run()
    assert (set(out.split()), err) == (completions, "")


# --- settings


HELP_AND_PAIRS = ("help", "help_all", "train", "valid", "test", "languages")


def other_value(hint, number):
    """Return a word for a flag, and the value that it stands for."""
    kinds = [hint, *typing.get_args(hint)]
    if choices := [word for kind in kinds for word in typing.get_args(kind) if type(word) is str]:
        return choices[-1], choices[-1]
    kind = next(each for each in (int, float, Path, str) if {each, list[each]} & {*kinds})
    return str(number), kind(str(number))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_reaches_its_parameter_or_setting(command):
    parsed = typer.main.get_command(app).commands[command]
    name = {"import": "import_model"}.get(command, command.replace("-", "_"))
    declaration = declaration_of(getattr(tfm, name))
    words, expected = [], {}
    hints = typing.get_type_hints(parsed.callback)
    for option in parsed.params:
        if option.param_type_name == "argument" or option.name in HELP_AND_PAIRS:
            continue
        if option.is_flag:
            value = not option.default
            words.append((option.opts if value else option.secondary_opts)[0])
        else:
            word, value = other_value(hints[option.name], len(words))
            words += [option.opts[0], word]
        expected[option.name] = [value] if option.multiple else value
    found = parsed.make_context(command, [*words, "."], resilient_parsing=True).params
    assert {name: found[name] for name in expected} == expected
    settings = {name: found[name] for name in declaration.settings()}
    tables = by_section(declaration.groups, settings, without=declaration.without)
    for name, kinds in declaration.settings().items():
        assert all(tables[kind.section][name] == expected[name] for kind in kinds)


CHOSEN = "train: --arch tiny, for 200 pairs on a CPU (choose another with --arch)\n"


def test_without_arch_the_preset_suits_the_dataset_and_is_printed(run, data_dir):
    _, tiny, _ = run("train", "--arch", "tiny", "--device", "cpu", "--print-config")
    code, printed, err = run("train", data_dir, "--device", "cpu", "--print-config")
    assert (code, printed, err) == (0, tiny, CHOSEN)
    code, out, err = run("train", data_dir, "--device", "cpu", "--dry-run")
    assert (code, err) == (0, CHOSEN)
    assert "4,500; " in out
    flags = ["--device", "cpu", "--max-steps", 1, "--validation-beam", 0, "--best-metric", "loss"]
    code, out, err = run("train", data_dir, *flags)
    assert (code, out) == (0, "")
    assert err.startswith(CHOSEN)
    assert ModelFolder(newest_intact_checkpoint(Path("runs/tiny-tiny"))).info.run.arch == "tiny"


@pytest.mark.parametrize("named", [["--arch", "base"], ["--config", "x.toml"]])
def test_a_preset_that_is_named_is_used_on_any_dataset(run, elsewhere, data_dir, named):
    (elsewhere / "x.toml").write_text("[model]\nd_ff = 2048\n")
    code, out, err = run("train", data_dir, *named, "--print-config")
    assert (code, err, tomllib.loads(out)["arch"]) == (0, "", "base")


# --- output for machines


def test_scores_respect_no_color(elsewhere):
    for name in ("hyp", "ref"):
        (elsewhere / name).write_text("ein Hund\n")
    output = subprocess.check_output(
        [*TFM, "score", "--hypotheses", "hyp", "--reference", "ref"],
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert b"\x1b" not in output
    assert output.startswith(b"BLEU = ")


def test_the_next_step_after_translating_a_test_set_to_a_file_is_its_score(run, trained_run):
    code, out, err = run("generate", trained_run, "--split", "test", "--output", "a b.de")
    assert (code, out) == (0, ""), err
    line = err.splitlines()[-1]
    assert line == "next: tfm score --hypotheses 'a b.de'"
    code, out, err = run(*shlex.split(line)[2:])
    assert (code, out[:4]) == (0, "BLEU"), err
