"""Work in a daemon thread."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

T = TypeVar("T")


def run_in_thread(work: Callable[[], T]) -> "Future[T]":
    """Run work in a daemon thread, which does not delay exit as a thread of an executor does."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield items that are not None, each computed in a thread while the one before is in use."""
    take = partial(next, iter(items), None)
    upcoming = run_in_thread(take)
    while (item := upcoming.result()) is not None:
        upcoming = run_in_thread(take)
        yield item
