"""CTranslate2 as an engine: equal to torch or refused, verified, and without torch."""

import inspect
import json
import math
import os
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from helpers import number_pairs, python

from tfm.commands.average import average
from tfm.commands.generate import generate
from tfm.commands.translator import Translator
from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import CheckpointError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.steps import StepsConfig
from tfm.translation import ctranslate2_engine, engines
from tfm.translation.batches import SentenceBatch
from tfm.translation.ctranslate2_files import package_problem
from tfm.translation.engines import EngineChoice, choose_engine, start_ctranslate2, start_engine

pytest.importorskip("ctranslate2")

CPU = InferenceConfig(device="cpu", precision="fp32", threads=1)
ASKED = replace(CPU, engine="ctranslate2")
LINES = [source for source, _ in number_pairs("test", num_pairs=40, seed=5)]
LINES += ["", "🙂 Ağaç, 孩子!", "seven " * 30, "e\u0301 <b>&amp;</b>\u00a0x"]
TARGETS = ["sieben", "acht Autos kosten viel Geld, 🙂", "am Montag", ""]


def needs_no_torch():
    raise AssertionError("torch is needed")


@pytest.fixture(scope="module", params=["pre", "post"])
def translators(request, trained_norms):
    """Return what translates with either engine; torch must not be needed by the second."""
    path = checkpoints(trained_norms[request.param])[-1]
    ours = Translator.load(path, device="cpu", precision="fp32")
    engine = start_ctranslate2(ModelFolder.open(path), CPU, needs_no_torch)
    return tuple(Translator.of(each, ours.vocabulary) for each in (ours.engine, engine))


def assert_same(found, expected):
    for n_best, others in zip(found, expected, strict=True):
        assert [each.text for each in n_best] == [each.text for each in others]
        for name in ("score", "log_prob"):
            numbers = [getattr(each, name) for each in others]
            assert [getattr(each, name) for each in n_best] == pytest.approx(numbers, abs=2e-3)


@pytest.mark.parametrize(
    "search",
    [
        {},
        {"beam": 1},
        {"length_penalty": 0.0},
        {"beam": 1, "length_penalty": 0.0},
        {"beam": 3, "n_best": 3},
        {"beam": 8, "min_length": 0, "n_best": 4},
        {"max_extra_length": 1},  # most searches end at the maximum length
        {"max_extra_length": 1, "length_penalty": 0.0},
        {"max_extra_length": 2, "beam": 1},
        {"max_source_length": 5, "max_tokens": 20},
    ],
    ids=str,
)
def test_searches_equal_those_of_torch(translators, search):
    ours, theirs = translators
    assert_same(theirs.search(LINES, **search), ours.search(LINES, **search))


def test_given_targets_have_the_probabilities_of_torch(translators):
    ours, theirs = translators
    pair = (LINES[:4], TARGETS)
    for our, their in zip(*(each.score_targets(*pair) for each in (ours, theirs)), strict=True):
        assert (their.text, their.pieces) == (our.text, our.pieces)
        assert their.piece_log_probs == pytest.approx(our.piece_log_probs, abs=1e-3)
        assert their.score == pytest.approx(our.score, abs=2e-3)


def test_only_batches_that_need_torch_go_there(translators, trained_norms, monkeypatch):
    """And no others, such as an ordinary line beside them."""
    ours, theirs = translators
    sent = []

    def by_torch(self, batch: SentenceBatch, config: SearchConfig):
        sent.append(len(batch))
        return ours.engine.run(batch, config)

    monkeypatch.setattr(ctranslate2_engine.CTranslate2Engine, "_by_torch", by_torch)
    calls = [
        ({"prefixes": ["", "acht"]}, [2]),
        ({"glossary": {"seven": "acht"}}, [1]),
        ({"num_groups": 2}, [2]),
        ({"min_length": 30}, [1, 1]),
        ({"max_extra_length": 5_000}, [2]),  # beyond the sinusoids
        ({}, []),
    ]
    lines = ["seven", "nine"]
    for settings, sizes in calls:
        sent.clear()
        assert_same(theirs.search(lines, **settings), ours.search(lines, **settings))
        assert sorted(sent) == sizes


def test_a_model_with_weights_that_are_not_finite_is_refused(make_model):
    folder = ModelFolder(make_model())
    weights = folder.arrays()
    weights["output_weight"][7] = math.nan
    folder.arrays = lambda: weights
    with pytest.raises(CheckpointError, match="no finite probabilities"):
        start_ctranslate2(folder, CPU, needs_no_torch)


# --- every option of generate: obeyed, or refused by its name

_BEAM = "--beam 3"
OBEYED = {
    **dict.fromkeys(("models", "input"), ""),  # of every call
    "beam_size": _BEAM,
    "search": "--search beam",
    "length_penalty": "--length-penalty 0.2",
    "max_extra_length": "--max-extra-length 1",
    "min_length": "--min-length 5",
    "n_best": f"{_BEAM} --n-best 3",
    "no_repetition": f"{_BEAM} --no-repetition",
    "mbr": f"{_BEAM} --n-best 3 --mbr chrf",
    "mbr_tokenize": f"{_BEAM} --n-best 3 --mbr bleu --mbr-tokenize char",
    "metric_command": f"{_BEAM} --n-best 2 --mbr command --metric-command {{metric}}",
    "max_source_length": "--max-source-length 6",
    "max_tokens": "--max-tokens 9",
    "format": "--format html",
    "document": "--document",
    "align": "--align",
    "glossary": "--glossary {terms}",
    "protect": "--protect seven",
    "protect_for": "--protect-for qt",
    "no_protect": "--no-protect",
    "device": "--device auto",
    "precision": "--precision fp32",
    "threads": "--threads 1",
    "processes": "--processes 2",
    "output": "--output {output}",
    "prefix": "--prefix {prefixes}",
    "score_target": "--score-target {targets}",
    "per_token": "--score-target {targets} --per-token",
    "json": "--json",
}
REFUSED = {
    "search": ("--search sample", "search sample"),
    "num_groups": ("--num-groups 2", "num_groups 2"),
    "diversity_strength": ("--num-groups 2 --diversity-strength 1", "num_groups 2"),
    "diversity_steps": ("--num-groups 2 --diversity-steps 1", "num_groups 2"),
    "temperature": ("--search sample --temperature 2", "search sample"),
    "top_k": ("--search sample --top-k 2", "search sample"),
    "top_p": ("--search sample --top-p 0.5", "search sample"),
    "epsilon": ("--search sample --epsilon 0.1", "search sample"),
    "seed": ("--search sample --seed 2", "search sample"),
    "node_limit": ("--search exact --node-limit 9", "search exact"),
    "no_repeat_ngram": ("--no-repeat-ngram 2", "no_repeat_ngram"),
    "ban": ("--ban {terms} --num-groups 2", "num_groups 2, ban"),
    "length_penalty": ("--length-penalty 1.1", "length_penalty 1.1"),
    "kernels": ("--kernels plain", "kernels plain"),
    "device": ("--device cuda", "device cuda"),
    "precision": ("--precision bf16", "precision bf16"),
    "models": ("{model}", "an ensemble"),
}
# By the text, the vocabulary, the machine or another model, whatever the engine.
ELSEWHERE = {"split", "tag", "gpus", "align_reverse", "engine", "step"}


def test_the_table_has_every_option():
    names = {name for name in inspect.signature(generate).parameters if name != "settings"}
    for group in (StepsConfig, SearchConfig, InferenceConfig):
        names |= {item.name for item in fields(group)}
    assert OBEYED.keys() | REFUSED.keys() | ELSEWHERE == names


@pytest.fixture(scope="module")
def arguments(trained_norms, tmp_path_factory):
    """Return what replaces names in the rows, and the arguments of every call."""
    folder = tmp_path_factory.mktemp("options")
    model = checkpoints(trained_norms["pre"])[-1]
    (folder / "in").write_text("".join(f"{line}\n" for line in LINES[:8]))
    for name, content in {
        "terms": "seven\tacht\n", "prefixes": "acht\n" * 8, "targets": "acht\n" * 8,
    }.items():  # fmt: skip
        (folder / name).write_text(content)
    (folder / "metric").write_text("#!/bin/sh\nwhile read -r line; do echo ${#line}; done\n")
    (folder / "metric").chmod(0o755)
    names = {path.name: str(path) for path in folder.iterdir()}
    names |= {"model": str(model), "output": str(folder / "out")}
    return names, ["generate", model, "--input", folder / "in", "--processes", 1]


def words(text):
    """Return the words of an output, numbers as numbers, which are rounded differently."""
    found = []
    for word in text.replace('"ctranslate2"', '"torch"').split():
        try:
            found.append(pytest.approx(float(word.rstrip(",]}")), abs=2e-3))
        except ValueError:
            found.append(word)
    return found


@pytest.mark.parametrize("option", OBEYED.values(), ids=OBEYED)
def test_an_option_is_obeyed(run, arguments, option):
    names, call = arguments
    call = call[:-2] if "--processes" in option else call
    given = option.format(**names).split()
    outputs = []
    for engine in ("torch", "ctranslate2"):
        out, _ = run.ok(*call, *given, "--engine", engine)
        outputs.append(Path(given[-1]).read_text() if "--output" in given else out)
    assert outputs[0]
    assert words(outputs[1]) == words(outputs[0])


@pytest.mark.parametrize(("option", "obstacles"), REFUSED.values(), ids=REFUSED)
def test_an_option_is_refused_with_all_obstacles_in_one_line(run, arguments, option, obstacles):
    names, call = arguments
    code, out, err = run(*call[:-2], *option.format(**names).split(), "--engine", "ctranslate2")
    assert (code, out) == (2, "")
    message = f"--engine ctranslate2 does not support {obstacles}: use --engine torch"
    assert err.splitlines()[-1] == f"tfm: {message}"


def test_a_translator_refuses_searches_that_need_torch(trained_norms):
    translator = Translator.load(trained_norms["pre"], device="cpu", engine="ctranslate2")
    with pytest.raises(UsageError, match="does not support search sample, ban: use"):
        translator.translate("seven", search="sample", ban="terms")


def test_outputs_of_two_engines_are_not_mixed(run, arguments, tmp_path):
    _, (*call, _, _) = arguments
    text, output = tmp_path / "in", tmp_path / "out"
    text.write_bytes(b"seven\nnine\n\xff\n")
    call = [*call[:2], "--input", text, "--output", output, "--device", "cpu", "--engine"]
    assert run(*call, "torch")[0] == 1  # the last line is not UTF-8
    record = json.loads((tmp_path / "out.partial.json").read_text())
    assert record["engine"] == "torch (asked for)"
    code, _, err = run(*call, "ctranslate2")
    assert code == 2
    assert "or of another version or engine" in err


# --- the choice


def test_auto_is_ctranslate2_only_for_a_server_and_where_it_is_equal(trained_norms, make_model):
    folder = ModelFolder.open(trained_norms["pre"])
    config = SearchConfig()

    def chosen(folders=(folder,), search=config, inference=CPU, **options):
        return choose_engine(folders, search, inference, **options)

    assert chosen() == EngineChoice("torch", "the default")
    assert chosen(serves=True).engine == "ctranslate2"
    other = ModelFolder(make_model(attention_window=3))
    wide = ModelFolder(make_model(d_model=288, num_heads=2))
    for choice, reason in (
        (chosen(inference=replace(CPU, engine="torch"), serves=True), "asked for"),
        (chosen(inference=replace(CPU, precision="int8"), serves=True), "in int8, trans"),
        (chosen(search=replace(config, num_groups=2), serves=True), "num_groups 2"),
        (chosen(folders=[other], serves=True), "attention_window 3"),
        (chosen(folders=[folder, folder], serves=True), "an ensemble"),
        (chosen(folders=[wide], serves=True), "d_model is above 128"),
    ):
        assert choice.engine == "torch"
        assert reason in choice.reason


def test_without_the_package_a_server_takes_torch_and_a_command_is_refused(
    trained_norms, monkeypatch
):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    folders = [ModelFolder.open(trained_norms["pre"])]
    choice = choose_engine(folders, SearchConfig(), CPU, serves=True)
    assert choice.engine == "torch"
    assert "ctranslate2 is not installed" in choice.reason
    with pytest.raises(UsageError, match=r"ctranslate2 is not installed .*: run pip install"):
        Translator.load(folders[0].path, device="cpu", engine="ctranslate2")


def test_on_a_gpu_auto_is_torch(trained_norms, monkeypatch):
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 1)
    folders = [ModelFolder.open(trained_norms["pre"])]
    for device, engine in (("auto", "torch"), ("cpu", "ctranslate2")):
        inference = InferenceConfig(device=device)
        choice = choose_engine(folders, SearchConfig(), inference, serves=True)
        assert choice.engine == engine


# --- verified by the record of the model


def test_all_that_writes_models_records_a_pair(trained_norms, make_model, tmp_path):
    run_dir = trained_norms["pre"]
    made = [checkpoints(run_dir)[-1], average(run_dir, out=tmp_path / "mean").model_dir]
    for path in (*made, make_model()):
        folder = ModelFolder(path)
        engine = start_ctranslate2(folder, CPU, needs_no_torch)
        assert engine.difference(folder.info.known) < 1e-4
        assert folder.info.known.source != ()


@pytest.mark.parametrize("shift", [1.0, math.nan, None])
def test_an_engine_that_computes_something_else_is_not_used(make_model, capsys, shift):
    """Nor one of a model whose pair has no finite probability by torch: it has no record."""
    folder = ModelFolder(make_model())
    known = folder.info.known
    known = shift and replace(known, log_prob=known.log_prob + shift)
    folder.info = replace(folder.info, known=known)
    engine, choice = start_engine([folder], SearchConfig(), CPU, serves=True)
    assert choice == EngineChoice("torch", "CTranslate2 computes something else")
    assert "warning: CTranslate2 differs from torch by" in capsys.readouterr().err
    assert not isinstance(engine, ctranslate2_engine.CTranslate2Engine)
    with pytest.raises(CheckpointError, match=r"nats per token .*: use --engine torch"):
        start_engine([folder], SearchConfig(), ASKED, serves=True)


def test_int8_is_close_to_torch(trained_norms):
    folder = ModelFolder.open(trained_norms["pre"])
    engine = start_ctranslate2(folder, replace(ASKED, precision="int8"), needs_no_torch)
    assert 0 < engine.difference(folder.info.known) < engines.MAX_DIFFERENCES["int8"]


# --- no torch

_GENERATE = """
from tfm import generate
print(*generate({model!r}, input={text!r}, engine="ctranslate2", device="cpu"{options}), sep="")
"""


@pytest.mark.parametrize(
    ("options", "needs_torch"),
    [("", False), (", n_best=2, beam=2, json=True", False), (", align=True", True)],
)
def test_torch_is_imported_only_when_a_line_needs_it(trained_norms, tmp_path, options, needs_torch):
    (tmp_path / "in").write_text("seven\non Monday\n")
    model = str(checkpoints(trained_norms["pre"])[-1])
    code = _GENERATE.format(model=model, text=str(tmp_path / "in"), options=options)
    done = python("-c", f"{code}\nimport sys; print('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(needs_torch)


@pytest.mark.parametrize(
    ("threads", "num_workers", "expected"), [(None, 1, 1), (3, 1, 3), (3, 2, 1)]
)
def test_a_batch_has_one_thread_unless_more_are_asked_for(
    trained_norms, monkeypatch, threads, num_workers, expected
):
    started = []

    def start(*_, **settings):
        started.append(settings["intra_threads"])

    monkeypatch.setattr(ctranslate2_engine.ctranslate2, "Translator", start)
    folder = ModelFolder.open(checkpoints(trained_norms["pre"])[-1])
    inference = replace(CPU, threads=threads)
    ctranslate2_engine.CTranslate2Engine(
        folder, inference, num_workers=num_workers, start_torch=needs_no_torch
    )
    assert started == [expected]


@pytest.mark.parametrize(
    ("is_fp32", "before", "after"), [(True, None, "0"), (True, "1", "1"), (False, None, None)]
)
def test_mkl_is_not_used_in_fp32_unless_it_is_asked_for(monkeypatch, is_fp32, before, after):
    monkeypatch.setenv("CT2_USE_MKL", "")  # restored at the end
    monkeypatch.delenv("CT2_USE_MKL")
    if before is not None:
        monkeypatch.setenv("CT2_USE_MKL", before)
    assert package_problem(is_fp32=is_fp32) is None
    assert os.environ.get("CT2_USE_MKL") == after
