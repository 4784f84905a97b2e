"""Docstrings of public functions that take or return tensors give the tensors' shapes."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SHAPE = re.compile(r"\[[^\]]+\]|\bscalar|\bany shape")


def _public_functions(body):
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node.body)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def _handles_tensors(function):
    arguments = [*function.args.args, *function.args.kwonlyargs]
    annotations = [argument.annotation for argument in arguments] + [function.returns]
    return any(each is not None and "Tensor" in ast.unparse(each) for each in annotations)


def _inherits_its_docstring(function):
    return any(ast.unparse(each) == "override" for each in function.decorator_list)


def test_every_public_function_of_tensors_documents_their_shapes():
    missing = [
        f"{path.relative_to(ROOT)}:{function.lineno}: {function.name}"
        for path in sorted((ROOT / "tfm").rglob("*.py"))
        for function in _public_functions(ast.parse(path.read_text(encoding="utf-8")).body)
        if _handles_tensors(function)
        and not _inherits_its_docstring(function)
        and not _SHAPE.search(ast.get_docstring(function) or "")
    ]
    assert not missing, "\n".join(missing)
