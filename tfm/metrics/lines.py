"""The scores of single lines: in a file, on a page, and the worst of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from tfm.config import ScoreConfig
from tfm.disk.files import write_text
from tfm.metrics.page import MAX_LINES, PageLine, write_page
from tfm.metrics.texts import Texts, read_confidences
from tfm.reporting import printable
from tfm.table import Table

_COLUMNS = ("line", "system", "chrf", "bleu", "ter", "confidence")


@dataclass(frozen=True, kw_only=True)
class LineScore:
    """The scores of a translated line, as sacreBLEU scores sentences."""

    line: int  # from 1
    system: str  # the file of the translation
    chrf: float
    bleu: float
    ter: float
    confidence: float | None  # if the file has it
    source: str | None
    reference: str
    text: str

    def table(self) -> Table:
        """Return the scores and the texts, as far as they are known."""
        numbers = f"chrF {self.chrf:.1f}, BLEU {self.bleu:.1f}, TER {self.ter:.1f}"
        rows = {f"line {self.line:,}": numbers, "  source": self.source}
        rows |= {"  reference": self.reference, "  output": self.text}
        return Table([(name, printable(text)) for name, text in rows.items() if text is not None])


def differing_lines(
    systems: Texts, sources: Sequence[str], references: Sequence[Sequence[str]], *, most: int = 10
) -> list[PageLine]:
    """Return the lines whose chrF differs most between two systems, `most` from each end.

    They come in the order from the largest gain of the second system to its largest loss.
    """
    from tfm.metrics.sacre import sentence_chrf  # here, because few commands need it

    chrf = [
        sentence_chrf(*([normalize("NFC", line) for line in text] for text in (of, *references)))
        for of in systems.values()
    ]
    gains = {number: round(b - a, 9) for number, (a, b) in enumerate(zip(*chrf, strict=True))}
    order = sorted(filter(gains.get, gains), key=lambda number: -gains[number])
    found = []
    for number in dict.fromkeys([*order[:most], *order[-most:]]):
        pairs = zip(systems.items(), chrf, strict=True)
        texts = [(name, lines[number], {"chrF": of[number]}) for (name, lines), of in pairs]
        label = f"Line {number + 1:,}"
        found.append(PageLine(label, sources[number], references[0][number], texts))
    return found


def report_lines(
    translations: Texts,
    references: Texts,
    source: Texts,
    config: ScoreConfig,
    language: str,
    *,
    per_line: Path | None,
    page: Path | None,
) -> list[LineScore]:
    """Write the scores of each line of translations, given by the names of their files.

    Returns the scores of the first translations, the lowest chrF first.
    """
    from tfm.metrics.sacre import sentence_scores  # here, because few commands need it

    first, *_ = of_references = [*references.values()]
    sources = next(iter(source.values()), [None] * len(first))
    rows: list[list[LineScore]] = [[] for _ in first]
    for name, lines in translations.items():
        confidences = read_confidences(Path(name)) or [None] * len(rows)
        found = sentence_scores(lines, of_references, config, language)
        for index, scores in enumerate(found):
            line = LineScore(
                line=index + 1,
                system=name,
                confidence=confidences[index],
                source=sources[index],
                reference=first[index],
                text=lines[index],
                **scores,
            )
            rows[index].append(line)
    if per_line is not None:
        _write_lines(per_line, rows)
    rows.sort(key=lambda row: row[0].chrf)
    if page is not None:
        _write_page(page, rows, language)
    return [row[0] for row in rows]


def _write_lines(path: Path, rows: Sequence[Sequence[LineScore]]) -> None:
    every = [vars(line) for row in rows for line in row]
    if path.suffix == ".jsonl":
        lines = [json.dumps(each, ensure_ascii=False) for each in every]
    else:
        table = [_COLUMNS, *([each[name] for name in _COLUMNS] for each in every)]
        lines = ["\t".join(map(_shown, row)) for row in table]
    write_text(path, "".join(f"{line}\n" for line in lines))


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str("" if value is None else value)


def _write_page(path: Path, rows: Sequence[Sequence[LineScore]], language: str) -> None:
    lines = []
    for row in rows[:MAX_LINES]:
        scores = [
            {"chrF": x.chrf, "BLEU": x.bleu, "TER": x.ter, "confidence": x.confidence} for x in row
        ]
        texts = [(each.system, each.text, its) for each, its in zip(row, scores, strict=True)]
        lines.append(PageLine(f"Line {row[0].line:,}", row[0].source, row[0].reference, texts))
    note = f"{len(lines):,} of {len(rows):,} lines, the lowest chrF first."
    write_page(path, "Scored lines", note, lines, language=language)
