"""The search that settings ask for, of any model that can encode and step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from tfm.config import SearchConfig
from tfm.search.active import ActiveHypotheses, Prefixes
from tfm.search.beam import beam_search, diverse_beam_search
from tfm.search.constraints import Constraints
from tfm.search.exact import exact_search
from tfm.search.hypotheses import Hypothesis, check_finite
from tfm.search.model import SearchableModel
from tfm.search.sampling import sample
from tfm.search.spelling import OpenEnd

if TYPE_CHECKING:
    from tfm.search.phrases import RequiredPhrases


def search(
    model: SearchableModel,
    source: Tensor,
    lengths: Tensor,
    config: SearchConfig,
    *,
    line_numbers: Sequence[int] | None = None,
    prefixes: Prefixes | None = None,
    constraints: Constraints | None = None,
    open_ends: Sequence[OpenEnd] | None = None,
    required: "Sequence[RequiredPhrases] | None" = None,
) -> list[list[Hypothesis]]:
    """Search for outputs with the algorithm that is configured.

    Args:
        model: A model in evaluation mode.
        source: [B, S] token ids, each source closed by EOS and padded at the end.
        lengths: [B] source lengths, EOS included.
        config: Algorithm and limits.
        line_numbers: [B] a number for each source, which seeds its samples; by default from 1 on.
        prefixes: [B] token ids that each output must start with.
        constraints: What outputs may not contain, unless a prefix does.
        open_ends: [B] what the tokens after these must spell.
        required: [B] what outputs of beam search, without groups, must contain.

    Returns:
        The `n_best` hypotheses of each source, best first.
    """
    start = ActiveHypotheses(model, source, lengths, config, prefixes, constraints, open_ends)
    match config.search:
        case "beam" if required is not None:
            from tfm.search.constrained import constrained_search

            hypotheses = constrained_search(start, required, config)
        case "beam" if config.num_groups > 1:
            hypotheses = diverse_beam_search(start, config)
        case "beam":
            hypotheses = beam_search(start, config)
        case "sample":
            hypotheses = sample(start, config, line_numbers or range(1, len(lengths) + 1))
        case "exact":
            hypotheses = []
            for row, best in enumerate(beam_search(start, config)):
                one, size = slice(row, row + 1), int(lengths[row])
                prefix = None if prefixes is None else prefixes[one]
                end = None if open_ends is None else open_ends[one]
                alone = ActiveHypotheses(
                    model, source[one, :size], lengths[one], config, prefix, constraints, end
                )
                hypotheses.append(exact_search(alone, best, config).hypotheses)
    check_finite(all(hypotheses))
    return hypotheses
