"""Presets of a whole run, and merging the user's settings over them."""

import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any

from tfm.config.model import RecurrentConfig, TransformerConfig
from tfm.config.schema import (
    MAX_UNKNOWN,
    Settings,
    Table,
    TomlTable,
    did_you_mean,
    settings_and_problems,
    settings_to,
    shown,
)
from tfm.config.training import RunConfig
from tfm.errors import UsageError, list_problems

# A table that sets one of these in [training] replaces the other.
_ALTERNATIVES = {"checkpoint_minutes": "checkpoint_steps", "checkpoint_steps": "checkpoint_minutes"}


@cache
def presets() -> Mapping[str, Mapping[str, Table]]:
    """Return the settings by name and section in which each preset differs from the defaults."""
    file = resources.files("tfm.config") / "presets.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def suitable_arch(num_pairs: int, *, on_gpu: bool, task: str) -> tuple[str, str]:
    """Return the preset for a number of training pairs of a task, and the reason in words."""
    if task == "parsing":
        return "parser", f"{num_pairs:,} trees"
    arch = "tiny"
    if num_pairs >= 100_000:
        arch = "base" if on_gpu and num_pairs >= 1_000_000 else "small"
    return arch, f"{num_pairs:,} pairs on a {'GPU' if on_gpu else 'CPU'}"


def adapting_table(run: RunConfig) -> dict[str, Any]:
    """Return what replaces a preset's settings when training starts from a model of a run.

    The model is that of the run. Continued training takes a few passes over the new text (Luong and
    Manning 2015; Freitag and Al-Onaizan 2016), with a low learning rate: here at most a tenth of
    the preset's, after a short warmup for Adam's moments, which start from zero.
    """
    preset = run_config(run.arch).optimizer
    peak = preset.learning_rate or (run.model.d_model * preset.warmup_steps) ** -0.5
    return {
        "arch": run.arch,
        "model": settings_to(run.model),
        "optimizer": {"learning_rate": float(f"{peak / 10:.1e}"), "warmup_steps": 50},
        "training": {"max_epochs": 12, "checkpoint_steps": 50},
    }


def run_config(arch: str | None, *tables: Table) -> RunConfig:
    """Merge tables of settings over a preset.

    Args:
        arch: Name of the preset; if None, that of the last table with an "arch" key, else base.
        *tables: {section: {name: value}}, and "from_model"; later tables take precedence.

    Raises:
        UsageError: Names are unknown or values out of range; one message lists all of them.
    """
    default: Table = {"arch": RunConfig.arch if arch is None else arch}
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
    merged, places, problems = _merge(kinds, (presets()[arch], *tables))
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
    problems += run.problems()
    if problems:
        raise UsageError(list_problems(problems))
    return run


def _settings_of_other_models(kind: type[Settings]) -> set[str]:
    """Return the names of the settings that other kinds of models have, but not this one."""
    names = {item.name for other in (TransformerConfig, RecurrentConfig) for item in fields(other)}
    return names - {item.name for item in fields(kind)}


def _merge(
    kinds: Mapping[str, type[Settings]], tables: Iterable[Table]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, str]], list[str]]:
    """Merge tables, of which later ones take precedence.

    Returns:
        The values by section and name, the places in files where they were set, and a problem for
        each unknown section.
    """
    merged: dict[str, dict[str, Any]] = {name: {} for name in kinds}
    places: dict[str, dict[str, str]] = {name: {} for name in kinds}
    problems: list[str] = []
    for table in tables:
        for name, values in table.items():
            if name in kinds and isinstance(values, Mapping):
                for key in values:
                    merged[name].pop(_ALTERNATIVES.get(key, ""), None)
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


def _place(table: Table, *keys: str) -> str:
    """Return file and line of a key if the table is that of a file."""
    return table.place(*keys) if isinstance(table, TomlTable) else ""


def run_table(run: RunConfig) -> dict[str, Any]:
    """Return the table from which `run_config` builds the same run."""
    groups = ((item.name, getattr(run, item.name)) for item in fields(run))
    return {
        name: settings_to(value) if isinstance(value, Settings) else value
        for name, value in groups
        if value is not None
    }
