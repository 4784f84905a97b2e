"""Pictures and captions as tensors."""

from typing import NamedTuple

import numpy as np
import torch
from models import GRID_SIZE
from pictures import MAX_WORDS, Scene, draw, encode, random_scenes
from torch import Tensor

from tfm.vocabulary.subword import BOS, PAD


class Examples(NamedTuple):
    """N pictures and their captions."""

    scenes: list[Scene]
    pictures: Tensor  # [N, 3, height, width] uint8
    captions: Tensor  # [N, 2, T] token ids with EOS, then PAD

    def source(self, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Return pictures [B, 3, height, width] from 0 to 1, and their numbers of cells [B]."""
        pictures = self.pictures[rows].float() / 255
        return pictures, torch.full((len(pictures),), GRID_SIZE**2)

    def target(self, rows: slice | Tensor, which: int | Tensor) -> tuple[Tensor, Tensor]:
        """Return one caption of each picture [B, T], from BOS on, and the same up to EOS."""
        target = self.captions[rows, which]
        return torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], dim=1), target

    def only(self, number: int) -> "Examples":
        """Return one of the examples."""
        rows = slice(number, number + 1)
        return Examples(self.scenes[rows], self.pictures[rows], self.captions[rows])

    def with_caption(self, caption: str) -> "Examples":
        """Return the only example with another caption."""
        return self._replace(captions=torch.tensor([[encode(caption)]]))


def make_examples(number: int, random: np.random.Generator, *, held_out: bool) -> Examples:
    """Make N pictures and their captions, with held-out combinations in all pictures or in none."""
    scenes = random_scenes(number, random, held_out=held_out)
    captions = torch.full((number, 2, MAX_WORDS + 1), PAD)
    for row, scene in zip(captions, scenes, strict=True):
        for tokens, caption in zip(row, scene.captions(), strict=True):
            ids = encode(caption)
            tokens[: len(ids)] = torch.tensor(ids)
    return Examples(scenes, torch.from_numpy(draw(scenes, random)), captions)
