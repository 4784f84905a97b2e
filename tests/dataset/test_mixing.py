"""Training texts in proportion: shares of an epoch, and how often each pair is drawn."""

import dataclasses
import re
import shutil

import numpy as np
import pytest
from helpers import binarize, edit_model, learn_bpe, metrics_of, number_pairs, write_pairs
from hypothesis import given
from hypothesis import strategies as st

from tfm.commands.attend import attend
from tfm.commands.prepare import prepare_recipe as prepare
from tfm.commands.train import train_model
from tfm.commands.translator import Translator
from tfm.config import BinarizeConfig, SubwordConfig
from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import DatasetIndex
from tfm.dataset.plan import Mixture, apportion, expand
from tfm.dataset.shards import TrainingText
from tfm.errors import DataError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import TextFiles
from tfm.training.data import open_data
from tfm.translation.pair_scores import PairScorer
from tfm.vocabulary.learning import learn_subword_model
from tfm.vocabulary.subword import Vocabulary

WEIGHTS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6)


def texts(*sizes_and_weights):
    return [
        TrainingText(name=str(number), kept=size, read=size, dropped={}, weight=weight)
        for number, (size, weight) in enumerate(sizes_and_weights, 1)
    ]


@given(st.integers(1, 10_000_000), WEIGHTS)
def test_an_apportioned_total_is_that_of_the_weights_to_less_than_one(total, weights):
    counts = apportion(total, weights)
    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) <= 1 + 1e-9 * total


@given(
    st.lists(st.tuples(st.integers(5, 60), st.floats(1, 4)), min_size=2, max_size=4),
    st.integers(1, 9),
    st.sampled_from([1, 3, 7, 100]),
)
def test_no_pair_is_drawn_again_before_all_others_of_its_text(
    sizes_and_weights, num_epochs, run_pairs
):
    mixture = Mixture(texts(*sizes_and_weights), seed=3, run_pairs=run_pairs)
    drawn = np.concatenate([expand(mixture.runs(epoch)) for epoch in range(1, num_epochs + 1)])
    num_drawn = np.bincount(drawn, minlength=sum(size for size, _ in sizes_and_weights))
    start = 0
    for (size, _), count in zip(sizes_and_weights, mixture.counts, strict=True):
        of_text = num_drawn[start : start + size]
        assert of_text.sum() == num_epochs * count
        assert of_text.max() - of_text.min() <= 1
        start += size


def test_an_epoch_has_the_pairs_of_all_texts_in_the_proportion_of_their_weights():
    mixture = Mixture(texts((100, 5), (20, 2), (280, 1)), seed=1)
    assert mixture.counts == [250, 100, 50]
    rows = mixture.runs(1).starts
    assert np.histogram(rows, [0, 100, 120, 400])[0].tolist() == [250, 100, 50]
    assert (rows == Mixture(texts((100, 5), (20, 2), (280, 1)), seed=1).runs(1).starts).all()
    assert (rows != mixture.runs(2).starts).any()
    assert (rows != Mixture(texts((100, 5), (20, 2), (280, 1)), seed=2).runs(1).starts).any()


def test_a_weight_without_a_single_pair_is_refused():
    with pytest.raises(DataError, match=r"weight 1e-06 of the training text 2 is less than one"):
        Mixture(texts((100, 1), (100, 1e-6)), seed=1)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Two training texts of different sizes, of which the second has a tag."""
    folder = tmp_path_factory.mktemp("texts")
    for name, split, size in (("a", "train", 150), ("b", "test", 40), ("v", "valid", 12)):
        write_pairs(folder, name, list(number_pairs(split, num_pairs=size, seed=1)))

    def files(name, **options):
        source, target = (str(folder / f"{name}.{language}") for language in ("en", "de"))
        return TextFiles(source=source, target=target, **options)

    return Recipe(
        name="mixed",
        source="en",
        target="de",
        train=(files("a", weight=1), files("b", weight=3, tag="<b>")),
        valid=(files("v"),),
        test=(files("b", tag="<b>"),),
        subword={"vocab_size": 360},
    )


@pytest.fixture(scope="module")
def mixed_dir(recipe, tmp_path_factory):
    return prepare(recipe, tmp_path_factory.mktemp("data") / "mixed").data_dir


def test_a_tag_is_one_piece_before_the_sources_of_its_text(mixed_dir):
    [*plain, last] = (mixed_dir / "train.en").read_text(encoding="utf-8").splitlines()
    assert not plain[0].startswith("<b>")
    assert last.startswith("<b> ")
    assert (mixed_dir / "test.en").read_text(encoding="utf-8").startswith("<b> ")
    model = Vocabulary.load(mixed_dir).source
    tagged, untagged = model.encode([last, last.removeprefix("<b> ")])
    assert tagged[1:] == untagged
    assert model.has_tag("<b>")
    assert not model.has_tag("<c>")


def test_the_index_says_which_pairs_are_of_which_text(mixed_dir):
    one, other = DatasetIndex.load(mixed_dir / "bin").texts
    assert (one.name, one.read, one.weight, one.tag) == ("1 a.en", 150, 1, None)
    assert (other.name, other.read, other.weight, other.tag) == ("2 b.en", 40, 3, "<b>")
    # Test text is in the training text here.
    assert (one.in_held_out, other.in_held_out) == (0, 40)
    source = (mixed_dir / "train.en").read_text(encoding="utf-8").splitlines()
    assert [line.startswith("<b>") for line in source] == one.kept * [False] + other.kept * [True]


def test_pairs_that_are_too_long_are_taken_from_their_text(mixed_dir, tmp_path, recipe):
    short = dataclasses.replace(recipe, binarize={"max_length": 12})
    folder = prepare(short, tmp_path / "short").data_dir
    index = DatasetIndex.load(folder / "bin")
    before = DatasetIndex.load(mixed_dir / "bin").texts
    dropped = [text.dropped["max_length"] for text in index.texts]
    assert all(dropped)
    kept = [text.kept - count for text, count in zip(before, dropped, strict=True)]
    assert [text.kept for text in index.texts] == kept
    assert sum(kept) == index.num_pairs["train"]
    with pytest.raises(DataError, match=r"pairs of the training text 1 a\.en are longer"):
        binarize(folder, BinarizeConfig(max_length=1))


def test_equal_pairs_of_texts_with_different_tags_are_no_duplicates(recipe, tmp_path):
    first, _ = recipe.train
    tagged, again = (dataclasses.replace(first, tag="<c>", weight=1) for _ in range(2))
    prepared = prepare(
        dataclasses.replace(recipe, train=(first, tagged)), tmp_path / "d", text_only=True
    )
    counts = Manifest.load(prepared.data_dir).result("clean")["train"]
    assert counts["dropped"]["duplicate"] == 0
    # All pairs of the last text are duplicates of those of the text before it.
    with pytest.raises(DataError, match=r"3 a\.en \(0 of 150 pairs; dropped 150 duplicate\)"):
        prepare(dataclasses.replace(recipe, train=(first, tagged, again)), tmp_path / "e")


def test_a_tag_that_the_subword_model_does_not_have_is_refused(recipe, tmp_path):
    folder = prepare(recipe, tmp_path / "d", text_only=True).data_dir
    model = learn_subword_model([folder / "train.de"], SubwordConfig(), vocab_size=320)
    (tmp_path / "other.model").write_bytes(model.content)
    learn_bpe(folder, SubwordConfig(subwords=(str(tmp_path / "other.model"),)))
    with pytest.raises(DataError, match="has no piece for the tag <b>"):
        binarize(folder, BinarizeConfig())
    assert not (folder / "bin").exists()


def test_weights_need_the_text_that_was_prepared(recipe, tmp_path):
    folder = prepare(recipe, tmp_path / "d").data_dir
    for language in ("en", "de"):
        path = folder / f"train.{language}"
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match="prepare it again, so that weights fit the pairs"):
        binarize(folder, BinarizeConfig())


def test_a_weighted_run_logs_shares_and_losses_and_resumes_to_the_bit(
    mixed_dir, tiny_run, tmp_path
):
    def run(max_steps):
        return tiny_run(training={"max_steps": max_steps, "checkpoint_steps": 4, "log_steps": 2})

    train_model(mixed_dir, tmp_path / "at-once", run(8))
    for max_steps in (3, 8):
        train_model(mixed_dir, tmp_path / "resumed", run(max_steps))
    both = tmp_path / "at-once", tmp_path / "resumed"
    assert [text["name"] for text in metrics_of(both[0])[0]["texts"]] == ["1 a.en", "2 b.en"]
    shares, resumed_shares = (
        [line["text_pairs"] for line in metrics_of(each, "train")] for each in both
    )
    assert sum(shares[-1]) > 0
    assert shares == resumed_shares
    losses, resumed_losses = (
        {line["step"]: line["text_losses"] for line in metrics_of(each, "validation")}
        for each in both
    )
    assert losses.items() <= resumed_losses.items()
    assert all(len(each) == 2 for each in losses.values())


def test_another_weight_is_other_data(mixed_dir, recipe, tmp_path):
    first, second = recipe.train
    other = dataclasses.replace(recipe, train=(dataclasses.replace(first, weight=2), second))
    folder = prepare(other, tmp_path / "d").data_dir
    one, two = (DatasetIndex.load(each / "bin") for each in (mixed_dir, folder))
    assert one.shards == two.shards
    assert one.checksum("train") != two.checksum("train")
    assert one.checksum("test") == two.checksum("test")


@pytest.fixture(scope="module")
def translator(mixed_dir, tiny_run, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "mixed"
    train_model(mixed_dir, run_dir, tiny_run(training={"max_steps": 4}))
    return Translator.load(run_dir, device="cpu")


def test_a_tag_by_name_is_one_that_is_typed(translator):
    lines = ["seven", "", "on Monday"]
    typed = [f"<b> {line}" if line else "" for line in lines]
    settings = {"max_extra_length": 5}
    assert translator.search(lines, tag="<b>", **settings) == translator.search(typed, **settings)
    targets = ["sieben", "", "am Montag"]
    by_name, by_hand = (
        translator.score_targets(lines, targets, tag="<b>"),
        translator.score_targets(typed, targets),
    )
    assert by_name == by_hand
    assert by_name != translator.score_targets(lines, targets)


def test_a_line_that_has_its_tag_gets_no_second_one(translator):
    lines, settings = ["seven", "", "on Monday"], {"tag": "<b>", "max_extra_length": 5}
    typed = ["<b> seven", "<b>", "<b>\xa0on Monday"]
    assert translator.search(lines, **settings) == translator.search(typed, **settings)


def test_an_unknown_tag_is_refused(translator):
    with pytest.raises(UsageError, match=r"the model's vocabulary has no tag <c>: .* <b>$"):
        translator.translate("seven", tag="<c>")
    for tag in (">>b<<", "__b__", "b", "<s>"):
        with pytest.raises(UsageError, match=rf"no tag {tag}: choose among <b>$"):
            translator.translate("seven", tag=tag)


def test_text_without_tag_is_no_mistake_if_some_training_text_had_none(
    mixed_dir, translator, capsys
):
    assert Manifest.load(mixed_dir).tags() == ()
    translator.translate("seven", max_extra_length=5)
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def tagged_dir(recipe, tmp_path_factory):
    """A dataset of two target languages, whose training sources all have the tag of one."""
    first, second = recipe.train
    train_texts = (
        dataclasses.replace(first, tag="<2de>"),
        dataclasses.replace(second, tag="<2fr>"),
    )
    tagged = dataclasses.replace(recipe, target="de+fr", train=train_texts)
    return prepare(tagged, tmp_path_factory.mktemp("data") / "tagged").data_dir


@pytest.fixture(scope="module")
def tagged_run(tagged_dir, tiny_run, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "tagged"
    train_model(tagged_dir, run_dir, tiny_run(training={"max_steps": 2}))
    return run_dir


def described_as(run_dir, folder, **changes):
    """Return a copy of the model of a run with another description."""
    shutil.copytree(ModelFolder.open(run_dir).path, folder)
    edit_model(folder, **changes)
    return folder


def test_validation_text_without_the_tags_of_the_training_text_is_reported(
    tagged_dir, mixed_dir, tiny_run, capsys
):
    open_data(tagged_dir, tiny_run())
    assert re.search(r"valid.en have no tag, .* <2de>, <2fr>: .*", capsys.readouterr().err)
    open_data(mixed_dir, tiny_run())
    assert capsys.readouterr().err == ""


def test_a_line_needs_the_tag_that_chooses_its_language(tagged_run):
    translator = Translator.load(tagged_run, device="cpu")
    settings = {"max_extra_length": 3}
    by_hand = translator.translate(["<2fr> seven", "", "<2de> seven"], **settings)
    assert translator.translate(["seven"], tag="<2fr>", **settings) == by_hand[:1]
    untagged = r'line 2 \("seven"\) has no tag, .* <2de>, <2fr>, or give --tag'
    for call in (translator.search, lambda lines: translator.score_targets(lines, ["x", "y"])):
        with pytest.raises(UsageError, match=untagged):
            call(["<2fr> seven", "seven"])
    with pytest.raises(UsageError, match=r"has no tag, .* <2de>, <2fr>$"):
        attend(tagged_run, "seven", target="x", device="cpu")


def test_a_missing_tag_that_does_not_choose_the_language_is_reported_once(
    tagged_run, tmp_path, capsys
):
    translator = Translator.load(described_as(tagged_run, tmp_path / "m", target="de"))
    capsys.readouterr()
    translator.translate(["<2fr> seven", "", "seven", "on Monday"], max_extra_length=3)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith('warning: line 3 ("seven") has no tag')


def test_a_model_without_a_record_of_tags_is_silent(tagged_run, tmp_path, capsys):
    folder = described_as(tagged_run, tmp_path / "m", tags=[])
    translator = Translator.load(folder)
    capsys.readouterr()
    translator.translate("seven", max_extra_length=3)
    assert capsys.readouterr().err == ""


def test_pairs_without_tag_are_not_scored_by_a_model_that_needs_one(tagged_run):
    scorer = PairScorer(tagged_run, source="en", target="de+fr")
    assert len(scorer.for_text("<2de>")([(b"seven", b"sieben")])) == 1
    with pytest.raises(UsageError, match=r"score_model: .* one of <2de>, <2fr>"):
        scorer.for_text("<bt>")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<2fr> seven\n<2fr> <b>seven</b>", "1 of the first 2 lines have markup"),
        ("<2fr> seven\n<2it> seven", r"\('<2it>'\): choose among <2[df][er]>, <2[df][er]>"),
        ('{"a": "seven"}\n{"a": ""}', "2 of the first 2 lines are JSON"),
        ("se@@ ven\n<2fr> se@@ ven", "2 of the first 2 lines have words cut by @@.* sed -E"),
    ],
)
def test_first_lines_that_models_do_not_read_are_reported(
    tagged_run, elsewhere, run, text, message
):
    (elsewhere / "in.en").write_text(f"{text}\n")
    code, out, err = run("generate", tagged_run, "--input", "in.en", "--max-extra-length=2")
    assert re.search(message, err)
    assert (code == 0) == bool(out) == ("markup" in message)
