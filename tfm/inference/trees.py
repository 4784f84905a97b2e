"""The step that makes trees of the symbols that a parser writes."""

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from tfm.config import Normalization
from tfm.data.subword import Vocabulary
from tfm.data.trees import bracketed, restore
from tfm.inference.steps import Output, Segment, Step

_WORDS_AS_WRITTEN = Normalization(space=False, unicode=False)


class Trees(Step):
    """Replaces a parser's symbols by trees over the words of its sentences, as users wrote them.

    Attributes:
        num_repairs: The number of repairs to the trees.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.num_repairs = 0

    @override
    def after(self, states: Sequence[Segment], found: list[list[Output]]) -> list[list[Output]]:
        outputs = []
        for unit, trees in zip(states, found, strict=True):
            words = unit.source.split()
            cleaned = self._vocabulary.clean(words)  # the models read no invisible characters
            words = [word for word, text in zip(words, cleaned, strict=True) if text]
            outputs.append([self._restored(tree, words) for tree in trees])
        return outputs

    def _restored(self, output: Output, words: Sequence[str]) -> Output:
        if not words:
            return replace(output, text="")
        tree, num_repairs = restore(output.text.split(), words)
        self.num_repairs += num_repairs
        return replace(output, text=_WORDS_AS_WRITTEN.output(bracketed(tree)))
