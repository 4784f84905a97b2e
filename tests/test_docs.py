"""The documents agree with the code: files, commands, flags, settings, versions."""

import inspect
import json
import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path

import generated
import pytest
import typer

import tfm
from tfm.cli.main import app
from tfm.config import PRESETS, SearchConfig, run_config
from tfm.config.presets import suitable_arch
from tfm.data.corpus.loading import load_recipe
from tfm.distributed.launch import _JOIN_SECONDS
from tfm.distributed.rendezvous import _CAUSE_SECONDS
from tfm.stages.forecast import _MAX_DAYS, _MAX_EPOCHS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
SCRIPTS = sorted(ROOT.glob("examples/**/*.sh"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
TREE = (DOCS / "contributing" / "tree.md").read_text(encoding="utf-8")

_TREE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(tfm [a-z][^`…]*)`")
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^\$ ((?:.*\\\n)*.*)", re.MULTILINE)
# "${name[@]}" of a possibly empty array, in the form that old versions of bash need.
_ARRAY = re.compile(r'\$\{(\w+)\[@\]\+"\$\{\1\[@\]\}"\}')
_EXAMPLE = re.compile(r"^(?:Example: |  )((?:tfm|echo) .*)", re.MULTILINE)  # of a --help
_TREE_LINE = re.compile(r"( *)(\S+)(?:  +(\S.*))?")


def tree():
    """The paths in the tree, each with its description."""
    [block] = _TREE.findall(TREE)
    described, folders = {}, []
    for line in block.splitlines():
        indent, name, description = _TREE_LINE.fullmatch(line).groups()
        folders[len(indent) // 2 :] = [name.rstrip("/")]
        described["/".join(folders) + "/" * name.endswith("/")] = description
    return described


def shell(path):
    """The shell lines of a document, continued lines joined, and the commands in its sentences."""
    text = path.read_text(encoding="utf-8")
    spans = [re.sub(r"\bN\b", "1", " ".join(span.split())) for span in _SPAN.findall(text)]
    blocks = [*_SHELL.findall(text), *_CONSOLE.findall(text), *spans]
    blocks = [_with_values(text)] if path.suffix == ".sh" else blocks
    script = "\n".join(blocks).replace("\\\n", " ")
    script = _ARRAY.sub("", script)
    return re.sub(r"\$\{\w+:\+([^}]*)\}", r"\1", script).splitlines()


def _with_values(script):
    """A script with the numbers of its variables, and without its own last arguments."""
    script = re.sub(r"\$\{\w+:-([\d. ]+)\}", r"\1", script.replace('"${@:3}"', ""))
    for name, value in re.findall(r"\b(\w+)(?:=| in )([\d.]+)\b", script):
        script = script.replace(f'"${name}"', value).replace(f"${name} ", f"{value} ")
    return script


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


GROUP = typer.main.get_command(app)
LINES = [(path, line) for path in (*DOCUMENTS, *SCRIPTS) for line in shell(path)]
EXAMPLES = [
    line
    for _, command in generated.all_commands()
    for line in _EXAMPLE.findall(inspect.cleandoc(command.help).replace("\\\n", " "))
]
COMMANDS = [
    arguments for line in [*(line for _, line in LINES), *EXAMPLES] for arguments in commands(line)
]


def steps(arch):
    return f"{run_config(arch).training.max_steps:,}"


def pieces(recipe):
    return f"{load_recipe(recipe).subword['vocab_size']:,}"


_PARSING = "beam {beam_size}, α {length_penalty:g}, source + {max_extra_length} tokens".format(
    **load_recipe("generated-treebank").settings("search")
)
_MIN_PYTHON = PROJECT["project"]["requires-python"].removeprefix(">=")
_AVERAGED = {arch: run_config(arch).training.average_last for arch in ("base", "big")}
# Sentences that repeat a value of the code, by document.
REPEATED = [
    ("Makefile", f"tfm needs Python {_MIN_PYTHON} or newer"),
    ("Makefile", f"sys.version_info < ({_MIN_PYTHON.replace('.', ', ')})"),
    ("README.md", f"tfm needs Python {_MIN_PYTHON} or newer"),
    ("docs/explanation/failures.md", f"waits up to {_CAUSE_SECONDS:g} s for a more precise reason"),
    ("docs/explanation/paper.md", f"more than about {_MAX_DAYS} days or {_MAX_EPOCHS:,} epochs"),
    ("docs/explanation/paper.md", _PARSING),
    ("docs/how-to/compare-results.md", "the last {base} checkpoints for base".format(**_AVERAGED)),
    ("docs/how-to/compare-results.md", "the last {big} for big".format(**_AVERAGED)),
    ("docs/how-to/export.md", f"tfm's default of {SearchConfig().length_penalty:g} "),
    ("docs/how-to/parse.md", _PARSING),
    ("docs/how-to/several-machines.md", f"wait {_JOIN_SECONDS // 60} minutes for each other"),
    ("docs/reference/presets.md", f"of its {steps('small')} steps"),
    ("docs/tutorials/multi30k.md", f"learns {pieces('multi30k-en-de')} subwords"),
    ("docs/tutorials/multi30k.md", f"continues to the {steps('tiny')} steps of the preset"),
    ("docs/tutorials/quickstart.md", f"continues to the {steps('quickstart')} steps of the preset"),
    ("examples/wmt14/README.md", f"{pieces('wmt14-en-de')} joint BPE pieces"),
    ("examples/wmt14/README.md", f"with {pieces('wmt14-en-fr')} pieces"),
    ("examples/wmt14/README.md", f"train for {steps('base')} steps, big for {steps('big')}"),
]


def test_the_documents_have_a_tree_and_commands():
    assert len(tree()) > 20
    assert {arguments[0] for arguments in COMMANDS} >= {*GROUP.commands}
    assert len(EXAMPLES) > len(GROUP.commands)


def test_every_path_of_the_tree_exists():
    for name in tree():
        path = ROOT / name
        assert path.is_dir() if name.endswith("/") else path.is_file(), name


def test_every_line_of_the_tree_has_a_description():
    assert [name for name, description in tree().items() if not description] == []


def test_every_module_and_folder_of_the_package_is_in_the_tree_once():
    [block] = _TREE.findall(TREE)
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


def test_the_documents_show_the_layers_that_lint_imports_checks():
    [layers] = [c["layers"] for c in PROJECT["tool"]["importlinter"]["contracts"] if "layers" in c]
    layers = [layer.replace("tfm.", "") for layer in layers]
    page = (DOCS / "contributing" / "architecture.md").read_text(encoding="utf-8")
    shown = re.findall(r"^(\w+(?: │ \w+)*)  +\S", page, re.MULTILINE)
    assert [layer.replace("│", "|") for layer in shown] == layers
    guide = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    assert " → ".join(layers) in guide


def test_every_top_level_folder_of_source_is_in_the_tree():
    listed = {name.partition("/")[0] for name in tree()}
    assert {"tfm", "tests", "examples", "benchmarks", "docs"} <= listed


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_parses(monkeypatch, arguments):
    for check in ("_check_exists", "_check_takes_files"):
        monkeypatch.setattr(f"tfm.storage.paths.{check}", lambda *paths: None)
    with GROUP.make_context("tfm", list(arguments)) as context:
        name, command, rest = GROUP.resolve_command(context, list(arguments))
        if name == "bench":
            name, command, rest = command.resolve_command(context, rest)
        with command.make_context(name, rest, parent=context) as parsed:
            arch = parsed.params.get("arch")
    assert arch is None or arch in PRESETS or "$" in arch


def test_every_flag_that_a_document_or_message_names_exists():
    commands = [GROUP, *(command for _, command in generated.all_commands())]
    flags = {
        flag
        for command in commands
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    # Flags of torchrun, pip, table3.py, WSL and COMET.
    flags |= {"--help", "--nproc-per-node", "--extra-index-url", "--jobs"}
    flags |= {"--install", "--model", "--quiet"}
    examples = [*ROOT.glob("examples/*/README.md"), *ROOT.glob("examples/*/run.sh")]
    documents = (path for path in DOCUMENTS if path.is_relative_to(DOCS))
    sources = (p for p in (ROOT / "tfm").rglob("*.py") if p.name != "suggestions.py")
    for path in (ROOT / "README.md", *documents, *examples, *sources):
        text = re.sub(r"`python\s+benchmarks/[^`]*`", "", path.read_text(encoding="utf-8"))
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])", text))
        assert named - flags == set(), path


def rendered(path):
    """A document with the files that it includes and its generated part."""
    text = path.read_text(encoding="utf-8")
    included = re.findall(r"^```\{include\} (.*)$", text, re.MULTILINE)
    text += "".join((path.parent / name).read_text(encoding="utf-8") for name in included)
    page = path.resolve().relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")
    return text + generated.PAGES.get(page, str)()


def anchors(path):
    """The anchors of a document's headings, as GitHub and MyST form them."""
    headings = re.findall(r"^#+ (.*)$", rendered(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_to_a_file_or_heading_is_valid():
    for path in DOCUMENTS:
        links = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text(encoding="utf-8"))
        for name, anchor in links:
            target = path.parent / name if name else path
            assert target.exists(), f"{path.name}: {name}"
            assert not anchor or anchor in anchors(target), f"{path.name}: {name}#{anchor}"


def test_nothing_advises_to_install_another_project_named_tfm():
    folders = ("tfm", "benchmarks", "examples")
    sources = (path for name in folders for path in (ROOT / name).rglob("*.py"))
    for path in (*DOCUMENTS, *SCRIPTS, *sources):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"pip install[^\n`]*[\s'\"]tfm\b(?!-)", text) == [], path


def test_every_path_that_the_docs_name_exists():
    for path in DOCUMENTS:
        if path.is_relative_to(DOCS):
            names = re.findall(
                r"`((?:tfm|tests|benchmarks|examples)/[^`\s]*)`", path.read_text(encoding="utf-8")
            )
            assert [name for name in names if not (ROOT / name).exists()] == [], path


def test_every_page_is_in_the_table_of_contents_once():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    contents = re.findall(r"^([a-z-]+/[a-z0-9-]+)$", index, re.MULTILINE)
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.glob("*/*.md")}
    assert sorted(contents) == sorted(pages)


def test_the_generated_pages_have_every_command_flag_setting_and_preset():
    commands, settings = generated.commands(), generated.settings()
    for name, command in generated.all_commands():
        section = commands.partition(f"\n## tfm {name}\n")[2].partition("\n## ")[0]
        assert section.count("\n| `") == len(command.params)
        assert all(flag in section for each in command.params for flag in each.opts if "--" in flag)
    for kind in generated.all_groups():
        for item in fields(kind):
            assert re.search(
                rf"^\| `{item.name}` (\S+ )?\| {re.escape(default(item))} ", settings, re.M
            )
    assert re.findall(r"^## (.*)", generated.presets(), re.MULTILINE) == [*PRESETS]


def default(item):
    return "unset" if item.default is None else f"`{json.dumps(item.default)}`"


def test_generated_pages_continue_pages_that_say_so():
    for page in generated.PAGES:
        assert (DOCS / f"{page}.md").read_text(encoding="utf-8").endswith(f"\n\n{generated.NOTE}\n")


def prose(page):
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(("page", "sentence"), REPEATED)
def test_values_that_a_document_repeats_are_those_of_the_code(page, sentence):
    assert sentence in prose(page)


def test_no_document_repeats_another_default():
    for path in DOCUMENTS:
        page = path.relative_to(ROOT).as_posix()
        if page.startswith("docs/"):
            text = prose(page)
            for sentence in [sentence for name, sentence in REPEATED if name == page]:
                text = text.replace(sentence, "")
            pattern = (
                r"(?:\bdefaults? (?:of|is|to)|by default,?) `?[\d.]+|[\d,]+ steps of the preset"
            )
            assert re.findall(pattern, text) == [], page


@pytest.mark.parametrize("page", ["docs/reference/presets.md", "docs/tutorials/own-text.md"])
def test_the_documents_say_when_a_preset_is_chosen(page):
    [(fewer, million)] = re.findall(
        r"`tiny` for fewer than ([\d,]+) training pairs, `small` for more on a CPU or up to (.*?) "
        r"on a GPU, else `base`",
        prose(page),
    )
    tiny, small = int(fewer.replace(",", "")), {"a million": 1_000_000}[million]
    for number in tiny, small:
        names = [suitable_arch(n, on_gpu=True, task="text")[0] for n in (number - 1, number)]
        assert names == (["tiny", "small"] if number == tiny else ["small", "base"])
    assert suitable_arch(small, on_gpu=False, task="text")[0] == "small"


def test_presets_as_shown_in_the_docs_are_those_that_config_reads():
    blocks = re.findall(r"^```toml\n(.*?)^```", generated.presets(), re.MULTILINE | re.DOTALL)
    for arch, block in zip(PRESETS, blocks, strict=True):
        assert run_config(None, tomllib.loads(block)) == run_config(arch)


def test_every_message_that_troubleshooting_explains_is_one_of_tfm():
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tfm").rglob("*.py"))
    source = re.sub(r'"\s+f?"', "", source)  # strings of several lines
    page = (DOCS / "how-to" / "troubleshoot.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(messages) > 10
    assert [message for message in messages if message not in source] == []


def test_the_recipe_in_the_docs_is_valid(tmp_path):
    page = (DOCS / "how-to" / "recipe.md").read_text(encoding="utf-8")
    [recipe] = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for name, text in {"captions.toml": recipe, "dev.en": "yes\n", "dev.de": "ja\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert load_recipe(str(tmp_path / "captions.toml")).name == "captions-en-de"


def test_the_settings_file_in_the_docs_is_valid():
    page = (DOCS / "how-to" / "change-model.md").read_text(encoding="utf-8")
    [settings] = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert run_config(None, tomllib.loads(settings)) != run_config("tiny")


def test_the_readme_fits_a_few_screens():
    assert README.count("\n") <= 150


def test_no_document_has_placeholders():
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"@[A-Z0-9_]+@|\bTODO\b|\bTBD\b|\bFIXME\b", text) == [], path.name


def test_python_code_in_the_documents_compiles():
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for block in _PYTHON.findall(text):
            compile(block, str(path), "exec")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_python_example_of_a_front_page_translates(
    page, trained_run, tmp_path, monkeypatch, capsys
):
    code = "".join(_PYTHON.findall((ROOT / page).read_text(encoding="utf-8")))
    [folder] = re.findall(r'Translator\.load\("(.*)"\)', code)
    (tmp_path / "runs").mkdir()
    (tmp_path / folder).symlink_to(trained_run)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    num_lines = code.count("print(") + 2 * code.count("n_best=3")
    assert capsys.readouterr().out.count("\n") == num_lines


def test_the_page_of_the_python_api_trains_a_model_and_translates(tmp_path, monkeypatch, capsys):
    code = "".join(_PYTHON.findall((DOCS / "reference" / "api.md").read_text(encoding="utf-8")))
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    bleu, chrf, *translations, log_prob = capsys.readouterr().out.splitlines()
    assert [bleu.split()[0], chrf.split()[0], len(translations)] == ["BLEU", "chrF2", 3]
    assert float(log_prob) < 0


def test_the_changelog_starts_with_the_version_of_the_package():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, *_ = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert newest == tfm.__version__


def test_every_preset_is_in_the_docs_with_what_is_measured():
    page = (DOCS / "reference" / "presets.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(PRESETS)
