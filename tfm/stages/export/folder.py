"""From a model folder to one that CTranslate2 reads, which needs nothing beside it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tfm.data.subword import Vocabulary
from tfm.errors import CheckpointError, UsageError
from tfm.model.build import load_model
from tfm.reporting import say
from tfm.stages.export.check import Agreement, compare, lines_to_check
from tfm.storage.checkpoint.model_folder import load_info
from tfm.storage.checkpoint.run_folder import find_model
from tfm.storage.files import atomic_directory

# What the weights are stored as, and computed with where the hardware can; "none" is float32.
Quantization = Literal[
    "none", "int8", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"
]

_WEIGHTS = "model.bin"  # as CTranslate2 calls them
_OLDEST_VERSION = (4, 7)  # before, heads of other widths than d_model / num_heads were unknown
_INSTALL = 'pip install "tfm[export]"'


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The model, the folder for CTranslate2, the size of its files, and what a check found."""

    model_dir: Path
    out_dir: Path
    num_bytes: int
    agreement: Agreement | None


def export(
    path: Path,
    *,
    quantization: Quantization = "none",
    out_dir: Path | None = None,
    force: bool = False,
    check_lines: int = 0,
) -> ExportResult:
    """Write a model as CTranslate2 reads it, with the subword model that cuts text for it.

    Args:
        path: A model or run folder.
        quantization: What to store the weights as.
        out_dir: The folder to write; beside the model, or in the run, if None.
        force: Replace an earlier export of that name.
        check_lines: The number of lines of the test set that both translate, before the folder
            takes its name.

    Raises:
        UsageError: CTranslate2 is not installed or has no counterpart to the model, or the place
            is taken.
        CheckpointError: There is no sound model, or what was exported is not the same one.
        DataError: There is no test set to check with.
    """
    model_dir = find_model(path)
    info = load_info(model_dir)
    out_dir = out_dir or _default_folder(path, quantization)
    _check_place(out_dir, force=force)
    lines = lines_to_check(info, check_lines) if check_lines else []
    _check_library()
    from tfm.stages.export.specification import supported, transformer_spec

    config = supported(info.run.model)
    vocabulary = Vocabulary.load(model_dir)
    sizes = (len(vocabulary.source), len(vocabulary.target))
    if vocabulary.fingerprint != info.fingerprint or sizes != info.vocab_sizes:
        raise CheckpointError(
            f"{model_dir} was trained with subword model {info.fingerprint[:8]}, not "
            f"{vocabulary.fingerprint[:8]}: models translate only with their own"
        )
    spec = transformer_spec(load_model(model_dir, info), config, vocabulary)
    spec.validate()
    spec.optimize(None if quantization == "none" else quantization)
    with atomic_directory(out_dir) as folder:
        spec.save(str(folder))
        for name, content in vocabulary.files().items():
            (folder / name).write_bytes(content)
        num_bytes = sum(file.stat().st_size for file in folder.iterdir())
        agreement = compare(model_dir, folder, lines) if lines else None
        if agreement is not None and quantization == "none":
            agreement.must_be_close(out_dir)
    if info.task == "parsing":
        say("warning: CTranslate2 gives the parser's symbols; only tfm generate makes them trees")
    if (limit := config.learned_positions) is not None:
        say(
            f"warning: the model learned {limit:,} positions: CTranslate2 stops with an error at "
            f"longer sources, and without max_decoding_length={limit - 1}"
        )
    return ExportResult(
        model_dir=model_dir, out_dir=out_dir, num_bytes=num_bytes, agreement=agreement
    )


def _default_folder(path: Path, quantization: Quantization) -> Path:
    name = "ctranslate2" if quantization == "none" else f"ctranslate2-{quantization}"
    if (path / "checkpoints").is_dir():  # a run
        return path / name
    path = path if path.name.strip(".") else path.resolve()
    return path.with_name(f"{path.name}-{name}")


def _check_place(out_dir: Path, *, force: bool) -> None:
    if not out_dir.exists():
        return
    if not (out_dir / _WEIGHTS).is_file():
        raise UsageError(
            f"{out_dir} is there and holds no exported model: choose another folder with --out"
        )
    if not force:
        raise UsageError(
            f"{out_dir} is there: replace it with --force, or choose another folder with --out"
        )


def _check_library() -> None:
    try:
        import ctranslate2.specs
    except ImportError as error:
        raise UsageError(f"there is no CTranslate2 ({error}): {_INSTALL}") from error
    version = ctranslate2.__version__
    if tuple(map(int, version.split(".")[:2])) < _OLDEST_VERSION:
        raise UsageError(f"CTranslate2 {version} is too old: {_INSTALL}")
