"""The step that translates paragraphs sentence by sentence."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from typing_extensions import override

from tfm.features.documents.splitting import Piece, split, translated_pieces, unbroken
from tfm.text.languages import target_language
from tfm.text.tags import split_tag
from tfm.translation.steps import Output, Segment, Step

if TYPE_CHECKING:
    from tfm.text.units import Span

_State = tuple[list[Piece], str]  # of a paragraph, and the language of its translation


class Sentences(Step):
    """Splits paragraphs into sentences, and joins their translations with the white space.

    The sentences of a text are numbered from 1 on. The n-th best output of a paragraph has the n-th
    best translation of each sentence, or the last one if a sentence has fewer. Its `parts` are the
    sentences, and the text that is kept between them, which has no pieces.

    A tag before a paragraph is put before each of its sentences.

    Args:
        source: Language code of the paragraphs.
        target: Language code of the translations; several languages are joined by +.
        tags: The tags of the model.
        unbroken: Returns the named spans of a text; no sentence ends within a span.
    """

    def __init__(
        self,
        source: str,
        target: str,
        tags: Collection[str] = (),
        unbroken: "Callable[[str, str], Sequence[Span]] | None" = None,
    ) -> None:
        self._source, self._target, self._tags = source, target, tags
        self._unbroken = unbroken
        self._num_sentences = 0

    @override
    def before(self, unit: Segment) -> tuple[Sequence[Segment], _State]:
        tag, text = split_tag(unit.source, self._tags)
        pieces = split(text, self._source)
        if self._unbroken is not None:
            pieces = unbroken(pieces, self._unbroken(text, f"{unit.unit} {unit.number:,}"))
        sentences = [piece.text for piece in pieces if piece.is_sentence]
        numbered = enumerate(sentences, start=self._num_sentences + 1)
        self._num_sentences += len(sentences)
        space = " " if tag else ""
        segments = [
            Segment(number, f"{tag}{space}{text}", unit="sentence") for number, text in numbered
        ]
        return segments, (pieces, target_language(self._target, tag))

    @override
    def after(self, states: Sequence[_State], outputs: list[list[Output]]) -> list[list[Output]]:
        remaining = iter(outputs)
        paragraphs = []
        for pieces, target in states:
            sentences = list(islice(remaining, sum(piece.is_sentence for piece in pieces)))
            ranked: dict[str, Output] = {}
            for rank in range(max(map(len, sentences), default=1)):
                output = self._join(pieces, [each[: rank + 1][-1] for each in sentences], target)
                ranked.setdefault(output.text, output)
            paragraphs.append(list(ranked.values()))
        return paragraphs

    def _join(self, pieces: Sequence[Piece], sentences: Sequence[Output], target: str) -> Output:
        """Return a paragraph with its translated sentences; probabilities are multiplied."""
        texts = translated_pieces(
            pieces, [each.text for each in sentences], source=self._source, target=target
        )
        remaining = iter(sentences)
        kept = Output("", score=0.0, log_prob=0.0)
        outputs = [next(remaining) if piece.is_sentence else kept for piece in pieces]
        return Output(
            "".join(texts),
            score=sum(each.score for each in sentences),
            log_prob=sum(each.log_prob for each in sentences),
            pieces=tuple(chain(*(each.pieces for each in sentences))),
            parts=tuple(
                (piece.text, replace(each, text=text))
                for piece, each, text in zip(pieces, outputs, texts, strict=True)
            ),
        )
