"""Write English and German phrases: things, prices, dates and times."""

from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from tfm.data.synthetic.numbers import (
    english_number,
    english_ordinal,
    german_count,
    german_number,
    german_ordinal_stem,
    word_pairs,
)

Pair = tuple[str, str]
Case = Literal["nominative", "accusative", "dative"]
Gender = Literal["masculine", "feminine", "neuter"]
Form = Literal["masculine", "feminine", "neuter", "plural"]

# (English, German, last day that exists in every year)
_MONTHS = (
    *(("January", "Januar", 31), ("February", "Februar", 28), ("March", "März", 31)),
    *(("April", "April", 30), ("May", "Mai", 31), ("June", "Juni", 30)),
    *(("July", "Juli", 31), ("August", "August", 31), ("September", "September", 30)),
    *(("October", "Oktober", 31), ("November", "November", 30), ("December", "Dezember", 31)),
)
_WEEKDAYS = word_pairs(
    "Monday Montag, Tuesday Dienstag, Wednesday Mittwoch, Thursday Donnerstag, Friday Freitag, "
    "Saturday Samstag, Sunday Sonntag"
)
_MINUTES = (("five", "fünf"), ("ten", "zehn"), ("quarter", "Viertel"), ("twenty", "zwanzig"))


@dataclass(frozen=True)
class Noun:
    """A countable thing that can be bought."""

    gender: Gender
    english: str
    english_plural: str
    german: str
    german_plural: str


def _nouns(gender: Gender, text: str) -> tuple[Noun, ...]:
    return tuple(Noun(gender, *forms.split()) for forms in text.split(","))


NOUNS = (
    *_nouns(
        "masculine",
        "apple apples Apfel Äpfel, ball balls Ball Bälle, coat coats Mantel Mäntel, "
        "hat hats Hut Hüte, key keys Schlüssel Schlüssel, pot pots Topf Töpfe",
    ),
    *_nouns(
        "feminine",
        "bag bags Tasche Taschen, bottle bottles Flasche Flaschen, clock clocks Uhr Uhren, "
        "flower flowers Blume Blumen, lamp lamps Lampe Lampen, pear pears Birne Birnen",
    ),
    *_nouns(
        "neuter",
        "book books Buch Bücher, dress dresses Kleid Kleider, egg eggs Ei Eier, "
        "knife knives Messer Messer, picture pictures Bild Bilder, shirt shirts Hemd Hemden",
    ),
)
ADJECTIVES = word_pairs(
    "beautiful schön, big groß, black schwarz, blue blau, cheap billig, green grün, new neu, "
    "old alt, red rot, small klein, white weiß, yellow gelb"
)
_CONTAINERS = (
    *_nouns("masculine", "basket baskets Korb Körbe"),
    *_nouns("feminine", "box boxes Kiste Kisten"),
    *_nouns("neuter", "package packages Paket Pakete"),
)


def _inflections(*rows: str) -> dict[str, dict[str, str]]:
    """Return {case: {form: word or ending}} from rows in the order of `Case` and of `Form`."""
    by_form = (dict(zip(get_args(Form), row.split(), strict=False)) for row in rows)
    return dict(zip(get_args(Case), by_form, strict=True))


_DEFINITE = _inflections("der die das die", "den die das die", "dem der dem den")
_INDEFINITE = _inflections("ein eine ein", "einen eine ein", "einem einer einem")
_ENDING_AFTER_DEFINITE = _inflections("e e e en", "en e e en", "en en en en")
_ENDING_AFTER_COUNT = _inflections("er e es e", "en e es e", "en en en en")


def things(random: Random, case: Case) -> tuple[str, str, bool]:
    """Write one or several things; return English, German in the case, and if it is plural."""
    number = random.choice((1, random.randrange(2, 13), random.randrange(2, 100)))
    english, german = noun_phrase(
        random.choice(NOUNS),
        random.choice(ADJECTIVES) if random.random() < 0.8 else None,
        case=case,
        number=number,
        is_definite=random.random() < 0.4,
    )
    return english, german, number > 1


def noun_phrase(
    noun: Noun, adjective: Pair | None, *, case: Case, number: int, is_definite: bool
) -> Pair:
    """Write a noun with its article or number, and inflect the German words for the case.

    The German adjective is given without its ending. `is_definite` makes the article "the", instead
    of "a" or the number.
    """
    form: Form = noun.gender if number == 1 else "plural"
    endings = _ENDING_AFTER_DEFINITE if is_definite else _ENDING_AFTER_COUNT
    english = noun.english if number == 1 else noun.english_plural
    german = noun.german if number == 1 else _german_plural(noun, case)
    if adjective is not None:
        look, stem = adjective
        english, german = f"{look} {english}", f"{stem}{endings[case][form]} {german}"
    if is_definite:
        return f"the {english}", f"{_DEFINITE[case][form]} {german}"
    if number == 1:
        article = "an" if english[0] in "aeiou" else "a"
        return f"{article} {english}", f"{_INDEFINITE[case][noun.gender]} {german}"
    return f"{english_number(number)} {english}", f"{german_number(number)} {german}"


def goods(random: Random) -> Pair:
    """Write something to buy in the accusative, maybe a container with things in the dative."""
    if random.random() < 0.7:
        english, german, _ = things(random, "accusative")
        return english, german
    english, german, _ = things(random, "dative")
    container = random.choice(_CONTAINERS)
    article = _INDEFINITE["accusative"][container.gender]
    return f"a {container.english} with {english}", f"{article} {container.german} mit {german}"


def price(random: Random) -> Pair:
    """Write an amount of money in the accusative."""
    euros = random.choice((random.randrange(1, 100), random.randrange(1, 20) * 50))
    amounts = [(euros, "euro", "Euro"), (random.randrange(1, 100), "cent", "Cent")]
    amounts = random.choice((amounts, amounts[:1], amounts[1:]))
    english = (f"{english_number(n)} {unit}{'s' if n > 1 else ''}" for n, unit, _ in amounts)
    german = (f"{german_number(n) if n > 1 else 'einen'} {unit}" for n, _, unit in amounts)
    return " and ".join(english), " und ".join(german)


def date(random: Random) -> Pair:
    """Write a day of the year in the nominative."""
    month, german_month, last_day = random.choice(_MONTHS)
    day = random.randint(1, last_day)
    return (
        f"the {english_ordinal(day)} of {month}",
        f"der {german_ordinal_stem(day)}e {german_month}",
    )


def on_date(random: Random) -> Pair:
    """Write the day on which something happens."""
    month, german_month, last_day = random.choice(_MONTHS)
    day = random.randint(1, last_day)
    weekday, german_weekday = random.choice(_WEEKDAYS)
    english = f"the {english_ordinal(day)} of {month}"
    german = f"{german_ordinal_stem(day)}en {german_month}"
    return random.choice(
        (
            (f"on {english}", f"am {german}"),
            (f"on {weekday}", f"am {german_weekday}"),
            (f"on {weekday}, {english}", f"am {german_weekday}, dem {german}"),
        )
    )


def days(random: Random) -> Pair:
    """Write a range of days in a month."""
    month, german_month, last_day = random.choice(_MONTHS)
    first, last = sorted(random.sample(range(1, last_day + 1), 2))
    return (
        f"from the {english_ordinal(first)} to the {english_ordinal(last)} of {month}",
        f"vom {german_ordinal_stem(first)}en bis zum {german_ordinal_stem(last)}en {german_month}",
    )


def year(random: Random) -> Pair:
    """Write a year; both languages count the 1900s in hundreds."""
    number = random.randrange(1910, 2030)
    century, remainder = divmod(number, 100)
    german = german_number(number)
    if century == 19:
        german = f"{german_number(century)}hundert{german_number(remainder)}"
    if remainder < 10:
        return english_number(number), german
    return f"{english_number(century)} {english_number(remainder)}", german


def time(random: Random) -> Pair:
    """Write a time of day; "half past two" is "halb drei", half of the third hour, in German."""
    hour = random.randrange(1, 13)
    minutes, german_minutes = random.choice(_MINUTES)
    side, german_side = random.choice((("past", "nach"), ("to", "vor")))
    return random.choice(
        (
            (f"{english_number(hour)} o'clock", f"{german_count(hour)} Uhr"),
            (f"half past {english_number(hour)}", f"halb {german_number(hour % 12 + 1)}"),
            (
                f"{minutes} {side} {english_number(hour)}",
                f"{german_minutes} {german_side} {german_number(hour)}",
            ),
        )
    )


def _german_plural(noun: Noun, case: Case) -> str:
    """Return the plural; the dative adds an n, except after n or s."""
    takes_n = case == "dative" and not noun.german_plural.endswith(("n", "s"))
    return noun.german_plural + ("n" if takes_n else "")
