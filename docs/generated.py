"""The parts of reference pages that follow from the code, as Markdown.

`python docs/generated.py`, or `make reference`, writes them into the pages, and the stub of the
package.
"""

import copy
import inspect
import json
import re
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import stub
import typer

import tfm
from tfm import config, errors
from tfm.applications.check.measures import Translated
from tfm.applications.check.suite import CheckResult, RowResult
from tfm.applications.doctor.checks import Finding
from tfm.applications.serve.settings import ServeConfig
from tfm.cli.app import help_row
from tfm.cli.main import app
from tfm.commands.attend import AttendResult
from tfm.commands.evaluation import Evaluation, SetResult
from tfm.commands.export import ExportResult
from tfm.commands.import_model import ImportResult
from tfm.commands.prepare import PrepareResult
from tfm.commands.score import ScoreResult
from tfm.config.schema import Rules
from tfm.config.suggestions import words_of_toolkits
from tfm.dataset import manifest, parallel, rerun, shards
from tfm.features.align import heads
from tfm.features.protect.placeholders import placeholders
from tfm.features.seen.report import SeenReport
from tfm.folders import last_generation, model_info, run_folder
from tfm.metrics.lines import LineScore
from tfm.metrics.metric import Comparison, MetricScore
from tfm.metrics.page import PageLine
from tfm.steps import StepsConfig
from tfm.text import seen
from tfm.text.corpus.loading import builtin_recipes, load_recipe
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import (
    Archive,
    MonoText,
    OpusText,
    TextFiles,
    TextOptions,
    TreeFile,
)
from tfm.training import model_summaries
from tfm.training.averaging import AverageResult
from tfm.training.model_summaries import ModelSummary
from tfm.training.run import TrainResult
from tfm.training.run_summaries import RunSummary
from tfm.translation import partial_output
from tfm.translation.steps import Output

# The line of a page before its generated part.
NOTE = "<!-- The rest is generated from the code: `make reference` updates it. -->\n"

_DEFAULT = re.compile(r"\s*[(\[]default: (.*)[)\]]\.?$")
_EXAMPLES = re.compile(r"^Examples?:\s*", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)

# The file that holds the format version of each kind of folder or record.
FORMATS = {
    "`manifest.json` of a dataset": manifest.FORMAT,
    "the record of each shard of a dataset": shards.FORMAT,
    "`bin/dataset.json` of a dataset": parallel.FORMAT,
    "`config.json` of a model folder or checkpoint": model_info.FORMAT,
    "`alignment.json` of a model folder": heads.FORMAT,
    "`tfm.json` of an exported model": model_summaries.EXPORTED_FORMAT,
    "`seen.safetensors` of a dataset": seen.FORMAT,
    "`runs.json` of a dataset": rerun.RUNS_FORMAT,
    "`data.json` of a run": run_folder.DATA_FORMAT,
    "`last-generation.json` in `runs/`": last_generation.FORMAT,
    "`FILE.partial.json` of `tfm generate --output FILE`": partial_output.FORMAT,
}
_RESULTS = (
    Output,
    PrepareResult,
    TrainResult,
    AverageResult,
    ExportResult,
    ImportResult,
    RunSummary,
    ModelSummary,
    ScoreResult,
    SeenReport,
    MetricScore,
    Comparison,
    LineScore,
    Evaluation,
    SetResult,
    PageLine,
    CheckResult,
    RowResult,
    Translated,
    AttendResult,
    Finding,
)
_POSITIONAL = {"data", "model", "recipe"}  # arguments without a flag
# Those of Translator for users; commands call the others.
_METHODS = "load, translate, search, score_targets"
_TYPES = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
_RECIPE_TABLES = {
    "Top level": Recipe,
    "`[[archives]]`": Archive,
    "`[[train]]`, `[[valid]]`, `[[test]]`: parallel text": TextFiles,
    "`[[train]]`, `[[valid]]`, `[[test]]`: a corpus of OPUS": OpusText,
    "`[[train]]`, `[[valid]]`, `[[test]]`: trees": TreeFile,
    "`[[train]]`, `[[valid]]`, `[[test]]`: further keys of all": TextOptions,
    "`[[mono]]`": MonoText,
}


_COMMANDS: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def commands() -> str:
    """Return a section for each command, with its purpose and a link to its page."""
    sections = (
        f"\n## tfm {name}\n\n{_summary(command.help)} [Usage and flags](commands/{name}.md)\n"
        for name, command in _COMMANDS.items()
    )
    pages = "\n".join(f"commands/{name}" for name in _COMMANDS)
    return "".join([*sections, _block("{toctree}", f":hidden:\n\n{pages}")])


def command_page(name: str) -> str:
    """Return the help of a command, its arguments and flags, and links to its settings."""
    command = _COMMANDS[name]
    # Commands remember the flags for help of the first context that asks for them.
    context = command.make_context(
        f"tfm {name}",
        [],
        resilient_parsing=True,
        help_option_names=app.info.context_settings["help_option_names"],
    )
    description, *examples = _EXAMPLES.split(inspect.cleandoc(command.help))
    usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
    lines = [
        line.removeprefix("  ").rstrip()
        for line in "\n".join(examples).splitlines()
        if line.strip("\b ")
    ]
    return (
        f"\n{_text(description).strip()}\n"
        + _block("text", usage)
        + _block("sh", "\n".join(lines))
        + _panels(command, context)
    )


def _panels(command: Any, context: Any) -> str:
    """Return a section with a table for each panel of the help, and links to the settings."""
    panels = defaultdict(list)
    for parameter in command.params:
        title = parameter.rich_help_panel or "Arguments and flags"
        panels[title].append(_flag(parameter, context))
    groups = {f"[{kind.section}]": f"{kind.section}-{kind.__name__}" for kind in all_groups()[::-1]}
    sections, settings = "", dict[str, str]()
    for title, rows in panels.items():
        if title.startswith("Settings"):
            settings |= {each: groups[each] for each in title.split()[1:]}
        else:
            sections += f"\n## {title}\n\n{_table(('flag', 'default', 'meaning'), rows)}"
    links = (f"[`{name}`](../settings.md#{anchor.lower()})" for name, anchor in settings.items())
    if settings:
        sections += f"\n## Settings\n\n`--help-all` lists the flags of {', '.join(links)}.\n"
    return sections


def _flag(parameter: Any, context: Any) -> Sequence[str]:
    shown = copy.copy(parameter)
    shown.hidden = False
    flag, text = help_row(shown, context)
    default = _DEFAULT.search(text)
    return f"`{flag}`", f"`{default[1]}`" if default else "", _text(_DEFAULT.sub("", text))


def settings() -> str:
    """Return a table for each group of settings."""
    return "".join(_group(kind) for kind in all_groups())


def presets() -> str:
    """Return a section for each preset: the settings in which it differs from base, as TOML."""
    sections = []
    for arch, tables in config.presets().items():
        lines = [f'arch = "{arch}"']
        for name, values in tables.items():
            lines += ["", f"[{name}]", *(f"{key} = {json.dumps(values[key])}" for key in values)]
        sections.append(f"\n## {arch}\n" + _block("toml", "\n".join(lines)))
    return "".join(sections)


def recipe_files() -> str:
    """Return a table of the keys of each part of a recipe, and the built-in recipes."""
    tables = (f"\n## {title}\n\n{_keys(kind)}" for title, kind in _RECIPE_TABLES.items())
    recipes = (
        f"- `{name}`: {_text(load_recipe(name).description)}\n" for name in builtin_recipes()
    )
    return "".join([*tables, "\n## Built-in recipes\n\n", *recipes])


def formats() -> str:
    """Return a table of the format versions of files."""
    return "\n" + _table(("file", "format"), FORMATS.items())


def placeholder_table() -> str:
    """Return a table of the placeholders of other programs."""
    rows = (
        (f"`{row.example}`", row.programs, "always" if row.use == "always" else "`--protect-for`")
        for row in placeholders()
    )
    return "\n" + _table(("example", "programs", "copied"), rows)


def flags_of_toolkits() -> str:
    """Return a table of the flags of other toolkits, with what tfm has or does instead."""
    flags = defaultdict(list)
    for name, words in words_of_toolkits("flags").items():
        for word in words.split():
            flags[word].append(f"`{name}`" if name in _POSITIONAL else f"`--{name}`")
    for words, instead in words_of_toolkits("needless_flags").items():
        for word in words.split():
            flags[word].append(instead)
    rows = (
        (f"`{'-' * (1 + (len(word) > 1))}{word}`", ", ".join(flags[word])) for word in sorted(flags)
    )
    return "\n" + _table(("elsewhere", "tfm"), rows)


def exit_codes() -> str:
    """Return a table of the exceptions that end a command, with their exit codes."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    failures = [kind for kind in kinds if issubclass(kind, errors.TfmError)]
    rows = ((f"`{kind.__name__}`", kind.exit_code, _summary(kind.__doc__)) for kind in failures)
    return "\n" + _table(("exception", "exit code", "meaning"), rows)


def api() -> str:
    """Return the directives that document what `import tfm` offers, and the results.

    The results are dataclasses, whose docstrings describe their members.
    """
    functions = [name for name in tfm.__all__ if inspect.isfunction(getattr(tfm, name))]
    classes = [name for name in tfm.__all__ if inspect.isclass(getattr(tfm, name))]
    offered = [f".. autoclass:: tfm.{name}\n   :members: {_METHODS}" for name in classes]
    offered += [f".. autofunction:: tfm.{name}" for name in functions]
    results = (f".. autoclass:: {each.__module__}.{each.__name__}" for each in _RESULTS)
    return "".join(_block("{eval-rst}", directive) for directive in (*offered, *results))


# The generated part of each page.
PAGES: Mapping[str, Callable[[], str]] = {
    "how-to/from-other-toolkits": flags_of_toolkits,
    "reference/api": api,
    "reference/commands": commands,
    **{f"reference/commands/{name}": partial(command_page, name) for name in _COMMANDS},
    "reference/exit-codes": exit_codes,
    "reference/files": formats,
    "reference/placeholders": placeholder_table,
    "reference/presets": presets,
    "reference/recipe-files": recipe_files,
    "reference/settings": settings,
}


def updated(page: str, text: str) -> str:
    """Return the text of a page with its generated part as the code is now."""
    written, _, _ = text.partition(NOTE)
    return written + NOTE + PAGES[page]()


def main() -> None:
    """Write the generated parts into the pages; start the page of a new command."""
    for page in PAGES:
        path = Path(__file__).parent / f"{page}.md"
        text = path.read_text(encoding="utf-8") if path.exists() else f"# tfm {path.stem}\n\n"
        path.write_text(updated(page, text), encoding="utf-8")
    stub.main()


def all_groups() -> list[type[config.Settings]]:
    """Return the groups of settings: models', others in the order of declaration, applications'."""
    kinds = [kind for _, kind in inspect.getmembers(config, inspect.isclass)]
    groups = [kind for kind in kinds if issubclass(kind, config.Settings) and kind.section]
    groups.sort(key=lambda each: (each.section != "model", inspect.getsourcelines(each)[1]))
    return [*groups, StepsConfig, ServeConfig]


def _group(kind: type[config.Settings]) -> str:
    hints = typing.get_type_hints(kind)
    columns = ("setting", "default", "values", "presets", "meaning")
    own = (item for item in fields(kind) if item.name in kind.__annotations__)
    rows = (_setting(kind.section, item, hints[item.name]) for item in own)
    table = _table(columns, rows)
    return f"\n## [{kind.section}] {kind.__name__}\n\n{_summary(kind.__doc__)}\n\n{table}"


def _setting(section: str, item: Field[Any], hint: Any) -> Sequence[str]:
    changes = (
        f"{arch} `{json.dumps(tables[section][item.name])}`"
        for arch, tables in config.presets().items()
        if item.name in tables.get(section, {})
    )
    name = f"`{item.name}`" + (f" (`{item.metadata['flag']}`)" if item.metadata["flag"] else "")
    default = "unset" if item.default is None else f"`{json.dumps(item.default)}`"
    return name, default, _values(item, hint), ", ".join(changes), _text(item.metadata["help"])


def _values(item: Field[Any], hint: Any) -> str:
    """Return the values that a field accepts, in words."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    if metavar := item.metadata.get("metavar"):
        return f"list of `{metavar}`" if typing.get_origin(hint) is tuple else f"`{metavar}`"
    pairs = {
        tuple[str, str]: "list of 2 texts",
        tuple[int | str, int | str]: "list of 2 numbers or texts",
    }
    if hint in pairs:
        return pairs[hint]
    if typing.get_origin(hint) is not None:
        return "list of tables" if typing.get_origin(hint) is tuple else "table"
    low, high = item.metadata.get("rules", Rules()).limits
    limits = [
        f"{sign}\N{NO-BREAK SPACE}{limit:,}"
        for sign, limit in (("≥", low), ("≤", high))
        if limit is not None
    ]
    return ", ".join([_TYPES[hint], *limits])


def _keys(kind: type) -> str:
    """Return a table of the keys that a dataclass declares, described by its docstring."""
    described = dict(_ATTRIBUTE.findall(inspect.getdoc(kind) or ""))
    hints = typing.get_type_hints(kind)
    inherited = {
        item.name for base in kind.__bases__ if is_dataclass(base) for item in fields(base)
    }
    rows = []
    for item in fields(kind):
        if item.name in inherited:
            continue
        required = item.default is MISSING and item.default_factory is MISSING
        values = _values(item, hints[item.name]) + ", required" * required
        rows.append((f"`{item.name}`", values, " ".join(described[item.name].split())))
    return f"{_summary(kind.__doc__)}\n\n" + _table(("key", "values", "meaning"), rows)


def _summary(text: str | None) -> str:
    """Return the first paragraph of a docstring or help."""
    return _text(" ".join((text or "").split("\n\n")[0].split()))


def _text(text: str) -> str:
    """Return plain text as Markdown, with the characters escaped that Markdown would interpret."""
    return re.sub(r"([*<_])", r"\\\1", text.replace("\b", ""))


def _table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [[*columns], *([str(cell) for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    cells = ([cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _block(language: str, text: str) -> str:
    return f"\n```{language}\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    main()
