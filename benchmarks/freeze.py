"""Compare what two versions of tfm do, to check that a refactoring changes nothing.

    python benchmarks/freeze.py main .                      # a commit and the working tree
    python benchmarks/freeze.py main HEAD --only help data --out build/freeze
    python benchmarks/freeze.py main HEAD --only timings    # alone, on an idle machine

A version is a commit, or a folder with the package tfm/. Both run in this Python environment, side
by side, on one thread each. What they print and write is compared part by part:

- help: the help of all commands, the reference pages, the settings of the presets;
- mistakes: exit codes and messages of wrong command lines, and of damaged files;
- data: text, subword models and token ids of generated text, of text in Turkish and Chinese, and of
  Multi30k if --multi30k names the folder of its files;
- training: losses, gradient norms and weights of 50 steps of tiny and small, in fp32 and bf16;
- decoding: translations and scores. Both versions translate with the same model, which the first
  one trains (preset quickstart, 500 steps in fp32, generated text). In bf16 and int8, differences
  are listed and allowed;
- timings: the times of alternating processes, after over before.

A table and the first differences go to stdout as Markdown; --out keeps all observations and
differences. The exit code is 1 if something differs that must be equal.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from freeze_mistakes import mistakes
from freeze_parts import ALLOWED, data, decoding, help_texts, training
from freeze_timings import timings
from freeze_version import Version
from runs import markdown

ROOT = Path(__file__).parents[1]
PARTS = {
    "help": help_texts,
    "mistakes": mistakes,
    "data": data,
    "training": training,
    "decoding": decoding,
}
NUM_SHOWN = 12  # observations of a part that differ
NUM_CHARACTERS = 160  # of a value that is shown
MISSING = "(missing)"


class Difference(NamedTuple):
    """A value that differs, with the keys that lead to it."""

    keys: tuple[str, ...]
    before: str
    after: str

    @property
    def is_allowed(self) -> bool:
        """Whether the difference is only listed."""
        return self.keys[0].startswith(ALLOWED)

    def __str__(self) -> str:
        before, after = (text[:NUM_CHARACTERS] for text in (self.before, self.after))
        note = " (allowed)" if self.is_allowed else ""
        return f"- {' › '.join(self.keys)}{note}\n  - before: {before}\n  - after: {after}"


def main() -> None:
    """Run both versions, print what differs, and exit with 1 if it must be equal."""
    parser = _parser()
    options = parser.parse_args()
    if "timings" in options.only and len(options.only) > 1:
        parser.error("timings need the machine for themselves: give --only timings")
    with tempfile.TemporaryDirectory(prefix="freeze-") as folder:
        try:
            before = _version("before", options.before, Path(folder), options)
            after = _version("after", options.after, Path(folder), options)
        except ValueError as error:
            parser.error(str(error))
        if options.only == ["timings"]:
            print(timings(before, after, num_pairs=options.pairs))
            return
        if "decoding" in options.only:
            before.train_model()
        found = {part: _compare(part, before, after, options.out) for part in options.only}
    print(report(found))
    if not all(each.is_allowed for differing, _ in found.values() for each in differing):
        raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="a commit, or a folder with tfm/")
    parser.add_argument("after", help="the same")
    names = [*PARTS, "timings"]
    parser.add_argument("--only", nargs="+", choices=names, default=list(PARTS), metavar="PART")
    parser.add_argument("--out", type=Path, help="folder to keep the observations in")
    parser.add_argument("--multi30k", type=Path, help="folder of train.en, val.en and so on")
    parser.add_argument("--lines", type=int, default=1000, help="lines to translate, at most 1000")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of processes to time")
    return parser


def _version(name: str, given: str, folder: Path, options: argparse.Namespace) -> Version:
    """Return a version; the source of a commit is extracted into the folder."""
    source, work = Path(given).absolute(), folder / name / "work"
    work.mkdir(parents=True)
    if not (source / "tfm").is_dir():
        command: list[str | Path] = ["git", "-C", ROOT, "archive", given]
        archive = subprocess.run(command, capture_output=True, check=False)
        if archive.returncode:
            raise ValueError(f"{given} is neither a commit nor a folder with tfm/")
        source = folder / name / "source"
        source.mkdir()
        subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    return Version(name, source, work, folder / "model", options.multi30k, options.lines)


def _compare(
    part: str, before: Version, after: Version, out: Path | None
) -> tuple[list[Difference], int]:
    """Return the differences of a part, and the number of values compared."""
    print(part, file=sys.stderr)
    with ThreadPoolExecutor() as pool:
        old, new = pool.map(PARTS[part], (before, after))
    found = list(differences(old, new))
    if out:
        out.mkdir(parents=True, exist_ok=True)
        for name, observed in (("before", old), ("after", new)):
            (out / f"{part}-{name}.json").write_text(json.dumps(observed, indent=1))
        (out / f"{part}.md").write_text("".join(f"{each}\n" for each in found), encoding="utf-8")
    return found, max(num_values(old), num_values(new))


def differences(before: Any, after: Any, *keys: str) -> Iterator[Difference]:
    """Yield the values in which two observations differ.

    Tables are compared by key, and lists of one length by index. Of text and of other lists, the
    first line or item that differs is given.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from differences(before.get(key, MISSING), after.get(key, MISSING), *keys, key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True), 1):
            yield from differences(old, new, *keys, str(index))
    elif repr(before) != repr(after):
        if isinstance(before, str) and isinstance(after, str):
            before, after = before.split("\n"), after.split("\n")
        if isinstance(before, list) and isinstance(after, list):
            pairs = zip_longest(before, after, fillvalue=MISSING)
            before, after = next(pair for pair in pairs if repr(pair[0]) != repr(pair[1]))
        yield Difference(keys, str(before), str(after))


def num_values(observed: Any) -> int:
    """Return the number of values in nested tables and lists."""
    if isinstance(observed, dict):
        return sum(map(num_values, observed.values()))
    return sum(map(num_values, observed)) if isinstance(observed, list) else 1


def report(found: Mapping[str, tuple[list[Difference], int]]) -> str:
    """Return a Markdown table of the parts, and the first difference of each observation."""
    rows, shown = [], []
    for part, (differing, total) in found.items():
        listed = sorted(differing, key=lambda each: each.is_allowed)
        num_allowed = sum(each.is_allowed for each in differing)
        num_wrong = len(differing) - num_allowed
        counts = (f"{count:,}" for count in (total, num_wrong, num_allowed))
        rows.append([part, "**differs**" if num_wrong else "equal", *counts])
        groups = groupby(listed, key=lambda each: each.keys[0])
        firsts = [_first_and_number(list(group)) for _, group in groups]
        shown += [f"\n{part}:\n"] * bool(firsts) + firsts[:NUM_SHOWN]
    table = markdown(["part", "result", "values", "differences", "allowed differences"], rows)
    return "\n".join([table, *shown])


def _first_and_number(differing: list[Difference]) -> str:
    more = f"\n  - and {len(differing) - 1:,} more" if len(differing) > 1 else ""
    return f"{differing[0]}{more}"


if __name__ == "__main__":
    main()
