"""What several test files share: a tiny dataset, and settings of a tiny run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfm.config import BinarizeConfig, RunConfig, SubwordConfig, run_config
from tfm.data.manifest import Manifest
from tfm.data.synthetic import generate_pairs
from tfm.stages.binarize import binarize
from tfm.stages.learn_bpe import learn_bpe

# The same sums in every process, however many threads it has, wherever its memory lies.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

TINY: dict[str, dict[str, Any]] = {
    "model": {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
    },
    "optimizer": {"warmup_steps": 40},
    "batching": {"batch_tokens": 600, "bucket_tokens": 100, "max_tokens": 250},
    "training": {
        "max_steps": 12,
        "checkpoint_steps": 4,
        "log_steps": 3,
        "keep_last": 20,
        "best_metric": "loss",
        "validation_beam": 0,
        "device": "cpu",
        "precision": "fp32",
    },
}


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., Path]:
    """Make a binarized dataset of given pairs in a folder."""

    def make(folder: Path, splits: dict[str, list[tuple[str, str]]], **subword: Any) -> Path:
        manifest = Manifest.create(folder, name="tiny", source="en", target="de", settings={})
        for split, pairs in splits.items():
            for side, language in enumerate(("en", "de")):
                text = "".join(f"{pair[side]}\n" for pair in pairs)
                manifest.text_path(split, language).write_text(text, encoding="utf-8")
        learn_bpe(folder, SubwordConfig(num_threads=1, **subword))
        binarize(folder, BinarizeConfig(jobs=1))
        return folder

    return make


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory, make_dataset: Callable[..., Path]) -> Path:
    """A dataset of a few hundred generated pairs; tests must not change it."""
    sizes = {"train": 200, "valid": 12, "test": 12}
    splits = {
        split: list(generate_pairs(split, num_pairs=size, seed=1)) for split, size in sizes.items()
    }
    return make_dataset(tmp_path_factory.mktemp("data") / "tiny", splits, vocab_size=400)


@pytest.fixture(scope="session")
def tiny_run() -> Callable[..., RunConfig]:
    """Settings of a run that takes a second, with some changed."""

    def make(**changes: dict[str, Any]) -> RunConfig:
        return run_config("base", TINY, changes)

    return make


@pytest.fixture(scope="session")
def trained_run(
    data_dir: Path, tiny_run: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run with checkpoints at steps 4, 8 and 12; tests must not change it."""
    from tfm.stages.train import train

    run_dir = tmp_path_factory.mktemp("runs") / "tiny"
    train(data_dir, run_dir, tiny_run(training={"average_last": 2}))
    return run_dir
