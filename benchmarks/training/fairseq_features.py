"""What fairseq 0.12.2 needs of older versions of Python and NumPy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


def restore_removed_features() -> None:
    """Restore features that Python 3.11 and numpy 1.24 removed, so that fairseq 0.12.2 imports.

    Python 3.11 refuses dataclass defaults without a hash, which fairseq's settings use.
    """
    original = dataclasses.dataclass

    def with_hash(cls: type | None = None, /, **options: Any) -> Callable[[type], type] | type:
        def decorated(cls: type) -> type:
            cls = original(cls, **options)
            if cls.__hash__ is None:
                cls.__hash__ = object.__hash__  # type: ignore[method-assign]
            return cls

        return decorated if cls is None else decorated(cls)

    dataclasses.dataclass = with_hash  # type: ignore[assignment]
    np.float = float
