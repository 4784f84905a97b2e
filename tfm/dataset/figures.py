"""Figures of a prepared dataset: pairs, tokens, lengths and scripts of each side, and drops."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tfm.config import Values
from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import DatasetIndex, TokenSequences
from tfm.table import Table
from tfm.text.lines import read_lines

_FIRST_LINES = 10_000  # whose scripts are counted
_MOST_SENTENCES = 1_000_000  # whose lengths are compared
_MIN_SHARE = 0.001  # of the letters that are in a script
_ANY_SIZE = 1 << 32  # of a vocabulary


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of a dataset.

    Attributes:
        sides: The `name` of both files of each split, its `pairs`, and `scripts`, the shares of the
            letters in its first lines; of encoded text also its `tokens`, the `mean_length` of a
            sentence in tokens, and its 99th percentile, `long_length`.
        dropped: {rule: number of training pairs that it dropped}, without rules that dropped none.
        read: Number of training pairs before.
    """

    sides: Sequence[Values]
    dropped: Mapping[str, int]
    read: int

    @classmethod
    def of(cls, manifest: Manifest, *, is_encoded: bool) -> "Figures":
        """Collect the figures of a dataset, those of tokens if its text is encoded."""
        index = DatasetIndex.load(manifest.data_dir / "bin") if is_encoded else None
        texts = manifest.texts("train")
        dropped = sum((Counter(text.dropped) for text in texts), Counter())  # without zeros
        return cls(
            sides=[each for split in manifest.splits() for each in _sides(manifest, split, index)],
            dropped=dict(dropped.most_common()),
            read=sum(text.read for text in texts),
        )

    def tables(self) -> Iterator[Table]:
        """Yield a table of the sides, and one of the rules that dropped pairs."""
        columns = {
            "name": ("text", "{}"),
            "pairs": ("pairs", "{:,}"),
            "tokens": ("tokens", "{:,}"),
            "mean_length": ("mean length", "{:.1f}"),
            "long_length": ("99 % up to", "{:,}"),
        }
        rows = []
        for side in self.sides:
            row = {title: form.format(side[k]) for k, (title, form) in columns.items() if k in side}
            scripts = (f"{name} {share:.1%}" for name, share in side["scripts"].items())
            rows.append(row | {"scripts": ", ".join(scripts)})
        yield Table.of(rows, is_numeric=True)
        if self.dropped:
            counts = [
                (rule.replace("_", " "), f"{number:,}", f"{number / self.read:.2%}")
                for rule, number in self.dropped.items()
            ]
            yield Table(counts, ("dropped by", "pairs", "of all"), is_numeric=True)


def _sides(manifest: Manifest, split: str, index: DatasetIndex | None) -> Iterator[Values]:
    for side, language in enumerate(manifest.languages):
        path = manifest.text_path(split, language)
        lines = islice(read_lines(path, strict=False), _FIRST_LINES)
        figures: dict[str, Any] = {"name": path.name, "scripts": scripts_of(lines)}
        if index is None:
            yield {**figures, "pairs": sum(text.kept for text in manifest.texts(split))}
            continue
        bin_dir, shards = manifest.data_dir / "bin", index.shards[split]
        sentences = TokenSequences(bin_dir, shards, language, side, vocab_size=_ANY_SIZE)
        size, tokens = len(sentences), sum(shard.tokens[side] for shard in shards)
        places = np.linspace(0, size - 1, min(size, _MOST_SENTENCES)).astype(np.int64)
        lengths = sentences.lengths(places) if size else np.zeros(1)
        long_length = int(np.percentile(lengths, 99))
        figures |= {"tokens": tokens, "mean_length": tokens / max(1, size)}
        yield figures | {"pairs": size, "long_length": long_length}


def scripts_of(lines: Iterable[bytes]) -> dict[str, float]:
    """Return the shares of letters in each script, by the names of characters, largest first."""
    counts: Counter[str] = Counter()
    for char, number in Counter(b"\n".join(lines).decode(errors="ignore")).items():
        if char.isalpha():
            script = unicodedata.name(char, "unknown").split(" ")[0].split("-")[0]
            counts["Han" if script == "CJK" else script.capitalize()] += number
    total = counts.total()
    return {s: n / total for s, n in counts.most_common() if n >= _MIN_SHARE * total}
