"""Read pickled weights without running the code that a pickle may name."""

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tfm.errors import CheckpointError


class Record:
    """Stands for an object of settings or statistics, of which only attributes are kept."""

    def __init__(self, *_arguments: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)


# What files of fairseq hold besides tensors and plain values. None of it is run.
_RECORDS = (
    "argparse.Namespace",
    "fairseq.meters.AverageMeter",
    "fairseq.meters.StopwatchMeter",
    "fairseq.meters.TimeMeter",
    "fairseq.logging.meters.AverageMeter",
    "fairseq.logging.meters.MetersDict",
    "fairseq.logging.meters.StopwatchMeter",
    "fairseq.logging.meters.TimeMeter",
)
_NAMED = re.compile(r"GLOBAL ([\w.]+)")  # in torch's message, which also says how to run the code


def load_pickle(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a file of torch.save: tensors, plain values and `Record`s.

    Raises:
        CheckpointError: It is damaged, or names other objects, which are not loaded.
    """
    try:
        with (
            torch.serialization.safe_globals([(Record, name) for name in _RECORDS]),
            warnings.catch_warnings(action="ignore"),  # about protocols of pickles
        ):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if named := _NAMED.search(str(error)):
            raise CheckpointError(
                f"{path} is not loaded: it names code to run ({named[1]}), which tfm refuses"
            ) from error
        raise CheckpointError(f"{path} is damaged: download it again") from error
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: download it again") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds no weights by name: name another file")
    return content
