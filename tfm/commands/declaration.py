"""Declaring a command: a function whose signature and docstring also make its flags and help.

Types of parameters may have marks, `Annotated[TYPE, MARK, …]`: a `Flag`, `Rules`, a function that
checks the value and returns it, or an `OutputPath`, for what the command writes: the other paths
are read. A tuple of any length is a repeatable flag, and in Python one or several.
"""

import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from tfm.config import Settings, Values, by_section
from tfm.config.schema import Given, Rules, find_problems, label_of
from tfm.config.values import convert
from tfm.disk.paths import (
    OutputPath,
    check_outputs,
    existing_file,
    existing_folder,
    files_of_command,
)
from tfm.errors import UsageError, refuse

T = TypeVar("T")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
TextPairs = tuple[tuple[Path, Path], ...]  # source and target file of each text

_PATH_KINDS = (Path | None, tuple[Path, ...], TextPairs)  # of parameters that may be text in Python
_PATH_METAVARS = ("FILE", "MODEL", "PATH")  # of settings
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_SECTION = re.compile(r"\n\n(Args|Returns|Yields|Raises|Note):\n")
_EXAMPLES = re.compile(r"^Examples::\n\n((?:    .*\n?)+)", re.MULTILINE)


@dataclass(frozen=True)
class Flag:
    """How the command line shows a parameter, where that does not follow from the signature.

    Keywords have flags, other parameters are arguments without a flag.

    Attributes:
        metavar: The name of the value in the help; by default after its type.
        name: The flag; by default the name of the parameter, with "-" for "_".
        hidden: Whether only --help-all shows it.
        panel: The section of the help.
        choices: What the values may be, for the help and for completion.
        default: What the help shows as the default in place of None.
        kind: The type on the command line of a parameter that may be more in Python. It has a flag
            in any case, and the function itself checks it.
    """

    metavar: str | None = None
    name: str | None = None
    hidden: bool = False
    panel: str | None = None
    choices: Callable[[], Iterable[str]] | None = None
    default: Any = None
    kind: Any = None


Hidden = Annotated[T, Flag(hidden=True)]
ExistingFile = Annotated[Path | None, existing_file]
ExistingFolder = Annotated[Path | None, existing_folder]
NewFile = Annotated[Path | None, OutputPath(), Flag("FILE")]
NewFolder = Annotated[Path | None, OutputPath(is_folder=True)]
Dataset = Annotated[ExistingFolder, Flag("DATA")]
Share = Annotated[str | None, Flag("I/N")]

_MAX_FILES = 100  # in a list of Python: a longer one has lines of text


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command, as read from its annotation and its entry in "Args:"."""

    name: str
    hint: Any
    default: Any
    help: str
    flag: Flag
    has_flag: bool
    checks: tuple[Callable[[Any], Any], ...]
    output: OutputPath | None
    rules: Rules

    @classmethod
    def of(cls, parameter: inspect.Parameter, help_text: str) -> "Parameter":
        """Read the marks of a parameter."""
        hint: Any = parameter.annotation
        marks: list[Any] = []
        if typing.get_origin(hint) is Annotated:
            hint, *marks = typing.get_args(hint)
        given = [vars(each) for each in marks if isinstance(each, Flag)]
        flag = Flag(**{name: value for each in given for name, value in each.items() if value})
        return cls(
            name=parameter.name,
            hint=hint,
            default=parameter.default,
            help=help_text,
            flag=flag,
            has_flag=parameter.kind is parameter.KEYWORD_ONLY or flag.kind is not None,
            checks=tuple(each for each in marks if callable(each)),
            output=next((each for each in marks if isinstance(each, OutputPath)), None),
            rules=next((each for each in marks if isinstance(each, Rules)), Rules()),
        )

    @property
    def flag_name(self) -> str:
        """The name of its flag."""
        return self.flag.name or "--" + self.name.replace("_", "-")

    def is_default(self, value: Any) -> bool:
        """Return whether a value is the default; a list of a Python user is not."""
        return isinstance(value, str | int | float | Path) and value == self.default

    def paths(self, value: Any) -> Iterator[Path]:
        """Yield the paths in a value; in Python, text may be in place of some."""
        return _paths(value, of_text=self.flag.kind in _PATH_KINDS)

    def checked(self, value: Any) -> Any:
        """Return a value as the type of the parameter; raise UsageError if it is of another."""
        if self.flag.kind is not None:
            return value
        if value is None and self.default is not inspect.Parameter.empty:
            value = self.default
        if is_repeatable(self.hint):
            kind = typing.get_args(self.hint)[0]
            value = tuple(argument(self.name, each, kind) for each in one_or_several(value))
        else:
            value = argument(self.name, value, self.hint)
        for check in self.checks:
            value = check(value)
        return value


@dataclass(frozen=True)
class Declaration:
    """The declaration of a command, read from the signature and the docstring of a function.

    Attributes:
        help: The docstring before its sections, with examples as the command line shows them.
        signature: The signature, with types without marks.
        parameters: The parameters by name.
        groups: The groups of settings that the function also takes as keywords.
        without: Names of settings in these groups that it does not take.
        elsewhere: Names that are no parameters, and the words to suggest for them.
    """

    help: str
    signature: inspect.Signature
    parameters: Mapping[str, Parameter]
    groups: tuple[type[Settings], ...]
    without: Collection[str]
    elsewhere: Mapping[str, str]

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *groups: type[Settings],
        without: Collection[str] = (),
        elsewhere: Mapping[str, str] = {},
    ) -> "Declaration":
        """Read the declaration of a function; the other arguments become attributes."""
        text, *sections = _SECTION.split(inspect.getdoc(function) or "")
        described = dict(zip(sections[::2], sections[1::2], strict=True)).get("Args", "")
        entries = dict(_ENTRY.findall(described))
        signature = inspect.signature(function)
        known = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        others = {n for n, p in known.items() if p.kind is p.POSITIONAL_ONLY}
        if wrong := (known.keys() ^ entries.keys()) - others:
            raise TypeError(f"{function.__qualname__}: {wrong} in Args: or the signature only")
        parameters = {
            name: Parameter.of(each, " ".join(entries[name].split()))
            for name, each in known.items()
            if name not in others
        }
        shown = [
            each.replace(annotation=parameters[name].hint) if name in parameters else each
            for name, each in signature.parameters.items()
        ]
        return cls(
            help=_EXAMPLES.sub(_shown_examples, text),
            signature=signature.replace(parameters=shown),
            parameters=parameters,
            groups=groups,
            without=without,
            elsewhere=elsewhere,
        )

    def settings(self) -> dict[str, dict[type[Settings], Field[Any]]]:
        """Return the settings by name, each with the groups that have it."""
        found: dict[str, dict[type[Settings], Field[Any]]] = {}
        for kind in self.groups:
            for item in fields(kind):
                if item.name not in self.without:
                    found.setdefault(item.name, {})[kind] = item
        return found

    def inputs(self, values: Mapping[str, Any]) -> Iterator[Path]:
        """Yield the paths that a call reads, by the values of parameters and settings."""
        for name, each in self.parameters.items():
            if each.output is None:
                yield from each.paths(values.get(name))
        for name, items in self.settings().items():
            metavar, value = next(iter(items.values())).metadata["metavar"], values.get(name)
            if metavar == "COMMAND" and isinstance(value, str):
                yield from files_of_command(value)
            elif metavar in _PATH_METAVARS:
                yield from _paths(value, of_text=True)

    def checked(self, *args: Any, **keywords: Any) -> dict[str, Any]:
        """Return the arguments of a call as the types of the parameters.

        The argument "settings" has the settings of all groups: {section: {name: value}}.
        """
        bound = self.signature.bind(*args, **keywords)
        bound.apply_defaults()
        given = bound.arguments
        checked = {name: each.checked(given[name]) for name, each in self.parameters.items()}
        outputs = [
            replace(each.output, path=path, flag=each.flag_name)
            for name, each in self.parameters.items()
            if each.output is not None
            for path in each.paths(checked[name])
        ]
        check_outputs(outputs, self.inputs(checked | given.get("settings", {})))
        names = {name: name for name in self.parameters} | {**self.elsewhere}
        tables = by_section(self.groups, given.get("settings", {}), names, without=self.without)
        refuse(find_problems(self._given(checked, tables)))
        if not self.groups:
            return checked
        return checked | {"settings": {kind.section: {} for kind in self.groups} | tables}

    def _given(self, checked: Values, tables: Mapping[str, Values]) -> dict[str, Given]:
        """Return the arguments and settings of a call, without rules of settings about settings.

        These rules are checked once the settings of a file or a model are known, too.
        """
        given = {}
        for name, each in self.parameters.items():
            label = each.flag_name if each.has_flag else each.flag.metavar or name
            is_off = checked[name] is False and each.default is True
            label = label.replace("--", "--no-") if is_off else label
            value = Given(label, checked[name], each.rules)
            is_default = not (value.is_on or is_off) or each.is_default(value.value)
            given[name] = value._replace(is_default=is_default)
        for name, items in self.settings().items():
            [(kind, item), *_] = items.items()
            value = tables.get(kind.section, {}).get(name, item.default)
            rules = item.metadata["rules"].about(self.parameters)
            given[name] = Given(label_of(item), value, rules, is_default=value == item.default)
        return given


def _paths(value: Any, *, of_text: bool) -> Iterator[Path]:
    """Yield the paths in a value, which may be a list; a string is a path if `of_text`."""
    if isinstance(value, os.PathLike) or (of_text and isinstance(value, str)):
        yield Path(value)
    elif isinstance(value, list | tuple) and len(value) <= _MAX_FILES:
        for each in value:
            yield from _paths(each, of_text=of_text)


def _shown_examples(match: re.Match[str]) -> str:
    """Return a literal block of reStructuredText as the command line shows it."""
    return "\b\nExamples:\n" + re.sub("^    ", "  ", match[1], flags=re.MULTILINE)


def command(
    *groups: type[Settings], without: Collection[str] = (), elsewhere: Mapping[str, str] = {}
) -> Callable[[FunctionT], FunctionT]:
    """Make a command of a function, with keywords for the settings of some groups.

    It may be called with arguments of any type, and runs with arguments of the declared types. Its
    `**settings` are by section then: {"search": {"beam_size": 4}}. The arguments are attributes of
    a `Declaration`.
    """

    def decorate(function: FunctionT) -> FunctionT:
        declaration = Declaration.of(function, *groups, without=without, elsewhere=elsewhere)

        @functools.wraps(function)
        def run(*args: Any, **keywords: Any) -> Any:
            arguments = declaration.checked(*args, **keywords)
            settings = arguments.pop("settings", {})
            return function(**arguments, **settings)

        run.declaration = declaration  # type: ignore[attr-defined]
        run.__signature__ = declaration.signature  # type: ignore[attr-defined]
        return cast("FunctionT", run)

    return decorate


def declaration_of(function: Callable[..., Any]) -> Declaration:
    """Return the declaration of a command."""
    return cast("Declaration", function.declaration)  # type: ignore[attr-defined]


def is_repeatable(hint: Any) -> bool:
    """Return whether a type is a tuple of any length."""
    return typing.get_origin(hint) is tuple and typing.get_args(hint)[-1] is ...


def argument(name: str, value: Any, hint: Any) -> Any:
    """Return the value of an argument as the type of its hint, as `convert` does."""
    # Numbers and arrays of NumPy and torch become numbers and lists of Python.
    value = value.tolist() if hasattr(value, "tolist") else value
    try:
        return convert(value, hint, name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def one_or_several(value: Any) -> list[Any]:
    """Return an iterable as a list, one path or text as a list of it, and None as an empty list."""
    if value is None:
        return []
    is_one = isinstance(value, str | bytes | os.PathLike | Mapping)
    return [value] if is_one or not isinstance(value, Iterable) else list(value)
