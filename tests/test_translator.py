"""Translator: text in, text out, as a library."""

import shutil

import pytest
import torch

import tfm
from tfm.config import SearchConfig
from tfm.errors import CheckpointError, DataError, TfmError
from tfm.runtime.checkpoint import checkpoints
from tfm.translator import Translator

LINES = ["seven", "", "I am buying 3 red cars for $5.", "   ", "on Monday", "seven"]
SHORT = SearchConfig(max_extra_length=5)


@pytest.fixture(scope="module")
def translator(trained_run):
    return Translator.load(trained_run, device="cpu")


def test_tfm_is_a_library(trained_run):
    translations = tfm.Translator.load(str(trained_run), device="cpu").translate(["seven"])
    assert len(translations) == 1


def test_each_line_gets_one_translation_and_empty_ones_stay_empty(translator):
    found = translator.translate(LINES, SHORT)
    assert len(found) == len(LINES)
    assert (found[1], found[3]) == ("", "")
    assert found[0] == found[5] != ""
    assert not any("\n" in text for text in found)


def test_no_lines_give_no_translations(translator):
    assert translator.translate([]) == []
    assert translator.translate(iter(())) == []


@pytest.mark.parametrize("max_tokens", [1, 20, 10_000])
def test_how_lines_are_batched_does_not_change_their_translations(translator, max_tokens):
    config = SearchConfig(max_extra_length=5, max_tokens=max_tokens)
    together = translator.search(LINES, config)
    alone = [translator.search([line], SHORT)[0] for line in LINES]
    for one, other in zip(together, alone, strict=True):
        assert [t.text for t in one] == [t.text for t in other]
        assert [t.score for t in one] == pytest.approx([t.score for t in other], abs=1e-5)


def test_n_best_translations_come_best_first(translator):
    [best] = translator.search(["seven"], SearchConfig(beam_size=4, n_best=4, max_extra_length=5))
    assert len(best) == 4
    scores = [translation.score for translation in best]
    assert scores == sorted(scores, reverse=True)
    assert all(translation.log_prob <= 0 for translation in best)


def test_a_model_folder_is_all_that_is_needed(translator, trained_run, tmp_path):
    moved = shutil.copytree(checkpoints(trained_run)[-1], tmp_path / "elsewhere")
    (moved / "training.pt").unlink()
    assert Translator.load(moved, device="cpu").translate(LINES, SHORT) == Translator.load(
        checkpoints(trained_run)[-1], device="cpu"
    ).translate(LINES, SHORT)


def test_several_models_make_an_ensemble(trained_run, translator):
    same = Translator.load(trained_run, trained_run, device="cpu")
    assert same.translate(LINES, SHORT) == translator.translate(LINES, SHORT)
    paths = checkpoints(trained_run)
    both = Translator.load(*paths[:2], device="cpu")
    found = both.search(["on Monday"], SHORT)
    for path in paths[:2]:
        alone = Translator.load(path, device="cpu").search(["on Monday"], SHORT)
        assert found[0][0].log_prob != alone[0][0].log_prob


def test_a_source_that_is_too_long_is_cut_with_a_warning(translator, capsys):
    config = SearchConfig(max_source_length=5, max_extra_length=5)
    text = "seven " * 50
    found = translator.search(["seven", text], config)
    assert "has 101 tokens: cut after 5" in capsys.readouterr().err
    assert len(found) == 2


def test_a_sentence_longer_than_the_table_of_positions_is_translated(translator):
    assert len(translator.translate(["seven " * 400], SearchConfig(max_extra_length=1))) == 1


def test_translating_leaves_a_model_in_training_as_it_was(translator):
    [model] = translator._models
    model.train()
    first, second = (translator.translate(LINES, SHORT) for _ in range(2))
    assert model.training
    assert first == second
    model.eval()


def test_text_of_any_script_is_taken(translator):
    assert len(translator.translate(["日本語 \u2028 \u0000 🙂", "\ud7ff"], SHORT)) == 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_translates(trained_run, precision):
    found = Translator.load(trained_run, device="cpu", precision=precision).search(LINES, SHORT)
    exact = Translator.load(trained_run, device="cpu").search(LINES, SHORT)
    for one, other in zip(found, exact, strict=True):
        assert one[0].score == pytest.approx(other[0].score, rel=0.05, abs=0.05)


@pytest.fixture
def model_dir(trained_run, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(checkpoints(trained_run)[-1], tmp_path / "model")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "bpe.model"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty"])
def test_a_damaged_model_is_refused(model_dir, name, damage):
    path = model_dir / name
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"")
    with pytest.raises(TfmError) as refused:
        Translator.load(model_dir, device="cpu")
    assert isinstance(refused.value, CheckpointError | DataError)
    assert "\n" not in str(refused.value)


def test_a_subword_model_of_another_run_is_refused(model_dir, tmp_path, make_dataset):
    pairs = [("a b c d", "d c b a")] * 20
    other = make_dataset(tmp_path / "other", {"train": pairs}, vocab_size=266)
    shutil.copy(other / "bpe.model", model_dir / "bpe.model")
    with pytest.raises(CheckpointError, match="was trained with subword model"):
        Translator.load(model_dir, device="cpu")


def test_weights_of_another_shape_are_refused(model_dir):
    text = (model_dir / "config.json").read_text()
    (model_dir / "config.json").write_text(text.replace('"d_ff": 32', '"d_ff": 64'))
    with pytest.raises(CheckpointError, match=r"weights and config\.json are not of one model"):
        Translator.load(model_dir, device="cpu")


def test_a_path_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no run or model folder"):
        Translator.load(tmp_path / "nowhere")


def test_dropout_is_off_after_loading(trained_run):
    [model] = Translator.load(trained_run, device="cpu")._models
    source, lengths = torch.tensor([[5, 6, 2]]), torch.tensor([3])
    with torch.no_grad():
        assert not torch.equal(*(model.encode(source, lengths) for _ in range(2)))
        model.eval()
        assert torch.equal(*(model.encode(source, lengths) for _ in range(2)))
