"""Charts of a run's metrics over its steps, as SVG for pages without scripts."""

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from tfm.plotting import Axes, Figure, drawing, ticker
from tfm.reporting import printable
from tfm.training.metrics_log import Record

# The colors of training texts, further validation sets and runs, which have dashes in turn.
_NUM_COLORS = 16
_TEXT_DASHES = ("-", "--", ":", "-.")
_FIGURE_INCHES = (4.2, 2.8)
_AXES_BOX = (0.14, 0.17, 0.84, 0.73)
_FONT_POINTS = 10

# Placeholders, which become CSS variables with values for light and dark mode.
_COLORS = {
    "ink": "#000001",
    "muted": "#000002",
    "grid": "#000003",
    "training": "#000004",
    "validation": "#000005",
    "best": "#000006",
    **{f"set-{number + 1}": f"#{number + 7:06x}" for number in range(_NUM_COLORS)},
}

Points = Sequence[tuple[int, float]]


class Chart(NamedTuple):
    """A metric over training steps, in training and in validation."""

    name: str
    title: str
    unit: str
    best: Callable[..., tuple[int, float]] | None = None  # max or min; otherwise, y starts at 0
    transform: Callable[[float], float] = float


def points_of(records: Iterable[Record], chart: Chart) -> Points:
    """Return (step, value) of all records with a finite value."""
    pairs = ((record["step"], record.get(chart.name)) for record in records)
    points = ((step, chart.transform(value)) for step, value in pairs if value is not None)
    return [(step, value) for step, value in points if math.isfinite(value)]


def at_step(point: tuple[int, float]) -> str:
    """Return a value with its step, for people."""
    step, value = point
    return f"{value:.4g} at step {step:,}"


class Drawing(NamedTuple):
    """A chart to show: the attributes and content of an SVG, and a text for screen readers."""

    title: str
    description: str
    svg: str


def draw_charts(
    charts: Iterable[Chart],
    records: Mapping[str, Sequence[Record]],
    last_step: int,
    colors: Mapping[str, int] | None = None,
) -> list[Drawing]:
    """Draw the charts that have points, with a curve for each name.

    Args:
        charts: The charts.
        records: By name, the records of a curve.
        last_step: The end of the axis.
        colors: By name, the number of a color, from 0; if not given, each name has its own.
    """
    drawings = []
    for chart in charts:
        curves = {name: points_of(each, chart) for name, each in records.items()}
        if any(curves.values()):
            drawings.append(draw_chart(chart, curves, last_step, colors))
    return drawings


def draw_chart(
    chart: Chart,
    curves: Mapping[str, Points],
    last_step: int,
    colors: Mapping[str, int] | None = None,
) -> Drawing:
    """Draw a chart over the steps of training."""
    file = io.StringIO()
    # Text is not converted to paths, and ids are deterministic.
    with drawing({"svg.fonttype": "none", "svg.hashsalt": chart.title}):
        picture = Figure(figsize=_FIGURE_INCHES)
        picture.patch.set_visible(False)
        axes = picture.add_axes(_AXES_BOX)
        _draw_curves(axes, chart, curves, colors or {})
        _label(axes, chart, last_step)
        picture.savefig(file, format="svg", metadata={"Date": None})
    _, _, svg = file.getvalue().partition("<svg ")
    # Ids of all charts share the page's namespace.
    prefix = chart.title.lower().replace(" ", "-")
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    for name, placeholder in _COLORS.items():
        svg = svg.replace(placeholder, f"var(--{name})")
    ranges = (
        f"{label} from {at_step(points[0])} to {at_step(points[-1])}"
        for label, points in curves.items()
        if points
    )
    description = f"{chart.title}, {chart.unit}, over training steps: {'; '.join(ranges)}."
    return Drawing(chart.title, description, svg)


def _draw_curves(
    axes: Axes, chart: Chart, curves: Mapping[str, Points], colors: Mapping[str, int]
) -> None:
    """Draw lines, with dots if there are few points, and a ring around the best value.

    A curve without points takes a color, too: then a run or set has the same color in all charts.
    """
    for number, (label, points) in enumerate(curves.items()):
        if not points:
            continue
        is_text = label not in _COLORS
        color = colors.get(label, number) % _NUM_COLORS
        axes.plot(
            *zip(*points, strict=True),
            color=_COLORS[f"set-{color + 1}" if is_text else label],
            linestyle=_TEXT_DASHES[number % len(_TEXT_DASHES)] if is_text else "-",
            label=printable(label).replace("$", r"\$"),  # which would start a formula
            linewidth=1.1 if label == "training" else 1.8,
            marker="o" if len(points) <= 40 else "",
            markersize=3,
            solid_capstyle="round",
        )
    if chart.best and curves.get("validation"):
        best = chart.best(curves["validation"], key=itemgetter(1))
        axes.plot(
            *best,
            "o",
            color=_COLORS["best"],
            label=f"best {at_step(best)}",
            markersize=9,
            markeredgewidth=2,
            fillstyle="none",
        )


def _label(axes: Axes, chart: Chart, last_step: int) -> None:
    """Add axis labels, ticks, grid and legend; all charts of a run have the same steps."""
    muted = _COLORS["muted"]
    axes.set_xlabel("step", color=muted, fontsize=_FONT_POINTS)
    # The unit is written horizontally above the y axis.
    axes.set_title(chart.unit, loc="left", color=muted, fontsize=_FONT_POINTS)
    axes.set_xlim(0, 1.03 * max(last_step, 1))  # with room for the ring
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    if not chart.best:
        axes.set_ylim(bottom=0)
    is_large = axes.get_ylim()[1] >= 1000
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep="") if is_large else "{x:g}")
    axes.tick_params(colors=muted, labelsize=_FONT_POINTS, length=0, pad=5)
    axes.grid(color=_COLORS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    if chart.best:
        axes.legend(loc="best", frameon=False, labelcolor=_COLORS["ink"], fontsize=_FONT_POINTS)
