"""Measure what the tests notice: change the package in one place at a time, and run its tests.

    python benchmarks/mutants.py HEAD --out build/mutants    # draw 200 mutants, and run them
    python benchmarks/mutants.py HEAD --by-folder --count 60 --seed 0x9834b79a --out build/mutants
    python benchmarks/mutants.py HEAD --again build/mutants/mutants.json --out build/after

A mutant flips a comparison, changes an operator, a sign, a constant by one or a default, swaps two
arguments, removes a `not`, negates a condition, drops a branch, returns None, or leaves out a
statement. They are drawn by a seed, spread by lines over the modules of the commit, or in turn over
its folders. Each runs in a copy of the commit, until the first failure, with the tests that are
named after its module, and then with the smallest of those that import it. A test that kills a
mutant must pass without it; a mutant whose tests reach the limit of time is neither killed nor
survived.

--again runs the mutants of an earlier run whose module has the same text in this commit. The file
that killed a mutant before runs first; all that import the module, and those of --also, run before
it counts as survived. The table goes to OUT/mutants.md and OUT/mutants.json, after each mutant.
"""

import argparse
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import cycle, groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
SEQUENCES = (ast.JoinedStr, ast.List, ast.Tuple)  # their operators have another meaning
TOO_LONG = "too long"
PARTS = {"applications", "features"}  # rooms whose tests may have other names than their modules
TESTED_ELSEWHERE = {
    "tfm/cli/commands.py": ["tests/cli/test_cli.py"],
    "tfm/cli/help.py": ["tests/cli/test_cli.py"],
    "tfm/text/corpus/loading.py": ["tests/text/test_corpus.py", "tests/text/test_opus.py"],
    "tfm/text/corpus/recipe.py": ["tests/text/test_corpus.py", "tests/text/test_opus.py"],
    "tfm/text/corpus/texts.py": ["tests/text/test_corpus.py", "tests/text/test_opus.py"],
    **{
        f"tfm/dataset/{name}.py": [
            "tests/commands/test_prepare.py",
            "tests/commands/test_prepare_shards.py",
        ]
        for name in ("checks", "clean_text", "draft", "shards", "text_writer")
    },
}


@dataclass(frozen=True)
class Mutant:
    """A change of a file, from the bytes [start:end] to others, and what became of it."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    before: str
    after: str
    source: str  # of the whole file, to know if it is still the same
    fate: str = ""
    killer: str = ""

    def applied(self) -> str:
        """Return the source with the change."""
        source = self.source.encode()
        return (source[: self.start] + self.after.encode() + source[self.end :]).decode()


def flipped(node: ast.AST) -> ast.AST | None:
    """Return a copy of an expression with its first operator changed, if it has one to change."""
    match node:
        case ast.Compare(ops=[first, *rest]) if type(first) in COMPARED:
            return ast.Compare(node.left, [COMPARED[type(first)](), *rest], node.comparators)
        case ast.BoolOp(op=ast.And()):
            return ast.BoolOp(ast.Or(), node.values)
        case ast.BoolOp():
            return ast.BoolOp(ast.And(), node.values)
        case ast.UnaryOp(op=ast.USub()):
            return node.operand
        case ast.AugAssign(op=ast.Add() | ast.Sub() as op) if not isinstance(node.value, SEQUENCES):
            return ast.AugAssign(node.target, COMPUTED[type(op)](), node.value)
        case ast.BinOp(op=op) if type(op) in COMPUTED:
            sides = (node.left, node.right)
            if not any(isinstance(side, SEQUENCES) or is_text(side) for side in sides):
                return ast.BinOp(node.left, COMPUTED[type(op)](), node.right)
    return None


def is_text(node: ast.AST) -> bool:
    """Whether an expression is a literal text."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def changed_default(node: ast.expr) -> ast.expr | None:
    """Return another default of a parameter."""
    match getattr(node, "value", ...):
        case bool() as value:
            return ast.Constant(not value)
        case int() | float() as value:
            return ast.Constant(value + 1)
        case None:
            return ast.Constant(0)
    return None


def call_changes(call: ast.Call) -> Iterator[tuple[str, ast.AST, str]]:
    """Generate the changes of a call: the first two arguments swapped, the other extreme."""
    match call.args:
        case [first, second, *rest] if ast.dump(first) != ast.dump(second):
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                swapped = ast.Call(call.func, [second, first, *rest], call.keywords)
                yield "arguments swapped", call, ast.unparse(swapped)
    match call.func:
        case ast.Name(id=name) if name in EXTREMES:
            yield "operator", call.func, EXTREMES[name]
        case ast.Attribute(value=value, attr=name) if name in EXTREMES:
            yield "operator", call.func, f"{ast.unparse(value)}.{EXTREMES[name]}"


def branch_changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Generate the changes that negate a condition, or make a branch unreachable."""
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "condition negated", node.test, f"(not ({ast.unparse(node.test)}))"
    kind = "branch dropped"
    match node:
        case ast.If(test=test, orelse=orelse):
            yield kind, test, "False"
            if orelse:
                yield kind, test, "True"
        case ast.IfExp(test=test):
            yield kind, test, "False"
            yield kind, test, "True"
        case ast.match_case(pattern=pattern, guard=None):
            yield kind, pattern, f"{ast.unparse(pattern)} if False"
        case ast.match_case(guard=ast.expr() as guard):
            yield kind, guard, "False"
        case ast.ExceptHandler(type=ast.expr() as caught):
            yield kind, caught, "()"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Generate the changes of a node: kind, what is replaced, new code."""
    if new := flipped(node):
        text = ast.unparse(new)
        yield "operator", node, text if isinstance(new, ast.stmt) else f"({text})"
    if isinstance(node, ast.Call):
        yield from call_changes(node)
    yield from branch_changes(node)
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield "constant", node, str(value + 1)
        case ast.UnaryOp(op=ast.Not()):
            yield "not removed", node, f"({ast.unparse(node.operand)})"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "returns None", value, "None"
        case ast.arguments():
            for default in filter(None, [*node.defaults, *node.kw_defaults]):
                if other := changed_default(default):
                    yield "default", default, ast.unparse(other)
        case _ if can_be_left_out(node):
            yield "statement left out", node, "pass"


def can_be_left_out(node: ast.AST) -> bool:
    """Whether a statement is no definition that later ones would miss at once."""
    match node:
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            return True
    return False


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Walk the code that runs: no annotations, no imports for types."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if isinstance(child, ast.AST) and not is_typing:
                yield from walk(child)


def mutants_of(path: str, source: str) -> list[Mutant]:
    """List all mutants of a module, by line."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in walk(ast.parse(source)):
        for kind, target, after in changes(node):
            assert isinstance(target, ast.expr | ast.stmt | ast.pattern)
            assert target.end_lineno is not None
            assert target.end_col_offset is not None
            start = starts[target.lineno - 1] + target.col_offset
            end = starts[target.end_lineno - 1] + target.end_col_offset
            before = source.encode()[start:end].decode()
            found.append(Mutant(path, target.lineno, kind, start, end, before, after, source))
    return sorted(found, key=lambda mutant: mutant.line)


def draw(root: Path, count: int, seed: int) -> list[Mutant]:
    """Draw mutants, at even distances over the lines of all modules."""
    generator = random.Random(seed)
    by_line: list[list[Mutant]] = []
    for path in sorted(root.glob("tfm/**/*.py")):
        source = path.read_text(encoding="utf-8")
        found = mutants_of(path.relative_to(root).as_posix(), source)
        lines: list[list[Mutant]] = [[] for _ in range(source.count("\n"))]
        for mutant in found:
            lines[mutant.line - 1].append(mutant)
        # A line without mutants stands for the next one that has some, in the same file.
        following = found[-1:]
        for line in reversed(lines):
            line[:] = following = line or following
        by_line += lines
    step = len(by_line) / count
    drawn = [by_line[int((number + generator.random()) * step)] for number in range(count)]
    chosen = {generator.choice(line) for line in drawn if line}
    return sorted(chosen, key=lambda mutant: (mutant.path, mutant.start, mutant.kind))


def draw_by_folder(root: Path, count: int, seed: int) -> list[Mutant]:
    """Draw mutants from the folders of the package in turn, of lines that are equally likely."""
    generator = random.Random(seed)
    by_folder: dict[Path, list[list[Mutant]]] = {}
    for path in sorted(root.glob("tfm/**/*.py")):
        module = path.relative_to(root)
        found = mutants_of(module.as_posix(), path.read_text(encoding="utf-8"))
        lines = by_folder.setdefault(module.parent, [])
        lines += [list(group) for _, group in groupby(found, key=lambda mutant: mutant.line)]
    folders = [lines for lines in by_folder.values() if lines]
    generator.shuffle(folders)
    chosen: dict[Mutant, None] = {}
    for lines in cycle(folders):
        if len(chosen) == count:
            return list(chosen)
        chosen[generator.choice(generator.choice(lines))] = None
    return []


def named_tests(root: Path, path: str) -> list[str]:
    """Return the test files named after a module, or all of its folder if there are none."""
    module = Path(path)
    depth = 3 if module.parts[1] in PARTS else 2
    folder = root / "tests" / Path(*module.parts[1:depth]).with_suffix("")
    files = sorted((folder if folder.is_dir() else root / "tests").rglob("test_*.py"))
    mirrored = re.compile(rf"test_{module.stem}(_.*)?")
    found = [file for file in files if mirrored.fullmatch(file.stem)]
    exact = [file for file in found if file.stem == f"test_{module.stem}"]
    of_folder = folder / f"test_{folder.name}.py"  # such as test_search.py, of all searches
    others = [*found, *filter(Path.is_file, [of_folder])]
    chosen = exact + [file for file in dict.fromkeys(others) if file not in exact]
    is_alone = module.parts[1] in PARTS or not importing_tests(root, path)
    if not chosen and folder.is_dir() and path not in TESTED_ELSEWHERE and is_alone:
        chosen = sorted(files, key=lambda file: file.stat().st_size)
    return [file.relative_to(root).as_posix() for file in chosen] or TESTED_ELSEWHERE.get(path, [])


def importing_tests(root: Path, path: str) -> list[str]:
    """Return the test files that import a module, small ones first."""
    package, _, name = path.removesuffix(".py").replace("/", ".").rpartition(".")
    pattern = re.compile(rf"{package}\.{name}\b|from {package} import .*\b{name}\b")
    files = root.glob("tests/**/test_*.py")
    found = [file for file in files if pattern.search(file.read_text(encoding="utf-8"))]
    found.sort(key=lambda file: file.stat().st_size)
    return [file.relative_to(root).as_posix() for file in found]


@dataclass(frozen=True)
class Bench:
    """A copy of a commit in which tests run."""

    root: Path
    limit: int

    def run(self, tests: Iterable[str]) -> str:
        """Run tests until one fails; return its name, or an empty text."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-rfE",
            "-p",
            "no:cacheprovider",
            *tests,
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            ["nice", "-n", "15", *command],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            return TOO_LONG
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode in {0, 5}:
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::\w+)*)", output, re.MULTILINE)
        return failed[1] if failed else " ".join(output.strip().splitlines()[-1:])

    @cache  # noqa: B019  # a process has one of these
    def passes(self, test: str) -> bool:
        """Whether a test passes without a mutant."""
        return "::" not in test or not self.run([test])

    def fate(self, mutant: Mutant, groups: list[list[str]]) -> Mutant:
        """Run groups of tests with a mutant, until one kills it."""
        path = self.root / mutant.path
        if not any(groups):
            return replace(mutant, fate="no mirrored test", killer="")
        for tests in filter(None, groups):
            path.write_text(mutant.applied(), encoding="utf-8")
            try:
                killer = self.run(tests)
            finally:
                path.write_text(mutant.source, encoding="utf-8")
            if killer == TOO_LONG:
                return replace(mutant, fate=TOO_LONG, killer="")
            if killer:
                fate = "killed" if self.passes(killer) else "killed by a test that fails anyway"
                return replace(mutant, fate=fate, killer=killer)
        return replace(mutant, fate="survived", killer="")


def test_groups(root: Path, mutant: Mutant, *, is_again: bool) -> list[list[str]]:
    """Return the tests of a mutant; if it was killed before, its killer's first."""
    named, importing = named_tests(root, mutant.path), importing_tests(root, mutant.path)
    if not is_again:
        return [named, [file for file in importing if file not in named][:6]]
    killer = [mutant.killer.partition("::")[0]] if mutant.killer.startswith("tests/") else []
    first = [file for file in killer if (root / file).exists()]
    rest = [file for file in dict.fromkeys([*named, *importing]) if file not in first]
    return [first, rest]


def write_table(out: Path, mutants: list[Mutant]) -> None:
    """Write the mutants that have run as JSON and as Markdown."""
    (out / "mutants.json").write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1))
    fates = ", ".join(f"{count} {fate}" for fate, count in Counter(m.fate for m in mutants).items())
    rows = [
        f"{len(mutants)} mutants: {fates}",
        "",
        "| place | change | fate | by |",
        "|---|---|---|---|",
    ]
    for mutant in mutants:
        before, after = (
            " ".join(text.split())[:60].replace("|", "\\|")
            for text in (mutant.before, mutant.after)
        )
        rows.append(
            f"| {mutant.path}:{mutant.line} | `{before}` → `{after}` "
            f"| {mutant.fate} | {mutant.killer} |"
        )
    (out / "mutants.md").write_text("\n".join(rows) + "\n", encoding="utf-8")


def copy_commit(commit: str, folder: Path) -> None:
    """Write the files of a commit into a folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)


def known_mutants(path: Path, root: Path) -> list[Mutant]:
    """Read the mutants of an earlier run whose module has not changed."""
    mutants = [Mutant(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    same = [
        mutant
        for mutant in mutants
        if (root / mutant.path).exists()
        and (root / mutant.path).read_text(encoding="utf-8") == mutant.source
    ]
    print(
        f"{len(mutants) - len(same)} of {len(mutants)} are in modules that have changed", flush=True
    )
    return same


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--again", type=Path, help="mutants.json of an earlier run")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=lambda text: int(text, 0), default=1)
    parser.add_argument("--by-folder", action="store_true", help="draw from each folder in turn")
    parser.add_argument("--limit", type=int, default=600, help="seconds for the tests of a mutant")
    parser.add_argument(
        "--also", nargs="*", default=[], help="more tests, for mutants that survive"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.limit)
        copy_commit(arguments.commit, bench.root)
        if arguments.again:
            mutants = known_mutants(arguments.again, bench.root)
        elif arguments.by_folder:
            mutants = draw_by_folder(bench.root, arguments.count, arguments.seed)
        else:
            mutants = draw(bench.root, arguments.count, arguments.seed)
            random.Random(arguments.seed).shuffle(mutants)  # the first ones are a sample, too
        done: list[Mutant] = []
        for mutant in mutants:
            groups = test_groups(bench.root, mutant, is_again=bool(arguments.again))
            done.append(bench.fate(mutant, [*groups, arguments.also]))
            last = done[-1]
            print(f"{last.path}:{last.line}: {last.kind}: {last.fate} {last.killer}", flush=True)
            write_table(arguments.out, done)


if __name__ == "__main__":
    main()
