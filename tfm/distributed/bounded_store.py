"""A store of torch whose requests end.

Torch's own wait for ever for an answer where a cable is cut, or a machine stopped.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from tfm.distributed.failures import GO_ON, FailedProcessError

POLL_SECONDS = 0.1

Answer = TypeVar("Answer")


class BoundedStore(Store):
    """What the launchers of many machines, elastic's code among them, ask of a store at machine 0.

    Every method raises FailedProcessError if there is no answer in time; from then on at once.

    Args:
        store: Where requests go.
        place: Where it is, for the user.
        timeout: How long an answer may take, and what others are to set.
    """

    def __init__(self, store: Store, place: str, timeout: timedelta) -> None:
        super().__init__()
        self._store = store
        self._place = place
        self._answer_seconds = timeout.total_seconds()
        self._timeout = timeout
        self._loss: str | None = None

    @property
    def timeout(self) -> timedelta:
        """How long to wait for what others are to set."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """See `timeout`."""
        self._timeout = timeout

    def set(self, key: str, value: str) -> None:
        """See torch."""
        self._ask(partial(self._store.set, key, value))

    def get(self, key: str) -> bytes:
        """See torch."""
        self.wait([key])
        return self._ask(partial(self._store.get, key))

    def add(self, key: str, value: int) -> int:
        """See torch."""
        return self._ask(partial(self._store.add, key, value))

    def check(self, keys: list[str]) -> bool:
        """See torch."""
        return self._ask(partial(self._store.check, keys))

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """See torch."""
        return self._ask(partial(self._store.compare_set, key, expected_value, desired_value))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Ask again and again: a request of torch that waits keeps all others waiting."""
        seconds = (timeout or self._timeout).total_seconds()
        deadline = time.monotonic() + seconds
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise FailedProcessError(
                    f"a machine of those that met at {self._place} has not been heard for "
                    f"{seconds:.0f} s: {GO_ON}, on all machines"
                )
            time.sleep(POLL_SECONDS)

    def _ask(self, request: Callable[[], Answer]) -> Answer:
        if self._loss is None:
            try:
                return answer_within(self._answer_seconds, request)
            except TimeoutError:
                self._loss = f"has not answered for {self._answer_seconds:.0f} s"
            except dist.DistError:
                self._loss = "is gone"
        raise FailedProcessError(
            f"machine 0 at {self._place} {self._loss}: {GO_ON}, on all machines"
        )


def answer_within(seconds: float, request: Callable[[], Answer]) -> Answer:
    """Make a request that may never return, and if it does not, leave it to its thread.

    Raises:
        TimeoutError: It has not returned.
    """
    answer: Future[Answer] = Future()
    threading.Thread(target=_make, args=(request, answer), daemon=True).start()
    # By turns, as time for which this process is itself stopped does not count: it ends one turn.
    for _ in range(max(1, round(seconds / POLL_SECONDS))):
        if wait([answer], timeout=POLL_SECONDS).done:
            return answer.result()
    raise TimeoutError(f"no answer within {seconds:.0f} s")


def _make(request: Callable[[], Answer], answer: Future[Any]) -> None:
    try:
        answer.set_result(request())
    except Exception as error:
        answer.set_exception(error)
