"""Write a treebank in disjoint splits, from the grammar and the words in grammar.toml.

    python examples/treebank/generate.py data/trees

The files train.mrg, valid.mrg and test.mrg of the folder have one tree per line, in brackets.
"""

import argparse
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random

from tfm.config import Values, read_toml
from tfm.text.corpus.texts import SPLITS, Split
from tfm.text.trees import TOP, TRACE, Tree, bare_label, bracketed, parse_trees, unescaped

_SIZES = (20_000, 300, 1_000)
_GRAMMAR = Path(__file__).with_name("grammar.toml")
_MIN_WORDS, _MAX_WORDS = 3, 40
_VOWELS = tuple("aeiou")
_CATEGORY = re.compile(r"([^\s()]+/[^\s()]+)")
_WORD = re.compile(rf"\((?!{TRACE} )([^\s()]+) ([^\s()]+)\)")

_TENSED = {"sg": "VBZ", "pl": "VBP", "past": "VBD", "base": "VB"}
_VALUES: dict[str, tuple[dict[str, str], ...]] = {
    "n": ({"n": "sg"}, {"n": "pl"}),
    "k": ({"k": "anim"}, {"k": "thing"}),
    "l": ({"l": "loc"}, {"l": "noloc"}),
    "f": tuple({"f": form, "V": tag} for form, tag in (_TENSED | {"inf": "VB"}).items()),
    "t": tuple({"t": form, "V": tag} for form, tag in _TENSED.items()),
}
_VERB_TAGS = ("VB", "VBZ", "VBD", "VBN", "VBG")


def write_treebank(folder: Path, sizes: Mapping[Split, int], *, seed: int = 1) -> None:
    """Write the trees of each split to a file of the folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, num_trees in sizes.items():
        trees = generate_trees(split, num_trees=num_trees, seed=seed)
        lines = "".join(f"{bracketed(tree)}\n" for tree in trees)
        (folder / f"{split}.mrg").write_text(lines, encoding="utf-8")


def generate_trees(split: Split, *, num_trees: int, seed: int) -> Iterator[Tree]:
    """Generate trees of distinct sentences, with function tags, traces and TOP as in a treebank.

    A hash of the sentence determines its split, so that splits of any size and seed are disjoint. A
    smaller number of trees gives a prefix of a larger one.
    """
    generator = _Generator(Random(seed))
    seen: set[str] = set()
    while len(seen) < num_trees:
        brackets, words = generator.sentence()
        sentence = unescaped(" ".join(words))
        is_usable = _MIN_WORDS <= len(words) <= _MAX_WORDS and split_of(sentence) == split
        if is_usable and sentence not in seen:
            seen.add(sentence)
            yield from parse_trees([(brackets, "the grammar")])


def split_of(sentence: str) -> Split:
    """Return the split to which a sentence belongs, by a hash: a tenth each for test and valid."""
    percent = int.from_bytes(hashlib.sha256(sentence.encode()).digest()[:8], "big") % 100
    return "test" if percent < 10 else "valid" if percent < 20 else "train"


class _Generator:
    """Generates trees by random choices from the grammar."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._words = lexicon()
        self._rules = {}
        for name, rules in grammar().items():
            weights, expansions = zip(*rules, strict=True)
            # Categories are at odd positions, and the brackets between them at even ones.
            # A label such as WHNP-# is one to which a trace is tied.
            parts = [("-# " in symbols, _CATEGORY.split(symbols)) for symbols in expansions]
            self._rules[name] = parts, list(itertools.accumulate(weights))
        self._num_indices = 0
        self._brackets: list[str] = []

    def sentence(self) -> tuple[str, list[str]]:
        """Return the brackets and the words of a tree."""
        self._num_indices, self._brackets = 0, []
        self._expand("root/any", 0)
        brackets = f"({TOP} {''.join(self._brackets)})"
        words = _spell([word for _, word in _WORD.findall(brackets)])
        spelled = iter(words)
        return _WORD.sub(lambda match: f"({match[1]} {next(spelled)})", brackets), words

    def _expand(self, category: str, index: int) -> None:
        """Add the brackets of a category; `index` ties traces to their antecedents."""
        label, name = _label_and_name(category)
        if name in self._words:
            self._brackets.append(f"({label} {self._random.choice(self._words[name])})")
            return
        expansions, weights = self._rules[name]
        [(ties_trace, symbols)] = self._random.choices(expansions, cum_weights=weights)
        if ties_trace:
            self._num_indices += 1
            index = self._num_indices
        if label:
            self._brackets.append(f"({label} ")
        for position, symbol in enumerate(symbols):
            if position % 2:
                self._expand(symbol, index)
            else:
                self._brackets.append(symbol.replace("#", str(index)))
        if label:
            self._brackets.append(")")


@cache
def _label_and_name(category: str) -> tuple[str, str]:
    """Return a category's label in the tree, if it has one, and its name without function tags."""
    label, _, features = category.partition("/")
    return "" if label.islower() else label, f"{bare_label(label)}/{features}"


def _spell(words: list[str]) -> list[str]:
    """Return the words with "an" before vowels, and the first word capitalized."""
    following = [word.lower() for word in [*words[1:], ""]]
    spelled = [
        "an" if word == "a" and after.startswith(_VOWELS) else word
        for word, after in zip(words, following, strict=True)
    ]
    first = next(index for index, word in enumerate(spelled) if word[0].isalnum())
    spelled[first] = spelled[first][0].upper() + spelled[first][1:]
    return spelled


def grammar() -> dict[str, list[tuple[int, str]]]:
    """Return the weighted expansions of each category; "root/any" is a whole sentence."""
    rules: dict[str, list[tuple[int, str]]] = {}
    category = ""
    for line in filter(None, _treebank()["rules"].splitlines()):
        if not line.startswith(" "):
            category = line
            continue
        weight, _, symbols = line.strip().partition(" ")
        placeholders = sorted(set(re.findall(r"\{([a-z])\}", category + symbols)))
        for choice in itertools.product(*(_VALUES[name] for name in placeholders)):
            values = {name: value for each in choice for name, value in each.items()}
            rule = int(weight), symbols.format_map(values)
            rules.setdefault(category.format_map(values), []).append(rule)
    return rules


def lexicon() -> dict[str, tuple[str, ...]]:
    """Return {"part of speech/class": words}; frequent words are repeated."""
    table = _treebank()
    words = {name: tuple(text.split()) for name, text in table["words"].items()}
    for name, text in table["nouns"].items():
        words |= _forms(text, (f"NN/{name}", f"NNS/{name}"))
    for name, text in table["verbs"].items():
        words |= _forms(text, tuple(f"{tag}/{name}" for tag in _VERB_TAGS))
        words[f"VBP/{name}"] = words[f"VB/{name}"]
    return words


def _forms(text: str, categories: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Parse entries with all forms of a word into {category: words}."""
    columns = zip(*(entry.split() for entry in text.split(",")), strict=True)
    return dict(zip(categories, columns, strict=True))


@cache
def _treebank() -> Values:
    return read_toml(_GRAMMAR)


def main() -> None:
    """Write the treebank to the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the files")
    parser.add_argument("--sizes", type=int, nargs=3, default=_SIZES, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sizes = dict(zip(SPLITS, arguments.sizes, strict=True))
    write_treebank(arguments.folder, sizes, seed=arguments.seed)


if __name__ == "__main__":
    main()
