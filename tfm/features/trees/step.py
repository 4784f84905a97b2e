"""The step that makes trees of the symbols that a parser writes."""

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from tfm.config import Normalization
from tfm.text.trees import bracketed, restore
from tfm.translation.steps import Output, Segment, Step
from tfm.vocabulary.subword import Vocabulary

_WORDS_AS_WRITTEN = Normalization(space=False, unicode=False)


class Trees(Step):
    """Replaces a parser's symbols by trees over the words of its sentences, as users wrote them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._num_repairs = 0

    @override
    def after(self, states: Sequence[Segment], outputs: list[list[Output]]) -> list[list[Output]]:
        pairs = zip(states, outputs, strict=True)
        return [[self._restored(tree, unit.source) for tree in trees] for unit, trees in pairs]

    @override
    def summary(self, since: str) -> str:
        return f"repairs to the trees{since}: {self._num_repairs:,}"

    def _restored(self, output: Output, line: str) -> Output:
        words = line.split()
        cleaned = self._vocabulary.clean(words)  # models read no words of invisible characters
        words = [word for word, text in zip(words, cleaned, strict=True) if text]
        if not words:
            return replace(output, text="")
        tree, num_repairs = restore(output.text.split(), words)
        self._num_repairs += num_repairs
        return replace(output, text=_WORDS_AS_WRITTEN.output(bracketed(tree)))
