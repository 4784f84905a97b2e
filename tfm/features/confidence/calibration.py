"""Calibrating the confidence of a model on its validation text."""

from dataclasses import replace

from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import DataError, UsageError
from tfm.features.confidence.step import MIN_LINES, fit
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import Calibration
from tfm.folders.saving import save_checkpoint
from tfm.metrics.sacre import sentence_chrf
from tfm.reporting import Progress
from tfm.text.lines import read_pairs
from tfm.translation.chain import Chain
from tfm.translation.engine import Engine
from tfm.translation.steps import Output

_CHUNK_LINES = 128  # that are translated together

Text = list[tuple[str, str]]  # source and target of each line


def validation_text(model: ModelFolder, run: object) -> Text:
    """Return the lines of the validation split of a run's model, without empty ones."""
    if model.info.task == "parsing":
        raise UsageError(
            f"{run} trains a parser, but confidence is the expected chrF of translations: leave "
            "--calibrate out"
        )
    source, target = model.split("valid", advice="leave --calibrate out")
    pairs = [
        (line.decode(), reference.decode())
        for line, reference in read_pairs(source, target, strict=True)
        if line.strip() and reference.strip()
    ]
    if len(pairs) < MIN_LINES:
        raise DataError(
            f"{source} has {len(pairs)} lines, but calibrating takes at least {MIN_LINES}: leave "
            "--calibrate out, or prepare more validation text"
        )
    return pairs


def calibrate(model: ModelFolder, text: Text) -> Calibration:
    """Translate a text with the model's own search, fit the chrF, and write it to the folder."""
    engine = Engine.start([model], InferenceConfig())
    chain = Chain(engine=engine, vocabulary=model.vocabulary)
    config = SearchConfig.for_model(model.info.search, {})
    lines = [line for line, _ in text]
    best: dict[int, Output] = {}
    with Progress("calibrate", total=len(lines), unit="lines") as bar:
        indices = range(len(lines))
        for found in chain.search_by_length(lines, indices, config, size=_CHUNK_LINES):
            best |= {index: each for index, each in found.items() if each.pieces}
            bar.update(len(found))
    texts = [each.text for each in best.values()]
    scores = sentence_chrf(texts, [text[index][1] for index in best])
    log_probs = [each.log_prob / len(each.pieces) for each in best.values()]
    calibration = fit(log_probs, [score / 100 for score in scores])
    info = replace(model.info, calibration=calibration)
    save_checkpoint(model.path, info, model.weights(), subword_files=model.vocabulary.files())
    return calibration
