"""Signs in the first lines of a text that models should not read it, or scores not compare it."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

FIRST_LINES = 1_000
_FEW = 5  # lines that show a sign in longer text; in shorter text, half of the lines do

_CODE = r"[a-z]{2,3}(?:[_-](?:[A-Z][a-z]{3}|[A-Za-z]{2}|\d{3}))*"  # de, de_DE, deu_Latn, es-419
_TAG = re.compile(
    rf"^\s*▁?(?!<(?:unk|pad|br|li)>)(<\|?{_CODE}\|?>"
    r"|<\|?(?:2|[a-z]{2,3}2|(?:to|lang|src|tgt|trg)[_:])[\w-]+\|?>"
    rf"|>>[\w-]+<<|__{_CODE}__|__(?:opt|label)_\w+|\[(?:2\w[\w-]+|{_CODE})\]"
    r"|[a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3})(?=\s)|[Tt]ranslate (?:\w+ )?to \w+:)(?!.*</)"
)
_FIRST_WORD = re.compile(
    r"^\s*([^\w\s&\"]{1,4}\w[\w:-]{,40}[^\w\s]{1,4}|(?=\S{,40}_\w)[\w-]{2,40})(?=\s)(?!.*</)"
)
_JSON = re.compile(r"^\s*(?=\{.*\}\s*$|\[.*\"\s*\]\s*$)(\{\s*\"[^\"]*\"\s*:|\[\s*\"[^\"]{,40}\"?)")
_JSON_STRING = re.compile(r"^\s*(\"(?:[^\"\\]|\\.)*\")\s*$")
_MARKUP = re.compile(
    r"(</(?!w>)[A-Za-z][\w:.-]*\s*>|<[A-Za-z][\w:-]*(?:\s+[\w:-]+=(?:\"[^\"]*\"|'[^']*'))+\s*/?>"
    r"|<(?:br|hr|img|p)\s*/?>|&(?:nbsp|amp|lt|gt|quot|apos|#\d+);)"
)


class Sign(NamedTuple):
    """A sign in lines of text: its name, a pattern with an example, and advice.

    Attributes:
        what: What lines have, after "N of the first M lines".
        pattern: Matches a line that has it.
        share: The least share of lines that have it.
        advice: What to do.
        piece: A part of a piece of the vocabulary of models that know such text; "" if none.
        is_subword: Whether lines are cut into the pieces of another vocabulary.
        is_record: Whether lines are records, not sentences.
        least: The least number of lines that have it, with the same key if there is one.
        key: Returns the part of a line that must be equal in all of them; None without a condition.
    """

    what: str
    pattern: re.Pattern[str]
    share: float
    advice: str
    piece: str = ""
    is_subword: bool = False
    is_record: bool = False
    least: int = 1
    key: Callable[[re.Match[str]], object] | None = None

    def matches(self, lines: Sequence[str], is_tag: Callable[[str], bool]) -> list[re.Match[str]]:
        """Return the matches of the lines that have it; [] if they are too few."""
        found = [match for line in lines if (match := self.pattern.search(line))]
        found = [match for match in found if self.what != _TAGGED or not is_tag(match[1])]
        if self.key is not None:
            counts = Counter(map(self.key, found))
            found = [match for match in found if counts[self.key(match)] >= self.least]
        # One odd word is no sign of pieces, even in text of a single line.
        if self.is_subword and sum(len(self.pattern.findall(match.string)) for match in found) < 2:
            return []
        least = max(self.share * len(lines), self.least, min(_FEW, len(lines) / 2))
        return found if len(found) >= least else []


def _pieces(what: str, pattern: str, command: str, piece: str = "") -> Sign:
    """Return the sign of text that another program has cut into pieces; few lines are enough."""
    how = f"join them with sed -E '{command}'" if command else "decode them with its tokenizer"
    advice = f"{how}, because outputs and BLEU would be of pieces"
    return Sign(what, re.compile(pattern), 0.02, advice, piece, is_subword=True)


_TAGGED = "begin with what may be a tag of another program"
_BY_JQ = "take the sentences out, as with jq -r .FIELD"
_JSON_SIGN = Sign("are JSON", _JSON, 0.5, _BY_JQ, '":', is_record=True)
SIGNS = (
    _pieces("have words cut by @@", r"(\w{1,40}@@)(?:\s|$)", "s/@@( |$)//g", "@@"),
    _pieces(
        "have pieces with U+2581 for a space",
        r"(?<!\S)(▁(?:\w\S*)?)(?!\S)(?!\s[▂-█])",
        "s/ //g; s/▁/ /g; s/^ //",
    ),
    _pieces("have pieces with U+FFED as a joiner", r"(￭\S*)", "s/ *￭ *//g", "￭"),
    _pieces("have words cut by ##", r"\w (##[^\W\d_A-Z]+)", "s/ ##//g", "##"),
    _pieces(
        "have words that end with </w>",
        r"(?<!\S)([^\s<]{1,40}</w>)(?!\S)",
        "s/ //g; s,</w>, ,g; s/ $//",
    ),
    # Three or more close to each other: Maltese has Ġ, and names in code end with an underscore.
    _pieces("have pieces with Ġ for a space", r"(?<!\S)(Ġ\S*)(?=((\s[^\sĠ]\S*){,3}\sĠ\S*){2})", ""),
    _pieces(
        "have words that end with an underscore",
        r"(?<!\S)([^\s_]+_)(?=((\s[^\s_]+){,3}\s[^\s_]+_(?!\S)){2})",
        "s/ //g; s/_/ /g; s/ $//",
    ),
    _JSON_SIGN,
    _JSON_SIGN._replace(pattern=_JSON_STRING, share=1, least=10),
    Sign(
        "have markup",
        _MARKUP,
        0.1,
        "remove it (&amp; and the like with tfm prepare --decode-entities), or give tfm generate "
        "--format html or xml",
        '="',
    ),
    Sign(
        "have a tab, as a table has",
        re.compile(r"(\S{1,40}) ?\t"),
        0.9,
        "take the column of sentences out with cut -f",
        is_record=True,
        least=3,
        key=lambda match: match.string.count("\t"),
    ),
    Sign(_TAGGED, _TAG, 0.1, ""),
    Sign(_TAGGED, _FIRST_WORD, 0.9, "", least=10, key=lambda match: match[1]),
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
    found: set[str] = set()
    for sign in SIGNS:
        matches = sign.matches(first, is_tag)
        if matches and sign.what not in found:
            found.add(sign.what)
            yield Finding(sign, len(matches), len(first), matches[0][1][:40])
