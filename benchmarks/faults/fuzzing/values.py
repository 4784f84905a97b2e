"""Mistaken and extreme values of the flags of every command."""

import inspect
import os
import random
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import typer
from fuzzing.models import make_run
from fuzzing.reader import Reader, tfm

from tfm.cli.main import app
from tfm.config import RUN_SETTINGS

# Command lines that end soon with any value that their flags accept.
_FORECASTS = (
    "train data --device cpu --arch tiny --run new --dry-run",
    "train data --device cpu --arch tiny --print-config",
)
_LINES = (
    *_FORECASTS,
    "train data --device cpu --run run",  # which is finished
    "average run --out averaged",
    "export run --out exported",
    "generate run --device cpu --input in.en --max-extra-length 1",
    "generate run --device cpu --input in.en --max-extra-length 1 --search sample",
    "generate run --device cpu --input in.en --max-extra-length 1 --search exact --node-limit 5",
    "generate run --device cpu --input in.en --score-target in.en",
    "score --hypotheses in.en --reference in.en --baseline in.en",
    "prepare --train data/train.en data/train.de --out new --vocab-size 330",
    "learn-bpe data --vocab-size 330 --force",
    "binarize data --force",
    "attend run one --out attention.html",
    # Measuring takes seconds; without a GPU, the device is refused after all values.
    "bench train data --device cuda --steps 1 --untimed-steps 1 --rounds 1",
    "bench generate run --device cpu --input in.en --max-extra-length 1 --rounds 1",
)
_WORD_FLAGS = ("--arch", "--gpus", "--language", "--metric", "--rendezvous")
_NUMBERS = (
    *("-1", "0", "-0", "0.5", "1e-300", "-1e300", "1e300", "1e999", "nan", "inf", "-inf"),
    *map(str, (2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**12, 10**30)),
    "9" * 5_000,
)
_WORDS = (
    *("", " ", "x", "many", "1 2", "1,000", "0x10", "1_000", "--", "true", "None", "auto"),
    *("\u0663", "\u00b2", "\uff11", "1\u00a0", "\x1b[2J", "\n", "1\n2", "\udcff", "\u6f22" * 40),
    "x" * 100_000,
)
_SEPARATOR = b"\0"  # no argument of a process can contain it


def change_value(generator: random.Random, _: bytes) -> bytes:
    """Give a flag of a command a value."""
    line = generator.choice(_LINES)
    flags = _flags(line.split())
    flag = generator.choice(list(flags))
    values = [*_NUMBERS, *_WORDS]
    if _kinds(flags[flag]) & {int, float}:
        values += 3 * _NUMBERS  # more often than words
        if line in _FORECASTS:
            values += 10 * _limits(flag)
    return _packed([*line.split(), flag, generator.choice(values)])


def _flags(words: Sequence[str]) -> Mapping[str, Any]:
    """Return {flag: type} of the flags of a command that take a number, a choice or a word."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    parameters = inspect.signature(command.callback).parameters
    hints = {each.opts[0]: parameters[each.name].annotation for each in command.params}
    return {
        flag: hint
        for flag, hint in hints.items()
        if flag.startswith("--") and (_kinds(hint) & {int, float, Literal} or flag in _WORD_FLAGS)
    }


def _kinds(hint: Any) -> set[Any]:
    """Return the types that a hint allows; Literal for a choice."""
    return {typing.get_origin(each) or each for each in (hint, *typing.get_args(hint))}


def _limits(flag: str) -> list[str]:
    """Return the smallest and the largest value of a flag of training."""
    name = flag.removeprefix("--").replace("-", "_")
    return [
        str(item.metadata[key])
        for kind in RUN_SETTINGS
        for item in fields(kind)
        for key in ("at_least", "at_most")
        if item.name == name and item.metadata[key] is not None
    ]


def _packed(arguments: Sequence[str]) -> bytes:
    return _SEPARATOR.join(map(os.fsencode, arguments))


def _make(folder: Path) -> None:
    make_run(folder)
    (folder / "arguments").write_bytes(_packed(_FORECASTS[1].split()))


def _read(folder: Path) -> str:
    arguments = (folder / "arguments").read_bytes().split(_SEPARATOR)
    tfm(*map(os.fsdecode, arguments))
    return ""


VALUE_READERS: Sequence[Reader] = (
    Reader(
        name="values of flags",
        files={"arguments": (change_value,)},
        make=_make,
        read=_read,
        has_bytes=False,
        may_be_no_file=False,
    ),
)
