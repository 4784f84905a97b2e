"""Load models for word alignment, and choose the attention heads whose weights align best."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfm.config import InferenceDevice, TransformerConfig
from tfm.data.manifest import Manifest
from tfm.data.subword import EOS
from tfm.data.text import read_lines
from tfm.device.compute import choose_compute
from tfm.folders.model_folder import ModelInfo, load_info
from tfm.folders.model_tensors import load_model
from tfm.inference.alignment import Aligner, Side
from tfm.inference.engine import load_vocabulary
from tfm.reporting import say

Integers = npt.NDArray[np.int64]

_VALIDATION_LINES = 500


def load_aligner(folder: Path, device: InferenceDevice) -> Aligner:
    """Load a model to align with, and choose its heads on the validation text of its dataset.

    Without that text, these are the heads of the last decoder layer but one, as in Garg et al.
    (2019, §4.1), or of the only layer.

    Raises:
        CheckpointError: The folder has no valid model, or one that has diverged.
    """
    info = load_info(folder)
    compute = choose_compute(device, "fp32")
    model = load_model(folder, info).to(compute.device).eval()
    aligner = Aligner(
        model=model, vocabulary=load_vocabulary(folder, info), compute=compute, heads=[]
    )
    config = info.run.model
    num_heads = config.num_heads if isinstance(config, TransformerConfig) else 1
    pairs = aligner.encode(*_validation_text(info))
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


def _validation_text(info: ModelInfo) -> tuple[list[str], list[str]]:
    """Return the first lines of both sides of a model's validation text; empty without it."""
    data_dir = Path(info.data_dir)
    if not data_dir.is_dir():
        return [], []
    manifest = Manifest.load(data_dir)
    if (manifest.source, manifest.target) != (info.source, info.target):
        return [], []
    paths = [manifest.text_path("valid", language) for language in (info.source, info.target)]
    if not all(path.is_file() for path in paths):
        return [], []
    source, target = (
        [line.decode() for line in islice(read_lines(path, strict=True), _VALIDATION_LINES)]
        for path in paths
    )
    size = min(len(source), len(target))
    return source[:size], target[:size]
