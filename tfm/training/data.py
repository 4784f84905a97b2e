"""What a run needs before its first step: data that fits its settings, a model and a state."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tfm.config import (
    AugmentationConfig,
    BinarizeConfig,
    DeviceName,
    Precision,
    RunConfig,
    SearchConfig,
    TransformerConfig,
    Values,
    suitable_arch,
)
from tfm.config.schema import MAX_LENGTH, check_facts
from tfm.dataset.augmentation import Augmentation, configs_of
from tfm.dataset.manifest import BINARIZE, SEEN, Manifest
from tfm.dataset.parallel import DatasetIndex, ParallelDataset
from tfm.dataset.plan import WINDOW_PAIRS
from tfm.disk.tensor_file import record_from
from tfm.errors import CheckpointError, DataError, UsageError, tfm_command
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import STATE, ModelInfo
from tfm.machine.background import run_in_thread
from tfm.machine.compute import choose_compute
from tfm.machine.group import Group
from tfm.machine.world import World
from tfm.metrics.tokenizers import bleu_tokenizer, load_tokenizer
from tfm.model.build import Model, new_model
from tfm.model.cost import Cost, gathering_problem, memory_problem, model_cost
from tfm.reporting import say
from tfm.text.corpus.texts import SPLITS
from tfm.text.lines import read_pairs
from tfm.training.progress import RunState, StepReport
from tfm.vocabulary.subword import Vocabulary, shown_tags

if TYPE_CHECKING:
    from tfm.training.trainer import Trainer

_MAX_REASON = 100  # characters
_MAX_CUT_RATE = 0.01  # of validation references that are too long for a translation


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
    model_files: Mapping[str, bytes]  # subword models, by file name
    also_valid: dict[str, ValidationSplit]  # further sets by name
    info: ModelInfo  # of a model trained on this dataset, at step 0
    checksum: str  # depends on the training pairs and their order
    augmentation: Augmentation | None = None  # of the training pairs, if there is any


def arch_for_data(data_dir: Path, device: DeviceName, precision: Precision) -> tuple[str, str]:
    """Return the preset that suits a dataset and a device, and the reason in words."""
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.device_count() > 0)
    if not on_gpu:
        choose_compute(device, precision, trains=True)
    task = Manifest.load(data_dir).task
    num_pairs = DatasetIndex.load(data_dir / "bin").num_pairs.get("train", 0)
    return suitable_arch(num_pairs, on_gpu=on_gpu, task=task)


def open_data(data_dir: Path, run: RunConfig, *, num_processes: int = 1) -> TrainingData:
    """Open a dataset for training, without reading its training pairs."""
    manifest = Manifest.load(data_dir)
    vocabulary = Vocabulary.load(data_dir, manifest.normalization)
    index = DatasetIndex.load(data_dir / "bin")
    _check_binarized(manifest, index, vocabulary)
    augmentation = _augmentation(manifest, index, vocabulary, run)
    facts = {
        "--from": run.from_model,
        "several processes": num_processes > 1,
        "validation text": index.num_pairs.get("valid"),
        "task": manifest.task,
    }
    check_facts((run.optimizer, run.training), facts)
    # Only a model to start from may have a joint vocabulary with two segmentations.
    is_separate = not vocabulary.is_joint and run.from_model is None
    if is_separate and run.model.tied_embeddings == "three-way":
        raise UsageError(
            f"{data_dir} has separate vocabularies, but three-way tied embeddings need a joint "
            "one: use --tied-embeddings two-way, or learn a joint vocabulary"
        )
    if run.training.validation_tokenize != "auto":
        load_tokenizer(run.training.validation_tokenize)  # reports what is missing
    vocab_sizes = (len(vocabulary.source), len(vocabulary.target))
    train = ParallelDataset(data_dir / "bin", "train", vocab_sizes=vocab_sizes, index=index)
    if not len(train):
        raise DataError(f"{data_dir} has no training pairs: see its manifest.json for the reason")
    valid = None
    if index.num_pairs.get("valid"):
        valid = _open_valid(manifest, index, vocab_sizes, manifest.tags())
    also_valid = {
        name: _open_also_valid(Path(folder), manifest, vocabulary)
        for name, _, folder in (each.partition("=") for each in run.training.also_valid)
    }
    validation = [each.pairs for each in (valid, *also_valid.values()) if each is not None]
    _check_lengths(data_dir, [train, *validation], run)
    return TrainingData(
        data_dir=data_dir,
        vocabulary=vocabulary,
        train=train,
        valid=valid,
        model_files=vocabulary.files(),
        also_valid=also_valid,
        info=ModelInfo(
            run=run,
            source=manifest.source,
            target=manifest.target,
            vocab_sizes=vocab_sizes,
            fingerprint=vocabulary.fingerprint,
            data_dir=str(data_dir),
            step=0,
            task=manifest.task,
            search=_search(manifest, valid),
            normalization=manifest.normalization,
            tags=manifest.tags(),
            bleu_tokenizer=bleu_tokenizer(manifest.target, run.training.validation_tokenize),
            seen=manifest.result(SEEN).get("sha256"),
        ),
        checksum=index.checksum("train"),
        augmentation=augmentation,
    )


def _search(manifest: Manifest, valid: ValidationSplit | None) -> Values:
    """Return the settings of the search that suit a dataset.

    If more than one in a hundred of the validation references exceed the default maximum length,
    the maximum is that of the longest reference, rounded up to a multiple of the default: logical
    forms and code may be much longer than their source.
    """
    search, default = manifest.settings("search"), SearchConfig().max_extra_length
    if valid is None or "max_extra_length" in search:
        return search
    indices = np.arange(len(valid.pairs))
    extra = valid.pairs.target.lengths(indices) - valid.pairs.source.lengths(indices)
    if np.mean(extra > default) <= _MAX_CUT_RATE:
        return search
    most = min(-(-int(extra.max()) // default) * default, MAX_LENGTH)
    say(
        f"train: translations may be up to {most} tokens longer than the source, as validation "
        "references are"
    )
    return {**search, "max_extra_length": most}


def _augmentation(
    manifest: Manifest, index: DatasetIndex, vocabulary: Vocabulary, run: RunConfig
) -> Augmentation | None:
    """Return how a run augments the training pairs, or None; refuse what does not fit them."""
    configs = configs_of(run.augmentation, index.texts)
    for config in configs:
        check_facts([config], {"task": manifest.task})
        if config.bpe_dropout and not (vocabulary.source.is_bpe and vocabulary.target.is_bpe):
            raise UsageError(
                f"bpe_dropout needs subword models that merge pieces, but {manifest.data_dir} has "
                "others: learn them with --model-type bpe, without --target-words, or leave it out"
            )
    if all(config == AugmentationConfig() for config in configs):
        return None
    max_length = manifest.settings("binarize").get("max_length", BinarizeConfig.max_length)
    if isinstance(run.model, TransformerConfig) and run.model.learned_positions is not None:
        max_length = min(max_length, run.model.learned_positions - 1)  # with EOS
    return Augmentation(
        data_dir=str(manifest.data_dir.absolute()),
        checksum=index.checksum("train"),
        vocab_sizes=(len(vocabulary.source), len(vocabulary.target)),
        max_length=max_length,
        config=run.augmentation,
        seed=run.training.seed,
    )


def num_first_shards(dataset: ParallelDataset) -> int:
    """Return the number of shards to verify before training starts: the shards of a window.

    The first window draws from all shards; the others are verified while it is in use.
    """
    ends = np.cumsum([shard.pairs for shard in dataset.shards])
    return max(1, int(np.searchsorted(ends, WINDOW_PAIRS, side="right")))


def _open_valid(
    manifest: Manifest, index: DatasetIndex, vocab_sizes: tuple[int, int], tags: Sequence[str]
) -> ValidationSplit:
    """Open a validation split; warn if it has no tags, but all training text has some."""
    bin_dir = manifest.data_dir / "bin"
    pairs = ParallelDataset(bin_dir, "valid", vocab_sizes=vocab_sizes, index=index)
    pairs.verify()
    paths = manifest.text_path("valid", manifest.source), manifest.reference_path("valid")
    text = list(read_pairs(*paths, strict=True, num_lines=len(pairs)))
    words = (source.decode().split(maxsplit=1) for source, _ in text)
    if tags and any(line and line[0] not in tags for line in words):
        say(
            f"warning: lines of {paths[0]} have no tag, but all training text has one of "
            f"{shown_tags(tags)}: their loss and score say little; give each [[valid]] text its tag"
        )
    return ValidationSplit(
        pairs=pairs,
        sources=[source.decode() for source, _ in text],
        references=[reference.decode() for _, reference in text],
    )


def _open_also_valid(data_dir: Path, trained: Manifest, vocabulary: Vocabulary) -> ValidationSplit:
    """Open the validation split of another dataset than is trained on: same task and subwords."""
    if not data_dir.is_dir():
        raise UsageError(f"also_valid: {data_dir} does not exist or is not a folder")
    manifest, index = Manifest.load(data_dir), DatasetIndex.load(data_dir / "bin")
    if manifest.task != trained.task:
        raise UsageError(
            f"also_valid: {data_dir} is a dataset for {manifest.task}, not for {trained.task}"
        )
    if index.fingerprint != vocabulary.fingerprint:
        raise UsageError(
            f"also_valid: {data_dir} has other subwords ({index.fingerprint[:8]}) than the dataset "
            f"to train on ({vocabulary.fingerprint[:8]}): prepare one of them with the --subwords "
            "of the other"
        )
    if not index.num_pairs.get("valid"):
        raise UsageError(f"also_valid: {data_dir} has no validation text: prepare it with --valid")
    _check_binarized(manifest, index, vocabulary, splits=["valid"])
    sizes = (len(vocabulary.source), len(vocabulary.target))
    return _open_valid(manifest, index, sizes, trained.tags())


def check_start(start: ModelFolder, data: TrainingData) -> None:
    """Raise UsageError unless training on a dataset can start from a model."""
    before, info = start.info, data.info
    if before.task != info.task:
        raise UsageError(
            f"{start} is a model for {before.task}, but {data.data_dir} is a dataset for "
            f"{info.task}: start from another model"
        )
    if before.fingerprint != info.fingerprint:
        raise UsageError(
            f"{data.data_dir} has other subwords ({info.fingerprint[:8]}) than {start} "
            f"({before.fingerprint[:8]}): prepare it with --subwords {start}"
        )


def _check_binarized(
    manifest: Manifest, index: DatasetIndex, vocabulary: Vocabulary, splits: Sequence[str] = SPLITS
) -> None:
    """Raise DataError unless the token ids encode the text with the subword model.

    Text that was deleted after it was binarized is not compared.
    """
    data_dir = manifest.data_dir
    remedy = f"run {tfm_command('binarize', data_dir)}"
    recorded = (manifest.inputs(BINARIZE) or {}).get("text")
    if not isinstance(recorded, dict):
        raise DataError(f"{data_dir}/bin was not binarized from the text in {data_dir}: {remedy}")
    if index.languages != manifest.languages:
        raise DataError(
            f"{data_dir}/bin is {index.source}-{index.target}, but {data_dir} is "
            f"{manifest.source}-{manifest.target}: {remedy} --force"
        )
    if index.fingerprint != vocabulary.fingerprint:
        raise DataError(
            f"{data_dir}/bin was binarized with subword model {index.fingerprint[:8]}, but "
            f"{data_dir} has {vocabulary.fingerprint[:8]}: {remedy}"
        )
    shards = (shard for split in manifest.splits() for shard in manifest.shards(split))
    texts = {path for shard in shards for path in manifest.text_paths(shard.name)}
    for path in sorted(texts | {data_dir / name for name in recorded}):
        is_used = path.name.partition(".")[0] in splits and path.is_file()
        if is_used and manifest.text_fingerprint(path) != recorded.get(path.name):
            raise DataError(f"{path} has changed since {data_dir}/bin was binarized: {remedy}")


def _check_lengths(data_dir: Path, splits: list[ParallelDataset], run: RunConfig) -> None:
    """Raise UsageError if a sentence has more tokens than the model has learned positions."""
    limit = run.model.learned_positions if isinstance(run.model, TransformerConfig) else None
    if limit is None:
        return
    sides = (side for split in splits for side in (split.source, split.target))
    longest = 1 + max(side.longest for side in sides)  # with EOS
    if longest > limit:
        raise UsageError(
            f"{data_dir} has a sentence of {longest:,} tokens, more than the {limit:,} learned "
            f"positions: use --learned-positions {longest} or more, or prepare the data with a "
            "smaller --max-length"
        )


def cost_of(data: TrainingData) -> Cost:
    """Return the cost of the model of a run on a dataset."""
    run = data.info.run
    averages = run.optimizer.ema is not None
    return model_cost(run.model, data.info.vocab_sizes, averages_weights=averages)


def shortage(
    data: TrainingData, cost: Cost, device: torch.device, world: World, *, gathers: bool = True
) -> str | None:
    """Return why a device, or its machine, has too little memory for a run; None if it may do.

    With shard, the machine of rank 0 `gathers` the weights and the state of the optimizer.
    """
    is_sharded = data.info.run.training.shard
    num_copies = world.local_size if device.type == "cpu" else 1.0
    if is_sharded:
        num_copies /= world.size
    problem = memory_problem(cost, device, num_copies=num_copies)
    if problem is None and is_sharded and gathers:
        problem = gathering_problem(cost, device, num_copies=num_copies)
    return problem


def verify_data(data: TrainingData, group: Group) -> Future[None]:
    """Verify shards of the dataset once per machine; later shards in the background.

    Processes wait for each other at each shard: verifying all shards on a slow disk could take
    longer than a collective may.
    """
    dataset, is_local_first = data.train, group.world.local_rank == 0
    num_shards = len(dataset.shards)
    num_first = num_shards if data.info.run.training.verify_data else num_first_shards(dataset)
    for number in range(num_first):
        group.heartbeat(f"verifying shard {number + 1} of {num_shards} of the data")
        if is_local_first:
            dataset.verify([number])
        group.heartbeat(f"waiting for shard {number + 1} of {num_shards} of the data", waits=True)
        group.largest([0])
    others = range(num_first, num_shards) if is_local_first else []
    return run_in_thread(partial(dataset.verify, others))


def first_model(data: TrainingData, start: ModelFolder | None) -> Model:
    """Return the model of a folder with the settings of a run, or a new one without a folder."""
    run = data.info.run
    if start is not None:
        return start.model(run.model)
    torch.manual_seed(run.training.seed)
    return new_model(run.model, data.info.vocab_sizes)


def resume(
    trainer: "Trainer", data: TrainingData, checkpoint: ModelFolder, run_dir: Path
) -> tuple[RunState, list[StepReport]]:
    """Give a trainer the state of a checkpoint; return the run's, and the reports not logged."""
    saved, info = checkpoint.training_state(), checkpoint.info
    if saved.get("dataset") != data.checksum:
        raise UsageError(
            f"{run_dir} was started on other data than {data.data_dir}: train on the same data, or "
            "choose another folder with --run"
        )
    try:
        trainer.load_state(saved["trainer"])
        state = record_from(RunState, saved)
        reports = [record_from(StepReport, report) for report in saved["window"]]
        if trainer.position.step != info.step:
            raise ValueError(f"it is of step {trainer.position.step}, not {info.step}")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{checkpoint.path / STATE} is not the state of this run ({type(error).__name__}: "
            f"{str(error)[:_MAX_REASON]}): remove {checkpoint.path} to resume from an older "
            "checkpoint"
        ) from error
    if data.info.run.training.best_metric != info.run.training.best_metric:
        state.best, state.validations_since_best = None, 0
    return state, reports
