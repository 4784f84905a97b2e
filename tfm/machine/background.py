"""Running work in background threads: once, ahead of its use, or joined at exit."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")
ArgumentT = TypeVar("ArgumentT")


def run_in_thread(work: Callable[[], T]) -> "Future[T]":
    """Run work in a daemon thread, which does not delay exit as a thread of an executor does."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # such as SystemExit: the result may be awaited
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def read_ahead(items: Iterable[T], *, joins: bool = False) -> Iterator[T]:
    """Yield items that are not None, each computed in a thread while the item before is in use.

    If `joins`, closing the iterator early waits for the thread: a thread that uses a GPU while the
    interpreter exits aborts the process.
    """
    take = partial(next, iter(items), None)
    upcoming = run_in_thread(take)
    try:
        while (item := upcoming.result()) is not None:
            upcoming = run_in_thread(take)
            yield item
    finally:
        if joins:
            upcoming.exception()


def joined_at_exit(work: Callable[[ArgumentT], T]) -> Callable[[ArgumentT], T]:
    """Return a function that does work in a thread; the interpreter joins the thread at exit.

    Called in a daemon thread, it keeps that thread out of C++ libraries: a daemon thread that is in
    them when the interpreter ends aborts the process.
    """
    executor = ThreadPoolExecutor(1)
    return lambda argument: executor.submit(work, argument).result()
