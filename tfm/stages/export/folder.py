"""Convert a model folder to a self-contained folder, or package, for another program."""

import importlib
import json
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tfm.config import SearchConfig
from tfm.data.languages import base_language, name_of, script_of
from tfm.data.subword import Vocabulary
from tfm.errors import UsageError, install_command
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import ModelInfo
from tfm.reporting import say
from tfm.stages.export.check import Agreement, compare, lines_to_check
from tfm.stages.export.programs import Format
from tfm.stages.models import describe_export, exported_files
from tfm.storage.files import atomic_directory
from tfm.storage.paths import new_output_folder

# Type of the stored weights, and of the computation if the hardware supports it; "none" is float32.
Quantization = Literal[
    "none", "int8", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"
]

_MIN_VERSION = (4, 7)  # earlier versions require heads of width d_model / num_heads


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """An exported model."""

    model_dir: Path
    out_dir: Path
    num_bytes: int  # of all files
    agreement: Agreement | None  # None if it was not checked


def export(
    path: Path,
    *,
    format_: Format = "ctranslate2",
    quantization: Quantization = "none",
    out_dir: Path | None = None,
    force: bool = False,
    check_lines: int = 0,
) -> ExportResult:
    """Export a model and its subword model for another program.

    Args:
        path: A model or run folder.
        format_: What to write.
        quantization: Type of the stored weights.
        out_dir: The folder to write; beside the model, or in the run, if None.
        force: Replace an earlier export.
        check_lines: The number of lines of the test set on which the export is compared with the
            model before the folder gets its name.

    Raises:
        UsageError: A package that the format needs is not installed, the format cannot express the
            model, or `out_dir` exists.
        CheckpointError: The model is missing or damaged, or the export differs from it.
        DataError: There is no test set for the check.
    """
    model = ModelFolder.open(path)
    out_dir = out_dir or _default_folder(path, format_, quantization)
    own = exported_files(out_dir, format_)
    new_output_folder(out_dir, own=own, kind="exported model", force=force)
    if quantization != "none" and format_ not in ("ctranslate2", "argos"):
        raise UsageError(
            f"--quantization is for --format ctranslate2 and argos: {format_} stores weights in "
            "fp32"
        )
    if check_lines and format_ == "argos":
        raise UsageError(
            "--check does not open packages: check --format ctranslate2, whose model they hold"
        )
    lines = lines_to_check(model, check_lines) if check_lines else []
    if lines and format_ == "huggingface":
        _check_installed("transformers", remedy='pip install "transformers>=5"')
    with atomic_directory(out_dir, own=own or ()) as folder:
        match format_:
            case "ctranslate2":
                _write_ctranslate2(folder, model, quantization)
            case "huggingface":
                _write_huggingface(folder, model)
            case "onnx":
                _write_onnx(folder, model)
            case "argos":
                _write_argos(folder, model, quantization)
        describe_export(folder, model.path, format_)
        num_bytes = sum(file.stat().st_size for file in folder.iterdir())
        agreement = compare(model, folder, lines, format_) if lines else None
        if agreement is not None and quantization == "none":
            agreement.require_close(out_dir)
    if model.info.task == "parsing":  # of all formats, only this one has parsers
        say("warning: CTranslate2 outputs the parser's symbols; only tfm generate makes them trees")
    return ExportResult(
        model_dir=model.path, out_dir=out_dir, num_bytes=num_bytes, agreement=agreement
    )


def _write_ctranslate2(folder: Path, model: ModelFolder, quantization: Quantization) -> None:
    _check_installed("ctranslate2", remedy=install_command("export"))
    import ctranslate2

    version = ctranslate2.__version__
    if tuple(map(int, version.split(".")[:2])) < _MIN_VERSION:
        raise UsageError(f"CTranslate2 {version} is too old: run {install_command('export')}")
    from tfm.stages.export.specification import check_supported, transformer_spec

    config = check_supported(model.info.run.model)
    spec = transformer_spec(model.model(), config, model.vocabulary)
    spec.validate()
    spec.optimize(None if quantization == "none" else quantization)
    spec.save(str(folder))
    for name, content in model.vocabulary.files().items():
        (folder / name).write_bytes(content)
    if (limit := config.learned_positions) is not None:
        say(
            f"warning: the model learned {limit:,} positions: CTranslate2 stops with an error at "
            f"longer sources, and without max_decoding_length={limit - 1}"
        )


def _write_huggingface(folder: Path, model: ModelFolder) -> None:
    _check_installed("tokenizers", remedy=install_command("huggingface"))
    from tfm.stages.export.huggingface import check_supported, model_card, write_huggingface

    config = check_supported(model.info, model.vocabulary)
    write_huggingface(folder, model.model(), model.info, config, model.vocabulary)
    card = model_card(model)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _write_onnx(folder: Path, model: ModelFolder) -> None:
    for package in ("onnxscript", "onnxruntime"):
        _check_installed(package, remedy=install_command("onnx"))
    from tfm.stages.export.onnx import write_onnx

    search = SearchConfig.for_model(model.info.search, {})
    write_onnx(folder, model.model(), search, model.vocabulary)


def _write_argos(folder: Path, model: ModelFolder, quantization: Quantization) -> None:
    from tfm.stages.export.folder import PACKAGE, check_vocabulary, write_package

    check_vocabulary(model.vocabulary)
    with tempfile.TemporaryDirectory(dir=folder) as exported:
        _write_ctranslate2(Path(exported), model, quantization)
        write_package(folder / PACKAGE, Path(exported), model.info, model.vocabulary)


def _default_folder(path: Path, format_: Format, quantization: Quantization) -> Path:
    name = format_ if quantization == "none" else f"{format_}-{quantization}"
    if (path / "checkpoints").is_dir():  # a run
        return path / name
    path = path if path.name.strip(".") else path.resolve()
    return path.with_name(f"{path.name}-{name}")


def _check_installed(package: str, *, remedy: str) -> None:
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
