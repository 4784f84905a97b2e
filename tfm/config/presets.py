"""Presets of a whole run, merging the settings of users over them, and TOML files of settings."""

import json
import re
import tomllib
import typing
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tfm.config.model import RecurrentConfig, TransformerConfig
from tfm.config.schema import Settings, TomlTable, excluded_by, settings_and_problems, settings_to
from tfm.config.suggestions import did_you_mean
from tfm.config.training import RunConfig
from tfm.config.values import MAX_UNKNOWN, Values, shown
from tfm.errors import UsageError, explain_os_error, refuse

# The presets for translation on a GPU and on a CPU, from a number of training pairs on.
_SUITABLE = ((1_000_000, "base", "small"), (100_000, "medium", "small"), (0, "tiny", "tiny"))


@cache
def presets() -> Mapping[str, Mapping[str, Values]]:
    """Return the settings by name and section in which each preset differs from the defaults."""
    file = resources.files("tfm.config") / "presets.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def suitable_arch(num_pairs: int, *, on_gpu: bool, task: str) -> tuple[str, str]:
    """Return the preset for a number of training pairs of a task, and the reason in words."""
    if task == "parsing":
        return "parser", f"{num_pairs:,} trees"
    for_gpu, for_cpu = next(names for least, *names in _SUITABLE if num_pairs >= least)
    if on_gpu:
        return for_gpu, f"{num_pairs:,} pairs on a GPU"
    too_slow = "" if for_cpu == for_gpu else f", on which {for_gpu} would take days"
    return for_cpu, f"{num_pairs:,} pairs on a CPU{too_slow}"


def adapting_table(run: RunConfig) -> dict[str, Any]:
    """Return the settings that replace a preset's when training starts from a model of a run.

    The settings of the model come from the run. Continued training takes a few passes over the new
    text (Luong and Manning 2015; Freitag and Al-Onaizan 2016), with a low learning rate: here at
    most a tenth of the preset's, after a short warmup for Adam's moments, which start from zero.
    """
    preset = run_config(run.arch).optimizer
    peak = preset.learning_rate or (run.model.d_model * preset.warmup_steps) ** -0.5
    return {
        "arch": run.arch,
        "model": settings_to(run.model),
        "optimizer": {"learning_rate": float(f"{peak / 10:.1e}"), "warmup_steps": 50},
        "training": {"max_epochs": 12, "checkpoint_steps": 50},
    }


def run_config(arch: str | None, *tables: Values) -> RunConfig:
    """Merge tables of settings over a preset.

    Args:
        arch: Name of the preset; if None, the last "arch" of the tables, else base.
        *tables: {section: {name: value}}, and "from_model"; later tables take precedence.
    """
    default: Values = {"arch": RunConfig.arch if arch is None else arch}
    named = next((table for table in reversed(tables) if "arch" in table), default)
    if arch not in (None, named["arch"]):
        raise UsageError(
            f"--arch {arch} contradicts arch {named['arch']} in the file: leave one out"
        )
    arch = named["arch"]
    if arch not in list(presets()):
        names = ", ".join(presets())
        raise UsageError(
            f"{_place(named, 'arch')}unknown arch {shown(arch)}: choose one of {names}"
        )
    kinds = typing.get_type_hints(RunConfig)
    del kinds["arch"], kinds["from_model"]
    starts = [table for table in tables if table.get("from_model") is not None]
    from_model = starts[-1]["from_model"] if starts else None
    if not isinstance(from_model, str | None):
        raise UsageError(
            f"{_place(starts[-1], 'from_model')}from_model is {shown(from_model)}, but must be the "
            "folder of a model"
        )
    kinds["model"] = RecurrentConfig if arch == "rnn" else TransformerConfig
    merged, places, problems = _merge(kinds, (_preset(arch, tables), *tables))
    for name in sorted(_settings_of_other_models(kinds["model"]) & merged["model"].keys()):
        del merged["model"][name]
        advice = "leave it out" if arch == "rnn" else "leave it out, or use arch rnn"
        problems.append(
            f"{places['model'][name]}{name} in [model] has no effect on arch {arch}: {advice}"
        )
    groups = {}
    elsewhere = _places_of_settings(kinds)
    for name, kind in kinds.items():
        groups[name], more = settings_and_problems(kind, merged[name], places[name], elsewhere)
        problems += more
    run = RunConfig(arch=arch, from_model=from_model, **groups)
    refuse([*problems, *run.problems()])
    return run


def _preset(arch: str, tables: Sequence[Values]) -> Values:
    """Return the settings of a preset, without its number of epochs if a table sets the steps."""
    left_out = {("training", "max_epochs")} if sets_steps(tables) else set()
    return {
        section: {name: each[name] for name in each if (section, name) not in left_out}
        for section, each in presets()[arch].items()
    }


def sets_steps(tables: Iterable[Values]) -> bool:
    """Return whether some of the tables of settings set the number of steps."""
    given = [table.get("training") for table in tables]
    return any(isinstance(each, Mapping) and "max_steps" in each for each in given)


def _settings_of_other_models(kind: type[Settings]) -> set[str]:
    """Return the names of the settings that other kinds of models have, but not this one."""
    names = {item.name for other in (TransformerConfig, RecurrentConfig) for item in fields(other)}
    return names - {item.name for item in fields(kind)}


def _merge(
    kinds: Mapping[str, type[Settings]], tables: Iterable[Values]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, str]], list[object]]:
    """Merge tables; later tables take precedence.

    Returns:
        The values by section and name, the places in files where they were set, and a problem for
        each unknown section.
    """
    merged: dict[str, dict[str, Any]] = {name: {} for name in kinds}
    places: dict[str, dict[str, str]] = {name: {} for name in kinds}
    problems: list[object] = []
    for table in tables:
        for name, values in table.items():
            if name in kinds and isinstance(values, Mapping):
                for key in excluded_by(kinds[name], values):
                    merged[name].pop(key, None)
                merged[name].update(values)
                places[name].update({key: _place(table, name, key) for key in values})
            elif name not in ("arch", "from_model") and len(problems) < MAX_UNKNOWN:
                advice = (
                    f"write its settings under [{name}]"
                    if name in kinds
                    else did_you_mean(name, list(kinds), _places_of_settings(kinds), "sections are")
                )
                problems.append(f"{_place(table, name)}unknown section {shown(name)}: {advice}")
    return merged, places, problems


def _places_of_settings(kinds: Mapping[str, type[Settings]]) -> dict[str, str]:
    """Return settings by name, each with its section, such as "dropout in [model]"."""
    return {
        item.name: f"{item.name} in [{name}]"
        for name, kind in kinds.items()
        for item in fields(kind)
    }


def _place(table: Values, *keys: str) -> str:
    """Return file and line of a key if the table was read from a file."""
    return table.place(*keys) if isinstance(table, TomlTable) else ""


def run_table(run: RunConfig) -> dict[str, Any]:
    """Return the table from which `run_config` builds the same run."""
    groups = ((item.name, getattr(run, item.name)) for item in fields(run))
    return {
        name: settings_to(value) if isinstance(value, Settings) else value
        for name, value in groups
        if value is not None
    }


_HEADER_OR_KEY = re.compile(r"\s*(?:\[(\[?)([^]#]*)\]|([^=#]*)=)")
_NAMED = re.compile(r"^\s*(?:\[(\w+)\]|#?\s*(\w+)\s*=)", re.MULTILINE)
_MAX_BYTES = 1 << 20
_MAX_DOTS = 100  # per line: tomllib takes minutes for a key of thousands of parts


def settings_missing_in(path: Path, run: Mapping[str, Any]) -> list[str]:
    """Return the settings of a run's table that a file does not name, not even in a comment.

    `run_toml` names all, so the file was cut off.
    """
    text, section = path.read_text(encoding="utf-8"), ""
    named = set()
    for header, name in _NAMED.findall(text):
        section = header or section
        named.add((section, name))
    groups = {name: values for name, values in run.items() if isinstance(values, Mapping)}
    return [n for section, values in groups.items() for n in values if (section, n) not in named]


def run_toml(run: RunConfig) -> str:
    """Return all settings of a run as the text of a TOML file, each with its help."""
    lines = [f'arch = "{run.arch}"']
    if run.from_model is not None:
        lines.append(f"from_model = {_toml_value(run.from_model)}")
    for section in fields(run):
        group = getattr(run, section.name)
        if isinstance(group, Settings):
            lines += ["", f"[{section.name}]"]
            for item in fields(group):
                value = getattr(group, item.name)
                unset = f"# {item.name} ="
                assignment = unset if value is None else f"{item.name} = {_toml_value(value)}"
                lines.append(f"{assignment:<36} # {item.metadata['help']}")
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    """Return a value in TOML, which writes text as JSON does but for one control character."""
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if text.encode(errors="replace").decode() != text:
        raise UsageError(f"{text} is not UTF-8: rename it")
    return text


def read_toml(path: Path) -> TomlTable:
    """Read a TOML file."""
    if path.is_fifo():  # which a second call would find empty
        raise UsageError(f"{path} is a pipe, but is read several times: write it to a file")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UsageError(
                f"{path} is larger than {_MAX_BYTES:,} bytes: is it a file of settings?"
            )
        text = content.decode("utf-8-sig")
        if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
            raise UsageError(f"{path} has a line with more than {_MAX_DOTS} dots: split the line")
        return TomlTable(tomllib.loads(text), path=path, lines=_lines_of_keys(text))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist: check its name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {explain_os_error(error)}") from error
    except RecursionError:
        raise UsageError(f"{path} is not a TOML file of settings: it nests too deeply") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a TOML file: it is not UTF-8, save it as UTF-8") from error
    except ValueError as error:  # not only TOMLDecodeError: int() refuses thousands of digits
        advice = ": write paths with /, or in single quotes" if "\\" in text else ""
        raise UsageError(f"{path} is not a TOML file: {error}{advice}") from error


def _lines_of_keys(text: str) -> dict[tuple[str, ...], int]:
    """Return the number of the first line of each section and key: ("model", "d_ff"): 3.

    The second table under [[train]] is the section ("train", "2").
    """
    lines: dict[tuple[str, ...], int] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    section: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER_OR_KEY.match(line):
            is_list, header, key = match.groups()
            names = tuple(part.strip(" \t\"'") for part in (header or key).split("."))
            if header is None:
                lines.setdefault(section + names, number)
                continue
            lines.setdefault(names, number)
            counts[names] += 1
            section = (*names, str(counts[names])) if is_list else names
            lines.setdefault(section, number)
    return lines
