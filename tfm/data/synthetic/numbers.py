"""Write numbers as English and German words."""


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
