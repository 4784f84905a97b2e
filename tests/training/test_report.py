"""The report of a training run."""

import json
import math
import os
import re
from datetime import UTC, datetime

import pytest
from html_pages import is_self_contained, read_page, rows, text_of, texts

from tfm.table import Table
from tfm.training.report import write_comparison, write_report

SET_COLORS = {"--set-1", "--set-2", "--set-3"}
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def training(step, **changes):
    return {
        "kind": "train",
        "step": step,
        "epoch": 1,
        "loss": 0.9 + 100 / step,
        "smoothed_loss": 1 + 100 / step,
        "perplexity": math.exp(0.9 + 100 / step),
        "learning_rate": 1e-4,
        "gradient_norm": 1.25,
        "target_tokens_per_second": 5000.0,
        "flops_per_step": 2.5e9,
        "flops_per_second": 4e10,
        "capacity_flops_per_second": 1e11,
        "total_flops": 2_500_000_000 * step,
        "paper_estimate_flops": 6.25e9 * step,
        "tokens": 1000 * step,
        "minutes": step / 100,
        **changes,
    }


def validation(step, **changes):
    return {
        "kind": "validation",
        "step": step,
        "epoch": 1,
        "loss": 1.5,
        "perplexity": math.exp(1.5),
        "bleu": 12.3,
        "signature": SIGNATURE,
        "minutes": step / 100,
        **changes,
    }


@pytest.fixture
def report_of(tmp_path):
    """Write a report of some records and return its elements."""

    def write(*records, tail=""):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / "metrics.jsonl").write_text(text + tail)
        os.utime(tmp_path / "metrics.jsonl", (1e9, 1e9))
        write_report(tmp_path)
        return read_page(tmp_path / "report.html")

    return write


def training_texts():
    text = {"kept": 30, "read": 40, "dropped": {"empty": 7, "duplicate": 3}, "in_held_out": 2}
    both = [
        {"name": "1 a.en", "weight": 3.0, "tag": None, **text},
        {"name": "2 <b>$\udce9.en", "weight": 1.0, "tag": "<bt>", **text},
    ]
    return {"kind": "texts", "step": 0, "texts": both}


def svgs(page):
    return [*page.iter("svg")]


def titles(page):
    return texts(page, ".//figcaption")


def figures(page):
    return dict(zip(texts(page, ".//dt"), texts(page, ".//dd"), strict=True))


def colors(svg):
    """Return the variables of the colors in a chart."""
    styles = " ".join(each.get("style", "") for each in svg.iter())
    assert not re.search(r"#0000\d\d", styles)
    return set(re.findall(r"var\((--[\w-]+)\)", styles))


def test_score_and_loss_come_first_and_the_other_curves_are_folded(report_of):
    page = report_of(training(50), training(100), validation(100), training(150))
    folded = ["Learning rate", "Gradient norm", "Speed", "Throughput"]
    assert titles(page) == ["BLEU", "Loss", *folded]
    assert texts(page, ".//details//figcaption") == folded
    assert len(svgs(page)) == 6


def test_the_page_begins_with_the_state_of_the_run(report_of):
    state = figures(report_of(training(50), validation(50), training(1000)).find(".//main/dl"))
    updated = datetime.fromtimestamp(1e9, UTC).astimezone()
    assert state == {
        "Step": "1,000",
        "Epoch": "1",
        "Time": "10 min",
        "BLEU, best in validation": "12.3 at step 50",
        "Loss, best in validation": "1.5 at step 50",
        "Updated": f"{updated:%Y-%m-%d %H:%M %Z}",
    }


def test_sample_translations_are_shown_from_the_first_and_the_newest_validation(report_of):
    def validated(step, *outputs):
        samples = [
            {"line": line, "source": f"<s> {line}", "reference": f"r {line}", "output": output}
            for line, output in outputs
        ]
        return validation(step, samples=samples)

    page = report_of(
        validated(50, (3, "a"), (9, "b")),
        validated(100, (3, "c")),
        validated(150, (3, "d"), (8, "e")),
    )
    assert rows(page.find(".//*[@class='samples']")) == [
        ["line", "source", "reference", "step 50", "step 150"],
        ["3", "<s> 3", "r 3", "a", "d"],
        ["8", "<s> 8", "r 8", "", "e"],
    ]
    assert report_of(validation(5)).find(".//*[@class='samples']") is None


def test_a_report_lists_the_newest_metrics(report_of):
    page = report_of(training(50), validation(50), training(1000))
    assert figures(page.find(".//details/dl")) == {
        "Target tokens": "1,000,000",
        "Training loss": "1.000",
        "Training perplexity": "2.72",
        "Training loss, with label smoothing": "1.100",
        "Validation loss": "1.500",
        "Validation perplexity": "4.48",
        "BLEU": "12.3",
        "Learning rate": "1.00e-04",
        "Gradient norm": "1.25",
        "Target tokens per second": "5,000",
        "FLOPs per step": "2.5 GFLOP",
        "FLOP/s achieved": "40.0 GFLOP/s",
        "Peak fp32 FLOP/s": "100.0 GFLOP/s",
        "Total FLOPs": "2.5 TFLOP",
        "FLOPs by the paper (time × peak)": "6.2 TFLOP",
        "Signature": SIGNATURE,
    }


def test_charts_have_descriptions_for_screen_readers(report_of):
    records = [training(50, perplexity=math.exp(7.25)), training(1000, perplexity=math.exp(2.5))]
    loss = svgs(report_of(*records, validation(1000)))[1]
    label = loss.get("aria-label")
    assert loss.get("role") == "img"
    assert label == (
        "Loss, nats/token, no label smoothing, over training steps: "
        "training from 7.25 at step 50 to 2.5 at step 1,000; "
        "validation from 1.5 at step 1,000 to 1.5 at step 1,000."
    )


def test_a_page_is_self_contained_with_colors_for_light_and_dark_mode(report_of):
    page = report_of(training(50), training(100), validation(50), validation(100))
    assert is_self_contained(page)
    assert page.find(".//script") is None
    names = {each.get("id") for each in page.iter()}
    links = [each.get("xlink:href") for each in page.iter("use")]
    links += [each.get("clip-path")[4:-1] for each in page.iter() if each.get("clip-path")]
    assert {link.removeprefix("#") for link in links} <= names
    used = set.union(*map(colors, svgs(page)))
    assert used == {"--training", "--validation", "--best", "--ink", "--muted", "--grid"}
    style = text_of(page.find(".//style"))
    assert all(style.count(f"{name}: #") == 2 for name in used)


def test_values_that_are_not_finite_are_not_drawn(report_of):
    bad = training(100, perplexity=math.inf, learning_rate=math.nan, gradient_norm=None)
    page = report_of(training(50), bad, training(150), bad, validation(150, perplexity=math.nan))
    assert not re.search("nan|inf|None", "".join(svg.get("aria-label") for svg in svgs(page)))
    assert "Loss, best in validation" not in figures(page)


def test_a_run_that_has_just_begun_has_a_report(report_of):
    assert titles(report_of()) == []
    assert list(figures(report_of())) == ["Step", "Updated"]
    assert titles(report_of(training(50)))[0] == "Loss"


def test_a_long_run_is_thinned_out_but_keeps_its_end(report_of, tmp_path):
    page = report_of(*(training(step) for step in range(1, 20_001)))
    assert (tmp_path / "report.html").stat().st_size < 250_000
    assert "at step 20,000" in svgs(page)[0].get("aria-label")


def test_settings_and_names_are_escaped(tmp_path):
    run_dir = tmp_path / "a<b>&c"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text(json.dumps(training(50)) + "\n")
    (run_dir / "config.toml").write_text('name = "</pre><script>"\n')
    write_report(run_dir)
    page = read_page(run_dir / "report.html")
    assert texts(page, ".//title") == ["a<b>&c"]
    assert texts(page, ".//pre") == ['name = "</pre><script>"\n']


def test_a_report_of_a_parser_shows_f1_instead_of_bleu(report_of):
    parsed = {"bleu": None, "f1": 91.2, "signature": "evalb"}
    page = report_of(training(50), validation(50, **parsed), validation(100, **parsed))
    assert "Bracket F1" in titles(page)
    assert "BLEU" not in titles(page)
    assert figures(page)["Bracket F1"] == "91.2"


def test_a_further_validation_set_has_one_color_in_all_charts_and_its_first_and_last_figure(
    report_of,
):
    sets = [
        {"law:bleu": bleu, "law:perplexity": math.exp(loss), "law:loss": loss}
        for bleu, loss in ((25.7, 2.5), (24.1, 3.5))
    ]
    page = report_of(training(50), validation(0, **sets[0]), validation(50, **sets[1]))
    state = figures(page)
    assert state["BLEU on law, first and last"] == "25.7 at step 0 → 24.1 at step 50"
    assert state["Loss on law, first and last"] == "2.5 at step 0 → 3.5 at step 50"
    bleu, loss = ({*colors(chart)} & SET_COLORS for chart in svgs(page)[:2])
    assert len(bleu) == 1
    assert bleu == loss


def test_training_texts_have_a_row_each_and_a_chart_of_their_losses(report_of):
    page = report_of(
        training_texts(),
        training(50, text_pairs=[70, 30]),
        validation(50, text_losses=[4.0, 3.0]),
        training(100, text_pairs=[80, 20]),
        validation(100, text_losses=[2.5, None]),
    )
    assert rows(page) == [
        [
            *("text", "share asked", "share seen", "pairs", "read", "dropped", "duplicates"),
            *("also held out", "first loss", "newest loss"),
        ],
        ["1 a.en", "75.00%", "75.00%", "30", "40", "7", "3", "2", "4.000", "2.500"],
        [
            *(r"2 <b>$\udce9.en <bt>", "25.00%", "25.00%", "30", "40", "7", "3", "2"),
            *("3.000", "3.000"),
        ],
    ]
    assert "Loss by training text" in titles(page)
    assert svgs(page)


def test_names_in_any_script_are_drawn_without_messages(tmp_path, capsys, recwarn):
    runs = {tmp_path / name: {} for name in ("模型", "हिन्दी")}
    for run in runs:
        run.mkdir()
        (run / "metrics.jsonl").write_text(json.dumps(validation(10)) + "\n")
    write_comparison(tmp_path / "runs.html", runs, Table([["模型"], ["हिन्दी"]], ["run"]), [0, 1])
    assert rows(read_page(tmp_path / "runs.html")) == [["run"], ["模型"], ["हिन्दी"]]
    assert (capsys.readouterr().err, list(recwarn)) == ("", [])
