"""tfm learn-bpe: subword models of a dataset, learned again only after a change."""

import dataclasses

import pytest
from helpers import learn_bpe, write_dataset

from tfm.config import SubwordConfig
from tfm.dataset.manifest import Manifest
from tfm.errors import UsageError
from tfm.vocabulary.subword import Vocabulary

ENGLISH = ["the cat sat on the mat", "a dog lay on the log", "no bird sang"] * 5
GERMAN = ["die Katze saß auf der Matte", "ein Hund lag am Klotz", "kein Vogel sang"] * 5

CONFIG = SubwordConfig(vocab_size=300)


def make_dataset(folder, source=ENGLISH, target=GERMAN):
    return write_dataset(folder, {"train": list(zip(source, target, strict=True))})


@pytest.fixture
def folder(tmp_path):
    return make_dataset(tmp_path / "x")


def vocab_sizes(folder):
    return Manifest.load(folder).result("learn-bpe")["vocab_sizes"]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_both_languages_share_one_model(folder):
    assert learn_bpe(folder, CONFIG)
    assert vocab_sizes(folder) == [300]
    assert Vocabulary.load(folder).is_joint
    assert files(folder) == [
        ".lock",
        "bpe.model",
        "bpe.vocab",
        "manifest.json",
        "train.de",
        "train.en",
    ]


def test_separate_models_have_pieces_of_their_language(folder):
    learn_bpe(
        folder, dataclasses.replace(CONFIG, separate=True, byte_fallback=False, vocab_size=40)
    )
    vocabulary = Vocabulary.load(folder)
    assert vocab_sizes(folder) == [40, 40]
    assert not vocabulary.is_joint
    assert "ß" not in vocabulary.source.vocab_text()
    assert "ß" in vocabulary.target.vocab_text()


def test_target_words_can_be_pieces(tmp_path):
    symbols = ["(S (NP XX XX )NP (VP XX )VP )S"] * 15
    folder = make_dataset(tmp_path / "x", target=symbols)
    config = dataclasses.replace(CONFIG, separate=True, target_words=True, byte_fallback=False)
    learn_bpe(folder, dataclasses.replace(config, vocab_size=40))
    assert vocab_sizes(folder) == [40, 4 + 7]
    assert len(Vocabulary.load(folder).target.encode(symbols)[0]) == 9


def test_the_default_size_is_reduced_for_a_small_text(folder, capsys):
    learn_bpe(folder, SubwordConfig())
    [size] = vocab_sizes(folder)
    assert 270 < size < 1_000
    assert f"learn-bpe: chose {size} pieces for 15 pairs" in capsys.readouterr().err


def test_the_default_size_is_increased_for_many_characters(tmp_path):
    many = [chr(0x4E00 + first) + chr(0x4E00 + first + 1) for first in range(0, 2_000, 2)]
    folder = make_dataset(tmp_path / "x", source=many, target=many)
    learn_bpe(folder, SubwordConfig())
    [size] = vocab_sizes(folder)
    assert size > 2_000


@pytest.mark.parametrize("separate", [True, False])
def test_a_refused_size_leaves_the_older_vocabulary(folder, separate):
    learn_bpe(folder, dataclasses.replace(CONFIG, separate=not separate, vocab_size=290))
    before = Vocabulary.load(folder).fingerprint
    with pytest.raises(UsageError, match=r"5,000 is too large .*train\.en(, .*train\.de)?"):
        learn_bpe(folder, SubwordConfig(vocab_size=5_000, separate=separate))
    assert Vocabulary.load(folder).fingerprint == before
