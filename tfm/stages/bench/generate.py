"""tfm bench generate: translation speed of a model on this machine."""

import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfm.config import InferenceConfig, SearchConfig, settings_to
from tfm.errors import DataError, UsageError
from tfm.inference.batches import Chunk, SentenceEncoder
from tfm.inference.engine import load_engine, load_vocabulary
from tfm.inference.lines import decode
from tfm.inference.reader import LineReader
from tfm.reporting import Progress, say
from tfm.stages.bench import measurement
from tfm.stages.generate_plan import Generation
from tfm.storage.checkpoint.model_folder import load_info


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to time."""

    rounds: int
    repeat: int  # times that the text is translated in a round
    latency: bool  # also time single sentences


@dataclass(frozen=True, kw_only=True)
class Milliseconds:
    """Quantiles of some times, in milliseconds."""

    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Milliseconds":
        """Compute the quantiles of times in seconds."""
        median, p90, p99 = map(float, 1e3 * np.quantile(seconds, [0.5, 0.9, 0.99]))
        return cls(median=median, p90=p90, p99=p99)


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Time to translate single sentences, over all sentences and rounds."""

    sentence: Milliseconds  # from source text to target text
    token: Milliseconds  # the same, divided by the number of target tokens


@dataclass(frozen=True, kw_only=True)
class GenerateBench(measurement.BenchResult):
    """Translation speed from text to text, in the batches of `tfm generate`.

    All numbers of tokens include EOS; those of targets count the best translations. A value that
    is measured in each round is the median over the rounds.
    """

    model: str  # model folder
    num_parameters: int
    text: str  # file that is translated
    search: dict[str, Any]  # settings
    plan: Plan
    num_sentences: int  # lines of a round that are not empty
    num_source_tokens: int
    num_target_tokens: int
    sentences_per_second: float
    source_tokens_per_second: float
    target_tokens_per_second: float
    target_tokens_per_second_by_round: list[float]
    seconds_to_load: float
    peak_memory: measurement.PeakMemory  # includes loading
    latency: Latency | None


def bench_generate(
    generation: Generation, config: SearchConfig, plan: Plan, inference: InferenceConfig
) -> GenerateBench:
    """Time the translation of a text file in this process, after one untimed pass over it.

    Raises:
        DataError: The text cannot be translated, or has no words.
        CheckpointError: The model is damaged.
        UsageError: The settings do not fit the device, there are several processes, or the text is
            standard input.
    """
    measurement.require_single_process("generate")
    text = generation.source.path
    if text is None:
        raise UsageError("standard input cannot be read twice: give the text with --input")
    if config.mbr is not None:
        raise UsageError("the time of a search does not include --mbr: leave it out")
    with tempfile.TemporaryDirectory(prefix="tfm-bench-") as scratch:
        repeated, content = Path(scratch) / "repeated", text.read_bytes()
        with repeated.open("wb") as file:
            file.writelines([content.removesuffix(b"\n") + b"\n"] * plan.repeat)
        bench = _Bench(generation, inference, config, text)
        rounds: list[tuple[_Counts, float]] = []
        sentences: list[tuple[_Counts, float]] = []
        for number in range(1, plan.rounds + 1):
            rounds.append(bench.time_all(repeated, name=f"round {number} of {plan.rounds}"))
            if plan.latency:
                sentences += bench.time_each(f"sentence by sentence, {number} of {plan.rounds}")
    counts = rounds[0][0]

    def rates(name: str) -> list[float]:
        return [getattr(each, name) / seconds for each, seconds in rounds]

    latency = None
    if plan.latency:
        latency = Latency(
            sentence=Milliseconds.of([seconds for _, seconds in sentences]),
            token=Milliseconds.of([seconds / each.target_tokens for each, seconds in sentences]),
        )
    return GenerateBench(
        **measurement.environment(bench.engine.compute),
        model=str(generation.models[0]),
        num_parameters=bench.engine.num_parameters,
        text=str(text),
        search=settings_to(config),
        plan=plan,
        num_sentences=counts.sentences,
        num_source_tokens=counts.source_tokens,
        num_target_tokens=counts.target_tokens,
        sentences_per_second=statistics.median(rates("sentences")),
        source_tokens_per_second=statistics.median(rates("source_tokens")),
        target_tokens_per_second=statistics.median(rates("target_tokens")),
        target_tokens_per_second_by_round=rates("target_tokens"),
        seconds_to_load=bench.seconds_to_load,
        peak_memory=measurement.peak_memory(bench.engine.compute.device),
        latency=latency,
    )


@dataclass(kw_only=True)
class _Counts:
    """Numbers of translated sentences and of source and target tokens."""

    sentences: int = 0
    source_tokens: int = 0
    target_tokens: int = 0


class _Bench:
    """Loads a model and translates a text once, untimed; then measures (counts, seconds)."""

    def __init__(
        self,
        generation: Generation,
        inference: InferenceConfig,
        config: SearchConfig,
        text: Path,
    ) -> None:
        folder = generation.models[0]
        self._config = config
        started = time.perf_counter()
        self._vocabulary = load_vocabulary(folder, load_info(folder))
        self.engine = load_engine([folder], inference)
        measurement.synchronize(self.engine.compute.device)
        self.seconds_to_load = time.perf_counter() - started
        measurement.reset_peak_memory(self.engine.compute.device)
        say(f"bench generate: {folder} translates, {self.engine.compute}")
        with self._open(text) as reader:
            self._chunks = list(reader)
        if not self._translate(self._chunks).sentences:
            raise DataError("the text has no line to translate: give another with --input")

    def time_all(self, path: Path, *, name: str) -> tuple[_Counts, float]:
        """Time the translation of a file."""
        with (
            self._open(path) as reader,
            Progress(f"bench generate, {name}", total=None, unit="lines") as bar,
        ):
            started = time.perf_counter()
            counts = self._translate(reader, bar)
            seconds = time.perf_counter() - started
        say(f"bench generate: {name}: {counts.target_tokens / seconds:,.0f} target tokens/s")
        return counts, seconds

    def time_each(self, name: str) -> Iterator[tuple[_Counts, float]]:
        """Time the translation of each line of the text that is not empty."""
        lines = [line for chunk in self._chunks for line in chunk.lines]
        with Progress(f"bench generate, {name}", total=len(lines), unit="lines") as bar:
            for number, line in enumerate(lines, start=1):
                started = time.perf_counter()
                counts = self._translate([Chunk(line_numbers=[number], lines=[line])])
                seconds = time.perf_counter() - started
                if counts.sentences:
                    yield counts, seconds
                bar.update()

    def _open(self, path: Path) -> LineReader:
        return LineReader(path, None, chunk_lines=self.engine.limits.chunk_lines)

    def _translate(self, chunks: Iterable[Chunk], bar: Progress | None = None) -> _Counts:
        """Translate chunks of lines and return the numbers of sentences and tokens."""
        counts = _Counts()
        encoder = SentenceEncoder(self._vocabulary, self.engine.limits, self._config)
        for chunk in chunks:
            batches = encoder.to_search(chunk)
            outputs = [self.engine.search(batch, self._config) for batch in batches]
            decode(chunk, batches, outputs, self._vocabulary)
            for batch, found in zip(batches, outputs, strict=True):
                counts.sentences += len(batch)
                counts.source_tokens += sum(len(ids) + 1 for ids in batch.sources)
                counts.target_tokens += sum(len(best.tokens) + 1 for best, *_ in found)
            if bar is not None:
                bar.update(len(chunk.lines))
        return counts
