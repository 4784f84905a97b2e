"""A watchdog over the processes of a run: it names a rank that makes no progress, once."""

import re
import signal
import threading
import time

import pytest
import torch.distributed as dist

from tfm.machine.watchdog import RankStatus, Watchdog, stalled_ranks
from tfm.machine.world import World

TIMEOUT = 1.0

# A rank that makes progress for a minute. With port 0, it hosts the store.
WORKER = """
import sys, time
from torch.distributed import TCPStore
from tfm.machine.watchdog import Watchdog
from tfm.machine.world import World

rank, port = int(sys.argv[1]), int(sys.argv[2])
store = TCPStore("127.0.0.1", port, is_master=port == 0, wait_for_workers=False)
world = World(rank=rank, size=2, local_rank=rank, local_size=2)
print(store.port, flush=True)
store.add("here", 1)
while store.add("here", 0) < 2:
    time.sleep(0.01)
has_printed = False
with Watchdog(world, store, timeout_seconds=1.0) as watchdog:
    for step in range(6000):
        watchdog.heartbeat(f"step {step}")
        if step and not has_printed and all(status.post for status in watchdog._statuses):
            print("together", flush=True)
            has_printed = True
        time.sleep(0.01)
"""


def run_ranks(*actions):
    """Run one action per rank, in threads.

    Return rank, message and whether it is a consequence, for each rank that the watchdog ends.
    """
    store, messages = dist.HashStore(), []

    def run(rank):
        world = World(rank=rank, size=len(actions), local_rank=rank, local_size=len(actions))
        watchdog = Watchdog(
            world,
            store,
            timeout_seconds=TIMEOUT,
            fail=lambda message, is_consequence: messages.append((rank, message, is_consequence)),
        )
        with watchdog:
            actions[rank](watchdog)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return messages


def make_progress(watchdog, seconds=2 * TIMEOUT):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watchdog.heartbeat("step 1, microbatch 1 of 3")
        time.sleep(TIMEOUT / 20)


def read_forever(watchdog):
    watchdog.heartbeat("step 1, microbatch 2 of 3")
    time.sleep(2 * TIMEOUT)


def wait_for_others(watchdog):
    watchdog.heartbeat("step 1, sum of gradients", waits=True)
    time.sleep(2 * TIMEOUT)


def test_ranks_may_end_at_different_times():
    assert run_ranks(make_progress, lambda watchdog: watchdog.heartbeat("done")) == []


def test_rank_0_names_the_stalled_rank_and_its_phase():
    messages = run_ranks(wait_for_others, read_forever, wait_for_others)
    assert sorted((rank, is_consequence) for rank, _, is_consequence in messages) == [
        (0, False),
        (1, True),
        (2, True),
    ]
    [message] = {message for _, message, _ in messages}
    assert re.match(
        r"rank 1 \(host \S+, process \d+\) has made no progress for [12] s, last reported 0 s ago: "
        r"it is in step 1, microbatch 2 of 3; run the same command again",
        message,
    )
    assert "rank 0" not in message
    assert "rank 2" not in message


WAITS, LEFT = {"waits": True}, {"seen_at": 10.0, "left": True}


@pytest.mark.parametrize(
    ("ranks", "stalled"),
    [
        ([{}, {"idle_seconds": 50.0} | WAITS], []),  # another makes progress
        ([{"idle_seconds": 40.0}, {"idle_seconds": 50.0} | WAITS], [0]),  # waits for the other
        ([{"seen_at": 89.0} | WAITS, {"idle_seconds": 50.0}], [0]),  # silent
        ([{"idle_seconds": 20.0} | WAITS] * 3, [0, 1, 2]),
        ([{"idle_seconds": 20.0} | WAITS] * 2 + [{"idle_seconds": 5.0} | WAITS], []),
        ([LEFT, {}], []),
        ([LEFT, {"idle_seconds": 20.0} | WAITS], [1]),
    ],
)
def test_stalled_is_who_is_silent_or_keeps_the_others_waiting(ranks, stalled):
    usual = {"post": 1, "seen_at": 99.0, "idle_seconds": 0.0, "waits": False, "left": False}
    statuses = [RankStatus(**usual | {"rank": i} | facts) for i, facts in enumerate(ranks)]
    found = stalled_ranks(statuses, now=100.0, timeout_seconds=10.0)
    assert [status.rank for status in found] == stalled


@pytest.fixture
def start(fork_python):
    """Start a rank of a run, given the port of its store."""
    processes = []

    def start_rank(rank, port):
        process = fork_python(WORKER, rank, port)
        processes.append(process)
        return process

    yield start_rank
    for process in processes:
        process.kill()
        process.communicate()


def port_of(process):
    return int(process.readline())


def wait_until_running(*processes):
    for process in processes:
        while process.readline() != "together\n":
            assert process.poll() is None


def test_a_stopped_rank_0_is_named_by_rank_1(start):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stopped, left = started = [start(rank, store.port) for rank in (0, 1)]
    wait_until_running(*started)
    stopped.send_signal(signal.SIGSTOP)
    _, errors = left.communicate(timeout=15)
    assert left.returncode == 1
    assert re.match(
        rf"tfm: rank 0 \(host \S+, process {stopped.pid}\) has made no progress for 1 s, last "
        r"reported 1 s ago: it is in step \d+; run the same command again .*\n$",
        errors,
    )


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_losing_the_process_that_hosts_the_store_ends_the_run(start, number):
    first = start(0, 0)
    second = start(1, port_of(first))
    wait_until_running(first, second)
    first.send_signal(number)
    _, errors = second.communicate(timeout=15)
    assert second.returncode == 1
    [line] = errors.splitlines()
    assert re.match(r"tfm: rank 1 \(host \S+\) got no answer from the rendezvous for 1 s: ", line)


def test_a_process_that_was_itself_stopped_blames_nobody(start):
    first = start(0, 0)
    second = start(1, port_of(first))
    wait_until_running(first, second)
    for process in (first, second):
        process.send_signal(signal.SIGSTOP)
    time.sleep(1.3)
    for process in (first, second):
        process.send_signal(signal.SIGCONT)
    time.sleep(1)
    assert first.poll() is None
    assert second.poll() is None
