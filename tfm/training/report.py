"""The report.html of a run: curves, newest metrics and settings, without scripts."""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from operator import itemgetter
from pathlib import Path
from string import Template
from typing import Any

from tfm.disk.files import write_text
from tfm.plotting import ticker
from tfm.reporting import format_duration, format_number
from tfm.training.charts import Chart, at_step, grid, points_of, render_chart, render_charts
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
_SAMPLE = itemgetter("line", "source", "reference", "output")


def _nats(perplexity: float) -> float:
    return math.log(perplexity) if perplexity > 0 else math.nan


_MAIN_CHARTS = (
    Chart("bleu", "BLEU", "points", best=max),
    Chart("f1", "Bracket F1", "percent", best=max),
    Chart("command", "Metric command", "mean of its numbers", best=max),
    # The logarithm of the perplexity is the loss without label smoothing, also in training.
    Chart("perplexity", "Loss", "nats/token, no label smoothing", best=min, transform=_nats),
)
_OTHER_CHARTS = (
    Chart("learning_rate", "Learning rate", "× 10⁻³", transform=lambda rate: 1000 * rate),
    Chart("gradient_norm", "Gradient norm", "before clipping"),
    Chart("target_tokens_per_second", "Speed", "target tokens/s"),
    Chart("flops_per_second", "Throughput", "FLOP/s of the model, without padding"),
)

_TRAINING_LOSS = _MAIN_CHARTS[-1]._replace(title="Loss in training")
_TEXTS = Chart("loss", "Loss by training text", "nats/token, of a sample of each", best=min)


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
        charts=grid(render_charts(_MAIN_CHARTS, records, latest["step"])),
        texts=_fold("Training texts", _render_texts(texts, training, validation)),
        others=_fold("More curves", grid(render_charts(_OTHER_CHARTS, records, latest["step"]))),
        samples=_fold("Sample translations", _render_samples(validation)),
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
    main = render_charts(_MAIN_CHARTS, validation, last_step)
    main += render_charts([_TRAINING_LOSS], training, last_step)
    page = resources.files("tfm.training") / "report_page.html"
    content = Template(page.read_text(encoding="utf-8")).substitute(
        title=html.escape(", ".join(run.resolve().name for run in runs)),
        state=render_table([table[0], *rows]),
        charts=grid(main),
        texts="",
        samples="",
        others=_fold("More curves", grid(render_charts(_OTHER_CHARTS, training, last_step))),
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


def _render_state(
    latest: Record,
    validation: Sequence[Record],
    sets: Mapping[str, Sequence[Record]],
    updated: datetime | None,
) -> str:
    """Return how far the run is, its best validations and the time of the newest metrics."""
    points = ((chart, points_of(validation, chart)) for chart in _MAIN_CHARTS)
    of_sets = (
        (f"{chart.title} on {name.removeprefix('valid ')}, first and last", points_of(each, chart))
        for name, each in sets.items()
        for chart in _MAIN_CHARTS
    )
    return _render_list(
        ("Step", latest["step"], "{:,}".format),
        ("Epoch", latest.get("epoch"), str),
        ("Time", latest.get("minutes"), lambda minutes: format_duration(60 * minutes)),
        *(
            (f"{chart.title}, best in validation", chart.best(each, key=itemgetter(1)), at_step)
            for chart, each in points
            if chart.best and each
        ),
        ("Checkpoints ranked by", [*validation, {}][-1].get("ranked_by"), str),
        *(
            (title, f"{at_step(each[0])} → {at_step(each[-1])}", str)
            for title, each in of_sets
            if each
        ),
        ("Updated", updated and updated.astimezone(), "{:%Y-%m-%d %H:%M %Z}".format),
    )


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


def _render_samples(validation: Sequence[Record]) -> str:
    """Return the first and the newest translation of each sample as HTML; nothing without any."""
    validated = [record for record in validation if record.get("samples")]
    if not validated:
        return ""
    first, newest = validated[0], validated[-1]
    # A resumed run may have other samples.
    outputs = {sample["line"]: sample["output"] for sample in first["samples"]}
    columns = ["line", "source", "reference", *(f"step {r['step']:,}" for r in (first, newest))]
    rows = [
        [f"{line:,}", source, reference, outputs.get(line, ""), output]
        for line, source, reference, output in map(_SAMPLE, newest["samples"])
    ]
    return f'<div class="samples">{render_table([columns, *rows])}</div>'


def _render_texts(
    texts: Sequence[Record], training: Sequence[Record], validation: Sequence[Record]
) -> str:
    """Return the shares, counts and losses of the training texts as HTML; nothing without any."""
    if not texts:
        return ""
    names = [" ".join(filter(None, (text["name"], text["tag"]))) for text in texts]
    validated = [record for record in validation if "text_losses" in record]
    losses = {
        name: points_of(
            ({"step": v["step"], "loss": v["text_losses"][i]} for v in validated), _TEXTS
        )
        for i, name in enumerate(names)
    }
    last_step = max((record["step"] for record in validated), default=0)
    table = texts_table(texts, [r["text_pairs"] for r in training if "text_pairs" in r], losses)
    if not all(losses.values()):
        return table
    return table + grid([render_chart(_TEXTS, losses, last_step)])


def _render_list(*entries: tuple[str, Any, Callable[[Any], str]]) -> str:
    """Return titles and formatted values as HTML, without values that are None."""
    rows = [
        f"<div><dt>{title}</dt><dd>{html.escape(render(value)).replace('|', '|<wbr>')}</dd></div>"
        for title, value, render in entries
        if value is not None
    ]
    return "<dl>\n{}\n</dl>".format("\n".join(rows)) if rows else ""
