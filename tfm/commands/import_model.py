"""tfm import: a model of another program → an ordinary model folder."""

import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tfm.commands.declaration import Flag, NewFolder, command
from tfm.disk.files import sha256_of
from tfm.disk.paths import MODELS_ROOT, RUNS_ROOT, existing_path, new_output_folder
from tfm.errors import CheckpointError, UsageError
from tfm.folders.run_folder import is_run

# Such as Helsinki-NLP/opus-mt-en-de; of an address, Path has removed a slash.
_HUB_NAME = re.compile(
    r"(https?:/+(?:www\.)?(?:huggingface|hf)\.co/|hf:/+)?([\w.-]+/[\w.-]+)(?<!\.pt)(?<!\.npz)"
    r"(?<!\.zip)(?:/(?:tree|blob)/([^/]+).*)?"
)


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """An imported model."""

    out_dir: Path
    languages: tuple[str, str]
    num_parameters: int
    max_positions: int | None  # the longest sentence in tokens, if the model has a limit
    takes_tokens: bool  # whether text in and out is tokens separated by spaces
    license: str | None  # that its card names; None if unknown


def _existing_or_named(path: Path) -> Path:
    """Return the path; raise UsageError unless it exists, or names a model of the Hub."""
    if _named(path):
        return path
    if not os.path.lexists(path):
        raise UsageError(
            f"{path} does not exist: name a folder or file, or OWNER/NAME of a model of the "
            "Hugging Face Hub, such as Helsinki-NLP/opus-mt-en-de"
        )
    return existing_path(path)


def _named(path: Path) -> re.Match[str] | None:
    """Return the match of a name of the Hub; None for a path, or a mistake in one."""
    match = _HUB_NAME.fullmatch(path.as_posix())
    is_here = path.parent.exists() or path.parent in (RUNS_ROOT, MODELS_ROOT)
    return match if match and (match[1] or not is_here) else None


@command()
def import_model(
    model: Annotated[Path, _existing_or_named, Flag("MODEL")],
    *,
    out: NewFolder = None,
    source: Annotated[str | None, Flag("LANG")] = None,
    target: Annotated[str | None, Flag("LANG")] = None,
    revision: Annotated[str | None, Flag("NAME")] = None,
    force: bool = False,
) -> ImportResult:
    """Import a model of Marian (OPUS-MT), a Transformer of fairseq, or an export of tfm.

    A Marian model has the format of transformers, as a folder or a name on the Hugging Face Hub
    (pip install ".[hub]"), or Marian's own: a .npz file with its vocabularies beside it, or a
    zip archive of OPUS-MT or Tatoeba. A model of fairseq is a checkpoint with its dict.LANG.txt,
    and its SentencePiece model if it has one. What tfm export --format huggingface wrote becomes
    the same model again. No code in a file is run.

    The result is an ordinary model folder: translate with it, adapt it with tfm train --from. It
    records the license and the origin that the model's card names (README.md, LICENSE).

    A model whose vocabulary has several tags such as >>fra<< translates to all their languages.

    Examples::

        tfm import Helsinki-NLP/opus-mt-en-de
        tfm import opus-2020-02-26.zip --out models/en-de
        tfm import wmt16.en-de/checkpoint_best.pt
        tfm import runs/wmt14-en-de-base/huggingface

    Args:
        model: Folder or file of the model, or its name on the Hugging Face Hub.
        out: Model folder to write (default: models/NAME, with the name of MODEL).
        source: Source language (default: named by the model).
        target: Target language (default: named by the model, or by its tags).
        revision: For a model of the Hub: a branch, tag or commit (default: the newest).
        force: Overwrite an earlier import.

    Raises:
        UsageError: There is no such model, it has a part that tfm does not support, languages are
            unknown, or `out` exists.
        CheckpointError: Weights are missing or damaged, or contain code.
        DataError: The vocabulary or the archive is missing or damaged.
        DownloadError: The Hub cannot be reached.
    """
    named = _named(model)
    if revision is not None and not named:
        raise UsageError(f"--revision is for models of the Hugging Face Hub: {model} is a path")
    from tfm.applications.importing.hub import fetch, unpacked
    from tfm.folders.model_info import own_files

    out = out or MODELS_ROOT / (Path(named[2]).name if named else _default_name(model))
    own = own_files(out) if _is_import(out) else None
    new_output_folder(out, own=own, kind="model folder of tfm import", force=force)
    with ExitStack() as stack:
        origin = None
        if named:
            place, commit = fetch(named[2], revision or named[3])
            origin = f"{named[2]}@{commit}"
        elif model.suffix == ".zip" and model.is_file():
            place, origin = stack.enter_context(unpacked(model)), str(model)
        else:
            place = model
        return _import(place, origin, out, (source, target))


def _default_name(model: Path) -> str:
    """Return the name of the folder to write for a model in a folder, run or archive."""
    if model.suffix == ".zip" and model.is_file():
        return model.stem
    folder = (model if model.is_dir() else model.parent).resolve()
    return f"{folder.parent.name}-{folder.name}" if is_run(folder.parent) else folder.name


def _import(
    model: Path, origin: str | None, out: Path, languages: tuple[str | None, str | None]
) -> ImportResult:
    """Convert the model in a folder or file, and record where it is from."""
    from tfm.applications.importing.card import read_card
    from tfm.applications.importing.fairseq import find_checkpoint, read_fairseq
    from tfm.applications.importing.foreign import convert
    from tfm.applications.importing.marian import is_of_transformers, read_transformers
    from tfm.applications.importing.native import find_weights, read_native
    from tfm.folders.model_info import Ancestor, ModelInfo
    from tfm.folders.saving import save_checkpoint

    if model.is_dir() and is_of_transformers(model):
        read = read_transformers(model, languages)
    elif (weights_path := find_weights(model)) is not None:
        read = read_native(weights_path, languages)
    else:
        read = read_fairseq(find_checkpoint(model), languages)
    run, weights = convert(read)
    vocabulary = read.vocabulary
    license_, named_origin = read_card(model if model.is_dir() else model.parent)
    info = ModelInfo(
        run=run,
        source=read.languages[0],
        target=read.languages[1],
        vocab_sizes=(len(vocabulary.source), len(vocabulary.target)),
        fingerprint=vocabulary.fingerprint,
        data_dir="",
        step=0,
        search=read.search,
        normalization=vocabulary.normalization,
        tags=vocabulary.tags,
        ancestors=(
            Ancestor(
                path=origin or str(read.path),
                data_dir="",
                step=0,
                sha256=sha256_of(read.path),
                license=license_,
                origin=named_origin or origin,
            ),
        ),
    )
    save_checkpoint(out, info, weights, subword_files=vocabulary.files())
    return ImportResult(
        out_dir=out,
        languages=read.languages,
        num_parameters=sum(each.numel() for each in weights.values()),
        max_positions=getattr(run.model, "learned_positions", None),
        takes_tokens=read.takes_tokens,
        license=license_,
    )


def _is_import(folder: Path) -> bool:
    """Return whether a folder holds an intact model that was imported, not one that was trained."""
    from tfm.folders.model_folder import ModelFolder

    try:
        info = ModelFolder(folder).info
    except CheckpointError:
        return False
    return not info.data_dir and not info.step
