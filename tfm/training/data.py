"""Open a binarized dataset for training, and check that the settings fit it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tfm.config import DeviceName, Precision, RunConfig, TransformerConfig, suitable_arch
from tfm.data.dataset import DatasetIndex, ParallelDataset
from tfm.data.manifest import BINARIZE, Manifest
from tfm.data.shortlist import shortlist_files
from tfm.data.subword import Vocabulary
from tfm.data.text import read_pairs
from tfm.device.compute import choose_compute
from tfm.errors import DataError, UsageError, tfm_command
from tfm.storage.checkpoint.model_folder import ModelInfo
from tfm.storage.files import sha256_of


@dataclass(frozen=True, kw_only=True)
class ValidationSplit:
    """The validation pairs, as token ids and as text."""

    pairs: ParallelDataset
    sources: list[str]
    references: list[str]  # translations; for a parser, gold trees


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """An open dataset."""

    data_dir: Path
    vocabulary: Vocabulary
    train: ParallelDataset
    valid: ValidationSplit | None
    model_files: Mapping[str, bytes]  # subword models, and shortlist if there is one, by file name
    info: ModelInfo  # of a model trained on this dataset, at step 0
    checksum: str  # depends on the training pairs and their order


def arch_for_data(data_dir: Path, device: DeviceName, precision: Precision) -> tuple[str, str]:
    """Return the preset that suits a dataset and a device, and the reason in words.

    Raises:
        UsageError: The CPU does not support the precision.
        DataError: The dataset is damaged or not binarized.
    """
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.device_count() > 0)
    if not on_gpu:
        choose_compute(device, precision, trains=True)
    task = Manifest.load(data_dir).task
    num_pairs = DatasetIndex.load(data_dir / "bin").num_pairs.get("train", 0)
    return suitable_arch(num_pairs, on_gpu=on_gpu, task=task)


def open_data(data_dir: Path, run: RunConfig) -> TrainingData:
    """Open a dataset for training.

    Raises:
        DataError: The dataset is damaged or not binarized, or was binarized from other text or with
            another subword model.
        UsageError: The settings do not fit the dataset.
    """
    manifest = Manifest.load(data_dir)
    vocabulary = Vocabulary.load(data_dir, normalizes_space=manifest.normalizes_space)
    index = DatasetIndex.load(data_dir / "bin")
    _check_binarized(manifest, index, vocabulary)
    if not vocabulary.is_joint and run.model.tied_embeddings == "three-way":
        raise UsageError(
            f"{data_dir} has separate vocabularies, but three-way tied embeddings need a joint "
            "one: use --tied-embeddings two-way, or learn a joint vocabulary"
        )
    vocab_sizes = (len(vocabulary.source), len(vocabulary.target))
    train = ParallelDataset(data_dir / "bin", "train", vocab_sizes=vocab_sizes)
    if not len(train):
        raise DataError(f"{data_dir} has no training pairs: see its manifest.json for the reason")
    valid = None
    if index.num_pairs.get("valid"):
        pairs = ParallelDataset(data_dir / "bin", "valid", vocab_sizes=vocab_sizes)
        paths = manifest.text_path("valid", manifest.source), manifest.reference_path("valid")
        text = list(read_pairs(*paths, strict=True, num_lines=len(pairs)))
        valid = ValidationSplit(
            pairs=pairs,
            sources=[source.decode() for source, _ in text],
            references=[reference.decode() for _, reference in text],
        )
    elif run.training.patience is not None:
        raise UsageError(
            f"patience has no effect: {data_dir} has no validation split; leave it out, or prepare "
            "the data with one"
        )
    _check_lengths(data_dir, [train] if valid is None else [train, valid.pairs], run)
    return TrainingData(
        data_dir=data_dir,
        vocabulary=vocabulary,
        train=train,
        valid=valid,
        model_files=vocabulary.files() | shortlist_files(data_dir, vocabulary),
        info=ModelInfo(
            run=run,
            source=manifest.source,
            target=manifest.target,
            vocab_sizes=vocab_sizes,
            fingerprint=vocabulary.fingerprint,
            data_dir=str(data_dir),
            step=0,
            task=manifest.task,
            search=manifest.settings("search"),
            normalizes_space=manifest.normalizes_space,
        ),
        checksum=index.checksum("train"),
    )


def _check_binarized(manifest: Manifest, index: DatasetIndex, vocabulary: Vocabulary) -> None:
    """Raise DataError unless the token ids are those of the text, with the subword model.

    Text that was deleted after it was binarized is not compared.
    """
    data_dir = manifest.data_dir
    remedy = f"run {tfm_command('binarize', data_dir)}"
    recorded = (manifest.inputs(BINARIZE) or {}).get("text")
    if not isinstance(recorded, dict):
        raise DataError(f"{data_dir}/bin was not binarized from the text in {data_dir}: {remedy}")
    if (index.source, index.target) != (manifest.source, manifest.target):
        raise DataError(
            f"{data_dir}/bin is {index.source}-{index.target}, but {data_dir} is "
            f"{manifest.source}-{manifest.target}: {remedy} --force"
        )
    if index.fingerprint != vocabulary.fingerprint:
        raise DataError(
            f"{data_dir}/bin was binarized with subword model {index.fingerprint[:8]}, but "
            f"{data_dir} has {vocabulary.fingerprint[:8]}: {remedy}"
        )
    languages = (manifest.source, manifest.target)
    texts = {manifest.text_path(split, lang) for split in manifest.splits() for lang in languages}
    for path in sorted(texts | {data_dir / name for name in recorded}):
        if path.is_file() and sha256_of(path) != recorded.get(path.name):
            raise DataError(f"{path} has changed since {data_dir}/bin was binarized: {remedy}")


def _check_lengths(data_dir: Path, splits: list[ParallelDataset], run: RunConfig) -> None:
    """Raise UsageError if a sentence has more tokens than the model has learned positions."""
    limit = run.model.learned_positions if isinstance(run.model, TransformerConfig) else None
    if limit is None:
        return
    sides = (side for split in splits for side in (split.source, split.target))
    longest = 1 + max(int(side.lengths().max(initial=0)) for side in sides)  # with EOS
    if longest > limit:
        raise UsageError(
            f"{data_dir} has a sentence of {longest:,} tokens, more than the {limit:,} learned "
            f"positions: use --learned-positions {longest} or more, or prepare the data with a "
            "smaller --max-length"
        )
