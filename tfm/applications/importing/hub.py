"""Models of the Hugging Face Hub, by name, and zip archives: where the files of a model are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

from tfm.errors import DownloadError, TfmError, UsageError, install_command, tfm_command
from tfm.text.archives import extract_files

# Besides weights: settings, vocabularies, and the card with languages and license.
_FILES = ("*.json", "*.spm", "*.model", "*.yml", "*.txt", "*.vocab", "*.md", "LICENSE*")
_WEIGHTS = "*.safetensors"
_OLDER_WEIGHTS = ("pytorch_model.bin", "*.npz", "*.pt")
_SUBFOLDERS = "*/*"  # what other programs read, such as ONNX Runtime
_UNPACKED = (".npz", ".spm", ".yml", ".yaml", ".json", ".vocab", ".txt", ".md")


def fetch(name: str, revision: str | None) -> tuple[Path, str]:
    """Return the folder of a model in the Hub's cache, and its commit; download missing files.

    Args:
        name: Owner and name, such as Helsinki-NLP/opus-mt-en-de.
        revision: A branch, tag or commit; None for the newest one.
    """
    chosen = "" if revision is None else f" --revision {revision}"
    by_hand = f"pip install huggingface_hub && hf download {name}{chosen} --local-dir {name}"
    command = tfm_command("import", name)
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise UsageError(
            f"{name} does not exist here, and huggingface_hub, which downloads it, is not "
            f"installed: run {install_command('hub')}, or by hand {by_hand}, then "
            f"{command}"
        ) from error
    # The base class is of the HTTP library, which differs between versions.
    network_error: type[Any] = errors.HfHubHTTPError.__mro__[1]
    patterns = [*_FILES, _WEIGHTS]
    try:
        folder = Path(
            snapshot_download(
                name, revision=revision, allow_patterns=patterns, ignore_patterns=_SUBFOLDERS
            )
        )
        if not any(folder.glob(_WEIGHTS)):
            patterns += _OLDER_WEIGHTS
            snapshot_download(
                name, revision=folder.name, allow_patterns=patterns, ignore_patterns=_SUBFOLDERS
            )
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UsageError(
            f"{name} is neither a path here nor a model of the Hugging Face Hub that you may read: "
            "check its name (hf auth login gives access to private models)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(f"{name} has no revision {revision}: check its name on the Hub") from error
    except (errors.LocalEntryNotFoundError, network_error) as error:
        raise DownloadError(
            f"{name} does not exist here, and the Hugging Face Hub cannot be reached: check the "
            f"connection, or on a machine with one run {by_hand}, copy the folder, and run "
            f"{command}"
        ) from error
    return folder, folder.name


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """Unpack the files of a model in a zip archive into a folder that lasts for the block."""
    with TemporaryDirectory(prefix="tfm-import-") as name:
        extract_files(archive, Path(name), _is_of_model)
        try:
            yield Path(name)
        except TfmError as error:  # the user knows the archive, not the folder
            message = str(error).replace(name, str(archive))
            raise type(error)(message, exit_code=error.exit_code) from error


def _is_of_model(name: str) -> bool:
    return PurePath(name).suffix in _UNPACKED or name.startswith("LICENSE")
