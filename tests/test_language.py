"""The field's terms in plain sentences: what must not come back; tensors with shapes."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("tfm", "tests", "benchmarks", "docs")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
PROSE = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "Makefile", "examples/**/*.*", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
TEXTS = [path for path in (*SOURCES, *PROSE) if path != Path(__file__)]

# Each with what to write instead.
PHRASES = {
    r"\bso (many|much)\b": "N, the number of",
    r"\b(go|goes|gone|going|went) on\b": "continue, resume",
    r"\b(come|comes|coming|came) on\b": "make progress",
    r'"""See `': "inherit the docstring with @override",
    r"^\s+[\w*]+: (Of|As|As of|For|By) ": "name the noun that is described",
    r'help="(Of|As|By) ': "name the noun that is described",
    r"\b(what|all that) (there is|comes of|becomes of)\b": "name it",
    r"\bdoes not do\b": "is not enough, fails",
    r"\b(stand|stands|standing) (before|behind|after|at)\b": "is",
    r"\b(is|are|be|being) told (?!apart)": "knows, is given",
    r"\bwhoever\b": "the process that, the caller",
    r"\bas (it|they) (stand|stands)\b": "unchanged",
    r"\bmade up of one's own\b": "own",
    r"\w(isation|ised|ising|iser|isers)\b(?<!promised)(?<!raised)(?<!raising)(?<!raiser)": "-ize",
    r"\b(colour|behaviour|neighbour|favour|centre|grey|licence|learnt|spelt)": "American spelling",
}
NAMES = {
    r"_?\w*MOST_\w+|_MOST": "MAX",
    r"_?[A-Z]+(_[A-Z]+)*_A_[A-Z_]+": "PER",
    r"[Ww]ishes|handicaps|needed_log_probs": "ControlFlags, diversity_penalties, min_log_probs",
    r"beat|Standing|not_coming_on": "heartbeat, RankStatus, stalled_ranks",
    r"BoundedStore|Session|Unfinished|Beams|Room": "the names of distributed and search",
    r"TransformerState|SentencePast|Past": "DecoderCache",
    r"greatest_and_log_sums|log_sums": "block_max_and_logsumexp",
    r"worth_computing|few_at_a_time": "compaction_threshold, single_sentence_fast_path",
    r"ready_product|make_ready|MakeReady": "prepack_linear",
    r"within|across|near|spread_out": "self_attention, cross_attention, window_mask",
}
# What a docstring must have that speaks of a tensor: its shape.
_SHAPE = re.compile(r"\[[^\]]+\]|\bscalar|\bany shape")


def _violations(text, patterns, path):
    for pattern, instead in patterns.items():
        for match in re.finditer(pattern, text, re.MULTILINE):
            number = text.count("\n", 0, match.start()) + 1
            yield f'{path.relative_to(ROOT)}:{number}: "{match[0].strip()}": {instead}'


def test_phrases_of_a_dialect_do_not_come_back():
    found = []
    for path in TEXTS:
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".sh", ""}:
            found += _violations(path.read_text(encoding="utf-8"), PHRASES, path)
    assert not found, "\n".join(found)


def test_names_of_a_dialect_do_not_come_back():
    found = []
    for path in SOURCES:
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        names = {(token.string, token.start[0]) for token in tokens if token.type == tokenize.NAME}
        found += [
            f'{path.relative_to(ROOT)}:{number}: "{name}": {instead}'
            for name, number in sorted(names, key=lambda each: each[1])
            for pattern, instead in NAMES.items()
            if re.fullmatch(pattern, name)
        ]
    assert not found, "\n".join(found)


def _public_functions(body, owner=""):
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield f"{owner}{node.name}", node


def _handles_tensors(function):
    arguments = [*function.args.args, *function.args.kwonlyargs]
    annotations = [argument.annotation for argument in arguments] + [function.returns]
    return any(each is not None and "Tensor" in ast.unparse(each) for each in annotations)


def _inherits_its_docstring(function):
    return any(ast.unparse(each) == "override" for each in function.decorator_list)


@pytest.mark.parametrize("path", sorted((ROOT / "tfm").rglob("*.py")), ids=lambda path: path.stem)
def test_every_public_function_of_tensors_documents_their_shapes(path):
    module = ast.parse(path.read_text(encoding="utf-8"))
    missing = [
        f"{path.relative_to(ROOT)}:{function.lineno}: {name}"
        for name, function in _public_functions(module.body)
        if _handles_tensors(function)
        and not _inherits_its_docstring(function)
        and not _SHAPE.search(ast.get_docstring(function) or "")
    ]
    assert not missing, "\n".join(missing)
