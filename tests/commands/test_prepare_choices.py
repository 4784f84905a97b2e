"""tfm prepare: held-out pairs of the training text, and the best of pairs that share a side."""

import random
from dataclasses import replace

import pytest
from helpers import write_lines, write_pairs

from tfm.commands.prepare import append_text
from tfm.commands.prepare import prepare_recipe as prepare
from tfm.dataset.manifest import Manifest
from tfm.dataset.shards import Share
from tfm.errors import DataError, UsageError
from tfm.text.corpus.loading import recipe_from_files
from tfm.text.line_hashes import hash_lines
from tfm.text.lines import read_pairs
from tfm.text.seen import SeenText

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "zu", "ре", "س", "雪") for b in ("na", "ra", "ta")]


def sentences(number, seed):
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=9)) for _ in range(number)]


def pairs_of(seed, number=1_200):
    """Return pairs, each third of which is once more there, with a changed word or side."""
    pairs = list(zip(sentences(number, seed), sentences(number, -seed - 1), strict=True))
    near = [(f"{s.upper()} {WORDS[0]}", f"{n} {WORDS[1]}") for n, (s, _) in enumerate(pairs[::3])]
    return [*pairs, *near, *((f"x {n} y", t) for n, (_, t) in enumerate(pairs[::5]))]


def recipe(folder, pairs, **splits):
    train = write_pairs(folder, "raw", pairs)
    return recipe_from_files(name="x", train=[train], languages=("en", "de"), **splits)


def run(recipe, folder, share=None, **cleaning):
    overrides = {"cleaning": {"max_length_ratio": 0.0, **cleaning}}
    return prepare(recipe, folder, overrides, text_only=True, share=share)


def read(folder, split):
    manifest = Manifest.load(folder)
    paths = [manifest.text_paths(shard.name) for shard in manifest.shards(split)]
    return [pair for each in paths for pair in read_pairs(*each, strict=True)]


def dropped(folder, rule):
    return Manifest.load(folder).result("clean")["train"]["dropped"].get(rule, 0)


def share_of(lines, others):
    """Return which lines have the same words as others, or nearly."""
    return SeenText.of_lines(others).look_up(lines)[1]


def test_held_out_text_shares_no_side_with_the_training_text_or_its_other_part(tmp_path):
    pairs = pairs_of(1)
    folder = tmp_path / "data"
    assert run(recipe(tmp_path, pairs), folder, hold_out=60).is_new
    assert not run(recipe(tmp_path, pairs), folder, hold_out=60).is_new
    train, *held_out = (read(folder, split) for split in ("train", "valid", "test"))
    assert [len(part) for part in held_out] == [60, 60]
    given = {tuple(side.encode() for side in pair) for pair in pairs}
    assert {*train, *held_out[0], *held_out[1]} <= given
    for side in (0, 1):
        lines = [[pair[side] for pair in part] for part in (train, *held_out)]
        assert len({*hash_lines(lines[1] + lines[2])[0].tolist()}) == 120
        assert not share_of(lines[0], lines[1] + lines[2]).any()
    assert dropped(folder, "protected") == len(pairs) - len(train) > 120
    lost = [pair for pair in given if pair not in {*train, *held_out[0], *held_out[1]}]
    for one, other in lost:  # nothing else is lost
        assert share_of([one, other], [s for part in held_out for p in part for s in p]).any()


def test_no_pair_is_chosen_where_none_passes_the_rules(tmp_path):
    with pytest.raises(DataError, match="no pairs are left of the train text: 0 of 1 pairs"):
        run(recipe(tmp_path, [("same", "same")]), tmp_path / "data", unique_sides="both")


def test_the_seed_and_the_text_alone_decide_what_is_held_out(tmp_path):
    pairs = pairs_of(2)
    for name, options in {"a": {}, "b": {"shard_pairs": 100}, "c": {"hold_out_seed": 2}}.items():
        run(recipe(tmp_path, pairs), tmp_path / name, hold_out=50, **options)
    one, other, third = ([read(tmp_path / name, s) for s in ("valid", "test")] for name in "abc")
    assert one == other
    assert len({*one[0], *one[1]} & {*third[0], *third[1]}) < 30  # of 100
    for number in (2, 1):
        run(recipe(tmp_path, pairs), tmp_path / "d", Share(number, 2), hold_out=50, shard_pairs=900)
    run(recipe(tmp_path, pairs), tmp_path / "d", hold_out=50, shard_pairs=900)
    assert [read(tmp_path / "d", split) for split in ("valid", "test")] == one
    assert read(tmp_path / "d", "train") == read(tmp_path / "a", "train")


def test_only_what_is_missing_is_held_out_and_appended_text_is_kept_apart(tmp_path):
    pairs, folder = pairs_of(3), tmp_path / "data"
    test = write_pairs(tmp_path, "test", [("One test.", "Ein Test.")])
    with_test = replace(recipe(tmp_path, pairs, test=[test]), subword={"symbols": "<bt>"})
    run(with_test, folder, hold_out=40)
    assert (len(read(folder, "valid")), read(folder, "test")) == (
        40,
        [(b"One test.", b"Ein Test.")],
    )
    num_before = len(read(folder, "train"))
    copies = [(s.decode() + "!", t.decode().title()) for s, t in read(folder, "valid")]
    more = recipe(tmp_path, [*copies, *pairs_of(4)])
    tagged = tuple(replace(text, tag="<bt>") for text in more.train)
    append_text(replace(more, train=tagged), folder, text_only=True)
    new = [source.removeprefix(b"<bt> ") for source, _ in read(folder, "train")[num_before:]]
    assert len(new) > 1_000
    assert not share_of(new, [s for s, _ in read(folder, "valid")]).any()
    with pytest.raises(UsageError, match="no effect beside validation and test text"):
        run(recipe(tmp_path, pairs, valid=[test], test=[test]), tmp_path / "x", hold_out=1)
    with pytest.raises(DataError, match=r"only 1,600 of .* but 4,000 are needed"):
        run(recipe(tmp_path, pairs), tmp_path / "y", hold_out=2_000)


SHARED = [
    ("a b", "x y"),
    ("a b", "x z"),
    ("c d", "x y"),
    ("e f", "u v"),
    ("c d", "w w"),
    ("e f", "u v"),
]
KEPT = {
    (None, "source"): [0, 2, 3],
    (None, "target"): [0, 1, 3, 4],
    (None, "both"): [0, 3, 4],
    ("1 2 3 1 2 9", "source"): [1, 2, 3],
    ("1 2 3 1 2 9", "target"): [1, 2, 3, 4],
    ("1 2 3 1 2 9", "both"): [1, 2, 3],
}


@pytest.mark.parametrize(("scores", "sides"), KEPT)
@pytest.mark.parametrize("shard_pairs", [100, 10_000])
def test_one_pair_of_those_with_a_side_is_kept(tmp_path, scores, sides, shard_pairs):
    filler = [(f"filler {n}", f"Füller {n}") for n in range(197)]
    pairs = [*filler, *SHARED]
    options = {"unique_sides": sides, "shard_pairs": shard_pairs}
    if scores:
        lines = ["0.5"] * len(filler) + scores.split()
        options["scores"] = str(write_lines(tmp_path / "scores", lines))
    folder = tmp_path / "data"
    run(recipe(tmp_path, pairs), folder, **options)
    kept = [tuple(map(bytes.decode, pair)) for pair in read(folder, "train")]
    assert kept == [*filler, *(SHARED[number] for number in KEPT[scores, sides])]
    assert dropped(folder, "repeated_side") == 5 - len(KEPT[scores, sides])
    assert dropped(folder, "duplicate") == 1
    more = [("a b", "new"), ("new", "x y"), ("new", "neu")]
    append_text(recipe(tmp_path, more), folder, text_only=True)
    added = {"source": [more[1]], "target": [more[0], more[2]], "both": [more[2]]}[sides]
    assert [tuple(map(bytes.decode, pair)) for pair in read(folder, "train")] == kept + added


def test_scores_of_a_file_are_compared_with_the_least_score(tmp_path):
    pairs = [(f"source  {n}", f"Ziel {n}") for n in range(300)]
    pairs[7] = ("", "empty")
    scores = write_lines(tmp_path / "scores", [str(n % 10 / 10) for n in range(300)])
    run(
        recipe(tmp_path, pairs),
        tmp_path / "data",
        scores=str(scores),
        min_score=0.8,
        shard_pairs=100,
    )
    kept = [int(source.split()[1]) for source, _ in read(tmp_path / "data", "train")]
    assert kept == [n for n in range(300) if n % 10 >= 8]
    assert dropped(tmp_path / "data", "low_score") == 239
    for lines, message in (
        (["1"] * 299, "has 299 numbers, but the training text has at least 300 pairs"),
        (["1"] * 301, "has 301 numbers, but the training text has 300 pairs"),
        (["1"] * 298 + ["high", "nan"], "line 299 is no number"),
        (["1"] * 299 + ["1_000"], "line 300 is no number"),
    ):
        write_lines(tmp_path / "scores", lines)
        with pytest.raises(DataError, match=message):
            run(recipe(tmp_path, pairs), tmp_path / "x", scores=str(scores), min_score=0.8)
    with pytest.raises(UsageError, match="--share excludes"):
        run(recipe(tmp_path, pairs), tmp_path / "x", Share(1, 2), unique_sides="both")
