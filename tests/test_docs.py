"""What users may copy from the documents works: commands, flags, links, files and Python."""

import inspect
import re
import shlex
import tomllib
from itertools import chain
from pathlib import Path

import generated
import pytest
import typer
from helpers import parsed_command
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tfm
from tfm.cli.main import app
from tfm.config import SearchConfig, presets, run_config
from tfm.text.corpus.loading import load_recipe
from tfm.text.corpus.recipe import Recipe

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
SCRIPTS = sorted(ROOT.glob("examples/**/*.sh"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

_SPAN = re.compile(r"`(tfm [a-z][^`…]*)`")
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^\$ ((?:.*\\\n)*.*)", re.MULTILINE)
# "${name[@]}" of a possibly empty array, in the form that old versions of bash need.
_ARRAY = re.compile(r'\$\{(\w+)\[@\]\+"\$\{\1\[@\]\}"\}')
_BENCHMARK = re.compile(r"`python\s+benchmarks/[^`]*`|^python benchmarks/.*", re.MULTILINE)
_OTHER_TOOLKIT = re.compile(
    r"^```text\n(?:fairseq|onmt|marian).*?^```|`--(?:lenpen|update-freq|normalize|exponential-smoothing)`",
    re.MULTILINE | re.DOTALL,
)
_EXAMPLE = re.compile(r"^(?:Example: |  )((?:tfm|echo) .*)", re.MULTILINE)  # of a --help


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
    for command in GROUP.commands.values()
    for line in _EXAMPLE.findall(inspect.cleandoc(command.help).replace("\\\n", " "))
]
COMMANDS = [
    arguments for line in [*(line for _, line in LINES), *EXAMPLES] for arguments in commands(line)
]


def prose(page):
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


_PYTHON_VERSION = PROJECT["project"]["requires-python"].removeprefix(">=")
_AVERAGED = {arch: run_config(arch).training.average_last for arch in ("base", "big")}
_PARSING = "beam {beam_size}, α {length_penalty:g}, source + {max_extra_length} tokens".format(
    **Recipe(name="trees", source="words", target="trees", task="parsing").settings("search")
)


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("Makefile", f"sys.version_info < ({_PYTHON_VERSION.replace('.', ', ')})"),
        ("README.md", f"tfm needs Python {_PYTHON_VERSION} or newer"),
        ("docs/explanation/paper.md", _PARSING),
        (
            "docs/how-to/compare-results.md",
            "the last {base} checkpoints for base".format(**_AVERAGED),
        ),
        ("docs/how-to/compare-results.md", "the last {big} for big".format(**_AVERAGED)),
        ("docs/how-to/export.md", f"tfm's default of {SearchConfig().length_penalty:g} "),
    ],
)
def test_a_value_whose_mistake_would_change_results_is_that_of_the_code(page, sentence):
    assert sentence in prose(page)


def test_the_documents_show_the_layers_that_lint_imports_checks():
    [layers] = [c["layers"] for c in PROJECT["tool"]["importlinter"]["contracts"] if "layers" in c]
    page = (DOCS / "contributing" / "architecture.md").read_text(encoding="utf-8")
    shown = re.findall(r"^(\w+(?: │ \w+)*)  +\S", page, re.MULTILINE)
    assert [layer.replace("│", "|") for layer in shown] == [
        layer.replace("tfm.", "") for layer in layers
    ]


def test_every_command_parses():
    assert {arguments[0] for arguments in COMMANDS} >= {*GROUP.commands}
    for arguments in COMMANDS:
        try:
            arch = parsed_command(arguments).get("arch")
        except Exception as error:
            error.add_note(f"of: tfm {shlex.join(arguments)}")
            raise
        assert arch is None or arch in presets() or "$" in arch, arguments


def test_every_flag_that_a_document_or_message_names_exists():
    commands = [GROUP, *GROUP.commands.values()]
    flags = {
        flag
        for command in commands
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    scripts = [path.read_text(encoding="utf-8") for path in ROOT.glob("examples/**/*.py")]
    flags |= set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', "\n".join(scripts)))
    # Flags of torchrun, srun, sbatch, pip, Docker, WSL, pymarian, eole, TensorBoard and hf.
    flags |= {"--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint"}
    flags |= {"--max-restarts", "--signals-to-handle", "--shutdown-timeout"}
    flags |= {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--help", "--extra-index-url"}
    flags |= {"--find-links", "--no-index", "--wheel-dir"}
    flags |= {"--build-arg", "--install", "--ipc", "--model", "--quiet", "--logdir"}
    flags |= {
        "--array",
        "--wrap",
        "--local-dir",
        "--stdin",
        "--cpu-threads",
        "--src",
        "--tgt",
        "--ref",
    }
    examples = [*ROOT.glob("examples/*/README.md"), *ROOT.glob("examples/*/run.sh")]
    documents = (path for path in DOCUMENTS if path.is_relative_to(DOCS))
    sources = (ROOT / "tfm").rglob("*.py")
    for path in (ROOT / "README.md", *documents, *examples, *sources):
        written, _, _ = path.read_text(encoding="utf-8").partition(generated.NOTE)
        text = _OTHER_TOOLKIT.sub("", _BENCHMARK.sub("", written))
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])", text))
        assert named - flags == set(), path


def rendered(path):
    """A document with the files that it includes."""
    text = path.read_text(encoding="utf-8")
    included = re.findall(r"^```\{include\} (.*)$", text, re.MULTILINE)
    return text + "".join((path.parent / name).read_text(encoding="utf-8") for name in included)


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


def test_only_packages_that_tfm_declares_are_advised_to_be_installed():
    """Anybody may register a name that nobody has, tfm's own included."""
    project = PROJECT["project"]
    declared = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    known = {canonicalize_name(Requirement(each).name) for each in declared} | {"mtdata", "triton"}
    folders = ("tfm", "benchmarks", "examples")
    sources = (path for name in folders for path in (ROOT / name).rglob("*.py"))
    for path in (*DOCUMENTS, *SCRIPTS, *sources):
        for words in re.findall(r"pip install ([^\n`&#;,:)]*)", path.read_text(encoding="utf-8")):
            names = [each for each in re.findall(r"[^\s'\"()]+", words) if each[0] not in "-./$"]
            for name in map(canonicalize_name, (re.split(r"[\[<>=~!]", each)[0] for each in names)):
                assert name in known, f"{path}: pip install {words}"


def test_every_path_that_the_docs_name_exists():
    for path in DOCUMENTS:
        if path.is_relative_to(DOCS):
            names = re.findall(
                r"`((?:tfm|tests|benchmarks|examples)/[^`\s]*)`", path.read_text(encoding="utf-8")
            )
            assert [name for name in names if not (ROOT / name).exists()] == [], path


@pytest.mark.parametrize("page", generated.PAGES)
def test_a_reference_page_is_that_of_the_code(page):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert text == generated.updated(page, text), "run `make reference`"


def test_each_command_has_a_page_of_the_reference():
    pages = (DOCS / "reference" / "commands").glob("*.md")
    assert {page.stem for page in pages} == {*GROUP.commands}


def test_every_message_that_troubleshooting_explains_is_one_of_tfm():
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tfm").rglob("*.py"))
    source = re.sub(r'"\s+f?"', "", source)  # strings of several lines
    page = (DOCS / "how-to" / "troubleshoot.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(messages) > 10
    assert [message for message in messages if message not in source] == []


def test_the_recipes_in_the_docs_are_valid(tmp_path):
    page = (DOCS / "how-to" / "recipe.md").read_text(encoding="utf-8")
    recipes = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for name in ("dev.en", "dev.de"):
        (tmp_path / name).touch()
    for recipe in recipes:
        (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
        assert load_recipe(str(tmp_path / "recipe.toml")).name.endswith("-en-de")


def test_the_settings_file_in_the_docs_is_valid():
    page = (DOCS / "how-to" / "change-model.md").read_text(encoding="utf-8")
    [settings] = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert run_config(None, tomllib.loads(settings)) != run_config("tiny")


def test_python_code_in_the_documents_compiles():
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for block in _PYTHON.findall(text):
            compile(block, str(path), "exec")


def test_the_python_example_of_the_front_page_translates(
    trained_run, tmp_path, monkeypatch, capsys
):
    [code] = _PYTHON.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    [folder] = re.findall(r'Translator\.load\("(.*)"\)', code)
    (tmp_path / "runs").mkdir()
    (tmp_path / folder).symlink_to(trained_run)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.count("\n") == 1


def test_the_page_of_the_python_api_trains_a_model_and_translates(
    data_dir, tmp_path, monkeypatch, capsys
):
    code = "".join(_PYTHON.findall((DOCS / "reference" / "api.md").read_text(encoding="utf-8")))
    monkeypatch.chdir(tmp_path)
    code = re.sub(r"prepare\(.*\)\.data_dir", "data_dir", code)
    exec(re.sub(r"max_steps=\d+", "max_steps=4", code), {"data_dir": data_dir})
    bleu, chrf, *translations, log_prob = capsys.readouterr().out.splitlines()
    assert [bleu.split()[0], chrf.split()[0], len(translations)] == ["BLEU", "chrF2", 3]
    assert float(log_prob) < 0


def test_the_changelog_starts_with_the_version_of_the_package():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, *_ = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert newest == tfm.__version__


def test_every_preset_is_in_the_docs_with_what_is_measured():
    page = (DOCS / "reference" / "presets.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(presets())
