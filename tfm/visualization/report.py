"""report.html of a run: its curves, newest figures and settings in one file without scripts."""

import html
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from tfm.errors import DataError
from tfm.storage.files import write_text

_MAX_POINTS = 1000
_FIGURE_INCHES = (4.6, 2.6)
_AXES_BOX = (0.11, 0.16, 0.87, 0.755)
_FONT_POINTS = 8.5

# Matplotlib draws in these stand-ins; the page's style says what they look like, light or dark.
_COLOURS = {
    "#000001": "var(--ink)",
    "#000002": "var(--muted)",
    "#000003": "var(--grid)",
    "#000004": "var(--training)",
    "#000005": "var(--validation)",
    "#000006": "var(--best)",
}
_INK, _MUTED, _GRID, _TRAINING, _VALIDATION, _BEST = _COLOURS

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """One line of a chart: values of one name over steps."""

    label: str
    colour: str
    points: list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class _Chart:
    """Curves over training steps, and how to show them."""

    name: str
    title: str
    unit: str
    curves: list[_Curve]
    is_logarithmic: bool = False
    marks_best: bool = False
    starts_at_zero: bool = False


def write_report(run_dir: Path) -> None:
    """Write report.html of a run, from its metrics.jsonl and, if there, its config.toml.

    The same files always give the same report. A line of figures that is cut short is left out.

    Args:
        run_dir: The run's folder.

    Raises:
        DataError: It has no metrics.jsonl.
    """
    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise DataError(f"{path} does not exist: a report needs the figures of a training run")
    training, validation = _read_metrics(path)
    charts = [
        chart for chart in _charts(training, validation) if any(c.points for c in chart.curves)
    ]
    page = Template(_PAGE).substitute(
        title=html.escape(run_dir.resolve().name),
        figures=_figures_html(training, validation),
        charts="\n".join(_chart_html(chart) for chart in charts),
        settings=_settings_html(run_dir / "config.toml"),
    )
    write_text(run_dir / "report.html", page)


def _read_metrics(path: Path) -> tuple[list[Record], list[Record]]:
    """Training records, thinned out, and validation records."""
    lines = path.read_bytes().splitlines()
    validation = [line for line in lines if b'"validation"' in line]
    training = [line for line in lines if b'"train"' in line]
    stride = math.ceil(len(training) / _MAX_POINTS) or 1
    # The last line of a killed run may be cut short; the one before it is whole.
    kept = training[:-2:stride] + training[-2:]
    return [*filter(None, map(_parsed, kept))], [*filter(None, map(_parsed, validation))]


def _parsed(line: bytes) -> Record:
    """A line's record; empty if a killed run cut it short."""
    try:
        record: Record = json.loads(line)
    except ValueError:
        return {}
    return record


def _points(records: Iterable[Record], name: str, *, unit: float = 1.0) -> list[tuple[int, float]]:
    """(step, value) of the records that have a finite value of this name, in some unit."""
    pairs = ((record["step"], record.get(name)) for record in records)
    return [
        (step, value / unit) for step, value in pairs if value is not None and math.isfinite(value)
    ]


def _charts(training: Sequence[Record], validation: Sequence[Record]) -> list[_Chart]:
    """The charts of a report."""

    def both(name: str) -> list[_Curve]:
        return [
            _Curve(label="training", colour=_TRAINING, points=_points(training, name)),
            _Curve(label="validation", colour=_VALIDATION, points=_points(validation, name)),
        ]

    bleu, f1 = (
        _Curve(label="validation", colour=_VALIDATION, points=_points(validation, name))
        for name in ("bleu", "f1")
    )
    rate = _Curve(label="training", colour=_TRAINING, points=_points(training, "learning_rate"))
    speed = _Curve(
        label="training", colour=_TRAINING, points=_points(training, "target_tokens_per_second")
    )
    arithmetic = _Curve(
        label="training",
        colour=_TRAINING,
        points=_points(training, "flops_per_second", unit=1e9),
    )
    return [
        _Chart(
            name="loss",
            title="Loss",
            unit="nats per target token; in training label-smoothed",
            curves=both("loss"),
        ),
        _Chart(
            name="perplexity",
            title="Perplexity",
            unit="per target token",
            curves=both("perplexity"),
            is_logarithmic=True,
        ),
        _Chart(
            name="bleu",
            title="BLEU in validation",
            unit="BLEU points",
            curves=[bleu],
            marks_best=True,
        ),
        _Chart(
            name="f1",
            title="Bracket F1 in validation",
            unit="percent",
            curves=[f1],
            marks_best=True,
        ),
        _Chart(
            name="rate",
            title="Learning rate",
            unit="learning rate",
            curves=[rate],
            starts_at_zero=True,
        ),
        _Chart(
            name="speed",
            title="Speed",
            unit="target tokens per second",
            curves=[speed],
            starts_at_zero=True,
        ),
        _Chart(
            name="arithmetic",
            title="Arithmetic",
            unit="GFLOP/s of the model, padding not counted",
            curves=[arithmetic],
            starts_at_zero=True,
        ),
    ]


def _chart_html(chart: _Chart) -> str:
    """A chart as a figure element with its SVG inside."""
    svg = _svg(chart)
    # Names within an SVG are global to the page.
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{chart.name}-", svg)
    for stand_in, colour in _COLOURS.items():
        svg = svg.replace(stand_in, colour)
    description = html.escape(_description(chart))
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)
    return f"<figure>\n<figcaption>{chart.title}</figcaption>\n{svg}</figure>"


def _description(chart: _Chart) -> str:
    """What a chart shows, for those who cannot see it."""
    curves = (
        f"{curve.label} from {curve.points[0][1]:.4g} at step {curve.points[0][0]:,} "
        f"to {curve.points[-1][1]:.4g} at step {curve.points[-1][0]:,}"
        for curve in chart.curves
        if curve.points
    )
    return f"{chart.title}, {chart.unit}, over training steps: {'; '.join(curves)}."


def _svg(chart: _Chart) -> str:
    """Draw a chart."""
    figure = Figure(figsize=_FIGURE_INCHES)
    figure.patch.set_visible(False)
    axes = figure.add_axes(_AXES_BOX)
    for curve in chart.curves:
        if curve.points:
            _draw_curve(axes, curve)
    if chart.marks_best:
        _mark_best(axes, chart.curves[0].points)
    _label(axes, chart)
    file = io.StringIO()
    # Text stays text, and names within the SVG are the same each time.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.name}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg ") :]


def _draw_curve(axes: Axes, curve: _Curve) -> None:
    """A line, with dots where there are few points."""
    steps, values = zip(*curve.points, strict=True)
    axes.plot(
        steps,
        values,
        color=curve.colour,
        label=curve.label,
        linewidth=1.1 if curve.colour == _TRAINING else 1.8,
        marker="o" if len(steps) <= 40 else "",
        markersize=3,
        solid_capstyle="round",
    )


def _mark_best(axes: Axes, points: Sequence[tuple[int, float]]) -> None:
    """A ring where the curve is highest."""
    step, value = max(points, key=lambda point: point[1])
    axes.plot(
        [step],
        [value],
        color=_BEST,
        label=f"best {value:.1f} at step {step:,}",
        linestyle="none",
        marker="o",
        markersize=9,
        markeredgewidth=2,
        fillstyle="none",
    )


def _label(axes: Axes, chart: _Chart) -> None:
    """Axis labels, ticks, grid and legend."""
    axes.set_xlabel("step", color=_MUTED, fontsize=_FONT_POINTS)
    # Above the axis, where it reads without turning the head.
    axes.set_title(chart.unit, loc="left", color=_MUTED, fontsize=_FONT_POINTS)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if chart.is_logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    if chart.starts_at_zero:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.tick_params(colors=_MUTED, labelsize=_FONT_POINTS, length=0, pad=5)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    if len(axes.lines) > 1:
        axes.legend(
            loc="lower right" if chart.marks_best else "upper right",
            frameon=False,
            labelcolor=_INK,
            fontsize=_FONT_POINTS,
        )


def _figures_html(training: Sequence[Record], validation: Sequence[Record]) -> str:
    """The newest figures, each with its name."""
    newest = training[-1] if training else {}
    validated = validation[-1] if validation else {}
    latest = max(newest, validated, key=lambda record: record.get("step", 0))
    figures = [
        ("Step", _formatted(latest, "step", "{:,}")),
        ("Epoch", _formatted(latest, "epoch", "{}")),
        ("Minutes", _formatted(latest, "minutes", "{:,.1f}")),
        ("Target tokens", _formatted(newest, "tokens", "{:,}")),
        ("Training loss", _formatted(newest, "loss", "{:.3f}")),
        ("Validation loss", _formatted(validated, "loss", "{:.3f}")),
        ("Validation perplexity", _formatted(validated, "perplexity", "{:,.2f}")),
        ("BLEU", _formatted(validated, "bleu", "{:.1f}")),
        ("Bracket F1", _formatted(validated, "f1", "{:.1f}")),
        ("Learning rate", _formatted(newest, "learning_rate", "{:.2e}")),
        ("Gradient norm", _formatted(newest, "gradient_norm", "{:.2f}")),
        ("Target tokens per second", _formatted(newest, "target_tokens_per_second", "{:,.0f}")),
        ("FLOPs per step", _formatted(newest, "flops_per_step", "{:.3g}")),
        ("FLOP/s achieved", _formatted(newest, "flops_per_second", "{:.3g}")),
        ("FLOP/s in fp32 products", _formatted(newest, "capacity_flops_per_second", "{:.3g}")),
        ("FLOPs in all", _formatted(newest, "total_flops", "{:.3g}")),
        (
            "FLOPs as the paper estimates: time × capacity",
            _formatted(newest, "paper_estimate_flops", "{:.3g}"),
        ),
        ("Signature", _formatted(validated, "signature", "{}")),
    ]
    return "\n".join(
        f"<div><dt>{name}</dt><dd>{html.escape(value).replace('|', '|<wbr>')}</dd></div>"
        for name, value in figures
        if value
    )


def _formatted(record: Record, name: str, pattern: str) -> str:
    """A value of a record in words, or nothing if it has none."""
    value = record.get(name)
    return "" if value is None else pattern.format(value)


def _settings_html(path: Path) -> str:
    """The run's settings, folded in."""
    if not path.is_file():
        return ""
    text = html.escape(path.read_text(encoding="utf-8"))
    return f"<details>\n<summary>Settings</summary>\n<pre>{text}</pre>\n</details>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root {
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f27; --muted: #5d6673; --grid: #e6e9ee;
  --training: #e08a2e; --validation: #2f62d9; --best: #1f8f5f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12151b; --card: #1b2029; --ink: #e9ecf1; --muted: #9aa4b2; --grid: #2c333f;
    --training: #f0a552; --validation: #7ba2ff; --best: #4fcb94;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 3rem;
  background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { margin: 0 0 1rem; font-size: 1.5rem; line-height: 1.2; overflow-wrap: anywhere; }
dl, figure, details {
  margin: 0 0 1rem; padding: 1rem; border: 1px solid var(--grid); border-radius: .75rem;
  background: var(--card);
}
dl {
  display: grid; gap: .75rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr));
}
dt { color: var(--muted); font-size: .8125rem; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.charts {
  display: grid; gap: 0 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
}
figcaption { margin-bottom: .25rem; font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; font-size: .8125rem; }
</style>
</head>
<body>
<main>
<h1>$title</h1>
<dl aria-label="Newest figures">
$figures
</dl>
<div class="charts">
$charts
</div>
$settings
</main>
</body>
</html>
"""
