"""The card of an exported model."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tfm.applications.export.model_card import model_card
from tfm.commands.export import export
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import Ancestor

pytest.importorskip("tokenizers")


def test_the_card_has_languages_data_quality_and_settings(trained_run, tmp_path):
    folder = export(trained_run, format="huggingface", out=tmp_path / "out").out_dir
    card = (folder / "README.md").read_text(encoding="utf-8")
    _, front, text = card.split("---\n", 2)
    assert 'language:\n- "en"\n- "de"\n' in front
    assert not any(line.startswith("license:") for line in front.splitlines())
    assert "Dataset `tiny`" in text
    assert "num_heads = 2" in text
    assert "Not measured yet." in text  # this run validates without BLEU


@pytest.mark.parametrize(
    ("license_", "expected"),
    [
        ("CC-BY-4.0", "license: cc-by-4.0\n"),
        ("cc-by-nc-sa-4.0", "license: cc-by-nc-sa-4.0\n"),
        ("Lizenz: für uns", 'license: other\nlicense_name: "Lizenz: für uns"\n'),
    ],
)
def test_the_card_has_the_license(make_model, license_, expected, tmp_path):
    model = make_model()
    ancestor = Ancestor(path="x", data_dir="", step=0, sha256="", license=license_)
    info = replace(ModelFolder(model).info, ancestors=(ancestor,))
    card = model_card(SimpleNamespace(info=info, path=tmp_path, num_parameters=lambda: 1))
    assert expected in card.split("---\n")[1]


def test_the_card_has_bleu_with_its_signature(make_model, tmp_path):
    model = make_model()
    record = {"kind": "validation", "step": 1, "bleu": 31.25, "signature": "nrefs:1|case:mixed"}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(record)}\n{{", encoding="utf-8")
    folder = export(model, format="huggingface").out_dir
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "BLEU 31.2 on the validation text at step 1," in card
    assert "`nrefs:1|case:mixed`" in card
