"""Declaring settings, checking tables of TOML and JSON against them, and suggesting names."""

import math
import os
import reprlib
import tomllib
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from tfm.errors import UsageError, list_problems

WordKind = Literal["flags", "commands", "needless_flags", "needless_commands"]

_MAX_LENGTH = 100  # longer names are no typo, and comparing them takes time


@cache
def words_of_toolkits(kind: WordKind) -> Mapping[str, str]:
    """Return a table of words of other toolkits, separated by spaces, and of what they mean."""
    file = resources.files("tfm.config") / "words.toml"
    words: Mapping[str, str] = tomllib.loads(file.read_text(encoding="utf-8"))[kind]
    return words


def suggest(word: str, choices: Iterable[str], kind: WordKind = "flags") -> list[str]:
    """Return the valid names that a word stands for, abbreviates, or is close to.

    Args:
        word: A flag, argument, setting or command that does not exist.
        choices: The valid names; case, leading dashes and underscores do not matter.
        kind: Where to look for words that stand for a name.
    """
    words = words_of_toolkits(kind)
    names = {_bare(name): name for name in choices}
    bare = _bare(word)
    return (
        [name for key, name in names.items() if bare in words.get(key, "").split()]
        or [name for key, name in names.items() if key.startswith(bare)]
        or [names[key] for key in get_close_matches(bare, names, n=1)]
    )


def _bare(name: str) -> str:
    return name[:_MAX_LENGTH].lstrip("-").replace("_", "-").lower()


T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound="Settings")

Table = Mapping[str, Any]

# A float in a record that is NaN or infinite if training diverged; others must be finite.
Measured = Annotated[float, "may be NaN"]

# Limits that groups share. Every number has limits far beyond its useful values, so that a mistyped
# one is refused at once instead of exhausting memory or overflowing.
MAX_COUNT = 1_000_000_000  # steps, epochs, tokens and the like
MAX_LENGTH = 10_000  # tokens of a sentence; attention needs memory for its square
MAX_MINUTES = 10 * 366 * 24 * 60  # ten years
MAX_THREADS = 1024
MAX_SEED = 2**63 - 1
THREADS_HELP = "Total number of CPU threads; if unset, OMP_NUM_THREADS or one per idle core."

_MAX_INTEGER = 2**63 - 1
_MAX_TEXT = 4096  # characters, as in the longest path
MAX_UNKNOWN = 20  # unknown names to report: finding similar names takes time
_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
}


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
    limits: tuple[float, float] | tuple[None, None] = (None, None),
    common: bool = False,
    metavar: str | None = None,
) -> T:
    """Declare one setting: its default, a line of help with its unit, and its least and most.

    The command-line flag is the name with dashes unless `flag` is given. Commands with many
    settings show the common settings in --help, and the others in --help-all. The help names the
    value `metavar`, by default after its type.
    """
    at_least, at_most = limits
    metadata = {"help": help_text, "at_least": at_least, "at_most": at_most}
    return field(
        default=default, metadata={**metadata, "flag": flag, "common": common, "metavar": metavar}
    )


def count(
    default: T,
    help_text: str,
    *,
    most: int = MAX_COUNT,
    flag: str | None = None,
    common: bool = False,
) -> T:
    """Declare a setting that is a number from 1 to `most`; arguments as in `setting`."""
    return setting(default, help_text, flag=flag, limits=(1, most), common=common)


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
                yield f"{label_of(item)} is {value}, but must be a finite number"
                continue
            if low is not None and value < low:
                yield f"{label_of(item)} is {shown(value)}, but must be at least {low}"
            if high is not None and value > high:
                yield f"{label_of(item)} is {shown(value)}, but must be at most {high}"
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


def expected_value(hint: Any) -> str:
    """Return what a value of a type must be, in words."""
    kinds = [hint, *typing.get_args(hint)]
    literals = [
        typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is typing.Literal
    ]
    if literals:
        return f"one of {', '.join(map(str, literals[0]))}"
    named = (words for kind, words in _TYPE_NAMES.items() if kind in kinds)
    return next(named, f"a {getattr(hint, '__name__', 'value')}")


def flag_of(item: Field[Any]) -> str:
    """Return the command-line flag of a setting."""
    flag: str | None = item.metadata["flag"]
    return flag or "--" + item.name.replace("_", "-")


def label_of(item: Field[Any]) -> str:
    """Return the name of a setting for messages, with its flag if that has another name."""
    flag: str | None = item.metadata["flag"]
    return item.name if flag is None else f"{item.name} ({flag})"


def by_section(
    kinds: Iterable[type[Settings]],
    given: Table,
    elsewhere: Mapping[str, str] = {},
    *,
    without: Collection[str] = (),
) -> dict[str, dict[str, Any]]:
    """Sort the settings that a call names into {section: {name: value}}; None is not a value.

    A setting may also have the name of its flag: `beam` instead of `beam_size`. One that several
    groups have is set in the sections of all of them.

    Args:
        kinds: The groups of settings that may be given.
        given: Values by name.
        elsewhere: Other names that may be meant, each with the words to suggest.
        without: Settings of the groups that may not be given.
    """
    names: dict[str, str] = {}
    sections: dict[str, set[str]] = {}
    for kind in kinds:
        for item in (item for item in fields(kind) if item.name not in without):
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
            # Numbers and arrays of NumPy and torch become those of Python.
            values[name] = value.tolist() if hasattr(value, "tolist") else value
    if problems:
        raise UsageError(list_problems(problems))
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        for section in sorted(sections[name]):
            tables.setdefault(section, {})[name] = value
    return tables


def settings_from(kind: type[SettingsT], table: Table) -> SettingsT:
    """Build one group of settings from a table."""
    settings, problems = settings_and_problems(kind, table)
    if problems:
        raise UsageError(list_problems(problems))
    return settings


def merged(kind: type[Settings], defaults: Table, given: Table) -> dict[str, Any]:
    """Merge given settings over defaults, without defaults that have no effect beside them."""
    table = {**defaults, **given}
    _, problems = settings_and_problems(kind, table)
    idle = {each.split()[0] for each in problems if "has no effect" in each} - given.keys()
    return {name: value for name, value in table.items() if name not in idle}


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

    Takes the arguments of `check_table`.
    """
    where = f"[{kind.section}]"
    values, problems = check_table(kind, table, where=where, places=places, elsewhere=elsewhere)
    settings = kind(**values)
    problems += [f"{places.get(each.split()[0], '')}{each}" for each in settings.problems()]
    return settings, problems


def from_table(kind: type[T], table: Table) -> T:
    """Build a dataclass from a JSON object."""
    values, problems = check_table(kind, table)
    if problems:
        raise ValueError("; ".join(problems))
    return kind(**values)


def check_table(
    kind: type[Any],
    table: Table,
    *,
    where: str = "",
    places: Mapping[str, str] = {},
    elsewhere: Mapping[str, str] = {},
) -> tuple[dict[str, Any], list[str]]:
    """Convert the values of a table to the types of the fields of a dataclass.

    Fields may be text, numbers, flags, a Literal, a tuple of any length or a pair, a mapping, or a
    dataclass. Text may have a pattern, and words for it in messages:
    `Annotated[str, re.compile("[a-z]+"), "lower-case letters"]`. Integers are counts from 0 on and
    floats finite unless they are `Measured`, except in settings, which declare their limits.

    Args:
        kind: The dataclass.
        table: Values by name. A value that is a dataclass is taken as it is.
        where: Name of the table in messages.
        places: File and line of values by name, such as "x.toml:3: "; messages start with them.
        elsewhere: Fields of other tables by name, such as "dropout in [model]", to suggest.

    Returns:
        The correct values by name, and a message for each unknown, missing or wrong one.
    """
    is_settings = issubclass(kind, Settings)
    noun = "setting" if is_settings else "key"
    inside = f" in {where}" if where else ""
    hints = _hints_of(kind)  # type: ignore[arg-type]  # mypy says that types have no hash
    names = [item.name for item in fields(kind)]
    problems = [
        f"{places.get(name, '')}unknown {noun} {shown(name)}{inside}: "
        + did_you_mean(name, names, elsewhere, "choose from")
        for name in islice((name for name in table if name not in names), MAX_UNKNOWN)
    ]
    values: dict[str, Any] = {}
    for item in fields(kind):
        name = item.name
        try:
            if name in table:
                label = f"{name}{inside}"
                values[name] = convert(table[name], hints[name], label, is_count=not is_settings)
            elif item.default is item.default_factory is MISSING:
                raise ValueError(f"{name} is missing{inside}")
        except ValueError as error:
            problems.append(f"{places.get(name, '')}{error}")
    return values, problems


@cache  # evaluating hints takes as long as a step of a small model
def _hints_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def differences(before: Table, after: Table) -> list[str]:
    """Describe each value that differs between two tables, by its name."""
    return [
        f"{name} was {before.get(name, 'unset')}, not {after.get(name, 'unset')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def did_you_mean(
    name: str, choices: Sequence[str], elsewhere: Mapping[str, str], introduction: str
) -> str:
    """Return the advice about an unknown name: the names that it may mean, or else all of them."""
    if found := suggest(name, choices) or [elsewhere[other] for other in suggest(name, elsewhere)]:
        return f"did you mean {' or '.join(found)}?"
    return f"{introduction} {', '.join(choices)}"


def convert(value: Any, hint: Any, label: str, *, is_count: bool = False) -> Any:
    """Convert a value to a type, as `check_table` does."""
    kinds = typing.get_args(hint)
    if hint is Any or is_dataclass(value):
        return value
    match typing.get_origin(hint):
        case None:
            value = _convert_plain(_as_path(value, hint), hint, label, is_count=is_count)
            if is_count and hint is float and not math.isfinite(value):
                raise _wrong(label, value, "a finite number")
            return value
        case types.UnionType | typing.Union:
            return None if value is None else convert(value, kinds[0], label, is_count=is_count)
        case typing.Annotated if kinds[0] is float:
            return _convert_plain(value, float, label, is_count=is_count)
        case typing.Annotated:
            is_valid = isinstance(value, str) and kinds[1].fullmatch(value)
            expected = kinds[2] if len(kinds) > 2 else f"of the form {kinds[1].pattern}"
        case typing.Literal:
            is_valid = type(value) in map(type, kinds) and value in kinds
            expected = expected_value(hint)
        case _:
            return _convert_items(value, hint, label, is_count=is_count)
    if not is_valid:
        raise _wrong(label, value, expected)
    return value


def _as_path(value: Any, hint: type[Any]) -> Any:
    """Return text as a path, or a path as text, where it has that type and there is such a path."""
    if isinstance(value, os.PathLike) and hint in (str, Path):
        value = os.fspath(value)
    with suppress(UnicodeError):
        if hint is Path and isinstance(value, str) and b"\0" not in os.fsencode(value):
            return Path(value)
    return value


def _convert_items(value: Any, hint: Any, label: str, *, is_count: bool) -> Any:
    """Convert a list to a tuple, or the values of a table."""
    first, last = typing.get_args(hint)

    def converted(key: object, item: Any, kind: Any) -> Any:
        return convert(item, kind, f"{label}[{shown(key)}]", is_count=is_count)

    if typing.get_origin(hint) is not tuple:
        if isinstance(value, Mapping):
            return {key: converted(key, item, last) for key, item in value.items()}
        raise _wrong(label, value, "a table")
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    items = list(value) if is_list else []
    if is_list and (last is ... or len(items) == 2):
        return tuple(converted(number, item, first) for number, item in enumerate(items))
    raise _wrong(label, value, "a list" if last is ... else "a list of 2")


def _convert_plain(value: Any, hint: type[Any], label: str, *, is_count: bool) -> Any:
    """Convert text, a number, a flag or a dataclass."""
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong(label, value, "a table")
        try:
            return from_table(hint, value)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from error
    if hint is float and type(value) is int:
        if abs(value) > _MAX_INTEGER:
            raise _wrong(label, value, f"from {-_MAX_INTEGER} to {_MAX_INTEGER}")
        return float(value)
    if not isinstance(value, hint) or isinstance(value, bool) != (hint is bool):
        raise _wrong(label, value, _TYPE_NAMES[hint])
    if is_count and hint is int and not 0 <= value <= _MAX_INTEGER:
        raise _wrong(label, value, f"from 0 to {_MAX_INTEGER}")
    if hint is str and len(value) > _MAX_TEXT:
        raise _wrong(label, value, f"at most {_MAX_TEXT:,} characters")
    return value


def _wrong(label: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{label} is {shown(value)}, but must be {expected}")
