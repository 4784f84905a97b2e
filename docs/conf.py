"""Settings of Sphinx for `make docs`."""

import sys
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parent))

from generated import NOTE, PAGES
from pygments.lexer import inherit
from pygments.lexers.shell import BashLexer
from pygments.token import Text

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


class _ShellLexer(BashLexer):
    """Bash, without a keyword in file names such as in.en."""

    tokens: ClassVar[dict[str, Any]] = {"basic": [(r"[\w-]+\.\w+", Text), inherit]}


def _insert_generated(_: Any, page: str, source: list[str]) -> None:
    if page in PAGES:
        source[0] = source[0].replace(NOTE, PAGES[page]())


def setup(app: Any) -> None:
    """Insert the generated part of each reference page, and highlight shell commands."""
    app.add_lexer("sh", _ShellLexer)
    app.connect("source-read", _insert_generated)
