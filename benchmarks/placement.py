"""Check where markup is placed, on generated documents.

    python benchmarks/placement.py captions --model MODEL [--reverse MODEL]
    python benchmarks/placement.py purchases --model MODEL [--reverse MODEL]
    python benchmarks/placement.py documents --model MODEL --number 10000

Captions, for models of Multi30k, and purchases, for models of numbers-en-de, are English sentences
with their German translations and the words that belong together. Elements around words of the
source should be around the words that translate them; the given translations are aligned by the
model, as in "tfm generate --format html". "documents" translates random documents
of the tests, and counts those that break a rule: a tag that is not once in the output, tags that
are not nested, and other bytes that have changed.
"""

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/features/formats")]

import phrases  # noqa: E402
from test_formats import new_document, violations, written  # noqa: E402

from tfm.commands.translator import Translator  # noqa: E402
from tfm.features.align.step import Align  # noqa: E402
from tfm.features.documents.step import Sentences  # noqa: E402
from tfm.features.formats.step import Formats  # noqa: E402
from tfm.folders.model_folder import ModelFolder  # noqa: E402
from tfm.translation.chain import Part as ChainPart  # noqa: E402
from tfm.translation.steps import Output, Segment  # noqa: E402

# Parts of captions in English and German. Each + is one more English word: "im" means "in the".
_PERSONS = "men Männer, women Frauen, children Kinder, dogs Hunde, girls Mädchen, boys Jungen"
_LOOKS = "young junge, old alte, small kleine, big große"
_VERBS = "play spielen, sit sitzen, stand stehen, sleep schlafen, run laufen, work arbeiten"
_COUNTS = "two zwei, three drei, four vier, five fünf, 12 12, 35 35"
_PLACES = {
    "on the street": "auf der Straße",
    "in the water": "im+ Wasser",
    "on a bench": "auf einer Bank",
    "in front of a building": "vor++ einem Gebäude",
    "on the beach": "am+ Strand",
    "in the snow": "im+ Schnee",
}
_CLOTHES = {
    "in red shirts": "in roten Hemden",
    "with blue hats": "mit blauen Hüten",
    "with white balls": "mit weißen Bällen",
}


class Sentence(NamedTuple):
    """A sentence and its translation."""

    source: list[str]
    target: list[str]
    meanings: list[set[int]]  # of each word of the target, the words of the source


class Part(NamedTuple):
    """Words of the source, and words of the target with the words of the part that they mean."""

    source: list[str]
    target: list[tuple[str, set[int]]]


def word_by_word(source: str, target: str) -> Part:
    """Return a part whose n-th words belong together, but for those with a +."""
    words, at = [], 0
    for word in target.split():
        size = 1 + word.count("+")
        words.append((word.rstrip("+"), set(range(at, at + size))))
        at += size
    return Part(source.split(), words)


def as_whole(source: str, target: str) -> Part:
    """Return a part all of whose words belong together."""
    words = source.split()
    return Part(words, [(each, set(range(len(words)))) for each in target.split()])


def joined(parts: Sequence[Part], order: Sequence[int]) -> Sentence:
    """Join parts in the order of the source; `order` is that of the target."""
    starts = [sum(len(part.source) for part in parts[:n]) for n in range(len(parts))]
    words = [
        (word, {starts[n] + at for at in meaning})
        for n in order
        for word, meaning in parts[n].target
    ]
    source = [word for part in parts for word in part.source]
    target = [word for word, _ in words]
    for side in (source, target):
        side[0] = side[0][0].upper() + side[0][1:]
    return Sentence(source, target, [meaning for _, meaning in words])


def new_caption(draw: random.Random) -> Sentence:
    """Return a caption; in every second translation, the place comes first."""

    def pick(words: str) -> Part:
        return word_by_word(*draw.choice(phrases.word_pairs(words)))

    subject = [pick(_COUNTS), pick(_LOOKS), pick(_PERSONS)]
    if draw.random() < 0.5:
        subject.append(word_by_word(*draw.choice(list(_CLOTHES.items()))))
    place = word_by_word(*draw.choice(list(_PLACES.items())))
    parts, num = [*subject, pick(_VERBS), place], len(subject)
    is_inverted = draw.random() < 0.5
    return joined(parts, [num + 1, num, *range(num)] if is_inverted else range(num + 2))


def new_purchase(draw: random.Random) -> Sentence:
    """Return a sentence with a date, numbers and a price, as in the recipe numbers-en-de."""
    weekday = draw.choice(phrases.word_pairs("Monday Montag, Tuesday Dienstag, Friday Freitag"))
    day, (month, german_month) = (
        draw.randint(1, 31),
        draw.choice(phrases.word_pairs("March März, May Mai, July Juli, October Oktober")),
    )
    ordinal = f"{phrases.german_ordinal_stem(day)}en"
    english, german = phrases.english_ordinal(day), german_month
    date = Part([*f"the {english} of {month}".split()], [(ordinal, {0, 1}), (german, {2, 3})])
    opening = draw.choice(
        ([Part(["on"], [("am", {0})]), Part([weekday[0]], [(weekday[1], {0})])],
         [Part(["on"], [("am", {0})]), date])
    )  # fmt: skip
    verb, german_verb = draw.choice((("buying", "kauft"), ("selling", "verkauft")))
    subject = draw.choice(("she sie", "he er")).split()
    count, euros = draw.randint(2, 99), draw.randint(2, 99)
    look, noun = draw.choice(phrases.ADJECTIVES), draw.choice(phrases.NOUNS)
    parts = [
        *opening,
        as_whole(*subject),
        as_whole(f"is {verb}", german_verb),
        as_whole(phrases.english_number(count), phrases.german_number(count)),
        as_whole(look[0], f"{look[1]}e"),
        as_whole(noun.english_plural, noun.german_plural),
        as_whole("for", "für"),
        as_whole(phrases.english_number(euros), phrases.german_number(euros)),
        as_whole("euros", "Euro"),
    ]
    # The German verb comes before its subject.
    return joined(parts, [0, 1, 3, 2, *range(4, len(parts))])


SENTENCES = {"captions": new_caption, "purchases": new_purchase}


def elements(draw: random.Random, sentence: Sentence) -> list[tuple[int, int]]:
    """Return runs of words of the source, which do not overlap, that are runs of the target."""
    found: list[tuple[int, int]] = []
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(len(sentence.source))
        end = min(len(sentence.source), start + draw.randint(1, 3))
        inside = [bool(each & set(range(start, end))) for each in sentence.meanings]
        split = any(each & set(range(start, end)) and not each <= set(range(start, end))
                    for each in sentence.meanings)  # fmt: skip
        first, last = inside.index(True), len(inside) - inside[::-1].index(True)
        if all(inside[first:last]) and not split and all(end <= a or b <= start for a, b in found):
            found.append((start, end))
    return sorted(found)


def marked(words: Sequence[str], runs: Sequence[tuple[int, int]]) -> str:
    """Return a sentence with an element around each run."""
    texts = list(words)
    for number, (start, end) in enumerate(runs):
        texts[start] = f'<b id="{number}">{texts[start]}'
        texts[end - 1] += "</b>"
    return " ".join(texts)


def words_inside(text: str) -> dict[int, set[int]]:
    """Return the numbers of the words within each element of a translation."""
    found: dict[int, set[int]] = {}
    number, current = 0, -1
    for token in re.findall(r"<[^>]*>|[^<\s]+", text):
        if token.startswith("<b"):
            current = int(re.findall(r"\d+", token)[0])
            found[current] = set()
        elif token.startswith("<"):
            current = -1
        else:
            if current >= 0:
                found[current].add(number)
            number += 1
    return found


def placed(text: str, model: str, reverse: str | None, number: int) -> dict[str, object]:
    """Place the elements of sentences, and compare the words in them with the right ones."""
    draw = random.Random(1)
    sentences = [SENTENCES[text](draw) for _ in range(number)]
    runs = [elements(draw, each) for each in sentences]
    document = "\n".join(
        f"<p>{marked(c.source, run)}.</p>" for c, run in zip(sentences, runs, strict=True)
    )
    aligner = Align.of(ModelFolder.open(Path(model)), reverse, "cpu")
    part = ChainPart.of([Segment(1, document)], [Formats("html", aligner), Sentences("en", "de")])
    outputs = [[Output(" ".join(each.target) + ".", -1.0, -1.0, ("x",))] for each in sentences]
    [[best]] = part.finish(outputs)
    counts: Counter[str] = Counter()
    for sentence, run, line in zip(sentences, runs, best.text.split("\n"), strict=True):
        found = words_inside(line.removesuffix(".</p>").removeprefix("<p>"))
        for index, (start, end) in enumerate(run):
            wanted = set(range(start, end))
            right = {at for at, each in enumerate(sentence.meanings) if each & wanted}
            counts["elements"] += 1
            counts["exact"] += found[index] == right
            counts["both"] += len(found[index] & right)
            counts["found"] += len(found[index])
            counts["right"] += len(right)
    precision, recall = (counts["both"] / counts[name] for name in ("found", "right"))
    return {
        "sentences": number,
        "elements": counts["elements"],
        "exactly right": round(counts["exact"] / counts["elements"], 3),
        "precision": round(precision, 3),
        "recall": round(recall, 3),
        "f1": round(2 * precision * recall / (precision + recall), 3),
    }


def documents(model: str, reverse: str | None, number: int) -> dict[str, object]:
    """Translate random documents, and count the violations of each rule."""
    translator = Translator.load(model, device="cpu")
    counts: Counter[str] = Counter()
    for start in range(0, number, 200):
        batch = [
            new_document(random.Random(seed), points=True)
            for seed in range(start, min(number, start + 200))
        ]
        texts = ["".join(_written(parts)) for parts in batch]
        separator = '\n<hr id="next">\n'
        found = translator.translate_text(
            separator.join(texts), format="html", align_reverse=reverse, beam=1, max_extra_length=1
        ).split(separator)
        assert len(found) == len(batch)
        for parts, text in zip(batch, found, strict=True):
            counts.update(
                {rule: int(is_broken) for rule, is_broken in violations(parts, text).items()}
            )
        print(start + len(batch), dict(counts), file=sys.stderr, flush=True)
    return {"documents": number, **counts}


def _written(parts: Sequence[object]) -> Iterator[str]:
    for part in parts:
        yield written(part) if isinstance(part, list) else str(part)


def main() -> None:
    """Run one of the checks, and print its figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("check", choices=[*SENTENCES, "documents"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--reverse")
    parser.add_argument("--number", type=int, default=1_000)
    options = parser.parse_args()
    check = documents if options.check == "documents" else partial(placed, options.check)
    print(json.dumps(check(options.model, options.reverse, options.number)))


if __name__ == "__main__":
    main()
