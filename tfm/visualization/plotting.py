"""Matplotlib, imported and used apart from the user's settings for it: backend, style, messages."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from tfm.errors import TfmError


@contextlib.contextmanager
def without_messages() -> Iterator[None]:
    """Drop what matplotlib logs in this block, such as that its cache folder is not writable."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _tolerated_backend() -> Iterator[None]:
    """Import matplotlib in this block, whatever MPLBACKEND says; nothing here uses a backend.

    Jupyter sets it for all programs that it starts, to a backend that their Python may lack: the
    import would fail. A backend that exists is set afterwards, for other users of this process.
    """
    name = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        if name is not None:
            os.environ["MPLBACKEND"] = name
    if name:
        with contextlib.suppress(ValueError):
            mpl.rcParams["backend"] = name


try:
    with without_messages(), _tolerated_backend():
        import matplotlib as mpl
        from matplotlib.axes import Axes
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure
        from matplotlib.font_manager import findfont, fontManager, get_font
        from matplotlib.ticker import EngFormatter, MaxNLocator
except Exception as error:  # it also reads files of the user
    raise TfmError(
        f"matplotlib cannot be imported ({type(error).__name__}: {error}): install it again, or "
        "correct the file matplotlibrc that it reads"
    ) from error

__all__ = (
    "Axes",
    "EngFormatter",
    "Figure",
    "MaxNLocator",
    "Normalize",
    "ScalarMappable",
    "drawing",
    "findfont",
    "fontManager",
    "get_font",
    "without_messages",
)


@contextlib.contextmanager
def drawing(settings: Mapping[str, object]) -> Iterator[None]:
    """Draw in this block with matplotlib's own style, changed by these of its settings.

    Raises:
        TfmError: Matplotlib fails.
    """
    style: dict[Any, Any] = {**mpl.rcParamsDefault, **settings}
    del style["backend"]
    try:
        with without_messages(), warnings.catch_warnings(), mpl.rc_context(style):
            # Text in an SVG is drawn with the fonts of its viewer.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            yield
    except (OSError, TfmError):
        raise
    except Exception as error:
        raise TfmError(f"matplotlib cannot draw ({type(error).__name__}: {error})") from error
