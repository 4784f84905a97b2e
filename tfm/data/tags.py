"""Tags such as <2fr> before source sentences."""

from collections.abc import Callable

from tfm.config import tag_problem
from tfm.errors import DataError

_MARKS = "\ufeff\u200b"  # invisible, but not white space


def untagged(source: str, tag: str, is_tag: Callable[[str], bool], *, place: str) -> str:
    """Return a source sentence without the tag that will be put before it, if it has that tag.

    `is_tag` tests whether a word is a tag of the vocabulary, `place` names file and line.

    Raises:
        DataError: The sentence begins with another tag.
    """
    first, rest = (*source.lstrip(_MARKS).split(maxsplit=1), "", "")[:2]
    if first == tag:
        return rest
    if tag_problem(first) is None and is_tag(first):
        raise DataError(
            f"{place} begins with the tag {first}, but is to get {tag}: remove its tag, or give "
            "text that has its tags without another"
        )
    return source
