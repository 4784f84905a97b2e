"""The example of picture captioning, at a tiny size."""

import json

import numpy as np
import pytest
import torch

from tfm.vocabulary.subword import EOS

EXAMPLE = "captioning"


@pytest.fixture
def random():
    return np.random.default_rng(1)


def test_the_example_trains_and_scores_and_draws_and_is_not_repeated(
    example, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(example, "NUM_TRAINING", 8)
    monkeypatch.setattr(example, "NUM_TEST", 3)
    monkeypatch.setattr(
        "sys.argv", ["train.py", "--steps", "3", "--seeds", "1", "--out", str(tmp_path)]
    )
    example.main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert [*results] == ["recurrent 1", "hard 1", "transformer 1", "without-attention 1"]
    assert (tmp_path / "attention.svg").read_text(encoding="utf-8").count("<image") > 2
    table = capsys.readouterr().out
    monkeypatch.setattr(example, "train", None)  # no captioner is trained again
    example.main()
    assert capsys.readouterr().out == table


@pytest.mark.parametrize("name", ["recurrent", "hard", "transformer", "without-attention"])
def test_a_captioner_learns_its_pictures_and_beam_search_finds_what_it_learned(
    example, random, name, monkeypatch
):
    monkeypatch.setattr(example, "_BATCH_SIZE", 4)
    examples = example.make_examples(2, random, held_out=False)
    examples = examples._replace(captions=examples.captions[:, :1].expand(-1, 2, -1))
    model, _ = example.train(name, examples, examples, seed=1, num_steps=60)
    scenes = [scene.captions()[0] for scene in examples.scenes]
    from evaluate import write_captions

    assert write_captions(model, examples) == scenes


@pytest.mark.parametrize("name", ["recurrent", "hard", "transformer", "without-attention"])
def test_the_attention_of_each_word_sums_to_one(example, random, name):
    from evaluate import attention_by_word

    examples = example.make_examples(3, random, held_out=True)
    weights = attention_by_word(example.new_captioner(name).eval(), examples)
    assert weights.shape[:2] == (3, 11)
    assert torch.allclose(weights.sum(-1), torch.ones(3, 11))


@pytest.mark.parametrize("held_out", [False, True])
def test_captions_say_which_group_is_where(example, random, held_out):
    from pictures import HELD_OUT, decode

    sides = {"left of": (0, 1), "right of": (0, -1), "above": (1, 1), "below": (1, -1)}
    examples = example.make_examples(50, random, held_out=held_out)
    for scene, captions in zip(examples.scenes, examples.captions.tolist(), strict=True):
        assert [decode(ids[: ids.index(EOS)]) for ids in captions] == list(scene.captions())
        assert any(group[:3] in HELD_OUT for group in scene.groups) == held_out
        if len(scene.groups) == 1:
            continue
        for caption, (one, other) in zip(
            scene.captions(), (scene.groups, scene.groups[::-1]), strict=True
        ):
            relation = caption.removeprefix(f"{one} ").removesuffix(f" {other}")
            axis, sign = sides[relation]
            ones, others = ([sign * place[axis] for place in g.places] for g in (one, other))
            assert max(ones) < min(others)
