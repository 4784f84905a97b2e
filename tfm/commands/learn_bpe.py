"""tfm learn-bpe: training text of a dataset → its subword model."""

from typing import Any

from tfm.commands.declaration import Dataset, command
from tfm.config import SubwordConfig
from tfm.config.schema import merged


@command(SubwordConfig)
def learn_bpe(data: Dataset = None, *, force: bool = False, **settings: Any) -> bool:
    """Learn the subword vocabulary of a dataset.

    Examples::

        tfm learn-bpe data/mine --vocab-size 8000
        tfm learn-bpe data/mine --subwords my.model

    Args:
        data: Dataset folder (default: the newest in data/).
        force: Redo this step, even if its inputs are unchanged or runs depend on its output.
        **settings: Settings of [subword].

    Returns:
        Whether it was learned; False if it was up to date.

    Raises:
        UsageError: Arguments are wrong, or the vocabulary size does not fit the text.
        DataError: There is no dataset, or no training text.
        LockedFolderError: Another process writes to the dataset.
    """
    from tfm.dataset import subword_models
    from tfm.dataset.draft import lock_dataset
    from tfm.dataset.manifest import Manifest, chosen_dataset

    folder = chosen_dataset(data)
    config = merged(SubwordConfig, Manifest.load(folder).settings("subword"), settings["subword"])
    with lock_dataset(folder):
        return subword_models.update(Manifest.load(folder), config, force=force)
