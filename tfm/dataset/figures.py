"""Figures of a prepared dataset: pairs, tokens, lengths and scripts of each side, and drops."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tfm.dataset.manifest import BINARIZE, Manifest
from tfm.dataset.parallel import DatasetIndex, TokenSequences
from tfm.table import Table
from tfm.text.lines import read_lines

_FIRST_LINES = 10_000  # whose scripts are counted
_MOST_SENTENCES = 1_000_000  # whose lengths are compared
_MIN_SHARE = 0.001  # of the letters that are in a script
_ANY_SIZE = 1 << 32  # of a vocabulary


@dataclass(frozen=True, kw_only=True)
class SideFigures:
    """Figures of a side of a split.

    Attributes:
        name: Its file, such as "train.en".
        pairs: Number of pairs.
        tokens: Number of tokens; None of text that is not encoded.
        mean_length: Mean number of tokens of a sentence.
        long_length: The 99th percentile of the number of tokens of a sentence.
        scripts: {script: share of the letters}, of the first lines.
    """

    name: str
    pairs: int
    tokens: int | None = None
    mean_length: float | None = None
    long_length: int | None = None
    scripts: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of a dataset.

    Attributes:
        sides: Both sides of each split.
        dropped: {rule: number of training pairs that it dropped}, without rules that dropped none.
        read: Number of training pairs before.
    """

    sides: Sequence[SideFigures]
    dropped: Mapping[str, int]
    read: int

    @classmethod
    def of(cls, manifest: Manifest, *, is_encoded: bool) -> "Figures":
        """Collect the figures of a dataset, those of tokens if its text is encoded."""
        index = DatasetIndex.load(manifest.data_dir / "bin") if is_encoded else None
        texts = manifest.texts("train")
        dropped = sum((Counter(text.dropped) for text in texts), Counter())
        return cls(
            sides=[each for split in manifest.splits() for each in _sides(manifest, split, index)],
            dropped={rule: number for rule, number in dropped.items() if number},
            read=sum(text.read for text in texts),
        )

    def tables(self) -> Iterator[Table]:
        """Yield a table of the sides, and one of the rules that dropped pairs."""
        rows = []
        for each in self.sides:
            row = {"text": each.name, "pairs": f"{each.pairs:,}"}
            if each.tokens is not None:
                row |= {"tokens": f"{each.tokens:,}", "mean length": f"{each.mean_length:.1f}"}
                row["99 % up to"] = f"{each.long_length:,}"
            scripts = (f"{name} {share:.1%}" for name, share in each.scripts.items())
            rows.append(row | {"scripts": ", ".join(scripts)})
        yield Table.of(rows, is_numeric=True)
        if self.dropped:
            counts = [
                (rule.replace("_", " "), f"{number:,}", f"{number / self.read:.2%}")
                for rule, number in sorted(self.dropped.items(), key=lambda item: -item[1])
            ]
            yield Table(counts, ("dropped by", "pairs", "of all"), is_numeric=True)


def _sides(manifest: Manifest, split: str, index: DatasetIndex | None) -> Iterator[SideFigures]:
    pairs = sum(text.kept for text in manifest.texts(split))
    counts = manifest.result(BINARIZE).get(split, {}) if index else {}
    for side, language in enumerate(manifest.languages):
        path = manifest.text_path(split, language)
        scripts = scripts_of(islice(read_lines(path, strict=False), _FIRST_LINES))
        if index is None:
            yield SideFigures(name=path.name, pairs=pairs, scripts=scripts)
            continue
        bin_dir, parts = manifest.data_dir / "bin", index.parts[split]
        sentences = TokenSequences(bin_dir, parts, language, side, vocab_size=_ANY_SIZE)
        size = len(sentences)
        places = np.linspace(0, size - 1, min(size, _MOST_SENTENCES)).astype(np.int64)
        tokens = counts["tokens"][side]
        yield SideFigures(
            name=path.name,
            pairs=size,
            tokens=tokens,
            mean_length=tokens / max(1, size),
            long_length=int(np.percentile(sentences.lengths(places), 99)) if size else 0,
            scripts=scripts,
        )


def scripts_of(lines: Iterable[bytes]) -> dict[str, float]:
    """Return the shares of letters in each script, by the names of characters, largest first."""
    counts: Counter[str] = Counter()
    for char, number in Counter(b"\n".join(lines).decode(errors="ignore")).items():
        if char.isalpha():
            script = unicodedata.name(char, "unknown").split(" ")[0].split("-")[0]
            counts["Han" if script == "CJK" else script.capitalize()] += number
    total = counts.total()
    return {s: n / total for s, n in counts.most_common() if n >= _MIN_SHARE * total}
