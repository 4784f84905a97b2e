"""Stories as tensors."""

from collections.abc import Callable

import torch
from networks import EMPTY, Batch, encode_positions
from stories import FROGS, FROGS_TASK, Story, make

_EMPTY_FRACTION = 0.1


class Task:
    """Stories of one task as tensors: 9 of 10 to train, the others to validate, and a test set."""

    def __init__(
        self, number: int, num_stories: int, draw: Callable[..., list[Story]] = make
    ) -> None:
        self.number = number
        stories = draw(number, 2 * num_stories, seed=number)
        shown = [FROGS] if number == FROGS_TASK else []
        told = {s for each in stories + shown for s in (*each.sentences, each.question)}
        sentences = ["", *sorted(told)]
        self._sentence_index = {sentence: index for index, sentence in enumerate(sentences)}
        text = " ".join([*told, *(story.answer for story in stories)])
        self.words = sorted(set(text.split()))
        ids = [[self.words.index(word) for word in each.split()] for each in sentences]
        self.bags = encode_positions(ids, len(self.words))
        self._longest = max(len(story.sentences) for story in stories)
        self.num_empty = max(1, self._longest // 5)  # slots for empty sentences
        self.num_slots = self._longest + self.num_empty
        num_train = num_stories - num_stories // 10
        self.train = self.batch(stories[:num_train])
        self.valid = self.batch(stories[num_train:num_stories])
        self.test_stories = stories[num_stories:]
        self.test = self.batch(self.test_stories)

    def batch(self, stories: list[Story]) -> Batch:
        """Return stories as tensors."""
        slots = torch.full((len(stories), self._longest), EMPTY)
        for row, story in zip(slots, stories, strict=True):
            ids = [self._sentence_index[sentence] for sentence in reversed(story.sentences)]
            row[: len(ids)] = torch.tensor(ids)
        return Batch(
            torch.tensor([self._sentence_index[story.question] for story in stories]),
            slots,
            torch.tensor([len(story.sentences) for story in stories]),
            torch.tensor([self.words.index(story.answer) for story in stories]),
        )


def add_empty(batch: Batch, num_empty: int) -> Batch:
    """Insert empty sentences at random, at most num_empty per story (random noise, §4.1).

    The temporal encoding then cannot rely on exact places.
    """
    num_stories, longest = batch.slots.shape
    is_empty = torch.rand(num_stories, longest + num_empty) < _EMPTY_FRACTION
    is_empty &= is_empty.cumsum(1) <= num_empty
    places = torch.arange(longest + num_empty) - is_empty.cumsum(1)  # in the story
    in_story = places < batch.num_slots[:, None]
    slots = batch.slots.gather(1, places.clamp(0, longest - 1))
    slots = slots.masked_fill(is_empty | ~in_story, EMPTY)
    return batch._replace(slots=slots, num_slots=in_story.sum(1))
