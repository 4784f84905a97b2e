"""The names of languages, and the identifier of the language of a text, which is an extra."""

import importlib.util
from functools import cache
from typing import TYPE_CHECKING

from tfm.errors import UsageError, install_command

if TYPE_CHECKING:
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
    "yi:Yiddish yo:Yoruba zh:Chinese zu:Zulu"
)


def name_of(code: str) -> str:
    """Return the English name of a language."""
    return dict(pair.split(":") for pair in _NAMES.split()).get(code, code)


def can_identify() -> bool:
    """Return whether the identifier is installed."""
    return importlib.util.find_spec("py3langid") is not None


@cache
def language_identifier(purpose: str) -> "LanguageIdentifier":
    """Return the identifier; raise UsageError if it is not installed, with what needs it."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise UsageError(
            f"{purpose} needs py3langid, which is not installed ({error}): "
            f"run {install_command('langid')}"
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
