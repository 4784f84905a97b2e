"""The subword model: lossless, deterministic, with fixed special ids."""

import io
import itertools

import numpy as np
import pytest
import sentencepiece
from helpers import write_lines
from hypothesis import example, given
from hypothesis import strategies as st

from tfm.config import SubwordConfig
from tfm.data.subword import (
    BOS,
    EOS,
    PAD,
    UNK,
    SubwordModel,
    Vocabulary,
    VocabularySizeError,
    default_vocab_size,
    learn_subword_model,
    learn_word_model,
)
from tfm.errors import DataError

LINES = [
    "The cat sat on the mat, didn't it?",
    "Der Hund saß auf der Matte.",
    "  two  spaces, a\ttab and \xa0 no-break space ",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
] * 4


def learn(folder, lines=LINES, *, vocab_size=340, **settings):
    text = write_lines(folder / "text", lines)
    return learn_subword_model([text], SubwordConfig(**settings), vocab_size=vocab_size)


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


def test_learning_is_deterministic_and_independent_of_paths(tmp_path):
    lines = [f"{line} {i}" for i, line in enumerate(LINES * 20)]
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    first, second = (learn(folder, lines, sample_sentences=200) for folder in folders)
    assert first.content == second.content
    assert first.fingerprint == second.fingerprint


FALLBACKS = [
    {"model_type": "bpe", "byte_fallback": True},
    {"model_type": "unigram", "byte_fallback": False},
]


@pytest.mark.parametrize("settings", FALLBACKS)
def test_the_error_for_an_impossible_vocabulary_names_the_nearest_possible(tmp_path, settings):
    with pytest.raises(VocabularySizeError) as caught:
        learn(tmp_path, vocab_size=5_000, **settings)
    message, largest = str(caught.value), caught.value.nearest
    assert "\n" not in message
    assert "too large" in message
    assert message.endswith(f"--vocab-size {largest}")
    assert len(learn(tmp_path, vocab_size=largest, **settings)) == largest
    with pytest.raises(VocabularySizeError, match="too large"):
        learn(tmp_path, vocab_size=largest + 1, **settings)
    with pytest.raises(VocabularySizeError, match=r"too small .* at least") as caught:
        learn(tmp_path, vocab_size=10, **settings)
    smallest = caught.value.nearest
    assert len(learn(tmp_path, vocab_size=smallest, **settings)) == smallest


@pytest.mark.parametrize("lines", [["", ""], ["word " * 2_000]], ids=["empty", "long"])
def test_text_with_nothing_to_learn_from_is_named(tmp_path, lines):
    with pytest.raises(DataError, match=r"text: all lines are empty, or longer than") as caught:
        learn(tmp_path, lines)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", FALLBACKS, ids=str)
def test_pieces_are_learned_from_lines_with_any_character(tmp_path, settings):
    odd = {"aa": "\u2581", "bb": "\u2585", "cc": "\t", "dd": "\x1f", "ee": "\ufdd0"}
    lines = [f"{word}{char}{word} {char}" for word, char in odd.items()] * 9
    with pytest.raises(VocabularySizeError) as caught:
        learn(tmp_path, lines, **settings)
    model = learn(tmp_path, lines, vocab_size=caught.value.nearest, **settings)
    pieces = " ".join(model.pieces(range(len(model))))
    assert [letters for letters in odd if letters[0] not in pieces] == []
    assert UNK not in itertools.chain(*model.encode(lines))
    assert model.decode(model.encode(lines)) == lines
    older = SubwordModel(model.content, origin=tmp_path, version=1)
    assert older.escapes.items() < model.escapes.items()
    assert older.encode(["\u2581 ab"]) == model.encode(["\u2581 ab"])
    assert older.encode(["\u2585"]) != model.encode(["\u2585"])


def test_lines_from_which_nothing_is_learned_are_counted(tmp_path, capsys):
    learn(tmp_path, [*LINES, "ein " * 2_000, "é" * 2_097, "é" * 2_096])
    assert "from 2 lines of more than 4,192 bytes" in capsys.readouterr().err


def test_lines_that_are_not_utf8_do_not_stop_learning(tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"".join(line.encode("latin-1") + b"\n" for line in LINES))
    assert len(learn_subword_model([text], SubwordConfig(), vocab_size=320)) == 320


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


@pytest.mark.parametrize("for_trees", [False, True])
def test_the_default_vocabulary_grows_smoothly_with_the_text(for_trees):
    sizes = [default_vocab_size(round(1.1**n), for_trees=for_trees) for n in range(65, 160)]
    assert all(1 <= later / earlier < 1.2 for earlier, later in itertools.pairwise(sizes))


def test_the_default_vocabulary_of_a_large_treebank_is_that_of_the_paper():
    assert default_vocab_size(39_832, for_trees=True) == 16_000
    assert default_vocab_size(17_000_000, for_trees=True) == 32_000


def test_each_word_is_a_piece_of_a_word_model_even_with_rare_letters(tmp_path):
    path = tmp_path / "train.trees"
    path.write_text("(S (NP XX )NP XX )S\n" * 20_000 + "(S (INTJ XX )INTJ )S\n", encoding="utf-8")
    model = learn_word_model([path])
    assert len(model) == 4 + len({"(S", ")S", "(NP", ")NP", "(INTJ", ")INTJ", "XX"})
    [ids] = model.encode(["(S (INTJ XX )INTJ (NP XX )NP )S"])
    assert len(ids) == 8
    assert UNK not in ids
    assert model.decode([ids]) == ["(S (INTJ XX )INTJ (NP XX )NP )S"]
    [ids] = model.encode(["(S (VP XX )VP )S"])
    assert ids.count(UNK) == 2


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
