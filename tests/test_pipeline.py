"""All stages in sequence."""

import json
from pathlib import Path
from random import Random

import pytest
import torch

from tfm.commands.average import average
from tfm.commands.generate import plan_generation
from tfm.commands.prepare import prepare_recipe as prepare
from tfm.commands.score import score
from tfm.commands.train import train_model
from tfm.commands.translator import Translator
from tfm.config import InferenceConfig, SearchConfig, run_config
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.search.forced import forced_decoding
from tfm.search.search import search
from tfm.steps import ModelSteps
from tfm.text.corpus.loading import recipe_from_trees
from tfm.text.trees import parse_tree_line, words_of
from tfm.translation.generating import generate_lines
from tfm.vocabulary.subword import EOS, PAD

EXAMPLE = "treebank/generate"
CPU = InferenceConfig(device="cpu", precision="fp32")


def test_a_model_learns_to_copy(tmp_path, make_dataset):
    """From subword learning and training to beam search and text."""
    random = Random(1)
    lines = [" ".join(random.choices("abcdefgh", k=random.randint(1, 6))) for _ in range(1000)]
    unseen = sorted(set(lines[:100]) - set(lines[100:]))
    splits = {"train": [(line, line) for line in lines[100:]],
              "valid": [(line, line) for line in unseen]}  # fmt: skip
    data_dir = make_dataset(tmp_path / "data", splits, vocab_size=20, byte_fallback=False)
    run = run_config(
        "base",
        {
            "model": {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 32,
                      "d_ff": 128, "num_heads": 4, "dropout": 0.0, "attention_dropout": 0.0,
                      "embedding_dropout": 0.0},
            "optimizer": {"warmup_steps": 50, "learning_rate": 1e-2},
            "batching": {"batch_tokens": 1000, "bucket_tokens": 250},
            "training": {"max_steps": 150, "checkpoint_steps": 150, "device": "cpu",
                         "precision": "fp32"},
        },
    )  # fmt: skip
    train_model(data_dir, tmp_path / "run", run)
    translated = Translator.load(tmp_path / "run", device="cpu").translate(unseen)
    correct = sum(one == other for one, other in zip(translated, unseen, strict=True))
    assert correct >= 0.9 * len(unseen)


@pytest.fixture(scope="module")
def parser(tmp_path_factory, example):
    """The folder of a parser trained for a few steps on a small generated treebank."""
    folder = tmp_path_factory.mktemp("parsing")
    sizes = {"train": 120, "valid": 8, "test": 9}
    example.write_treebank(folder / "text", sizes)
    splits = {split: [folder / "text" / f"{split}.mrg"] for split in sizes}
    recipe = recipe_from_trees(name="trees", **splits)
    subword = {"vocab_size": 250, "byte_fallback": False}
    prepare(recipe, folder / "data" / "trees", overrides={"subword": subword})
    run = run_config(
        "base",
        {
            "model": {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 32,
                      "num_heads": 2, "tied_embeddings": "two-way"},
            "batching": {"batch_tokens": 600, "bucket_tokens": 200},
            "training": {"max_steps": 4, "checkpoint_steps": 2, "device": "cpu",
                         "precision": "fp32"},
        },
    )  # fmt: skip
    train_model(folder / "data" / "trees", folder / "runs" / "trees", run)
    return folder


def test_a_parser_is_validated_by_bracket_f1(parser):
    lines = (parser / "runs" / "trees" / "metrics.jsonl").read_text().splitlines()
    validations = [record for record in map(json.loads, lines) if record["kind"] == "validation"]
    assert [record["step"] for record in validations] == [2, 4]
    assert all(0 <= record["f1"] <= 100 and "bleu" not in record for record in validations)
    assert all(record["signature"].startswith("evalb:COLLINS|") for record in validations)


def test_a_parser_has_the_search_settings_of_its_dataset(parser):
    info = ModelFolder(ModelFolder.open(parser / "runs" / "trees").path).info
    assert info.task == "parsing"
    assert info.search == {"beam_size": 21, "length_penalty": 0.3, "max_extra_length": 300}


def test_a_parsers_output_becomes_trees_of_the_sentences_and_is_scored(parser, monkeypatch, capfd):
    monkeypatch.chdir(parser)
    plan = plan_generation([Path("runs/trees")], split="test")
    config = SearchConfig.for_model({**plan.info.search, "max_extra_length": 20}, {"beam_size": 2})
    steps = ModelSteps(info=plan.info, folder=plan.models[0]).around(config)
    outputs = list(generate_lines(plan, config, steps=steps, inference=CPU))
    assert len(outputs) == 9
    for sentence, [best] in outputs:
        tree = parse_tree_line(best.text, where="output")
        assert words_of(tree) == sentence.split()
    assert "repairs to the trees" in capfd.readouterr().err
    Path("out").write_text("".join(f"{best.text}\n" for _, [best] in outputs))
    [result] = score("out", "data/trees/test.gold", metric="bracket-f1").scores
    assert result.name == "bracket-f1"
    assert result.details["errors"] == 0


def test_a_variation_trains_resumes_averages_and_decodes(data_dir, tiny_run, tmp_path):
    """A run that is stopped and resumed has the weights of an uninterrupted one."""
    model = {"attention": "additive", "attention_window": 2, "learned_positions": 128}
    check_variation(
        data_dir,
        tmp_path,
        lambda steps: tiny_run(model=model, training={"max_steps": steps, "checkpoint_steps": 2}),
    )


@pytest.mark.parametrize("model", [{}, {"source_attention": "hard", "encoder_width": 12}])
def test_the_recurrent_baseline_trains_resumes_averages_and_decodes(data_dir, tmp_path, model):
    def run_of(steps):
        return run_config(
            "rnn",
            {
                "model": {"d_model": 16, "cell": "lstm", "attention": "additive", **model},
                "batching": {"batch_tokens": 600, "bucket_tokens": 100, "max_tokens": 250},
                "training": {"max_steps": steps, "checkpoint_steps": 2, "best_metric": "loss",
                             "validation_beam": 0, "device": "cpu", "precision": "fp32"},
            },
        )  # fmt: skip

    check_variation(data_dir, tmp_path, run_of)


def check_variation(data_dir, folder, run_of):
    straight, stopped = folder / "straight", folder / "stopped"
    train_model(data_dir, straight, run_of(4))
    train_model(data_dir, stopped, run_of(2))
    train_model(data_dir, stopped, run_of(4))
    weights, others = (ModelFolder(checkpoints(run)[-1]).weights() for run in (straight, stopped))
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    average(straight, last=2)
    folder = ModelFolder.open(straight).path
    assert folder.name == "averaged"
    model = ModelFolder(folder).model().eval()
    source = torch.tensor([[5, 6, 7, EOS], [8, EOS, PAD, PAD]])
    lengths = torch.tensor([4, 2])
    config = SearchConfig(max_extra_length=8)
    with torch.inference_mode():
        found = [best for [best] in search(model, source, lengths, config)]
        targets = [hypothesis.tokens for hypothesis in found]
        at_once = forced_decoding([model], source, lengths, targets, config)
    # Decoding with a cache and full decoding agree.
    for hypothesis, forced in zip(found, at_once, strict=True):
        assert forced.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-3)
