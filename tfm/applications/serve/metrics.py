"""Numbers of requests and times to answer them, as Prometheus reads them."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Upper limits of the times to answer, in seconds.
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RequestMetrics:
    """ASGI middleware that counts requests and measures the time to answer them.

    Args:
        app: The application.
        paths: The paths to count by themselves; others are counted together.
    """

    def __init__(self, app: ASGIApp, paths: Iterable[str]) -> None:
        self._app, self._paths = app, frozenset(paths)
        self._counts: Counter[tuple[str, int]] = Counter()  # by path and status
        self._durations = [0] * (len(_BUCKETS) + 1)  # of successful translations
        self._seconds = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counts[path, message["status"]] += 1
                if path == "/translate" and message["status"] == 200:
                    seconds = time.monotonic() - started
                    self._durations[bisect_left(_BUCKETS, seconds)] += 1
                    self._seconds += seconds
            await send(message)

        await self._app(scope, receive, count)

    def lines(self) -> Iterator[str]:
        """Yield the lines of all metrics, in the text format of Prometheus."""
        counts = {
            f'{{path="{path}",status="{status}"}}': count
            for (path, status), count in sorted(self._counts.items())
        }
        yield from metric("tfm_requests_total", "Answered requests.", counts)
        name = "tfm_translate_seconds"
        numbers = list(accumulate(self._durations))
        limits = [*(f"{limit:g}" for limit in _BUCKETS), "+Inf"]
        yield f"# HELP {name} Time to answer the translations that succeeded."
        yield f"# TYPE {name} histogram"
        for limit, number in zip(limits, numbers, strict=True):
            yield f'{name}_bucket{{le="{limit}"}} {number}'
        yield f"{name}_sum {self._seconds:.6f}"
        yield f"{name}_count {numbers[-1]}"


def metric(name: str, meaning: str, samples: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of a metric: a counter if its name ends with _total, or else a gauge."""
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
    for labels, value in samples.items():
        yield f"{name}{labels} {value}"
