"""The documents agree with the code: files, commands, flags, settings, versions."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import tfm
from tfm.cli.main import app
from tfm.config import PRESETS

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "examples/**/*.md", "benchmarks/**/*.md", "examples/**/*.sh")
    for path in ROOT.glob(pattern)
)
README = (ROOT / "README.md").read_text(encoding="utf-8")

_TREE = re.compile(r"^## The tree\n+```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# "${name[@]}" of a possibly empty array, in the form that old versions of bash need.
_ARRAY = re.compile(r'\$\{(\w+)\[@\]\+"\$\{\1\[@\]\}"\}')
_TREE_LINE = re.compile(r"( *)(\S+)(?:  +(\S.*))?")


def tree():
    """The paths in the README's tree, each with its description."""
    [block] = _TREE.findall(README)
    described, folders = {}, []
    for line in block.splitlines():
        indent, name, description = _TREE_LINE.fullmatch(line).groups()
        folders[len(indent) // 2 :] = [name.rstrip("/")]
        described["/".join(folders) + "/" * name.endswith("/")] = description
    return described


def shell(path):
    """The shell lines of a document, continued lines joined."""
    text = path.read_text(encoding="utf-8")
    blocks = [text] if path.suffix == ".sh" else _SHELL.findall(text)
    script = "\n".join(blocks).replace("\\\n", " ")
    script = _ARRAY.sub("", script)
    return re.sub(r"\$\{\w+:\+([^}]*)\}", r"\1", script).splitlines()


def commands(line):
    """The arguments of each `tfm` in a shell line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split = True
    command = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|;&<>()"):
            if command[:1] == ["tfm"]:
                yield command[1:]
            command = [] if set(word) <= set("|;&()") else ["<", *command]
        elif command[:1] == ["<"]:
            command = command[1:]  # drop the file of a redirection
        else:
            command.append(word)


LINES = [(path, line) for path in DOCUMENTS for line in shell(path)]
COMMANDS = [arguments for _, line in LINES for arguments in commands(line)]


def test_the_readme_has_a_tree_and_commands():
    assert len(tree()) > 20
    assert len(COMMANDS) > 5
    assert {arguments[0] for arguments in COMMANDS} >= {"prepare", "train", "generate", "score"}


def test_every_path_of_the_tree_exists():
    for name in tree():
        path = ROOT / name
        assert path.is_dir() if name.endswith("/") else path.is_file(), name


def test_every_line_of_the_tree_has_a_description():
    assert [name for name, description in tree().items() if not description] == []


def test_every_module_and_folder_of_the_package_is_in_the_tree_once():
    [block] = _TREE.findall(README)
    assert len(tree()) == len(block.splitlines())
    package = ROOT / "tfm"
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*.py")
        if path.name != "__init__.py" or path.parent == package
    }
    folders = {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in package.rglob("*.py")}
    listed = {name for name in tree() if name.startswith("tfm/")}
    recipes = {"tfm/recipes/"}
    assert listed - recipes == modules | folders


def test_every_top_level_folder_of_source_is_in_the_tree():
    listed = {name.partition("/")[0] for name in tree()}
    assert {"tfm", "tests", "examples", "benchmarks"} <= listed


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_parses(arguments):
    group = typer.main.get_command(app)
    with group.make_context("tfm", list(arguments)) as context:
        name, command, rest = group.resolve_command(context, list(arguments))
        if name == "bench":
            name, command, rest = command.resolve_command(context, rest)
        with command.make_context(name, rest, parent=context) as parsed:
            arch = parsed.params.get("arch")
    assert arch is None or arch in PRESETS or "$" in arch


def test_every_flag_that_a_document_names_exists():
    group = typer.main.get_command(app)
    flags = {
        flag
        for command in [group, *group.commands.values(), *group.commands["bench"].commands.values()]
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "--nproc-per-node"}  # a flag of torchrun
    examples = [*ROOT.glob("examples/*/README.md"), *ROOT.glob("examples/*/run.sh")]
    for path in (ROOT / "README.md", *examples):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text(encoding="utf-8")))
        assert named - flags == set(), path


def test_every_link_to_a_file_is_valid():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_no_document_has_placeholders():
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"@[A-Z0-9_]+@|\bTODO\b|\bTBD\b|\bFIXME\b", text) == [], path.name


def test_python_code_in_the_readme_compiles():
    for block in re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL):
        compile(block, "README.md", "exec")


def test_the_changelog_starts_with_the_version_of_the_package():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, *_ = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert newest == tfm.__version__


def test_every_preset_is_in_the_readme():
    for arch in PRESETS:
        assert f"`{arch}`" in README or f"--arch {arch}" in README
