"""Settings of Sphinx for `make docs`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from generated import NOTE, PAGES

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


def _insert_generated(_: Any, page: str, source: list[str]) -> None:
    if page in PAGES:
        source[0] = source[0].replace(NOTE, PAGES[page]())


def setup(app: Any) -> None:
    """Insert the generated part of each reference page."""
    app.connect("source-read", _insert_generated)
