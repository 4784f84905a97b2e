"""The report.html of a run: curves, newest metrics and settings, without scripts."""

import html
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from operator import itemgetter
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from tfm.plotting import Axes, Figure, drawing, ticker
from tfm.reporting import format_duration, format_number
from tfm.storage.files import write_text
from tfm.training.metrics_log import Record, read_metrics

_COLUMNS = (
    "text",
    "share asked",
    "share seen",
    "pairs",
    "read",
    "dropped",
    "duplicates",
    "also held out",
    "first loss",
    "newest loss",
)


def render_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text, the first of them with the names of columns, as HTML."""
    kinds = ["th", *["td"] * (len(rows) - 1)]
    lines = [
        "<tr>{}</tr>".format("".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in row))
        for kind, row in zip(kinds, rows, strict=True)
    ]
    return "<table>\n{}\n</table>\n".format("\n".join(lines))


def texts_table(
    texts: Sequence[Mapping[str, Any]],
    windows: Sequence[Sequence[int]],
    losses: Mapping[str, Sequence[tuple[int, float]]],
) -> str:
    """Return a row for each training text as HTML.

    Args:
        texts: The records of the texts.
        windows: The number of pairs of each text in some steps of training.
        losses: {name of a text: (step, loss) of each validation}, in the order of the texts.
    """
    sizes = [text["kept"] if text["weight"] is None else text["weight"] for text in texts]
    seen = [sum(counts) for counts in zip(*windows, strict=True)]
    rows = []
    for number, (text, (name, points)) in enumerate(zip(texts, losses.items(), strict=True)):
        dropped = text["dropped"]
        cells = [
            name,
            f"{sizes[number] / sum(sizes):.2%}",
            f"{seen[number] / sum(seen):.2%}" if seen else "",
            *(f"{text[key]:,}" for key in ("kept", "read")),
            f"{sum(dropped.values()) - dropped.get('duplicate', 0):,}",
            f"{dropped.get('duplicate', 0):,}",
            f"{text['in_held_out']:,}",
            *(f"{loss:.3f}" for _, loss in [*points[:1], *points[-1:]]),
        ]
        rows.append(cells)
    return render_table([_COLUMNS, *rows])


_MAX_POINTS = 1000
# Of training texts and further validation sets, in turn.
_TEXT_COLORS = ("set-1", "set-2", "set-3", "muted")
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
    "set-1": "#000007",
    "set-2": "#000008",
    "set-3": "#000009",
}

Points = Sequence[tuple[int, float]]


def _nats(perplexity: float) -> float:
    return math.log(perplexity) if perplexity > 0 else math.nan


class _Chart(NamedTuple):
    """A metric over training steps, in training and in validation."""

    name: str
    title: str
    unit: str
    best: Callable[..., tuple[int, float]] | None = None  # max or min; otherwise, y starts at 0
    transform: Callable[[float], float] = float


_MAIN_CHARTS = (
    _Chart("bleu", "BLEU", "points", best=max),
    _Chart("f1", "Bracket F1", "percent", best=max),
    # The logarithm of the perplexity is the loss without label smoothing, also in training.
    _Chart("perplexity", "Loss", "nats/token, no label smoothing", best=min, transform=_nats),
)
_OTHER_CHARTS = (
    _Chart("learning_rate", "Learning rate", "× 10⁻³", transform=lambda rate: 1000 * rate),
    _Chart("gradient_norm", "Gradient norm", "before clipping"),
    _Chart("target_tokens_per_second", "Speed", "target tokens/s"),
    _Chart("flops_per_second", "Throughput", "FLOP/s of the model, without padding"),
)

_TRAINING_LOSS = _MAIN_CHARTS[-1]._replace(title="Loss in training")
_TEXTS = _Chart("loss", "Loss by training text", "nats/token, of a sample of each", best=min)


def write_report(run_dir: Path) -> None:
    """Write report.html of a run, from its metrics.jsonl and, if present, its config.toml.

    Equal files of the same age give identical reports. Truncated lines are ignored. A run that
    could write no metrics, as on a full disk, has a report without them.
    """
    path = run_dir / "metrics.jsonl"
    training, validation, texts, _ = read_metrics(run_dir, max_training=_MAX_POINTS)
    sets = _by_set(validation)
    records = {"training": training, "validation": validation, **sets}
    latest = max([{"step": 0}, *validation[-1:], *training[-1:]], key=itemgetter("step"))
    updated = datetime.fromtimestamp(path.stat().st_mtime, UTC) if path.is_file() else None
    config = run_dir / "config.toml"
    settings = html.escape(config.read_text(encoding="utf-8")) if config.is_file() else ""
    page = resources.files("tfm.training") / "report_page.html"
    content = Template(page.read_text(encoding="utf-8")).substitute(
        title=html.escape(run_dir.resolve().name),
        state=_render_state(latest, validation, sets, updated),
        charts=_grid(_render_charts(_MAIN_CHARTS, records, latest["step"])),
        texts=_fold("Training texts", _render_texts(texts, training, validation)),
        others=_fold("More curves", _grid(_render_charts(_OTHER_CHARTS, records, latest["step"]))),
        newest=_fold("Newest metrics", _render_newest(training, validation)),
        settings=_fold("Settings", f"<pre>{settings}</pre>" if settings else ""),
    )
    write_text(run_dir / "report.html", content)


def write_comparison(
    path: Path, runs: Mapping[Path, Mapping[str, object]], table: Sequence[Sequence[str]]
) -> None:
    """Write one page with the curves of several runs, and the settings in which they differ.

    Args:
        path: The page.
        runs: Run folders, each with its settings by name.
        table: The names of columns, then a row for each run, which begins with its folder.
    """
    # The numbers make names unique.
    names = [f"{number} {run.resolve().name}" for number, run in enumerate(runs, start=1)]
    metrics = [read_metrics(run, max_training=_MAX_POINTS) for run in runs]
    validation = dict(zip(names, (each.validation for each in metrics), strict=True))
    training = dict(zip(names, (each.training for each in metrics), strict=True))
    steps = [records[-1]["step"] for each in metrics for records in each[:2] if records]
    last_step = max(steps, default=0)
    rows = [[f"{number} {row[0]}", *row[1:]] for number, row in enumerate(table[1:], start=1)]
    main = _render_charts(_MAIN_CHARTS, validation, last_step)
    main += _render_charts([_TRAINING_LOSS], training, last_step)
    page = resources.files("tfm.training") / "report_page.html"
    content = Template(page.read_text(encoding="utf-8")).substitute(
        title=html.escape(", ".join(run.resolve().name for run in runs)),
        state=render_table([table[0], *rows]),
        charts=_grid(main),
        texts="",
        others=_fold("More curves", _grid(_render_charts(_OTHER_CHARTS, training, last_step))),
        newest="",
        settings=_fold("Different settings", _render_differences(names, list(runs.values()))),
    )
    write_text(path, content)


def _render_differences(names: Sequence[str], runs: Sequence[Mapping[str, object]]) -> str:
    """Return a table of the settings in which runs differ; nothing if there are none."""
    settings = dict.fromkeys(name for settings in runs for name in settings)
    rows = [[name, *(str(settings.get(name, "unset")) for settings in runs)] for name in settings]
    different = [row for row in rows if len(set(row[1:])) > 1]
    return render_table([["setting", *names], *different]) if different else ""


def _fold(summary: str, content: str) -> str:
    """Return content as HTML that readers unfold; nothing if there is none."""
    return content and f"<details>\n<summary>{summary}</summary>\n{content}\n</details>"


def _points(records: Iterable[Record], chart: _Chart) -> Points:
    """Return (step, value) of all records with a finite value."""
    pairs = ((record["step"], record.get(chart.name)) for record in records)
    points = ((step, chart.transform(value)) for step, value in pairs if value is not None)
    return [(step, value) for step, value in points if math.isfinite(value)]


def _by_set(validation: Sequence[Record]) -> dict[str, list[Record]]:
    """Return records of each further validation set, "valid NAME", from metrics "NAME:metric"."""
    sets: dict[str, list[Record]] = {}
    for record in validation:
        step = record["step"]
        for key, value in record.items():
            name, colon, metric = key.partition(":")
            if colon:
                sets.setdefault(f"valid {name}", []).append({"step": step, metric: value})
    return sets


def _render_charts(
    charts: Iterable[_Chart], records: Mapping[str, Sequence[Record]], last_step: int
) -> list[str]:
    """Return the charts that have points as HTML, with a curve for each name."""
    figures = []
    for chart in charts:
        curves = {name: _points(each, chart) for name, each in records.items()}
        if any(curves.values()):
            figures.append(_render_chart(chart, curves, last_step))
    return figures


def _grid(figures: Sequence[str]) -> str:
    """Return figures side by side as HTML; nothing if there are none."""
    return '<div class="charts">\n{}\n</div>'.format("\n".join(figures)) if figures else ""


def _render_chart(chart: _Chart, curves: Mapping[str, Points], last_step: int) -> str:
    """Return a chart as an HTML figure with an SVG and a description for screen readers."""
    file = io.StringIO()
    # Text is not converted to paths, and ids are deterministic.
    with drawing({"svg.fonttype": "none", "svg.hashsalt": chart.title}):
        picture = Figure(figsize=_FIGURE_INCHES)
        picture.patch.set_visible(False)
        axes = picture.add_axes(_AXES_BOX)
        _draw_curves(axes, chart, curves)
        _label(axes, chart, last_step)
        picture.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg ") :]
    # Ids of all charts share the page's namespace.
    prefix = chart.title.lower().replace(" ", "-")
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    for name, placeholder in _COLORS.items():
        svg = svg.replace(placeholder, f"var(--{name})")
    ranges = (
        f"{label} from {_at_step(points[0])} to {_at_step(points[-1])}"
        for label, points in curves.items()
        if points
    )
    description = f"{chart.title}, {chart.unit}, over training steps: {'; '.join(ranges)}."
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(description)}" ', 1)
    return f"<figure>\n<figcaption>{chart.title}</figcaption>\n{svg}</figure>"


def _draw_curves(axes: Axes, chart: _Chart, curves: Mapping[str, Points]) -> None:
    """Draw lines, with dots if there are few points, and a ring around the best value.

    A curve without points takes a color, too: then a run or set has the same color in all charts.
    """
    for number, (label, points) in enumerate(curves.items()):
        if not points:
            continue
        is_text = label not in _COLORS
        axes.plot(
            *zip(*points, strict=True),
            color=_COLORS[_TEXT_COLORS[number % len(_TEXT_COLORS)] if is_text else label],
            linestyle=_TEXT_DASHES[(number + number // 4) % 4] if is_text else "-",
            label=label.replace("$", r"\$"),  # which would start a formula
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
            label=f"best {_at_step(best)}",
            markersize=9,
            markeredgewidth=2,
            fillstyle="none",
        )


def _label(axes: Axes, chart: _Chart, last_step: int) -> None:
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


def _render_state(
    latest: Record,
    validation: Sequence[Record],
    sets: Mapping[str, Sequence[Record]],
    updated: datetime | None,
) -> str:
    """Return how far the run is, its best validations and the time of the newest metrics."""
    points = ((chart, _points(validation, chart)) for chart in _MAIN_CHARTS)
    of_sets = (
        (f"{chart.title} on {name.removeprefix('valid ')}, first and last", _points(each, chart))
        for name, each in sets.items()
        for chart in _MAIN_CHARTS
    )
    return _render_list(
        ("Step", latest["step"], "{:,}".format),
        ("Epoch", latest.get("epoch"), str),
        ("Time", latest.get("minutes"), lambda minutes: format_duration(60 * minutes)),
        *(
            (f"{chart.title}, best in validation", chart.best(each, key=itemgetter(1)), _at_step)
            for chart, each in points
            if chart.best and each
        ),
        *(
            (title, f"{_at_step(each[0])} → {_at_step(each[-1])}", str)
            for title, each in of_sets
            if each
        ),
        ("Updated", updated and updated.astimezone(), "{:%Y-%m-%d %H:%M %Z}".format),
    )


def _at_step(point: tuple[int, float]) -> str:
    step, value = point
    return f"{value:.4g} at step {step:,}"


def _render_newest(training: Sequence[Record], validation: Sequence[Record]) -> str:
    """Return the newest metrics as HTML."""
    newest = training[-1] if training else {}
    validated = validation[-1] if validation else {}
    format_perplexity = partial(format_number, decimals=2)
    flop, flop_per_second = (ticker.EngFormatter(unit, places=1) for unit in ("FLOP", "FLOP/s"))
    return _render_list(
        ("Target tokens", newest.get("tokens"), "{:,}".format),
        ("Training loss", newest.get("loss"), "{:.3f}".format),
        ("Training perplexity", newest.get("perplexity"), format_perplexity),
        ("Training loss, with label smoothing", newest.get("smoothed_loss"), "{:.3f}".format),
        ("Validation loss", validated.get("loss"), "{:.3f}".format),
        ("Validation perplexity", validated.get("perplexity"), format_perplexity),
        ("BLEU", validated.get("bleu"), "{:.1f}".format),
        ("Bracket F1", validated.get("f1"), "{:.1f}".format),
        ("Learning rate", newest.get("learning_rate"), "{:.2e}".format),
        ("Gradient norm", newest.get("gradient_norm"), "{:.2f}".format),
        ("Target tokens per second", newest.get("target_tokens_per_second"), "{:,.0f}".format),
        ("FLOPs per step", newest.get("flops_per_step"), flop),
        ("FLOP/s achieved", newest.get("flops_per_second"), flop_per_second),
        ("Peak fp32 FLOP/s", newest.get("capacity_flops_per_second"), flop_per_second),
        ("Total FLOPs", newest.get("total_flops"), flop),
        ("FLOPs by the paper (time × peak)", newest.get("paper_estimate_flops"), flop),
        ("Signature", validated.get("signature"), str),
    )


def _render_texts(
    texts: Sequence[Record], training: Sequence[Record], validation: Sequence[Record]
) -> str:
    """Return the shares, counts and losses of the training texts as HTML; nothing without any."""
    if not texts:
        return ""
    names = [" ".join(filter(None, (text["name"], text["tag"]))) for text in texts]
    validated = [record for record in validation if "text_losses" in record]
    losses = {
        name: _points(({"step": v["step"], "loss": v["text_losses"][i]} for v in validated), _TEXTS)
        for i, name in enumerate(names)
    }
    last_step = max((record["step"] for record in validated), default=0)
    table = texts_table(texts, [r["text_pairs"] for r in training if "text_pairs" in r], losses)
    if not all(losses.values()):
        return table
    return table + _grid([_render_chart(_TEXTS, losses, last_step)])


def _render_list(*entries: tuple[str, Any, Callable[[Any], str]]) -> str:
    """Return titles and formatted values as HTML, without values that are None."""
    rows = [
        f"<div><dt>{title}</dt><dd>{html.escape(render(value)).replace('|', '|<wbr>')}</dd></div>"
        for title, value, render in entries
        if value is not None
    ]
    return "<dl>\n{}\n</dl>".format("\n".join(rows)) if rows else ""
