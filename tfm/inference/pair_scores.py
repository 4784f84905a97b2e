"""Scores of sentence pairs by an existing model, to drop pairs that it finds improbable."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tfm.config import InferenceConfig, SearchConfig
from tfm.data.cleaning import Score
from tfm.data.languages import are_same
from tfm.data.subword import shown_tags
from tfm.data.text import BytesPair
from tfm.errors import UsageError
from tfm.folders.model_folder import CONFIG, load_info
from tfm.folders.run_folder import find_model
from tfm.inference.batches import Chunk, SentenceEncoder, by_line
from tfm.inference.engine import Engine, load_engine, load_vocabulary
from tfm.storage.files import sha256_of


class PairScorer:
    """Computes the mean log probability of the target tokens of pairs, with forced decoding.

    Args:
        path: A model or run folder.
        source: Source language of the pairs.
        target: Target language of the pairs.

    Raises:
        UsageError: There is no such folder, or its model is for other languages.
        CheckpointError: The folder has no valid model.
    """

    def __init__(self, path: Path, *, source: str, target: str) -> None:
        self._folder = find_model(path)
        info = load_info(self._folder)
        are_other = not (are_same(info.source, source) and are_same(info.target, target))
        if info.task != "translation" or are_other:
            raise UsageError(
                f"score_model: {path} is for {info.task} from {info.source} to {info.target}, but "
                f"the text is from {source} to {target}: choose another model"
            )
        self._vocabulary = load_vocabulary(self._folder, info)

    @property
    def fingerprint(self) -> str:
        """A checksum that changes with the model."""
        return sha256_of(self._folder / CONFIG)  # which has the checksums of its other files

    @cached_property
    def _engine(self) -> Engine:
        return load_engine([self._folder], InferenceConfig())

    def for_text(self, tag: str | None = None) -> Score:
        """Return a function that computes the scores of pairs, in nats; EOS is a token, too.

        If the model knows the tag of a text, it is put before the sources.
        """
        is_known = tag is not None and self._vocabulary.source.has_tag(tag)
        if not is_known and self._vocabulary.tags_choose_language and self._vocabulary.tags:
            raise UsageError(
                f"score_model: {self._folder} was trained with a tag before each sentence: give "
                f"each text of the recipe one of {shown_tags(self._vocabulary.tags)}"
            )
        config = SearchConfig(tag=tag if is_known else None)
        encoder = SentenceEncoder(self._vocabulary, self._engine.limits, config)
        num_scored = 0

        def score(pairs: Sequence[BytesPair]) -> list[float]:
            nonlocal num_scored
            numbers = range(num_scored + 1, num_scored + len(pairs) + 1)
            num_scored += len(pairs)
            sources, targets = ([pair[side].decode() for pair in pairs] for side in (0, 1))
            batches = encoder.to_score(
                Chunk(line_numbers=numbers, lines=sources, paired_lines=targets)
            )
            outputs = by_line(batches, [self._engine.score(batch, config) for batch in batches])
            log_probs = (outputs[number].token_log_probs for number in numbers)
            return [sum(values) / len(values) for values in log_probs]

        return score
