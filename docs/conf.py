"""Settings of Sphinx for `make docs`."""

from typing import Any, ClassVar

from docutils import nodes
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
# Pages whose tables style.css stacks on a narrow screen, with the class that labels their columns.
stacked_tables = {
    "reference/commands/": "flags",
    "reference/settings": "settings",
    "reference/recipe-files": "keys",
}


class _ShellLexer(BashLexer):
    """Bash, without a keyword in file names such as in.en."""

    tokens: ClassVar[dict[str, Any]] = {"basic": [(r"[\w-]+\.\w+", Text), inherit]}


def _stack_tables(app: Any, page: Any) -> None:
    kinds = [kind for name, kind in stacked_tables.items() if app.env.docname.startswith(name)]
    for table in page.findall(nodes.table) if kinds else ():
        table["classes"] += ["stacked", *kinds]


def setup(app: Any) -> None:
    """Highlight shell commands, and mark the tables that are stacked on a narrow screen."""
    app.add_lexer("sh", _ShellLexer)
    app.connect("doctree-read", _stack_tables)
