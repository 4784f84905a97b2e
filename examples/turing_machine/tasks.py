"""Made-up sequences of bits: copy, repeat copy and associative recall (Graves et al. 2014, §4).

A machine reads a sequence of vectors, then zeros, and must write its answer while it reads these. A
length is that of the answer for the copies, and that of the input for associative recall.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Task = Literal["copy", "repeat-copy", "recall"]
TASKS: tuple[Task, ...] = get_args(Task)

BITS = {"copy": 8, "repeat-copy": 8, "recall": 6}  # of each vector, as in the paper
NUM_MARKS = 2  # channels after the bits: the end of the input, and a mark or a number of repeats

_MAX_REPEATS = 10
_ITEM_LENGTH = 3  # vectors of each item, after a mark


@dataclass(frozen=True)
class Examples:
    """B sequences of one length.

    Attributes:
        inputs: [B, T, bits + marks] what the machine reads.
        answers: [B, A, bits] what it must write during the last A of the T steps.
    """

    inputs: Tensor
    answers: Tensor

    @property
    def answer_length(self) -> int:
        """The number of vectors to write."""
        return self.answers.size(1)


def make(task: Task, length: int, batch_size: int, random: torch.Generator) -> Examples:
    """Make B random sequences of a length."""
    match task:
        case "copy":
            return _copy(length, batch_size, random)
        case "repeat-copy":
            return _repeat_copy(*_factors(length, random), batch_size, random)
        case "recall":
            return _recall(max(2, length // (1 + _ITEM_LENGTH)), batch_size, random)


def random_length(task: Task, longest: int, random: torch.Generator) -> int:
    """Draw a length of training sequences; those of recall have two items or more."""
    shortest = 2 * (1 + _ITEM_LENGTH) if task == "recall" else 1
    return int(torch.randint(shortest, longest + 1, (), generator=random))


def _copy(length: int, batch_size: int, random: torch.Generator) -> Examples:
    """Make: L vectors, a mark; the answer is the L vectors."""
    answers = _random_bits(batch_size, length, BITS["copy"], random)
    inputs = torch.zeros(batch_size, 2 * length + 1, BITS["copy"] + NUM_MARKS)
    inputs[:, :length, : BITS["copy"]] = answers
    inputs[:, length, -2] = 1.0
    return Examples(inputs, answers)


def _repeat_copy(
    length: int, num_repeats: int, batch_size: int, random: torch.Generator
) -> Examples:
    """Make: L vectors, the number of repeats; the answer is the L vectors R times."""
    bits = BITS["repeat-copy"]
    vectors = _random_bits(batch_size, length, bits, random)
    answers = vectors.repeat(1, num_repeats, 1)
    inputs = torch.zeros(batch_size, length + 1 + answers.size(1), bits + NUM_MARKS)
    inputs[:, :length, :bits] = vectors
    inputs[:, length, -2] = 1.0
    inputs[:, length, -1] = num_repeats / _MAX_REPEATS
    return Examples(inputs, answers)


def _recall(num_items: int, batch_size: int, random: torch.Generator) -> Examples:
    """Make: items of three vectors, each after a mark, then one of them; the answer is the next."""
    bits = BITS["recall"]
    items = _random_bits(batch_size * num_items, _ITEM_LENGTH, bits, random)
    items = items.view(batch_size, num_items, _ITEM_LENGTH, bits)
    asked = torch.randint(0, num_items - 1, (batch_size,), generator=random)
    rows = torch.arange(batch_size)
    read = torch.cat([items, items[rows, asked, None]], dim=1)
    marked = torch.zeros(batch_size, num_items + 1, 1 + _ITEM_LENGTH, bits + NUM_MARKS)
    marked[:, :, 1:, :bits] = read
    marked[:, :-1, 0, -1] = 1.0  # before each item
    marked[:, -1, 0, -2] = 1.0  # before the question
    inputs = marked.flatten(1, 2)
    end = torch.zeros(batch_size, 1 + _ITEM_LENGTH, bits + NUM_MARKS)
    end[:, 0, -2] = 1.0
    return Examples(torch.cat([inputs, end], dim=1), items[rows, asked + 1])


def _factors(length: int, random: torch.Generator) -> tuple[int, int]:
    """Draw L and R with L · R of about a length: at most ten repeats, if ten vectors allow it."""
    least = -(-length // _MAX_REPEATS)
    most = max(least, min(length, _MAX_REPEATS))
    num_vectors = int(torch.randint(least, most + 1, (), generator=random))
    return num_vectors, max(1, length // num_vectors)


def _random_bits(batch_size: int, length: int, bits: int, random: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (batch_size, length, bits), generator=random).float()
