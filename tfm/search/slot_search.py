"""Beam search in slots that take in the next sentences as soon as others are done."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.search.hypothesis import Hypothesis
from tfm.search.slot_beams import (
    SlotBeams,
    SlotModel,
    SlotSentences,
    SlotShape,
    hypotheses,
)

# Hypotheses of a sentence look through each other's columns: up to so many that costs little.
MOST_HYPOTHESES = 64
# Sentences are looked at for their ends every so many steps: to look is to wait for the device.
_STEPS_AT_ONCE = 4
# Room is made for lengths of this, and its doubles.
_SHORTEST_ROOM = 64
# Tokens of hypotheses that there is room for, by the source tokens that are translated together:
# 256 slots for short sentences with a beam of 4, which keeps a GPU busy.
_ROOM = 32
# As many rooms are kept for the next batches of their lengths.
_MOST_ROOMS = 4

# Returns the sentences of the next batch; None if there is none, or if it is told not to wait, and
# would have to.
Take = Callable[[bool], SlotSentences | None]
# Makes of a step one that is replayed.
Record = Callable[[Callable[[], None]], Callable[[], None]]


class SlotSearch:
    """Searches for the outputs of batches in slots.

    What is found is the same as by `beam_search`, but for the rounding of matrix products.

    Args:
        model: What can decode in slots, in evaluation mode.
        device: Where it is.
        record: Makes of a step one that is replayed; the same steps over and over if not given.
    """

    def __init__(
        self, model: SlotModel, device: torch.device, record: Record = lambda step: step
    ) -> None:
        self._model = model
        self._device = device
        self._record = record
        self._rooms: OrderedDict[tuple[SearchConfig, SlotShape], _Room] = OrderedDict()

    def found(self, take: Take, config: SearchConfig) -> Iterator[list[list[Hypothesis]]]:
        """Search for the outputs of batches.

        Args:
            take: Returns the next batch.
            config: Beam, penalty and limits.

        Yields:
            For each batch, in order, the `n_best` hypotheses of its sentences, best first.
        """
        underway: deque[_Batch] = deque()
        waiting: deque[_Batch] = deque()
        room: _Room | None = None
        most = _room_slots(config, 2 * _SHORTEST_ROOM)
        try:
            while True:
                while _num_waiting(waiting) < most:
                    sentences = take(not underway)
                    if sentences is None:
                        break
                    underway.append(_Batch(sentences))
                    waiting.append(underway[-1])
                if not underway:
                    return
                if waiting and (room is None or room.is_empty):
                    room = self._room_for(waiting, config)
                if room is not None:
                    room.admit(waiting)
                    room.advance()
                    room.hand_out()
                while underway and underway[0].is_done:
                    yield underway.popleft().outputs
                if room is not None:
                    room.look()
        finally:
            if room is not None and not room.is_empty:
                self.release()  # someone broke off: what is in there is of no use to anybody

    def release(self) -> None:
        """Hand back the memory of all rooms."""
        self._rooms.clear()

    def _room_for(self, waiting: "deque[_Batch]", config: SearchConfig) -> "_Room":
        """An empty room that suits the first batch, and others of such lengths."""
        source_capacity = _source_room(waiting[0])
        outputs = max(waiting[0].longest_output, source_capacity + config.max_extra_length)
        capacity = -(-outputs // _SHORTEST_ROOM) * _SHORTEST_ROOM
        alike = sum(
            batch.num_waiting for batch in waiting if _source_room(batch) == source_capacity
        )
        shape = SlotShape(
            num_slots=min(_room_slots(config, capacity), 1 << (alike - 1).bit_length()),
            num_hypotheses=config.beam_size,
            source_capacity=source_capacity,
            capacity=capacity,
        )
        key = config, shape
        if key not in self._rooms:
            while len(self._rooms) >= _MOST_ROOMS:
                self._rooms.popitem(last=False)
            beams = SlotBeams(self._model, config, shape, self._device)
            self._rooms[key] = _Room(shape, beams, self._record(beams.step))
        self._rooms.move_to_end(key)
        return self._rooms[key]


@dataclass
class _Batch:
    """Sentences, of which the first `num_placed` have been put into slots, and their outputs."""

    sentences: SlotSentences
    num_placed: int = 0
    num_done: int = 0
    outputs: list[list[Hypothesis]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outputs = [[] for _ in self.sentences.lengths]
        self.longest_source = self.sentences.source.size(1)
        self.longest_output = int(self.sentences.max_lengths.max())

    @property
    def num_waiting(self) -> int:
        """Sentences that are in no slot yet."""
        return len(self.outputs) - self.num_placed

    @property
    def is_done(self) -> bool:
        """Whether there are the outputs of all."""
        return self.num_done == len(self.outputs)


# A batch, and the number of a sentence in it.
_Owner = tuple[_Batch, int]


class _Room:
    """Slots, and whose sentences are in them.

    Args:
        shape: How much room there is.
        beams: The slots.
        step: Has all of them take a step.
    """

    def __init__(self, shape: SlotShape, beams: SlotBeams, step: Callable[[], None]) -> None:
        self._shape = shape
        self._beams = beams
        self._step = step
        self._free = list(range(shape.num_slots))
        self._taken: dict[int, _Owner] = {}
        self._done: list[tuple[list[_Owner], Tensor]] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing left to be done in it."""
        return not self._taken and not self._done

    def admit(self, waiting: deque[_Batch]) -> None:
        """Put in as many sentences as there is room for, if it is worth encoding them."""
        while waiting and self._suits(waiting[0]):
            batch = waiting[0]
            num_new = min(batch.num_waiting, len(self._free))
            if num_new < min(batch.num_waiting, max(1, self._shape.num_slots // 4)):
                return
            places, first = self._free[:num_new], batch.num_placed
            self._beams.occupy(places, batch.sentences.part(slice(first, first + num_new)))
            del self._free[:num_new]
            self._taken.update(
                (place, (batch, row)) for row, place in enumerate(places, start=first)
            )
            batch.num_placed += num_new
            if not batch.num_waiting:
                waiting.popleft()

    def advance(self) -> None:
        """Have the sentences take some steps, for which nobody waits."""
        if self._taken:
            for _ in range(_STEPS_AT_ONCE):
                self._step()

    def look(self) -> None:
        """See which sentences are done: wait for the steps, and free their slots."""
        if not self._taken:
            return
        is_open = self._beams.is_open.tolist()
        done = [place for place in self._taken if not is_open[place]]
        if done:
            owners = [self._taken.pop(place) for place in done]
            self._done.append((owners, self._beams.outputs(done)))
            self._free += done

    def hand_out(self) -> None:
        """Give batches the outputs of what was seen to be done, while the device goes on."""
        for owners, outputs in self._done:
            for (batch, row), output in zip(owners, hypotheses(outputs), strict=True):
                batch.outputs[row] = output
                batch.num_done += 1
        self._done.clear()

    def _suits(self, batch: _Batch) -> bool:
        """Whether a batch's sentences fit in, and would not in much less."""
        shape = self._shape
        return _source_room(batch) == shape.source_capacity and (
            batch.longest_output <= shape.capacity
        )


def _num_waiting(batches: deque[_Batch]) -> int:
    return sum(batch.num_waiting for batch in batches)


def _source_room(batch: _Batch) -> int:
    """Room for the sources of a batch."""
    room = _SHORTEST_ROOM
    while room < batch.longest_source:
        room *= 2
    return room


def _room_slots(config: SearchConfig, capacity: int) -> int:
    """The most slots for outputs of so many tokens, a power of two."""
    num_slots = _ROOM * config.max_tokens // (capacity * config.beam_size)
    return 1 << max(0, num_slots.bit_length() - 1)
