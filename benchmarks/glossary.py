"""Measure translations with a glossary: terms that are placed, BLEU and CPU seconds.

    OMP_NUM_THREADS=1 python benchmarks/glossary.py MODEL DATA [--beam 4 1]

DATA has train.* and test_2016_flickr.* of Multi30k (en, de). A glossary has 200 English words of
the test set, longer than three letters and in at most 8 of its lines, each with a German word that
often goes with it in the training text and is in the reference of each of these lines: A is a
sample, and each word of B is missing from a plain translation. Only lines with terms count.
"""

import argparse
import random
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from sacrebleu import corpus_bleu

sys.path.insert(0, str(Path(__file__).parents[1]))

from tfm.commands.translator import Translator
from tfm.translation.steps import Output

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_MAX_LINES, _MAX_FREQUENCY, _NUM_TERMS = 8, 2000, 200


def words(line: str) -> set[str]:
    """Return the words of a line."""
    return set(_WORD.findall(line))


def read(data: Path, name: str) -> list[tuple[str, str]]:
    """Return the pairs of a text."""
    sides = [(data / f"{name}.{end}").read_text("utf-8").split("\n")[:-1] for end in ("en", "de")]
    return list(zip(*sides, strict=True))


def find_terms(train: list[tuple[str, str]], test: list[tuple[str, str]]) -> dict[str, str]:
    """Return words of the test set with their likely translations."""
    places = defaultdict[str, list[set[str]]](list)
    for english, german in test:
        for word in filter(str.islower, words(english)):
            places[word].append(words(german))
    sources = {w for w, found in places.items() if len(w) > 3 and len(found) <= _MAX_LINES}
    counts: Counter[str] = Counter()
    german_counts: Counter[str] = Counter()
    together = defaultdict[str, Counter[str]](Counter)
    for pair in train:
        here, there = map(words, pair)
        counts.update(here)
        german_counts.update(there)
        for word in here & sources:
            together[word].update(there)
    terms = {}
    for word in sorted(sources):
        dice = {
            each: 2 * num / (counts[word] + german_counts[each])
            for each in set.intersection(*places[word])
            if (num := together[word][each]) > 1 and german_counts[each] < _MAX_FREQUENCY
        }
        best = max(sorted(dice), key=dice.__getitem__, default="")
        if best and dice[best] > 0.1:
            terms[word] = best
    return terms


def measure(
    translator: Translator, pairs: list[tuple[str, str]], terms: dict[str, str], beam: int
) -> str:
    """Return a line of figures of plain translations, and those with the glossary."""
    lines, references = zip(*pairs, strict=True)

    def run(glossary: dict[str, str] | None = None) -> tuple[float, list[list[Output]]]:
        start = time.process_time()
        found = translator.search(lines, beam=beam, glossary=glossary)
        return time.process_time() - start, found

    run()
    run(terms)
    rounds = [(run(), run(terms), run()) for _ in range(3)]
    plain, constrained = rounds[0][0][1], rounds[0][1][1]
    seconds = [statistics.median(each[i][0] for each in rounds) for i in range(3)]
    scores = (
        corpus_bleu([best.text for best, *_ in found], [references]).score
        for found in (plain, constrained)
    )
    missing = sum(len(best.missing_terms or ()) for best, *_ in constrained)
    ratio = 2 * seconds[1] / (seconds[0] + seconds[2])
    bleu = " and ".join(f"{score:.2f}" for score in scores)
    return f"{len(lines)} lines, {missing} terms missing, BLEU {bleu}, {ratio:.2f} times plain"


def main() -> None:
    """Print the figures of both glossaries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--beam", type=int, nargs="+", default=[4, 1])
    args = parser.parse_args()
    test = read(args.data, "test_2016_flickr")
    terms = find_terms(read(args.data, "train"), test)
    translator = Translator.load(args.model, device="cpu", threads=1)
    plain = translator.translate([english for english, _ in test], beam=4)
    absent = {
        word: german
        for word, german in terms.items()
        if any(
            word in words(e) and german not in words(p)
            for (e, _), p in zip(test, plain, strict=True)
        )
    }
    for name, choices in (("A", terms), ("B", absent)):
        chosen = dict(random.Random(1).sample(sorted(choices.items()), _NUM_TERMS))
        with_terms = [pair for pair in test if words(pair[0]) & chosen.keys()]
        for beam in args.beam:
            print(name, beam, measure(translator, with_terms, chosen, beam), flush=True)


if __name__ == "__main__":
    main()
