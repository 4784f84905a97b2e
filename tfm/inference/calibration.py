"""Calibrating the confidence of a model: the quality of its translations of validation text."""

from collections.abc import Sequence

from tfm.config import SearchConfig
from tfm.data.subword import Vocabulary
from tfm.folders.calibration import Calibration
from tfm.inference.batches import Chunk, SentenceEncoder, by_line
from tfm.inference.lines import LineEngine
from tfm.metrics.sacre import sentence_chrf
from tfm.reporting import Progress


def calibrate(
    engine: LineEngine,
    vocabulary: Vocabulary,
    sources: Sequence[str],
    references: Sequence[str],
    config: SearchConfig,
) -> Calibration:
    """Translate sources, and fit a calibration to the chrF of the translations; skip empty lines.

    Raises:
        DataError: A line has more tokens than the model accepts.
    """
    encoder = SentenceEncoder(vocabulary, engine.limits, config)
    line_numbers = range(1, len(sources) + 1)
    batches = encoder.to_search(Chunk(line_numbers=line_numbers, lines=sources))
    outputs = []
    with Progress("calibrate", total=sum(map(len, batches)), unit="lines") as bar:
        for batch in batches:
            outputs.append(engine.search(batch, config))
            bar.update(len(batch))
    found = {number: best for number, (best, *_) in by_line(batches, outputs).items()}
    texts = vocabulary.outputs([best.tokens for best in found.values()])
    scores = sentence_chrf(texts, [references[number - 1] for number in found])
    log_probs = [best.log_prob / (len(best.tokens) + 1) for best in found.values()]
    return Calibration.fit(log_probs, [score / 100 for score in scores])
