"""Text in shards: written, appended and binarized by several processes, it is the same dataset."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
from helpers import binarize, contents, edit_json, learn_bpe, number_pairs, opened, write_pairs

from tfm.commands import binarize as command
from tfm.commands.prepare import append_text
from tfm.commands.prepare import prepare_recipe as prepare
from tfm.config import BinarizeConfig, SubwordConfig
from tfm.dataset import draft
from tfm.dataset.draft import lock_dataset, lock_share
from tfm.dataset.encoded_shards import encoding_settings
from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import DatasetIndex
from tfm.dataset.shards import Share
from tfm.disk.lock import LockedFolderError, lock_folder
from tfm.errors import DataError, UsageError
from tfm.text import hashes as text_hashes
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import TextFiles
from tfm.text.hashes import SeenHashes
from tfm.vocabulary.subword import Vocabulary

SMALL_SHARDS = {"cleaning": {"shard_pairs": 100}}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Three texts with duplicates in each and among them."""
    folder = tmp_path_factory.mktemp("texts")
    pairs = list(islice(number_pairs("train", num_pairs=400, seed=1), 400))
    slices = {"a": (0, 230), "b": (200, 330), "c": (100, 400), "t": (390, 400)}
    for name, (start, end) in slices.items():
        again = pairs[start : start + 20] if name == "b" else []
        write_pairs(folder, name, pairs[start:end] + again)
    return folder


@pytest.fixture
def recipe(texts):
    def make(*names, test=("t",), **settings):
        def files(name, **options):
            paths = {side: str(texts / f"{name}.{lang}") for side, lang in SIDES.items()}
            return TextFiles(**paths, **options)

        train = tuple(files(name, tag="<x>" if name == "b" else None) for name in names)
        return Recipe(
            name="x",
            source="en",
            target="de",
            train=train,
            test=tuple(map(files, test)),
            **settings,
        )

    return make


SIDES = {"source": "en", "target": "de"}
SETTINGS = {"subword": {"vocab_size": 360, "symbols": "<x>"}}


def names_of(folder):
    return [shard.name for shard in Manifest.load(folder).shards("train")]


def sizes_of(folder):
    shards = Manifest.load(folder).shards("train")
    return [sum(text.kept for text in shard.texts) for shard in shards]


def text_of(folder):
    names = names_of(folder)
    return ["".join((folder / f"{n}.{lang}").read_text() for n in names) for lang in ("en", "de")]


def rows_of(folder):
    dataset = opened(folder)
    dataset.verify()
    return list(dataset.source), list(dataset.target)


@pytest.fixture
def whole(recipe, tmp_path):
    """A dataset of all texts in one shard."""
    return prepare(recipe("a", "b", "c", **SETTINGS), tmp_path / "whole").data_dir


@pytest.mark.parametrize(
    "order", [[], [(1, 1)], [(3, 3), (1, 3), (2, 3)], [(2, 4), (1, 2)]], ids=str
)
def test_text_in_shards_also_of_shares_is_as_in_one_pass(recipe, whole, tmp_path, capsys, order):
    texts, folder = recipe("a", "b", "c", **SETTINGS), tmp_path / "shards"
    other = prepare(texts, tmp_path / "one process", overrides=SMALL_SHARDS).data_dir
    for number, count in order:
        for _ in range(2):  # the second call has the same result
            prepare(texts, folder, overrides=SMALL_SHARDS, share=Share(number, count))
    assert prepare(texts, folder, overrides=SMALL_SHARDS).is_new
    assert names_of(folder) == ["train", *(f"train.{number}" for number in range(2, 8))]
    files = without_times(folder)
    assert {name: files[name] for name in files if not name.startswith("shares/")} == without_times(
        other
    )
    assert text_of(folder) == text_of(whole)
    assert (folder / "bpe.model").read_bytes() == (whole / "bpe.model").read_bytes()
    assert rows_of(folder) == rows_of(whole)
    for read in (Manifest.texts, lambda manifest, split: manifest.result("clean")[split]):
        one, two = (read(Manifest.load(each), "train") for each in (whole, folder))
        assert one == two
    assert not prepare(texts, folder, overrides=SMALL_SHARDS).is_new
    capsys.readouterr()
    prepare(texts, folder, overrides=SMALL_SHARDS, share=Share(2, 3))  # of text that is complete
    assert "unchanged" in capsys.readouterr().err
    assert {path.name for path in folder.glob("shares/*/*")} <= {".lock"}
    with pytest.raises(UsageError, match="choose fewer shares"):
        prepare(texts, tmp_path / "other", overrides=SMALL_SHARDS, share=Share(9, 9))


def without_times(folder):
    """Return the bytes of the files of a folder, without the times of its text files."""
    found = contents(folder)
    manifest = json.loads(found.pop("manifest.json"))
    del manifest["text_files"], manifest["name"]
    return found | {"manifest.json": manifest}


def test_appended_text_is_as_in_one_pass_and_leaves_the_rest(recipe, whole, tmp_path):
    shutil.copy(whole / "bpe.model", tmp_path)
    subword = {"subwords": (str(tmp_path / "bpe.model"),), "symbols": "<x>"}
    first = recipe("a", subword=subword)
    folder = prepare(first, tmp_path / "a", overrides=SMALL_SHARDS).data_dir
    before = {path: path.stat().st_mtime_ns for path in folder.glob("bin/train*.npy")}
    assert append_text(recipe("b", test=()), folder, overrides=SMALL_SHARDS).is_new
    assert append_text(recipe("c", test=()), folder, overrides=SMALL_SHARDS).is_new
    assert not append_text(recipe("c", test=()), folder, overrides=SMALL_SHARDS).is_new
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert text_of(folder) == text_of(whole)
    assert rows_of(folder) == rows_of(whole)
    index, other = (Manifest.load(each).texts("train") for each in (folder, whole))
    assert index == other
    assert not prepare(first, folder, overrides=SMALL_SHARDS).is_new
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert rows_of(folder) == rows_of(whole)


def test_appending_keeps_the_vocabulary_and_other_text_replaces_all_shards(recipe, tmp_path):
    folder = prepare(recipe("a", **SETTINGS), tmp_path / "a", overrides=SMALL_SHARDS).data_dir
    before = (folder / "bpe.model").stat().st_mtime_ns
    append_text(recipe("c", test=()), folder, overrides=SMALL_SHARDS)
    prepare(recipe("a", **SETTINGS), folder, overrides=SMALL_SHARDS)
    assert (folder / "bpe.model").stat().st_mtime_ns == before
    prepare(recipe("b", **SETTINGS), folder, force=True)
    assert names_of(folder) == ["train"]
    assert sorted(path.name for path in folder.glob("train*")) == ["train.de", "train.en"]
    assert len(rows_of(folder)[0]) == 130


@pytest.fixture
def encoded(recipe, tmp_path):
    """A dataset that was encoded with other settings than those of its recipe, and its encoding."""
    folder = prepare(recipe("a", **SETTINGS), tmp_path / "a").data_dir
    binarize(folder, BinarizeConfig(max_length=90))
    return folder, encoding_settings(Vocabulary.load(folder), BinarizeConfig(max_length=90))


def test_appended_text_is_encoded_as_the_dataset_was_last(recipe, encoded):
    folder, encoding = encoded
    files = {path: path.stat().st_mtime_ns for path in folder.glob("bin/train*.npy")}
    append_text(recipe("c", test=()), folder)
    after = Manifest.load(folder)
    assert len(files) == 4
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert after.inputs("binarize")["settings"] == encoding


def test_text_is_not_appended_to_token_ids_of_other_settings(recipe, encoded):
    folder, _ = encoded
    learn_bpe(folder, SubwordConfig(**SETTINGS["subword"] | {"vocab_size": 350}))
    with pytest.raises(UsageError, match=r"run tfm binarize .* append\n.*was \w{8}, not \w{8}"):
        append_text(recipe("c", test=()), folder)
    assert names_of(folder) == ["train"]


def test_tags_that_learning_reserves_can_be_appended(recipe, tmp_path):
    folder = prepare(recipe("a", subword={"vocab_size": 360}), tmp_path / "a").data_dir
    with pytest.raises(UsageError, match="no piece for the tag <x>"):
        append_text(recipe("b", test=()), folder)
    learn_bpe(folder, SubwordConfig(vocab_size=360, symbols="<x>"))
    binarize(folder, BinarizeConfig())
    assert append_text(recipe("b", test=()), folder).is_new


@pytest.mark.parametrize("tag", [None, "<x>"])
@pytest.mark.parametrize("way", ["one pass", "shares", "append"])
def test_held_out_pairs_are_found_in_training_text_whatever_their_tag(
    recipe, tmp_path, capsys, tag, way
):
    def with_test(*names):
        made = recipe(*names, **SETTINGS)
        return replace(made, test=(replace(made.test[0], tag=tag),))

    folder = tmp_path / "x"
    if way == "shares":
        for number in (1, 2):
            prepare(with_test("a", "c"), folder, overrides=SMALL_SHARDS, share=Share(number, 2))
    first = with_test("a") if way == "append" else with_test("a", "c")
    prepare(first, folder, overrides=SMALL_SHARDS, text_only=True)
    if way == "append":
        assert "training text, too" not in capsys.readouterr().err
        append_text(recipe("c", test=()), folder, text_only=True)
    assert "10 of the 10 pairs of the test text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        ("b", {"source": "fr"}, "is en-de, but the text to append is fr-de"),
        ("b", {"test": ("t",)}, "leave out all other text"),
        ("b", {"subword": {"vocab_size": 300}}, "leave out vocab_size"),
        ("b", {"cleaning": {"hold_out": 9}}, "leave out all other text, and hold_out"),
        ("a", {}, "no pairs are left of the train text"),
    ],
)
def test_text_that_does_not_fit_is_not_appended(recipe, tmp_path, names, change, message):
    folder = prepare(recipe("a", **SETTINGS), tmp_path / "a", text_only=True).data_dir
    test = change.pop("test", ())
    other = recipe(*names, test=test, **{k: v for k, v in change.items() if k != "source"})
    if "source" in change:
        other = Recipe(name="x", source="fr", target="de", train=other.train)
    with pytest.raises((UsageError, DataError), match=message):
        append_text(other, folder, text_only=True)
    assert names_of(folder) == ["train"]


def test_appended_text_may_have_other_codes_of_the_languages(recipe, tmp_path):
    folder = prepare(recipe("a", **SETTINGS), tmp_path / "a", text_only=True).data_dir
    train = recipe("b", test=()).train
    other = Recipe(name="x", source="eng", target="deu_Latn", train=train)
    assert append_text(other, folder, text_only=True).is_new
    assert [(folder / f"{name}.de").is_file() for name in names_of(folder)] == [True, True]


def test_shares_of_the_shards_make_the_same_dataset(recipe, whole, tmp_path):
    folder = prepare(
        recipe("a", "b", "c", **SETTINGS), tmp_path / "s", overrides=SMALL_SHARDS, text_only=True
    ).data_dir
    learn_bpe(folder, SubwordConfig(**SETTINGS["subword"]))
    for number in (2, 1):
        command.binarize(folder, share=f"{number}/2")
    written = {path: path.stat().st_mtime_ns for path in folder.glob("bin/train*.npy")}
    assert len(written) == 4 * len(names_of(folder))
    assert binarize(folder, BinarizeConfig())
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert rows_of(folder) == rows_of(whole)
    with pytest.raises(UsageError, match="choose fewer shares"):
        command.binarize(folder, share="9/9")


def test_a_dataset_with_a_shard_of_other_settings_cannot_be_opened(recipe, tmp_path):
    folder = prepare(recipe("a", **SETTINGS), tmp_path / "s", overrides=SMALL_SHARDS).data_dir
    before = rows_of(folder)
    command.binarize(folder, share="1/2")
    assert rows_of(folder) == before
    command.binarize(folder, share="1/2", max_length=20)
    with pytest.raises(DataError, match="holds no binarized dataset: run tfm binarize"):
        rows_of(folder)
    binarize(folder, BinarizeConfig())
    assert rows_of(folder) == before


def test_other_weights_of_texts_leave_their_token_ids(recipe, tmp_path):
    made = recipe("a", "b", **SETTINGS)

    def prepared(*weights):
        train = (replace(each, weight=w) for each, w in zip(made.train, weights, strict=True))
        folder = prepare(replace(made, train=tuple(train)), tmp_path / "x", SMALL_SHARDS).data_dir
        assert [text.weight for text in DatasetIndex.load(folder / "bin").texts] == [*weights]
        return {path: path.stat().st_mtime_ns for path in folder.glob("bin/train*.npy")}

    assert prepared(1, 2) == prepared(3, 1)


def test_shares_of_other_text_are_not_joined(recipe, tmp_path):
    prepare(recipe("a"), tmp_path / "x", share=Share(1, 1))
    folder = prepare(recipe("b"), tmp_path / "x", text_only=True).data_dir
    assert sizes_of(folder) == [130]


@pytest.mark.parametrize(
    "lock",
    [lock_folder, lock_dataset, partial(lock_share, share=Share(2, 3))],
    ids=["folder", "dataset", "share"],
)
def test_a_dataset_has_one_writer_at_a_time(recipe, tmp_path, monkeypatch, lock):
    monkeypatch.setattr(draft, "_MAX_WAIT_SECONDS", 0)
    texts = recipe("a", **SETTINGS)
    folder = prepare(texts, tmp_path / "x").data_dir
    with lock(folder):
        before = contents(folder)
        for work in (
            lambda: prepare(texts, folder, text_only=True, force=True),
            lambda: prepare(texts, folder, share=Share(2, 3)),
            lambda: learn_bpe(folder, SubwordConfig(vocab_size=350), force=True),
            lambda: binarize(folder, BinarizeConfig(), force=True),
            lambda: command.binarize(folder, share="2/3"),
        ):
            with pytest.raises(LockedFolderError, match=r"(x|2-of-3) is being written to by proc"):
                work()
        assert contents(folder) == before


def test_shares_that_start_at_the_same_time_wait_for_each_other(tmp_path):
    with ThreadPoolExecutor(8) as threads, ExitStack() as stack:
        locks = [lock_share(tmp_path, Share(number, 8)) for number in range(1, 9)]
        list(threads.map(stack.enter_context, locks))
        with pytest.raises(LockedFolderError), lock_dataset(tmp_path):
            pass
    with lock_dataset(tmp_path):
        pass


def test_an_older_dataset_is_refused_in_one_line_and_replaced_by_force(recipe, tmp_path):
    folder = prepare(recipe("a"), tmp_path / "x", text_only=True).data_dir
    edit_json(folder / "manifest.json", format=9)
    for write in (prepare, append_text):
        with pytest.raises(DataError, match=r"has format 9, .*: prepare .* again with --force$"):
            write(recipe("a"), folder, text_only=True)
    assert prepare(recipe("a"), folder, text_only=True, force=True).is_new


def test_force_cleans_all_text_whatever_shares_were_left(recipe, tmp_path):
    folder = tmp_path / "x"
    prepare(recipe("a"), folder, overrides=SMALL_SHARDS, share=Share(2, 3))
    changed = folder / ".draft" / "train.2.en"  # to text of the recorded size
    changed.write_bytes(changed.read_bytes().replace(b" ", b"_"))
    (folder / ".draft" / ".train.en.1.partial").touch()
    prepare(recipe("a"), folder, overrides=SMALL_SHARDS, text_only=True, force=True)
    prepare(recipe("a"), tmp_path / "y", overrides=SMALL_SHARDS, text_only=True)
    assert text_of(folder) == text_of(tmp_path / "y")
    assert not (folder / ".draft").exists()


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/2/3", "a/b", ""])
def test_a_share_is_a_number_of_a_number(text):
    with pytest.raises(UsageError, match="such as 3/8"):
        Share.parse(text)


def test_hashes_in_files_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(text_hashes, "_MAX_HASHES_IN_MEMORY", 50)
    monkeypatch.setattr(text_hashes, "_HASHES_AT_ONCE", 16)
    random = np.random.default_rng(1)
    seen, known = SeenHashes(tmp_path), set()
    for size in random.integers(0, 60, size=80):
        hashes = random.integers(0, 1500, size=size).astype(np.uint64) << np.uint64(50)
        expected = []
        for value in hashes.tolist():
            expected.append(value not in known)
            known.add(value)
        assert seen.add(hashes).tolist() == expected
    assert not list(tmp_path.iterdir())
