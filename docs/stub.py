"""tfm/__init__.pyi, which tells editors and type checkers the settings of each function.

`make reference` writes it.
"""

import ast
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tfm
from tfm.commands.declaration import Declaration, declaration_of, is_repeatable
from tfm.config import flag_of

PATH = Path(tfm.__file__).with_suffix(".pyi")
_HEAD = '''"""tfm: train, run and score the Transformer of "Attention Is All You Need".

`make reference` generates this file from the commands and their settings.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

'''
_SETTINGS = re.compile(r"^    \*\*settings: .*\n?", re.MULTILINE)


def stub() -> str:
    """Return the stub of the package."""
    functions = {name: getattr(tfm, name) for name in tfm.__all__}
    functions = {n: each for n, each in functions.items() if hasattr(each, "declaration")}
    imports = {"from tfm.commands.translator import Translator as Translator"}
    imports |= {line for each in functions.values() for line in _imports(each)}
    declared = [_stub(name, each) for name, each in functions.items()]
    start = [*sorted(imports), "", "StrPath = str | os.PathLike[str]", "__version__: str", "", ""]
    return _HEAD + "\n".join(start) + "\n\n".join(declared)


def _imports(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the imports of the types of a function's result, which may be in quotes."""
    result = function.__annotations__["return"]
    if inspect.isclass(result) and result.__module__ != "builtins":
        yield f"from {result.__module__} import {result.__name__} as {result.__name__}"
    module = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tfm."):
            for each in node.names:
                if each.name in re.findall(r"\w+", str(result)):
                    yield f"from {node.module} import {each.name} as {each.name}"


def _stub(name: str, function: Callable[..., Any]) -> str:
    declaration = declaration_of(function)
    lines, has_star = [], False
    for each in declaration.signature.parameters.values():
        if each.kind is each.VAR_KEYWORD:
            continue
        if each.kind is each.KEYWORD_ONLY and not has_star:
            lines.append("*")
            has_star = True
        hint = _hint(declaration.parameters[each.name].hint)
        if each.default is each.empty:
            lines.append(f"{each.name}: {hint}")
        else:
            lines.append(f"{each.name}: {_optional(hint)} = ...")
    settings = dict(_settings(declaration))
    lines += [f"{name}: {hint} | None = ..." for name, (hint, _) in settings.items()]
    helps = "".join(f"    {name}: {text}\n" for name, (_, text) in settings.items() if text)
    text = _SETTINGS.sub(lambda _: helps, inspect.getdoc(function) or "")
    doc = "\n".join(f"    {line}".rstrip() for line in f'"""{text}\n"""'.split("\n"))
    result = function.__annotations__["return"]
    shown = result if isinstance(result, str) else _hint(result)
    parameters = "".join(f"    {line},\n" for line in lines)
    prefix = "r" if "\\" in doc else ""
    doc = doc.replace('    """', f'    {prefix}"""', 1)
    return f"def {name}(\n{parameters}) -> {shown}:\n{doc}\n".replace("(\n)", "()")


def _settings(declaration: Declaration) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield type and help of each setting, by its name and by that of its flag."""
    for name, kinds in declaration.settings().items():
        kind, item = next(iter(kinds.items()))
        hint = typing.get_type_hints(kind)[name]
        is_list = is_repeatable(hint)
        shown = "Iterable[StrPath]" if is_list else _hint(hint).removesuffix(" | None")
        yield name, (shown, item.metadata["help"])
        alias = flag_of(item)[2:].replace("-", "_")
        if alias != name:
            yield alias, (shown, "")


def _optional(hint: str) -> str:
    return hint if hint.endswith("None") else f"{hint} | None"


def _hint(hint: Any) -> str:
    """Return a type as Python users write it: text may be a path, and a list one item."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " | ".join(map(_hint, typing.get_args(hint)))
    if is_repeatable(hint):
        item = _hint(typing.get_args(hint)[0])
        return f"{item} | Sequence[{item}]"
    if hint in (Path, str):
        return "StrPath"
    if typing.get_origin(hint) is None:
        return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
    return str(hint).replace("typing.", "").replace("collections.abc.", "")


def main() -> None:
    """Write the stub."""
    PATH.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    main()
