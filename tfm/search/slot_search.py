"""Beam search in slots that take in the next sentences as soon as others are finished."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.model.slots import SlotShape
from tfm.model.transformer import Transformer
from tfm.search.constraints import Constraints, Prefixes
from tfm.search.scoring import Hypothesis
from tfm.search.slot_beam import SlotBeams, hypotheses

# Hypotheses of a sentence look through each other's columns: up to this many that costs little.
MAX_HYPOTHESES = 64
# Whether sentences are finished is looked at every few steps: to look is to wait for the device.
_STEPS_AT_ONCE = 4
# Capacities are multiples of this; those of sources, this times a power of two.
_CAPACITY_UNIT = 64
# Tokens of hypotheses that there is room for, for each source token that is translated together:
# 256 slots for short sentences with a beam of 4 and 4,096 tokens, which keep a GPU busy.
_TOKENS_PER_SOURCE_TOKEN = 32
_MAX_POOLS = 4

# Makes of a step one that is recorded and replayed.
Record = Callable[[Callable[[], None]], Callable[[], None]]


@dataclass
class _Pool:
    """Slots of a shape, and what has all of them take a step."""

    beams: SlotBeams
    step: Callable[[], None]
    num_slots: int


class SlotSearch:
    """Searches for the outputs of a batch in slots, of which there may be fewer than sentences.

    It finds the same as `beam_search`, but for the rounding of matrix products.

    Args:
        model: The model, in evaluation mode.
        device: Where it is.
        record: Makes of a step one that is replayed; steps are launched anew if not given.
    """

    def __init__(
        self, model: Transformer, device: torch.device, record: Record = lambda step: step
    ) -> None:
        self._model = model
        self._device = device
        self._record = record
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
        """Search for the outputs of a batch.

        Args:
            source: [B, S] token ids on the CPU, closed by EOS and padded at the end.
            lengths: [B] their lengths, EOS included.
            config: Beam, penalty and limits.
            max_tokens: About how many source tokens to translate at a time.
            prefixes: What outputs must start with.

        Returns:
            For each source its `n_best` hypotheses, best first.
        """
        constraints = Constraints.of(
            lengths, config, max_positions=self._model.max_positions, prefixes=prefixes
        )
        outputs: list[list[Hypothesis]] = [[] for _ in lengths]
        try:
            for shape, rows in _groups(lengths, constraints, config, max_tokens=max_tokens):
                pool = self._pool(shape, config)
                _run(pool, rows, source, lengths, constraints, outputs)
        except BaseException:
            self.release()  # slots that were left in the middle are of no use
            raise
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
            self._pools[key] = _Pool(beams, self._record(beams.step), shape.num_slots)
        self._pools.move_to_end(key)
        return self._pools[key]


def _run(
    pool: _Pool,
    rows: Sequence[int],
    source: Tensor,
    lengths: Tensor,
    constraints: Constraints,
    outputs: list[list[Hypothesis]],
) -> None:
    """Search for the outputs of some rows of a batch.

    Args:
        pool: Slots that each of them fits in.
        rows: Which rows.
        source: [B, S] token ids.
        lengths: [B] their lengths.
        constraints: Of all B.
        outputs: Their places are filled.
    """
    waiting = deque(rows)
    free = list(range(pool.num_slots))
    running: dict[int, int] = {}  # slot → row
    finished: tuple[list[int], Tensor] | None = None

    def hand_out() -> None:
        if finished is not None:
            for row, found in zip(finished[0], hypotheses(finished[1]), strict=True):
                outputs[row] = found

    while waiting or running:
        num_new = min(len(waiting), len(free))
        # To encode a few sentences costs nearly as much as to encode many.
        if num_new and num_new >= min(len(waiting), pool.num_slots // 4):
            slots = [free.pop() for _ in range(num_new)]
            new = torch.tensor([waiting.popleft() for _ in range(num_new)])
            longest = int(lengths[new].max())
            pool.beams.prefill(slots, source[new, :longest], lengths[new], constraints[new])
            running.update(zip(slots, new.tolist(), strict=True))
        for _ in range(_STEPS_AT_ONCE):
            pool.step()
        hand_out()  # while the device computes
        is_open = pool.beams.is_open.tolist()
        done = [slot for slot in running if not is_open[slot]]
        finished = None
        if done:
            finished = [running.pop(slot) for slot in done], pool.beams.outputs(done)
            free += done
    hand_out()


def _groups(
    lengths: Tensor, constraints: Constraints, config: SearchConfig, *, max_tokens: int
) -> Iterator[tuple[SlotShape, list[int]]]:
    """Group the rows of a batch by the slots that they need, the longest first."""
    groups: dict[int, list[int]] = {}
    for row in lengths.argsort(descending=True, stable=True).tolist():
        capacity = _CAPACITY_UNIT
        while capacity < lengths[row]:
            capacity *= 2
        groups.setdefault(capacity, []).append(row)
    for source_capacity, rows in groups.items():
        longest = int(constraints.max_lengths[rows].max())
        needed = max(longest, source_capacity + config.max_extra_length)
        capacity = -(-needed // _CAPACITY_UNIT) * _CAPACITY_UNIT
        most = _TOKENS_PER_SOURCE_TOKEN * max_tokens // (capacity * config.beam_size)
        yield (
            SlotShape(
                # Powers of two, so that shapes repeat.
                num_slots=min(
                    1 << max(0, most.bit_length() - 1), 1 << (len(rows) - 1).bit_length()
                ),
                num_hypotheses=config.beam_size,
                source_capacity=source_capacity,
                capacity=capacity,
            ),
            rows,
        )
