"""Generate English-German sentence pairs in disjoint splits."""

import hashlib
from collections.abc import Iterator
from random import Random

from tfm.data.manifest import Split
from tfm.data.synthetic import phrases
from tfm.data.synthetic.phrases import Pair, english_number, german_number

_HELD_OUT_PERCENT = 10
_INFORMAL_RATE = 0.25

# English subject and verb, German subject, German verb.
_CLAUSES = (
    ("I am buying", "ich", "kaufe"),
    ("I am selling", "ich", "verkaufe"),
    ("he is buying", "er", "kauft"),
    ("he is looking for", "er", "sucht"),
    ("she is selling", "sie", "verkauft"),
    ("she is looking for", "sie", "sucht"),
    ("we are buying", "wir", "kaufen"),
    ("we are looking for", "wir", "suchen"),
    ("they are selling", "sie", "verkaufen"),
)


def generate_pairs(split: Split, *, num_pairs: int, seed: int) -> Iterator[Pair]:
    """Generate distinct (English, German) sentence pairs.

    A hash of the English sentence determines its split, so that splits of any size and seed are
    disjoint. A smaller number of pairs gives a prefix of a larger one.
    """
    random = Random(seed)  # noqa: S311 - a corpus is no secret
    seen: set[str] = set()
    while len(seen) < num_pairs:
        english, german = _pair(random)
        if english not in seen and split_of(english) == split:
            seen.add(english)
            yield english, german


def split_of(english: str) -> Split:
    """Return the split to which an English sentence belongs."""
    percent = int.from_bytes(hashlib.sha256(english.encode()).digest()[:8], "big") % 100
    if percent < _HELD_OUT_PERCENT:
        return "test"
    return "valid" if percent < 2 * _HELD_OUT_PERCENT else "train"


def _pair(random: Random) -> Pair:
    # Long numbers and whole sentences are more frequent, because dates are few.
    writers = (_number, _date, _meeting, _cost, _purchase, _dated_purchase)
    [write] = random.choices(writers, weights=(30, 10, 10, 20, 15, 15))
    return write(random)


def _number(random: Random) -> Pair:
    number = random.randrange(10 ** random.choice((1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 7)))
    return english_number(number), german_number(number)


def _date(random: Random) -> Pair:
    """Write a date, or a sentence with a date."""
    english, german = phrases.date(random)
    year, german_year = phrases.year(random)
    return random.choice(
        (
            phrases.on_date(random),
            phrases.days(random),
            (f"{english} {year}", f"{german} {german_year}"),
            _sentence(random, f"today is {english}", f"heute ist {german}"),
        )
    )


def _meeting(random: Random) -> Pair:
    """Write when we meet; after a day, the German verb comes before its subject."""
    time, german_time = phrases.time(random)
    day, german_day = _opening(random)
    english, german = f"we are meeting at {time}", f"wir treffen uns um {german_time}"
    dated, german_dated = f"{day} {english}", f"{german_day} treffen wir uns um {german_time}"
    # Both sentences are drawn, in this order, before one is chosen: the corpus must not change.
    return random.choice(
        (_sentence(random, english, german), _sentence(random, dated, german_dated))
    )


def _cost(random: Random) -> Pair:
    """Write what something costs; the verb agrees with the thing in number."""
    english, german, are_several = phrases.things(random, "nominative")
    price, german_price = phrases.price(random)
    verb, german_verb = ("cost", "kosten") if are_several else ("costs", "kostet")
    return _sentence(random, f"{english} {verb} {price}", f"{german} {german_verb} {german_price}")


def _purchase(random: Random) -> Pair:
    """Write who buys or sells what, and for how much."""
    clause, subject, verb = random.choice(_CLAUSES)
    english, german = phrases.goods(random)
    price, german_price = phrases.price(random)
    german = f"{subject} {verb} {german} für {german_price}"
    return _sentence(random, f"{clause} {english} for {price}", german)


def _dated_purchase(random: Random) -> Pair:
    """Write who buys what on which day; after it, the German verb comes before its subject."""
    day, german_day = _opening(random)
    clause, subject, verb = random.choice(_CLAUSES)
    english, german = phrases.goods(random)
    return _sentence(random, f"{day} {clause} {english}", f"{german_day} {verb} {subject} {german}")


def _opening(random: Random) -> Pair:
    """Write the day that opens a sentence; a date in it is enclosed in commas."""
    english, german = phrases.on_date(random)
    return (f"{english},", f"{german},") if "," in english else (english, german)


def _sentence(random: Random, english: str, german: str) -> Pair:
    """Capitalize and punctuate a sentence, except for an informal fraction."""
    if random.random() < _INFORMAL_RATE:
        return english, german
    return f"{english[0].upper()}{english[1:]}.", f"{german[0].upper()}{german[1:]}."
