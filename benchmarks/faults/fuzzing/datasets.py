"""Readers of settings, datasets, and translations to score."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fuzzing.damage import change_json, change_toml, insert_snippet
from fuzzing.reader import Reader, as_text, file_hashes, tfm

from tfm.config import BinarizeConfig, SubwordConfig, run_config, run_toml
from tfm.data.dataset import DatasetIndex, ParallelDataset
from tfm.data.manifest import Manifest
from tfm.data.subword import Vocabulary
from tfm.data.synthetic.treebank import generate_trees
from tfm.data.trees.brackets import bracketed
from tfm.data.trees.symbols import linearize
from tfm.stages.binarize import binarize
from tfm.stages.learn_bpe import learn_bpe

_TREES = list(generate_trees("train", num_trees=12, seed=1))

# Settings


def _make_recipe(folder: Path) -> None:
    (folder / "a.en").write_bytes(as_text(0))
    (folder / "a.de").write_bytes(as_text(1))
    (folder / "recipe.toml").write_text(
        'name = "x"\nsource = "en"\ntarget = "de"\ntask = "translation"\ntext_size = 100\n'
        'description = "x"\n\n[[archives]]\nurl = "http://unreachable.invalid/x.tgz"\nsize = 10\n'
        f'sha256 = "{"0" * 64}"\n\n[[train]]\nsource = "a.en"\ntarget = "a.de"\nlines = 40\n\n'
        '[[test]]\ngenerator = "numbers"\nnum_pairs = 5\nseed = 1\n\n[cleaning]\n'
        "max_characters = 100\nmax_length_ratio = 3.0\ndrop_copies = true\n\n[subword]\n"
        'vocab_size = 300\nmodel_type = "bpe"\n\n[search]\nbeam_size = 4\n'
    )
    (folder / "mirror").mkdir()


def _read_recipe(folder: Path) -> str:
    tfm("prepare", "recipe.toml", "--mirror", "mirror", "--text-only", "--out", "data")
    return file_hashes(folder / "data", "t*.*")


def _make_config(folder: Path) -> None:
    (folder / "config.toml").write_text(run_toml(run_config("tiny")))


def _read_config(folder: Path) -> str:
    tfm("train", "--config", "config.toml", "--print-config")
    return (folder.parent / "log.out").read_text()


# Datasets


def make_dataset(folder: Path) -> None:
    """Make a small dataset in the folder "data"."""
    data = folder / "data"
    manifest = Manifest.create(data, name="x", source="en", target="de", settings={})
    for split in ("train", "valid"):
        for side, language in enumerate(("en", "de")):
            manifest.text_path(split, language).write_bytes(as_text(side))
    learn_bpe(data, SubwordConfig(threads=1, vocab_size=330))
    binarize(data, BinarizeConfig(threads=1))


def _read_by_binarize(folder: Path) -> str:
    tfm("binarize", "data", "--force", "--threads", "1")
    return file_hashes(folder / "data" / "bin", "*")


def _read_by_learn_bpe(folder: Path) -> str:
    tfm("learn-bpe", "data", "--vocab-size", "330", "--threads", "1", "--force")
    return file_hashes(folder / "data", "bpe.model")


def _read_by_prepare(folder: Path) -> str:
    tfm("binarize", "data")
    tfm("learn-bpe", "data", "--vocab-size", "330", "--threads", "1")
    tfm("binarize", "data")
    return file_hashes(folder / "data" / "bin", "*")


def _read_vocabulary(folder: Path) -> str:
    vocabulary = Vocabulary.load(folder / "data")
    ids = vocabulary.source.encode(["two dogs\0", "東 " * 100, *as_text(0).decode().splitlines()])
    return f"{vocabulary.fingerprint} {vocabulary.source.decode(ids)} {ids}"


def _read_dataset(folder: Path) -> str:
    bin_dir = folder / "data" / "bin"
    index = DatasetIndex.load(bin_dir)
    all_ids = []
    for split in ("train", "valid"):
        dataset = ParallelDataset(bin_dir, split, vocab_sizes=(330, 330))
        for sequences in (dataset.source, dataset.target):
            ids, lengths = sequences.concatenate(np.arange(len(dataset)))
            if ids.min() < 0 or ids.max() >= 330 or lengths.min() < 0:
                raise AssertionError("ids outside the vocabulary")
            all_ids.append(ids.tolist())
    return f"{index.source} {index.target} {all_ids}"


def _read_forged_dataset(folder: Path) -> str:
    with contextlib.suppress(OSError):
        DatasetIndex.load(folder / "data" / "bin").save(folder / "data" / "bin")
    return _read_dataset(folder)


_ARRAYS = [
    f"data/bin/train.{lang}.{kind}.npy" for lang in ("en", "de") for kind in ("tokens", "offsets")
]

# Scores


def _make_translations(folder: Path) -> None:
    for name in ("out.de", "ref.de", "base.de"):
        (folder / name).write_bytes(as_text(1))
    (folder / "runs").mkdir()
    last_generation = {
        "format": 1,
        "model": ["m"],
        "data": "d",
        "split": "test",
        "source": "s",
        "reference": "ref.de",
    }
    (folder / "runs" / "last-generation.json").write_text(json.dumps(last_generation))


def _read_translations(folder: Path) -> str:
    files = ("--hypotheses", "out.de", "--reference", "ref.de", "--baseline", "base.de")
    metrics = ("--metric", "bleu", "--metric", "chrf", "--metric", "exact")
    tfm("score", *files, *metrics, "--bootstrap-samples", "5", "--json")
    return (folder.parent / "log.out").read_text()


def _read_paper_bleu(folder: Path) -> str:
    tfm(
        "score",
        "--hypotheses",
        "out.de",
        "--reference",
        "ref.de",
        "--metric",
        "paper-bleu",
        "--json",
    )
    return (folder.parent / "log.out").read_text()


def _read_last_generation(folder: Path) -> str:
    tfm("score", "--hypotheses", "out.de", "--json")
    return (folder.parent / "log.out").read_text()


def _make_trees(folder: Path) -> None:
    lines = "".join(f"{bracketed(tree)}\n" for tree in _TREES)
    for name in ("gold", "parsed", "train.mrg"):
        (folder / name).write_text(lines)
    (folder / "symbols").write_text("".join(f"{' '.join(linearize(tree))}\n" for tree in _TREES))


def _read_trees_to_score(folder: Path) -> str:
    for name in ("parsed", "symbols"):
        files = ("--hypotheses", name, "--reference", "gold")
        tfm("score", *files, "--metric", "bracket-f1", "--json")
    return (folder.parent / "log.out").read_text()


def _read_trees_to_train_on(folder: Path) -> str:
    tfm("prepare", "--train-trees", "train.mrg", "--text-only", "--out", "data")
    return file_hashes(folder / "data", "t*.*")


DATA_READERS: Sequence[Reader] = (
    Reader(
        name="a recipe",
        files={"recipe.toml": (change_toml,)},
        make=_make_recipe,
        read=_read_recipe,
        may_be_pipe=False,
    ),
    Reader(
        name="settings for train",
        files={"config.toml": (change_toml,)},
        make=_make_config,
        read=_read_config,
        may_be_pipe=False,
    ),
    Reader(
        name="manifest.json",
        files={"data/manifest.json": (change_json,)},
        make=make_dataset,
        read=_read_by_prepare,
    ),
    Reader(
        name="text to learn subwords from",
        files={"data/train.en": (insert_snippet,)},
        make=make_dataset,
        read=_read_by_learn_bpe,
    ),
    Reader(
        name="a subword model, binarized with",
        files={"data/bpe.model": ()},
        make=make_dataset,
        read=_read_by_binarize,
        is_checked=True,
    ),
    Reader(
        name="a subword model",
        files={"data/bpe.model": ()},
        make=make_dataset,
        read=_read_vocabulary,
    ),
    Reader(
        name="a binarized dataset",
        files={**dict.fromkeys(_ARRAYS, ()), "data/bin/dataset.json": (change_json,)},
        make=make_dataset,
        read=_read_dataset,
        is_checked=True,
    ),
    Reader(
        name="a binarized dataset with forged checksums",
        files=dict.fromkeys(_ARRAYS, (insert_snippet,)),
        make=make_dataset,
        read=_read_forged_dataset,
        may_be_no_file=False,
    ),
    Reader(
        name="translations and references",
        files=dict.fromkeys(("out.de", "ref.de", "base.de"), (insert_snippet,)),
        make=_make_translations,
        read=_read_translations,
        may_be_pipe=False,
    ),
    Reader(
        name="translations, by paper-bleu",
        files=dict.fromkeys(("out.de", "ref.de"), (insert_snippet,)),
        make=_make_translations,
        read=_read_paper_bleu,
        may_be_pipe=False,
    ),
    Reader(
        name="last-generation.json",
        files={"runs/last-generation.json": (change_json,)},
        make=_make_translations,
        read=_read_last_generation,
    ),
    Reader(
        name="trees to score",
        files=dict.fromkeys(("gold", "parsed", "symbols"), (insert_snippet,)),
        make=_make_trees,
        read=_read_trees_to_score,
        may_be_pipe=False,
    ),
    Reader(
        name="trees to train on",
        files={"train.mrg": (insert_snippet,)},
        make=_make_trees,
        read=_read_trees_to_train_on,
    ),
)
