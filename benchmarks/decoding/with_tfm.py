"""Translate with tfm from text to text, with the engine of `tfm generate`."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from timing import Sentence, Settings, measure, read_settings

from tfm import __version__
from tfm.config import InferenceConfig, Normalization, SearchConfig
from tfm.folders.model_folder import ModelFolder
from tfm.search.hypotheses import Hypothesis
from tfm.translation.batches import BatchLimits, SentenceBatch
from tfm.translation.chain import BatchEngine, Chain
from tfm.translation.engine import Engine
from tfm.translation.reader import LineReader
from tfm.translation.steps import Segment
from tfm.translation.workers import Workers
from tfm.vocabulary.subword import Vocabulary


class RecordingEngine:
    """Records the token ids of the best translations of another engine."""

    def __init__(self, engine: BatchEngine) -> None:
        self._engine = engine
        self.translations: dict[int, list[int]] = {}  # by line number

    @property
    def limits(self) -> BatchLimits:
        """Return the limits of the other engine."""
        return self._engine.limits

    def run(self, batch: SentenceBatch, config: SearchConfig) -> list[list[Hypothesis]]:
        """Let the other engine search, and record the token ids."""
        outputs = self._engine.run(batch, config)
        for number, n_best in zip(batch.line_numbers, outputs, strict=True):
            self.translations[number] = list(n_best[0].tokens)
        return outputs


def main() -> None:
    """Run the benchmark."""
    settings = read_settings(__doc__)
    # The other programs do not normalize text either.
    vocabulary = Vocabulary.load(settings.model, Normalization(space=False, unicode=False))
    options: dict[str, Any] = {
        "beam_size": settings.beam_size,
        "length_penalty": settings.length_penalty,
    }
    if settings.batch_size:
        options["max_tokens"] = settings.batch_size
    config = SearchConfig(**options)
    with open_engine(settings) as engine:

        def translate_all(recording: RecordingEngine, chunks: Iterable[list[Segment]]) -> None:
            for _ in Chain(engine=recording, vocabulary=vocabulary).run(chunks, config):
                pass

        def translate(sentences: Sequence[Sentence]) -> list[list[int]]:
            recording = RecordingEngine(engine)
            if len(sentences) == 1:
                translate_all(recording, [[Segment(1, sentences[0].text)]])
            else:
                path = settings.out.with_suffix(".txt")
                path.write_text("".join(f"{each.text}\n" for each in sentences))
                with LineReader(path, None, chunk_lines=engine.limits.chunk_lines) as text:
                    translate_all(recording, text)
            numbers = range(1, len(sentences) + 1)
            return [recording.translations.get(number, []) for number in numbers]

        measure(settings, translate, version=f"tfm {__version__}")


@contextmanager
def open_engine(settings: Settings) -> Iterator[BatchEngine]:
    """Load the model, in this process or in several."""
    device: Any = settings.device
    precision: Any = settings.precision
    inference = InferenceConfig(device=device, precision=precision)
    models: list[ModelFolder] | Engine = [ModelFolder(settings.model)]
    if settings.processes == 1 or settings.threads == 1:
        models = Engine.start([ModelFolder(settings.model)], inference)
    if isinstance(models, Engine) and settings.processes == 1:
        yield models
        return
    with Workers(models, inference=inference, num_workers=settings.processes) as workers:
        yield workers


if __name__ == "__main__":
    main()
