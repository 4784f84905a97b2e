"""Write English and German phrases: numbers as words, things, prices, dates and times."""

from dataclasses import dataclass
from random import Random
from typing import Literal, get_args


def word_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Parse pairs of words from a list such as "one eins, two zwei"."""
    return tuple((first, second) for first, second in map(str.split, text.split(",")))


_UNITS = word_pairs(
    "zero null, one eins, two zwei, three drei, four vier, five fünf, six sechs, seven sieben, "
    "eight acht, nine neun, ten zehn, eleven elf, twelve zwölf, thirteen dreizehn, "
    "fourteen vierzehn, fifteen fünfzehn, sixteen sechzehn, seventeen siebzehn, "
    "eighteen achtzehn, nineteen neunzehn"
)
_TENS = word_pairs(
    "twenty zwanzig, thirty dreißig, forty vierzig, fifty fünfzig, sixty sechzig, "
    "seventy siebzig, eighty achtzig, ninety neunzig"
)
_SCALES = ((1_000_000, "million"), (1_000, "thousand"), (100, "hundred"))
_IRREGULAR_ENGLISH_ORDINALS = dict(
    word_pairs(
        "one first, two second, three third, five fifth, eight eighth, nine ninth, twelve twelfth"
    )
)
_IRREGULAR_GERMAN_ORDINAL_STEMS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}


def english_number(number: int) -> str:
    """Write a cardinal number below a hundred million in British English words."""
    if number < 20:
        return _UNITS[number][0]
    if number < 100:
        tens, unit = divmod(number, 10)
        return _TENS[tens - 2][0] + (f"-{_UNITS[unit][0]}" if unit else "")
    value, name = next(scale for scale in _SCALES if number >= scale[0])
    count, rest = divmod(number, value)
    words = f"{english_number(count)} {name}"
    if not rest:
        return words
    return f"{words} {'and ' if rest < 100 else ''}{english_number(rest)}"


def german_number(number: int) -> str:
    """Write a cardinal number below a hundred million in German words, as used for counting."""
    millions, rest = divmod(number, 1_000_000)
    if not millions:
        return _german_compound(number)
    words = "eine Million" if millions == 1 else f"{_german_compound(millions)} Millionen"
    return f"{words} {_german_compound(rest)}" if rest else words


def german_count(number: int) -> str:
    """Write a German number before a noun, where "eins" loses its s."""
    word = _german_compound(number)
    return word.removesuffix("s") if number % 100 == 1 else word


def english_ordinal(number: int) -> str:
    """Write an ordinal number from 1 to 99 in English words."""
    start, dash, last = english_number(number).rpartition("-")
    if last.endswith("y"):
        ordinal = last.removesuffix("y") + "ieth"
    else:
        ordinal = _IRREGULAR_ENGLISH_ORDINALS.get(last, last + "th")
    return start + dash + ordinal


def german_ordinal_stem(number: int) -> str:
    """Write an ordinal number from 1 to 99 in German words, without its inflectional ending."""
    if number < 20:
        return _IRREGULAR_GERMAN_ORDINAL_STEMS.get(number, german_number(number) + "t")
    return german_number(number) + "st"


def _german_compound(number: int) -> str:
    """Write a number below a million, which is one German word."""
    if number < 20:
        return _UNITS[number][1]
    if number < 100:
        tens, unit = divmod(number, 10)
        return (f"{german_count(unit)}und" if unit else "") + _TENS[tens - 2][1]
    value, name = (1_000, "tausend") if number >= 1_000 else (100, "hundert")
    count, rest = divmod(number, value)
    return german_count(count) + name + (_german_compound(rest) if rest else "")


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
