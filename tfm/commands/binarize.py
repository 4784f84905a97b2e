"""tfm binarize: text and subword model of a dataset → token ids on disk."""

from typing import Any

from tfm.commands.declaration import Dataset, Share, command
from tfm.config import BinarizeConfig
from tfm.config.schema import merged
from tfm.errors import UsageError


@command(BinarizeConfig)
def binarize(
    data: Dataset = None, *, share: Share = None, force: bool = False, **settings: Any
) -> bool:
    """Turn the text of a dataset into token ids on disk.

    Example: tfm binarize data/mine --threads 8

    Args:
        data: Dataset folder (default: the newest in data/).
        share: Encode only share I of N of the parts of the training text; for several machines.
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
    from tfm.dataset import text_parts
    from tfm.dataset.manifest import Manifest, chosen_dataset
    from tfm.stages import binarize as stage

    folder, given = chosen_dataset(data), settings["binarize"]
    config = merged(BinarizeConfig, Manifest.load(folder).settings("binarize"), given)
    if share is None:
        return stage.binarize(folder, config, force=force)
    if "shortlist" in given:
        raise UsageError(
            "--shortlist has no effect with --share: give it to tfm binarize without --share"
        )
    stage.binarize_share(folder, config, text_parts.Share.parse(share), force=force)
    return True
