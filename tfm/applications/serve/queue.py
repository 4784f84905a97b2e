"""The requests that wait for a model."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException

from tfm.config import SearchConfig
from tfm.translation.steps import Output

# Source terms with their translations.
Terms = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LineConfig:
    """How lines are translated; lines with equal settings may share a batch.

    Attributes:
        search: Settings of the search.
        terms: The glossary of a request.
        prefix: What translations begin with.
    """

    search: SearchConfig
    terms: Terms = ()
    prefix: str | None = None


# Returns the `n_best` translations of each line, best first.
Translate = Callable[[Sequence[str], LineConfig], list[list[Output]]]

_COST_OF_TERMS = 8  # times as long may a search with a glossary take, so its batches are smaller


@dataclass(eq=False)
class _Job:
    """The lines of a request; the first `num_taken` are translated or in the current batch."""

    lines: Sequence[str]
    config: LineConfig
    answer: "asyncio.Future[list[list[Output]]]"
    outputs: list[list[Output]] = field(default_factory=list)
    num_taken: int = 0

    @property
    def has_more(self) -> bool:
        """Whether lines are left to translate, and the client still waits."""
        return self.num_taken < len(self.lines) and not self.answer.done()

    def num_characters(self) -> int:
        """Return the number of characters to take."""
        return sum(map(len, self.lines[self.num_taken :]))

    def take(self, num_characters: int) -> Sequence[str]:
        """Return the next line, and further lines while all have at most `num_characters`."""
        start = self.num_taken
        for line in self.lines[start:]:
            num_characters -= len(line)
            if num_characters < 0 and self.num_taken > start:
                break
            self.num_taken += 1
        return self.lines[start : self.num_taken]


class TranslationQueue:
    """Requests that wait for a model; all methods are called in one event loop.

    While the thread translates a batch, further requests arrive, which form the next batch. Each
    request gets an equal share of its characters, so that long texts do not delay short ones.

    Args:
        translate: Translates lines with the model; runs in the thread.
        thread: The only thread that computes with the model.
        batch_characters: Maximum number of characters of a batch, unless a single line is longer.
        max_requests: Maximum number of requests that wait or are translated.
    """

    def __init__(
        self, translate: Translate, thread: Executor, *, batch_characters: int, max_requests: int
    ) -> None:
        self._translate, self._thread = translate, thread
        self._batch_characters, self._max_requests = batch_characters, max_requests
        self._jobs: list[_Job] = []
        self._num_requests = 0
        self._task: asyncio.Task[None] | None = None
        self.num_batches = self.num_lines = 0

    def __len__(self) -> int:
        """Return the number of requests that wait or are translated."""
        return self._num_requests

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count a request during the block."""
        if self._num_requests >= self._max_requests:
            message = f"{self._max_requests:,} requests wait already: try again later"
            raise HTTPException(503, message, {"Retry-After": "1"})
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1

    async def translate(self, lines: Sequence[str], config: LineConfig) -> list[list[Output]]:
        """Translate the lines of a request; cancelling drops the lines that are left."""
        if not lines:
            return []
        job = _Job(lines, config, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._translate_all())
        try:
            return await job.answer
        finally:
            self._jobs.remove(job)

    async def _translate_all(self) -> None:
        while parts := self._next_batch():
            await self._translate_batch(parts)

    def _next_batch(self) -> list[tuple[_Job, Sequence[str]]]:
        """Take lines for a batch, of the job that waited longest and others with its settings."""
        waiting = [job for job in self._jobs if job.has_more]
        chosen: list[_Job] = []
        limit = self._batch_characters
        if waiting and waiting[0].config.terms:
            limit //= _COST_OF_TERMS
        num_free = limit
        for job in waiting:
            if job.config == waiting[0].config:
                num_free -= len(job.lines[job.num_taken])
                if num_free < 0 and chosen:
                    break
                chosen.append(job)
        parts = []
        num_free = limit
        for position, job in enumerate(sorted(chosen, key=_Job.num_characters)):
            lines = job.take(num_free // (len(chosen) - position))
            num_free -= sum(map(len, lines))
            parts.append((job, lines))
        # The others are first in the next batch.
        self._jobs.sort(key=lambda job: job in chosen)
        return parts

    async def _translate_batch(self, parts: Sequence[tuple[_Job, Sequence[str]]]) -> None:
        """Translate parts of jobs together, or one by one if the translation fails."""
        lines = [line for _, part in parts for line in part]
        config = parts[0][0].config
        loop = asyncio.get_running_loop()
        try:
            translated = await loop.run_in_executor(self._thread, self._translate, lines, config)
        except Exception as error:  # raised again for the request that caused it
            if len(parts) > 1:
                for each in parts:
                    await self._translate_batch([each])
            elif not parts[0][0].answer.done():
                parts[0][0].answer.set_exception(error)
            return
        self.num_batches += 1
        self.num_lines += len(lines)
        remaining = iter(translated)
        for job, part in parts:
            job.outputs += [next(remaining) for _ in part]
            if len(job.outputs) == len(job.lines) and not job.answer.done():
                job.answer.set_result(job.outputs)
