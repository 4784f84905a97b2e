"""Alignment error rate (Och & Ney 2003) of a model's attention on word pairs linked by hand.

    python examples/results/alignment_error.py MODEL jaen.src-tgt jaen.gold --unspaced-source

The lines of the first file are `source ||| target` in words, those of the second are links such as
1-2, counted from 1. All links are sure ones. A model whose text has no spaces between words reads
the words joined; links between its characters are then links between the words that they are in.
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfm.features.align.step import Align
from tfm.folders.model_folder import ModelFolder

Links = set[tuple[int, int]]


def text_and_words(words: list[str], separator: str) -> tuple[str, list[int]]:
    """Return a text of words, and the number of the word that each of its characters is in."""
    numbers = [n for n, word in enumerate(words, 1) for _ in word + separator]
    return separator.join(words), numbers


def read(path: Path) -> list[str]:
    """Read lines, which end only where other programs end them."""
    return path.read_text("utf-8").removesuffix("\n").split("\n")


def read_links(path: Path) -> list[Links]:
    """Read the links of each pair, such as 1-2."""
    pairs = ([link.split("-") for link in line.split()] for line in read(path))
    return [{(int(a), int(b)) for a, b in each} for each in pairs]


def aligned(model: Path, pairs: list[list[str]], separator: str) -> Iterator[Links]:
    """Yield the links between the words of each source and target, counted from 1."""
    align = Align.of(ModelFolder.open(model), None, "cpu").load()
    sides = [
        (text_and_words(source.split(), separator), text_and_words(target.split(), " "))
        for source, target in pairs
    ]
    links = align.align_units([s[0] for s, _ in sides], [t[0] for _, t in sides])
    for ((_, sources), (_, targets)), spans in zip(sides, links, strict=True):
        yield {(sources[a], targets[b]) for (a, _), (b, _) in spans}


def rates(pairs: Iterable[tuple[Links, Links]]) -> tuple[float, float, float]:
    """Return error rate, precision and recall of (links, gold links) of all pairs."""
    counts = [(len(links & gold), len(links), len(gold)) for links, gold in pairs]
    right, found, true = map(sum, zip(*counts, strict=True))
    return 1 - 2 * right / (found + true), right / found, right / true


def main() -> None:
    """Print the rates of the model on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("gold", type=Path)
    parser.add_argument("--unspaced-source", action="store_true")
    given = parser.parse_args()
    pairs = [line.split(" ||| ") for line in read(given.text)]
    links = aligned(given.model, pairs, "" if given.unspaced_source else " ")
    error, precision, recall = rates(zip(links, read_links(given.gold), strict=True))
    print(f"alignment error rate {error:.3f}, precision {precision:.3f}, recall {recall:.3f}")


if __name__ == "__main__":
    main()
