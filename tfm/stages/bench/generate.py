"""tfm bench generate: how fast this machine translates a text with a model."""

import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from tfm import __version__
from tfm.config import InferenceConfig, SearchConfig, settings_to
from tfm.data.subword import Vocabulary
from tfm.errors import DataError, UsageError
from tfm.inference.batches import BatchLimits, Chunk, Output, SentenceBatch
from tfm.inference.engine import Encode, Task, load_engine
from tfm.inference.lines import LineEngine, translate_lines
from tfm.inference.reader import LineReader
from tfm.reporting import Progress, say
from tfm.search.scoring import Hypothesis
from tfm.stages.bench.measurement import (
    PeakMemory,
    device_name,
    forget_peak_memory,
    peak_memory,
    wait_for,
)
from tfm.stages.generate import Generation
from tfm.world import World


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to time.

    Attributes:
        rounds: How often all of it is timed, in turn.
        repeat: How many times over the text is translated in a round.
        latency: Whether to time one sentence at a time, too.
    """

    rounds: int
    repeat: int
    latency: bool


@dataclass(frozen=True, kw_only=True)
class Milliseconds:
    """What something took: the median of all times, and what nine or 99 in a hundred stay below."""

    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Milliseconds":
        """What some times come to."""
        median, p90, p99 = map(float, 1e3 * np.quantile(seconds, [0.5, 0.9, 0.99]))
        return cls(median=median, p90=p90, p99=p99)


@dataclass(frozen=True, kw_only=True)
class Latency:
    """What one sentence takes if it is alone, over all sentences and rounds.

    Attributes:
        sentence: From its text to that of its translation.
        token: The same, by the tokens of the translation.
    """

    sentence: Milliseconds
    token: Milliseconds


@dataclass(frozen=True, kw_only=True)
class GenerateBench:
    """How fast a model translates; of figures by round, the median.

    Attributes:
        version: Of tfm.
        torch: Version of torch.
        device: Name of the device.
        compute: Device and arithmetic, in words.
        num_threads: Threads of torch on the CPU.
        model: The model folder.
        num_parameters: Of the model.
        text: The file that is translated.
        search: All settings of the search.
        plan: What was timed.
        num_sentences: Lines of a round that are not empty.
        num_source_tokens: Their tokens, EOS included.
        num_target_tokens: Tokens of the best translation of each, EOS included.
        sentences_per_second: From text to text, in the order and batches of `tfm generate`.
        source_tokens_per_second: In the same time.
        target_tokens_per_second: In the same time.
        target_tokens_per_second_by_round: The same for each round.
        seconds_to_load: To read the model.
        peak_memory: Bytes, loading included.
        latency: One sentence at a time, if that was timed.
    """

    version: str
    torch: str
    device: str
    compute: str
    num_threads: int
    model: str
    num_parameters: int
    text: str
    search: dict[str, Any]
    plan: Plan
    num_sentences: int
    num_source_tokens: int
    num_target_tokens: int
    sentences_per_second: float
    source_tokens_per_second: float
    target_tokens_per_second: float
    target_tokens_per_second_by_round: list[float]
    seconds_to_load: float
    peak_memory: PeakMemory
    latency: Latency | None

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def bench_generate(
    generation: Generation,
    config: SearchConfig,
    plan: Plan,
    inference: InferenceConfig,
) -> GenerateBench:
    """Time the translation of a text in this process, by what `tfm generate` does it with.

    Before the first round the text is translated once, which is not timed.

    Args:
        generation: A model, and a text in a file.
        config: How to search.
        plan: What to time.
        inference: Where to compute, and how.

    Raises:
        DataError: The text cannot be translated, or has nothing to translate.
        CheckpointError: The model is damaged.
        UsageError: Settings do not suit the device; there are several processes, or no file.
    """
    world = World.from_environment()
    if world.size > 1:
        raise UsageError(
            f"tfm bench generate times a single process, but {world.launcher} has started "
            f"{world.size}: start it without"
        )
    text = generation.source.path
    if text is None:
        raise UsageError("standard input cannot be read twice: give the text with --input")
    with tempfile.TemporaryDirectory(prefix="tfm-bench-") as scratch:
        texts = [Path(scratch) / name for name in ("once", "repeated")]
        for path, times in zip(texts, (1, plan.repeat), strict=True):
            _write_repeated(path, text, times=times)
        bench = _Bench(generation.models[0], inference, config, once=texts[0])
        for number in range(1, plan.rounds + 1):
            bench.time_all(texts[1], name=f"round {number} of {plan.rounds}")
            if plan.latency:
                bench.time_each(name=f"sentence by sentence, {number} of {plan.rounds}")
    return bench.result(plan, text=str(text))


def _write_repeated(path: Path, text: Path, *, times: int) -> None:
    """Write a text several times over, the last line of each closed."""
    content = text.read_bytes()
    if content and not content.endswith(b"\n"):
        content += b"\n"
    with path.open("wb") as file:
        for _ in range(times):
            file.write(content)


@dataclass(kw_only=True)
class _Counts:
    """What was translated: sentences, their tokens, and those of their translations."""

    sentences: int = 0
    source_tokens: int = 0
    target_tokens: int = 0


class _CountingEngine:
    """An engine that counts what it searches for.

    Args:
        engine: What does the work.
    """

    def __init__(self, engine: LineEngine) -> None:
        self._engine = engine
        self.counts = _Counts()

    @property
    def limits(self) -> BatchLimits:
        """As the engine has them."""
        return self._engine.limits

    def map(
        self, task: Task[Output], chunks: Iterable[Chunk], encode: Encode, config: SearchConfig
    ) -> Iterator[tuple[Chunk, dict[int, Output]]]:
        """Let the engine do a search."""

        def counted(chunk: Chunk) -> list[SentenceBatch]:
            batches = encode(chunk)
            sources = [ids for batch in batches for ids in batch.sources]
            self.counts.sentences += len(sources)
            self.counts.source_tokens += sum(len(ids) + 1 for ids in sources)
            return batches

        for chunk, outputs in self._engine.map(task, chunks, counted, config):
            found = cast("Iterable[list[Hypothesis]]", outputs.values())
            self.counts.target_tokens += sum(len(best[0].tokens) + 1 for best in found)
            yield chunk, outputs


class _Bench:
    """A model that is timed; has translated a text once when it is made.

    Args:
        folder: The model's.
        inference: Where to compute, and how.
        config: How to search.
        once: The text, once.
    """

    def __init__(
        self, folder: Path, inference: InferenceConfig, config: SearchConfig, *, once: Path
    ) -> None:
        self._folder = folder
        self._config = config
        started = time.perf_counter()
        self._vocabulary = Vocabulary.load(folder)
        self._engine = load_engine([folder], inference)
        self._compute = self._engine.compute
        wait_for(self._compute.device)
        self._seconds_to_load = time.perf_counter() - started
        forget_peak_memory(self._compute.device)
        say(f"bench generate: {folder} translates, {self._compute}")
        with self._opened(once) as text:
            self._once = list(text)
        if not self._translate(self._once).sentences:
            raise DataError("the text has no line to translate: give another with --input")
        self._rounds: list[tuple[_Counts, float]] = []
        self._each: list[tuple[int, float]] = []

    def time_all(self, path: Path, *, name: str) -> None:
        """Time the translation of a file."""
        with (
            self._opened(path) as text,
            Progress(f"bench generate, {name}", total=None, unit="lines") as bar,
        ):
            started = time.perf_counter()
            counts = self._translate(text, bar)
            seconds = time.perf_counter() - started
        self._rounds.append((counts, seconds))
        say(f"bench generate: {name}: {counts.target_tokens / seconds:,.0f} target tokens/s")

    def time_each(self, *, name: str) -> None:
        """Time the translation of each line of the text by itself."""
        lines = [line for chunk in self._once for line in chunk.lines]
        with Progress(f"bench generate, {name}", total=len(lines), unit="lines") as bar:
            for number, line in enumerate(lines, start=1):
                started = time.perf_counter()
                counts = self._translate([Chunk(first_line=number, lines=[line])])
                seconds = time.perf_counter() - started
                if counts.sentences:
                    self._each.append((counts.target_tokens, seconds))
                bar.update()

    def result(self, plan: Plan, *, text: str) -> GenerateBench:
        """What was measured.

        Args:
            plan: What was timed.
            text: What the text is called.
        """
        counts = self._rounds[0][0]

        def rates(name: str) -> list[float]:
            return [getattr(each, name) / seconds for each, seconds in self._rounds]

        return GenerateBench(
            version=__version__,
            torch=torch.__version__,
            device=device_name(self._compute.device),
            compute=str(self._compute),
            num_threads=torch.get_num_threads(),
            model=str(self._folder),
            num_parameters=self._engine.num_parameters,
            text=text,
            search=settings_to(self._config),
            plan=plan,
            num_sentences=counts.sentences,
            num_source_tokens=counts.source_tokens,
            num_target_tokens=counts.target_tokens,
            sentences_per_second=statistics.median(rates("sentences")),
            source_tokens_per_second=statistics.median(rates("source_tokens")),
            target_tokens_per_second=statistics.median(rates("target_tokens")),
            target_tokens_per_second_by_round=rates("target_tokens"),
            seconds_to_load=self._seconds_to_load,
            peak_memory=peak_memory(self._compute.device),
            latency=self._latency() if plan.latency else None,
        )

    def _latency(self) -> Latency:
        return Latency(
            sentence=Milliseconds.of([seconds for _, seconds in self._each]),
            token=Milliseconds.of([seconds / num_tokens for num_tokens, seconds in self._each]),
        )

    def _opened(self, path: Path) -> LineReader:
        return LineReader(path, None, chunk_lines=self._engine.limits.chunk_lines)

    def _translate(self, chunks: Iterable[Chunk], bar: Progress | None = None) -> _Counts:
        """Translate chunks of lines; returns what there was to translate."""
        engine = _CountingEngine(self._engine)
        for chunk, _ in translate_lines(engine, self._vocabulary, chunks, self._config):
            if bar is not None:
                bar.update(len(chunk.lines))
        return engine.counts
