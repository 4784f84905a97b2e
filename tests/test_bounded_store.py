"""Requests to a store that end, whatever becomes of the store."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed.elastic.utils.store import barrier

from tfm.distributed.bounded_store import BoundedStore, answer_within
from tfm.distributed.failures import FailedProcessError


def bounded(store, seconds=20.0):
    return BoundedStore(store, "host:1", timedelta(seconds=seconds))


class Silent(dist.HashStore):
    """Never answers, and counts the requests."""

    requests = 0

    def check(self, keys):
        self.requests += 1
        threading.Event().wait()


class Gone(dist.HashStore):
    def check(self, keys):
        raise dist.DistNetworkError("connection reset by peer")


def test_requests_are_answered_as_by_the_store_itself():
    store = bounded(dist.HashStore())
    store.set("a", "1")
    assert store.get("a") == b"1"
    assert (store.add("n", 2), store.add("n", 3)) == (2, 5)
    assert (store.check(["a"]), store.check(["a", "b"])) == (True, False)
    assert (store.compare_set("b", "", "2"), store.compare_set("b", "", "3")) == (b"2", b"2")
    store.multi_set(["c", "d"], ["4", "5"])
    assert store.multi_get(["c", "d"]) == [b"4", b"5"]


def test_elastic_meets_in_it():
    store = bounded(dist.HashStore())
    other = threading.Thread(target=barrier, args=(store, 2, "key", 20))
    other.start()
    barrier(store, 2, "key", 20)
    other.join()
    assert store.timeout == timedelta(seconds=20)


def test_no_answer_is_the_loss_of_machine_0_from_then_on():
    silent = Silent()
    store = bounded(silent, 0.2)
    for _ in range(3):
        with pytest.raises(FailedProcessError, match=r"^machine 0 at host:1 has not answered for"):
            store.check(["a"])
    assert silent.requests == 1


def test_a_store_that_is_gone_is_the_loss_of_machine_0():
    with pytest.raises(FailedProcessError, match=r"^machine 0 at host:1 is gone: the same command"):
        bounded(Gone()).get("a")


def test_what_nobody_sets_is_not_waited_for_for_ever():
    store = bounded(dist.HashStore(), 0.2)
    for wait in (store.get, lambda key: store.multi_get([key]), lambda key: store.wait([key])):
        with pytest.raises(FailedProcessError, match="a machine of those that met at host:1 has"):
            wait("a")
    with pytest.raises(FailedProcessError):
        bounded(dist.HashStore()).wait(["a"], timedelta(seconds=0.2))


def test_who_waits_for_a_key_keeps_nobody_else_waiting():
    tcp_store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store, got = bounded(tcp_store, 5), []
    waits = threading.Thread(target=lambda: got.append(store.get("a")))
    waits.start()
    time.sleep(0.2)
    store.set("a", "1")
    waits.join()
    assert got == [b"1"]


def test_what_a_request_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        answer_within(1, lambda: 1 / 0)


_ASKS = """
import sys
from tfm.distributed.bounded_store import answer_within
print("asks", flush=True)
print(answer_within(2, sys.stdin.readline), flush=True)
"""


def test_time_for_which_a_process_is_stopped_does_not_count():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _ASKS], **pipes) as asking:
        assert asking.stdout.readline() == "asks\n"
        time.sleep(0.3)
        os.kill(asking.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(asking.pid, signal.SIGCONT)
        time.sleep(0.3)
        assert asking.communicate("an answer\n")[0].strip() == "an answer"
