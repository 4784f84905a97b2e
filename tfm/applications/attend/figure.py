"""Attention heat maps as a PNG or SVG file: a row per layer, a column per head."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfm.applications.attend.content import GENERATOR, LABELS, SYMBOLS, Content
from tfm.disk.files import atomic_write
from tfm.plotting import Axes, Figure, cm, colors, drawing, font_manager
from tfm.reporting import say

_CELL_INCHES = 0.2  # side of a weight, reduced if the figure would exceed _MAX_INCHES
_MAX_INCHES = 24.0
_GAP_INCHES = 0.16
_BAR_INCHES = (0.1, 1.0)
_FONT_POINTS = 9.0
_FONT_PER_CELL = 0.72
_MIN_LEGIBLE_POINTS = 4.0
_CHARACTERS_PER_INCH = 15  # of the header
_MIN_HEADER_CHARACTERS = 60
_DPI = 200
# Up to this number, weights are drawn as vector squares, above it as a raster image.
_MAX_SQUARES = 1_600
_NOT_IN_XML = re.compile(r"[\x00-\x08\x0e-\x1f\ufffe\uffff]")
_INK, _MUTED = "#1b1f27", "#5d6673"
# A single hue is legible in print and for color-blind readers.
_COLOR_SCALE = "Blues"
_DEFAULT_FAMILY = "DejaVu Sans"
_BOXES = "Last Resort"  # a font of Matplotlib that has a box for each character
# Preferred, where installed, for characters that Matplotlib's default font lacks.
_FALLBACK_FAMILIES = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Sans",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
)


def write_figure(path: Path, content: Content) -> None:
    """Draw heat maps of the layers and heads of a content, below its sentences and its note.

    The suffix of the path selects SVG or PNG. Equal arguments give identical files.
    """
    maps, texts = content.shown, [content.source, content.target, content.note]
    num_rows, num_columns = len(content.layers), len(content.heads)
    longest = max(num_rows * len(maps.queries), num_columns * len(maps.keys))
    cell = min(_CELL_INCHES, _MAX_INCHES / longest)
    label_points = min(_FONT_POINTS, 72 * cell * _FONT_PER_CELL)
    if label_points < _MIN_LEGIBLE_POINTS:
        say(f"warning: {path} has very small labels: draw fewer heads with --layer and --head")
    is_svg = path.suffix.lower() == ".svg"
    families, missing = _font_families("".join([*maps.queries, *maps.keys, *texts]))
    if missing and not is_svg:  # text in an SVG is drawn with the fonts of its viewer
        say(
            f"warning: {path} shows boxes for {''.join(sorted(missing)[:10])}, missing in all "
            "installed fonts: install a font, or draw a page with --out attention.html"
        )
    settings = {"font.family": families, "svg.fonttype": "none", "svg.hashsalt": GENERATOR}
    with drawing(settings), atomic_write(path) as file:
        picture = _draw(content, cell, label_points)
        _add_header(picture, LABELS[content.kind], texts)
        picture.savefig(
            file,
            format="svg" if is_svg else "png",
            dpi=_DPI,
            bbox_inches="tight",
            pad_inches=0.1,
            metadata={"Creator": GENERATOR, "Date": None} if is_svg else {"Software": GENERATOR},
        )


def _font_families(text: str) -> tuple[list[str], set[str]]:
    """Return the installed fonts to draw a text with, and its characters that none of them has.

    These are the default font, and for each character that it lacks, the first font that has it.
    """
    missing, families = set(text), [_DEFAULT_FAMILY]
    missing -= _characters_of(_DEFAULT_FAMILY, missing)
    names = font_manager.fontManager.get_font_names()
    installed = {name for name in names if not name.startswith(_BOXES)}
    preferred = [name for name in _FALLBACK_FAMILIES if name in installed]
    for family in dict.fromkeys([*preferred, *sorted(installed)]):
        if missing and (found := _characters_of(family, missing)):
            families.append(family)
            missing -= found
    return families, missing


def _characters_of(family: str, characters: set[str]) -> set[str]:
    font = font_manager.get_font(font_manager.findfont(family))
    return {character for character in characters if font.get_char_index(ord(character))}


def _draw(content: Content, cell: float, label_points: float) -> Figure:
    """Return a figure of the size of its maps; labels enlarge it when it is saved."""
    maps, layers, heads = content.shown, content.layers, content.heads
    height, width = cell * len(maps.queries), cell * len(maps.keys)
    total_height = len(layers) * (height + _GAP_INCHES) - _GAP_INCHES
    total_width = len(heads) * (width + _GAP_INCHES) - _GAP_INCHES
    picture = Figure(figsize=(total_width, total_height), facecolor="white")
    grid = picture.subplots(len(layers), len(heads), squeeze=False)
    picture.subplots_adjust(0, 0, 1, 1, _GAP_INCHES / width, _GAP_INCHES / height)
    is_image = len(layers) * len(heads) * len(maps.queries) * len(maps.keys) > _MAX_SQUARES
    for (row, column), axes in np.ndenumerate(grid):
        layer, head = layers[row], heads[column]
        _draw_map(axes, maps.weights[layer - 1, head - 1], is_image=is_image)
        _label_pieces(
            axes,
            queries=maps.queries if column == 0 else [],
            keys=maps.keys if row == len(layers) - 1 else [],
            points=label_points,
        )
        if row == 0:
            axes.set_title(f"head {head}", fontsize=_FONT_POINTS, color=_MUTED, pad=4)
        if column == 0:
            axes.set_ylabel(f"layer {layer}", fontsize=_FONT_POINTS, color=_MUTED, labelpad=8)
    bar_width, bar_height = _BAR_INCHES[0] / total_width, min(_BAR_INCHES[1] / total_height, 1)
    _draw_scale(
        picture.add_axes((1 + _GAP_INCHES / total_width, 1 - bar_height, bar_width, bar_height))
    )
    return picture


def _add_header(picture: Figure, labels: tuple[str, str, str], texts: Sequence[str]) -> None:
    """Write title, texts and an explanation above the maps, wrapped to the width of the maps."""
    title, query_name, key_name = labels
    explanation = f"rows: {query_name}; columns: {key_name} that they attend to; {SYMBOLS}"
    width, height = picture.get_size_inches()
    num_characters = max(_MIN_HEADER_CHARACTERS, round(_CHARACTERS_PER_INCH * width))
    text = _NOT_IN_XML.sub("\ufffd", "\n".join([*texts, explanation]))
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, num_characters)]
    for number, line in enumerate([title, *lines]):
        picture.text(
            0,
            1 + (0.29 + 0.15 * (len(lines) - number)) / height,
            line,
            fontsize=8 if number else 10.5,
            fontweight="normal" if number else "bold",
            color=_MUTED if number else _INK,
            parse_math=False,
        )


def _draw_map(axes: Axes, weights: np.ndarray, *, is_image: bool) -> None:
    scale: dict[str, Any] = {"cmap": _COLOR_SCALE, "vmin": 0, "vmax": 1}
    if is_image:
        num_queries, num_keys = weights.shape
        extent = (0, num_keys, num_queries, 0)
        axes.imshow(weights, interpolation="none", aspect="auto", extent=extent, **scale)
    else:
        # Edges of the same color hide seams between the squares.
        axes.pcolormesh(weights, edgecolors="face", linewidth=0.1, **scale)
        axes.invert_yaxis()
    axes.spines[:].set(linewidth=0.5, color=_MUTED)


def _label_pieces(
    axes: Axes, *, queries: Sequence[str], keys: Sequence[str], points: float
) -> None:
    axes.tick_params(length=0, pad=2.5, labelsize=points, labelcolor=_INK)
    # parse_math=False: dollar signs in pieces do not mark formulas.
    axes.set_xticks(
        np.arange(len(keys)) + 0.5,
        keys,
        parse_math=False,
        rotation=90,
        rotation_mode="anchor",
        horizontalalignment="right",
        verticalalignment="center_baseline",
    )
    axes.set_yticks(np.arange(len(queries)) + 0.5, queries, parse_math=False)


def _draw_scale(axes: Axes) -> None:
    """Draw the color scale."""
    scale = cm.ScalarMappable(colors.Normalize(0, 1), cmap=_COLOR_SCALE)
    bar = axes.figure.colorbar(scale, cax=axes, ticks=[0, 0.5, 1])
    bar.outline.set(linewidth=0.5, color=_MUTED)
    axes.tick_params(length=2, width=0.5, labelsize=7.5, colors=_MUTED)
    axes.set_title("weight", fontsize=7.5, color=_MUTED, pad=8, loc="left")
