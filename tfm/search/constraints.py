"""What outputs must start with, and how long they may become."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import BOS, EOS, PAD, UNK

# For each source the token ids that its output must start with.
Prefixes: TypeAlias = Sequence[Sequence[int]]

NEVER_PRODUCED = [PAD, BOS, UNK]
ANY = -1  # no token is forced


@dataclass
class Constraints:
    """The constraints on the outputs of B sentences.

    Attributes:
        forced: [B, P] the token that is forced at each position, `ANY` where none is; the last
            column, which stands for all positions behind it, has only `ANY`.
        max_lengths: [B] the greatest number of tokens of an output, EOS included.
    """

    forced: Tensor
    max_lengths: Tensor

    @classmethod
    def of(
        cls,
        lengths: Tensor,
        config: SearchConfig,
        *,
        max_positions: int | None,
        prefixes: Prefixes | None,
    ) -> "Constraints":
        """The constraints of a batch.

        Args:
            lengths: [B] those of the sources, EOS included.
            config: Limits.
            max_positions: The most tokens that the model takes in on a side; None if unlimited.
            prefixes: What outputs must start with; nothing if not given.
        """
        rows = [torch.tensor([*ids, ANY]) for ids in prefixes or [()] * len(lengths)]
        forced = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=ANY)
        forced = forced.to(lengths.device)
        max_lengths = lengths + config.max_extra_length
        if max_positions is not None:
            max_lengths = max_lengths.clamp(max=max_positions)
        return cls(forced, max_lengths.maximum((forced != ANY).sum(dim=1) + 1))

    def only_tokens(self, positions: Tensor) -> Tensor:
        """The only token that may come next: the prefix's, or EOS at the greatest length.

        Args:
            positions: [B] number of tokens so far, without BOS.

        Returns:
            [B] token ids; `ANY` where several may come.
        """
        places = positions.clamp(max=self.forced.size(1) - 1)[:, None]
        forced = self.forced.gather(1, places)[:, 0]
        is_at_limit = positions + 1 >= self.max_lengths
        return torch.where((forced == ANY) & is_at_limit, EOS, forced)

    def __getitem__(self, rows: Tensor | slice) -> "Constraints":
        """The constraints of some sentences."""
        return Constraints(self.forced[rows], self.max_lengths[rows])
