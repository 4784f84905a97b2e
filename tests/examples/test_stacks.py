"""The example of the stacks, at a tiny size."""

import random

import torch

EXAMPLE = "turing_machine/stacks"


def test_the_example_trains_and_draws(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example, "SIZES", {"1": range(1, 2)})
    monkeypatch.setattr("sys.argv", ["", "--steps=2", "--seeds=1", f"--out={tmp_path}"])
    example.main()
    assert (tmp_path / "stacks.svg").read_text().startswith("<?xml")
    assert capsys.readouterr().out.count("\n") == 17


def test_rounded_stacks_are_stacks(example):
    network = example.StackNetwork(3, is_recurrent=True)
    network.is_rounded = True
    for pushes, tops in network.run(9 * torch.randn(1, 50, 3))[1][0].permute(2, 1, 0).tolist():
        stack = [-1.0]
        for push, top in zip(pushes, tops, strict=True):
            stack = [*stack, top] if push else stack[:-1] or [-1.0]
            assert top == stack[-1]


def test_half_of_a_word_follows_from_the_other(example):
    for language, symbols in example.SYMBOLS.items():
        _, targets, is_determined = example.make(language, 30, random.Random(1), 1)
        assert is_determined.sum() == (31 if language != "a^n b^n" else 30)
        word = "".join(symbols[i] for i in targets[0])
        for pair in {"brackets": 30 * ["()", "[]"], "a^n b^n": 30 * ["ab"]}.get(language, []):
            word = word.replace(pair, "")
        assert word in {"$", f"{word[:30]}={word[29::-1]}$"}
