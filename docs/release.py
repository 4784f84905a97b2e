"""Check what a release needs beside passing tests, and say what a person has to do.

`make release` runs it after `make check`, `make wheel` and `make lowest`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from generated import FORMATS

from tfm import __version__

_ROOT = Path(__file__).parents[1]
_BY_HAND = (
    "register the name tfm-mt on the package index",
    f"sign and push the tag: git tag --sign v{__version__}, git push origin v{__version__}",
    "upload to the index: twine check --strict dist/*, twine upload dist/*",
    "make a release of the tag at the repository's host, with the section of CHANGELOG.md",
    "watch the workflows of .github/workflows pass there, on macOS and Windows too",
)


def problems() -> Iterator[str]:
    """Yield what keeps this commit from being a release."""
    yield from _problems_of_text()
    if __version__ == "0.1.0":
        for what, number in FORMATS.items():
            if number != 1:
                yield f"the format of {what} is {number}: the first release has 1"
    for name in (f"tfm_mt-{__version__}.tar.gz", f"tfm_mt-{__version__}-py3-none-any.whl"):
        if not (_ROOT / "dist" / name).exists():
            yield f"dist/{name} is missing: run make wheel"
    if subprocess.check_output(["git", "status", "--porcelain"], cwd=_ROOT):  # noqa: S607
        yield "there are changes that are not committed"


def _problems_of_text() -> Iterator[str]:
    """Yield where a document has another version than the code, or no address."""
    newest = re.search(r"^## (\S+) ?(.*)", _read("CHANGELOG.md"), re.MULTILINE)
    if newest is None or newest[1] != __version__ or "unreleased" in newest[2]:
        yield f"CHANGELOG.md: its first section must be {__version__}, with a date"
    if f"\nversion: {__version__}\n" not in _read("CITATION.cff"):
        yield f"CITATION.cff: the version must be {__version__}"
    for name in ("pyproject.toml", "CITATION.cff"):
        if "//example.org" in _read(name):
            yield f"{name}: put the address of the repository in the place of example.org"
    for words in ("not released", "ADDRESS"):
        if words in _read("README.md"):
            yield f"README.md: replace {words!r} by how to install the release"


def _read(name: str) -> str:
    return (_ROOT / name).read_text(encoding="utf-8")


def main() -> None:
    """Print the problems, or what a person has to do."""
    found = [*problems()]
    head = "Before the release:" if found else f"{__version__} can be released. By hand:"
    print(head, *(found or _BY_HAND), sep="\n- ")  # noqa: T201
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
