"""Counts of the pairs of a text that cleaning kept and dropped, and examples of dropped ones."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from tfm.config import Normalization
from tfm.text.lines import BytesPair

# The rules, and the flag that changes each.
RULES = {
    "columns": "--columns",
    "huge_line": None,
    "not_utf8": None,
    "mojibake": "--no-drop-mojibake",
    "empty": "--no-drop-empty",
    "too_long": "--max-characters",
    "length_ratio": "--max-length-ratio",
    "copy": "--no-drop-copies",
    "other_script": "--no-drop-other-script",
    "unequal_numbers": "--no-drop-unequal-numbers",
    "other_language": "--no-drop-other-language",
    "odd_length": "--max-length-deviations",
    "odd_punctuation": "--max-punctuation-deviations",
    "duplicate": "--no-drop-duplicates",
    "low_score": "--min-score",
    "repeated_side": "--unique-sides",
}

_NUM_EXAMPLES = 10  # of the pairs that a rule drops from a text
_EXAMPLE_CHARACTERS = 300


@dataclass(kw_only=True)
class PairCounts:
    """Counts of the pairs of a text: `read` is the sum of `kept` and `dropped`.

    `normalized` counts the pairs whose text was changed, `windows_1252` the pairs among them in
    which characters were decoded, and `entities` those in which HTML entities were. `in_held_out`
    counts the training pairs that are also in the validation or test text. `examples` are some of
    the pairs that each rule dropped, cut if they are long. `length_ratio` is that of the text, if
    it was measured.
    """

    read: int = 0
    normalized: int = 0
    windows_1252: int = 0
    entities: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    kept: int = 0
    in_held_out: int = 0
    examples: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    length_ratio: float | None = None

    def drop(self, rule: str, pair: BytesPair) -> None:
        """Count a pair that a rule drops, and keep a sample of such pairs as examples.

        All different pairs are equally probable, however often and in which order they occur.
        """
        self.dropped[rule] = 1 + self.dropped.get(rule, 0)
        examples = self.examples.setdefault(rule, {})
        digest = hashlib.blake2b(b"\n".join(pair), digest_size=8).hexdigest()
        if len(examples) < _NUM_EXAMPLES or digest < max(examples):
            examples[digest] = (_excerpt(pair[0]), _excerpt(pair[1]))
            self.examples[rule] = _least(examples)

    def record(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        names = ("read", "normalized", "windows_1252", "entities", "dropped", "kept", "in_held_out")
        record = {name: getattr(self, name) for name in names}
        return record if self.length_ratio is None else record | {"length_ratio": self.length_ratio}

    def add(self, other: "PairCounts") -> None:
        """Add the counts of another text, or of other pairs of this one."""
        self.read += other.read
        self.normalized += other.normalized
        self.windows_1252 += other.windows_1252
        self.entities += other.entities
        self.kept += other.kept
        self.in_held_out += other.in_held_out
        for rule, count in other.dropped.items():
            self.dropped[rule] = count + self.dropped.get(rule, 0)
        for rule, examples in other.examples.items():
            self.examples[rule] = _least({**self.examples.get(rule, {}), **examples})


def _least(examples: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return the examples with the least hashes, sorted."""
    return dict(sorted(examples.items())[:_NUM_EXAMPLES])


def _excerpt(side: bytes) -> str:
    """Return the beginning of a line as text without white space other than spaces."""
    text = side[: 4 * _EXAMPLE_CHARACTERS].decode(errors="replace")  # up to 4 bytes a character
    return Normalization(unicode=False).normalize(text)[:_EXAMPLE_CHARACTERS]
