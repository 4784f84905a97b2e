"""tfm prepare: treebanks become datasets of sentences, symbols and gold trees."""

import gzip
import tarfile

import pytest

from tfm.commands.prepare import prepare_recipe as prepare
from tfm.dataset.parallel import ParallelDataset
from tfm.text.corpus.loading import load_recipe, recipe_from_trees
from tfm.text.sources import Downloads
from tfm.text.trees import bracketed, linearize, normalize, words_of
from tfm.vocabulary.subword import UNK, Vocabulary

EXAMPLE = "treebank/generate"
SMALL = {"subword": {"vocab_size": 300, "byte_fallback": False}}


def write_treebank(path, trees):
    """Write a file with features of treebanks: function tags, traces, an unnamed root."""
    text = "".join(f"\n( {bracketed(tree.children[0])} )\n" for tree in trees)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(" (VP", "\n    (VP"), encoding="utf-8")
    return [normalize(tree) for tree in trees]


def lines(folder, name):
    return (folder / name).read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def treebank(tmp_path_factory, example):
    """Treebank files and their trees."""
    folder = tmp_path_factory.mktemp("wsj")
    train, more, test = (
        list(example.generate_trees(split, num_trees=num_trees, seed=3))
        for split, num_trees in (("train", 150), ("valid", 30), ("test", 40))
    )
    trees = {
        "train": write_treebank(folder / "02" / "wsj_0201.mrg", train)
        + write_treebank(folder / "02" / "wsj_0202.mrg", more),
        "test": write_treebank(folder / "23.mrg", test),
    }
    return folder, trees


@pytest.fixture(scope="module")
def dataset(treebank, tmp_path_factory):
    folder, _ = treebank
    out = tmp_path_factory.mktemp("data") / "wsj"
    recipe = recipe_from_trees(name="wsj", train=[folder / "02"], test=[folder / "23.mrg"])
    prepare(recipe, out, overrides=SMALL)
    return out


def test_validation_and_test_splits_have_gold_trees(dataset, treebank):
    assert lines(dataset, "test.gold") == [bracketed(tree) for tree in treebank[1]["test"]]
    assert not (dataset / "train.gold").exists()
    assert not (dataset / "valid.gold").exists()


def test_each_symbol_is_one_piece(dataset):
    vocabulary = Vocabulary.load(dataset)
    assert not vocabulary.is_joint
    symbols = lines(dataset, "train.trees")
    for line, ids in zip(symbols, vocabulary.target.encode(symbols), strict=True):
        assert len(ids) == len(line.split())
        assert UNK not in ids
    sizes = (len(vocabulary.source), len(vocabulary.target))
    binarized = ParallelDataset(dataset / "bin", "train", vocab_sizes=sizes)
    assert len(binarized) == len(symbols)


def test_trees_are_not_cleaned_by_rules_for_translations(tmp_path):
    long = "(S " + "(NP (NN rain)) " * 400 + ")"
    trees = [long, "(X (NN a))", "(X (NN a))", "(NP (NP (NP (NP (NP (NP (NP (NN a))))))))"]
    path = tmp_path / "own.mrg"
    path.write_text("\n".join(trees), encoding="utf-8")
    prepare(recipe_from_trees(name="x", train=[path]), tmp_path / "data", text_only=True)
    assert len(lines(tmp_path / "data", "train.trees")) == 4


def test_trees_of_traces_only_are_left_out_of_all_files(tmp_path):
    path = tmp_path / "own.mrg"
    path.write_text("(S (NN a))\n(S (-NONE- *))\n(S (NN b))\n", encoding="utf-8")
    recipe = recipe_from_trees(name="x", train=[path], test=[path])
    prepare(recipe, tmp_path / "data", text_only=True)
    assert lines(tmp_path / "data", "train.words") == ["a", "b"]
    assert lines(tmp_path / "data", "test.gold") == ["(S (NN a))", "(S (NN b))"]


def test_steps_are_repeated_only_for_a_changed_tree(treebank, tmp_path):
    train = tmp_path / "train.mrg"
    train.write_bytes((treebank[0] / "02" / "wsj_0201.mrg").read_bytes())
    recipe = recipe_from_trees(name="x", train=[train], test=[treebank[0] / "23.mrg"])
    out = tmp_path / "data"
    assert prepare(recipe, out, text_only=True).is_new
    assert not prepare(recipe, out, text_only=True).is_new
    (out / "test.gold").unlink()
    assert prepare(recipe, out, text_only=True).is_new
    train.write_text("(S (NN a))", encoding="utf-8")
    recipe = recipe_from_trees(name="x", train=[train])
    assert prepare(recipe, out, text_only=True, force=True).is_new
    assert lines(out, "train.words") == ["a"]
    assert not list(out.glob("test.*"))


def test_trees_in_archives_and_compressed_files_are_unpacked(treebank, tmp_path):
    folder, trees = treebank
    with tarfile.open(tmp_path / "wsj.tgz", "w:gz") as archive:
        archive.add(folder / "02" / "wsj_0201.mrg", "wsj/0201.mrg")
    content = (folder / "23.mrg").read_bytes()
    (tmp_path / "23.mrg.gz").write_bytes(gzip.compress(content))
    recipe_path = tmp_path / "wsj.toml"
    recipe_path.write_text(
        'name = "wsj"\nsource = "words"\ntarget = "trees"\ntask = "parsing"\n'
        '[[archives]]\nurl = "https://example.org/wsj.tgz"\n'
        '[[train]]\narchive = "wsj.tgz"\ntrees = "wsj/0201.mrg"\n'
        '[[test]]\ntrees = "23.mrg.gz"\n',
        encoding="utf-8",
    )
    out = tmp_path / "data"
    prepare(
        load_recipe(str(recipe_path)),
        out,
        downloads=Downloads(mirror=str(tmp_path)),
        text_only=True,
    )
    assert lines(out, "train.words") == [" ".join(words_of(t)) for t in trees["train"][:150]]
    assert lines(out, "test.gold") == [bracketed(tree) for tree in trees["test"]]


def test_the_command_takes_files_and_folders_of_trees(run, elsewhere, treebank):
    folder, trees = treebank
    run.ok(
        "prepare",
        *("--train-trees", folder / "02" / "wsj_0201.mrg"),
        *("--train-trees", folder / "02" / "wsj_0202.mrg"),
        *("--valid-trees", folder / "02"),
        *("--test-trees", folder / "23.mrg"),
        *("--out", "data/wsj"),
        *("--vocab-size", "250", "--no-byte-fallback"),
    )
    out = elsewhere / "data" / "wsj"
    for split in ("train", "valid"):
        assert lines(out, f"{split}.words") == [" ".join(words_of(t)) for t in trees["train"]]
        assert lines(out, f"{split}.trees") == [" ".join(linearize(t)) for t in trees["train"]]
    assert lines(out, "test.gold") == [bracketed(tree) for tree in trees["test"]]
    assert len(Vocabulary.load(out).source) == 250
