"""Constraints on outputs: forced prefixes, minimum and maximum lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import BOS, EOS, PAD, UNK

# The token ids that the output of each source must start with.
Prefixes: TypeAlias = Sequence[Sequence[int]]

NEVER_PRODUCED = [PAD, BOS, UNK]
ANY = -1  # no token is forced


@dataclass
class Constraints:
    """The constraints on the outputs of B sentences."""

    # [B, P] the token that is forced at each position, or `ANY`; the last column, which
    # applies to all later positions, is `ANY`.
    forced: Tensor
    max_lengths: Tensor  # [B] maximum number of tokens of an output, EOS included
    min_length: int  # minimum number of tokens of an output before EOS, if its maximum allows it

    @classmethod
    def of(
        cls,
        lengths: Tensor,
        config: SearchConfig,
        *,
        max_positions: int | None,
        prefixes: Prefixes | None,
    ) -> "Constraints":
        """Build the constraints of sources with [B] lengths, EOS included.

        `max_positions` is the number of tokens that the model can decode, None if unlimited.
        """
        rows = [torch.tensor([*ids, ANY]) for ids in prefixes or [()] * len(lengths)]
        forced = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=ANY)
        forced = forced.to(lengths.device)
        max_lengths = lengths + config.max_extra_length
        if max_positions is not None:
            max_lengths = max_lengths.clamp(max=max_positions)
        max_lengths = max_lengths.maximum((forced != ANY).sum(dim=1) + 1)
        return cls(forced, max_lengths, config.min_length)

    def forced_tokens(self, positions: Tensor) -> Tensor:
        """Return the [B] tokens that are forced next: the prefix's, EOS at the limit, or `ANY`.

        `positions` are [B] numbers of tokens so far, without BOS.
        """
        index = positions.clamp(max=self.forced.size(1) - 1)[:, None]
        forced = self.forced.gather(1, index)[:, 0]
        is_at_limit = positions + 1 >= self.max_lengths
        return torch.where((forced == ANY) & is_at_limit, EOS, forced)

    def __getitem__(self, sentences: Tensor | slice) -> "Constraints":
        return Constraints(self.forced[sentences], self.max_lengths[sentences], self.min_length)
