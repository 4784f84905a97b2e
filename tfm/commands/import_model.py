"""tfm import: a model of another program → an ordinary model folder."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tfm.commands.declaration import Flag, NewFolder, command
from tfm.errors import CheckpointError, UsageError, tfm_command
from tfm.storage.files import sha256_of
from tfm.storage.paths import existing_path, new_output_folder

# Such as Helsinki-NLP/opus-mt-en-de; of an address, Path has removed a slash.
_HUB_NAME = re.compile(
    r"(?:https?:/+(?:www\.)?(?:huggingface|hf)\.co/|hf:/+)?([\w.-]+/[\w.-]+)(?<!\.pt)(?:/(?:tree|blob)/.*)?"
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


def _existing_model(path: Path) -> Path:
    """Return the path; raise UsageError if there is none, and say how to fetch it from the Hub."""
    try:
        return existing_path(path)
    except UsageError as error:
        if (found := _HUB_NAME.fullmatch(str(path))) is None:
            raise
        name = found[1]
        raise UsageError(
            f"{error}; if it is a model of the Hugging Face Hub, run hf download {name} "
            f"--local-dir {name} (pip install huggingface_hub), then {tfm_command('import', name)}"
        ) from None


@command()
def import_model(
    model: Annotated[Path, _existing_model, Flag("MODEL")],
    *,
    out: NewFolder = None,
    source: Annotated[str | None, Flag("LANG")] = None,
    target: Annotated[str | None, Flag("LANG")] = None,
    force: bool = False,
) -> ImportResult:
    """Import a Marian model of transformers (OPUS-MT), or a Transformer of fairseq.

    A Marian model is a folder with config.json, weights, source.spm, target.spm and vocab.json. A
    model of fairseq is a checkpoint with its dict.LANG.txt, and its SentencePiece model if it has
    one. No code in a checkpoint is run.

    The result is an ordinary model folder: translate with it, adapt it with tfm train --from. It
    records the license and the origin that the model's card names (README.md, LICENSE).

    A model whose vocabulary has several tags such as >>fra<< translates to all their languages.

    Examples::

        tfm import opus-mt-en-de --out models/en-de
        tfm import wmt16.en-de/checkpoint_best.pt

    Args:
        model: Folder of the model, or fairseq's checkpoint in it.
        out: Model folder to write (default: MODEL-tfm).
        source: Source language (default: the one that the model names).
        target: Target language (default: the one that the model names, or those of its tags).
        force: Overwrite an earlier import.

    Raises:
        UsageError: There is no such model, it has a part that tfm does not support, languages are
            unknown, or `out` exists.
        CheckpointError: Weights are missing or damaged, or contain code.
        DataError: The vocabulary is missing or damaged.
    """
    folder = model if model.is_dir() else model.parent
    out = out or folder.resolve().with_name(f"{folder.resolve().name}-tfm")
    from tfm.applications.importing.card import read_card
    from tfm.applications.importing.fairseq import find_checkpoint, read_fairseq
    from tfm.applications.importing.foreign import convert, language_tags
    from tfm.applications.importing.marian import is_marian, read_marian
    from tfm.folders.model_folder import own_files
    from tfm.folders.model_info import Ancestor, ModelInfo
    from tfm.folders.saving import save_checkpoint

    own = own_files(out) if _is_import(out) else None
    new_output_folder(out, own=own, kind="model folder of tfm import", force=force)
    if model.is_dir() and is_marian(model):
        read, takes_tokens = read_marian(model, (source, target)), False
    else:
        read, takes_tokens = read_fairseq(find_checkpoint(model), (source, target))
    run, weights = convert(read)
    vocabulary = read.vocabulary
    tags = language_tags(vocabulary.source.tags())
    card = read_card(folder)
    info = ModelInfo(
        run=run,
        source=read.languages[0],
        target=read.languages[1],
        vocab_sizes=(len(vocabulary.source), len(vocabulary.target)),
        fingerprint=vocabulary.fingerprint,
        data_dir="",
        step=0,
        tags=tuple(tags) if len(tags) > 1 else (),
        ancestors=(
            Ancestor(
                path=str(read.path),
                data_dir="",
                step=0,
                sha256=sha256_of(read.path),
                license=card.license,
                origin=card.origin,
            ),
        ),
    )
    save_checkpoint(out, info, weights, subword_files=vocabulary.files())
    return ImportResult(
        out_dir=out,
        languages=read.languages,
        num_parameters=sum(each.numel() for each in weights.values()),
        max_positions=getattr(run.model, "learned_positions", None),
        takes_tokens=takes_tokens,
        license=card.license,
    )


def _is_import(folder: Path) -> bool:
    """Return whether a folder holds an intact model that was imported, not one that was trained."""
    from tfm.folders.model_folder import ModelFolder

    try:
        info = ModelFolder(folder).info
    except CheckpointError:
        return False
    return not info.data_dir and not info.step
