"""The tokenizers of BLEU are the same in validation, scores and minimum Bayes risk."""

from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from sacrebleu.tokenizers import tokenizer_spm

from tfm.config import ScoreConfig, SearchConfig
from tfm.errors import DataError, DownloadError, UsageError
from tfm.metrics import tokenizers
from tfm.metrics.scores import corpus_scores
from tfm.metrics.tokenizers import bleu_tokenizer, load_tokenizer
from tfm.steps import ModelSteps
from tfm.text import download
from tfm.training.data import open_data

# A sentence, and the same with one other character.
SENTENCES = {
    "zh": ("这只狗在雪里跑。", "这只狗在雪里玩。"),
    "ja": ("犬が雪の中を走っている。", "犬が雪の中を歩っている。"),
    "ko": ("개 두 마리가 눈 속에서 달린다.", "개 두 마리가 눈 속에서 달렸다."),
    "de": ("Zwei Hunde rennen durch den Schnee.", "Zwei Hunde rennen durch den Schree."),
}
TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "13a", "de": "13a"}


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Return the folder in which sacreBLEU looks for models."""
    load_tokenizer.cache_clear()
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    yield tmp_path / "models"
    load_tokenizer.cache_clear()


@pytest.fixture(scope="module")
def spm_model(data_dir, tmp_path_factory) -> bytes:
    prefix = tmp_path_factory.mktemp("spm") / "model"
    sentencepiece.SentencePieceTrainer.train(
        input=str(data_dir / "train.de"), model_prefix=str(prefix), vocab_size=100, minloglevel=2
    )
    return prefix.with_suffix(".model").read_bytes()


def used_everywhere(data_dir, tiny_run, monkeypatch, language, choice="auto"):
    """Return the tokenizers of a run's validation, of a score and of minimum Bayes risk."""
    monkeypatch.setattr(
        "tfm.training.data.bleu_tokenizer", lambda _, choice: bleu_tokenizer(language, choice)
    )
    run = tiny_run(training={"validation_tokenize": choice, "validation_beam": 1})
    info = open_data(data_dir, run).info
    hypothesis, reference = SENTENCES[language]
    config = ScoreConfig(tokenize=choice)
    [score] = corpus_scores([hypothesis], [[reference]], ["bleu"], config, language=language)
    [validated] = corpus_scores(
        [hypothesis], [[reference]], ["bleu"], ScoreConfig(tokenize=info.bleu_tokenizer)
    )
    assert validated == score
    search = SearchConfig(mbr="bleu", mbr_tokenize=choice, n_best=2)
    [*_, step] = ModelSteps(info=replace(info, target=language)).around(search)
    [in_signature] = [part[4:] for part in score.signature.split("|") if part.startswith("tok:")]
    return {info.bleu_tokenizer, in_signature, step.tokenizer}


@pytest.mark.parametrize("language", SENTENCES)
def test_the_language_chooses_one_tokenizer_for_all(data_dir, tiny_run, monkeypatch, language):
    # Whatever is installed.
    monkeypatch.setattr(tokenizers, "find_spec", lambda package: None)
    used = used_everywhere(data_dir, tiny_run, monkeypatch, language)
    assert used == {TOKENIZERS[language]}


@pytest.mark.parametrize("choice", ["intl", "char"])
def test_a_requested_tokenizer_is_used_everywhere(data_dir, tiny_run, monkeypatch, choice):
    assert used_everywhere(data_dir, tiny_run, monkeypatch, "de", choice) == {choice}


@pytest.mark.parametrize("name", ["ja-mecab", "ko-mecab"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(name, monkeypatch, models):
    monkeypatch.setattr(tokenizers, "find_spec", lambda package: None)
    with pytest.raises(
        UsageError, match=rf"{name} needs MeCab .* run pip install .*\[{name[:2]}\]"
    ):
        corpus_scores(["a"], [["a"]], ["bleu"], ScoreConfig(tokenize=name))


@pytest.mark.parametrize(
    ("name", "module", "text", "words"),
    [
        ("ja-mecab", "MeCab", "私は猫が好きです。", "私 は 猫 が 好き です 。"),
        ("ko-mecab", "mecab_ko", "나는 고양이를 좋아합니다.", "나 는 고양이 를 좋 아 합니다 ."),
    ],
)
def test_mecab_divides_text_into_morphemes(name, module, text, words):
    pytest.importorskip(module)
    assert load_tokenizer(name)(text) == words


@pytest.mark.parametrize("name", ["flores101", "flores200"])
def test_a_model_is_read_where_sacrebleu_has_it(models, spm_model, name, monkeypatch):
    monkeypatch.setattr(download, "_download", None)
    models.mkdir()
    (models / Path(tokenizer_spm.SPM_MODELS[name]["url"]).name).write_bytes(spm_model)
    [score] = corpus_scores(["der Hund"], [["der Hund"]], ["bleu"], ScoreConfig(tokenize=name))
    assert f"|tok:{name}|" in score.signature


def test_a_missing_model_is_downloaded_once(models, spm_model, monkeypatch):
    def transfer(url, partial):
        partial.write_bytes(spm_model)

    monkeypatch.setattr(download, "_transfer", transfer)
    assert load_tokenizer("flores200")("der Hund")
    monkeypatch.setattr(download, "_transfer", None)
    load_tokenizer.cache_clear()
    assert load_tokenizer("flores200")("der Hund")


def test_without_a_network_a_model_is_one_line(models, monkeypatch):
    def fail(url, partial, *, name):
        raise DownloadError("there is no address")

    monkeypatch.setattr(download, "_download", fail)
    with pytest.raises(DownloadError, match=r"connect to the network, or save it as .*spm$"):
        load_tokenizer("flores200")
    assert not any(path.suffix == ".part" for path in models.iterdir())


def test_a_damaged_model_is_named(models):
    models.mkdir()
    (models / "flores200sacrebleuspm").write_bytes(b"<html>")
    with pytest.raises(DataError, match="flores200sacrebleuspm is no SentencePiece model"):
        load_tokenizer("flores200")


@pytest.mark.parametrize(
    ("codes", "tokenizer"),
    [
        ("zh zho_Hans zh-TW cmn yue yue_Hant lzh wuu gan de+zh", "zh"),
        ("ja jpn th tha_Thai lo km my mya_Mymr bo dz dzo_Tibt shn en+ja zh+th", "char"),
        ("de en ko hi ar vi ru zh_Latn ja-Latn de+fr target trees", "13a"),
    ],
)
def test_the_tokenizer_of_bleu_divides_what_has_no_spaces(codes, tokenizer):
    assert {bleu_tokenizer(code) for code in codes.split()} == {tokenizer}
    assert bleu_tokenizer("") == "13a"
