"""Work in threads: order, errors, and how far it runs ahead."""

import itertools
import sys
import threading
import time
from concurrent.futures import thread as futures_thread

import pytest

from tfm.machine.background import joined_at_exit, read_ahead, run_in_thread

WAIT = 30  # seconds


def test_a_thread_returns_its_result_or_error():
    assert run_in_thread(lambda: threading.current_thread().daemon).result()
    with pytest.raises(ValueError, match="invalid literal"):
        run_in_thread(lambda: int("x")).result()
    with pytest.raises(SystemExit):
        run_in_thread(sys.exit).result(WAIT)


def test_work_that_the_exit_awaits_is_done_in_one_thread_of_its_own():
    seen = joined_at_exit(lambda _: threading.current_thread())
    assert run_in_thread(lambda: seen(1)).result() is seen(2) is not threading.current_thread()
    assert seen(3) in futures_thread._threads_queues  # which the interpreter awaits
    with pytest.raises(ValueError, match="invalid literal"):
        joined_at_exit(int)("x")


def test_items_and_errors_keep_their_order():
    assert list(read_ahead(iter(range(100)))) == list(range(100))
    assert list(read_ahead([])) == []
    quotients = read_ahead(1 / number for number in (1, 2, 0))
    assert list(itertools.islice(quotients, 2)) == [1, 0.5]
    with pytest.raises(ZeroDivisionError):
        next(quotients)


def test_the_next_item_is_computed_while_one_is_in_use():
    started = [threading.Event() for _ in range(4)]

    def items():
        for number, event in enumerate(started):
            event.set()
            yield number

    taken = read_ahead(items())
    assert not started[0].is_set()
    assert next(taken) == 0
    assert started[1].wait(WAIT)
    assert not started[2].is_set()  # only one item ahead
    assert next(taken) == 1
    assert started[2].wait(WAIT)


def test_an_item_is_yielded_though_the_next_one_never_comes():
    blocked = threading.Event()

    def items():
        yield "first"
        blocked.wait(WAIT)

    assert next(read_ahead(items())) == "first"
    blocked.set()


def test_a_reader_that_joins_is_closed_after_its_thread():
    ended = threading.Event()

    def items():
        yield "first"
        time.sleep(0.2)
        ended.set()
        yield "second"

    taken = read_ahead(items(), joins=True)
    assert next(taken) == "first"
    taken.close()
    assert ended.is_set()
