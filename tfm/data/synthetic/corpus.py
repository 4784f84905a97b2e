"""Sentences, and the split to which each belongs."""

import hashlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Literal

from tfm.data.synthetic import phrases
from tfm.data.synthetic.numbers import english_number, german_number
from tfm.data.synthetic.phrases import Pair

Split = Literal["train", "valid", "test"]

_HELD_OUT_PERCENT = 10
_TYPED_SHARE = 0.25

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
    """Write sentence pairs.

    An English sentence belongs to one split for ever, whatever the seed, so splits of any size
    have none in common. Within a split no sentence comes twice.

    Args:
        split: Which split to write.
        num_pairs: The number of pairs; fewer are a prefix of more.
        seed: Decides which sentences.

    Yields:
        English and German.
    """
    random = Random(seed)  # noqa: S311 - a corpus is no secret
    seen: set[str] = set()
    while len(seen) < num_pairs:
        english, german = _pair(random)
        if english not in seen and split_of(english) == split:
            seen.add(english)
            yield english, german


def split_of(english: str) -> Split:
    """The split to which an English sentence belongs."""
    percent = int.from_bytes(hashlib.sha256(english.encode()).digest()[:8], "big") % 100
    if percent < _HELD_OUT_PERCENT:
        return "test"
    return "valid" if percent < 2 * _HELD_OUT_PERCENT else "train"


def _pair(random: Random) -> Pair:
    """Any pair, long numbers and whole sentences more often than what there is little of."""
    writers: tuple[Callable[[Random], Pair], ...] = (
        _number,
        _date,
        _meeting,
        _cost,
        _purchase,
        _dated_purchase,
    )
    [write] = random.choices(writers, weights=(30, 10, 10, 20, 15, 15))
    return write(random)


def _number(random: Random) -> Pair:
    """A number of up to seven digits."""
    number = random.randrange(10 ** random.choice((1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 7)))
    return english_number(number), german_number(number)


def _date(random: Random) -> Pair:
    """A date by itself, or a sentence that names the day."""
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
    """When we meet; after a day, the German verb comes before its subject."""
    time, german_time = phrases.time(random)
    day, german_day = _opening(random)
    return random.choice(
        (
            _sentence(random, f"we are meeting at {time}", f"wir treffen uns um {german_time}"),
            _sentence(
                random,
                f"{day} we are meeting at {time}",
                f"{german_day} treffen wir uns um {german_time}",
            ),
        )
    )


def _cost(random: Random) -> Pair:
    """What something costs; the verb agrees with the thing."""
    english, german, are_several = phrases.things(random, "nominative")
    price, german_price = phrases.price(random)
    verb, german_verb = ("cost", "kosten") if are_several else ("costs", "kostet")
    return _sentence(random, f"{english} {verb} {price}", f"{german} {german_verb} {german_price}")


def _purchase(random: Random) -> Pair:
    """Who buys what, and for how much."""
    clause, subject, verb = random.choice(_CLAUSES)
    english, german = phrases.goods(random)
    price, german_price = phrases.price(random)
    return _sentence(
        random,
        f"{clause} {english} for {price}",
        f"{subject} {verb} {german} für {german_price}",
    )


def _dated_purchase(random: Random) -> Pair:
    """Who buys what on which day; after the day, the German verb comes before its subject."""
    day, german_day = _opening(random)
    clause, subject, verb = random.choice(_CLAUSES)
    english, german = phrases.goods(random)
    return _sentence(random, f"{day} {clause} {english}", f"{german_day} {verb} {subject} {german}")


def _opening(random: Random) -> Pair:
    """The day at the beginning of a sentence: a day with a date stands between commas."""
    english, german = phrases.on_date(random)
    return (f"{english},", f"{german},") if "," in english else (english, german)


def _sentence(random: Random, english: str, german: str) -> Pair:
    """A sentence as it is printed, or now and then as people type it: no capital, no full stop."""
    if random.random() < _TYPED_SHARE:
        return english, german
    return f"{english[0].upper()}{english[1:]}.", f"{german[0].upper()}{german[1:]}."
