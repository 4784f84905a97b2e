"""Load models for word alignment, and choose the attention heads whose weights align best."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from tfm.config import InferenceDevice, TransformerConfig
from tfm.data.subword import EOS
from tfm.data.text import read_lines
from tfm.device.compute import choose_compute
from tfm.folders.model_folder import ModelFolder, NoSplitError
from tfm.inference.alignment import Aligner, Side
from tfm.reporting import say

Integers = npt.NDArray[np.int64]

_VALIDATION_LINES = 500


def load_aligner(folder: ModelFolder, device: InferenceDevice) -> Aligner:
    """Load a model to align with, and choose its heads on the validation text of its dataset.

    Without that text, these are the heads of the last decoder layer but one, as in Garg et al.
    (2019, §4.1), or of the only layer.

    Raises:
        CheckpointError: The folder has no valid model, or one that has diverged.
    """
    compute = choose_compute(device, "fp32")
    model = folder.model().to(compute.device).eval()
    aligner = Aligner(model=model, vocabulary=folder.vocabulary, compute=compute, heads=[])
    config = folder.info.run.model
    num_heads = config.num_heads if isinstance(config, TransformerConfig) else 1
    pairs = aligner.encode(*_validation_text(folder))
    if any(source.ids and target.ids for source, target in pairs):
        heads = choose_heads(aligner, pairs)
        origin = f"chosen on {len(pairs):,} validation lines"
    else:
        layer = max(0, config.num_decoder_layers - 2)
        heads = [*range(layer * num_heads, (layer + 1) * num_heads)]
        origin = "the default, because its dataset has no validation text"
    names = ", ".join(f"{head // num_heads + 1}.{head % num_heads + 1}" for head in heads)
    say(f"align: {folder}: attention of the heads {names} (layer.head), {origin}")
    return replace(aligner, heads=heads)


def choose_heads(aligner: Aligner, pairs: Sequence[tuple[Side, Side]]) -> list[int]:
    """Choose the heads whose mean weights make target pieces most predictable from their links.

    Heads are ranked by `predictability`; of the means of the first 1, 2, … heads, the one with the
    greatest predictability is chosen.
    """
    ranked = np.argsort(-np.array(_predictabilities(aligner, pairs)), kind="stable").tolist()
    size = int(np.argmax(_predictabilities(aligner, pairs, ranked))) + 1
    return sorted(ranked[:size])


def _predictabilities(
    aligner: Aligner, pairs: Sequence[tuple[Side, Side]], ranked: list[int] | None = None
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
        half: [N] 0 or 1, the half of the text from which it is.
    """
    pairs = np.unique(np.stack([source_ids, target_ids]), axis=1, return_inverse=True)[1].ravel()
    vocab_size = int(target_ids.max()) + 1
    total = 0.0
    for known in (half == 0, half == 1):
        in_pairs, in_sources, in_targets = (
            np.bincount(ids[known], minlength=int(ids.max()) + 1)[ids[~known]]
            for ids in (pairs, source_ids, target_ids)
        )
        frequency = (in_targets + 1) / (known.sum() + vocab_size)
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
