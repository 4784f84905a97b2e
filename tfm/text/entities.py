"""HTML entities in plain text, where they are mostly mistakes."""

import html
import re

from tfm.config.normalization import BREAKS

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_MAX_ESCAPES = 3


def decode_entities(text: str) -> str:
    """Return a text with HTML entities as characters, even if their & is an entity itself."""
    for _ in range(_MAX_ESCAPES):
        decoded = _ENTITY.sub(_decoded, text) if "&" in text else text
        if decoded == text:
            break
        text = decoded
    return text


def _decoded(entity: re.Match[str]) -> str:
    """Return the character of an entity; entities of no character stay as they are."""
    decoded = html.unescape(entity[0])
    return BREAKS.sub(" ", decoded) if decoded.strip("\ufffd") else entity[0]
