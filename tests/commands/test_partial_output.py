"""Output files that are continued after their process was stopped."""

import subprocess
import sys
from contextlib import suppress

import pytest

from tfm.errors import UsageError
from tfm.translation import partial_output
from tfm.translation.partial_output import PartialOutput
from tfm.translation.steps import Segment

LINES = ["one", "two", "", "four", "fünf", "six"]
INPUTS = "12ab"


def segments(lines, given=None):
    """Return lines, with the characters that are given of each."""
    return [Segment(1, line, given and given[i]) for i, line in enumerate(lines)]


class StoppedError(Exception):
    """What stops a call."""


def copy_lines(path, lines=LINES, *, stop_after=None, size=2, inputs=INPUTS, torn=""):
    """Write lines in blocks of two outputs a line; return the number that was found there."""
    with PartialOutput(path, inputs) as output:
        num_found = output.num_lines
        list(output.verified([segments(lines[:1]), segments(lines[1:])]))
        for start in range(num_found, len(lines), size):
            if start == stop_after:
                output.stream.write(torn)
                raise StoppedError
            block = lines[start : start + size]
            output.stream.write("".join(f"{line}\n{line}!\n" for line in block))
            output.commit(segments(block))
    return num_found


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def stopped(path):
    """A file of which four lines were written before the process was stopped."""
    with pytest.raises(StoppedError):
        copy_lines(path, stop_after=4, torn="fünf\nfü")
    return path


def names(path):
    return sorted(each.name for each in path.parent.iterdir())


def test_a_stopped_output_is_continued_after_its_last_whole_line(stopped, tmp_path):
    assert names(stopped) == ["out.partial", "out.partial.json"]
    assert copy_lines(stopped) == 4
    assert names(stopped) == ["out"]
    copy_lines(tmp_path / "whole")
    assert stopped.read_bytes() == (tmp_path / "whole").read_bytes()


def test_an_output_is_continued_after_a_call_that_only_verified_it(stopped):
    with suppress(StoppedError), PartialOutput(stopped, INPUTS) as output:
        next(output.verified([segments(LINES[:1])]))
        raise StoppedError
    assert copy_lines(stopped) == 4


def test_lines_after_the_last_record_are_written_again(path, monkeypatch):
    monkeypatch.setattr(partial_output, "_RECORD_SECONDS", 1e9)
    monkeypatch.setattr(PartialOutput, "_stop", lambda self, _: self.stream.close())  # a kill
    with pytest.raises(StoppedError):
        copy_lines(path, stop_after=4)
    monkeypatch.undo()
    assert (path.parent / "out.partial").stat().st_size > 0
    assert copy_lines(path) == 0
    assert path.read_text().splitlines()[::2] == LINES


def test_a_call_that_completes_no_line_leaves_nothing(path):
    path.write_text("older")
    with pytest.raises(StoppedError):
        copy_lines(path, stop_after=0, torn="on")
    assert names(path) == ["out"]
    assert path.read_text() == "older"


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": "12ac"},
        {"lines": ["1", *LINES[1:]]},
        {"lines": [*LINES[:3], "vier", *LINES[4:]]},
        {"lines": LINES[:3]},
    ],
)
def test_an_output_of_other_text_or_settings_is_refused_and_kept(stopped, changes):
    with pytest.raises(UsageError, match=r"its 4 lines are of other text, settings.*; delete it"):
        copy_lines(stopped, **changes)
    assert copy_lines(stopped) == 4


def test_lines_and_paired_lines_are_not_interchangeable(path):
    with suppress(StoppedError), PartialOutput(path, "") as output:
        output.stream.write("x\n")
        output.commit(segments("ab", "cd"))
        raise StoppedError
    for columns in (("ac", "bd"), ("cd", "ab"), ("ab", "ce")):
        with pytest.raises(UsageError), PartialOutput(path, "") as output:
            list(output.verified([segments(*columns)]))
    with PartialOutput(path, "") as output:
        list(output.verified([segments("ab", "cd")]))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("out.partial.json", None, "its record .* is missing"),
        ("out.partial.json", "[]", ".*json is damaged"),
        ("out.partial.json", '{"format": 9}', ".*json has format 9, but this tfm reads format 1"),
        ("out.partial.json", '{"format": 1}', ".*json is damaged"),
        ("out.partial", "one\n", "it is shorter than"),
        ("out.partial", "ONE" + "\n" * 99, "its content has changed since it was written"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(stopped, file, content, reason):
    changed = stopped.with_name(file)
    changed.unlink()
    if content is not None:
        changed.write_text(content)
    with pytest.raises(UsageError, match=f"cannot continue .*out.partial: {reason}"):
        copy_lines(stopped)


def test_a_record_is_no_obstacle_without_an_output_unless_it_is_another_file(stopped):
    stopped.with_name("out.partial").unlink()
    assert copy_lines(stopped) == 0
    stopped.with_name("out.partial.json").write_text("mine")
    with pytest.raises(UsageError, match=r"json is damaged"):
        copy_lines(stopped)
    assert stopped.with_name("out.partial.json").read_text() == "mine"


def test_a_link_is_followed(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    path.symlink_to("elsewhere/target")
    copy_lines(path)
    assert path.is_symlink()
    assert (tmp_path / "elsewhere" / "target").read_text().startswith("one\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_two_processes_never_write_to_one_output(path):
    source = f"""
import pathlib
from tfm.errors import TfmError
from tfm.translation.partial_output import PartialOutput
try:
    PartialOutput(pathlib.Path({str(path)!r}), '').__enter__()
except TfmError as error:
    print(error)
"""
    with PartialOutput(path, ""):
        out = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True
        ).stdout
    assert "out.partial is being written to by another process" in out
