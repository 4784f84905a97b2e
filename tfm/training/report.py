"""The report.html of a run: curves, newest metrics and settings, without scripts."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from tfm.disk.files import write_text
from tfm.pages import render
from tfm.plotting import ticker
from tfm.reporting import format_duration, format_number
from tfm.table import Table
from tfm.training.charts import Chart, Drawing, Points, at_step, draw_chart, draw_charts, points_of
from tfm.training.metrics_log import Record, read_metrics

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
    path, config = run_dir / "metrics.jsonl", run_dir / "config.toml"
    training, validation, texts, *_ = read_metrics(run_dir, max_training=_MAX_POINTS)
    sets = _by_set(validation)
    records = {"training": training, "validation": validation, **sets}
    latest = max([{"step": 0}, *validation[-1:], *training[-1:]], key=itemgetter("step"))
    updated = datetime.fromtimestamp(path.stat().st_mtime, UTC) if path.is_file() else None
    losses = _text_losses(texts, validation)
    page = render(
        "training/report.html",
        title=run_dir.resolve().name,
        state=_state(latest, validation, sets, updated),
        charts=draw_charts(_MAIN_CHARTS, records, latest["step"]),
        texts=_texts_table(texts, training, losses) if texts else None,
        text_charts=_text_charts(losses, latest["step"]),
        samples=_samples(validation),
        more_charts=draw_charts(_OTHER_CHARTS, records, latest["step"]),
        newest=_newest(training, validation),
        settings=config.read_text(encoding="utf-8") if config.is_file() else "",
    )
    write_text(run_dir / "report.html", page)


def write_comparison(
    path: Path,
    runs: Mapping[Path, Mapping[str, object]],
    table: Table,
    colors: Sequence[int],
) -> None:
    """Write one page with the curves of several runs, and the settings in which they differ.

    Args:
        path: The page.
        runs: Run folders, each with its settings by name.
        table: A row for each run, which begins with its number, and further rows.
        colors: The number of the color of each run, from 0.
    """
    # The numbers make names unique.
    names = [f"{number} {run.resolve().name}" for number, run in enumerate(runs, start=1)]
    metrics = [read_metrics(run, max_training=_MAX_POINTS) for run in runs]
    validation = dict(zip(names, (each.validation for each in metrics), strict=True))
    training = dict(zip(names, (each.training for each in metrics), strict=True))
    steps = [records[-1]["step"] for each in metrics for records in each[:2] if records]
    last_step = max(steps, default=0)
    draw = partial(draw_charts, last_step=last_step, colors=dict(zip(names, colors, strict=True)))
    page = render(
        "training/report.html",
        title=", ".join(run.resolve().name for run in runs),
        runs=table,
        charts=draw(_MAIN_CHARTS, validation) + draw([_TRAINING_LOSS], training),
        more_charts=draw(_OTHER_CHARTS, training),
        differences=_differences(names, list(runs.values())),
    )
    write_text(path, page)


def _differences(names: Sequence[str], runs: Sequence[Mapping[str, object]]) -> Table | None:
    """Return a table of the settings in which runs differ; None if there are none."""
    settings = dict.fromkeys(name for settings in runs for name in settings)
    rows = [[name, *(str(settings.get(name, "unset")) for settings in runs)] for name in settings]
    different = [row for row in rows if len(set(row[1:])) > 1]
    return Table(different, ["setting", *names], is_numeric=True) if different else None


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


def _state(
    latest: Record,
    validation: Sequence[Record],
    sets: Mapping[str, Sequence[Record]],
    updated: datetime | None,
) -> list[tuple[str, str]]:
    """Return how far the run is, its best validations and the time of the newest metrics."""
    points = ((chart, points_of(validation, chart)) for chart in _MAIN_CHARTS)
    of_sets = (
        (f"{chart.title} on {name.removeprefix('valid ')}, first and last", points_of(each, chart))
        for name, each in sets.items()
        for chart in _MAIN_CHARTS
    )
    return _entries(
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


def _newest(training: Sequence[Record], validation: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the newest metrics."""
    newest = training[-1] if training else {}
    validated = validation[-1] if validation else {}
    format_perplexity = partial(format_number, decimals=2)
    flop, flop_per_second = (ticker.EngFormatter(unit, places=1) for unit in ("FLOP", "FLOP/s"))
    return _entries(
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


def _samples(validation: Sequence[Record]) -> Table | None:
    """Return the first and the newest translation of each sample; None without samples."""
    validated = [record for record in validation if record.get("samples")]
    if not validated:
        return None
    first, newest = validated[0], validated[-1]
    # A resumed run may have other samples.
    outputs = {sample["line"]: sample["output"] for sample in first["samples"]}
    columns = ["line", "source", "reference", *(f"step {r['step']:,}" for r in (first, newest))]
    rows = [
        [f"{line:,}", source, reference, outputs.get(line, ""), output]
        for line, source, reference, output in map(_SAMPLE, newest["samples"])
    ]
    return Table(rows, columns)


def _text_charts(losses: Mapping[str, Points], last_step: int) -> list[Drawing]:
    """Return a chart of the losses of training texts, if every text has losses."""
    return [draw_chart(_TEXTS, losses, last_step)] if losses and all(losses.values()) else []


def _text_losses(texts: Sequence[Record], validation: Sequence[Record]) -> dict[str, Points]:
    """Return the losses of each training text over the steps, by its name and tag."""
    validated = [record for record in validation if "text_losses" in record]
    names = [" ".join(filter(None, (text["name"], text["tag"]))) for text in texts]
    return {
        name: points_of(
            ({"step": v["step"], "loss": v["text_losses"][i]} for v in validated), _TEXTS
        )
        for i, name in enumerate(names)
    }


def _texts_table(
    texts: Sequence[Record], training: Sequence[Record], losses: Mapping[str, Points]
) -> Table:
    """Return the shares, counts and losses of the training texts."""
    sizes = [text["kept"] if text["weight"] is None else text["weight"] for text in texts]
    counts = [record["text_pairs"] for record in training if "text_pairs" in record]
    seen = [sum(of_text) for of_text in zip(*counts, strict=True)]
    rows = []
    for number, (text, (name, points)) in enumerate(zip(texts, losses.items(), strict=True)):
        dropped, num_duplicates = sum(text["dropped"].values()), text["dropped"].get("duplicate", 0)
        first, newest = (f"{points[i][1]:.3f}" if points else "" for i in (0, -1))
        cells = {
            "text": name,
            "share asked": f"{sizes[number] / sum(sizes):.2%}",
            "share seen": f"{seen[number] / sum(seen):.2%}" if seen else "",
            "pairs": f"{text['kept']:,}",
            "read": f"{text['read']:,}",
            "dropped": f"{dropped - num_duplicates:,}",
            "duplicates": f"{num_duplicates:,}",
            "also held out": f"{text['in_held_out']:,}",
            "first loss": first,
            "newest loss": newest,
        }
        rows.append(cells)
    return Table.of(rows, is_numeric=True)


def _entries(*entries: tuple[str, Any, Callable[[Any], str]]) -> list[tuple[str, str]]:
    """Return names and formatted values, without values that are None."""
    return [(name, form(value)) for name, value, form in entries if value is not None]
