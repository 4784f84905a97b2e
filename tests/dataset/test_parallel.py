"""The binarized format: data is read as written, and damage raises DataError."""

import json
import mmap
import shlex
import shutil
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import or_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from tfm.dataset.parallel import (
    ArrayWriter,
    DatasetIndex,
    ParallelDataset,
    ShardIds,
    TokenSequences,
)
from tfm.disk.files import sha256_of
from tfm.errors import DataError
from tfm.vocabulary.subword import EOS

VOCAB_SIZE = 400
FILES = [f"train.{lang}.{kind}.npy" for lang in ("en", "de") for kind in ("tokens", "offsets")]


def open_train(bin_dir):
    return ParallelDataset(bin_dir, "train", vocab_sizes=(VOCAB_SIZE, VOCAB_SIZE))


def open_verified(bin_dir):
    dataset = open_train(bin_dir)
    dataset.verify()
    return dataset


@pytest.fixture
def bin_dir(data_dir, tmp_path):
    """A copy for a test to damage."""
    return shutil.copytree(data_dir / "bin", tmp_path / "bin")


@pytest.fixture
def write_shard(tmp_path):
    """Write the same sentences on both sides of a shard; return their record."""

    def write(tokens, offsets, name="train"):
        for language in ("en", "de"):
            np.save(tmp_path / f"{name}.{language}.tokens.npy", np.array(tokens, np.uint16))
            np.save(tmp_path / f"{name}.{language}.offsets.npy", np.array(offsets, np.uint32))
        return ShardIds.of_files(tmp_path, name, ("en", "de"))

    return write


def read_sequences(folder, *shards, vocab_size=100):
    return TokenSequences(folder, shards, "en", 0, vocab_size=vocab_size)


@given(
    sentences=st.lists(st.lists(st.integers(4, 99), max_size=5), min_size=1, max_size=12),
    data=st.data(),
)
def test_parts_are_read_as_one(write_shard, tmp_path, sentences, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sentences)), max_size=4)))
    shards = []
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(sentences)], strict=True)):
        shard = sentences[start:end]
        offsets = np.cumsum([0, *map(len, shard)])
        shards.append(write_shard([*chain(*shard)], offsets, f"train.{1 + number}"))
    sequences = read_sequences(tmp_path, *shards)
    assert list(sequences) == sentences
    assert len(sequences) == len(sentences)
    assert sequences.longest == max(map(len, sentences))
    rows = np.array(data.draw(st.lists(st.integers(0, len(sentences) - 1), max_size=20)), int)
    ids, lengths = sequences.concatenate(rows)
    expected = [[*sentences[row], EOS] for row in rows]
    assert ids.tolist() == [*chain(*expected)]
    assert lengths.tolist() == [len(each) for each in expected]
    assert sequences.lengths(rows).tolist() == [len(sentences[row]) for row in rows]


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="this system has no such call")
def test_runs_that_will_be_needed_are_read_ahead(write_shard, tmp_path, monkeypatch):
    class File(bytes):
        def madvise(self, _, *place):
            places.append(place)

    shards = [write_shard([5, 6, 7, 8], [0, 1, 3, 4, 4]), write_shard([9], [0, 1], "train.2")]
    sequences, places = read_sequences(tmp_path, *shards), []
    monkeypatch.setattr(mmap, "PAGESIZE", 4)
    for number, size in enumerate((136, 130)):
        monkeypatch.setattr(sequences.side(number), "tokens_file", File(size))
    sequences.will_need(np.array([0, 1, 3, 4]), np.array([1, 2, 1, 9]))
    assert places == [(128, 2), (128, 8), (128, 2)]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_an_open_dataset_keeps_its_files_when_others_take_their_place(bin_dir, is_replaced):
    dataset = open_train(bin_dir)
    before = list(dataset.source), list(dataset.target)
    for path in bin_dir.iterdir():
        path.unlink()
        if is_replaced:
            np.save(path, np.arange(3, dtype=np.uint16))
    dataset.verify()
    dataset.source.will_need(np.array([0, 9]), np.array([5, 3]))
    assert (list(dataset.source), list(dataset.target)) == before


@pytest.mark.parametrize("offsets", [[], [0, 2, 4], [0, 2, 6], [1, 2, 5], [0, 4, 2, 5]], ids=str)
def test_offsets_that_do_not_fit_the_tokens_are_damage(write_shard, offsets):
    with pytest.raises(DataError, match=r"train\.en do not fit its tokens: .*binarize .* --force"):
        write_shard([5, 6, 7, 8, 9], offsets)


def test_ids_outside_the_vocabulary_are_damage(write_shard, tmp_path):
    shard = write_shard([5, 6, 7], [0, 3])
    assert len(read_sequences(tmp_path, shard, vocab_size=8)) == 1
    with pytest.raises(DataError, match=r"en has ids outside the vocabulary of 7 pieces"):
        read_sequences(tmp_path, shard, vocab_size=7)


def test_opening_reads_no_ids_and_verifying_reads_them(bin_dir):
    tokens = np.load(bin_dir / FILES[0])
    tokens[3] += 1
    np.save(bin_dir / FILES[0], tokens)
    dataset = open_train(bin_dir)
    dataset.verify([])
    with pytest.raises(DataError, match=r"en\.tokens\.npy is damaged \(its checksum differs"):
        dataset.verify([0])


def forge_checksums(bin_dir):
    """Write the index for damaged files, as an attacker would."""
    index = DatasetIndex.load(bin_dir)
    shards = {
        split: tuple(ShardIds.of_files(bin_dir, shard.name, index.languages) for shard in shards)
        for split, shards in index.shards.items()
    }
    replace(index, shards=shards).save(bin_dir)


def test_the_checksum_of_a_split_changes_with_its_data(bin_dir):
    index = DatasetIndex.load(bin_dir)
    before = index.checksum("train")
    assert before != index.checksum("test")
    tokens = np.load(bin_dir / FILES[0])
    tokens[3] += 1
    np.save(bin_dir / FILES[0], tokens)
    forge_checksums(bin_dir)
    open_verified(bin_dir)
    assert DatasetIndex.load(bin_dir).checksum("train") != before
    assert DatasetIndex.load(bin_dir).checksum("test") == index.checksum("test")


@pytest.mark.parametrize(
    "foreign",
    [
        np.zeros((3, 3), np.uint16),
        np.zeros(9, np.int64),
        np.zeros(9, np.float32),
        np.array([{"a": 1}], dtype=object),
    ],
    ids=["a matrix", "signed", "floats", "a pickle"],
)
def test_an_array_of_another_kind_is_refused(bin_dir, foreign):
    np.save(bin_dir / FILES[0], foreign, allow_pickle=True)
    with pytest.raises(DataError, match=r"en\.tokens\.npy is not a \.npy file of unsigned"):
        open_train(bin_dir)


def test_files_of_another_split_are_refused(bin_dir):
    for kind in ("tokens", "offsets"):
        shutil.copy(bin_dir / f"test.en.{kind}.npy", bin_dir / f"train.en.{kind}.npy")
    with pytest.raises(DataError, match=r"offsets of .*train\.en do not fit its tokens"):
        open_train(bin_dir)
    with pytest.raises(DataError, match=r"train in .* has 12 source and 200 target sentences"):
        forge_checksums(bin_dir)


def changed(key, value):
    """Return a function that changes a value of the first shard of the training split."""
    return lambda index: index["shards"]["train"][0].__setitem__(key, value)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.update(format=2),
        lambda index: index.update(target="../../de"),
        lambda index: index["shards"].update(train=[]),
        lambda index: index["shards"].update(train=index["shards"]["test"]),
        lambda index: index["shards"].update(train=2 * index["shards"]["train"]),
        changed("pairs", "200"),
        changed("pairs", 199),
        changed("tokens", [1, 2]),
        changed("longest", [1, 1]),
        changed("largest_id", [3, VOCAB_SIZE]),
        changed("name", "../train"),
        changed("sha256", {}),
        changed("sha256", dict.fromkeys(FILES, "1")),
    ],
)
def test_an_index_with_invalid_values_is_refused(bin_dir, change):
    path = bin_dir / "dataset.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"tfm binarize .* --force"):
        open_verified(bin_dir)


def test_the_error_for_an_unknown_split_lists_the_splits(data_dir):
    with pytest.raises(DataError, match="no dev split: it has train, valid, test"):
        ParallelDataset(data_dir / "bin", "dev", vocab_sizes=(VOCAB_SIZE, VOCAB_SIZE))


def test_the_index_is_read_as_written(bin_dir):
    index = DatasetIndex.load(bin_dir)
    index.save(bin_dir)
    assert DatasetIndex.load(bin_dir) == index
    checksums = [shard.sha256 for shards in index.shards.values() for shard in shards]
    assert reduce(or_, checksums) == {p.name: sha256_of(p) for p in bin_dir.glob("*.npy")}


@given(
    shards=st.lists(numpy_strategies.arrays(np.uint16, st.integers(0, 50)), max_size=5),
    dtype=st.sampled_from([np.uint16, np.uint32]),
)
def test_appended_arrays_are_read_as_one(tmp_path, shards, dtype):
    with (tmp_path / "a.npy").open("wb") as file:
        writer = ArrayWriter(file, dtype)
        for shard in shards:
            writer.append(shard)
        writer.finish()
    array = np.load(tmp_path / "a.npy")
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, np.concatenate([np.zeros(0, dtype), *shards]))


def test_the_command_that_repairs_a_dataset_works_in_a_shell(tmp_path):
    folder = tmp_path / "my user's data"
    with pytest.raises(DataError) as missing:
        DatasetIndex.load(folder / "bin")
    words = shlex.split(str(missing.value).rpartition(": run ")[2])
    assert words == ["tfm", "binarize", str(folder)]
