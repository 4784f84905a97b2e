"""Convert a model folder to a self-contained folder, or package, for another program."""

import importlib
import json
import tempfile
import zipfile
from pathlib import Path

from tfm.applications.export import Format, Quantization
from tfm.applications.export.quantization import quantized
from tfm.config import SearchConfig
from tfm.errors import UsageError, install_command
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import ModelInfo
from tfm.reporting import say
from tfm.text.languages import base_language, name_of, script_of
from tfm.translation.ctranslate2_files import ctranslate2_files, obstacles_of, variables_of
from tfm.vocabulary.subword import Vocabulary


def write_export(
    folder: Path, model: ModelFolder, format_: Format, quantization: Quantization
) -> None:
    """Write a model in a format into a folder."""
    match format_:
        case "ctranslate2":
            _write_ctranslate2(folder, model, quantization)
        case "huggingface":
            _write_huggingface(folder, model)
        case "onnx":
            _write_onnx(folder, model)
        case "argos":
            _write_argos(folder, model, quantization)
    if model.info.task == "parsing":  # of all formats, only CTranslate2 has parsers
        say("warning: CTranslate2 outputs the parser's symbols; only tfm generate makes them trees")


def _write_ctranslate2(folder: Path, model: ModelFolder, quantization: Quantization) -> None:
    if obstacles := obstacles_of(model.info.run.model):
        raise UsageError(
            f"CTranslate2 does not support {', '.join(obstacles)}: translate with tfm generate"
        )
    variables = quantized(variables_of(model), quantization)
    files = ctranslate2_files(model.vocabulary, variables) | model.vocabulary.files()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if (limit := getattr(model.info.run.model, "learned_positions", None)) is not None:
        say(
            f"warning: the model learned {limit:,} positions: CTranslate2 stops with an error at "
            f"longer sources, and without max_decoding_length={limit - 1}"
        )


def _write_huggingface(folder: Path, model: ModelFolder) -> None:
    check_installed("tokenizers", remedy=install_command("huggingface"))
    from tfm.applications.export.huggingface import check_supported, write_huggingface
    from tfm.applications.export.model_card import model_card

    config = check_supported(model.info, model.vocabulary)
    write_huggingface(folder, model.model(), model.info, config, model.vocabulary)
    card = model_card(model)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _write_onnx(folder: Path, model: ModelFolder) -> None:
    for package in ("onnxscript", "onnxruntime"):
        check_installed(package, remedy=install_command("onnx"))
    from tfm.applications.export.onnx import write_onnx

    search = SearchConfig.for_model(model.info.search, {})
    write_onnx(folder, model.model(), search, model.vocabulary)


def _write_argos(folder: Path, model: ModelFolder, quantization: Quantization) -> None:
    check_vocabulary(model.vocabulary)
    if "+" in model.info.source + model.info.target:
        raise UsageError(
            "a package of Argos Translate has one pair of languages, but this model has several: "
            "export it for another program"
        )
    with tempfile.TemporaryDirectory(dir=folder) as exported:
        _write_ctranslate2(Path(exported), model, quantization)
        write_package(folder / PACKAGE, Path(exported), model.info, model.vocabulary)


def check_installed(package: str, *, remedy: str) -> None:
    """Raise UsageError, with the command that installs it, if a package cannot be imported."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UsageError(f"{package} is not installed ({error}): run {remedy}") from error


PACKAGE = "translate.argosmodel"


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """Raise UsageError unless one SentencePiece model serves both languages."""
    source, target = vocabulary.source, vocabulary.target
    # An imported model may have two segmentations of one vocabulary. Unigram models spell out the
    # pieces that only the other has.
    is_one = source.pieces(range(len(source))) == target.pieces(range(len(target)))
    if not (vocabulary.is_joint or (is_one and not source.is_bpe)):
        raise UsageError(
            "Argos Translate has one SentencePiece model for both languages, but this model has "
            "separate vocabularies: export it for another program"
        )


def write_package(path: Path, model_dir: Path, info: ModelInfo, vocabulary: Vocabulary) -> None:
    """Write a package with the files of a folder for CTranslate2."""
    source, target = _code(info.source), _code(info.target)
    metadata = {
        "package_version": "1.0",
        "argos_version": "1.9",
        "from_code": source,
        "from_name": name_of(info.source),
        "to_code": target,
        "to_name": name_of(info.target),
        "type": "translate",
    }
    folder = f"translate-{source}_{target}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(f"{folder}/metadata.json", json.dumps(metadata, indent=2))
        package.writestr(f"{folder}/sentencepiece.model", vocabulary.source.content)
        for file in sorted(model_dir.iterdir()):
            if file.name not in vocabulary.files():
                package.write(file, f"{folder}/model/{file.name}")


def _code(language: str) -> str:
    """Return the code of Argos Translate for a language."""
    base = base_language(language)
    return "zt" if base == "zh" and script_of(language) == "Hant" else base
