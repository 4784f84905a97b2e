"""Settings of Sphinx for `make docs`."""

import re
from typing import Any, ClassVar

from docutils import nodes
from pygments.lexer import inherit
from pygments.lexers.shell import BashLexer
from pygments.token import Text

from tfm import __version__

project = "tfm"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
copybutton_exclude = ".gp, .go"  # the prompts and the output of console blocks
html_theme = "furo"
html_title = f"{project} {release}"
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


def _list_contents(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Put a list of the sections of a long page below its title, for narrow screens."""
    sections = context.get("toc") or ""
    if page != "index" and sections.count("<li>") > 4:
        contents = (
            '<details class="sections"><summary>On this page</summary>'
            f'<div class="toc-tree">{sections}</div></details>'
        )
        context["body"] = context["body"].replace("</h1>", f"</h1>{contents}", 1)


def _link_lab_book(app: Any, page: str, content: list[str]) -> None:
    """Offer the lab book, which is no page of these documents, as a file to download."""
    content[0] = re.sub(r"\]\(((?:\.\./)*benchmarks/README\.md)[^)]*", r"](path:\1", content[0])


def _link_included(app: Any, path: Any, page: str, content: list[str]) -> None:
    """Do the same in README.md, whose links begin in the folder above, and link Multi30k's page."""
    content[0] = content[0].replace("(benchmarks/", "(../benchmarks/")
    content[0] = content[0].replace("(examples/multi30k/README.md", "(docs/how-to/multi30k.md")
    _link_lab_book(app, page, content)


def setup(app: Any) -> None:
    """Highlight shell commands, offer the lab book, fit tables and contents to narrow screens."""
    app.add_lexer("sh", _ShellLexer)
    app.connect("source-read", _link_lab_book)
    app.connect("include-read", _link_included)
    app.connect("doctree-read", _stack_tables)
    app.connect("html-page-context", _list_contents)
