"""Beam search in slots, which take new sentences as soon as others are finished."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tfm.backends.cuda_graphs import recorded
from tfm.config import SearchConfig
from tfm.model.slots import SlotShape
from tfm.model.transformer import Transformer
from tfm.search.constraints import Constraints, Prefixes
from tfm.search.scoring import Hypothesis, check_finite
from tfm.search.slot_beam import SlotBeams, hypotheses

# Each hypothesis reads the columns of all hypotheses of its sentence: cheap up to this beam size.
_MAX_HYPOTHESES = 64
# To ask which sentences are finished is to wait for the device, so it is done once in N steps.
_STEPS_PER_POLL = 4
# Capacities are multiples of this; source capacities are this times a power of two.
_CAPACITY_MULTIPLE = 64
# Token capacity of all hypotheses per source token of a batch: 256 slots for short sentences with a
# beam of 4 and 4,096 tokens. Not measured on a GPU.
_CAPACITY_PER_SOURCE_TOKEN = 32
_MAX_POOLS = 4


@dataclass
class _Pool:
    """Slots of one shape, and the function that runs a step of all of them."""

    beams: SlotBeams
    step: Callable[[], None]
    num_slots: int


def supports(config: SearchConfig) -> bool:
    """Return whether a search can be made in slots: beam search, neither diverse nor very wide."""
    is_plain_beam = config.search == "beam" and config.num_groups == 1
    return is_plain_beam and config.beam_size <= _MAX_HYPOTHESES


class SlotSearch:
    """Beam search of a batch in slots, which may be fewer than its sentences.

    The results are those of `beam_search`, except for the rounding of matrix products. The model
    is in evaluation mode.
    """

    def __init__(self, model: Transformer, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._pools: OrderedDict[tuple[SearchConfig, SlotShape], _Pool] = OrderedDict()

    def search(
        self,
        source: Tensor,
        lengths: Tensor,
        config: SearchConfig,
        *,
        max_tokens: int,
        prefixes: Prefixes | None = None,
    ) -> list[list[Hypothesis]]:
        """Find the n best outputs of a batch.

        Sources [B, S] of [B] lengths are on the CPU; the rest is as in `tfm.search.search`. About
        `max_tokens` source tokens are translated at a time.

        Raises:
            CheckpointError: The model gives no finite probabilities.
        """
        constraints = Constraints.of(
            lengths, config, max_positions=self._model.max_positions, prefixes=prefixes
        )
        outputs: list[list[Hypothesis]] = [[] for _ in lengths]
        try:
            for shape, rows in _groups(lengths, constraints, config, max_tokens=max_tokens):
                pool = self._pool(shape, config)
                for row, found in _run(pool, rows, source, lengths, constraints):
                    outputs[row] = found
        except BaseException:
            self.release()  # interrupted slots are in an undefined state
            raise
        check_finite(all(outputs))
        return outputs

    def release(self) -> None:
        """Free the memory of all slots."""
        self._pools.clear()

    def _pool(self, shape: SlotShape, config: SearchConfig) -> _Pool:
        key = config, shape
        if key not in self._pools:
            while len(self._pools) >= _MAX_POOLS:
                self._pools.popitem(last=False)
            beams = SlotBeams(self._model, config, shape, self._device)
            self._pools[key] = _Pool(beams, recorded(beams.step, self._device), shape.num_slots)
        self._pools.move_to_end(key)
        return self._pools[key]


def _run(
    pool: _Pool, rows: Sequence[int], source: Tensor, lengths: Tensor, constraints: Constraints
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield rows of a batch [B, S] and their n best hypotheses; the slots must be large enough."""
    waiting = deque(rows)
    free = list(range(pool.num_slots))
    running: dict[int, int] = {}  # slot → row
    finished: list[int] = []
    outputs = torch.empty(0)
    while waiting or running:
        num_new = min(len(waiting), len(free))
        # To encode a few sentences costs nearly as much as to encode many.
        if num_new and num_new >= min(len(waiting), pool.num_slots // 4):
            slots = [free.pop() for _ in range(num_new)]
            new = torch.tensor([waiting.popleft() for _ in range(num_new)])
            longest = int(lengths[new].max())
            pool.beams.prefill(slots, source[new, :longest], lengths[new], constraints[new])
            running.update(zip(slots, new.tolist(), strict=True))
        for _ in range(_STEPS_PER_POLL):
            pool.step()
        yield from zip(finished, hypotheses(outputs), strict=True)  # while the device computes
        is_open = pool.beams.is_open.tolist()
        done = [slot for slot in running if not is_open[slot]]
        finished = [running.pop(slot) for slot in done]
        outputs = pool.beams.outputs(done) if done else torch.empty(0)
        free += done
    yield from zip(finished, hypotheses(outputs), strict=True)


def _groups(
    lengths: Tensor, constraints: Constraints, config: SearchConfig, *, max_tokens: int
) -> Iterator[tuple[SlotShape, list[int]]]:
    """Group the rows of a batch by the shape of the slots that they need, the longest first."""
    groups: dict[int, list[int]] = {}
    for row in lengths.argsort(descending=True, stable=True).tolist():
        source_capacity = _CAPACITY_MULTIPLE
        while source_capacity < lengths[row]:
            source_capacity *= 2
        groups.setdefault(source_capacity, []).append(row)
    for source_capacity, rows in groups.items():
        longest = int(constraints.max_lengths[rows].max())
        min_capacity = max(longest, source_capacity + config.max_extra_length)
        capacity = -(-min_capacity // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE
        max_slots = _CAPACITY_PER_SOURCE_TOKEN * max_tokens // (capacity * config.beam_size)
        # Powers of two, so that shapes repeat.
        num_slots = min(1 << max(0, max_slots.bit_length() - 1), 1 << (len(rows) - 1).bit_length())
        yield SlotShape(num_slots, config.beam_size, source_capacity, capacity), rows
