"""The subword model: lossless, deterministic, with fixed special ids."""

import io

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st
from vocabulary.test_learning import LINES, learn

from tfm.errors import DataError
from tfm.vocabulary.subword import BOS, EOS, PAD, UNK, SubwordModel, Vocabulary


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return learn(tmp_path_factory.mktemp("model"))


LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))


@given(line=LINE)
@example("")
@example(" ")
@example("   ")
@example(" leading and trailing ")
@example("\N{LOWER ONE EIGHTH BLOCK} a\N{LOWER ONE EIGHTH BLOCK}b ")
@example("\ufdd0\N{LOWER ONE EIGHTH BLOCK}\ufdd00\ufdd01\ufdd0")
@example("<s> </s> <unk> <pad> <0x41> \N{DOUBLE QUESTION MARK}")
@example("\0 \x7f \r \u2028 \ufeff \u3000")
@example("e\u0301 is not \xe9, nor \ufb01 fi, nor \uff21 A")
def test_every_sentence_decodes_back(model, line):
    assert model.decode(model.encode([line])) == [line]


def test_every_line_of_the_text_decodes_back_by_a_unigram_model(tmp_path):
    model = learn(tmp_path, model_type="unigram", vocab_size=310)
    assert model.decode(model.encode(LINES)) == LINES


def test_encoding_adds_no_special_tokens_and_decoding_drops_them(model):
    [ids] = model.encode(["The cat"])
    assert not {PAD, BOS, EOS, UNK} & set(ids)
    assert model.decode([[BOS, *ids, EOS, PAD, PAD]]) == ["The cat"]
    [ids] = model.encode(["<pad><s></s><unk>"])
    assert not {PAD, BOS, EOS, UNK} & set(ids)


def test_words_unlike_those_of_the_training_text_are_spelled_out(tmp_path):
    lines = ["completely different sentences", "several important questions"] * 9
    model = learn(tmp_path, lines, vocab_size=330)
    unlike = "netfri qosmlep tdcuvi"
    for line in (*lines[:2], unlike, "xyz"):
        assert model.spells_out(*model.encode([line])) == (line == unlike)
    letters = learn(tmp_path, ["ab ba", "cd dc"], vocab_size=270)
    assert not letters.spells_out(*letters.encode(["abbacddcab"]))


def test_without_byte_fallback_a_strange_character_is_unknown(tmp_path):
    model = learn(tmp_path, byte_fallback=False, vocab_size=80)
    assert UNK in model.encode(["The \N{SNOWMAN} sat"])[0]


@given(lines=st.lists(LINE, max_size=6))
@example(lines=[])
@example(lines=["", " ", ""])
@example(lines=["\N{LOWER ONE EIGHTH BLOCK} a", "\ufdd0", "plain", "\ufdd00 \r\0"])
def test_encoding_a_block_equals_encoding_its_lines(model, lines):
    ids, lengths = model.encode_block([line.encode() for line in lines])
    assert np.split(ids, lengths.cumsum())[-1].size == 0
    found = [part.tolist() for part in np.split(ids, lengths.cumsum())[:-1]]
    assert found == model.encode(lines)


def test_a_missing_model_and_a_file_that_is_none_are_named(tmp_path, model):
    with pytest.raises(DataError, match=r"no subword model .* run tfm learn-bpe "):
        Vocabulary.load(tmp_path)
    not_utf8 = model.content.replace("\N{LOWER ONE EIGHTH BLOCK}".encode(), b"\xe2\xff\x81")
    for content in (b"", b"no model", not_utf8):
        (tmp_path / "bpe.model").write_bytes(content)
        with pytest.raises(DataError, match=r"bpe\.model is not a SentencePiece model: learn it"):
            Vocabulary.load(tmp_path)


def test_an_unpaired_surrogate_is_refused(model):
    for lines in (["\ud800"], ["sound", "a\udfff b"]):
        with pytest.raises(DataError, match="an unpaired surrogate"):
            model.encode(lines)


def test_load_reads_what_files_returns(tmp_path, model):
    other = learn(tmp_path, LINES[:1] * 3, vocab_size=290)
    fingerprints = set()
    for number, pair in enumerate([(model, model), (model, other), (other, model)]):
        vocabulary = Vocabulary(*pair)
        fingerprints.add(vocabulary.fingerprint)
        folder = tmp_path / str(number)
        folder.mkdir()
        for file, content in vocabulary.files().items():
            (folder / file).write_bytes(content)
        loaded = Vocabulary.load(folder)
        assert loaded.is_joint == vocabulary.is_joint
        assert loaded.fingerprint == vocabulary.fingerprint
        assert len(loaded.source) == len(vocabulary.source)
        assert len(loaded.target) == len(vocabulary.target)
    assert len(fingerprints) == 3


def test_pieces_are_listed_in_the_order_of_their_ids(model):
    pieces = [line.split("\t")[0] for line in model.vocab_text().splitlines()]
    assert len(model.vocab_text().split("\n")) == len(model) + 1
    assert pieces[:4] == ["<pad>", "<s>", "</s>", "<unk>"]


def test_a_model_with_other_special_ids_is_refused(tmp_path):
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES),
        model_writer=content,
        vocab_size=100,
        minloglevel=2,
        model_type="bpe",
    )
    with pytest.raises(DataError, match=r"has pad, bos, eos, unk at"):
        SubwordModel(content.getvalue(), origin=tmp_path / "foreign.model")


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_letters_outside_of_the_vocabulary_are_not_counted_as_known(tmp_path, byte_fallback):
    model = learn(tmp_path, vocab_size=340 if byte_fallback else 84, byte_fallback=byte_fallback)
    for line, num_known in (("The cat, 3 mats", 10), ("Собака", 0), ("a Собака cat", 4), ("", 0)):
        [ids] = model.encode([line])
        assert model.num_known_letters(ids) == num_known
