"""Where the Python processes that tfm starts search for modules."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SAFE_PATH = "PYTHONSAFEPATH"


@contextmanager
def same_search_path() -> Iterator[None]:
    """Start Python processes that import from the working directory only if this process does.

    `python -m` and multiprocessing search it first, and its files may shadow modules; the tfm
    script does not search it.
    """
    before = os.environ.get(_SAFE_PATH, "")  # which has no effect if it is empty
    is_searched = {"", str(Path.cwd())} & set(sys.path)
    os.environ[_SAFE_PATH] = before if is_searched else "1"
    try:
        yield
    finally:
        os.environ[_SAFE_PATH] = before
