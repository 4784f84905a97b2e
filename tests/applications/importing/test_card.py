"""The license and origin that the files of a model name."""

import pytest
from foreign_models import new_marian

from tfm.applications.importing.card import read_card
from tfm.commands.export import export
from tfm.commands.import_model import import_model
from tfm.folders.model_folder import ModelFolder
from tfm.training.model_summaries import summarize_model

URL = "https://object.pouta.csc.fi/OPUS-MT-models/en-de/opus-2020-02-26.zip"
CARD = f"""---
license: cc-by-4.0
tags:
- translation
---

### eng-deu

* source languages: en
*  OPUS readme: [en-de](https://github.com/Helsinki-NLP/OPUS-MT-train/blob/master/models/en-de/README.md)
* download original weights: [opus-2020-02-26.zip]({URL})
"""
CC_BY = """Attribution 4.0 International

=======================================================================
"""


@pytest.mark.parametrize(
    ("readme", "license_", "origin"),
    [
        (CARD, "cc-by-4.0", URL),
        (CARD.replace("\n", "\r\n"), "cc-by-4.0", URL),
        (f"\ufeff{CARD}", "cc-by-4.0", URL),
        (f"# opus-2020-02-26.zip\n* download: [x.zip]({URL})\n", None, URL),
        (f"- **Original Model:** [x.zip]({URL})\n", None, URL),
        ("---\nlicense: 'mit'  # as is\nbase_model: a/b\n---\n", "mit", "a/b"),
        ("---\nbase_model:\n- a/b\n- c/d\nlicense: [mit, x]\n---", "mit and x", "a/b and c/d"),
        ("---\nlicense: other\nlicense_name: our-license\n---\n", "our-license", None),
        ("---\nlicense: other\n---\n", "other", None),
        ("---\nlicense: other\nlicense_name: 'my, license'\n---\n", "my license", None),
        ("---\nlicense: null\n---\n", None, None),
        ("---\nlicense:\nlicense_link: x\n---\n", None, None),
        ("---\nlicense: \x1b[31m\n---\n", None, None),
        ("license: mit\n", None, None),
        ("---\nno end\nlicense: mit\n", None, None),
        ("", None, None),
    ],
)
def test_a_card_names_license_and_origin(tmp_path, readme, license_, origin):
    (tmp_path / "README.md").write_bytes(readme.encode())
    assert read_card(tmp_path) == (license_, origin)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CC_BY, "CC-BY-4.0"),
        ("Attribution-NonCommercial 4.0 International\n", "CC-BY-NC-4.0"),
        ("\n   Apache License\n   Version 2.0, January 2004\n", "Apache-2.0"),
        ("MIT License\n\nCopyright (c) X", "MIT"),
        ("The MIT License (MIT)\n", "MIT"),
        ("Creative Commons Attribution 4.0 International Public License\n", "CC-BY-4.0"),
        ("Lizenz für Übersetzungen, © X\nmore", "Lizenz für Übersetzungen X"),
        ("This model is NOT under the MIT License.", "This model is NOT under the MIT License."),
        ("", None),
    ],
)
def test_without_a_license_in_the_card_its_text_counts(tmp_path, text, expected):
    (tmp_path / "README.md").write_text(f"* download: [x]({URL})")
    (tmp_path / "LICENSE").write_text(text, encoding="utf-8")
    assert read_card(tmp_path) == (expected, URL)


def test_an_imported_model_and_its_export_keep_license_and_origin(tmp_path):
    pytest.importorskip("transformers")
    new_marian(tmp_path / "marian")
    (tmp_path / "marian" / "README.md").write_text(CARD, encoding="utf-8")
    result = import_model(tmp_path / "marian", out=tmp_path / "ours")
    assert result.license == "cc-by-4.0"
    [ancestor] = ModelFolder(result.out_dir).info.ancestors
    assert (ancestor.license, ancestor.origin) == ("cc-by-4.0", URL)
    for folder in (result.out_dir, export(result.out_dir, out=tmp_path / "exported").out_dir):
        summary = summarize_model(folder)
        assert (summary.license, summary.origin) == ("cc-by-4.0", URL)
