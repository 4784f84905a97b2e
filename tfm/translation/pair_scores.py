"""Scores of sentence pairs by an existing model, to drop pairs that it finds improbable."""

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from pathlib import Path

from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.text.cleaning import Score
from tfm.text.languages import are_same
from tfm.text.lines import BytesPair
from tfm.translation.chain import Chain
from tfm.translation.engine import Engine
from tfm.translation.steps import Segment
from tfm.vocabulary.subword import shown_tags


class PairScorer:
    """Computes the mean log probability of the target tokens of pairs, with forced decoding.

    Args:
        path: A model or run folder.
        source: Source language of the pairs.
        target: Target language of the pairs.

    Attributes:
        fingerprint: A checksum that changes with the model.
    """

    def __init__(self, path: Path, *, source: str, target: str) -> None:
        self._folder = ModelFolder.open(path)
        self.fingerprint = self._folder.fingerprint
        info, self._vocabulary = self._folder.info, self._folder.vocabulary
        are_other = not (are_same(info.source, source) and are_same(info.target, target))
        if info.task != "translation" or are_other:
            raise UsageError(
                f"score_model: {path} is for {info.purpose}, but the text is from {source} to "
                f"{target}: choose another model"
            )

    @cached_property
    def _chain(self) -> Chain:
        return Chain(
            engine=Engine.start([self._folder], InferenceConfig()), vocabulary=self._vocabulary
        )

    def for_text(self, tag: str | None = None) -> Score:
        """Return a function that computes the scores of pairs, in nats; EOS is a token, too.

        If the model knows the tag of a text, it is put before the sources.
        """
        is_known = tag is not None and self._vocabulary.source.has_tag(tag)
        if not is_known and self._vocabulary.tags_choose_language and self._vocabulary.tags:
            raise UsageError(
                f"score_model: {self._folder} was trained with a tag before each sentence: "
                f"give each text of the recipe one of {shown_tags(self._vocabulary.tags)}"
            )
        config = SearchConfig(tag=tag if is_known else None)
        waiting: deque[list[Segment]] = deque()  # at most one
        scored = self._chain.run(iter(waiting.popleft, None), config, scores_given=True)
        numbers = count(1)

        def score(pairs: Sequence[BytesPair], _: object = None) -> list[float]:
            texts = (tuple(side.decode() for side in pair) for pair in pairs)
            waiting.append([Segment(next(numbers), *sides) for sides in texts])
            _, outputs = next(scored)
            return [each.log_prob / len(each.pieces) for [each] in outputs]

        return score
