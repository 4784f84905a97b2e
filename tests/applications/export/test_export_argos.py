"""tfm export --format argos: a package of the model for CTranslate2."""

import json
import zipfile
from dataclasses import replace

import pytest
import sentencepiece
from foreign_models import PAIRS, new_marian

from tfm.applications.export.folder import PACKAGE, _code
from tfm.commands.export import export
from tfm.commands.import_model import import_model
from tfm.commands.translator import Translator
from tfm.errors import UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.saving import save_checkpoint

ctranslate2 = pytest.importorskip("ctranslate2")


def unpacked(out_dir, folder):
    """Unpack a package as Argos Translate does; return its only folder."""
    with zipfile.ZipFile(out_dir / PACKAGE) as package:
        package.extractall(folder)
    [found] = folder.iterdir()
    return found


def translate(package, line, *, limit):
    """Translate as Argos Translate does, but greedily and up to a length."""
    subwords = sentencepiece.SentencePieceProcessor(str(package / "sentencepiece.model"))
    translator = ctranslate2.Translator(str(package / "model"))
    pieces = subwords.encode(line, out_type=str)
    [found] = translator.translate_batch([pieces], beam_size=1, max_decoding_length=limit)
    return subwords.decode_pieces(found.hypotheses[0])


def test_a_package_holds_what_argos_translate_reads(make_model, tmp_path):
    model = make_model()
    result = export(model, format="argos", out=tmp_path / "out")
    assert (result.out_dir / PACKAGE).is_file()
    package = unpacked(result.out_dir, tmp_path / "unpacked")
    metadata = json.loads((package / "metadata.json").read_text())
    assert (metadata["from_code"], metadata["to_code"]) == ("en", "de")
    assert metadata["type"] == "translate"
    settings = {"beam": 1, "length_penalty": 0.0, "max_extra_length": 8}
    [ours] = Translator.load(model, device="cpu", precision="fp32").translate(["7"], **settings)
    length = len(
        sentencepiece.SentencePieceProcessor(str(package / "sentencepiece.model")).encode("7")
    )
    assert translate(package, "7", limit=length + 8).strip() == ours.strip() != ""


@pytest.mark.parametrize(
    ("code", "argos"), [("zho_Hans", "zh"), ("zh-TW", "zt"), ("deu", "de"), ("en+fr", "en+fr")]
)
def test_languages_have_the_codes_of_argos_translate(code, argos):
    assert _code(code) == argos


def test_two_segmentations_of_one_vocabulary_are_one_package(tmp_path):
    pytest.importorskip("transformers")
    new_marian(tmp_path / "marian")
    model = import_model(tmp_path / "marian", out=tmp_path / "model").out_dir
    package = unpacked(export(model, format="argos").out_dir, tmp_path / "unpacked")
    line = PAIRS[0][0]
    [ours] = Translator.load(model, device="cpu", precision="fp32").translate(
        [line], beam=1, length_penalty=0.0, max_extra_length=1
    )
    subwords = sentencepiece.SentencePieceProcessor(str(package / "sentencepiece.model"))
    assert (
        translate(package, line, limit=len(subwords.encode(line)) + 1).strip() == ours.strip() != ""
    )


def test_separate_vocabularies_are_refused(make_model):
    with pytest.raises(UsageError, match="one SentencePiece model for both languages"):
        export(make_model(tied_embeddings="none"), format="argos")


def test_several_languages_are_refused(make_model):
    found = ModelFolder(make_model(joint=True))
    info, files = replace(found.info, target="de+fr"), found.vocabulary.files()
    save_checkpoint(found.path, info, found.weights(), subword_files=files)
    with pytest.raises(UsageError, match="one pair of languages, but this model has several"):
        export(found.path, format="argos")
