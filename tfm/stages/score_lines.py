"""The scores of single lines, for tfm score: in a file, on a page, and the worst of them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfm.config import ScoreConfig
from tfm.disk.files import write_text
from tfm.disk.paths import OutputPath, check_outputs
from tfm.errors import DataError
from tfm.text.files import suffix_of
from tfm.text.formats import JSON_LINES
from tfm.text.lines import read_text

_COLUMNS = ("line", "system", "chrf", "bleu", "ter", "confidence")


@dataclass(frozen=True, kw_only=True)
class LineOutputs:
    """What is asked about single lines; `others` are files of further translations."""

    per_line: Path | None = None
    page: Path | None = None
    worst: int = 0
    others: Sequence[Path] = ()

    def check(self, read: Iterable[object]) -> None:
        """Raise UsageError if a file that is `read`, besides the arguments, would be replaced."""
        given = {"--per-line": self.per_line, "--page": self.page}
        written = [OutputPath(path=path, flag=flag) for flag, path in given.items() if path]
        check_outputs(written, [each for each in read if isinstance(each, Path)])


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


def read_json(lines: Sequence[str], path: Path) -> Iterator[tuple[str, float | None]]:
    """Yield the best translation of each line of tfm generate --json, and its confidence."""
    for number, line in enumerate(lines, 1):
        try:
            best = json.loads(line)["translations"][0]
            text, confidence = best["text"], best.get("confidence")
            if not isinstance(text, str) or not 0 <= (confidence or 0) <= 1:
                raise ValueError(line)
            yield text, confidence
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"{path}, line {number:,} is not of tfm generate --json: give plain text a name "
                "with another suffix"
            ) from error


def report_lines(
    asked: LineOutputs | None,
    texts: Mapping[str, Sequence[str]],
    first: str,
    references: Sequence[str],
    sources: Sequence[str] | None,
    config: ScoreConfig,
    language: str,
) -> list[LineScore]:
    """Write what is asked about lines, and return the worst of the first system by chrF.

    `texts` has references and translations by the names of their files.
    """
    if asked is None:
        return []
    from tfm.metrics.sacre import sentence_scores  # here, because few commands need it

    of_references = [texts[name] for name in references]
    rows: list[list[LineScore]] = [[] for _ in texts[first]]
    for name in (each for each in texts if each == first or each not in references):
        confidences = (
            _confidences(Path(name)) if suffix_of(name) == JSON_LINES else [None] * len(rows)
        )
        all_scores = sentence_scores(texts[name], of_references, config, language)
        for index, scores in enumerate(all_scores):
            line = LineScore(
                line=index + 1,
                system=name,
                confidence=confidences[index],
                source=None if sources is None else sources[index],
                reference=texts[references[0]][index],
                text=texts[name][index],
                **scores,
            )
            rows[index].append(line)
    if asked.per_line is not None:
        every = [vars(line) for row in rows for line in row]
        if asked.per_line.suffix == ".jsonl":
            lines = [json.dumps(each, ensure_ascii=False) for each in every]
        else:
            table = [_COLUMNS, *([each[name] for name in _COLUMNS] for each in every)]
            lines = ["\t".join(map(_shown, row)) for row in table]
        write_text(asked.per_line, "".join(f"{line}\n" for line in lines))
    rows.sort(key=lambda row: row[0].chrf)
    if asked.page is not None:
        _write_page(asked.page, rows, language)
    return [row[0] for row in rows[: asked.worst]]


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str("" if value is None else value)


def _confidences(path: Path) -> list[float | None]:
    with path.open("rb") as file:
        return [confidence for _, confidence in read_json(read_text(file, path), path)]


def _write_page(path: Path, rows: Sequence[Sequence[LineScore]], language: str) -> None:
    from tfm.metrics.page import MAX_LINES, PageLine, write_page  # here, because few scores need it

    lines = []
    for row in rows[:MAX_LINES]:
        scores = [
            {"chrF": x.chrf, "BLEU": x.bleu, "TER": x.ter, "confidence": x.confidence} for x in row
        ]
        texts = [(each.system, each.text, its) for each, its in zip(row, scores, strict=True)]
        lines.append(PageLine(f"Line {row[0].line:,}", row[0].source, row[0].reference, texts))
    note = f"{len(lines):,} of {len(rows):,} lines with the lowest chrF."
    write_page(path, "Scored lines", note, lines, language=language)
