"""SentencePiece models of other programs, and of other datasets, models and runs."""

import io
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from helpers import binarize, decoded, learn_bpe, number_pairs, write_dataset, write_pairs

from tfm.config import BinarizeConfig, SubwordConfig
from tfm.errors import DataError, UsageError
from tfm.vocabulary import foreign
from tfm.vocabulary.foreign import (
    load_subword_models,
    with_fixed_ids,
    with_vocabulary,
    word_model,
)
from tfm.vocabulary.subword import SubwordModel, Vocabulary

PAIRS = list(number_pairs("train", num_pairs=150, seed=3))
LINES = [line for pair in PAIRS for line in pair]
UNSEEN = [line for pair in number_pairs("valid", num_pairs=20, seed=3) for line in pair]


def sentencepiece_model(path, *, vocab_size=300, **options):
    """Train a model with SentencePiece's own defaults, or other options; return its path."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES),
        model_writer=content,
        minloglevel=2,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        **options,
    )
    path.write_bytes(content.getvalue())
    return path


@pytest.mark.parametrize(
    "options",
    [
        *({"model_type": each} for each in ("bpe", "unigram", "char", "word")),
        {},  # <unk> 0, <s> 1, </s> 2, no <pad>
        {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},  # as T5
        {"pad_id": 3, "pad_piece": "[PAD]", "bos_piece": "[BOS]"},
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 7},
        {"bos_id": -1, "eos_id": -1, "user_defined_symbols": ["<bt>"]},
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},  # those of tfm
    ],
    ids=str,
)
def test_a_mapped_model_encodes_and_decodes_all_text_as_before(tmp_path, options):
    path = sentencepiece_model(tmp_path / "x.model", **options)
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    [mapped] = load_subword_models([path])  # refuses other special ids
    expected = [[original.IdToPiece(i) for i in original.EncodeAsIds(line)] for line in UNSEEN]
    found = mapped.encode(UNSEEN)
    assert [mapped.pieces(ids) for ids in found] == expected
    assert mapped.decode(found) == [original.Decode(original.EncodeAsIds(each)) for each in UNSEEN]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_another_vocabulary_changes_ids_but_not_the_segmentation(tmp_path, model_type):
    path = sentencepiece_model(tmp_path / "x.model", model_type=model_type)
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    own = original.IdToPiece([*range(3, len(original))])
    # Of BPE, the absent pieces would join those of the model to longer ones.
    absent = [left + right for left, right in pairwise(own) if left + right not in own]
    vocabulary = ["<pad>", "<s>", "</s>", "<unk>", *absent, *own[25:]]
    content = with_vocabulary(path.read_bytes(), vocabulary, origin=path)
    model = SubwordModel(content, origin=path)
    assert model.pieces(range(len(model))) == vocabulary
    expected = [original.EncodeAsPieces(line) for line in UNSEEN]
    missing = {*own[:25]}
    assert any(not missing.isdisjoint(pieces) for pieces in expected)
    known = [[piece if piece not in missing else "<unk>" for piece in each] for each in expected]
    found = model.encode(UNSEEN)
    assert [model.pieces(ids) for ids in found] == known
    lines = [line.encode() for line in UNSEEN]
    assert model.encode_block(lines)[0].tolist() == [*chain(*found)]
    if model_type == "bpe":
        random = np.random.default_rng(1)
        assert model.encode_block(lines, 0.0, random)[0].tolist() == [*chain(*found)]
    ids = [*range(4, 4 + len(absent))]
    assert model.decode([ids]) == ["".join(absent).replace("▁", " ").removeprefix(" ")]


def test_pieces_that_are_only_decoded_are_no_steps_to_longer_ones(tmp_path):
    special = foreign._special_pieces(["<pad>", "<s>", "</s>", "<unk>"])
    merges = ["ab", "cd", "ef", "abc", "def", "abcdef", *"▁abcdef"]
    pieces = [
        foreign._new_piece(piece, foreign._NORMAL, score=-rank) for rank, piece in enumerate(merges)
    ]
    settings = [
        (foreign._TRAINER_SPEC, foreign._number(foreign._MODEL_TYPE, 2)),
        (foreign._NORMALIZER_SPEC, foreign._text(1, "identity")),
    ]
    content = foreign._assemble(special, pieces, settings)
    original = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert original.EncodeAsPieces("abcdef") == ["▁", "ab", "cd", "ef"]
    content = with_vocabulary(content, [*special, *merges, "abcd"], origin=tmp_path)
    other = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert other.EncodeAsPieces("abcdef") == ["▁", "abcdef"]  # by way of abcd
    model = SubwordModel(content, origin=tmp_path)
    assert model.pieces(*model.encode(["abcdef"])) == ["▁", "ab", "cd", "ef"]
    assert model.decode([model.ids(["▁", "abcd", "ef"])]) == ["abcdef"]


def test_each_word_that_a_vocabulary_of_words_lacks_is_unknown(tmp_path):
    words = ["a", "b@@", "▁", "日本", "x\u2585"]
    content = word_model(["<pad>", "<s>", "</s>", "<unk>", *words])
    model = SubwordModel(content, origin=tmp_path)
    texts = {
        "a zzz yyy b@@ 日本": [4, 3, 3, 5, 7],
        "zzz yyy </s> <pad>": [3, 3, 3, 3],
        "▁ x\u2585 ▁▁ <unk>": [6, 8, 3, 3],
        "": [],
    }
    assert model.encode(texts) == [*texts.values()]
    assert [model.encode([text])[0] for text in texts] == [*texts.values()]
    ids, lengths = model.encode_block([text.encode() for text in texts])
    assert (ids.tolist(), lengths.tolist()) == ([*chain(*texts.values())], [5, 4, 4, 0])
    assert model.decode([[4, 5, 6, 7, 8]]) == [" ".join(words)]


def test_byte_fallback_survives_the_mapping(tmp_path):
    path = sentencepiece_model(tmp_path / "x.model", vocab_size=600, byte_fallback=True)
    [mapped] = load_subword_models([path])
    assert mapped.decode(mapped.encode(["🦊 Łódź"])) == ["🦊 Łódź"]


def test_a_model_with_the_ids_of_tfm_is_not_changed(data_dir):
    content = (data_dir / "bpe.model").read_bytes()
    assert with_fixed_ids(content, origin=data_dir) is content


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        ({"user_defined_symbols": ["<pad>"]}, b"", r"x\.model has <pad> as a piece of text"),
        # A second message of training settings, with the field pad_piece.
        ({}, b"\x12\x07\x82\x03\x04</s>", "one piece for several of pad, bos, eos and unk"),
    ],
)
def test_ids_that_cannot_be_mapped_are_refused_in_one_line(tmp_path, options, more, message):
    path = sentencepiece_model(tmp_path / "x.model", **options)
    path.write_bytes(path.read_bytes() + more)
    with pytest.raises(DataError, match=message) as refused:
        load_subword_models([path])
    assert "\n" not in str(refused.value)


def test_a_dataset_a_model_and_a_run_name_the_same_pieces(data_dir, trained_run):
    [expected] = load_subword_models([data_dir / "bpe.model"])
    checkpoint = next((trained_run / "checkpoints").iterdir())
    for folder in (data_dir, trained_run, checkpoint):
        [found] = load_subword_models([folder])
        assert found.fingerprint == expected.fingerprint
    with pytest.raises(UsageError, match="has no subword model"):
        load_subword_models([data_dir.parent])
    with pytest.raises(UsageError, match="does not exist"):
        load_subword_models([data_dir / "nothing"])
    with pytest.raises(UsageError, match="null is a pipe or a device, but is read twice: write it"):
        load_subword_models([Path("/dev/null")])
    with pytest.raises(UsageError, match="is a folder, which has all subword models"):
        load_subword_models([data_dir, data_dir / "bpe.model"])


@pytest.fixture
def text_dir(tmp_path):
    """A dataset with text only."""
    return write_dataset(tmp_path / "data", {"train": PAIRS})


def encode(folder, *paths):
    """Use subword models; return whether the ids were written again."""
    learn_bpe(folder, SubwordConfig(subwords=tuple(map(str, paths))))
    return binarize(folder, BinarizeConfig())


def test_a_changed_subword_file_is_noticed(text_dir, tmp_path):
    path = sentencepiece_model(tmp_path / "x.model")
    assert encode(text_dir, path)
    before = Vocabulary.load(text_dir).fingerprint
    assert not encode(text_dir, path)
    sentencepiece_model(path, vocab_size=200)
    assert encode(text_dir, path)
    assert Vocabulary.load(text_dir).fingerprint != before


def test_two_files_are_the_models_of_source_and_target(text_dir, tmp_path):
    one = sentencepiece_model(tmp_path / "one.model", model_type="unigram")
    other = sentencepiece_model(tmp_path / "other.model", vocab_size=200)
    encode(text_dir, one)  # a joint model, which is replaced
    encode(text_dir, one, other)
    vocabulary = Vocabulary.load(text_dir)
    assert not vocabulary.is_joint
    assert vocabulary.source.content == with_fixed_ids(one.read_bytes(), origin=one)
    assert decoded(text_dir)[0] == PAIRS[0]


def test_prepare_refuses_a_wrong_subword_model_before_it_writes(run, elsewhere):
    write_pairs(elsewhere, "t", [("a", "a")])
    (elsewhere / "x.model").write_text("no model")
    command = ["prepare", "--train", "t.en", "t.de", "--out", "mine", "--subwords", "x.model"]
    run.fails(1, "x.model is not a SentencePiece model.*", *command)
    assert not (elsewhere / "mine").exists()
