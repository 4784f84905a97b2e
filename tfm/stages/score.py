"""tfm score: translations and references → scores with their signatures."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfm.config import ScoreConfig
from tfm.dataset.manifest import GOLD
from tfm.disk.files import STDIN_FILE, is_same_file, read_record
from tfm.disk.paths import LAST_GENERATION, check_streams
from tfm.errors import DataError, TfmError, UsageError, explain_os_error
from tfm.metrics.metric import MetricName, MetricScore
from tfm.metrics.scores import check_lengths, check_metrics, corpus_scores
from tfm.metrics.tokenizers import bleu_tokenizer, load_tokenizer
from tfm.reporting import say
from tfm.stages.score_lines import LineOutputs, LineScore, read_json, report_lines
from tfm.text.files import suffix_of, unpacked_name
from tfm.text.formats import JSON_LINES, SEGMENTS, columns_in
from tfm.text.languages import name_of
from tfm.text.lines import BYTE_ORDER_MARK, STANDARD_INPUT, read_text
from tfm.text.looks import look
from tfm.text.segments import REFERENCE, SOURCE, TRANSLATION

if TYPE_CHECKING:
    from tfm.dataset.test_sets import NamedSet
    from tfm.features.seen.report import SeenReport
    from tfm.folders.model_folder import ModelFolder

Text = Path | Sequence[str]  # a file, or its lines

DEFAULT_METRICS: tuple[MetricName, ...] = ("bleu", "chrf")
LAST_GENERATION_FORMAT = 1

# BLEU takes the length of the closest reference, TER their mean length; chrF takes the best one.
_CHANGED_BY_EMPTY_REFERENCES: tuple[MetricName, ...] = ("bleu", "paper-bleu", "ter", "exact")
_WMT_PAIR = re.compile(r"[a-z]{2,3}-(?=[a-z]{2,3}$)")  # in wmttest2023.en-zh.all.xml
_MIN_SPACES = 0.02  # of the characters of text with spaces between words


@dataclass(frozen=True, kw_only=True)
class LastGeneration:
    """The record of the text that `tfm generate` translated last.

    Attributes:
        model: The folders of its models.
        data: Their dataset.
        split: The split that was translated; None for other text.
        source: The name of the text.
        reference: The file of its reference; None if unknown.
        language: The target language.
        more_references: The files of further references.
        source_language: The source language.
    """

    model: tuple[str, ...]
    data: str
    split: str | None
    source: str
    reference: str | None
    language: str
    more_references: tuple[str, ...] = ()
    source_language: str = ""


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """The scores of one set of translations, in the requested order, and the names of the files.

    `seen` says what of the text the models that translated it have seen in training, if known.
    """

    scores: list[MetricScore]
    num_lines: int
    hypotheses: str
    references: list[str]
    baseline: str | None = None
    seen: "SeenReport | None" = None
    worst: list[LineScore] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)


def score(
    hypotheses: Text | None,
    references: Sequence[Text],
    *,
    metrics: Sequence[MetricName] | None = None,
    config: ScoreConfig,
    baseline: Text | None = None,
    language: str | None = None,
    source: Text | None = None,
    test_set: str | None = None,
    mirror: str | None = None,
    models: "Sequence[ModelFolder] | None" = None,
    lines: LineOutputs | None = None,
    runs_dir: Path,
) -> ScoreResult:
    """Score a file or a list of translations, or standard input, against one or more references.

    Defaults: the reference of the text that `tfm generate` translated last, as recorded in
    `runs_dir`; DEFAULT_METRICS for text and bracket F1 for trees; the language that is recorded
    there with the first reference, or else its suffix; for a metric command, the source that is
    recorded with the first reference. A test set of sacreBLEU brings references, source and
    language. A baseline is tested for a significant difference. What `models` have seen, or those
    of the last generation, is looked up. Raises the errors of the command.
    """
    check_settings(metrics, config)
    named = None if test_set is None else _parse_set(test_set)
    if references:
        _choose_metrics(metrics, references[0], lines)
    if metrics and "paper-bleu" in metrics and (language or references):
        from tfm.metrics.paper import check_language

        check_language(language or _language_of(references[0], runs_dir))
    # Mistakes in the command are reported by now, before waiting for standard input. When that
    # ends, tfm generate has ended and has written its record.
    name = STANDARD_INPUT if hypotheses is None else _name_of(hypotheses, "hypotheses")
    hypothesis_lines = read_hypotheses(hypotheses)
    label = "reference"
    if named is not None:
        named = named if named.pair else named.between(*_last_languages(named, runs_dir))
        source_of_set, *references = _read_set(named, mirror)
        label, source = f"{named} reference", source or source_of_set
        language = language or named.languages[1]
    references = list(references) or default_references(runs_dir)
    for path in references:
        is_same = _is_same(STDIN_FILE if hypotheses is None else hypotheses, path)
        if is_same and not (isinstance(path, Path) and len(columns_in(path)) > 1):
            raise UsageError(f"{name} is the reference {path} itself: name a file of translations")
    read = _read_references(references, label)
    texts = {name: hypothesis_lines} | read
    if baseline is not None:
        compared = _name_of(baseline, "baseline")
        texts[compared] = read_lines(baseline, compared)
    others = [] if lines is None else lines.others
    texts |= {str(path): read_lines(path) for path in others}
    source = source or _source_of(references[0], runs_dir)
    check_streams(text for text in (*references, source) if isinstance(text, Path))
    if lines is not None:
        lines.check([*references, source])
    sources: list[str] | None = None
    every = texts  # the source may be one of the others, whose name it has then
    if source and (lines is not None or (metrics and "command" in metrics)):
        source_name = _name_of(source, "source", SOURCE)
        sources = read_lines(source, source_name, part=SOURCE)
        every = {**texts, source_name: sources}
    check_lengths(every)
    chosen_metrics = _choose_metrics(metrics, references[0], lines)
    first, *_ = read
    _handle_byte_order_marks(every, chosen_metrics)
    _look({} if "bracket-f1" in chosen_metrics else texts, name, first, config)
    _warn_of_empty_lines(hypothesis_lines, {key: texts[key] for key in read}, chosen_metrics)
    language = language or _language_of(references[0], runs_dir)
    if "bleu" in chosen_metrics and config.tokenize == "auto" and bleu_tokenizer(language) == "13a":
        _check_spaces(first, "".join(texts[first]))
    scores = corpus_scores(
        texts[name],
        [texts[key] for key in read],
        chosen_metrics,
        config,
        baseline=None if baseline is None else texts[compared],
        language=language,
        sources=sources,
    )
    of_clean = [each for each in chosen_metrics if each != "command"]  # which may take hours
    score_clean = partial(corpus_scores, metrics=of_clean, config=config, language=language)
    return ScoreResult(
        scores=scores,
        seen=_seen(models, [texts[each] for each in (name, *read)], source, score_clean, runs_dir),
        num_lines=len(hypothesis_lines),
        hypotheses=name,
        references=list(read),
        baseline=None if baseline is None else compared,
        worst=report_lines(lines, texts, name, [*read], sources, config, language),
    )


def check_settings(metrics: Sequence[MetricName] | None, config: ScoreConfig) -> None:
    """Raise an error unless the metrics exist, and what they need is installed."""
    check_metrics(metrics or ())
    if config.tokenize != "auto":
        load_tokenizer(config.tokenize)


def _parse_set(name: str) -> "NamedSet":
    from tfm.dataset.test_sets import NamedSet  # here, because few scores need it

    return NamedSet.parse(name)


def _read_set(named: "NamedSet", mirror: str | None) -> list[list[str]]:
    from tfm.text.sources import Downloads  # here, because few scores need it

    texts = named.read(named.fetch(Downloads(mirror=mirror)))
    return [text.split("\n")[:-1] for text in texts]


def _last_languages(named: "NamedSet", runs_dir: Path) -> tuple[str, str]:
    """Return the languages of the last generation; raise UsageError if they are unknown."""
    path = runs_dir / LAST_GENERATION
    record = _last_generation(path) if path.is_file() else None
    if record is None or not record.source_language:
        raise UsageError(
            f"the languages are unknown: name them, as in --test-set {named.name}:en-de"
        )
    return record.source_language, record.language


def _seen(
    models: "Sequence[ModelFolder] | None",
    texts: Sequence[Sequence[str]],
    source: Text | None,
    score_clean: Callable[..., list[MetricScore]],
    runs_dir: Path,
) -> "SeenReport | None":
    """Return what of translations and references models have seen, by default the last ones.

    Without a source, theirs is taken if it had no reference. Returns None if the source is not of
    these lines, or nothing was recorded of the models.
    """
    record = None if models else _readable_generation(runs_dir / LAST_GENERATION)
    if record is not None and source is None and record.reference is None:
        source = Path(record.source)
        check_streams([source])
    sources: list[str] = []
    with suppress(DataError):  # such as of standard input
        sources = [] if source is None else read_lines(source, "source", part=SOURCE)
    if len(sources) != len(texts[0]) or not (models or record):
        return None
    from tfm.features.seen.report import find_seen
    from tfm.folders.model_folder import ModelFolder

    try:
        paths = () if record is None else map(Path, record.model)
        return find_seen(models or [*map(ModelFolder.open, paths)], sources, texts, score_clean)
    except (TfmError, OSError) as error:
        say(f"warning: it is unknown what of the text was seen in training: {error}")
    return None


def _look(
    texts: Mapping[str, Sequence[str]], hypotheses: str, reference: str, config: ScoreConfig
) -> None:
    """Warn of signs that only the translations or only the reference show."""
    found = {name: {each.sign: each for each in look(lines)} for name, lines in texts.items()}
    for name, findings in found.items():
        other = found[hypotheses if name == reference else reference]
        for sign, finding in findings.items():
            message = f"{name}: {finding}: {sign.advice or 'remove it'}"
            if sign.is_subword and config.tokenize != "none":
                raise DataError(f"{message}; --tokenize none scores pieces as they are")
            if sign.is_record and sign not in other:
                raise DataError(message)
            if sign not in other:
                say(f"warning: {message}")


def _handle_byte_order_marks(texts: Mapping[str, list[str]], metrics: Sequence[MetricName]) -> None:
    """Drop byte order marks of trees; warn of byte order marks of text, which sacreBLEU scores."""
    for name, lines in texts.items():
        if not lines[0].startswith(BYTE_ORDER_MARK):
            continue
        if "bracket-f1" in metrics:
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        else:
            say(
                f"warning: {name} begins with a byte order mark, which is scored as part of its "
                "first word, as in sacreBLEU: remove it with tail -c +4"
            )


def _warn_of_empty_lines(
    hypotheses: Sequence[str],
    references: Mapping[str, Sequence[str]],
    metrics: Sequence[MetricName],
) -> None:
    """Warn of lines without a reference: metrics take an empty line as one without words."""
    has_text = {name: [bool(line.strip()) for line in references[name]] for name in references}
    numbers = [sum(flags) for flags in zip(*has_text.values(), strict=True)]
    num_missing = sum(0 < number < len(references) for number in numbers)
    changed = [each for each in metrics if each in _CHANGED_BY_EMPTY_REFERENCES]
    if num_missing and changed:
        worst = min(has_text, key=lambda name: sum(has_text[name]))
        say(
            f"warning: {num_missing:,} of {len(numbers):,} lines are empty in some references, "
            f"not in all (the most in {worst}), and count as references there, which can make "
            f"{', '.join(changed)} far too good or too bad: complete these references, or leave "
            "them out"
        )
    num_alone = sum(not n and bool(h.strip()) for n, h in zip(numbers, hypotheses, strict=True))
    if num_alone:
        say(
            f"warning: {num_alone:,} of {len(numbers):,} lines have a translation but an empty "
            "reference, which distorts the scores: complete the references, or remove these lines "
            "from all files"
        )


def read_hypotheses(path: Text | None) -> list[str]:
    """Read translations, one per line, from a file or standard input, as `read_lines` does."""
    if path is not None:
        return read_lines(path, "hypotheses")
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no translations to score: pipe them in, or name a file (--hypotheses)")
    lines = read_text(sys.stdin.buffer, None, TRANSLATION)
    if not lines:
        raise DataError(
            f"{STANDARD_INPUT} is empty, without any translations: did tfm generate fail?"
        )
    return lines


def _name_of(text: Text, name: str, part: str = TRANSLATION) -> str:
    """Return the path of a text, with the part of a file that has several; or its other name."""
    if not isinstance(text, Path):
        return name
    return f"{text} ({part})" if len(columns_in(text)) > 1 else str(text)


def _is_same(one: Text, other: Text) -> bool:
    return isinstance(one, Path) and isinstance(other, Path) and is_same_file(one, other)


def _read_references(references: Sequence[Text], label: str) -> dict[str, list[str]]:
    """Read references by their names; a file may hold those of several translators."""
    read = {}
    for number, text in enumerate(references, 1):
        columns = columns_in(text) if isinstance(text, Path) else {}
        found = {part: lines for part, lines in columns.items() if part.startswith(REFERENCE)}
        parts = [part for part, lines in found.items() if all(lines)]
        if len(parts) < len(found) > 1:
            numbers = ", ".join(
                f"{part} {sum(map(bool, lines)):,}" for part, lines in found.items()
            )
            total = len(next(iter(found.values())))
            effect = "each line is scored with the first one that translates it"
            say(
                f"warning: {text}: references are incomplete ({numbers} of {total:,} lines): "
                f"{'those are left out' if parts else effect}"
            )
        for part in parts or [REFERENCE]:
            name = _name_of(text, f"{label} {number}", part)
            read[name] = read_lines(text, name, part=part)
    return read


def read_lines(path: Text, name: str = "", *, part: str = TRANSLATION) -> list[str]:
    """Read a text file whose lines end with LF or CR LF; a byte order mark is text.

    Of a .jsonl file of `tfm generate --json`, these are the best translations. The `part` is that
    of `open_text`.

    Lines of a list may have line ends, as from `readlines`; its `name` is for messages.
    """
    if not isinstance(path, Path):
        if not path:
            raise DataError(f"{name} is empty: it has no lines to score")
        return [line.removesuffix("\n").removesuffix("\r") for line in path]
    is_json = suffix_of(path.name) == JSON_LINES
    try:
        with path.open("rb") as file:
            lines = read_text(file, path, None if is_json else part)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: check its name") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {explain_os_error(error)}") from error
    except ValueError as error:  # a zero byte or half a surrogate pair
        raise DataError(f"{str(path)!r} is not a valid file name: check it") from error
    if not lines:
        raise DataError(f"{path} is empty: it has no lines to score")
    if is_json:
        return [text for text, _ in read_json(lines, path)]
    return lines


def default_references(runs_dir: Path) -> list[Path]:
    """Return the references of the text that `tfm generate` translated last."""
    path = runs_dir / LAST_GENERATION
    if not path.is_file():
        raise UsageError(
            f"no reference given, and {path}, which records the last generation, does not exist: "
            "pass --reference"
        )
    record = _last_generation(path)
    if record.reference is None:
        raise UsageError(
            f"no reference given, and tfm generate read {record.source}, whose reference is "
            "unknown: pass --reference"
        )
    return [*map(Path, (record.reference, *record.more_references))]


def _last_generation(path: Path) -> LastGeneration:
    advice = "generate again, or pass --reference"
    return read_record(path, LastGeneration, format_=LAST_GENERATION_FORMAT, advice=advice)


def _readable_generation(path: Path) -> LastGeneration | None:
    """Return the record of the last generation; None without one, and with a warning if damaged."""
    try:
        return _last_generation(path)
    except FileNotFoundError:
        return None
    except (DataError, OSError) as error:
        reason = explain_os_error(error) if isinstance(error, OSError) else error
        say(f"warning: what {path} recorded of the last generation is not used: {reason}")
        return None


def _choose_metrics(
    metrics: Sequence[MetricName] | None, reference: Text, lines: LineOutputs | None
) -> Sequence[MetricName]:
    """Return the given metrics or the defaults; UsageError for metrics of text on trees."""
    has_trees = isinstance(reference, Path) and reference.suffix == f".{GOLD}"
    if metrics is None:
        metrics = ("bracket-f1",) if has_trees else DEFAULT_METRICS
    if has_trees and "bracket-f1" not in metrics:
        raise UsageError(f"{reference} holds trees, not text: score with --metric bracket-f1")
    if "bracket-f1" in metrics and lines is not None:
        raise UsageError(
            "--worst, --per-line and --page are for text, not for trees: leave them out"
        )
    return metrics


def _check_spaces(name: str, text: str) -> None:
    """Warn if BLEU would count the words of text that does not separate them."""
    if not text.isascii() and text.count(" ") < _MIN_SPACES * len(text):
        say(
            f"warning: {name} has hardly any spaces, but BLEU counts the words between them: name "
            "its language, as in --language zh"
        )


def _language_of(reference: Text, runs_dir: Path) -> str:
    """Return the language in which `tfm generate` wrote for a reference, or else its suffix.

    The last suffix that is a language counts, such as zh_Hans in test.zh_Hans.txt. Lists have none.
    """
    if not isinstance(reference, Path):
        return ""
    if (record := _generation_for(reference, runs_dir)) is not None:
        return record.language
    suffixes = [suffix[1:] for suffix in reversed(Path(unpacked_name(reference.name)).suffixes)]
    if suffix_of(reference.name) in SEGMENTS:
        suffixes = [_WMT_PAIR.sub("", suffix) for suffix in suffixes]
    return next((each for each in suffixes if name_of(each) != each), (suffixes or [""])[0])


def _source_of(reference: Text, runs_dir: Path) -> Path | None:
    """Return the text that `tfm generate` translated last, if this is its reference."""
    record = _generation_for(reference, runs_dir)
    path = None if record is None else Path(record.source)
    return path if path is not None and path.is_file() else None


def _generation_for(reference: Text, runs_dir: Path) -> LastGeneration | None:
    """Return the record of the last generation, if this is the reference of its text."""
    with suppress(DataError, OSError):  # `_seen` warns
        record = _last_generation(runs_dir / LAST_GENERATION)
        if record.reference is not None and _is_same(reference, Path(record.reference)):
            return record
    return None
