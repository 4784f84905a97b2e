"""Packages of Argos Translate, which LibreTranslate uses: a zip with a model for CTranslate2."""

import json
import zipfile
from pathlib import Path

from tfm.data.languages import base_language, name_of, script_of
from tfm.data.subword import Vocabulary
from tfm.errors import UsageError
from tfm.folders.model_info import ModelInfo

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
