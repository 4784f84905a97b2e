"""Languages by their codes, and the identifier of the language of a text, which is an extra.

Text comes with many codes for one language: zh, zho_Hans, cmn and zh-CN. Whatever depends on the
language asks the functions of this module, which return the same for all of them.
"""

import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from tfm.errors import UsageError, install_command
from tfm.text.tags import tagged_language

if TYPE_CHECKING:
    from langcodes import Language
    from py3langid.langid import LanguageIdentifier

# ISO 639 codes with their names; other codes are shown as they are.
_NAMES = (
    "af:Afrikaans am:Amharic ar:Arabic az:Azerbaijani be:Belarusian bg:Bulgarian bn:Bengali "
    "bs:Bosnian ca:Catalan cs:Czech cy:Welsh da:Danish de:German el:Greek en:English "
    "eo:Esperanto es:Spanish et:Estonian eu:Basque fa:Persian fi:Finnish fr:French ga:Irish "
    "gl:Galician gu:Gujarati ha:Hausa he:Hebrew hi:Hindi hr:Croatian hu:Hungarian hy:Armenian "
    "id:Indonesian ig:Igbo is:Icelandic it:Italian ja:Japanese ka:Georgian kk:Kazakh km:Khmer "
    "kn:Kannada ko:Korean ky:Kyrgyz la:Latin lb:Luxembourgish lo:Lao lt:Lithuanian lv:Latvian "
    "mg:Malagasy mk:Macedonian ml:Malayalam mn:Mongolian mr:Marathi ms:Malay mt:Maltese "
    "my:Burmese nb:Norwegian ne:Nepali nl:Dutch nn:Nynorsk no:Norwegian pa:Punjabi pl:Polish "
    "ps:Pashto pt:Portuguese ro:Romanian ru:Russian rw:Kinyarwanda si:Sinhala sk:Slovak "
    "sl:Slovenian so:Somali sq:Albanian sr:Serbian sv:Swedish sw:Swahili ta:Tamil te:Telugu "
    "th:Thai tl:Filipino tr:Turkish uk:Ukrainian ur:Urdu uz:Uzbek vi:Vietnamese xh:Xhosa "
    "yi:Yiddish yo:Yoruba yue:Cantonese zh:Chinese zu:Zulu"
)
_OWN_NAMES = (
    "de:Deutsch es:español fr:français it:italiano nl:Nederlands pl:polski pt:português sv:svenska "
    "tr:Türkçe cs:čeština ru:русский uk:українська ar:العربية he:עברית ja:日本語 ko:한국어 zh:中文"
)


# Marks at the end of a sentence in all scripts; wide ones need no space after them.
WIDE_SENTENCE_MARKS = "。！？｡．"
SENTENCE_MARKS = ".!?…‽\u037e؟۔।॥։።፧။\u17d4\u17d5" + WIDE_SENTENCE_MARKS
CHINESE_SCRIPTS = ("Hani", "Hans", "Hant")
# Others in which words are not separated: Unicode's class SA of line breaks, and two more.
UNSPACED_SCRIPTS = ("Jpan", "Khmr", "Lana", "Laoo", "Mymr", "Tale", "Talu", "Tavt", "Thai", "Tibt")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_SAME = {"fil": "tl"}  # the standard form of Tagalog, whose two-letter code is the usual one
_MACROLANGUAGES = {"nb": "no"}  # as the identifier calls it
_MAX_SHOWN = 4
_LIKELY_SCRIPTS = {"grc": "Grek"}  # CLDR has a much older script


@cache
def base_language(code: str) -> str:
    """Return the ISO 639-1 code of a language, or its ISO 639-3 code if there is none.

    Scripts, regions, case and separators have no effect: zh for zho_Hans, cmn, chi and ZH-cn. What
    is no code of a language, such as "source" or "en+fr", is returned in lower case.
    """
    base = _parsed(code).language or code.lower()
    return _SAME.get(base, base)


def named_language(text: str) -> str | None:
    """Return the code of a language, given by its name or any code; None if it is unknown."""
    pairs = (pair.split(":") for pair in f"{_OWN_NAMES} {_NAMES}".split())
    codes = {name.lower(): code for code, name in pairs}
    code = codes.get(text.lower(), base_language(text))
    return code if code in codes.values() else None


@cache
def script_of(code: str) -> str:
    """Return the ISO 15924 code of the script of a language: Hant for zh-TW; "" if unknown.

    Without a script in the code, it is the usual script of the language.
    """
    from langcodes.data_dicts import LIKELY_SUBTAGS

    language, base = _parsed(code), base_language(code)
    # Language.maximize would take the script of English for unknown languages.
    tags = (f"{base}-{language.territory}", base)
    likely = next((LIKELY_SUBTAGS[tag].split("-")[1] for tag in tags if tag in LIKELY_SUBTAGS), "")
    return language.script or _LIKELY_SCRIPTS.get(base, likely)


def names_script(code: str) -> bool:
    """Return whether the code of a language says in which script it is: sr_Latn and zh-TW do."""
    return bool(_parsed(code).script) or script_of(code) != script_of(base_language(code))


def closest(code: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate for the same language as a code; None if there is none.

    The same code comes first, then a code for the same script. A code that names its script has no
    candidate in another script: sr_Latn is not sr_Cyrl, but sr may be either.
    """
    same = [each for each in candidates if identified_as(each) == identified_as(code)]
    same_script = [each for each in same if script_of(each) == script_of(code)]
    if code in same:
        return code
    return next(iter(same_script or ([] if names_script(code) else same)), None)


def common_codes(codes: Iterable[str]) -> dict[str, str]:
    """Return the common form of each code: zh for zho_Hans, zh-Hant for zho_Hant.

    Codes that only their regions tell apart, such as en_GB and en_US, stay as they are.
    """
    common, regions = {}, defaultdict(set)
    for code in codes:
        base, script = base_language(code), script_of(code)
        common[code] = base if script == script_of(base) else f"{base}-{script}"
        regions[common[code]].add(_parsed(code).territory)
    return {code: each if len(regions[each]) == 1 else code for code, each in common.items()}


def shown_languages(side: str) -> str:
    """Return the languages of a side for messages: of many, the first ones and the number."""
    codes = side.split("+")
    return side if len(codes) <= _MAX_SHOWN else f"{'+'.join(codes[:_MAX_SHOWN])}+… ({len(codes)})"


def are_same(one: str, other: str) -> bool:
    """Return whether a side is in the same languages as another, whatever their codes."""
    sides = [{(base_language(c), script_of(c)) for c in side.split("+")} for side in (one, other)]
    return sides[0] == sides[1]


def target_language(target: str, tag: str | None) -> str:
    """Return the language that a model translates to, which <2fr> or >>fra<< may choose.

    Args:
        target: The target language of the model; several languages are joined by +.
        tag: The tag before each source sentence; None without.
    """
    return closest(tagged_language(tag or ""), target.split("+")) or target


@cache
def _parsed(code: str) -> "Language":
    """Return the parts of a code; CLDR maps cmn and some others to zh."""
    from langcodes import Language  # here, because it takes a tenth of a second
    from langcodes.tag_parser import LanguageTagError

    for text in (code, re.split("[-_]", code)[0]) if "+" not in code else ():
        with suppress(LanguageTagError):
            return Language.get(text).prefer_macrolanguage()
    return Language.make(language=code.lower())


def name_of(code: str) -> str:
    """Return the English name of a language, with its region and less usual script, if any."""
    base = base_language(code)
    name = dict(pair.split(":") for pair in _NAMES.split()).get(base, code)
    script = None if script_of(code) == script_of(base) else script_of(code)
    details = "-".join(filter(None, (script, _parsed(code).territory)))
    return f"{name} ({details})" if details and name != code else name


def identified_as(code: str) -> str:
    """Return the identifier's name for a language."""
    base = base_language(code)
    return _MACROLANGUAGES.get(base, base)


def with_ascii_digits(text: str) -> str:
    """Return a text with the digits of all scripts as 0 to 9, which the identifier knows."""
    return text if text.isascii() else _OTHER_DIGIT.sub(lambda digit: str(int(digit[0])), text)


def can_identify() -> bool:
    """Return whether the identifier is installed."""
    return importlib.util.find_spec("py3langid") is not None


@cache
def language_identifier(purpose: str) -> "LanguageIdentifier":
    """Return the identifier; raise UsageError if it is not installed, with what needs it."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        load = LanguageIdentifier.from_model_file
    except (ImportError, AttributeError) as error:  # of versions before 0.4
        raise UsageError(
            f"{purpose} needs py3langid, which is not installed or too old ({error}): "
            f"run {install_command('langid')}"
        ) from error
    return load(MODEL_FILE, norm_probs=True)
