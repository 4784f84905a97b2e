"""The stages one after another, from text to text."""

from random import Random

from tfm.config import run_config
from tfm.stages.train import train
from tfm.translator import Translator


def test_it_learns_to_copy(tmp_path, make_dataset):
    """The whole way: subwords, training, checkpoints, beam search, text."""
    random = Random(1)
    lines = [" ".join(random.choices("abcdefgh", k=random.randint(1, 6))) for _ in range(1000)]
    unseen = sorted(set(lines[:100]) - set(lines[100:]))
    splits = {"train": [(line, line) for line in lines[100:]],
              "valid": [(line, line) for line in unseen]}  # fmt: skip
    data_dir = make_dataset(tmp_path / "data", splits, vocab_size=20, byte_fallback=False)
    run = run_config(
        "base",
        {
            "model": {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 64,
                      "d_ff": 128, "num_heads": 4, "dropout": 0.0, "attention_dropout": 0.0,
                      "embedding_dropout": 0.0},
            "optimizer": {"warmup_steps": 100, "learning_rate": 5e-3},
            "batching": {"batch_tokens": 1000, "bucket_tokens": 250},
            "training": {"max_steps": 240, "checkpoint_steps": 240, "device": "cpu",
                         "precision": "fp32"},
        },
    )  # fmt: skip
    train(data_dir, tmp_path / "run", run)
    translated = Translator.load(tmp_path / "run", device="cpu").translate(unseen)
    correct = sum(one == other for one, other in zip(translated, unseen, strict=True))
    assert correct >= 0.9 * len(unseen)
