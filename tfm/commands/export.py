"""tfm export: a model → a self-contained folder for another program."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tfm.applications.export import Format, Quantization
from tfm.commands.declaration import ExistingFile, Flag, NewFolder, command
from tfm.config.schema import Rules
from tfm.disk.files import atomic_directory
from tfm.disk.paths import RUNS_ROOT, existing_folder, new_output_folder
from tfm.errors import UsageError

if TYPE_CHECKING:
    from tfm.applications.export.check import Agreement


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """An exported model."""

    model_dir: Path
    out_dir: Path
    num_bytes: int  # of all files
    agreement: "Agreement | None"  # None if it was not checked


@command()
def export(
    models: Annotated[tuple[Path, ...], existing_folder, Flag("MODEL")] = (),
    *,
    out: NewFolder = None,
    format: Format = "ctranslate2",  # noqa: A002 - named as its flag
    quantization: Annotated[
        Quantization, Rules(only={"format": ("ctranslate2", "argos")})
    ] = "none",
    check: Annotated[int, Flag("N"), Rules(limits=(0, 1_000_000))] = 0,
    check_input: Annotated[ExistingFile, Rules(needs=("check",))] = None,
    force: bool = False,
) -> ExportResult:
    """Convert a model for CTranslate2, transformers, ONNX Runtime or Argos Translate.

    CTranslate2 is a runtime without torch (--check needs pip install ".[export]"). For
    transformers, post-norm models become Marian and pre-norm ones Pegasus models (pip install
    ".[huggingface]"). For ONNX Runtime, encoder and decoder step are two files without a
    search (pip install ".[onnx]"). Argos Translate and LibreTranslate install a package of the
    model for CTranslate2.

    With length penalty 0, all programs find the same translations. With other values, tfm divides
    log probabilities by ((5 + length) / 6)^α, and the others by length^α.

    With --check, unquantized weights must also give the same probabilities.

    Examples::

        tfm export runs/wmt14-en-de-base --check 200
        tfm export --quantization int8 --out model-int8
        tfm export runs/wmt14-en-de-base --format huggingface

    Args:
        models: Model or run folder (default: the newest run in runs/).
        out: Output folder (default: RUN/FORMAT or MODEL-FORMAT, plus quantization).
        format: Program to write for: CTranslate2, transformers, ONNX Runtime, or Argos Translate.
        quantization: For CTranslate2 and Argos: type of weights, and of products if the CPU
            supports it.
        check: Translate N lines of the test set with both programs and print the differences.
        check_input: File whose lines are translated instead, for a model without a test set.
        force: Overwrite an earlier export.

    Raises:
        UsageError: A package that the format needs is not installed, the format cannot express the
            model, or `out` exists.
        CheckpointError: The model is missing or damaged, or the export differs from it.
        DataError: There is no test set for the check.
    """
    if len(models) > 1:
        raise UsageError(
            "other programs run a single model, not an ensemble: export each model by itself"
        )
    from tfm.applications.export.check import compare, lines_to_check
    from tfm.applications.export.folder import check_installed, write_export
    from tfm.folders.model_folder import ModelFolder
    from tfm.folders.run_folder import newest_run
    from tfm.training.model_summaries import describe_export, exported_files
    from tfm.translation.ctranslate2_files import package_problem

    path = models[0] if models else newest_run(RUNS_ROOT)
    model = ModelFolder.open(path)
    out = out or _default_folder(path, format, quantization)
    own = exported_files(out, format)
    new_output_folder(out, own=own, kind="exported model", force=force)
    if check and format == "argos":
        raise UsageError(
            "--check cannot run packages of Argos: leave it out; --format ctranslate2 --check N "
            "checks the model that they hold"
        )
    lines = lines_to_check(model, check, check_input) if check else []
    if lines and format == "huggingface":
        check_installed("transformers", remedy='pip install "transformers>=5"')
    if lines and format == "ctranslate2" and (problem := package_problem()) is not None:
        raise UsageError(problem)
    with atomic_directory(out, own=own or ()) as folder:
        write_export(folder, model, format, quantization)
        describe_export(folder, model.path, format)
        num_bytes = sum(file.stat().st_size for file in folder.iterdir())
        agreement = compare(model, folder, lines, format) if lines else None
        if agreement is not None and quantization == "none":
            agreement.require_close(out)
    return ExportResult(model_dir=model.path, out_dir=out, num_bytes=num_bytes, agreement=agreement)


def _default_folder(path: Path, format_: Format, quantization: Quantization) -> Path:
    name = format_ if quantization == "none" else f"{format_}-{quantization}"
    if (path / "checkpoints").is_dir():  # a run
        return path / name
    path = path if path.name.strip(".") else path.resolve()
    return path.with_name(f"{path.name}-{name}")
