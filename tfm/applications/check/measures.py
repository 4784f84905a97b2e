"""The measures of a check, of each translation and of a row, and their thresholds."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from unicodedata import normalize

import regex

from tfm.applications.check.rows import Case
from tfm.config import ScoreConfig
from tfm.features.repetition.step import repeated_part
from tfm.metrics.metric import MetricScore
from tfm.metrics.sacre import sacrebleu_score, sentence_chrf
from tfm.text.languages import SENTENCE_MARKS
from tfm.translation.steps import Output

_WORD = regex.compile(r"[\p{L}\p{M}]+")
_THOUSANDS = re.compile(r"(?<=\d)[.,'’\s](?=\d{3}(?!\d))")
# Letters that capitals do not tell apart: casefold makes i and U+0307 of I and İ, and Greek
# capitals have no accents.
_SMALL = str.maketrans("ıάέήίόύώ", "iαεηιουω", "\u0307")
_MAX_TIMES, _MAX_MORE = 2, 20  # the usual length of a translation, and characters beyond that
_MIN_NUMBERS = 5  # of a row; fewer may be spelled out
_MAX_P_VALUE = 0.05
# What a row may not measure, and the measure in words; a measure that it lacks is not tested.
LIMITS = {
    "drop": (">", 10.0, "points of chrF less than for the unchanged lines"),
    "loss": (">", 0.0, "points of chrF less than the baseline, which is significant"),
    "numbers": ("<", 90.0, "% of the numbers of the source are in the translation"),
    "copied": ("<", 95.0, "% of addresses, placeholders, units and the like are copied"),
    "long": (">", 2.0, "% of the translations are more than twice as long as usual"),
    "repeating": (">", 2.0, "% of the translations repeat a part again and again"),
    "unaligned": (">", 60.0, "% of the words of the source are aligned with no word"),
    "unknown": (">", 10.0, "% of the words of translations are in no training text"),
    "overconfidence": (">", 20.0, "points more confidence than chrF"),
}


@dataclass(frozen=True, kw_only=True)
class Translated:
    """A translated case; `counts` has how many there are of how many, for each measure in %."""

    source: str
    reference: str | None
    output: str
    baseline: str | None  # the translation of the other model
    chrf: float | None  # without case and final marks
    confidence: float | None
    counts: Mapping[str, tuple[int, int]]
    faults: Sequence[str]


def measured(
    case: Case,
    output: Output,
    baseline: str | None,
    references: Sequence[str],
    times_longer: float,
    unknown: Collection[str] | None,
) -> Translated:
    """Return the measures of a translation; the length of one is usually `times_longer`."""
    reference = case.of(references) if case.lines else None
    source, text = _folded(case.source), _folded(output.text)
    numbers = _numbers(source) & _numbers(source if reference is None else _folded(reference))
    max_length = _MAX_TIMES * times_longer * len(source) + _MAX_MORE * bool(source)
    counts = {
        "numbers": ((numbers & _numbers(text)).total(), numbers.total()),
        "copied": (int(case.copied != "" and _folded(case.copied) in text), int(case.copied != "")),
        "long": (int(len(text) > max_length), 1),
        "repeating": (int(repeated_part(text, source) is not None), 1),
    }
    faults = [name for name, (part, _) in counts.items() if part and name in ("long", "repeating")]
    faults += [name for name in ("numbers", "copied") if counts[name][0] < counts[name][1]]
    if len(source.split()) > 1 and output.alignment is not None:
        num_words = len(case.source.split())
        counts["unaligned"] = num_words - len({word for word, _ in output.alignment}), num_words
    if unknown is not None:
        new = words([text]) - words([source])
        counts["unknown"] = len(new.intersection(unknown)), len(new)
    chrf = [] if reference is None else sentence_chrf(_plain([output.text]), _plain([reference]))
    return Translated(
        source=case.source,
        reference=reference,
        output=output.text,
        baseline=baseline,
        chrf=chrf[0] if chrf else None,
        confidence=output.confidence,
        counts=counts,
        faults=faults,
    )


def summary(found: Sequence[Translated], unchanged: Sequence[str]) -> dict[str, float]:
    """Return the measures of a row; `unchanged` are translations without its change, if any."""
    values = {}
    references = [each.reference for each in found if each.reference is not None]
    if references:
        baseline = [each.baseline for each in found if each.baseline is not None]
        score = _chrf([each.output for each in found], references, baseline)
        values["chrf"] = score.value
        if unchanged:
            values["drop"] = _chrf(unchanged, references).value - score.value
        if (compared := score.comparison) is not None:
            p_value = 1.0 if compared.p_value is None else compared.p_value
            loss = max(0.0, compared.baseline - score.value) * (p_value < _MAX_P_VALUE)
            values |= {"baseline": compared.baseline, "p_value": p_value, "loss": loss}
    for name in dict.fromkeys(name for each in found for name in each.counts):
        parts, wholes = zip(*(each.counts.get(name, (0, 0)) for each in found), strict=True)
        if sum(wholes) >= (_MIN_NUMBERS if name == "numbers" else 1):
            values[name] = 100 * sum(parts) / sum(wholes)
    pairs = [(each.confidence, each.chrf) for each in found]
    gaps = [100 * one - other for one, other in pairs if one is not None and other is not None]
    return values | ({"overconfidence": sum(gaps) / len(gaps)} if gaps else {})


def failures(measures: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Return the measures beyond `limits`, or else `LIMITS`, in words."""
    found = []
    for name, (sign, usual, meaning) in LIMITS.items():
        limit, value = limits.get(name, usual), measures.get(name)
        if value is not None and (value > limit if sign == ">" else value < limit):
            allowed = "at most" if sign == ">" else "at least"
            found.append(f"{name}: {value:.1f} {meaning} ({allowed} {limit:g})")
    return found


def _chrf(
    outputs: Sequence[str], references: Sequence[str], baseline: Sequence[str] = ()
) -> MetricScore:
    return sacrebleu_score(
        "chrf",
        _plain(outputs),
        [_plain(references)],
        ScoreConfig(),
        baseline=_plain(baseline) or None,
    )


def _plain(texts: Iterable[str]) -> list[str]:
    """Return texts without case and final marks: some rows remove these from sources."""
    return [_without_case(text).rstrip(f"{SENTENCE_MARKS} ") for text in texts]


def _without_case(text: str) -> str:
    return normalize("NFC", text).casefold().translate(_SMALL)


def _folded(text: str) -> str:
    """Return a text in one form: with °C for ℃, and without marks of thousands."""
    return _THOUSANDS.sub("", normalize("NFKC", text).strip())


def _numbers(text: str) -> Counter[int]:
    return Counter(map(int, re.findall(r"\d{1,99}", text)))


def words(texts: Iterable[str]) -> set[str]:
    """Return the words of texts without case."""
    return {word for text in texts for word in _WORD.findall(_without_case(text))}
