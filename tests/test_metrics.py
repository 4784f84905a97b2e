"""metrics.jsonl: appended to, and cut back to where a run resumes."""

import json

import pytest

from tfm.runtime.metrics import MetricsLog


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_are_appended_as_they_come(tmp_path, path):
    log = MetricsLog(tmp_path, step=0)
    for step in (1, 2):
        log.append({"step": step, "loss": 1.5})
        assert steps(path)[-1] == step
    assert steps(path) == [1, 2]


def test_lines_after_the_resumed_step_are_removed(tmp_path, path):
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (5, 10, 10, 15, 12)))
    MetricsLog(tmp_path, step=10).append({"step": 11})
    assert steps(path) == [5, 10, 10, 11]


@pytest.mark.parametrize("tail", ['{"step": 1', '{"loss": 1}\n', "\0\0\0", "[]\n", "{}", "nul"])
def test_a_line_that_a_crash_cut_short_is_removed(tmp_path, path, tail):
    path.write_text('{"step": 5}\n' + tail)
    MetricsLog(tmp_path, step=10).append({"step": 11})
    assert steps(path) == [5, 11]


def test_a_line_without_its_end_gets_one(tmp_path, path):
    path.write_text('{"step": 5}')
    MetricsLog(tmp_path, step=10).append({"step": 11})
    assert steps(path) == [5, 11]


def test_a_log_that_fits_is_left_alone(tmp_path, path):
    path.write_text('{"step": 5}\n')
    before = path.stat()
    MetricsLog(tmp_path, step=5)
    assert path.stat().st_ino == before.st_ino
