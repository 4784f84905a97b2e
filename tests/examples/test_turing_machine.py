"""The example of the neural Turing machine, at a tiny size."""

import itertools
import json

import pytest
import torch

EXAMPLE = "turing_machine"


def test_the_example_trains_and_scores_and_draws_and_is_not_repeated(
    example, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(example, "TEST_LENGTHS", (2,))
    monkeypatch.setattr(
        "sys.argv", ["train.py", "--steps", "3", "--seeds", "1", "--out", str(tmp_path)]
    )
    example.main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results) == 9
    assert (tmp_path / "heads.svg").read_text().startswith("<?xml")
    sizes = {result["parameters"] for result in results.values()}
    assert max(sizes) < 1.1 * min(sizes)  # machines of about equal size
    table = capsys.readouterr().out
    monkeypatch.setattr(example, "train", None)  # no machine is trained again
    example.main()
    assert capsys.readouterr().out == table


def test_a_turing_machine_learns_to_copy_one_vector(example, monkeypatch):
    monkeypatch.setattr(example, "LONGEST", 2)
    machine, *_ = example.train("copy", "turing-machine", seed=1, num_steps=200)
    assert example.wrong_bits(machine, "copy", 1) < 0.1


def test_where_heads_look_sums_to_one(example):
    machine = example.new_machine("turing-machine", 10, 8).eval()
    reads, writes = machine.trace(torch.randn(1, 7, 10))
    for weights in (reads, writes):
        assert weights.shape == (7, 128)
        assert weights.min() >= 0
        assert torch.allclose(weights.sum(1), torch.ones(7))


@pytest.mark.parametrize("length", [1, 5, 20, 120])
def test_answers_are_in_the_input(example, length):
    random = torch.Generator().manual_seed(length)
    copy = example.make("copy", length, 2, random)
    assert copy.answers.equal(copy.inputs[:, :length, :8])
    repeat = example.make("repeat-copy", length, 2, random)
    num_vectors = repeat.inputs.size(1) - repeat.answer_length - 1
    vectors = repeat.inputs[:, :num_vectors, :8]
    num_repeats = round(10 * float(repeat.inputs[0, num_vectors, -1]))
    assert repeat.answers.equal(vectors.repeat(1, num_repeats, 1))
    recall = example.make("recall", length, 1, random)
    read = recall.inputs[0, :-4].view(-1, 4, 8)  # items, and the question
    items, question = read[:-1, 1:, :6], read[-1, 1:, :6]
    followers = [after for item, after in itertools.pairwise(items) if item.equal(question)]
    assert any(recall.answers[0].equal(after) for after in followers)
