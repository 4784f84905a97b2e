"""Translate with tfm: from text to text, by what `tfm generate` does it with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from timing import Sentence, Settings, measure, read_settings

from tfm.config import InferenceConfig, SearchConfig
from tfm.data.subword import Vocabulary
from tfm.inference.chunks import Engine, search_chunks
from tfm.inference.models import Models, Take, load_engine
from tfm.inference.processes import ModelProcesses
from tfm.inference.reader import TextChunks
from tfm.inference.sentences import Chunk, SentenceBatch


class Recording:
    """An engine that keeps the token ids of the best translations.

    Args:
        engine: What does the work.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.found: dict[int, list[int]] = {}  # by line number

    @property
    def max_positions(self) -> int | None:
        """As the engine has it."""
        return self._engine.max_positions

    def map(
        self, task: Any, take: Take, config: SearchConfig
    ) -> Iterator[tuple[SentenceBatch, list[Any]]]:
        """Let the engine do a search."""
        for batch, outputs in self._engine.map(task, take, config):
            for number, best in zip(batch.line_numbers, outputs, strict=True):
                self.found[number] = list(best[0].tokens)
            yield batch, outputs


def main() -> None:
    """Run it."""
    settings = read_settings(__doc__)
    vocabulary = Vocabulary.load(settings.model)
    given: dict[str, Any] = {
        "beam_size": settings.beam_size,
        "length_penalty": settings.length_penalty,
    }
    if settings.batch_size:
        given["max_tokens"] = settings.batch_size
    config = SearchConfig(**given)
    with opened(settings) as engine:

        def translate(sentences: Sequence[Sentence]) -> list[list[int]]:
            recording = Recording(engine)
            if len(sentences) == 1:
                chunks = [Chunk(first_line=1, lines=[sentences[0].text])]
                list(search_chunks(recording, vocabulary, chunks, config))
            else:
                path = settings.out.with_suffix(".txt")
                path.write_text("".join(f"{each.text}\n" for each in sentences))
                with TextChunks(path, None) as text:
                    if isinstance(engine, Models) and engine.decodes_in_slots:
                        text.take_many()
                    for _ in search_chunks(recording, vocabulary, text.read(), config):
                        pass
            return [recording.found.get(number, []) for number in range(1, len(sentences) + 1)]

        measure(settings, translate, version=f"tfm {version('tfm')}")


@contextmanager
def opened(settings: Settings) -> Iterator[Engine]:
    """The model, in this process or in several."""
    device: Any = settings.device
    precision: Any = settings.precision
    inference = InferenceConfig(device=device, precision=precision, kernels="fast")
    if settings.processes == 1:
        yield load_engine([settings.model], inference)
        return
    with ModelProcesses(
        [settings.model], inference=inference, num_processes=settings.processes
    ) as processes:
        yield processes


if __name__ == "__main__":
    main()
