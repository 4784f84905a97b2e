"""metrics.jsonl: lines are appended; a resumed run removes the lines of later steps."""

import json
import os
import re
from pathlib import Path

import pytest
from helpers import limited_files

from tfm.errors import DataError
from tfm.training.metrics_log import MetricsLog, read_metrics


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_are_appended_at_once(tmp_path, path):
    log = MetricsLog(tmp_path, step=0)
    for step in (1, 2):
        log.append({"step": step, "loss": 1.5})
        assert steps(path)[-1] == step
    assert steps(path) == [1, 2]


def test_lines_after_the_resumed_step_are_removed(tmp_path, path):
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (5, 10, 10, 15, 12)))
    MetricsLog(tmp_path, step=10).append({"step": 11})
    assert steps(path) == [5, 10, 10, 11]


@pytest.mark.parametrize(
    "tail", ["", '{"step": 1', '{"loss": 1}\n', "\0\0\0", "[" * 9_999, '{"step": "\udcff"}']
)
def test_a_line_that_a_crash_cut_short_is_removed(tmp_path, path, tail):
    path.write_bytes(b'{"step": 5}' + os.fsencode(tail and f"\n{tail}"))
    MetricsLog(tmp_path, step=10).append({"step": 11})
    assert steps(path) == [5, 11]


def test_the_line_of_fewer_steps_at_the_end_of_a_stopped_run_is_removed(tmp_path, path):
    kinds = [("train", 9), ("skipped", 11), ("validation", 12), ("train", 13), ("validation", 13)]
    path.write_text("".join(json.dumps({"kind": k, "step": step}) + "\n" for k, step in kinds))
    MetricsLog(tmp_path, step=13, logged_step=9)
    assert steps(path) == [9, 11, 12, 13]
    assert path.read_text().count("train") == 1


@pytest.mark.parametrize("kind", ["train", "validation"])
def test_figures_that_are_read_are_numbers_within_limits(path, tmp_path, kind):
    path.write_text(
        "".join(
            f'{{"kind": "{kind}", "step": {step}, "bleu": {value}}}\n'
            for step, value in [
                *[(1, "1e400"), (2, "NaN"), (3, "-Infinity"), (4, "9" * 5_000), (5, "null")],
                *[(6, "2.5"), (7, "3")],
                *[(8, '"x"'), (9, "[]"), (10, "{}"), (11, "true")],
                *[(-1, "1"), ("true", "1"), ("1.5", "1"), ("1e5", "1"), ("9" * 400, "1")],
            ]
        )
    )
    records = getattr(read_metrics(tmp_path), {"train": "training"}.get(kind, kind))
    assert [(each["step"], each["bleu"]) for each in records] == [
        *[(step, None) for step in (1, 2, 3, 4, 5)],
        *[(6, 2.5), (7, 3)],
        *[(step, None) for step in (8, 9, 10, 11)],
    ]


def test_numbers_that_are_not_finite_are_null(tmp_path, path):
    figures = {"step": 1, "loss": float("nan"), "norm": float("-inf"), "pairs": [1], "kind": "x"}
    MetricsLog(tmp_path, step=0).append(figures)
    record = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert record == figures | {"loss": None, "norm": None}


def test_the_line_of_the_end_of_a_run_is_removed_when_it_continues(tmp_path, path):
    log = MetricsLog(tmp_path, step=0)
    log.append({"step": 1, "kind": "train"})
    log.append({"step": 1, "kind": "end", "state": "stopped"})
    assert read_metrics(tmp_path).end == "stopped"
    MetricsLog(tmp_path, step=1)
    assert read_metrics(tmp_path).end is None
    assert steps(path) == [1]


def test_the_code_of_the_documentation_reads_what_is_written(tmp_path):
    log = MetricsLog(tmp_path, step=0)
    log.append({"kind": "train", "step": 50, "loss": 1.5, "gradient_norm": float("nan")})
    log.append({"kind": "skipped", "step": 51, "loss": "nan", "pairs": [1]})
    log.append({"kind": "validation", "step": 60, "general:bleu": 20.0, "signature": "x"})
    log.append({"kind": "end", "step": 60, "state": "finished"})
    page = Path(__file__).parents[2] / "docs/how-to/watch.md"
    code = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]
    names = {}
    exec(code, names)
    assert list(names["read_metrics"](tmp_path)) == [
        (50, {"train/loss": 1.5}),
        (60, {"validation/general/bleu": 20.0}),
    ]


@pytest.mark.parametrize("room", [0, 13, 25])
def test_lines_are_kept_in_order_until_there_is_room_for_whole_lines(tmp_path, path, capsys, room):
    log = MetricsLog(tmp_path, step=0)
    log.append({"step": 1})
    with limited_files(path.stat().st_size + room):
        for step in (2, 3, 4):
            log.append({"step": step})
            assert steps(path) == [1, 2, 3][: min(step, 1 + room // len('{"step": 2}\n'))]
    log.append({"step": 5})
    assert steps(path) == [1, 2, 3, 4, 5]
    assert path.read_bytes().endswith(b"}\n")
    assert capsys.readouterr().err.count("cannot write") == 1


def test_half_a_line_of_a_failed_attempt_is_removed_before_the_next(tmp_path, path):
    log = MetricsLog(tmp_path, step=0)
    log.append({"step": 1})
    with path.open("a") as file:
        file.write('{"st')
    log.append({"step": 2})
    assert steps(path) == [1, 2]


def test_a_removed_file_is_created_again(tmp_path, path):
    log = MetricsLog(tmp_path, step=0)
    log.append({"step": 1})
    path.unlink()
    log.append({"step": 2})
    assert steps(path) == [2]


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(DataError, match=r"metrics\.jsonl is not a file"):
        MetricsLog(tmp_path, step=0)
