"""Declaring settings, checking them, and reading a group of them from a table."""

import math
import reprlib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from tfm.config.suggestions import suggest
from tfm.errors import UsageError, list_problems

T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound="Settings")

Table = Mapping[str, Any]

_MAX_INTEGER = 2**63 - 1
MAX_UNKNOWN = 20  # unknown names to report: finding similar names takes time


class TomlTable(dict[str, Any]):
    """The content of a TOML file, with the place of each key in it."""

    def __init__(self, content: Table, *, path: Path, lines: Mapping[tuple[str, ...], int]) -> None:
        super().__init__(content)
        self._path = path
        self._lines = lines

    def place(self, *keys: str) -> str:
        """Return file and line of a key in a section, such as "x.toml:3: ".

        The N-th table under [[name]] is the section "name", "N". A key that the file does not have
        is at the line of its section.
        """
        lines = (self._lines.get(keys[:size]) for size in range(len(keys), 0, -1))
        line = next(filter(None, lines), None)
        return f"{self._path}: " if line is None else f"{self._path}:{line}: "


def setting(
    default: T,
    help_text: str,
    *,
    flag: str | None = None,
    ge: float | None = None,
    le: float | None = None,
    common: bool = False,
) -> T:
    """Declare one setting: its default, a line of help with its unit, and its limits.

    The command-line flag is the name with dashes unless `flag` is given. Commands with many
    settings show in --help those that are common, and the others in --help-all.
    """
    metadata = {
        "help": help_text,
        "flag": flag,
        "at_least": ge,
        "at_most": le,
        "common": common,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of all groups of settings: checks their values.

    A group names its section of TOML files: `class GroupConfig(Settings, section="group")`.
    """

    section: ClassVar[str] = ""

    def __init_subclass__(cls, section: str | None = None) -> None:
        cls.section = section or cls.section

    def problems(self) -> Iterator[str]:
        """Yield a message for each value out of range, with its limit, and for each conflict.

        Each message starts with the name of the setting to change.
        """
        for item in fields(self):
            value = getattr(self, item.name)
            low, high = item.metadata["at_least"], item.metadata["at_most"]
            if value is None or isinstance(value, str):
                continue
            if isinstance(value, float) and not math.isfinite(value):
                yield f"{item.name} is {value}, but must be a finite number"
                continue
            if low is not None and value < low:
                yield f"{item.name} is {shown(value)}, but must be at least {low}"
            if high is not None and value > high:
                yield f"{item.name} is {shown(value)}, but must be at most {high}"
        yield from self._conflicts()

    def _conflicts(self) -> Iterator[str]:
        """Yield a message for each pair of settings that contradict each other."""
        yield from ()


def shown(value: Any) -> str:
    """Format a value for a message, shortened if it is long."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to format integers of thousands of digits
        return "a number of thousands of digits"


def flag_of(item: Field[Any]) -> str:
    """Return the command-line flag of a setting."""
    flag: str | None = item.metadata["flag"]
    return flag or "--" + item.name.replace("_", "-")


def by_section(
    kinds: Iterable[type[Settings]], given: Table, elsewhere: Mapping[str, str] = {}
) -> dict[str, dict[str, Any]]:
    """Sort the settings that a call names into {section: {name: value}}; None is not a value.

    A setting may also have the name of its flag: `beam` instead of `beam_size`. One that several
    groups have is set in the sections of all of them.

    Args:
        kinds: The groups of settings that may be given.
        given: Values by name.
        elsewhere: Other names that may be meant, each with the words to suggest.

    Raises:
        UsageError: Names are unknown, or two are those of one setting; one message lists all.
    """
    names: dict[str, str] = {}
    sections: dict[str, set[str]] = {}
    for kind in kinds:
        for item in fields(kind):
            names |= dict.fromkeys((item.name, flag_of(item)[2:].replace("-", "_")), item.name)
            sections.setdefault(item.name, set()).add(kind.section)
    problems = []
    values: dict[str, Any] = {}
    for given_name, value in given.items():
        if given_name not in names:
            advice = did_you_mean(given_name, list(names), elsewhere, "choose from")
            problems.append(f"unknown setting {shown(given_name)}: {advice}")
        elif value is not None:
            name = names[given_name]
            if name in values:
                problems.append(f"{name} is given twice, under two names: leave one out")
            values[name] = value
    if problems:
        raise UsageError(list_problems(problems))
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        for section in sorted(sections[name]):
            tables.setdefault(section, {})[name] = value
    return tables


def settings_from(kind: type[SettingsT], table: Table) -> SettingsT:
    """Build one group of settings from a table.

    Raises:
        UsageError: Names are unknown, or values of the wrong type or out of range; one message
            lists all of them.
    """
    settings, problems = settings_and_problems(kind, table)
    if problems:
        raise UsageError(list_problems(problems))
    return settings


def settings_to(settings: Settings) -> dict[str, Any]:
    """Return the table from which `settings_from` builds the same settings, without unset ones."""
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}


def settings_and_problems(
    kind: type[SettingsT],
    table: Table,
    places: Mapping[str, str] = {},
    elsewhere: Mapping[str, str] = {},
) -> tuple[SettingsT, list[str]]:
    """Build one group of settings; return it with a message for each problem.

    Args:
        kind: The group.
        table: Values by name.
        places: File and line of values by name, such as "x.toml:3: "; messages start with them.
        elsewhere: Settings of other groups by name, such as "dropout in [model]", to suggest.
    """
    hints = typing.get_type_hints(kind)
    known = [item.name for item in fields(kind)]
    problems = [
        f"{places.get(name, '')}unknown setting {shown(name)} in [{kind.section}]: "
        + did_you_mean(name, known, elsewhere, "choose from")
        for name in islice((name for name in table if name not in known), MAX_UNKNOWN)
    ]
    values: dict[str, Any] = {}
    for name in known:
        if name not in table:
            continue
        try:
            values[name] = _convert(table[name], hints[name])
        except TypeError as error:
            problems.append(f"{places.get(name, '')}{kind.section}.{name} {error}")
    settings = kind(**values)
    problems += [f"{places.get(each.split()[0], '')}{each}" for each in settings.problems()]
    return settings, problems


def did_you_mean(
    name: str, known: Sequence[str], elsewhere: Mapping[str, str], introduction: str
) -> str:
    """Return the advice about an unknown name: the names that it may mean, or else all of them."""
    if found := suggest(name, known) or [elsewhere[other] for other in suggest(name, elsewhere)]:
        return f"did you mean {' or '.join(found)}?"
    return f"{introduction} {', '.join(known)}"


def _convert(value: Any, hint: Any) -> Any:
    """Convert a TOML value to the type of its setting."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            known = ", ".join(typing.get_args(hint))
            raise TypeError(f"is {shown(value)}, but must be one of {known}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _MAX_INTEGER:
            raise TypeError(f"is {shown(value)}, which is too large")
        return float(value)
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise TypeError(f"is {shown(value)}, but must be of type {hint.__name__}")
