"""Heat maps of attention as PNG and SVG."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tfm.applications.attend import figure
from tfm.applications.attend.content import Content
from tfm.features.attention.maps import AttentionMaps

SVG = "{http://www.w3.org/2000/svg}"
TEXTS = {
    "source": "A house.",
    "target": "Ein Haus, $5$.",
    "languages": ("en", "de"),
    "note": "runs/one, beam 4",
}


def write_figure(path, maps, **choice):
    content = Content(maps={maps.kind: maps}, kind=maps.kind, **{**TEXTS, **choice})
    figure.write_figure(path, content)


def new_maps(num_layers=2, num_heads=3, queries=("▁ein", "e", "</s>"), keys=("▁a", "</s>")):
    scores = np.random.default_rng(0).random((num_layers, num_heads, len(queries), len(keys)))
    weights = (scores / scores.sum(-1, keepdims=True)).astype(np.float32)
    return AttentionMaps(kind="cross", queries=queries, keys=keys, weights=weights)


@pytest.fixture
def svg_of(tmp_path):
    """Draw an SVG of some heads and return its elements."""

    def draw(maps, layers=(1,), heads=(1,)):
        write_figure(tmp_path / "x.svg", maps, layers=layers, heads=heads)
        return ET.parse(tmp_path / "x.svg").getroot()

    return draw


def texts(root):
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def shades(root):
    """The red part of the color of each square, in the order drawn."""
    squares = [
        element.get("style")
        for group in root.iter(f"{SVG}g")
        if group.get("id", "").startswith("QuadMesh")
        for element in group.iter(f"{SVG}path")
    ]
    colors = (re.search(r"fill: #(\w{6})", style or "") for style in squares)
    return [int(color[1][:2], 16) for color in colors if color]


def test_pieces_label_each_side_once_even_in_a_grid(svg_of):
    maps = new_maps()
    shown = texts(svg_of(maps, layers=[2], heads=[1]))
    for piece in ("▁ein", "e", "▁a"):
        assert shown.count(piece) == 1
    assert shown.count("</s>") == 2  # one on each side
    grid = texts(svg_of(maps, layers=[1, 2], heads=[1, 2, 3]))
    # Rows of maps share the pieces at the left, columns those below.
    assert (grid.count("▁ein"), grid.count("▁a")) == (2, 3)


def test_larger_weights_are_darker(svg_of):
    weights = np.array([[[[0.0, 1.0], [0.25, 0.75]]]], dtype=np.float32)
    maps = AttentionMaps(kind="cross", queries=["q", "r"], keys=["k", "l"], weights=weights)
    red = shades(svg_of(maps))
    assert len(red) == 4
    assert red[1] < red[3] < red[2] < red[0]  # the less red, the darker the blue


def test_each_map_shows_its_layer_and_head(svg_of):
    weights = np.zeros((2, 2, 1, 2), dtype=np.float32)
    weights[..., 0] = 1.0
    weights[1, 0] = [[0.0, 1.0]]
    maps = AttentionMaps(kind="cross", queries=["q"], keys=["k", "l"], weights=weights)
    for layer, head, dark in ((1, 1, 0), (1, 2, 0), (2, 1, 1), (2, 2, 0)):
        red = shades(svg_of(maps, layers=[layer], heads=[head]))
        assert red.index(min(red)) == dark
    grid = shades(svg_of(maps, layers=[1, 2], heads=[1, 2]))
    assert [grid[i] < grid[i + 1] for i in range(0, 8, 2)] == [True, True, False, True]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_same_weights_give_the_same_file(tmp_path, ending):
    for name in ("one", "other"):
        write_figure(tmp_path / f"{name}.{ending}", new_maps(), layers=[1], heads=[1, 2])
    one, other = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "other"))
    assert one == other


def test_pieces_are_text_and_never_formulas_or_markup(svg_of):
    pieces = ["$x^2$", "$\\frac", "<b>&amp;", "</svg>"]
    shown = texts(svg_of(new_maps(queries=pieces)))
    assert set(pieces) <= set(shown)


def test_many_weights_become_an_image_with_sharp_edges(svg_of):
    pieces = [f"p{i}" for i in range(41)]
    root = svg_of(new_maps(queries=pieces, keys=pieces))
    styles = [image.get("style", "") for image in root.iter(f"{SVG}image")]
    assert sum("pixelated" in style for style in styles) == 1
    assert shades(root) == []
    assert set(pieces) <= set(texts(root))


def test_very_small_labels_are_warned_of(tmp_path, capsys):
    wide = new_maps(queries=["q"], keys=[f"k{i}" for i in range(320)])
    write_figure(tmp_path / "x.svg", wide, layers=[1], heads=[1])
    assert "x.svg has very small labels: draw fewer heads with --layer and --head" in (
        capsys.readouterr().err
    )
    write_figure(tmp_path / "x.svg", new_maps(), layers=[1, 2], heads=[1, 2, 3])
    assert capsys.readouterr().err == ""


def test_characters_missing_in_all_fonts_are_warned_of(tmp_path, capsys):
    """A noncharacter is in no font, whatever is installed."""
    maps = new_maps(queries=["▁ein", "\ufdd1", "</s>"])
    write_figure(tmp_path / "x.png", maps, layers=[1], heads=[1])
    assert "x.png shows boxes for \\ufdd1, missing in all inst" in capsys.readouterr().err
    # The viewer of an SVG chooses the fonts.
    write_figure(tmp_path / "x.svg", maps, layers=[1], heads=[1])
    assert capsys.readouterr().err == ""


def test_an_installed_font_is_used_that_has_what_the_default_lacks(tmp_path, capsys):
    """Matplotlib itself brings a second font that has this character."""
    families, missing = figure._font_families("ab\u1d81\ufdd1")
    assert (families[0], len(families), missing) == ("DejaVu Sans", 2, {"\ufdd1"})
    maps = new_maps(queries=["▁ein", "\u1d81", "</s>"])
    write_figure(tmp_path / "x.png", maps, layers=[1], heads=[1])
    assert capsys.readouterr().err == ""
