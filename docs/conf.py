"""Settings of Sphinx for `make docs`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from generated import PAGES

from tfm import __version__

project = "tfm"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_show_copyright = False
html_static_path = ["style.css"]
html_css_files = ["style.css"]
myst_heading_anchors = 3
smartquotes = False  # it would turn the dashes of flags into one long dash


def _append_generated(_: Any, page: str, source: list[str]) -> None:
    source[0] += PAGES.get(page, str)()


def setup(app: Any) -> None:
    """Append the generated part of each reference page to its text."""
    app.connect("source-read", _append_generated)
