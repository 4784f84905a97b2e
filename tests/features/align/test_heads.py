"""The heads to align with: their choice, and its record beside the model."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import edit_model

from tfm.config import InferenceConfig
from tfm.errors import UsageError
from tfm.features.align import heads
from tfm.features.align.alignment import Side
from tfm.features.align.heads import AlignmentModel, choose_heads, predictability
from tfm.features.align.step import Align
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import ALIGNMENT, WEIGHTS
from tfm.translation.engine import Engine


def test_links_to_the_same_pieces_in_both_halves_predict_best():
    random = np.random.default_rng(1)
    sources = random.integers(4, 24, size=2_000)
    half = np.arange(2_000) % 2
    translated = (sources * 7) % 50
    exact = predictability(sources, translated, half)
    shuffled = predictability(random.permutation(sources), translated, half)
    assert shuffled < np.log(1 / 20) < -0.2 < exact < 0


class PlantedHeads:
    """Attention of which head 2 links each target piece to its source piece, in reverse order."""

    def attention(self, pairs):
        for index, (source, target) in enumerate(pairs):
            generator = torch.Generator().manual_seed(index)
            weights = torch.rand(4, len(target.ids), len(source.ids) + 1, generator=generator)
            weights[2] = 0.0
            for row in range(len(target.ids)):
                weights[2, row, len(source.ids) - 1 - row] = 4.0
            yield index, weights.softmax(dim=-1)


def texts_in_reverse():
    random = np.random.default_rng(2)
    texts = [random.integers(4, 40, size=6).tolist() for _ in range(60)]
    return [
        (Side(ids, [(n,) for n in range(6)]), Side([i + 100 for i in ids[::-1]], []))
        for ids in texts
    ]


def test_the_head_that_aligns_is_chosen():
    pairs = texts_in_reverse()
    assert 2 in choose_heads(PlantedHeads(), pairs)
    assert choose_heads(PlantedHeads(), pairs) == choose_heads(PlantedHeads(), pairs)


class HalfHeads(PlantedHeads):
    """Heads 1 and 3 link the target pieces at even and at odd positions."""

    def attention(self, pairs):
        for index, weights in super().attention(pairs):
            for row in range(weights.size(1)):
                head = 1 + 2 * (row % 2)
                weights[head, row], weights[2, row] = weights[2, row].clone(), weights[0, row]
            yield index, weights


def test_heads_that_align_only_together_are_chosen():
    assert choose_heads(HalfHeads(), texts_in_reverse()) == [1, 3]


@pytest.mark.parametrize(
    ("source", "target", "task", "is_reverse"),
    [
        ("de", "en", "translation", True),
        ("deu", "en-GB", "translation", True),
        ("de", "fr", "translation", False),
        ("fr", "en", "translation", False),
        ("en", "de", "translation", False),
        ("de", "en", "parsing", False),
    ],
)
def test_the_reverse_model_is_one_from_the_target_to_the_source(
    make_model, tmp_path, source, target, task, is_reverse
):
    model = ModelFolder(make_model())
    reverse = shutil.copytree(model.path, tmp_path / "reverse")
    edit_model(reverse, source=source, target=target, task=task)
    if is_reverse:
        Align.of(model, str(reverse), "cpu")
    else:
        with pytest.raises(UsageError, match="--align-reverse needs a model from de to en"):
            Align.of(model, str(reverse), "cpu")


@pytest.mark.parametrize(
    ("num_layers", "names"),
    [(1, "1.1, 1.2"), (2, "1.1, 1.2, 2.1, 2.2"), (3, "2.1, 2.2, 3.1, 3.2"), (4, "3.1, 3.2")],
)
def test_without_validation_text_late_layers_are_used(
    make_model, monkeypatch, capsys, num_layers, names
):
    folder = ModelFolder(make_model(num_decoder_layers=num_layers))  # of two heads
    monkeypatch.setattr(heads, "_validation_text", lambda _: ([], []))
    assert len(AlignmentModel(folder, "cpu").aligner.heads) == names.count(".")
    assert f"heads {names} (layer.head), the default" in capsys.readouterr().err
    assert not (folder.path / ALIGNMENT).exists()


def test_a_damaged_dataset_matters_only_for_alignments(make_model, tmp_path, capsys):
    folder = ModelFolder(make_model())
    (tmp_path / "manifest.json").write_text("{")
    folder.info = replace(folder.info, data_dir=str(tmp_path))
    held = AlignmentModel(folder, "cpu")
    assert "damaged" not in capsys.readouterr().err
    assert len(held.aligner.heads) == 4
    assert "the default, because" in (message := capsys.readouterr().err)
    assert f"{tmp_path / 'manifest.json'} is damaged" in message


@pytest.fixture
def model(trained_run, tmp_path):
    """The path of a model without a record of heads."""
    path = shutil.copytree(ModelFolder.open(trained_run).path, tmp_path / "model")
    (path / ALIGNMENT).unlink(missing_ok=True)
    return path


@pytest.fixture
def choices(monkeypatch):
    """The choices of heads so far."""
    made = []

    def counted(*arguments):
        made.append(choose_heads(*arguments))
        return made[-1]

    monkeypatch.setattr(heads, "choose_heads", counted)
    return made


def loaded_heads(path):
    return AlignmentModel(ModelFolder(path), "cpu").aligner.heads


def test_heads_are_chosen_once_for_a_model(model, choices, monkeypatch, capsys):
    first = loaded_heads(model)
    message = capsys.readouterr().err
    monkeypatch.setattr(heads, "_validation_text", lambda _: ([], []))  # as on another machine
    assert [first] == [loaded_heads(model)] == choices
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"weights": "', '"weights": "0'),
        ('"heads": [', '"heads": [99, '),
        ('"format": 1', '"format": 2'),
        ("{", ""),
    ],
)
def test_a_record_that_is_not_of_these_weights_is_replaced(model, choices, old, new):
    loaded_heads(model)
    path = model / ALIGNMENT
    record = path.read_text()
    path.write_text(record.replace(old, new, 1))
    loaded_heads(model)
    assert len(choices) == 2
    assert path.read_text() == record


def test_a_folder_that_cannot_be_written_to_needs_no_record(model, choices, monkeypatch, capsys):
    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(heads, "write_record", refuse)
    assert loaded_heads(model) == loaded_heads(model) == choices[0] == choices[1]
    assert "ermission" not in capsys.readouterr().err


@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_is_held_needs_no_folder(model, make_model, choices, is_replaced):
    held = AlignmentModel(ModelFolder(model), "cpu")
    shutil.rmtree(model)
    if is_replaced:
        make_model(seed=1).rename(model)
    assert [held.aligner.heads] == choices
    assert not (model / ALIGNMENT).exists()


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.needs_bf16)])
def test_the_aligner_shares_the_weights_of_the_search(model, precision):
    folder = ModelFolder(model)
    engine = Engine.start([folder], InferenceConfig(device="cpu", precision=precision))
    (model / WEIGHTS).unlink()  # it is not read again
    shared = AlignmentModel(folder, "cpu").aligner.model.parameters()
    weights = {each.data_ptr() for each in engine._models[0].parameters()}
    assert {each.data_ptr() for each in shared} == weights
