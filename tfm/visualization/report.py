"""The report.html of a run: curves, newest metrics and settings, without scripts."""

import contextlib
import html
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

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

# Placeholders, which become CSS variables with values for light and dark mode.
_COLORS = {
    "ink": "#000001",
    "muted": "#000002",
    "grid": "#000003",
    "training": "#000004",
    "validation": "#000005",
    "best": "#000006",
}

Record = dict[str, Any]
Points = Sequence[tuple[int, float]]


class _Chart(NamedTuple):
    """A metric over training steps, in training and in validation."""

    name: str
    title: str
    unit: str
    divisor: float = 1.0
    is_logarithmic: bool = False
    marks_best: bool = False
    starts_at_zero: bool = False


_CHARTS = (
    _Chart("loss", "Loss", "nats per target token; training with label smoothing"),
    _Chart("perplexity", "Perplexity", "per target token", is_logarithmic=True),
    _Chart("bleu", "Validation BLEU", "BLEU points", marks_best=True),
    _Chart("f1", "Validation bracket F1", "percent", marks_best=True),
    _Chart("learning_rate", "Learning rate", "learning rate", starts_at_zero=True),
    _Chart("target_tokens_per_second", "Speed", "target tokens per second", starts_at_zero=True),
    _Chart(
        "flops_per_second",
        "Throughput",
        "GFLOP/s of the model, without padding",
        divisor=1e9,
        starts_at_zero=True,
    ),
)


def write_report(run_dir: Path) -> None:
    """Write report.html of a run, from its metrics.jsonl and, if present, its config.toml.

    Equal files give identical reports. Truncated lines are ignored.

    Raises:
        DataError: There is no metrics.jsonl.
    """
    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise DataError(f"{path} does not exist: a report needs the metrics of a training run")
    training, validation = _read_metrics(path)
    records = {"training": training, "validation": validation}
    charts = []
    for chart in _CHARTS:
        curves = {name: _points(each, chart) for name, each in records.items()}
        if curves := {name: points for name, points in curves.items() if points}:
            charts.append(_render_chart(chart, curves))
    settings = ""
    if (config := run_dir / "config.toml").is_file():
        text = html.escape(config.read_text(encoding="utf-8"))
        settings = f"<details>\n<summary>Settings</summary>\n<pre>{text}</pre>\n</details>"
    page = resources.files("tfm.visualization") / "report_page.html"
    content = Template(page.read_text(encoding="utf-8")).substitute(
        title=html.escape(run_dir.resolve().name),
        figures=_render_figures(training, validation),
        charts="\n".join(charts),
        settings=settings,
    )
    write_text(run_dir / "report.html", content)


def _read_metrics(path: Path) -> tuple[list[Record], list[Record]]:
    """Return at most about _MAX_POINTS training records, and all validation records."""
    lines = path.read_bytes().splitlines()
    validation = [line for line in lines if b'"validation"' in line]
    training = [line for line in lines if b'"train"' in line]
    stride = math.ceil(len(training) / _MAX_POINTS) or 1
    # The last line of a killed run may be truncated; the one before it is complete.
    kept = training[:-2:stride] + training[-2:]
    return [*_parse(kept)], [*_parse(validation)]


def _parse(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the records of all lines that are not truncated."""
    for line in lines:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _points(records: Iterable[Record], chart: _Chart) -> Points:
    """Return (step, value) of all records with a finite value."""
    pairs = ((record["step"], record.get(chart.name)) for record in records)
    return [
        (step, value / chart.divisor)
        for step, value in pairs
        if value is not None and math.isfinite(value)
    ]


def _render_chart(chart: _Chart, curves: Mapping[str, Points]) -> str:
    """Return a chart as an HTML figure with an SVG and a description for screen readers."""
    figure = Figure(figsize=_FIGURE_INCHES)
    figure.patch.set_visible(False)
    axes = figure.add_axes(_AXES_BOX)
    _draw_curves(axes, chart, curves)
    _label(axes, chart)
    file = io.StringIO()
    # Text is not converted to paths, and ids are deterministic.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.name}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg ") :]
    # Ids of all charts share the page's namespace.
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{chart.name}-", svg)
    for name, placeholder in _COLORS.items():
        svg = svg.replace(placeholder, f"var(--{name})")
    ranges = (
        f"{label} from {points[0][1]:.4g} at step {points[0][0]:,} "
        f"to {points[-1][1]:.4g} at step {points[-1][0]:,}"
        for label, points in curves.items()
    )
    description = f"{chart.title}, {chart.unit}, over training steps: {'; '.join(ranges)}."
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(description)}" ', 1)
    return f"<figure>\n<figcaption>{chart.title}</figcaption>\n{svg}</figure>"


def _draw_curves(axes: Axes, chart: _Chart, curves: Mapping[str, Points]) -> None:
    """Draw lines, with dots if there are few points, and a ring around the best value."""
    for label, points in curves.items():
        axes.plot(
            *zip(*points, strict=True),
            color=_COLORS[label],
            label=label,
            linewidth=1.1 if label == "training" else 1.8,
            marker="o" if len(points) <= 40 else "",
            markersize=3,
            solid_capstyle="round",
        )
    if chart.marks_best:
        step, value = max(curves["validation"], key=lambda point: point[1])
        axes.plot(
            [step],
            [value],
            color=_COLORS["best"],
            label=f"best {value:.1f} at step {step:,}",
            linestyle="none",
            marker="o",
            markersize=9,
            markeredgewidth=2,
            fillstyle="none",
        )


def _label(axes: Axes, chart: _Chart) -> None:
    """Add axis labels, ticks, grid and legend."""
    muted = _COLORS["muted"]
    axes.set_xlabel("step", color=muted, fontsize=_FONT_POINTS)
    # The unit is written horizontally above the y axis.
    axes.set_title(chart.unit, loc="left", color=muted, fontsize=_FONT_POINTS)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if chart.is_logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    if chart.starts_at_zero:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.tick_params(colors=muted, labelsize=_FONT_POINTS, length=0, pad=5)
    axes.grid(color=_COLORS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    if len(axes.lines) > 1:
        axes.legend(
            loc="lower right" if chart.marks_best else "upper right",
            frameon=False,
            labelcolor=_COLORS["ink"],
            fontsize=_FONT_POINTS,
        )


def _render_figures(training: Sequence[Record], validation: Sequence[Record]) -> str:
    """Return the newest metrics as HTML."""
    newest = training[-1] if training else {}
    validated = validation[-1] if validation else {}
    latest = max(newest, validated, key=lambda record: record.get("step", 0))
    figures = [
        ("Step", latest, "step", "{:,}"),
        ("Epoch", latest, "epoch", "{}"),
        ("Minutes", latest, "minutes", "{:,.1f}"),
        ("Target tokens", newest, "tokens", "{:,}"),
        ("Training loss", newest, "loss", "{:.3f}"),
        ("Validation loss", validated, "loss", "{:.3f}"),
        ("Validation perplexity", validated, "perplexity", "{:,.2f}"),
        ("BLEU", validated, "bleu", "{:.1f}"),
        ("Bracket F1", validated, "f1", "{:.1f}"),
        ("Learning rate", newest, "learning_rate", "{:.2e}"),
        ("Gradient norm", newest, "gradient_norm", "{:.2f}"),
        ("Target tokens per second", newest, "target_tokens_per_second", "{:,.0f}"),
        ("FLOPs per step", newest, "flops_per_step", "{:.3g}"),
        ("FLOP/s achieved", newest, "flops_per_second", "{:.3g}"),
        ("Peak fp32 FLOP/s", newest, "capacity_flops_per_second", "{:.3g}"),
        ("Total FLOPs", newest, "total_flops", "{:.3g}"),
        ("FLOPs by the paper (time × peak)", newest, "paper_estimate_flops", "{:.3g}"),
        ("Signature", validated, "signature", "{}"),
    ]
    shown = (
        (title, html.escape(pattern.format(record[name])).replace("|", "|<wbr>"))
        for title, record, name, pattern in figures
        if record.get(name) is not None
    )
    return "\n".join(f"<div><dt>{title}</dt><dd>{value}</dd></div>" for title, value in shown)
