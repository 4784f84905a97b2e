"""Error messages for unknown flags, commands and models, and for flags without a fitting value."""

import errno
import typing
from typing import Any

import typer

from tfm.cli.help import Group
from tfm.config.schema import expected_value, shown, suggest, words_of_toolkits
from tfm.errors import UsageError, explain_os_error


class Commands(Group):
    """A group that lists its commands by panel and suggests one for an unknown name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return typer's result for the command; raise UsageError if there is none."""
        if args[0] == "help":
            words = " ".join([ctx.command_path, *args[1:]])
            raise UsageError(f"no such command help: see {words} --help")
        if self.get_command(ctx, args[0]) is None:
            for words, reason in words_of_toolkits("needless_commands").items():
                if args[0] in words.split():
                    raise UsageError(f"no such command {args[0]}: {reason}")
            known = self.list_commands(ctx)
            found = suggest(args[0], known, "commands")
            advice = _advice(ctx, [f"{ctx.command_path} {name}" for name in found])
            raise UsageError(f"no such command {args[0]}{advice}")
        return super().resolve_command(ctx, args)


def explain_mistake(error: typer.TyperException) -> str:
    """Return typer's message about a command line as one line, in the words of the help."""
    context, name = getattr(error, "ctx", None), getattr(error, "option_name", None)
    if context is not None and name is not None and hasattr(error, "possibilities"):
        return _explain_unknown_option(name, context)
    message = " ".join(error.message.split()).removesuffix(".")
    if context is None:
        return message
    parameters = context.command.params
    known = [each for each in parameters if name in (*each.opts, *each.secondary_opts)]
    parameter = next(iter(known), getattr(error, "param", None))
    if parameter is not None:
        message = _explain_value(parameter, name or parameter.opts[0], message, error, context)
    return f"{message} (see {context.command_path} --help)"


def _explain_value(
    parameter: Any, name: str, message: str, error: Exception, context: typer.Context
) -> str:
    """Return what the value of an argument or flag is, and what it must be."""
    if message.endswith("is not readable"):
        reason = explain_os_error(PermissionError(errno.EACCES, "Permission denied"))
        return f"{message.removeprefix('path ')}: {reason}"
    if parameter.param_type_name == "argument":
        return f"{context.info_name} needs {parameter.metavar}: {parameter.help}".removesuffix(".")
    if getattr(parameter, "is_flag", False):
        return f"{name} takes no value: give {name} alone"
    expected = expected_value(typing.get_type_hints(context.command.callback)[parameter.name])
    wrong: list[Any] = getattr(error.__cause__, "errors", list)()  # of pydantic, which typer uses
    if wrong:
        return f"{name} is {shown(wrong[0]['input'])}, but must be {expected}"
    return f"{name} needs {parameter.metavar or expected}"


def _explain_unknown_option(name: str, context: typer.Context) -> str:
    """Return the message about an option that a command does not have, with those it may mean."""
    for words, reason in words_of_toolkits("needless_flags").items():
        if name.lstrip("-") in words.split():
            return f"no such option {name}: leave it out, {reason}"
    parameters = [*context.command.params]
    flags = [flag for p in parameters for flag in (*p.opts, *p.secondary_opts)]
    arguments = [p.metavar for p in parameters if p.param_type_name == "argument" and p.metavar]
    known = [flag for flag in flags if flag.startswith("--")] + arguments
    # Of -lr, typer names the first letter only: too little to suggest anything.
    found = suggest(name, known) if name.startswith("--") else []
    shown = [f"{each} without a flag" if each in arguments else each for each in found]
    return f"no such option {name}{_advice(context, shown)}"


def _advice(context: typer.Context, names: list[str]) -> str:
    if names:
        return f": did you mean {' or '.join(names)}?"
    return f" (see {context.command_path} --help)"
