"""tfm binarize: lossless, in bounded memory, and repeated only after a change."""

import random
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import (
    binarize,
    contents,
    decoded,
    learn_bpe,
    opened,
    write_dataset,
    write_pairs,
    write_shards,
)

from tfm.commands.prepare import prepare_recipe
from tfm.config import BinarizeConfig, SubwordConfig
from tfm.dataset import encoded_shards
from tfm.dataset.manifest import Manifest
from tfm.errors import DataError
from tfm.text.corpus.loading import recipe_from_files
from tfm.vocabulary.subword import SubwordModel, Vocabulary

CONFIG = BinarizeConfig(threads=1)
SUBWORD = SubwordConfig(vocab_size=300)

TRAIN = [("the cat sat", "die Katze saß"), ("a dog", "ein Hund"), ("no", "nein nein")] * 7
TEST = [("", "leer"), (" the  cat ", " die\tKatze "), ("a" * 300, "\N{LOWER ONE EIGHTH BLOCK}")]


def make_dataset(folder, **splits):
    write_dataset(folder, splits)
    learn_bpe(folder, SUBWORD)
    return folder


@pytest.fixture
def folder(tmp_path):
    return make_dataset(tmp_path / "x", train=TRAIN, test=TEST)


def test_only_token_ids_of_older_data_are_removed(folder):
    binarize(folder, BinarizeConfig(threads=1))
    kept = {path.name for path in (folder / "bin").iterdir()} | {"notes.json", "mine.npy"}
    stale = ["train.2.en.tokens.npy", "valid.json"]
    for name in ("notes.json", "mine.npy", *stale):
        (folder / "bin" / name).write_bytes(b"x")
    binarize(folder, BinarizeConfig(threads=1), force=True)
    assert {path.name for path in (folder / "bin").iterdir()} == kept


def test_without_its_text_a_split_keeps_its_token_ids(tmp_path):
    folder = tmp_path / "x"
    recipe = recipe_from_files(
        name="x",
        train=[write_pairs(tmp_path, "train", TRAIN)],
        test=[write_pairs(tmp_path, "test", TEST)],
    )
    prepare_recipe(recipe, folder, {"subword": {"vocab_size": 300}})
    for name in ("test.de", "train.en"):
        (folder / name).unlink()
        before = contents(folder)
        with pytest.raises(DataError, match=f"{name} does not exist"):
            binarize(folder, CONFIG)
        assert contents(folder) == before


def test_blocks_and_threads_do_not_change_a_byte(folder, monkeypatch):
    results = []
    for size, threads in ((1, 1), (30, 2), (500, 5), (10_000_000, None)):
        monkeypatch.setattr("tfm.text.lines._BLOCK_BYTES", size)
        binarize(folder, BinarizeConfig(threads=threads), force=True)
        results.append(contents(folder / "bin"))
    assert results[0] == results[1] == results[2] == results[3]


def test_only_long_training_pairs_are_dropped_and_counted(folder):
    vocabulary = Vocabulary.load(folder)
    lengths = [
        max(len(vocabulary.source.encode([s])[0]), len(vocabulary.target.encode([t])[0]))
        for s, t in TRAIN
    ]
    limit = min(lengths)
    binarize(folder, BinarizeConfig(max_length=limit, threads=1))
    counts = Manifest.load(folder).result("binarize")
    kept = [pair for pair, length in zip(TRAIN, lengths, strict=True) if length <= limit]
    assert decoded(folder, "train") == kept
    assert decoded(folder, "test") == TEST
    assert (counts["train"]["read"], counts["train"]["kept"]) == (len(TRAIN), len(kept))
    assert counts["train"]["too_long"] == len(TRAIN) - len(kept) > 0
    assert counts["test"]["too_long"] == 0


def test_tokens_are_counted_and_recorded(folder):
    binarize(folder, CONFIG)
    counts = Manifest.load(folder).result("binarize")
    for split in ("train", "test"):
        dataset = opened(folder, split)
        sums = [sum(map(len, side)) for side in (dataset.source, dataset.target)]
        assert counts[split]["tokens"] == sums


def test_unknown_tokens_are_counted_and_warned_of(folder, capsys):
    learn_bpe(folder, SubwordConfig(vocab_size=40, byte_fallback=False))
    write_pairs(folder, "test", [("\N{SNOWMAN}", "die Katze"), ("cat", "\N{SNOWMAN} \N{SNOWMAN}")])
    binarize(folder, CONFIG)
    counts = Manifest.load(folder).result("binarize")
    assert counts["test"]["unknown"] == [1, 2]
    assert counts["train"]["unknown"] == [0, 0]
    output = capsys.readouterr().err
    assert "warning: test: " in output
    assert "warning: train: " not in output


BEFORE = ("Dvě kočky leží na žluté zdi.", "Two cats lie on a yellow wall.")
DECOMPOSED = (unicodedata.normalize("NFD", BEFORE[0]), BEFORE[1])


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ([DECOMPOSED] * 20, ["test.en: ", "U+030C", "--normalize-unicode"]),
        ([BEFORE] * 20, []),
        ([("一只狗", "x")] * 9, ["test.en: ", "U+4E00", "language"]),
        ([*[BEFORE] * 20, ("\U0001f469\u200d\U0001f680", "\U0001f469\u200d\U0001f680")], []),
        ([*[BEFORE] * 400, *[("🙂", "x")] * 15], ["test.en: ", "U+1F642"]),  # 0.6 %
    ],
    ids=["decomposed", "like training", "other script", "one emoji", "ten times training"],
)
def test_text_that_is_spelled_in_bytes_is_warned_of(tmp_path, capsys, test, words):
    folder = make_dataset(tmp_path / "x", train=[BEFORE] * 20, test=test)
    rules = {"normalization": {"unicode": False}}
    manifest = Manifest.load(folder)
    manifest.record("clean", inputs=rules, outputs=[], result={})
    manifest.save()
    binarize(folder, CONFIG)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "bytes (" in line]
    assert len(warnings) == bool(words)
    assert all(word in warnings[0] for word in words)
    counts = Manifest.load(folder).result("binarize")
    vocabulary = Vocabulary.load(folder)
    for split in ("train", "test"):
        ids = np.concatenate([*opened(folder, split).source, np.zeros(0, int)])
        num_bytes = np.count_nonzero(vocabulary.source.byte_values[ids] >= 0)
        assert counts[split]["byte_pieces"][0] == num_bytes


def test_ids_have_the_smallest_type_that_fits(folder):
    binarize(folder, CONFIG)
    assert np.load(folder / "bin" / "train.en.tokens.npy").dtype == np.uint16
    assert encoded_shards.id_dtype(1 << 16) == np.uint16
    assert encoded_shards.id_dtype((1 << 16) + 1) == np.uint32


@pytest.mark.parametrize("sizes", [(7, 7, 7), (1, 20), (21, 0)], ids=str)
def test_text_in_shards_gives_the_same_rows(folder, sizes):
    config = BinarizeConfig(threads=1, max_length=20)
    binarize(folder, config)
    one, counts = opened(folder, "train"), Manifest.load(folder).result("binarize")
    write_shards(folder, TRAIN, sizes)
    binarize(folder, config)
    several = opened(folder, "train")
    several.verify()
    assert len(several.shards) == len(sizes)
    assert [*several.source] == [*one.source]
    assert [*several.target] == [*one.target]
    for name in ("read", "too_long", "kept", "tokens", "unknown"):
        assert Manifest.load(folder).result("binarize")["train"][name] == counts["train"][name]


def test_files_of_shards_that_are_gone_are_removed(folder):
    write_shards(folder, TRAIN, (21,))
    binarize(folder, CONFIG)
    before = contents(folder / "bin")
    write_shards(folder, TRAIN, (10, 11))
    binarize(folder, BinarizeConfig(threads=1))
    (folder / "train.2.en").unlink()
    write_shards(folder, TRAIN, (21,))
    binarize(folder, CONFIG)
    assert contents(folder / "bin") == before


def test_unequal_line_counts_are_named_and_leave_no_dataset(folder):
    binarize(folder, CONFIG)
    with (folder / "train.en").open("a") as file:
        file.write("one more\n")
    with pytest.raises(DataError, match=r"train\.en has 22 lines, but .*train\.de has 21"):
        binarize(folder, CONFIG)
    with pytest.raises(DataError, match="tfm binarize"):
        opened(folder, "train")
    assert not list((folder / "bin").glob("*.partial"))


def test_a_dataset_without_text_or_model_says_what_to_run(tmp_path):
    folder = make_dataset(tmp_path / "x", train=TRAIN)
    (folder / "bpe.model").unlink()
    with pytest.raises(DataError, match="run tfm learn-bpe "):
        binarize(folder, CONFIG)
    learn_bpe(folder, SUBWORD)
    for path in folder.glob("train.*"):
        path.unlink()
    with pytest.raises(DataError, match="no text: run tfm prepare first"):
        binarize(folder, CONFIG)


def test_random_text_decodes_back_whatever_the_blocks(folder, monkeypatch):
    monkeypatch.setattr("tfm.text.lines._BLOCK_BYTES", 900)
    chooser = random.Random(1)
    alphabet = "abc äß\t\x1f\u2581\ufdd0\u2028\U0001f600"

    def line():
        return "".join(chooser.choices(alphabet, k=chooser.randrange(30)))

    pairs = [(line(), line()) for _ in range(200)]
    hostile = [
        ("\0", "a\0b"),
        ("x" * 100_000, "y z " * 25_000),
        ("\u2028", "\x0b\x0c\x85"),
        ("", ""),
    ]
    write_pairs(folder, "train", pairs)
    write_pairs(folder, "valid", hostile)
    binarize(folder, BinarizeConfig(threads=2))
    assert decoded(folder, "train") == pairs
    assert decoded(folder, "valid") == hostile
    dataset, vocabulary = opened(folder, "train"), Vocabulary.load(folder)
    sides = (dataset.source, vocabulary.source), (dataset.target, vocabulary.target)
    for side, (sentences, model) in enumerate(sides):
        assert list(sentences) == [model.encode([pair[side]])[0] for pair in pairs]


def test_blocks_are_read_only_as_they_are_needed():
    num_read = 0

    def blocks():
        nonlocal num_read
        while True:
            num_read += 1
            yield [b"the cat"], [b"die Katze"]

    with ThreadPoolExecutor(2) as threads:
        encoded = encoded_shards.map_in_order(threads, len, blocks(), num_ahead=4)
        for _ in range(10):
            next(encoded)
    assert num_read <= 10 + 2 * 2


def break_reading(folder, monkeypatch):
    (folder / "train.de").write_bytes((folder / "train.de").read_bytes() + b"\xff\n")
    return DataError


def break_encoding(folder, monkeypatch):
    def broken(self, lines):
        raise MemoryError

    monkeypatch.setattr(SubwordModel, "encode_block", broken)
    return MemoryError


def press_ctrl_c(folder, monkeypatch):
    def update(self, count):
        raise KeyboardInterrupt

    monkeypatch.setattr(encoded_shards.Progress, "update", update)
    return KeyboardInterrupt


@pytest.mark.parametrize("interrupt", [break_reading, break_encoding, press_ctrl_c])
def test_whatever_stops_it_leaves_neither_threads_nor_files(folder, monkeypatch, interrupt):
    monkeypatch.setattr("tfm.text.lines._BLOCK_BYTES", 30)
    with pytest.raises(interrupt(folder, monkeypatch)):
        binarize(folder, BinarizeConfig(threads=2))
    assert not [each for each in threading.enumerate() if each.name.startswith("binarize")]
    assert not list((folder / "bin").iterdir())


def test_a_subword_model_that_is_not_the_one_learnt_is_said(folder, capsys):
    binarize(folder, CONFIG)
    assert "another subword model" not in capsys.readouterr().err
    path = folder / "bpe.model"
    path.write_bytes(path.read_bytes() + b"\xf2\xff\x03\x00")  # a field that nobody knows
    binarize(folder, CONFIG)
    assert "is not the one that tfm learn-bpe wrote" in capsys.readouterr().err
