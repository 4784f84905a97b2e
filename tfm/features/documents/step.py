"""The step that translates paragraphs sentence by sentence."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType

from typing_extensions import override

from tfm.features.documents.splitting import Piece, split, translated_pieces
from tfm.inference.steps import Output, Segment, Step


class Sentences(Step):
    """Splits paragraphs into sentences, and joins their translations with the white space.

    The sentences of a text are numbered from 1 on. The n-th best output of a paragraph has the n-th
    best translation of each sentence, or the last one if a sentence has fewer. Its `parts` are the
    sentences, and the text that is kept between them, which has no pieces.

    Args:
        source: Language code of the paragraphs.
        target: Language code of the translations.
    """

    settings = MappingProxyType({"form": "document"})

    def __init__(self, source: str, target: str) -> None:
        self._source, self._target = source, target
        self._num_sentences = 0

    @override
    def before(self, unit: Segment) -> tuple[Sequence[Segment], list[Piece]]:
        pieces = split(unit.source, self._source)
        sentences = [piece.text for piece in pieces if piece.is_sentence]
        numbered = enumerate(sentences, start=self._num_sentences + 1)
        self._num_sentences += len(sentences)
        return [Segment(number, text, unit="sentence") for number, text in numbered], pieces

    @override
    def after(
        self, states: Sequence[Sequence[Piece]], outputs: list[list[Output]]
    ) -> list[list[Output]]:
        remaining = iter(outputs)
        paragraphs = []
        for pieces in states:
            sentences = list(islice(remaining, sum(piece.is_sentence for piece in pieces)))
            ranked: dict[str, Output] = {}
            for rank in range(max(map(len, sentences), default=1)):
                output = self._join(pieces, [each[: rank + 1][-1] for each in sentences])
                ranked.setdefault(output.text, output)
            paragraphs.append(list(ranked.values()))
        return paragraphs

    def _join(self, pieces: Sequence[Piece], sentences: Sequence[Output]) -> Output:
        """Return a paragraph with its translated sentences; probabilities are multiplied."""
        texts = translated_pieces(
            pieces, [each.text for each in sentences], source=self._source, target=self._target
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
