"""The attention heads to align with: chosen once for a model, and recorded beside it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tfm.config import InferenceDevice, TransformerConfig
from tfm.disk.files import read_record, write_record
from tfm.errors import DataError, UsageError
from tfm.folders.model_folder import ModelFolder, NoSplitError
from tfm.folders.model_info import ALIGNMENT
from tfm.reporting import say
from tfm.text.lines import read_lines
from tfm.vocabulary.subword import EOS

if TYPE_CHECKING:
    from tfm.features.align.alignment import Aligner, Side

FORMAT = 1

Integers = npt.NDArray[np.int64]

_VALIDATION_LINES = 500
_FEW_LAYERS = 3


@dataclass(frozen=True, kw_only=True)
class ChosenHeads:
    """The heads that were chosen for a model.

    Attributes:
        weights: SHA-256 of the weights of the model.
        heads: The heads, numbered from 0 across all layers, in order.
        num_lines: The number of validation lines that they were chosen on.
    """

    weights: str
    heads: tuple[int, ...]
    num_lines: int


class AlignmentModel:
    """A model to align with, held in memory with the record or the text that decides its heads.

    Args:
        folder: The folder of the model.
        device: Where to compute.
        records: Whether to record in the folder which heads were chosen, if it can be written to.
    """

    def __init__(self, folder: ModelFolder, device: InferenceDevice, records: bool = True) -> None:
        self._folder, self._device, self._records = folder.hold(), device, records
        config = folder.info.run.model
        self._num_layers = config.num_decoder_layers
        self._num_heads = config.num_heads if isinstance(config, TransformerConfig) else 1
        self._recorded = _recorded(folder, self._num_layers * self._num_heads)
        self._text: tuple[Sequence[str], Sequence[str]] = ((), ())
        self._lack = "its dataset has no validation text"
        if self._recorded is None:
            try:
                self._text = _validation_text(folder)
            except (DataError, OSError) as error:  # told when words are aligned
                self._lack = str(error)

    @cached_property
    def aligner(self) -> "Aligner":
        """The aligner, whose heads are chosen on the validation text of the model's dataset.

        Without that text, these are the heads of the last decoder layer but one, as in Garg et al.
        (2019, §4.1); with few layers, also the heads of the last layer.
        """
        from tfm.features.align.alignment import Aligner
        from tfm.machine.compute import choose_compute

        folder, num_layers, num_heads = self._folder, self._num_layers, self._num_heads
        compute = choose_compute(self._device, "fp32")
        model = folder.model().to(compute.device).eval()
        aligner = Aligner(model=model, vocabulary=folder.vocabulary, compute=compute, heads=[])
        chosen = self._recorded or self._chosen(aligner)
        if chosen is not None:
            heads = [*chosen.heads]
            origin = f"chosen on {chosen.num_lines:,} validation lines"
        else:
            end = num_layers - (num_layers > _FEW_LAYERS)
            heads = [*range(max(0, num_layers - 2) * num_heads, end * num_heads)]
            origin = f"the default, because {self._lack}"
        names = ", ".join(f"{head // num_heads + 1}.{head % num_heads + 1}" for head in heads)
        say(f"align: {folder}: attention of the heads {names} (layer.head), {origin}")
        return replace(aligner, heads=heads)

    def _chosen(self, aligner: "Aligner") -> ChosenHeads | None:
        """Choose heads on the validation text, and record them; None without the text."""
        folder, pairs = self._folder, aligner.encode(*self._text)
        if not any(source.ids and target.ids for source, target in pairs):
            return None
        heads = tuple(choose_heads(aligner, pairs))
        chosen = ChosenHeads(weights=folder.weights_digest, heads=heads, num_lines=len(pairs))
        if self._records and folder.is_current():  # it may have been removed or replaced
            with suppress(OSError, UsageError):  # of a folder that must not be written to
                write_record(folder.path / ALIGNMENT, chosen, format_=FORMAT)
        return chosen


def _recorded(folder: ModelFolder, num_heads: int) -> ChosenHeads | None:
    """Return the recorded choice; None if there is no valid one for these weights."""
    try:
        record = read_record(
            folder.path / ALIGNMENT, ChosenHeads, format_=FORMAT, advice="remove it"
        )
    except FileNotFoundError:
        return None
    except (DataError, OSError) as error:
        say(f"warning: the attention heads are chosen again: {error}")
        return None
    is_valid = record.weights == folder.weights_digest and record.heads
    return record if is_valid and {*record.heads} <= {*range(num_heads)} else None


def choose_heads(aligner: "Aligner", pairs: "Sequence[tuple[Side, Side]]") -> list[int]:
    """Choose the attention heads whose links make target pieces most predictable.

    Heads are ranked by `predictability`. The first n are chosen; this n maximizes the
    predictability by the mean of their weights. Numbers of heads start at 0, across all layers.
    """
    ranked = np.argsort(-np.array(_predictabilities(aligner, pairs)), kind="stable").tolist()
    size = int(np.argmax(_predictabilities(aligner, pairs, ranked))) + 1
    return sorted(ranked[:size])


def _predictabilities(
    aligner: "Aligner", pairs: "Sequence[tuple[Side, Side]]", ranked: list[int] | None = None
) -> list[float]:
    """Return the predictability by each head; with `ranked`, by the mean of the first 1, 2, …."""
    linked, targets, halves = [], [], []
    for index, weights in aligner.attention(pairs):
        source, target = pairs[index]
        if ranked is not None:
            weights = weights[ranked].cumsum(dim=0)
        linked.append(np.array([*source.ids, EOS])[weights.argmax(dim=-1).numpy()])
        targets.append(np.array(target.ids))
        halves.append(np.full(len(target.ids), index % 2))
    target_ids, half = np.concatenate(targets), np.concatenate(halves)
    return [predictability(ids, target_ids, half) for ids in np.concatenate(linked, axis=1)]


def predictability(source_ids: Integers, target_ids: Integers, half: Integers) -> float:
    """Return the mean log probability, in nats, of target pieces given the source pieces they link.

    Links are worth something if the same source piece is linked to the same target pieces in other
    sentences, too. The probabilities are therefore relative frequencies in the other half of the
    text, smoothed by one observation of the frequencies of target pieces.

    Args:
        source_ids: [N] the source piece of each link.
        target_ids: [N] its target piece.
        half: [N] 0 or 1, the half of the text that the link is from.
    """
    pairs = np.unique(np.stack([source_ids, target_ids]), axis=1, return_inverse=True)[1].ravel()
    vocab_size = int(target_ids.max()) + 1
    total = 0.0
    for in_half in (half == 0, half == 1):
        in_pairs, in_sources, in_targets = (
            np.bincount(ids[in_half], minlength=int(ids.max()) + 1)[ids[~in_half]]
            for ids in (pairs, source_ids, target_ids)
        )
        frequency = (in_targets + 1) / (in_half.sum() + vocab_size)
        total += float(np.log((in_pairs + frequency) / (in_sources + 1)).sum())
    return total / len(target_ids)


def _validation_text(folder: ModelFolder) -> tuple[list[str], list[str]]:
    """Return the first lines of both sides of a model's validation text; empty without it."""
    try:
        paths = folder.split("valid", advice="align without it")
    except NoSplitError:
        return [], []
    if not all(path.is_file() for path in paths):
        return [], []
    columns = (read_lines(path, strict=True) for path in paths)
    pairs = list(islice(zip(*columns, strict=False), _VALIDATION_LINES))
    return [source.decode() for source, _ in pairs], [target.decode() for _, target in pairs]
