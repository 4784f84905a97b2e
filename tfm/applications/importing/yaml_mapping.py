"""The part of YAML that Marian writes: a mapping of scalars or lists of scalars.

A vocabulary maps each piece to its id, and settings are plain values.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_mapping(text: str) -> dict[str, str | Sequence[str]]:
    """Return the values of a YAML mapping as text, by key."""
    found: dict[str, str | Sequence[str]] = {}
    try:
        # Events instead of objects, so that nothing is nested or expanded.
        events = yaml.parse(text, Loader=_LOADER)
        for kind in (yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.MappingStartEvent):
            _checked(next(events), kind)
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = _checked(event, yaml.ScalarEvent)
            if key.value in found:
                raise ValueError(f"line {_line(key.start_mark)} has a key again")
            found[key.value] = _value(events)
    except yaml.YAMLError as error:
        raise ValueError(
            f"line {_line(getattr(error, 'problem_mark', None))} is not YAML"
        ) from error
    return found


def _value(events: Iterator[Any]) -> str | Sequence[str]:
    """Return the next value, a scalar or a list of scalars."""
    event = _checked(next(events), (yaml.ScalarEvent, yaml.SequenceStartEvent))
    if isinstance(event, yaml.ScalarEvent):
        return str(event.value)
    items = []
    while not isinstance(event := next(events), yaml.SequenceEndEvent):
        items.append(str(_checked(event, yaml.ScalarEvent).value))
    return items


def _checked(event: Any, kind: Any) -> Any:
    """Return an event; raise ValueError unless it is of a kind, without anchor and tag."""
    if not isinstance(event, kind) or getattr(event, "anchor", None) or getattr(event, "tag", None):
        raise ValueError(f"line {_line(event.start_mark)} is not YAML as Marian writes it")
    return event


def _line(mark: Any) -> int:
    return 1 if mark is None else mark.line + 1
