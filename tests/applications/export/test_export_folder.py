"""tfm export: a self-contained folder, or one error line and no folder."""

import errno
import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext

import pytest

from tfm.applications.export import folder
from tfm.commands.export import export
from tfm.commands.translator import Translator
from tfm.config import SearchConfig, run_config
from tfm.errors import CheckpointError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.folders.saving import save_checkpoint
from tfm.training.model_summaries import summarize_model
from tfm.translation.ctranslate2_files import obstacles_of
from tfm.vocabulary.subword import Vocabulary

ctranslate2 = pytest.importorskip("ctranslate2")


@pytest.mark.parametrize(
    ("tied", "subword_files", "vocabularies"),
    [
        ("three-way", ["bpe.model"] * 2, ["shared_vocabulary.json"]),
        (
            "none",
            ["bpe.source.model", "bpe.target.model"],
            ["source_vocabulary.json", "target_vocabulary.json"],
        ),
    ],
)
def test_the_folder_is_self_contained(make_model, tmp_path, tied, subword_files, vocabularies):
    model = make_model(tied_embeddings=tied)
    config = SearchConfig(length_penalty=0.0, max_extra_length=9, beam_size=1)
    [expected] = Translator.load(model, device="cpu", precision="fp32").translate(["7"], config)
    result = export(model)
    files = list(result.out_dir.iterdir())
    names = {"config.json", "model.bin", "tfm.json", *subword_files, *vocabularies}
    assert {path.name for path in files} == names
    assert result.num_bytes == sum(path.stat().st_size for path in files)
    moved = shutil.move(result.out_dir, tmp_path / "elsewhere")
    shutil.rmtree(model)
    source, target = (f"{moved}/{name}" for name in subword_files)
    # The example in docs/how-to/export.md.
    script = f"""
import sys, ctranslate2, sentencepiece
source = sentencepiece.SentencePieceProcessor({source!r})
target = sentencepiece.SentencePieceProcessor({target!r})
pieces = source.encode("7", out_type=str)
[found] = ctranslate2.Translator({str(moved)!r}).translate_batch(
    [pieces], beam_size=1, max_decoding_length=len(pieces) + 9, min_decoding_length=0
)
print(target.decode(found.hypotheses[0]))
assert "torch" not in sys.modules
"""
    found = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert found.strip() == expected.strip() != ""


def test_the_default_folder_is_in_the_run_or_beside_the_model(trained_run, tmp_path):
    run = shutil.copytree(trained_run, tmp_path / "run")
    model = checkpoints(run)[0]
    assert export(run).out_dir == run / "ctranslate2"
    assert export(run, quantization="int8").out_dir == run / "ctranslate2-int8"
    assert export(model).out_dir == model.with_name(f"{model.name}-ctranslate2")
    assert len(checkpoints(run)) == len(checkpoints(trained_run))


def test_an_export_is_replaced_only_with_force(make_model, tmp_path):
    model = make_model()
    before = export(model).out_dir / "model.bin"
    content = before.read_bytes()
    make_model(seed=1)
    with pytest.raises(UsageError, match="exists: replace it with --force, or choose another"):
        export(model)
    assert before.read_bytes() == content
    export(model, force=True)
    assert before.read_bytes() != content


@pytest.mark.parametrize("name", ["model", "thesis", "file"])
def test_other_files_and_folders_are_never_replaced(make_model, tmp_path, name):
    model = make_model()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r"is no exported model: choose .*|it is a file, not a folder"
    ):
        export(model, out=tmp_path / name, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model", "thesis"]


def test_a_folder_that_only_looks_like_an_export_is_not_replaced(make_model, tmp_path):
    model = make_model()
    (tmp_path / "mine").mkdir()
    for name in ("model.bin", "config.json", "thesis.tex"):
        (tmp_path / "mine" / name).write_text("mine")
    for record in (None, "{}", '{"format": 1, "kind": "onnx"}', "["):
        if record is not None:
            (tmp_path / "mine" / "tfm.json").write_text(record)
        with pytest.raises(UsageError, match="is no exported model: choose another folder"):
            export(model, out=tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "model.bin").read_text() == "mine"


def test_an_export_with_files_of_others_is_not_replaced(make_model):
    model = make_model()
    out_dir = export(model).out_dir
    record = json.loads((out_dir / "tfm.json").read_text())
    assert sorted(record["files"]) == sorted({p.name for p in out_dir.iterdir()} - {"tfm.json"})
    export(model, force=True)
    for name in ("README.md", ".git"):
        (out_dir / name).mkdir()
        with pytest.raises(UsageError, match=f"{name} is not of the exported model"):
            export(model, force=True)
        (out_dir / name).rmdir()
    summary = summarize_model(out_dir)
    assert (summary.kind, summary.problem) == ("ctranslate2", None)


@pytest.mark.parametrize("force", [False, True])
def test_an_interrupted_export_changes_nothing(make_model, tmp_path, monkeypatch, force):
    model = make_model()
    if force:
        export(model)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def fail(vocabulary, variables):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder, "ctranslate2_files", fail)
    with pytest.raises(OSError, match="No space left") as raised:
        export(model, force=force)
    assert raised.value.filename == str(tmp_path / "model-ctranslate2")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# --- refusals


@pytest.mark.parametrize(
    ("arch", "changes", "missing"),
    [
        ("base", {"attention_window": 5}, "attention_window 5"),
        (
            "base",
            {"attention": "additive", "attention_window": 3},
            "attention additive, attention_window 3",
        ),
        ("rnn", {"attention": "dot-product"}, "arch rnn"),
        ("rnn", {}, "arch rnn, attention additive"),
    ],
)
def test_all_unsupported_settings_are_named(arch, changes, missing):
    config = run_config(arch, {}, {"model": changes}).model
    assert ", ".join(obstacles_of(config)) == missing


def test_an_unsupported_model_leaves_nothing(make_model, tmp_path):
    model = make_model(attention_window=3)
    with pytest.raises(UsageError, match="does not support attention_window 3"):
        export(model)
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize(
    ("format_", "package", "check_lines", "remedy"),
    [
        ("ctranslate2", "ctranslate2", 3, "ctranslate2"),
        ("huggingface", "tokenizers", 0, "tokenizers"),
        ("huggingface", "transformers", 3, '"transformers>=5"'),
        ("onnx", "onnxscript", 0, "onnxruntime onnxscript"),
        ("onnx", "onnxruntime", 0, "onnxruntime onnxscript"),
    ],
)
def test_a_missing_package_is_named_with_what_to_install(
    make_model, tmp_path, monkeypatch, format_, package, check_lines, remedy
):
    pytest.importorskip("onnxscript")
    model = make_model()
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"{package} is not installed.*pip install {re.escape(remedy)}"
    with pytest.raises(UsageError, match=message):
        export(model, format=format_, check=check_lines)
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize(("version", "is_known"), [("4.8.4", False), ("4.10.0", True)])
def test_a_library_that_is_too_old_is_refused(make_model, monkeypatch, version, is_known):
    model = make_model()
    monkeypatch.setattr(ctranslate2, "__version__", version)
    with nullcontext() if is_known else pytest.raises(UsageError, match=r"4\.8\.4 is not"):
        export(model, check=1)


def test_another_subword_model_is_refused(make_model, data_dir):
    model = make_model(tied_embeddings="none")
    info = ModelFolder(model).info
    save_checkpoint(
        model, info, ModelFolder(model).weights(), subword_files=Vocabulary.load(data_dir).files()
    )
    with pytest.raises(CheckpointError, match="was trained with subword model"):
        export(model)
