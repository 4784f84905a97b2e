"""The model card of an exported model for the Hugging Face Hub: its README.md with metadata."""

import json
import re
from pathlib import Path

from tfm import __version__
from tfm.config import run_toml
from tfm.dataset.manifest import Manifest
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import ModelInfo
from tfm.pages import render
from tfm.text.languages import base_language
from tfm.training.metrics_log import read_metrics

# The usual licenses of models; the Hub knows many more by name.
_HUB_LICENSE = re.compile(
    r"mit|apache-2\.0|cc0-1\.0|cc-by(-nc)?(-sa|-nd)?-4\.0|[al]?gpl-3\.0|bsd-3-clause"
)


def model_card(model: ModelFolder) -> str:
    """Return a README.md in Markdown; a license that is unknown is left to the user."""
    info = model.info
    languages = dict.fromkeys(map(base_language, f"{info.source}+{info.target}".split("+")))
    data_dir = Path(info.data_dir)
    has_record = (data_dir / "manifest.json").is_file()
    return render(
        "applications/export/model_card.md",
        info=info,
        languages=languages,
        license=_license(info),
        num_parameters=model.num_parameters(),
        version=__version__,
        normalization=_normalization(info),
        dataset=data_dir.name,
        texts=Manifest.load(data_dir).texts("train") if has_record else [],
        quality=_quality(model.path, info),
        averaged=", ".join(f"{step:,}" for step in info.averaged),
        settings=run_toml(info.run),
    )


def _license(info: ModelInfo) -> str:
    """Return the fields of the license, whose names at the Hub are in lower case."""
    match info.license:
        case None:
            return (
                '# Choose a license that the training data allows, and add it here as "license: …".'
            )
        case name if _HUB_LICENSE.fullmatch(name.lower()):
            return f"license: {name.lower()}"
        case name:
            return f"license: other\nlicense_name: {json.dumps(name, ensure_ascii=False)}"


def _normalization(info: ModelInfo) -> str:
    rules = info.normalization
    names = {"white space and invisible characters": rules.space, "Unicode to NFC": rules.unicode}
    return " and ".join(name for name, is_on in names.items() if is_on) or "not at all"


def _quality(model_dir: Path, info: ModelInfo) -> str:
    """Return the validation BLEU of the model, or of the last checkpoint that it averages."""
    step = max(info.averaged, default=info.step)
    for run_dir in (model_dir.parent, model_dir.parent.parent):
        for record in read_metrics(run_dir).validation:
            if record["step"] == step and "bleu" in record:
                return (
                    f"BLEU {record['bleu']:.1f} on the validation text at step {step:,}, beam size "
                    f"{info.run.training.validation_beam}, signature `{record['signature']}`."
                )
    return "Not measured yet."
