"""Who keeps the others from coming on, and how it is told."""

import os
import subprocess
import sys
import time

import pytest

from tfm.distributed.standing import Standing, Watched, not_coming_on, process_state, stack_of


def watched(rank, *, posted, beaten, waits=False, left=False):
    return Watched(Standing(rank=rank, turn=1, waits=waits, left=left), posted, beaten)


def blamed(*processes):
    named = not_coming_on(list(processes), now=100.0, timeout_seconds=10.0)
    return [process.standing.rank for process in named]


def test_who_waits_for_a_process_that_comes_on_is_not_to_blame():
    validating = watched(0, posted=99.0, beaten=99.0)
    waiting = watched(1, posted=99.0, beaten=50.0, waits=True)
    assert blamed(validating, waiting) == []


def test_who_stays_in_work_of_its_own_is_to_blame_and_not_who_waits_for_it():
    stuck = watched(0, posted=99.0, beaten=60.0)
    waiting = watched(1, posted=99.0, beaten=50.0, waits=True)
    assert blamed(stuck, waiting) == [0]


def test_who_is_silent_is_to_blame_even_if_it_waited():
    silent = watched(0, posted=89.0, beaten=89.0, waits=True)
    stuck = watched(1, posted=99.0, beaten=50.0)
    assert blamed(silent, stuck) == [0]


def test_where_all_wait_all_are_named():
    waiting = [watched(rank, posted=99.0, beaten=80.0, waits=True) for rank in range(3)]
    assert blamed(*waiting) == [0, 1, 2]
    assert blamed(*waiting[:2], watched(2, posted=99.0, beaten=95.0, waits=True)) == []


def test_who_has_left_in_order_is_not_missed():
    left = watched(0, posted=10.0, beaten=10.0, left=True)
    assert blamed(left, watched(1, posted=99.0, beaten=99.0)) == []
    assert blamed(left, watched(1, posted=99.0, beaten=80.0, waits=True)) == [1]


def test_a_stack_is_the_innermost_call_and_those_of_this_package():
    frames = []

    class Text(str):
        def __str__(self):
            frames.append(sys._getframe())
            return "1"

    def within_a_call_of_the_package():
        standing = Standing(rank=Text(), turn=1)
        Watched(standing, 0.0, 0.0).in_words(now=1.0, timeout_seconds=2.0, here="")

    within_a_call_of_the_package()
    innermost, *callers = stack_of(frames[0]).split(" ← ")
    assert innermost.startswith("tests/test_standing.py:")
    assert [caller.split(":")[0] for caller in callers] == ["tfm/distributed/standing.py"]
    assert stack_of(None) == "its end"


def test_words_about_a_process_say_who_it_is_and_where_it_stands():
    standing = Standing(
        rank=3, host="far", pid=7, turn=2, phase="step 5: sums", waits=True, stack="a.py:1 read"
    )
    process = Watched(standing, posted_at=20.0, beaten_at=10.0)
    place = "it waits for the others in step 5: sums, at a.py:1 read"
    said = process.in_words(now=21.0, timeout_seconds=5.0, here="near")
    assert said == f"rank 3 (host far, process 7) has not come on for 11 s: {place}"
    said = process.in_words(now=30.0, timeout_seconds=5.0, here="near")
    assert said == f"rank 3 (host far, process 7) has not been heard of for 10 s: {place}"


def test_a_process_that_never_posted_has_not_begun():
    said = Watched(Standing(rank=2), 1.0, 1.0).in_words(now=9.0, timeout_seconds=5.0, here="near")
    assert said == "rank 2 has not begun for 8 s"


@pytest.mark.skipif(sys.platform != "linux", reason="states of processes are Linux's")
def test_a_process_that_does_not_run_is_told_from_one_that_does():
    assert process_state(os.getpid()) is None
    process = subprocess.Popen(["true"])
    deadline = time.monotonic() + 10
    while process_state(process.pid) != "is dead":  # nobody has asked for its exit code yet
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.wait()
    assert process_state(process.pid) == "is gone"
