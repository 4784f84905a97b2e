"""Import a model of another program as an ordinary model folder."""

from dataclasses import dataclass
from pathlib import Path

from tfm.errors import CheckpointError
from tfm.folders.model_folder import ModelFolder, own_files
from tfm.folders.model_info import Ancestor, ModelInfo
from tfm.folders.saving import save_checkpoint
from tfm.stages.importing.fairseq import find_checkpoint, read_fairseq
from tfm.stages.importing.foreign import convert
from tfm.stages.importing.marian import is_marian, read_marian
from tfm.storage.files import sha256_of
from tfm.storage.paths import new_output_folder


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """An imported model."""

    out_dir: Path
    languages: tuple[str, str]
    num_parameters: int
    max_positions: int | None  # the longest sentence in tokens, if the model has a limit
    takes_tokens: bool  # whether text in and out is tokens separated by spaces


def import_model(
    path: Path,
    *,
    out_dir: Path | None = None,
    source: str | None = None,
    target: str | None = None,
    force: bool = False,
) -> ImportResult:
    """Import a Marian model of transformers or a Transformer of fairseq.

    Args:
        path: The folder of the model, or fairseq's file of weights in it.
        out_dir: The model folder to write; PATH-tfm if None.
        source: The source language, if the model does not name it.
        target: The target language, if the model does not name it.
        force: Replace an earlier import.

    Raises:
        UsageError: There is no such model, it has something that tfm has not, languages are
            unknown, or `out_dir` exists.
        CheckpointError: Weights are missing or damaged, or contain code.
        DataError: The vocabulary is missing or damaged.
    """
    folder = path if path.is_dir() else path.parent
    out_dir = out_dir or folder.resolve().with_name(f"{folder.resolve().name}-tfm")
    own = own_files(out_dir) if _is_import(out_dir) else None
    new_output_folder(out_dir, own=own, kind="model folder of tfm import", force=force)
    if path.is_dir() and is_marian(path):
        model, takes_tokens = read_marian(path, (source, target)), False
    else:
        model, takes_tokens = read_fairseq(find_checkpoint(path), (source, target))
    run, weights = convert(model)
    vocabulary = model.vocabulary
    tags = [tag for tag in vocabulary.source.tags() if tag.startswith(">>")]
    info = ModelInfo(
        run=run,
        source=model.languages[0],
        target=model.languages[1],
        vocab_sizes=(len(vocabulary.source), len(vocabulary.target)),
        fingerprint=vocabulary.fingerprint,
        data_dir="",
        step=0,
        tags=tuple(tags) if len(tags) > 1 else (),
        ancestors=(
            Ancestor(path=str(model.path), data_dir="", step=0, sha256=sha256_of(model.path)),
        ),
    )
    save_checkpoint(out_dir, info, weights, subword_files=vocabulary.files())
    return ImportResult(
        out_dir=out_dir,
        languages=model.languages,
        num_parameters=sum(each.numel() for each in weights.values()),
        max_positions=getattr(run.model, "learned_positions", None),
        takes_tokens=takes_tokens,
    )


def _is_import(folder: Path) -> bool:
    """Return whether a folder holds an intact model that was imported, not one that was trained."""
    try:
        info = ModelFolder(folder).info
    except CheckpointError:
        return False
    return not info.data_dir and not info.step
