"""Matplotlib, imported and used apart from the user's settings for it: backend, style, messages."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from tfm.errors import TfmError

# Else it prints, for instance, that its cache folder is not writable.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
# Nothing here uses a backend. Jupyter sets one for all programs that it starts, which their Python
# may lack: the import would fail.
_backend = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
try:
    import matplotlib as mpl
    from matplotlib import cm, colors, font_manager, ticker
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except Exception as error:  # it also reads files of the user
    raise TfmError(
        f"matplotlib cannot be imported ({type(error).__name__}: {error}): install it again, or "
        "correct the file matplotlibrc that it reads"
    ) from error
finally:
    if _backend is not None:
        os.environ["MPLBACKEND"] = _backend
if _backend:  # for others that draw in this process
    with contextlib.suppress(ValueError):
        mpl.rcParams["backend"] = _backend

__all__ = ("Axes", "Figure", "cm", "colors", "drawing", "font_manager", "ticker")


@contextlib.contextmanager
def drawing(settings: Mapping[str, object]) -> Iterator[None]:
    """Draw in this block with matplotlib's own style, changed by these of its settings."""
    style: dict[Any, Any] = {**mpl.rcParamsDefault, **settings}
    del style["backend"]
    try:
        with warnings.catch_warnings(), mpl.rc_context(style):
            # Text in an SVG is drawn with the fonts of its viewer.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            yield
    except (OSError, TfmError):
        raise
    except Exception as error:
        raise TfmError(f"matplotlib cannot draw ({type(error).__name__}: {error})") from error
