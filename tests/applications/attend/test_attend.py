"""tfm attend: attention pictures of a model and a sentence."""

import math
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import data_of

from tfm.commands.attend import attend
from tfm.commands.translator import Translator
from tfm.config import SearchConfig, run_config
from tfm.errors import CheckpointError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.folders.saving import save_checkpoint
from tfm.model.attention_weights import record_attention
from tfm.model.build import new_model
from tfm.vocabulary.subword import BOS, EOS, Vocabulary

SENTENCE = "I am buying the red cars on Monday"
SHORT = SearchConfig(max_extra_length=5)


@pytest.fixture
def picture(trained_run, tmp_path, monkeypatch):
    """Draw pictures with the trained run, in a folder of their own."""
    monkeypatch.chdir(tmp_path)

    def draw(sentence=SENTENCE, *, model=trained_run, target=None, out=(), search=SHORT, **choice):
        monkeypatch.setattr("tfm.commands.attend.SearchConfig.for_model", lambda *_: search)
        return attend(model, sentence, target=target, out=out, device="cpu", **choice)

    return draw


@pytest.fixture(scope="module")
def recurrent(trained_run, tmp_path_factory):
    """An untrained recurrent model with the run's vocabulary."""
    folder = checkpoints(trained_run)[-1]
    info = ModelFolder(folder).info
    run = run_config("rnn", {"model": {"d_model": 8, "num_encoder_layers": 1}})
    torch.manual_seed(0)
    model = new_model(run.model, info.vocab_sizes)
    path = tmp_path_factory.mktemp("models") / "recurrent"
    save_checkpoint(
        path,
        replace(info, run=run),
        dict(model.named_parameters()),
        subword_files=Vocabulary.load(folder).files(),
    )
    return path


def by_kind(path):
    return {each["kind"]: each for each in data_of(path)["maps"]}


def texts(path):
    elements = ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()) for element in elements]


def test_without_out_a_page_is_written_to_the_working_directory(picture, tmp_path):
    result = picture()
    assert result.paths == [Path("attention.html")]
    assert [path.name for path in tmp_path.iterdir()] == ["attention.html"]
    assert set(by_kind(tmp_path / "attention.html")) == {"encoder", "decoder", "cross"}


def test_without_a_target_the_model_translates_the_sentence(picture, trained_run, tmp_path):
    result = picture(search=SearchConfig(beam_size=3, max_extra_length=5))
    translator = Translator.load(trained_run, device="cpu")
    expected = translator.translate([SENTENCE], SearchConfig(beam_size=3, max_extra_length=5))
    assert [result.target] == expected
    data = data_of(tmp_path / "attention.html")
    assert data["target"] == {"text": result.target, "language": "de"}
    assert data["source"] == {"text": SENTENCE, "language": "en"}
    assert data["note"] == f"{ModelFolder.open(trained_run).path}, translated with beam 3"


def test_the_settings_of_the_model_are_those_of_its_translations(trained_run, tmp_path):
    best = ModelFolder.open(trained_run)
    info = replace(best.info, search={"max_extra_length": 1, "no_repeat_ngram": 1})
    save_checkpoint(tmp_path / "x", info, best.weights(), subword_files=best.vocabulary.files())
    result = attend(tmp_path / "x", SENTENCE, out=[tmp_path / "x.html"], device="cpu")
    [expected] = Translator.load(tmp_path / "x", device="cpu").translate([SENTENCE])
    assert result.target == expected
    assert result.target != attend(trained_run, SENTENCE, out=[tmp_path / "y.html"]).target


def test_a_given_target_is_decoded_by_force(picture, trained_run, tmp_path):
    target = "ich kaufe die roten Autos"
    assert picture(target=target).target == target
    folder = ModelFolder.open(trained_run).path
    vocabulary = Vocabulary.load(folder)
    [source_ids] = vocabulary.source.encode([SENTENCE])
    [target_ids] = vocabulary.target.encode([target])
    model = ModelFolder(folder).model()
    source = torch.tensor([[*source_ids, EOS]])
    expected = record_attention(
        model, source, torch.tensor([source.size(1)]), torch.tensor([[BOS, *target_ids]])
    )
    found = by_kind(tmp_path / "attention.html")
    for kind, weights in found.items():
        np.testing.assert_allclose(
            np.array(weights["weights"]) / 1000, getattr(expected, kind)[:, 0], atol=0.00051
        )
    assert found["cross"]["queries"] == found["decoder"]["queries"]
    assert found["cross"]["keys"] == found["encoder"]["keys"] == found["encoder"]["queries"]
    assert "".join(found["cross"]["keys"]) == f"▁{SENTENCE}</s>".replace(" ", "▁")
    assert "".join(found["cross"]["queries"]) == f"▁{target}</s>".replace(" ", "▁")
    assert found["decoder"]["keys"] == ["<s>", *found["decoder"]["queries"][:-1]]
    assert data_of(tmp_path / "attention.html")["note"] == f"{folder}, target as given"


def test_sentences_are_normalized_as_the_training_text_was(picture, tmp_path):
    dirty = f"\ufeff {SENTENCE}\t".replace(" the ", "\xa0the\u200b ")
    assert picture(dirty).target == picture(SENTENCE).target
    picture(dirty, target="ich\tkaufe ")
    data = data_of(tmp_path / "attention.html")
    assert (data["source"]["text"], data["target"]["text"]) == (dirty, "ich\tkaufe ")
    found = by_kind(tmp_path / "attention.html")["cross"]
    assert "".join(found["keys"]) == f"▁{SENTENCE}</s>".replace(" ", "▁")
    assert "".join(found["queries"]) == "▁ich▁kaufe</s>"
    with pytest.raises(UsageError, match="the sentence is empty"):
        picture("\u200b")


def test_the_suffix_selects_the_format(picture, tmp_path):
    names = ["a.html", "sub/b.svg", "c.PNG"]
    assert picture("seven", target="sieben", out=names).paths == [Path(name) for name in names]
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert ET.parse(tmp_path / "sub" / "b.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "c.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, ["Cross-attention", "layer 1", "head 1", "head 2"]),
        ({"kind": "decoder", "head": 1}, ["Decoder self-attention", "layer 1", "head 1"]),
    ],
    ids=str,
)
def test_a_figure_shows_the_chosen_kind_layer_and_head(picture, choice, expected):
    [path] = picture("seven", target="sieben", out=["x.svg"], **choice).paths
    named = {text for text in texts(path) if re.match(r"layer|head|.*-attention$", text)}
    assert named == set(expected)


def test_the_recurrent_model_has_cross_attention_of_one_head(picture, recurrent):
    [page, figure] = picture(model=recurrent, out=["x.html", "x.svg"]).paths
    [found] = data_of(page)["maps"]
    weights = np.array(found["weights"])
    assert found["kind"] == "cross"
    assert weights.shape == (1, 1, len(found["queries"]), len(found["keys"]))
    np.testing.assert_allclose(weights.sum(-1), 1000, atol=0.51 * len(found["keys"]))
    assert {"layer 1", "head 1"} <= set(texts(figure))
    message = r"recurrent is recurrent and has no encoder self-attention: use --kind cross"
    with pytest.raises(UsageError, match=message):
        picture(model=recurrent, kind="encoder", out=["y.svg"])


def test_long_sentences_are_refused(picture, tmp_path):
    with pytest.raises(UsageError, match=r"^the sentence has \d\d\d pieces, more than the 80 that"):
        picture("seven " * 100)
    with pytest.raises(UsageError, match=r"^--target has \d\d\d pieces, more than the 80"):
        picture(target="sieben " * 100)
    # The model is hardly trained and does not end its sentences before the limit.
    with pytest.raises(UsageError, match=r"^the translation has \d\d+ pieces, more than the 80"):
        picture(search=SearchConfig(beam_size=1, length_penalty=5, max_extra_length=90))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("positions", "most"), [(12, 12), (200, 80)])
def test_a_model_with_fewer_positions_takes_shorter_sentences(picture, make_model, positions, most):
    model = make_model(learned_positions=positions)
    with pytest.raises(UsageError, match=rf"^the sentence has \d+ pieces, more than the {most} "):
        picture("seven " * most, model=model)


@pytest.mark.parametrize("name", ["x.html", "x.png"])
def test_only_pictures_are_replaced(picture, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")  # as mktemp leaves it
    picture("seven", out=[name], target="eins")
    first = path.read_bytes()
    picture("seven", out=[name], target="eins zwei")
    assert path.read_bytes() != first

    path.write_bytes(b"<!doctype html><title>mine</title>")
    with pytest.raises(UsageError, match=rf"^{name} exists and was not written by tfm attend"):
        picture(out=["other.html", name])
    assert path.read_bytes() == b"<!doctype html><title>mine</title>"
    assert not (tmp_path / "other.html").exists()


def test_a_link_to_a_picture_stays_and_what_is_no_file_is_refused(picture, tmp_path):
    (tmp_path / "link.svg").symlink_to("real.svg")
    picture("seven", out=["link.svg"], target="eins")
    assert (tmp_path / "link.svg").readlink() == Path("real.svg")
    assert (tmp_path / "real.svg").is_file()
    os.mkfifo(tmp_path / "pipe.svg")
    (tmp_path / "odd.svg").symlink_to("pipe.svg")
    for name in ("pipe.svg", "odd.svg"):
        with pytest.raises(UsageError, match=f"{name}: it is a pipe or a device"):
            picture(out=[name])


# --- the command


@pytest.fixture
def tfm(run, trained_run, elsewhere):
    """Run the command line beside a runs folder; return exit code, stdout and stderr."""
    (elsewhere / "runs").mkdir()
    (elsewhere / "runs" / "one").symlink_to(trained_run)
    return run


def test_the_command_prints_the_pictures_and_says_what_they_show(tfm, trained_run, tmp_path):
    code, out, err = tfm(
        "attend", "runs/one", "seven cars", "--target", "sieben Autos", "--device", "cpu",
        "--out", "a.html", "--out", "b.svg", "--kind", "decoder", "--layer", "1", "--head", "2",
    )  # fmt: skip
    assert (code, out) == (0, "a.html\nb.svg\n")
    model = Path("runs/one") / ModelFolder.open(trained_run).path.relative_to(trained_run)
    assert err == f"attend: {model}: seven cars → sieben Autos\n"
    assert data_of(tmp_path / "a.html")["start"] == {"kind": "decoder", "layer": 1, "heads": [2]}
    assert "head 2" in texts(tmp_path / "b.svg")


def test_the_command_uses_the_newest_run_and_its_translation_by_default(tfm, tmp_path):
    code, out, err = tfm("attend", "seven", "--beam", "2", "--device", "cpu")
    assert (code, out) == (0, "attention.html\n")
    data = data_of(tmp_path / "attention.html")
    assert data["note"].endswith(", translated with beam 2")
    assert re.fullmatch(
        rf"attend: runs/one/\S+: seven → {re.escape(data['target']['text'])}\n", err
    )


@pytest.mark.parametrize("target", [None, "Ich kaufe"])
def test_a_model_that_diverged_is_not_drawn(picture, make_model, tmp_path, target):
    folder = make_model()
    weights = {
        name: weight.fill_(math.nan) for name, weight in ModelFolder(folder).weights().items()
    }
    files = Vocabulary.load(folder).files()
    save_checkpoint(folder, ModelFolder(folder).info, weights, subword_files=files)
    with pytest.raises(CheckpointError, match="gives no finite probabilities"):
        picture(model=folder, target=target)
    assert not (tmp_path / "attention.html").exists()
