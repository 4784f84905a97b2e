"""Word alignments of sentence pairs, from the cross-attention of translation models."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tfm.machine.compute import Compute
from tfm.model.attention_weights import cross_attention
from tfm.model.build import Model
from tfm.search.hypotheses import check_finite
from tfm.text.units import units
from tfm.vocabulary.subword import BOS, EOS, PAD, SubwordModel, Vocabulary

# Links of a sentence pair, sorted: (source word, target word), counted from 0.
Alignment = tuple[tuple[int, int], ...]

_MAX_PIECES = 1024  # per side; later words have no links
_BATCH_POSITIONS = 1 << 18  # pairs of source and target positions in a batch, padding included


class Side(NamedTuple):
    """The pieces of one side of a sentence pair, and the words that they belong to."""

    ids: list[int]  # its pieces, without EOS
    words: list[tuple[int, ...]]  # the numbers of the words or units that each piece has parts of


@dataclass(frozen=True, kw_only=True)
class Aligner:
    """Aligns sentence pairs by the attention of one model, or of two for opposite directions.

    Attributes:
        model: The model, which reads the source and predicts the target.
        vocabulary: Its vocabulary.
        compute: Where to compute.
        heads: The attention heads whose weights are averaged, numbered from 0 across all layers, in
            order.
        reverse: An aligner by a model from target to source.
        by_units: Whether it aligns the `units` of texts, instead of words at white space.
    """

    model: Model
    vocabulary: Vocabulary
    compute: Compute
    heads: list[int]
    reverse: "Aligner | None" = None
    by_units: bool = False

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Alignment]:
        """Align the words of sentence pairs, split at white space, or their units.

        Each target piece is linked to the source piece, or to none if it is EOS, with the greatest
        weight when the model predicts it. Two words are aligned if any of their pieces are linked.
        With a reverse aligner, its links and these are combined by `grow_diagonal`.
        """
        direct = self.links(sources, targets)
        if self.reverse is None:
            return [tuple(sorted(links)) for links in direct]
        swapped = self.reverse.links(targets, sources)
        opposite = [{(source, target) for target, source in links} for links in swapped]
        return [tuple(sorted(grow_diagonal(*each))) for each in zip(direct, opposite, strict=True)]

    def links(self, sources: Sequence[str], targets: Sequence[str]) -> list[set[tuple[int, int]]]:
        """Return the links of `align` by this model alone."""
        pairs = self.encode(sources, targets)
        links: list[set[tuple[int, int]]] = [set() for _ in pairs]
        for index, weights in self.attention(pairs):
            source, target = pairs[index]
            linked = weights[self.heads].mean(dim=0).argmax(dim=-1).tolist()
            links[index] = {
                link
                for at, words in zip(linked, target.words, strict=True)
                if at < len(source.words)
                for link in product(source.words[at], words)
            }
        return links

    def encode(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[Side, Side]]:
        """Return the pieces of sentence pairs and the words that they belong to."""
        limit = min(_MAX_PIECES, (self.model.max_positions or _MAX_PIECES + 1) - 1)
        side = self._side_of_units if self.by_units else self._side
        source_sides = [side(self.vocabulary.source, text, limit) for text in sources]
        target_sides = [side(self.vocabulary.target, text, limit) for text in targets]
        return list(zip(source_sides, target_sides, strict=True))

    def _side(self, subword_model: SubwordModel, text: str, limit: int) -> Side:
        # For the model, a word may be nothing, or several words, such as a tag that text follows.
        words = self.vocabulary.clean(text.split())
        ids, lengths = subword_model.encode_block([word.encode() for word in words])
        numbers = np.repeat(np.arange(len(words)), lengths)[:limit].tolist()
        return Side(ids[:limit].tolist(), [(number,) for number in numbers])

    def _side_of_units(self, subword_model: SubwordModel, text: str, limit: int) -> Side:
        """Return the pieces of a text with the numbers of its units.

        The model reads the text in another form, with the letters of the `spelled` units.
        """

        def letters(part: str) -> str:
            return "".join(self.vocabulary.normalization.comparable(part).split())

        parts = self.vocabulary.clean(text[slice(*span)] for span in units(text))
        spelled = enumerate(map(subword_model.spelled, parts))
        numbers = [number for number, part in spelled for _ in letters(part)]
        [clean] = self.vocabulary.clean([text])
        [ids] = subword_model.encode([clean])
        surfaces = subword_model.divide(clean)
        ends = accumulate((len(letters(surface)) for surface in surfaces), initial=0)
        words = [tuple(dict.fromkeys(numbers[start:end])) for start, end in pairwise(ends)]
        return Side(ids[:limit], words[:limit])

    def attention(self, pairs: Sequence[tuple[Side, Side]]) -> Iterator[tuple[int, Tensor]]:
        """Compute the attention of a forced pass over pairs; skip those with an empty side.

        Yields:
            The index of each pair, in any order, and its attention weights [L · h, T, S + 1], from
            each predicted target piece to the source pieces and EOS.
        """
        indices = [i for i, (source, target) in enumerate(pairs) if source.ids and target.ids]
        indices.sort(key=lambda i: -max(map(len, (pairs[i][0].ids, pairs[i][1].ids))))
        while indices:
            longest = max(map(len, (side.ids for side in pairs[indices[0]]))) + 1
            size = max(1, _BATCH_POSITIONS // longest**2)
            batch, indices = indices[:size], indices[size:]
            weights = self._batch_attention([pairs[i] for i in batch])
            check_finite(bool(weights.isfinite().all()))
            for row, index in enumerate(batch):
                source, target = pairs[index]
                of_pair = weights[:, row, :, : len(target.ids), : len(source.ids) + 1]
                yield index, of_pair.flatten(0, 1)

    def _batch_attention(self, pairs: Sequence[tuple[Side, Side]]) -> Tensor:
        """Return the weights [L, B, h, T, S + 1] of padded pairs."""
        sources = [torch.tensor([*source.ids, EOS]) for source, _ in pairs]
        target_inputs = [torch.tensor([BOS, *target.ids[:-1]]) for _, target in pairs]
        lengths = torch.tensor(list(map(len, sources)))
        source, target_input = (
            pad_sequence(rows, batch_first=True, padding_value=PAD)
            for rows in (sources, target_inputs)
        )
        inputs = (each.to(self.compute.device) for each in (source, lengths, target_input))
        return cross_attention(self.model, *inputs).cpu()


def grow_diagonal(one: set[tuple[int, int]], other: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Combine the links of two directions by the heuristic grow-diag (Koehn et al. 2005, §2).

    It starts from their intersection, and adds links of their union that are next to a link, also
    diagonally, and align a word that has no link yet.
    """
    union, links = one | other, one & other
    sources, targets = {source for source, _ in links}, {target for _, target in links}
    waiting = deque(sorted(links))
    while waiting:
        source, target = waiting.popleft()
        for row, column in product((-1, 0, 1), repeat=2):
            link = (source + row, target + column)
            is_new = link[0] not in sources or link[1] not in targets
            if is_new and link in union:
                links.add(link)
                sources.add(link[0])
                targets.add(link[1])
                waiting.append(link)
    return links
