"""Reports of cleaning: what was kept and dropped of each text, and why."""

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfm.disk.files import write_text
from tfm.errors import DataError
from tfm.reporting import say
from tfm.text.cleaning import HeldOutPairs
from tfm.text.corpus.texts import Text, TextFiles
from tfm.text.counts import RULES, PairCounts
from tfm.text.files import suffix_of
from tfm.text.formats import RECORD_SUFFIXES, RECORDS
from tfm.text.lines import read_lines
from tfm.text.segments import ALL
from tfm.text.sources import TextSources

DROPPED = "dropped.txt"  # examples of dropped pairs

# Rules that drop a higher rate of the pairs of a text, and more than some pairs, are warned of.
_MAX_DROPPED_RATE, _MAX_DROPPED = 0.03, 10
_WANTED = "protected"  # what is held out is dropped, too
# A higher rate of lines that are not UTF-8 means another encoding, not damage.
_MAX_INVALID_RATE = 0.01


def summary(counts: PairCounts, unit: str = "pairs") -> str:
    """Return how many pairs were kept, and why others were dropped."""
    reasons = [f"{n:,} {rule.replace('_', ' ')}" for rule, n in counts.dropped.items() if n]
    dropped = f"; dropped {', '.join(reasons)}" if reasons else ""
    num_decoded = counts.windows_1252
    decoded = f"; U+0080 to U+009F read as Windows-1252 in {num_decoded:,}" if num_decoded else ""
    entities = f"; entities decoded in {counts.entities:,}" if counts.entities else ""
    return f"{counts.kept:,} of {counts.read:,} {unit}{dropped}{decoded}{entities}"


def report_training_text(sources: TextSources, text: Text, name: str, counts: PairCounts) -> None:
    """Report the cleaning of a training text; raise DataError if it cannot be used."""
    check_format(sources, text, counts)
    for rule, dropped in counts.dropped.items():
        if rule != _WANTED and dropped > max(_MAX_DROPPED, _MAX_DROPPED_RATE * counts.read):
            flag = RULES.get(rule)
            advice = f", or change the rule with {flag}" if flag else ""
            say(
                f"warning: the rule {rule} drops {dropped / counts.read:.1%} of {name}, "
                f"{dropped:,} of {counts.read:,} pairs: look at examples in {DROPPED}{advice}"
            )
    if len(sources.recipe.train) > 1:
        if not counts.kept:
            raise DataError(
                f"no pairs are left of [[train]] {name} ({summary(counts)}): remove it "
                "from the recipe, or correct it"
            )
        say(f"clean: train {name}: {summary(counts)}")


def check_format(sources: TextSources, text: Text, counts: PairCounts) -> None:
    """Raise DataError if many pairs of a training text are not UTF-8, or have other columns."""
    if isinstance(text, TextFiles):
        check_encoding(sources.locate_sides(text), counts)
        if 2 * counts.dropped["columns"] > counts.read:
            deque(sources.all_pairs(text, "valid"), maxlen=0)  # an error names the first


def check_encoding(paths: Sequence[Path], counts: PairCounts, unit: str = "pairs") -> None:
    """Raise DataError if too many lines of a training text are not UTF-8."""
    num_invalid = counts.dropped["not_utf8"]
    if num_invalid > max(1, _MAX_INVALID_RATE * counts.read):
        for path in paths:
            part = RECORDS if suffix_of(path.name) in RECORD_SUFFIXES else ALL
            try:
                deque(read_lines(path, strict=True, part=part), maxlen=0)
            except DataError as error:
                names = " and ".join(dict.fromkeys(map(str, paths)))
                raise DataError(
                    f"{num_invalid:,} of {counts.read:,} {unit} of {names} are not UTF-8: {error}"
                ) from error


def count_held_out(held_out: HeldOutPairs) -> dict[str, int]:
    """Return how many pairs of each other split are in the training text; warn of them."""
    counts = held_out.counts()
    for split, (count, size) in counts.items():
        if count:
            say(
                f"warning: {count:,} of the {size:,} pairs of the {split} text are in the "
                "training text, too: scores on it will be too high"
            )
    return {split: count for split, (count, _) in counts.items()}


def write_examples(data_dir: Path, counts_by_text: Mapping[str, PairCounts]) -> None:
    """Write examples of what each rule dropped from each training text, if anything."""
    path = data_dir / DROPPED
    text = "\n".join(
        f"# {name}, {rule}: {counts.dropped[rule]:,} of {counts.read:,} pairs, such as\n"
        + "".join(f"{source}\t{target}\n" for source, target in examples.values())
        for name, counts in counts_by_text.items()
        for rule, examples in counts.examples.items()
    )
    if not text:
        path.unlink(missing_ok=True)
        return
    write_text(path, text)
    note = " (protected: nearly in held-out or protected text)" * (f", {_WANTED}: " in text)
    say(f"clean: examples of dropped pairs are in {path}{note}")
