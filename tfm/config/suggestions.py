"""Suggesting the names that a user may mean."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Literal

WordKind = Literal["flags", "commands", "values", "needless_flags", "needless_commands"]

_MAX_LENGTH = 100  # longer names are no typo, and comparing them takes time


@cache
def words_of_toolkits(kind: WordKind) -> Mapping[str, str]:
    """Return a table of words of other toolkits, separated by spaces, and their meanings."""
    file = resources.files("tfm.config") / "words.toml"
    words: Mapping[str, str] = tomllib.loads(file.read_text(encoding="utf-8"))[kind]
    return words


def suggest(
    word: str, choices: Iterable[str], kind: WordKind = "flags", *, is_word: bool = False
) -> list[str]:
    """Return the valid names that a word stands for, or unless `is_word`, those close to it.

    Args:
        word: A flag, argument, setting or command that does not exist.
        choices: The valid names; case, leading dashes and underscores do not matter.
        kind: Where to look for words that stand for a name.
        is_word: The word is no abbreviation, and no typo, of a name.
    """
    words = words_of_toolkits(kind)
    names = {_bare(name): name for name in choices}
    bare = _bare(word)
    meant = [name for key, name in names.items() if bare in words.get(key, "").split()]
    if is_word:
        return meant
    return (
        meant
        or [name for key, name in names.items() if key.startswith(bare)]
        or [names[key] for key in get_close_matches(bare, names, n=1)]
    )


def _bare(name: str) -> str:
    return name[:_MAX_LENGTH].lstrip("-").replace("_", "-").lower()


def did_you_mean(
    name: str, choices: Sequence[str], elsewhere: Mapping[str, str], introduction: str
) -> str:
    """Return the advice about an unknown name: the names that it may mean, or else all of them."""
    if found := suggest(name, choices) or [elsewhere[other] for other in suggest(name, elsewhere)]:
        return f"did you mean {' or '.join(found)}?"
    return f"{introduction} {', '.join(choices)}"
