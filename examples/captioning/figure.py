"""A figure of where captioners look while they write each word."""

from collections.abc import Mapping
from pathlib import Path

from dataset import Examples
from evaluate import attention_by_word, write_captions
from models import GRID_SIZE
from pictures import MAX_WORDS, PICTURE_SIZE
from torch import Tensor

from tfm.disk.files import atomic_write
from tfm.model.build import Model
from tfm.plotting import Axes, Figure, drawing

_NUM_SHAPES = 3  # in the picture that is shown
_WHOLE = (0, PICTURE_SIZE, PICTURE_SIZE, 0)


def draw_attention(models: Mapping[str, Model], examples: Examples, path: Path) -> None:
    """Draw one picture for each word of each captioner's own caption; white is where it looks."""
    number = next(
        index
        for index, scene in enumerate(examples.scenes)
        if sum(len(group.places) for group in scene.groups) == _NUM_SHAPES
    )
    one = examples.only(number)
    captions = {name: write_captions(model, one)[0].split() for name, model in models.items()}
    num_columns = 1 + min(MAX_WORDS, max(map(len, captions.values())))
    with drawing({"svg.hashsalt": "tfm", "svg.fonttype": "none"}):
        figure = Figure(figsize=(1.1 * num_columns, 1.35 * len(models)), layout="constrained")
        grid = figure.subplots(len(models), num_columns, squeeze=False)
        for axes in grid.flat:
            axes.axis("off")
        for row, (name, model) in zip(grid, models.items(), strict=True):
            _draw_picture(row[0], one, name)
            attention = attention_by_word(model, one.with_caption(" ".join(captions[name])))[0]
            for axes, word, weights in zip(row[1:], captions[name], attention, strict=False):
                _draw_picture(axes, one, word, weights.view(GRID_SIZE, GRID_SIZE))
        with atomic_write(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_picture(axes: Axes, one: Examples, title: str, weights: Tensor | None = None) -> None:
    """Draw the picture, lighter where the attention weights [rows, columns] are larger."""
    axes.set_title(title, fontsize=10)
    axes.imshow(one.pictures[0].permute(1, 2, 0).numpy(), extent=_WHOLE, interpolation="none")
    if weights is not None:
        style = {"cmap": "Greys_r", "alpha": 0.65, "interpolation": "bilinear"}
        axes.imshow(weights.numpy(), extent=_WHOLE, **style)
