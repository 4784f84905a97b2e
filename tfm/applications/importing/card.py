"""The license and origin of a model of another program, from the files beside it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import get_args

import yaml

from tfm.config.training import License

_MAX_CHARACTERS = 100_000  # of a file that are read
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
# In the cards of OPUS-MT, old and new, and of its copies in transformers.
_DOWNLOAD = re.compile(r"(?i)\b(?:download|original model)\b[^\n(]*\((https?://[^\s()]{1,300})\)")
_LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")
# Names of licenses by words at the start of a line of their text; the first match counts.
_TEXTS = (
    (r"Attribution-NonCommercial-ShareAlike 4\.0", "CC-BY-NC-SA-4.0"),
    (r"Attribution-NonCommercial 4\.0", "CC-BY-NC-4.0"),
    (r"Attribution-ShareAlike 4\.0", "CC-BY-SA-4.0"),
    (r"Attribution 4\.0", "CC-BY-4.0"),
    (r"CC0 1\.0", "CC0-1.0"),
    (r"Apache License\s+Version 2\.0", "Apache-2.0"),
    (r"MIT License", "MIT"),
    (r"GNU GENERAL PUBLIC LICENSE\s+Version 3", "GPL-3.0"),
)
_BEFORE = r"(?im)^\W*(?:the |creative commons )?(?-i:{})"
_NUM_FIRST = 1_000  # characters in which a license says its name


def read_card(folder: Path) -> tuple[str | None, str | None]:
    """Return the license of a model, and the address or name of its origin; None if unknown.

    They are in README.md and LICENSE. An unknown license text is quoted.
    """
    readme = _text(folder / "README.md").replace("\r\n", "\n")
    matter = _FRONT_MATTER.match(readme)
    fields = _fields(matter[1]) if matter else {}
    named = _field(fields, "license")
    if named == "other":
        named = _field(fields, "license_name") or named
    link = _DOWNLOAD.search(readme)
    license_ = _recorded(named) or next(_licenses(folder), None)
    return license_, link[1] if link else _field(fields, "base_model")


def _fields(front_matter: str) -> Mapping[str, object]:
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        if isinstance(fields := yaml.safe_load(front_matter), dict):
            return fields
    return {}


def _field(fields: Mapping[str, object], name: str) -> str | None:
    """Return a field, with "and" between the items of a list; None if it is empty."""
    value = fields.get(name)
    items = value if isinstance(value, list) else [value]
    return " and ".join(str(each) for each in items if isinstance(each, str | int | float)) or None


def _licenses(folder: Path) -> Iterator[str]:
    for name in _LICENSE_FILES:
        start = _text(folder / name)[:_NUM_FIRST]
        found = [license_ for words, license_ in _TEXTS if re.search(_BEFORE.format(words), start)]
        if known := found[0] if found else _recorded(start.strip().partition("\n")[0]):
            yield known


def _recorded(license_: str | None) -> str | None:
    """Return the name of a license without the characters that a record refuses."""
    _, pattern, _ = get_args(License)
    allowed = re.sub(r"[^\w.+:()/-]+", " ", license_ or "")
    match = pattern.match(allowed.strip())
    return None if match is None else match[0].strip()


def _text(path: Path) -> str:
    """Return the beginning of a file; "" if there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CHARACTERS)
    except OSError:
        return ""
