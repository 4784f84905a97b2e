"""Declaring settings, and refusing values and combinations of them."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from tfm.config.suggestions import did_you_mean
from tfm.config.values import Values, check_table, shown
from tfm.errors import refuse

T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound="Settings")

# Limits that groups share. Every number has limits far beyond its useful values, so that a typing
# mistake is refused at once instead of exhausting memory or overflowing.
MAX_COUNT = 1_000_000_000  # steps, epochs, tokens and the like
MAX_LENGTH = 10_000  # tokens of a sentence; attention needs memory for its square
MAX_MINUTES = 10 * 366 * 24 * 60  # ten years
MAX_THREADS = 1024
MAX_SEED = 2**63 - 1
THREADS_HELP = "Total number of CPU threads; if unset, OMP_NUM_THREADS or one per idle core."


class TomlTable(dict[str, Any]):
    """The content of a TOML file, with the place of each key in it."""

    def __init__(
        self, content: Values, *, path: Path, lines: Mapping[tuple[str, ...], int]
    ) -> None:
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


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a setting; a parameter of a command has them in its `Annotated` type.

    Attributes:
        needs: Names without which it has no effect; one of them is enough.
        excludes: Names that cannot be given together with it.
        only: The names that it depends on, with the values of each that give it an effect.
        limits: The least and the most that it may be.
    """

    needs: Sequence[str] = ()
    excludes: Sequence[str] = ()
    only: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    limits: tuple[float | None, float | None] = (None, None)

    def about(self, names: Collection[str]) -> "Rules":
        """Return only the rules about some names."""
        return Rules(
            needs=self.needs if any(name in names for name in self.needs) else (),
            excludes=[name for name in self.excludes if name in names],
            only={name: values for name, values in self.only.items() if name in names},
        )


@dataclass(frozen=True)
class Problem:
    """What is wrong with a setting or parameter.

    Attributes:
        name: The name of the setting.
        text: A message with the names of settings.
        is_idle: Whether it has no effect beside others.
        others: The names of further settings in the message.
    """

    name: str
    text: str
    is_idle: bool = False
    others: Sequence[str] = ()

    def __str__(self) -> str:
        return self.text

    def with_flags(self, flags: Mapping[str, str]) -> "Problem":
        """Return the problem with the flags of settings instead of their names."""
        names = "|".join(name for name in (self.name, *self.others) if name in flags)
        label = re.compile(rf"(?<![\w.'-])({names})(?: \(--[\w-]+\)| in \[\w+\])?(?![\w-])")
        text = label.sub(lambda found: flags[found[1]], self.text) if names else self.text
        return replace(self, text=text)


class Given(NamedTuple):
    """A value, or a fact about a call, under its name in messages."""

    label: str
    value: Any
    rules: Rules = Rules()
    is_default: bool = False

    @property
    def is_on(self) -> bool:
        """Whether the value asks for something: not None, False, empty, or the least count."""
        if isinstance(self.value, Sized):
            return len(self.value) > 0
        if self.value is None or self.value is False:
            return False
        return bool(self.value != self.rules.limits[0] or self.value < 0)


def find_problems(given: Mapping[str, Given]) -> Iterator[Problem]:
    """Yield the broken rules of some values; rules about absent names do not count."""
    for name, each in given.items():
        if each.is_default:
            continue
        label, rules = each.label, each.rules
        if (limit := _broken_limit(each.value, *rules.limits)) is not None:
            yield Problem(name, f"{label} is {limit}")
        needed = [given[other] for other in rules.needs if other in given]
        if needed and not any(other.is_on for other in needed):
            names = " or ".join(other.label for other in needed)
            more = "give both" if len(needed) == 1 else "add one of them"
            text = f"{label} has no effect without {names}: leave it out, or {more}"
            yield Problem(name, text, is_idle=True, others=rules.needs)
        for other, values in rules.only.items():
            if other in given and (lack := _lacking(given[other], values)) is not None:
                text = f"{label} has no effect {lack}: leave it out"
                yield Problem(name, text, is_idle=True, others=[other])
        for other in rules.excludes:
            if other in given and not given[other].is_default:
                # The word that a parameter without a flag has taken may be meant for another.
                word = f" ({each.value})" if label.isupper() else ""
                text = f"{label}{word} and {given[other].label} exclude each other: give one"
                yield Problem(name, text, others=[other])


def _broken_limit(value: Any, least: float | None, most: float | None) -> str | None:
    """Return a value, and the limit that it breaks, in words; None if it breaks none."""
    if not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}, but must be a finite number"
    if least is not None and value < least:
        return f"{shown(value)}, but must be at least {least}"
    if most is not None and value > most:
        return f"{shown(value)}, but must be at most {most}"
    return None


def _lacking(other: Given, choices: Sequence[Any]) -> str | None:
    """Return in words that a value, or each of several, is not among the choices; None if it is."""
    values = other.value if isinstance(other.value, list | tuple) else [other.value]
    if any(value in choices for value in values):
        return None
    if other.value is None:
        return f"without {other.label} {' or '.join(choices)}"
    return f"on {other.label} {' and '.join(values)}, only on {' and '.join(choices)}"


def setting(
    default: T,
    help_text: str,
    *,
    flag: str | None = None,
    limits: tuple[float | None, float | None] = (None, None),
    common: bool = False,
    metavar: str | None = None,
    needs: Sequence[str] = (),
    excludes: Sequence[str] = (),
    only: Mapping[str, Sequence[Any]] = {},
) -> T:
    """Declare one setting: its default, a line of help with its unit, and its least and most.

    The command-line flag is the name with dashes unless `flag` is given. Commands with many
    settings show the common settings in --help, and the others in --help-all. The help names the
    value `metavar`, by default after its type. The other arguments are as in `Rules`.
    """
    rules = Rules(needs=needs, excludes=excludes, only=only, limits=limits)
    metadata = {"help": help_text, "flag": flag, "common": common, "metavar": metavar}
    return field(default=default, metadata={**metadata, "rules": rules})


def count(default: T, help_text: str, *, most: int = MAX_COUNT, **options: Any) -> T:
    """Declare a setting that is a number from 1 to `most`; arguments as in `setting`."""
    return setting(default, help_text, limits=(1, most), **options)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of all groups of settings: checks their values.

    A group names its section of TOML files: `class GroupConfig(Settings, section="group")`.
    """

    section: ClassVar[str] = ""

    def __init_subclass__(cls, section: str | None = None) -> None:
        cls.section = section or cls.section

    def problems(self, names: Collection[str] = ()) -> Iterator[Problem]:
        """Yield the problems of the values; `names` are checked even if they are defaults."""
        broken = [*find_problems(self.given(names))]
        yield from broken
        known = {each.name for each in broken if not each.is_idle}
        yield from (each for each in self._contradictions() if each.name not in known)

    def given(self, names: Collection[str] = ()) -> dict[str, Given]:
        """Return the values; `names` count as given, even if they equal the default."""
        given = {}
        for item in fields(self):
            value, rules = getattr(self, item.name), item.metadata["rules"]
            is_default = value == item.default and not (item.name in names and value)
            given[item.name] = Given(label_of(item), value, rules, is_default)
        return given

    def _contradictions(self) -> Iterator[Problem]:
        """Yield the conflicts between settings that `Rules` cannot express."""
        yield from ()


def check_facts(groups: Iterable[Settings], facts: Mapping[str, Any]) -> None:
    """Raise UsageError if settings of some groups have no effect beside each other, or facts.

    Facts are about a call, by their names in messages.
    """
    given = {name: Given(name, value) for name, value in facts.items()}
    for group in groups:
        given |= group.given()
    refuse(find_problems(given))


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
    given: Values,
    elsewhere: Mapping[str, str] = {},
    *,
    without: Collection[str] = (),
) -> dict[str, dict[str, Any]]:
    """Sort the settings that a call names into {section: {name: value}}; None is not a value.

    A setting may also have the name of its flag: `beam` instead of `beam_size`. A setting
    that several groups have is set in all their sections.

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
            # Numbers and arrays of NumPy and torch become numbers and lists of Python.
            values[name] = value.tolist() if hasattr(value, "tolist") else value
    refuse(problems)
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        for section in sorted(sections[name]):
            tables.setdefault(section, {})[name] = value
    return tables


def settings_from(kind: type[SettingsT], table: Values, names: Collection[str] = ()) -> SettingsT:
    """Build one group of settings from a table; `names` count as set, even to their default."""
    settings, problems = settings_and_problems(kind, table, names=names)
    refuse(problems)
    return settings


def merged(kind: type[SettingsT], defaults: Values, given: Values) -> SettingsT:
    """Build a group from given settings over defaults, without defaults that do not fit them."""
    settings, problems = settings_and_problems(kind, {**defaults, **given}, names=given)
    return settings_from(kind, merged_table(kind, defaults, given), given) if problems else settings


def merged_table(kind: type[Settings], defaults: Values, given: Values) -> dict[str, Any]:
    """Return given settings over defaults, without defaults that they exclude or leave idle."""
    excluded = excluded_by(kind, given)
    table = {name: value for name, value in defaults.items() if name not in excluded} | {**given}
    values, _ = check_table(kind, table)
    idle = {each.name for each in kind(**values).problems() if each.is_idle} - given.keys()
    return {name: value for name, value in table.items() if name not in idle}


def excluded_by(kind: type[Settings], names: Collection[str]) -> set[str]:
    """Return the settings that exclude some of these names, or are excluded by them."""
    pairs = [
        (item.name, other) for item in fields(kind) for other in item.metadata["rules"].excludes
    ]
    pairs += [(other, name) for name, other in pairs]
    return {other for name, other in pairs if name in names}


def settings_to(settings: Settings) -> dict[str, Any]:
    """Return the table from which `settings_from` builds the same settings, without unset ones."""
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}


def settings_and_problems(
    kind: type[SettingsT],
    table: Values,
    places: Mapping[str, str] = {},
    elsewhere: Mapping[str, str] = {},
    names: Collection[str] = (),
) -> tuple[SettingsT, list[Problem]]:
    """Build one group of settings; return it with its problems.

    Takes the arguments of `check_table`, and `names` of settings that are set in any case.
    """
    where = f"[{kind.section}]"
    values, wrong = check_table(kind, table, where=where, places=places, elsewhere=elsewhere)
    settings = kind(**values)
    problems = (
        replace(each, text=f"{places.get(each.name, '')}{each.text}")
        for each in settings.problems(names)
    )
    return settings, [*map(Problem, wrong, wrong.values()), *problems]
