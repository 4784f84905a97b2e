"""Signs in the first lines of a text that models should not read it, or scores not compare it."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

FIRST_LINES = 1_000

_CODE = r"(?:2|to_)?[A-Za-z]{2,3}(?:[_-][A-Za-z]{2,4})?"  # de, de_DE, deu_Latn, 2de
_TAG = re.compile(
    rf"\s*(?!<(?:unk|pad|br|li)>)(<\|?{_CODE}\|?>|>>{_CODE}<<|__{_CODE}__|\[{_CODE}\]"
    r"|(?:[a-z]{2}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3})(?=\s)|translate \w+ to \w+:)(?!.*</)"
)
_JSON = re.compile(r"^\s*(\{\s*\"[^\"]*\"\s*:).*\}\s*$")
_MARKUP = re.compile(
    r"(</[A-Za-z][\w:.-]*\s*>|<[A-Za-z][\w:-]*(?:\s+[\w:-]+=(?:\"[^\"]*\"|'[^']*'))+\s*/?>"
    r"|<(?:br|hr|img|p)\s*/?>|&(?:nbsp|amp|lt|gt|quot|apos|#\d+);)"
)


class Sign(NamedTuple):
    """A sign: what lines have, a pattern with an example, and what to do.

    Attributes:
        what: What lines have, after "N of the first M lines".
        pattern: Matches a line that has it.
        share: The least share of lines that have it.
        advice: What to do.
        piece: A part of a piece of the vocabulary of models that know such text; "" if none.
        is_subword: Whether lines are cut into the pieces of another vocabulary.
    """

    what: str
    pattern: re.Pattern[str]
    share: float
    advice: str
    piece: str = ""
    is_subword: bool = False


def _pieces(what: str, pattern: str, command: str, piece: str = "") -> Sign:
    """Return the sign of text that another program has cut into pieces; few lines are enough."""
    advice = f"join them with sed -E '{command}', because outputs and BLEU would be of pieces"
    return Sign(what, re.compile(pattern), 0.02, advice, piece, is_subword=True)


TAG = Sign("begin with what may be a tag of another program", _TAG, 0.1, "")
JSON_OBJECTS = Sign(
    "are JSON objects", _JSON, 0.5, "take the sentences out, as with jq -r .FIELD", '":'
)
SIGNS = (
    _pieces("have words cut by @@", r"(\w{1,40}@@)(?:\s|$)", "s/@@( |$)//g", "@@"),
    _pieces(
        "have pieces with U+2581 for a space",
        r"(?:^|\s)(▁(?:\w\S*)?)(?:\s|$)",
        "s/ //g; s/▁/ /g; s/^ //",
    ),
    _pieces("have pieces with U+FFED as a joiner", r"(￭\S*)", "s/ *￭ *//g", "￭"),
    _pieces("have words cut by ##", r"\w (##[^\W\d_A-Z]+)", "s/ ##//g", "##"),
    JSON_OBJECTS,
    Sign(
        "have markup",
        _MARKUP,
        0.1,
        "remove it, or translate documents with tfm generate --format html or xml",
        '="',
    ),
    Sign("have a tab, as a table has", re.compile(r"(\S{1,40}) ?\t"), 0.9, "cut out a column"),
    TAG,
)


class Finding(NamedTuple):
    """A sign in the first lines of a text."""

    sign: Sign
    num_lines: int
    total: int
    example: str

    def __str__(self) -> str:
        return (
            f"{self.num_lines:,} of the first {self.total:,} lines {self.sign.what} "
            f"({self.example!r})"
        )


def look(
    lines: Sequence[str], is_tag: Callable[[str], bool] = lambda _: False
) -> Iterator[Finding]:
    """Yield the signs in the first lines of a text that are not empty; known tags are none."""
    first = [line for line in lines[:FIRST_LINES] if line.strip()]
    for sign in SIGNS:
        matches = [match[1] for line in first if (match := sign.pattern.search(line))]
        if sign is TAG:
            begins = (sign.pattern.match(line) for line in first)
            matches = [match[1] for match in begins if match and not is_tag(match[1])]
        if matches and len(matches) >= sign.share * len(first):
            yield Finding(sign, len(matches), len(first), matches[0][:40])
