"""tfm binarize: text and subword model of a dataset → token ids on disk."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfm.commands.declaration import Dataset, Share, command
from tfm.config import BinarizeConfig, Values
from tfm.config.schema import merged

if TYPE_CHECKING:
    from tfm.dataset.manifest import Manifest


@command(BinarizeConfig)
def binarize(
    data: Dataset = None, *, share: Share = None, force: bool = False, **settings: Any
) -> bool:
    """Turn the text of a dataset into token ids on disk.

    Example: tfm binarize data/mine --threads 8

    Args:
        data: Dataset folder (default: the newest in data/).
        share: Encode only share I of N of the shards of the training text; for several machines.
        force: Redo this step, even if its inputs are unchanged or runs depend on its output.
        **settings: Settings of [binarize].

    Returns:
        Whether text was encoded; False if the token ids were up to date.

    Raises:
        UsageError: Arguments are wrong, or do not fit the subword model or the task.
        DataError: There is no dataset; text or subword model are missing, a line is not UTF-8, the
            sides differ in their numbers of lines, or a tag of the text is not in the vocabulary.
        LockedFolderError: Another process writes to the dataset.
    """
    from tfm.dataset import shards, token_ids
    from tfm.dataset.draft import lock_dataset, lock_share
    from tfm.dataset.manifest import Manifest, chosen_dataset

    folder, given = chosen_dataset(data), settings["binarize"]
    config = merged(BinarizeConfig, Manifest.load(folder).settings("binarize"), given)
    if share is None:
        with lock_dataset(folder):
            manifest = Manifest.load(folder)
            origins = find_origins(manifest, config)
            return token_ids.update(manifest, config, origins, force=force)
    part = shards.Share.parse(share)
    with lock_share(folder, part):
        token_ids.encode_share(Manifest.load(folder), config, part, force=force)
    return True


def find_origins(manifest: "Manifest", config: BinarizeConfig) -> list[Values]:
    """Describe the models that wrote some of the text, and their ancestors.

    Models that are gone are described as before. Raises the errors of opening a model.
    """
    from tfm.dataset.manifest import SEEN
    from tfm.folders.model_folder import ModelFolder

    known, paths = manifest.inputs(SEEN) or {}, [*map(Path, config.written_by)]
    if known.get("written_by") == [*config.written_by] and not all(map(Path.exists, paths)):
        return list(known["origins"])
    folders = map(ModelFolder.open, paths)
    return [asdict(each) for folder in folders for each in folder.lineage()]
