"""The texts to score: reading them, and warnings of text that distorts scores."""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfm.errors import DataError, UsageError, explain_os_error
from tfm.metrics.metric import MetricName
from tfm.reporting import say
from tfm.text.files import suffix_of, unpacked_name
from tfm.text.formats import JSON_LINES, SEGMENTS, columns_in
from tfm.text.languages import name_of
from tfm.text.lines import BYTE_ORDER_MARK, STANDARD_INPUT, read_text
from tfm.text.looks import look
from tfm.text.segments import REFERENCE, TRANSLATION

Text = Path | list[str]  # a file, or its lines
Texts = Mapping[str, list[str]]  # lines by the name of a text in messages

# BLEU takes the length of the closest reference, TER their mean length; chrF takes the best one.
_CHANGED_BY_EMPTY_REFERENCES: tuple[MetricName, ...] = ("bleu", "paper-bleu", "ter", "exact")
_WMT_PAIR = re.compile(r"[a-z]{2,3}-(?=[a-z]{2,3}$)")  # in wmttest2023.en-zh.all.xml
_MIN_SPACES = 0.02  # of the characters of text with spaces between words


def read(text: Text | None, name: str = "", part: str = TRANSLATION) -> Texts:
    """Read a text by its name: the path, with the part of a file that has several, or a word."""
    if text is None:
        return {STANDARD_INPUT: _read_standard_input()}
    if isinstance(text, Path):
        name = f"{text} ({part})" if len(columns_in(text)) > 1 else str(text)
    return {name: read_lines(text, name, part=part)}


def read_lines(text: Text, name: str = "", *, part: str = TRANSLATION) -> list[str]:
    """Read the lines of a text, which end with LF or CR LF; a byte order mark is text.

    Of a .jsonl file of `tfm generate --json`, these are the best translations.

    Args:
        text: A file, or a list of lines, which may have line ends.
        name: The name of a list for messages.
        part: The part of a file that is read, as `open_text` says.
    """
    if not isinstance(text, Path):
        if not text:
            raise DataError(f"{name} is empty: it has no lines to score")
        return [line.removesuffix("\n").removesuffix("\r") for line in text]
    is_json = suffix_of(text.name) in JSON_LINES
    try:
        with text.open("rb") as file:
            lines = read_text(file, text, None if is_json else part)
    except FileNotFoundError:
        raise DataError(f"{text} does not exist: check its name") from None
    except OSError as error:
        raise DataError(f"{text} cannot be read: {explain_os_error(error)}") from error
    if not lines:
        raise DataError(f"{text} is empty: it has no lines to score")
    return [best for best, _ in _best_of_json(lines, text)] if is_json else lines


def _read_standard_input() -> list[str]:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no translations to score: pipe them in, or name a file (--hypotheses)")
    lines = read_text(sys.stdin.buffer, None, TRANSLATION)
    if not lines:
        raise DataError(
            f"{STANDARD_INPUT} is empty, without any translations: did tfm generate fail?"
        )
    return lines


def read_confidences(path: Path) -> list[float | None]:
    """Return the confidence of each line of a .jsonl file; [] for other text."""
    if suffix_of(path.name) not in JSON_LINES:
        return []
    with path.open("rb") as file:
        return [confidence for _, confidence in _best_of_json(read_text(file, path), path)]


def _best_of_json(lines: Sequence[str], path: Path) -> Iterator[tuple[str, float | None]]:
    """Yield the best translation of each line of tfm generate --json, and its confidence."""
    for number, line in enumerate(lines, 1):
        try:
            best = json.loads(line)["translations"][0]
            text, confidence = best["text"], best.get("confidence")
            text.encode()  # half of a surrogate pair is no character
            if not 0 <= (confidence or 0) <= 1:
                raise ValueError(line)
            yield text, confidence
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, line {number:,} has no translation as tfm generate --json writes it: "
                "take the text out of other JSON, as with jq -r .FIELD, or give plain text another "
                "suffix"
            ) from error


def read_references(references: Sequence[Text], label: str) -> Texts:
    """Read references by their names; a file may hold references of several translators."""
    found_texts: dict[str, list[str]] = {}
    for number, text in enumerate(references, 1):
        columns = columns_in(text) if isinstance(text, Path) else {}
        found = {part: lines for part, lines in columns.items() if part.startswith(REFERENCE)}
        parts = [part for part, lines in found.items() if all(lines)]
        if len(parts) < len(found) > 1:
            numbers = ", ".join(f"{part} {sum(map(bool, found[part])):,}" for part in found)
            effect = "each line is scored with the first one that translates it"
            say(
                f"warning: {text}: references are incomplete ({numbers} of "
                f"{len(next(iter(found.values()))):,} lines): "
                f"{'those are left out' if parts else effect}"
            )
        for part in parts or [REFERENCE]:
            found_texts.update(read(text, f"{label} {number}", part))
    return found_texts


def language_of(reference: Text) -> str:
    """Return the last suffix of a file that is a language: zh_Hans in test.zh_Hans.txt.

    Without such a suffix, it is the last suffix, and "" of a list.
    """
    if not isinstance(reference, Path):
        return ""
    suffixes = [suffix[1:] for suffix in reversed(Path(unpacked_name(reference.name)).suffixes)]
    if suffix_of(reference.name) in SEGMENTS:
        suffixes = [_WMT_PAIR.sub("", suffix) for suffix in suffixes]
    return next((each for each in suffixes if name_of(each) != each), (suffixes or [""])[0])


def warn_of_signs(texts: Texts, hypotheses: str, reference: str, *, takes_pieces: bool) -> None:
    """Warn of signs that only one of the texts shows; refuse records and pieces of subwords."""
    found = {name: {each.sign: each for each in look(lines)} for name, lines in texts.items()}
    for name, findings in found.items():
        other = found[hypotheses if name == reference else reference]
        for sign, finding in findings.items():
            message = f"{name}: {finding}: {sign.advice or 'remove it'}"
            if sign.is_subword and not takes_pieces:
                raise DataError(f"{message}; --tokenize none scores pieces as they are")
            if sign.is_record and sign not in other:
                raise DataError(message)
            if sign not in other:
                say(f"warning: {message}")


def drop_byte_order_marks(texts: Texts) -> None:
    """Remove byte order marks, which are no part of trees."""
    for lines in texts.values():
        lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)


def warn_of_byte_order_marks(texts: Texts) -> None:
    """Warn of byte order marks, which sacreBLEU scores."""
    for name, lines in texts.items():
        if lines[0].startswith(BYTE_ORDER_MARK):
            say(
                f"warning: {name} begins with a byte order mark, which is scored as part of its "
                "first word, as in sacreBLEU: remove it with tail -c +4"
            )


def warn_of_empty_lines(
    hypotheses: Sequence[str],
    references: Texts,
    metrics: Sequence[MetricName],
) -> None:
    """Warn of lines without a reference: metrics take them as references without words."""
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


def warn_of_missing_spaces(name: str, lines: Sequence[str]) -> None:
    """Warn if BLEU would count the words of text that does not separate them."""
    text = "".join(lines)
    if not text.isascii() and text.count(" ") < _MIN_SPACES * len(text):
        say(
            f"warning: {name} has hardly any spaces, but BLEU counts the words between them: name "
            "its language, as in --language zh"
        )
