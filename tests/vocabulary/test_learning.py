"""Learning subword models: deterministic, from any text, of a size that fits it."""

import itertools
import random

import pytest
from helpers import python, write_lines

from tfm.config import SubwordConfig
from tfm.errors import DataError
from tfm.vocabulary.learning import (
    VocabularySizeError,
    _sample,
    default_vocab_size,
    learn_subword_model,
    learn_subword_models,
    learn_word_model,
)
from tfm.vocabulary.subword import UNK

LINES = [
    "The cat sat on the mat, didn't it?",
    "Der Hund saß auf der Matte.",
    "  two  spaces, a\ttab and \xa0 no-break space ",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
] * 4


def learn(folder, lines=LINES, *, vocab_size=340, **settings):
    text = write_lines(folder / "text", lines)
    return learn_subword_model([text], SubwordConfig(**settings), vocab_size=vocab_size)


LEARNING = """
import sys
from pathlib import Path
from tfm.config import SubwordConfig
from tfm.vocabulary.learning import learn_subword_model
config = SubwordConfig(model_type=sys.argv[2], sample_sentences=200)
print(learn_subword_model([Path(sys.argv[1])], config, vocab_size=340).fingerprint)
"""


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_a_model_of_a_sample_is_alike_in_each_process_and_for_each_path(tmp_path, model_type):
    lines = [f"{line} {i}" for i, line in enumerate(LINES * 20)]
    text = write_lines(tmp_path / "there", lines)
    here = learn(tmp_path, lines, model_type=model_type, sample_sentences=200)
    assert python("-c", LEARNING, text, model_type).stdout.split() == [here.fingerprint]


@pytest.mark.parametrize("size", [0, 7, 30, 31])
def test_a_sample_has_the_lines_of_all_texts_with_equal_chances(tmp_path, size):
    texts = [write_lines(tmp_path / "one", range(10)), write_lines(tmp_path / "two", range(10, 30))]
    sample = [int(line) for line in _sample(texts, size)]
    assert sample == sorted({*sample})
    assert len(sample) == (size if 0 < size < 30 else 30)
    assert not size or max(sample) > 15


FALLBACKS = [
    {"model_type": "bpe", "byte_fallback": True},
    {"model_type": "unigram", "byte_fallback": False},
]


def test_a_default_vocabulary_has_room_for_more_than_its_characters(tmp_path, capsys):
    draw = random.Random(1)
    words = ["".join(map(chr, draw.choices(range(0x4E00, 0x5200), k=2))) for _ in range(900)]
    lines = ["".join(draw.choices(words, k=8)) for _ in range(400)]
    text = write_lines(tmp_path / "text", lines)
    [model] = learn_subword_models([text], [text], SubwordConfig())
    assert len(model) > 2 * len({*"".join(lines)})
    assert "single characters" not in capsys.readouterr().err
    [model] = learn_subword_models([text], [text], SubwordConfig(vocab_size=1_500))
    assert "of 1,500 pieces are single characters" in capsys.readouterr().err


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


def test_lines_from_which_nothing_is_learned_are_counted(tmp_path, capsys):
    learn(tmp_path, [*LINES, "ein " * 2_000, "é" * 2_097, "é" * 2_096])
    assert "from 2 lines of more than 4,192 bytes" in capsys.readouterr().err


def test_lines_that_are_not_utf8_do_not_stop_learning(tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"".join(line.encode("latin-1") + b"\n" for line in LINES))
    assert len(learn_subword_model([text], SubwordConfig(), vocab_size=320)) == 320


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
