"""Model folders, whose files are verified before they are used.

Opening it does not import torch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from safetensors import SafetensorError, safe_open

from tfm.config import ModelConfig
from tfm.disk.files import intact_directory, sha256_of
from tfm.disk.paths import check_streams, existing_folder, where_instead
from tfm.errors import CheckpointError, DataError, UsageError, tfm_command
from tfm.folders.model_info import (
    CONFIG,
    STATE,
    WEIGHTS,
    Ancestor,
    DamagedCheckpointError,
    ModelInfo,
    checksum_of,
    damaged,
    ranking_metric,
    read_description,
)
from tfm.folders.run_folder import DAMAGED, checkpoints, newest_step
from tfm.reporting import say

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from tfm.model.build import Model
    from tfm.vocabulary.subword import Vocabulary

ModelT = TypeVar("ModelT")


# Errors of files with a correct checksum whose content is not safetensors, or not a state.
_UNREADABLE = (SafetensorError, OSError, RuntimeError, ValueError)
_INVALID = (LookupError, TypeError, RecursionError)


class NoSplitError(DataError):
    """The dataset of a model is gone, is another dataset now, or has no such split."""


class ModelFolder:
    """A model folder with its description read and its subword models verified.

    Its other files are read and verified when they are first asked for. Vocabulary and
    weights are then kept in memory; `hold` asks for both.

    Args:
        path: The folder itself; `open` also takes a run folder.

    Attributes:
        path: The folder.
        info: The description of the model.
        fingerprint: A checksum that changes with any file of the model.
    """

    def __init__(self, path: Path) -> None:
        record = read_description(path)
        self.path = path
        self.fingerprint = checksum_of(record)  # the record has the checksums of the other files
        self._parameters: dict[str, Tensor] = {}  # of the first model that `model` has returned
        self._held: Any = None  # the open file of the weights, which may be removed
        self._digests: dict[str, str] = record.pop("sha256")
        for name in self._digests:
            if name not in (WEIGHTS, STATE):
                self.file(name)
        try:
            self.info = ModelInfo.of_record(record)
        except (UsageError, ValueError) as error:
            raise damaged(path / CONFIG, UsageError(str(error))) from error

    def __str__(self) -> str:
        return str(self.path)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the content of files: another process reads it again, if it has not changed."""
        names = ("path", "info", "fingerprint", "_digests")
        return {"_parameters": {}, "_held": None, **{name: vars(self)[name] for name in names}}

    @classmethod
    def open(cls, path: Path) -> "ModelFolder":
        """Open the model folder at a path; of a run, its average, best or newest checkpoint.

        An average is passed over, with a warning, if the run has newer checkpoints. A message says
        why an older checkpoint than the newest is used.
        """
        existing_folder(path)
        folder, averaged = intact_directory(path), intact_directory(path / "averaged")
        if (folder / CONFIG).is_file():
            return cls(folder)
        if (average := current_average(path)) is not None:
            return average
        present = open_checkpoints(path)
        if not present:
            advice = where_instead(path, "run", "model") or "train one with tfm train"
            raise CheckpointError(
                f"{path} is not a run or model folder: {advice}",
                exit_code=UsageError.exit_code,
            )
        newest = present[-1]
        metric = newest.info.run.training.best_metric
        chosen, *_ = best_first(present, metric) or [newest]
        if (averaged / CONFIG).is_file():
            say(
                f"warning: {averaged} is older than the newest checkpoint: using {chosen} "
                f"instead; make a new average with {tfm_command('average', path)}"
            )
        if chosen is not newest:
            metric = ranking_metric(metric, chosen.info.quality(metric))
            reason = f"has a worse {metric}" if newest.info.metrics else "was not validated"
            say(
                f"{path}: using {chosen.path.name}, the best by validation {metric}; "
                f"{newest.path.name} {reason}"
            )
        return chosen

    @cached_property
    def vocabulary(self) -> "Vocabulary":
        """The subword models, which read text as the training text of the model was read."""
        from tfm.vocabulary.subword import Vocabulary  # here, because it loads SentencePiece

        info = self.info
        vocabulary = Vocabulary.load(
            self.path, info.normalization, tags=info.tags, tags_choose_language="+" in info.target
        )
        if vocabulary.fingerprint != info.fingerprint:
            raise CheckpointError(
                f"{self} was trained with subword model {info.fingerprint[:8]}, not "
                f"{vocabulary.fingerprint[:8]}, which it contains: choose another model"
            )
        sizes = (len(vocabulary.source), len(vocabulary.target))
        if sizes != info.vocab_sizes:
            raise CheckpointError(
                f"{self}/config.json has vocabularies of {info.vocab_sizes} pieces, but the "
                f"subword models have {sizes}: choose another model"
            )
        return vocabulary

    def model(self, config: ModelConfig | None = None) -> "Model":
        """Build a model with the weights of the folder.

        Without a config, all models share weights, which are read once: callers must not change
        them.

        Args:
            config: The settings of a new model, by default from the folder; only dropout may
                differ from the folder's.
        """
        from tfm.model.build import build_model

        weights = self._parameters if config is None else {}
        if not weights:
            import torch

            weights = {name: torch.from_numpy(each) for name, each in self.arrays().items()}
        try:
            model = build_model(config or self.info.run.model, weights, self.info.vocab_sizes)
        except ValueError as error:
            raise CheckpointError(
                f"{self}: the weights do not fit config.json: copy both files from the same model"
            ) from error
        if config is None and not self._parameters:
            self._parameters = dict(model.named_parameters())
        return model

    def hold(self) -> Self:
        """Read the vocabulary and map the weights; the folder may be removed afterwards."""
        self.vocabulary  # noqa: B018 - reads it
        if not self._parameters and self._held is None:
            self._held = self._open_weights("np")
        return self

    def is_current(self) -> bool:
        """Return whether the folder still has this model."""
        with suppress(CheckpointError):
            return checksum_of(read_description(self.path)) == self.fingerprint
        return False

    def weights(self) -> "dict[str, Tensor]":
        """Return the parameters of the model, of any shape, by name.

        The tensors are views of the memory-mapped file: copy them to keep them.
        """
        return self._read(self._open_weights("pt"))

    def arrays(self) -> "dict[str, npt.NDArray[np.float32]]":
        """Return copies of the parameters of the model, of any shape, by name; without torch."""
        return self._read(self._held or self._open_weights("np"))

    def _open_weights(self, library: str) -> Any:
        file = self.file(WEIGHTS)
        try:
            return safe_open(file, library)
        except _UNREADABLE as error:
            raise damaged(file, error) from error

    def _read(self, tensors: Any) -> dict[str, Any]:
        try:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        except _UNREADABLE as error:
            raise damaged(self.path / WEIGHTS, error) from error

    def training_state(self) -> dict[str, Any]:
        """Return the training state of a checkpoint, whose tensors are copied from the file."""
        from tfm.disk.tensor_file import read_state

        file = self.file(STATE)
        try:
            state = read_state(file)
            if not isinstance(state, dict):
                raise TypeError("not a mapping")
        except (*_INVALID, *_UNREADABLE) as error:
            raise damaged(file, error) from error
        return state

    def split(self, name: str, *, advice: str) -> list[Path]:
        """Return the text and the references of a split of the model's dataset.

        The split is "valid", "test" or the name of a test set.
        """
        from tfm.dataset.manifest import Manifest, set_split

        data_dir = Path(self.info.data_dir)
        owned = f"{data_dir}, the dataset of {self},"
        if not self.info.data_dir:
            raise NoSplitError(f"{self} was not trained on a dataset of tfm: {advice}")
        if not data_dir.is_dir():
            raise NoSplitError(f"{owned} does not exist: {advice}")
        manifest = Manifest.load(data_dir)
        purpose = f"{manifest.task} from {manifest.source} to {manifest.target}"
        if purpose != self.info.purpose:
            raise NoSplitError(
                f"{owned} is now for {purpose}, but the model is for {self.info.purpose}: {advice}"
            )
        split = name if name in ("valid", "test") else set_split(name)
        path = manifest.text_path(split, manifest.source)
        if not path.is_file():
            known = [each for each in manifest.splits() if each != "train"] + manifest.sets()
            has = f"; it has {', '.join(known)}" if known else ""
            raise NoSplitError(f"{data_dir} has no {name} split{has}: {advice}")
        paths = [path, *manifest.reference_paths(split)]
        check_streams(paths)
        return paths

    def file(self, name: str) -> Path:
        """Return the path of a file, after verifying its checksum."""
        file = self.path / name
        if Path(name).name != name:
            raise damaged(self.path / CONFIG, None)  # the record names a file outside of the folder
        if not file.exists():
            raise damaged(file, FileNotFoundError())
        try:
            # Reading something else than a file, such as a pipe, might never end.
            is_intact = file.is_file() and sha256_of(file) == self._digests[name]
        except (OSError, KeyError) as error:
            raise damaged(file, error) from error
        if not is_intact and read_description(self.path)["sha256"] != self._digests:
            raise CheckpointError(f"{self} was replaced while it was read: try again")
        if not is_intact:
            raise damaged(file, None)
        return file

    @property
    def weights_digest(self) -> str:
        """The SHA-256 of the weights, as it was recorded when they were written."""
        return str(self._digests.get(WEIGHTS))

    def num_parameters(self) -> int:
        """Return the number of parameters, from the sizes of the tensors."""
        file = self.path / WEIGHTS
        try:
            with safe_open(file, "np") as tensors:
                shapes = (tensors.get_slice(name).get_shape() for name in tensors.keys())  # noqa: SIM118
                return sum(map(math.prod, shapes))
        except (SafetensorError, OSError) as error:
            raise damaged(file, error) from error

    def as_ancestor(self) -> Ancestor:
        """Describe the model for models whose training starts from it."""
        return Ancestor(
            path=str(self.path),
            data_dir=self.info.data_dir,
            step=self.info.step,
            sha256=self.weights_digest,
            license=self.info.run.training.license,
            seen=self.info.seen,
        )

    def lineage(self) -> tuple[Ancestor, ...]:
        """Describe the model and its ancestors, oldest first, for models that learn from it."""
        return (*self.info.ancestors, self.as_ancestor())


def ensemble_info(members: Sequence[ModelFolder]) -> ModelInfo:
    """Return the description of an ensemble, without confidence."""
    info = members[0].info
    return info if len(members) == 1 else replace(info, calibration=None)


def current_average(run_dir: Path) -> ModelFolder | None:
    """Return the average of a run, unless there is none or a checkpoint is newer."""
    averaged = intact_directory(run_dir / "averaged")
    if not (averaged / CONFIG).is_file():
        return None
    folder = ModelFolder(averaged)
    return folder if folder.info.step >= (newest_step(run_dir) or 0) else None


def open_checkpoints(run_dir: Path) -> list[ModelFolder]:
    """Return the checkpoints of a run, which may still be training, oldest first."""
    present = []
    for path in checkpoints(run_dir):
        try:
            present.append(ModelFolder(path))
        except CheckpointError:
            if path.exists():  # otherwise, a running training has just removed it
                raise
    return present


def best_first(folders: Iterable[ModelFolder], metric: str) -> list[ModelFolder]:
    """Return the models that were validated, best first; of equals, the newer first."""
    return ranked({folder: folder.info for folder in folders}, metric)


def ranked(infos: Mapping[ModelT, ModelInfo], metric: str) -> list[ModelT]:
    """Rank models by their descriptions as `best_first` does."""
    scored = [(info.quality(metric), info.step, model) for model, info in infos.items()]
    known = [(quality, step, model) for quality, step, model in scored if quality is not None]
    return [model for *_, model in sorted(known, key=lambda each: each[:2], reverse=True)]


def recorded_settings(run_dir: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the newest checkpoint of a run that can be read, and the settings in it by section."""
    for path in reversed(checkpoints(run_dir)):
        with suppress(CheckpointError):
            if isinstance(settings := read_description(path).get("run"), dict):
                return path, settings
    return None


def check_newest(run_dir: Path) -> None:
    """Raise CheckpointError if the newest checkpoint is damaged, or all were set aside.

    Of the weights, only the size is checked.
    """
    present = checkpoints(run_dir)
    if present:
        ModelFolder(present[-1]).num_parameters()
    else:
        check_any_intact(run_dir)


def check_any_intact(run_dir: Path) -> None:
    """Raise CheckpointError if all checkpoints of a run were set aside as damaged."""
    if any((run_dir / "checkpoints").glob(f"{DAMAGED}*")):
        raise DamagedCheckpointError(
            f"{run_dir} has only damaged checkpoints: remove {run_dir / 'checkpoints'} to train "
            "from scratch, or start another run with --run"
        )
