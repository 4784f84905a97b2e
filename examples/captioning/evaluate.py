"""Scores of captioners, and where they look."""

import numpy as np
import torch
from dataset import Examples
from models import GRID_SIZE
from pictures import decode, without_where
from torch import Tensor

from tfm.config import ScoreConfig, SearchConfig
from tfm.metrics.scores import corpus_scores
from tfm.model.attention_weights import cross_attention
from tfm.model.build import Model
from tfm.search.search import search

# No output is longer than the number of cells and one more.
_SEARCH = SearchConfig(beam_size=4, max_extra_length=1)


def score(model: Model, examples: Examples) -> dict[str, float]:
    """Return scores of the captions, and the attention on shapes that are named, in percent.

    "shapes" counts the captions that are exact except for the words that say where a group is.
    """
    outputs = write_captions(model, examples)
    references = list(zip(*(scene.captions() for scene in examples.scenes), strict=True))
    bleu, exact = corpus_scores(outputs, references, ["bleu", "exact"], ScoreConfig())
    texts = [list(map(without_where, each)) for each in (outputs, *references)]
    [shapes] = corpus_scores(texts[0], texts[1:], ["exact"], ScoreConfig())
    share, uniform = share_on_named_shapes(model, examples)
    return {
        "bleu": round(bleu.value, 1),
        "exact": round(exact.value, 1),
        "shapes": round(shapes.value, 1),
        "attention": round(100 * share, 1),
        "uniform": round(100 * uniform, 1),
    }


@torch.inference_mode()
def write_captions(model: Model, examples: Examples) -> list[str]:
    """Caption pictures with beam search."""
    found = search(model, *examples.source(slice(None)), _SEARCH)
    return [decode(best[0].tokens) for best in found]


def attention_by_word(model: Model, examples: Examples) -> Tensor:
    """Return the attention [N, T, cells] from which each token of the first captions is predicted.

    It is that of the last layer, the mean over heads.
    """
    rows = slice(None)
    target_input, _ = examples.target(rows, 0)
    weights = cross_attention(model, *examples.source(rows), target_input)[-1].mean(dim=1)
    cells_per_weight = GRID_SIZE**2 // weights.size(-1)  # a pooled picture has one weight
    return weights.repeat_interleave(cells_per_weight, dim=-1) / cells_per_weight


def share_on_named_shapes(model: Model, examples: Examples) -> tuple[float, float]:
    """Return how much of the attention lies on the shapes whose size, color or kind is predicted.

    The second number is what it would be if all cells had the same weight.
    """
    weights = attention_by_word(model, examples).numpy()
    shares, uniform = [], []
    for scene, by_word in zip(examples.scenes, weights, strict=True):
        # Where words such as "small red circle" start in the first caption.
        starts = [1, len(scene.captions()[0].split()) - 3]
        for start, group in zip(starts, scene.groups, strict=False):
            cells = [row * GRID_SIZE + column for column, row in group.places]
            shares.append(by_word[start : start + 3, cells].sum(axis=1).mean())
            uniform.append(len(cells) / GRID_SIZE**2)
    return float(np.mean(shares)), float(np.mean(uniform))
