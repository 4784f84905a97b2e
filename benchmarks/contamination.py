"""Measure what the record of seen text finds, what it misses, and what it costs.

    python benchmarks/contamination.py planted MULTI30K     # a folder with train.en, train.de, …
    python benchmarks/contamination.py large --pairs 20     # millions of generated pairs

`planted` writes copies of test pairs over training pairs: 1 % exact, 1 % of one side, and 1 % with
an edited word on each side. The record is compared with sets of all lines and 4-grams, which share
no code with it. It prints for each kind how many of the test sides that the sets find are found,
and how many others are, for records of several sizes.

`large` prints CPU seconds and the memory of a record of distinct lines, without the time to
generate them. Run it with OMP_NUM_THREADS=1 on an idle machine.
"""

import argparse
import random
import re
import resource
import tempfile
import time
import unicodedata
from pathlib import Path

import numpy as np

from tfm.text.seen import SeenText

Pairs = list[list[str]]  # source, target

LIMITS = (1 << 26, 700_000, 400_000, 120_000)  # bytes
SHARE = 0.01


def tokens(line: str) -> list[str]:
    """Return the words of a line in lower case."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", line).casefold())


def grams(line: str) -> list[tuple[str, ...]]:
    """Return the 4-grams of a line."""
    words = tokens(line)
    return [tuple(words[index : index + 4]) for index in range(len(words) - 3)]


def edited(line: str) -> str:
    """Return a line with a word replaced, left out or doubled, in capitals and unpunctuated."""
    words = line.rstrip(".!? ").split() or ["-"]
    index = random.choice((0, 1, len(words) - 1)) % len(
        words
    )  # far from the middle: most 4-grams stay
    words[index : index + 1] = random.choice(([], ["etwas"], [words[index]] * 2))
    return " ".join(words).upper()


def plant(train: Pairs, test: Pairs) -> dict[str, list[int]]:
    """Write copies of test pairs over training pairs; return the numbers of the test pairs."""
    number = round(SHARE * len(train))
    places = random.sample(range(len(train)), 3 * number)
    chosen = random.sample(range(len(test)), 3 * number)
    planted: dict[str, list[int]] = {"exact": [], "one side": [], "edited": []}
    for index, (place, test_index) in enumerate(zip(places, chosen, strict=True)):
        kind = [*planted][index // number]
        source, target = test[test_index]
        pair = {
            "exact": [source, target],
            "one side": [source, train[place][1]] if index % 2 else [train[place][0], target],
            "edited": [edited(source), edited(target)],
        }[kind]
        train[place] = pair
        planted[kind].append(test_index)
    return planted


def brute_force(train: Pairs, test: Pairs) -> np.ndarray:
    """Return [N, 2, 2]: of each side of test pairs, whether it was seen exactly, and at all."""
    lines = {"".join(tokens(side)) for pair in train for side in pair}
    known = {gram for pair in train for side in pair for gram in grams(side)}
    found = np.zeros((len(test), 2, 2), dtype=bool)
    for number, pair in enumerate(test):
        for side, line in enumerate(pair):
            of_line = grams(line)
            is_exact = "".join(tokens(line)) in lines
            is_near = bool(of_line) and sum(map(known.__contains__, of_line)) >= 0.8 * len(of_line)
            found[number, side] = is_exact, is_exact or is_near
    return found


def planted(folder: Path) -> None:
    """Print what records of several sizes find of planted copies."""
    random.seed(1)
    train, test = (
        [[*pair] for pair in zip(*(sides(folder / name)), strict=True)]
        for name in ("train", "test_2016_flickr")
    )
    numbers = plant(train, test)
    expected = brute_force(train, test)
    print("| bytes | 4-grams | kind | sides | by sets | found of these | others found |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        paths = [Path(scratch, name) for name in ("train.en", "train.de")]
        for side, path in enumerate(paths):
            path.write_text("".join(f"{pair[side]}\n" for pair in train), encoding="utf-8")
        for limit in LIMITS:
            record = SeenText.of_pairs([paths], max_bytes=limit, origins=[])
            assert record is not None
            found = np.stack(
                [np.stack(record.look_up([p[side].encode() for p in test]), 1) for side in (0, 1)],
                1,
            )
            rest = sorted(set(range(len(test))).difference(*numbers.values()))
            for kind, chosen in {**numbers, "none": rest}.items():
                level = 0 if kind in ("exact", "one side") else 1
                by_sets, by_record = expected[chosen, :, level], found[chosen, :, level]
                share = (by_sets & by_record).sum() / max(1, by_sets.sum())
                others = (by_record & ~by_sets).sum()
                row = (len(record.bits), record.step, kind, by_sets.size, by_sets.sum())
                print("|", *(f"{value} |" for value in row), f"{share:.1%} | {others} |")


def sides(stem: Path) -> list[list[str]]:
    """Return the lines of both sides of a text."""
    paths = [stem.with_name(f"{stem.name}.{language}") for language in ("en", "de")]
    return [path.read_text(encoding="utf-8").split("\n")[:-1] for path in paths]


def generated(number: int, generator: np.random.Generator, words: list[str]) -> list[bytes]:
    """Return lines of words with Zipf's frequencies."""
    lengths = generator.integers(5, 30, number)
    ranks = (len(words) ** generator.random(lengths.sum())).astype(int) - 1
    ends = lengths.cumsum().tolist()
    drawn = [words[rank] for rank in ranks.tolist()]
    return [" ".join(drawn[end - n : end]).encode() for end, n in zip(ends, lengths.tolist())]  # noqa: B905


def large(num_pairs: int, megabytes: int) -> None:
    """Print the CPU time and the memory of a record of generated pairs."""
    generator = np.random.default_rng(1)
    words = ["".join(chr(97 + ord(c) % 26) for c in f"{n * 7919:x}") for n in range(200_000)]
    words = [f"{word}ä" if n % 5 == 0 else word for n, word in enumerate(words)]
    pool = generated(100_000, generator, words)
    grams = 2 * num_pairs * sum(max(0, len(line.split()) - 2) for line in pool) / len(pool)
    limit, seconds = megabytes << 20, 0.0
    step = next((n for n in (1, 2, 4) if 2 * num_pairs + grams / n <= 0.75 * limit), 1 << 32)
    record = SeenText(bits=np.zeros(limit, dtype=np.uint8), step=step)
    for first in range(0, 2 * num_pairs, 5_000):  # lines, each with a last word that no other has
        place = first % len(pool)
        lines = [b"%b %x" % (line, first + n) for n, line in enumerate(pool[place : place + 5_000])]
        start = time.process_time()
        record.add(lines)
        seconds += time.process_time() - start
    looked_up = (record.look_up(generated(5_000, generator, words)) for _ in range(20))
    found = np.sum([[flags.sum() for flags in each] for each in looked_up], axis=0)
    print(f"{num_pairs:,} pairs, {megabytes} MB, 1 of {step} of the 4-grams")
    print(f"{seconds:.1f} s, {1e6 * seconds / num_pairs:.2f} µs a pair")
    print(f"false hits of hashes: {record.false_hits():.4%}")
    print(f"of 100,000 new lines: {found[0]} exactly, {found[1]} at all")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("planted").add_argument("folder", type=Path)
    options = commands.add_parser("large")
    options.add_argument("--pairs", type=float, default=20, help="millions")
    options.add_argument("--megabytes", type=int, default=64)
    given = parser.parse_args()
    if given.command == "planted":
        planted(given.folder)
    else:
        large(round(1e6 * given.pairs), given.megabytes)


if __name__ == "__main__":
    main()
